// The live page: asks /live every second and writes what it hears into the tables.
//
// Every value goes into the page as text (textContent) and never as markup, because names and errors are whatever a
// client or a handler chose. Rows are kept and changed in place, so that focus and a selection survive an update.
"use strict";

const POLL_MS = 1000;
const TIMEOUT_MS = 10_000;

const byId = (id) => document.getElementById(id);
const connection = byId("connection");
const keyForm = byId("key-form");
const KEY = "duly-api-key";

let latest = null; // the last document
let latestAt = 0; // when it came, by this machine's monotonic clock
let timer = 0;
let asking = false;
takeKey();
let key = sessionStorage.getItem(KEY) ?? ""; // where the server has none, none is asked for

// The link that `duly up` prints brings the key behind its #. It does not stay in the address: people share those.
function takeKey() {
  const found = /^#key=([!-~]+)$/.exec(location.hash);
  if (!found) return false;
  sessionStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

// Times

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayAndClock = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
});

// The database's time: the answer's `now`, carried on by the monotonic clock. This machine's own may be minutes off.
const now = () => Date.parse(latest.now) + (performance.now() - latestAt);

function showTime(text) {
  if (!text) return "–";
  const moment = new Date(text);
  const today = new Date(now()).toDateString() === moment.toDateString();
  return (today ? clock : dayAndClock).format(moment);
}

function showSpan(ms) {
  const sign = ms < 0 ? "−" : "";
  const size = Math.abs(ms);
  if (size < 1) return `${sign}${size.toFixed(1)} ms`;
  if (size < 10_000) return `${sign}${Math.round(size)} ms`;
  if (size < 120_000) return `${sign}${(size / 1000).toFixed(1)} s`;
  if (size < 7_200_000) return `${sign}${Math.round(size / 60_000)} min`;
  return `${sign}${(size / 3_600_000).toFixed(1)} h`;
}

function showCountdown(text) {
  if (!text) return "";
  const seconds = Math.ceil((Date.parse(text) - now()) / 1000);
  if (seconds <= 0) return "due";
  const days = Math.floor(seconds / 86_400);
  const hours = Math.floor((seconds % 86_400) / 3600);
  const minutes = Math.floor((seconds % 3600) / 60);
  if (days) return `in ${days} d ${hours} h`;
  if (hours) return `in ${hours} h ${minutes} min`;
  if (minutes) return `in ${minutes} min ${seconds % 60} s`;
  return `in ${seconds} s`;
}

// Date keeps milliseconds only; the microseconds are in the text and matter for a lag of half a millisecond.
function micros(text) {
  const fraction = /\.(\d{1,6})/.exec(text);
  const whole = Date.parse(text.replace(/\.\d+/, "")) * 1000;
  return whole + (fraction ? Number(fraction[1].padEnd(6, "0")) : 0);
}

const between = (from, to) => (from && to ? showSpan((micros(to) - micros(from)) / 1000) : "–");

// Cells

function write(element, text, className = "") {
  if (element.textContent !== text) element.textContent = text;
  if (element.className !== className) element.className = className;
}

function part(cell, index, tag) {
  while (cell.children.length <= index) cell.append(document.createElement(tag), " ");
  return cell.children[index];
}

function writeJobLink(cell, name, jobId, suffix = "") {
  const link = part(cell, 0, "a");
  const address = `/api/v1/jobs/${encodeURIComponent(jobId)}${suffix}`;
  // Where a key is needed the browser would not send it along, so there the name leads nowhere.
  if (key) link.removeAttribute("href");
  else if (link.getAttribute("href") !== address) link.href = address;
  write(link, name);
}

const KNOWN_STATES = new Set([
  "active", "paused", "completed", "cancelled", "queued", "running", "retrying", "waiting", "succeeded", "dead",
  "skipped", "missed", "alive", "stopped", "lost",
]);

function writeBadge(cell, state) {
  write(part(cell, 0, "span"), state, KNOWN_STATES.has(state) ? `badge ${state}` : "badge");
}

function explain(run) {
  if (run.error) return run.error.message ? `${run.error.type}: ${run.error.message}` : run.error.type;
  const note = run.note;
  if (!note) return "";
  if (run.status === "missed") return `${note.count ?? 1} not run: ${note.reason ?? "missed"}`;
  if (note.reason === "overlap") return "an earlier run is not finished";
  return typeof note.reason === "string" ? note.reason : "";
}

function writeMarks(cell, run) {
  writeBadge(cell, run.status);
  const marks = [];
  if (run.missed && run.status !== "missed") marks.push("late");
  if (run.deduplicated) marks.push("deduplicated");
  write(part(cell, 1, "span"), marks.join(", "), "soft");
}

// Tables

const TABLES = {
  jobs: {
    key: (job) => job.job_id,
    columns: [
      ["Name", (cell, job) => writeJobLink(cell, job.name, job.job_id)],
      ["Schedule", (cell, job) => write(part(cell, 0, "code"), job.schedule)],
      ["Time zone", (cell, job) => write(cell, job.timezone)],
      ["Status", (cell, job) => {
        writeBadge(cell, job.status);
        write(part(cell, 1, "span"), job.status_reason ?? "", "soft");
      }],
      ["Next occurrence", (cell, job) => {
        write(part(cell, 0, "span"), showTime(job.next_run_at));
        write(part(cell, 1, "span"), showCountdown(job.next_run_at), "countdown");
      }],
      ["Then", (cell, job) => write(cell, job.upcoming.slice(1).map(showTime).join(" · ") || "–", "soft")],
      ["Last run", (cell, job) => write(cell, showTime(job.last_run_at))],
    ],
  },
  runs: {
    key: (run) => run.run_id,
    columns: [
      ["Job", (cell, run) => writeJobLink(cell, run.job_name ?? run.job_id, run.job_id, "/runs")],
      ["Scheduled", (cell, run) => write(cell, showTime(run.scheduled_at))],
      ["Status", writeMarks],
      // After a retry the start is the last attempt's, so the delay was meant to be: it is shown, but not as a lag.
      ["Lag", (cell, run) =>
        write(cell, between(run.scheduled_at, run.started_at), run.attempt > 1 ? "number soft" : "number")],
      ["Duration", (cell, run) => write(cell, between(run.started_at, run.finished_at), "number")],
      ["Attempt", (cell, run) => write(cell, run.attempt ? String(run.attempt) : "–", "number")],
      ["Error", (cell, run) => write(cell, explain(run), run.error ? "error" : "soft")],
    ],
  },
  nodes: {
    key: (node) => node.node_id,
    columns: [
      ["Name", (cell, node) => write(cell, node.name)],
      ["Kind", (cell, node) => write(cell, node.kind)],
      ["State", (cell, node) => writeBadge(cell, node.alive ? "alive" : node.stopped_at ? "stopped" : "lost")],
      ["Shards led", (cell, node) => write(cell, node.kind === "scheduler" ? String(node.shards) : "–", "number")],
      ["Runs held", (cell, node) => write(cell, node.kind === "worker" ? String(node.held) : "–", "number")],
      ["Since", (cell, node) => write(cell, showTime(node.started_at))],
      ["Version", (cell, node) => write(cell, node.version)],
    ],
  },
};

for (const table of Object.values(TABLES)) table.rows = new Map();

function makeRow(columns) {
  const row = document.createElement("tr");
  row.setAttribute("role", "row");
  for (const [label] of columns) {
    const cell = document.createElement("td");
    cell.setAttribute("role", "cell");
    cell.dataset.label = label;
    row.append(cell);
  }
  return row;
}

function fill(name, items) {
  const { key, columns, rows } = TABLES[name];
  const body = byId(name);
  const wanted = new Set(items.map(key));
  // First, so that what follows a row that left is in its place again and need not be moved.
  for (const [id, row] of [...rows]) {
    if (wanted.has(id)) continue;
    row.remove();
    rows.delete(id);
  }
  items.forEach((item, index) => {
    const id = key(item);
    if (!rows.has(id)) rows.set(id, makeRow(columns));
    const row = rows.get(id);
    columns.forEach(([, writeCell], column) => writeCell(row.cells[column], item));
    // Moving a row that is in its place already would drop the focus within it.
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
  });
  byId(`${name}-empty`).hidden = items.length > 0;
}

// Said in words, and not by a colour alone. Kept in place while nothing changes, so that a selection survives.
function showNotices({ notices, more_notices: more }) {
  const list = byId("notices");
  notices.forEach((notice, index) => {
    while (list.children.length <= index) list.append(document.createElement("li"));
    const item = list.children[index];
    write(part(item, 0, "strong"), notice.wrong ? "Look:" : "Note:");
    write(part(item, 1, "span"), `${notice.message}.`);
    write(part(item, 2, "span"), `Next step: ${notice.next_step}`, "soft");
    if (item.className !== (notice.wrong ? "wrong" : "")) item.className = notice.wrong ? "wrong" : "";
  });
  while (list.children.length > notices.length) list.lastElementChild.remove();
  write(byId("notices-more"), more ? `and ${more} more: duly doctor` : "", "soft");
  byId("notices-more").hidden = !more;
  byId("notices-section").hidden = notices.length === 0;
}

function render() {
  showNotices(latest);
  fill("jobs", latest.jobs);
  fill("runs", latest.runs);
  const { at_least, counts, nodes } = latest.status;
  fill("nodes", [...nodes].sort((one, other) => Number(other.alive) - Number(one.alive)));
  for (const name of ["queued", "running", "retrying", "dead_letters"]) {
    const alarming = name === "dead_letters" && counts[name] > 0;
    const more = at_least.includes(name) ? "+" : "";
    write(byId(`count-${name}`), counts[name].toLocaleString() + more, alarming ? "alarming" : "");
  }
}

// Polling

function showConnection(state, text) {
  connection.dataset.state = state;
  write(connection, text);
  byId("main").classList.toggle("stale", state === "lost");
}

class KeyNeeded extends Error {}

async function ask() {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch("/live", { headers, signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    if (response.status === 401) throw new KeyNeeded(key ? problem.detail : "This server needs an API key.");
    throw new Error(problem.title ?? `the server answered ${response.status}`);
  }
  return response.json();
}

async function poll() {
  if (asking) return;
  asking = true;
  const started = performance.now();
  const given = key;
  try {
    const answer = await ask();
    latest = answer;
    latestAt = performance.now();
    render();
    keyForm.hidden = true;
    showConnection("live", "live");
  } catch (error) {
    if (error instanceof KeyNeeded && key === given) return askForKey(error.message);
    const reason = error instanceof TypeError || error.name === "TimeoutError" ? "Duly does not answer" : error.message;
    showConnection("lost", `${reason}; trying again`);
    if (latest) fill("jobs", latest.jobs);
  } finally {
    asking = false;
    window.clearTimeout(timer);
    if (!document.hidden && keyForm.hidden) timer = window.setTimeout(poll, Math.max(100, POLL_MS - (performance.now() - started)));
  }
}

// Nothing is asked until a key is given: each refusal would be the same.
function askForKey(reason) {
  key = "";
  sessionStorage.removeItem(KEY);
  write(byId("key-reason"), reason);
  keyForm.hidden = false;
  showConnection("lost", "an API key is needed");
  byId("key").focus();
}

keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  // What no header can carry is no key.
  key = byId("key").value.replace(/[^!-~]/g, "");
  sessionStorage.setItem(KEY, key);
  byId("key").value = "";
  keyForm.hidden = true;
  poll();
});

// Opened again in a tab that shows the page already: the browser does not load it anew.
window.addEventListener("hashchange", () => {
  if (!takeKey()) return;
  key = sessionStorage.getItem(KEY);
  keyForm.hidden = true;
  poll();
});

document.addEventListener("visibilitychange", () => {
  window.clearTimeout(timer);
  if (!keyForm.hidden) return;
  if (document.hidden) showConnection("waiting", "paused");
  else poll();
});

byId("zone").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
poll();
