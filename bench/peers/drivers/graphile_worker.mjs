// dependencies: graphile-worker@0.18.0 pg@8.23.0
// Graphile Worker in its batch mode, set up as its documentation's page on performance does. It deletes what is done.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";
import { addressOf, serve, tally } from "./line.mjs";

const CONCURRENT_JOBS = 24;
const LOCAL_QUEUE = 500;

const silent = new Logger(() => () => {});

serve((url) => {
  // node-postgres makes a pool's connections when they are needed.
  const pool = new pg.Pool({ ...addressOf(url), max: CONCURRENT_JOBS + 1 });
  pool.on("error", () => {});
  const preset = {
    worker: {
      concurrentJobs: CONCURRENT_JOBS,
      maxPoolSize: CONCURRENT_JOBS + 1,
      localQueue: { size: LOCAL_QUEUE },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: silent,
    },
  };
  let utils, runner;
  return {
    title: "Graphile Worker (batch mode)",
    packages: ["graphile-worker", "pg"],
    settings:
      `concurrentJobs ${CONCURRENT_JOBS}, localQueue ${LOCAL_QUEUE}, completeJobBatchDelay 0, pollInterval 2 s (default); ` +
      "add_jobs; deletes finished jobs, not fenced",

    async prepare() {
      await runMigrations({ preset, pgPool: pool });
    },
    async open() {
      utils = await makeWorkerUtils({ preset, pgPool: pool });
    },
    async submit(jobs) {
      await utils.addJobs(jobs.map(({ mark, due }) => ({ identifier: "ran", payload: { mark }, runAt: due })));
    },
    async submitOne({ mark }) {
      await utils.addJob("ran", { mark });
    },
    async connectWorker() {
      await pool.query("select 1");
    },
    async startWork() {
      const taskList = { ran: async ({ mark }) => tally.ran(mark) };
      runner = await run({ preset, pgPool: pool, taskList, noHandleSignals: true, parsedCronItems: [] });
    },
    async stopWork() {
      await runner.stop();
    },
    async left() {
      const { rows } = await pool.query("select count(*)::int as left from graphile_worker.jobs");
      return rows[0].left;
    },
  };
});
