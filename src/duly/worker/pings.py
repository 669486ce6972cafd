"""Tells watching services about runs whose job has a `ping_url`, after their outcomes are recorded and in nobody's way.

Pings wait in a bounded queue of their own. Those of one run are sent in order, because a start that arrives after its
end would look like a run that never ends; runs do not wait for each other. A host gets a share of the queue and of the
connections, so one that is dead does not hold up the others. A ping that finds no place, or cannot be delivered, is
dropped: the service notices that it is missing, which is what it is there for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from duly.masking import shown_ping_url
from duly.model import Buried, ClaimedRun, Expired, Requeued, Succeeded, make_run_id
from duly.pings import Event, PingRequest, Report, request_for

log = logging.getLogger("duly.worker")

# Pings that wait: of all hosts, of one host, and beyond which only the ends of runs are taken.
MAX_WAITING = 2_000
MAX_PER_HOST = 1_000
MAX_BESIDE_ENDS = 500
# Pings on their way at once: of all hosts, and of one host.
MAX_SENDING = 16
MAX_SENDING_PER_HOST = 4
# Pauses before a ping is tried again. A host that does not answer is tried once per ping until it does.
PAUSES = (0.5, 2.0)
# At shutdown: time for the pings that still wait.
CLOSE_SECONDS = 2.0
# Hosts that are remembered as not answering; jobs choose them.
_MAX_TROUBLED = 1_000
_EXIT = re.compile(r"exit code (\d+)")

Outcome = Succeeded | Requeued | Buried | Expired


class Undelivered(Exception):
    """A ping that did not arrive, or that the service refused. `again`: another try may help."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


class Sender(Protocol):
    async def send(self, request: PingRequest) -> None:
        """Sends one request. Raises `Undelivered`."""
        ...

    async def close(self) -> None: ...


class _Host:
    """The pings that wait for one host: in order for each run, and the runs in order of their first ping."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs: dict[UUID, deque[PingRequest]] = {}
        self.ready: deque[UUID] = deque()
        self.waiting = 0
        self.sending = 0


class Pings:
    """The pings of one worker. Without a sender (the extra `duly[http]` is missing) it says so once and sends none."""

    def __init__(self, make_sender: Callable[[], Sender] | None, *, host: str = "") -> None:
        """`make_sender` is called for the first ping: a worker without pings does not pay for it."""
        self._make_sender = make_sender
        self._sender: Sender | None = None
        self._host = host
        # The addresses of runs that are executed now, by (claim, ordinal). Only runs with a ping_url are here.
        self._expected: dict[tuple[UUID, int], str] = {}
        self._hosts: dict[str, _Host] = {}
        # Hosts whose last ping did not arrive.
        self._troubled: set[str] = set()
        self._slots = asyncio.Semaphore(MAX_SENDING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._said_missing = self._said_full = False
        self.sent = 0
        self.dropped = 0
        self.failed = 0

    def __bool__(self) -> bool:
        """Whether a run with a ping_url is being executed."""
        return bool(self._expected)

    # What happens to runs

    def expect(self, run: ClaimedRun) -> bool:
        """Notes a run that is about to be executed. Returns whether its start is to be told."""
        url = run.policy.ping_url
        if url is None:
            return False
        if self._make_sender is None:
            if not self._said_missing:
                self._said_missing = True
                log.warning("this worker sends no pings (ping_url); for them: pip install 'duly[http]'")
            return False
        self._expected[run.claim_id, run.ordinal] = url
        return True

    def started(self, run: ClaimedRun) -> None:
        """The handler is about to be called."""
        if (url := self._expected.get((run.claim_id, run.ordinal))) is not None:
            self._tell(url, Report("start", rid_of(run), host=self._host))

    def forget(self, run: ClaimedRun) -> None:
        """The run is no longer this worker's: whoever has it now tells what becomes of it."""
        self._expected.pop((run.claim_id, run.ordinal), None)

    def recorded(self, outcome: Outcome) -> None:
        """The store has the outcome."""
        run = outcome.run
        url = self._expected.pop((run.claim_id, run.ordinal), None)
        if url is not None and (report := report_of(outcome, host=self._host)) is not None:
            self._tell(url, report)

    # The queue

    def _tell(self, url: str, report: Report) -> None:
        try:
            request = request_for(url, report)
            name = "" if request is None else urlsplit(request.url).netloc
        except ValueError:  # an address that another program wrote into the store
            self._complain(url, "it is not an address that can be called")
            return
        if request is None:
            return
        host = self._hosts.get(name) or _Host(name)
        is_end = report.event in ("success", "failure")
        if (
            self._waiting >= MAX_WAITING
            or host.waiting >= MAX_PER_HOST
            or (not is_end and self._waiting >= MAX_BESIDE_ENDS)
        ):
            self._drop()
            return
        self._hosts[name] = host
        if report.rid in host.runs:
            host.runs[report.rid].append(request)
        else:
            host.runs[report.rid] = deque([request])
            host.ready.append(report.rid)
        host.waiting += 1
        self._waiting += 1
        if host.ready and host.sending < MAX_SENDING_PER_HOST:
            host.sending += 1
            task = asyncio.get_running_loop().create_task(self._send_all(host))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _drop(self) -> None:
        self.dropped += 1
        if not self._said_full:
            self._said_full = True
            log.warning("pings are dropped: %d wait, because a watching service is slow or away", self._waiting)

    async def _send_all(self, host: _Host) -> None:
        try:
            while host.ready:
                rid = host.ready.popleft()
                requests = host.runs[rid]
                while requests:
                    async with self._slots:
                        await self._deliver(host, requests.popleft())
                    host.waiting -= 1
                    self._waiting -= 1
                del host.runs[rid]
        finally:
            host.sending -= 1
            if not host.waiting:
                self._hosts.pop(host.name, None)
            if not self._waiting:
                self._said_full = False

    async def _deliver(self, host: _Host, request: PingRequest) -> None:
        if self._sender is None:
            assert self._make_sender is not None
            self._sender = self._make_sender()
        pauses = iter(() if host.name in self._troubled else PAUSES)
        while True:
            try:
                await self._sender.send(request)
            except Undelivered as error:
                pause = next(pauses, None) if error.again else None
                if pause is None:
                    self.failed += 1
                    if host.name not in self._troubled:
                        if len(self._troubled) >= _MAX_TROUBLED:
                            self._troubled.clear()
                        self._troubled.add(host.name)
                        self._complain(request.url, str(error))
                    return
                await asyncio.sleep(pause)
            except Exception as error:  # noqa: BLE001 - pings behind this one must not wait for ever
                self.failed += 1
                log.error("a ping could not be sent: %s", type(error).__name__)
                return
            else:
                self.sent += 1
                self._troubled.discard(host.name)
                return

    def _complain(self, url: str, reason: str) -> None:
        log.warning("a ping to %s was not delivered: %s", shown_ping_url(url), reason)

    async def close(self) -> None:
        """Gives the pings that wait a little time, then gives them up."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        if self._waiting:
            log.warning("%d pings were not sent before this worker ended", self._waiting)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._sender is not None:
            await self._sender.close()


def rid_of(run: ClaimedRun) -> UUID:
    """The id of a run for services, which want a UUID: the same for all attempts, on all workers."""
    return uuid5(run.job_id, make_run_id(run.job_id, run.scheduled_at))


def report_of(outcome: Outcome, *, host: str = "") -> Report | None:
    """What a service is told of an outcome; None: nothing. An error's message may hold anything: only its type goes."""
    run = outcome.run
    seconds = None
    if outcome.started_us is not None and outcome.finished_us is not None:
        seconds = max(0.0, (outcome.finished_us - outcome.started_us) / 1e6)
    named = f"run {make_run_id(run.job_id, run.scheduled_at)}, attempt {run.attempt}"
    event: Event
    status = None
    if isinstance(outcome, Succeeded):
        event, text = "success", named
    elif isinstance(outcome, Buried) and outcome.status == "dead":
        kind, status = _error_of(outcome.error)
        event, text = "failure", f"{named}: {kind}"
    elif isinstance(outcome, Buried):
        event, text = "note", f"{named}: cancelled"
    elif isinstance(outcome, Requeued) and outcome.state == "retrying":
        kind, _ = _error_of(outcome.error)
        event, text = "note", f"{named}: {kind}; it is tried again in {outcome.delay:.0f} s"
    else:  # it goes back to the queue uncounted, or it has expired unbegun
        return None
    return Report(event, rid_of(run), text, seconds, status, host)


def _error_of(text: str | None) -> tuple[str, int | None]:
    """The type of an error as it is stored, and the exit status if it is that of a command."""
    try:
        error = json.loads(text or "{}")
        kind = str(error["type"])
        found = _EXIT.match(str(error["message"])) if kind == "CommandFailed" else None
    except (ValueError, KeyError, TypeError):
        return "failed", None
    return kind, None if found is None else int(found[1])
