// A Node driver's end of the connection to the bench. line.py explains the orders.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const TELL_MS = 20;
const CHUNK = 5000;

export const monotonicUs = () => Number(process.hrtime.bigint() / 1000n);

class Tally {
  count = 0;
  atUs = 0;
  stamping = false;
  stamps = [];

  ran(mark) {
    const now = (this.atUs = monotonicUs());
    if (this.stamping) this.stamps.push([mark, now]);
    this.count += 1;
  }
}

export const tally = new Tally();

const tell = (facts) => process.stdout.write(JSON.stringify(facts) + "\n");

// The address in a URL of libpq's form, as node-postgres takes it.
export function addressOf(url) {
  const parsed = new URL(url.replace("@/", "@localhost/"));
  return {
    host: parsed.searchParams.get("host") ?? parsed.hostname,
    port: Number(parsed.searchParams.get("port") ?? (parsed.port || 5432)),
    user: decodeURIComponent(parsed.username),
    password: decodeURIComponent(parsed.password) || undefined,
    database: decodeURIComponent(parsed.pathname.slice(1)),
  };
}

function* chunksOf(order) {
  for (let start = 0; start < order.count; start += CHUNK) {
    const chunk = [];
    for (let number = start; number < Math.min(order.count, start + CHUNK); number++) {
      if (order.due_us === undefined) chunk.push({ mark: number });
      else {
        const after = number * order.every_us;
        chunk.push({ mark: order.mark_us + after, due: new Date((order.due_us + after) / 1000) });
      }
    }
    yield chunk;
  }
}

async function submit(driver, order) {
  const began = performance.now();
  for (const chunk of chunksOf(order)) await driver.submit(chunk);
  return (performance.now() - began) / 1000;
}

async function trickle(driver, order) {
  for (let number = 0; number < order.count; number++) {
    await sleep((1000 * (0.75 + 0.5 * ((number * 0.618) % 1))) / order.per_second);
    await driver.submitOne({ mark: monotonicUs() });
  }
}

async function work(driver, orders, order) {
  tally.stamping = order.stamping;
  await driver.connectWorker();
  tell({ ready: true });
  if ((await orders.next()).done) return;
  let last = 0;
  const telling = setInterval(() => {
    if (tally.count === last) return;
    last = tally.count;
    tell({ count: last, at_us: tally.atUs });
  }, TELL_MS);
  await driver.startWork();
  await orders.next();
  await driver.stopWork();
  clearInterval(telling);
  tell({ count: tally.count, at_us: tally.atUs, stamps: tally.stamps });
}

function versionsOf(packages) {
  const require = createRequire(import.meta.url);
  const versions = Object.fromEntries(packages.map((name) => [name, require(`./node_modules/${name}/package.json`).version]));
  return { ...versions, node: process.versions.node };
}

export async function serve(makeDriver) {
  const orders = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const driver = makeDriver(process.argv[2]);
  let opened = false;
  for (let next = await orders.next(); !next.done; next = await orders.next()) {
    const order = JSON.parse(next.value);
    if (order.do === "about") {
      const { title, settings } = driver;
      tell({ title, settings, versions: versionsOf(driver.packages), server: "postgresql", processes: null, submits_in_worker: false });
    } else if (order.do === "prepare") {
      await driver.prepare();
      tell({ done: true });
    } else if (order.do === "work") {
      await work(driver, orders, order);
      break;
    } else {
      if (!opened) await driver.open();
      opened = true;
      if (order.do === "submit") tell({ done: true, seconds: await submit(driver, order) });
      else if (order.do === "trickle") tell({ done: true, ...(await trickle(driver, order)) });
      else if (order.do === "left") tell({ left: await driver.left() });
    }
  }
  process.exit(0);
}
