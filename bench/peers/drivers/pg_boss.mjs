// dependencies: pg-boss@12.35.0
// pg-boss with large batches, fetched again at once while they come back full, and woken by NOTIFY.
import { PgBoss } from "pg-boss";
import { addressOf, serve, tally } from "./line.mjs";

const QUEUE = "bench";
const BATCH = 1000;
const FETCHERS = 2;

serve((url) => {
  const boss = new PgBoss({ ...addressOf(url), useListenNotify: true });
  boss.on("error", (error) => console.error(error));
  return {
    title: "pg-boss",
    packages: ["pg-boss", "pg"],
    settings:
      `batchSize ${BATCH}, localConcurrency ${FETCHERS}, burstWhenBatchFull, NOTIFY, polling every 0.5 s (its least); insert; ` +
      "fenced by attempt, keeps finished jobs",

    async prepare() {
      await boss.start();
      await boss.createQueue(QUEUE, { notify: true });
      await boss.stop({ graceful: false });
    },
    async open() {
      await boss.start();
    },
    async submit(jobs) {
      await boss.insert(QUEUE, jobs.map(({ mark, due }) => ({ data: { mark }, startAfter: due })));
    },
    async submitOne({ mark }) {
      await boss.send(QUEUE, { mark });
    },
    async connectWorker() {
      await boss.start();
    },
    async startWork() {
      const options = {
        batchSize: BATCH,
        localConcurrency: FETCHERS,
        burstWhenBatchFull: true,
        pollingIntervalSeconds: 0.5,
        notifyPollingIntervalSeconds: 0.5,
      };
      await boss.work(QUEUE, options, async (jobs) => {
        for (const { data } of jobs) tally.ran(data.mark);
      });
    },
    async stopWork() {
      await boss.stop({ graceful: true, timeout: 5000 });
    },
    async left() {
      const { rows } = await boss.getDb().executeSql("select count(*)::int as left from pgboss.job where state < 'completed'");
      return rows[0].left;
    },
  };
});
