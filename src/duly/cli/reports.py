"""The figures and the state of several processes, put together by their supervisor from what they report.

A counter that goes back looks to Prometheus like a restart of everything, so what a process counted stays counted when
it ends. What it counted after its last report is lost with it if it is killed: at most a second's.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from duly.cli.worker_messages import Report, say
from duly.figures import Figures, Snapshot, added
from duly.vitals import ALIVE, READY, STARTED, Vitals

log = logging.getLogger("duly.cli")

# Pause between two reports of a process.
REPORT_SECONDS = 1.0


@contextmanager
def reporting(vitals: Vitals, lifeline: int) -> Iterator[None]:
    """Reports to the supervisor from a thread of its own, so that a loop that hangs is reported as well."""
    ended = threading.Event()

    def report() -> None:
        # A supervisor that does not read must not hold up its process: it is told nothing until it reads again.
        if select.select([], [lifeline], [], 0)[1]:
            say(lifeline, Report(vitals.figures.snapshot().document(), vitals.wrong()))

    def go_on() -> None:
        report()
        while not ended.wait(REPORT_SECONDS):
            report()

    thread = threading.Thread(target=go_on, name="duly-reports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(REPORT_SECONDS)
        report()


@dataclass(slots=True)
class _Heard:
    """What one process has said."""

    name: str
    at: float | None = None
    figures: Snapshot = field(default_factory=Snapshot)
    wrong: dict[str, str | None] = field(default_factory=dict)


class Reports:
    """What all processes of a supervisor report. `kind`: what they are. Asked from other threads."""

    def __init__(self, kind: str, *, hung_seconds: float) -> None:
        self.kind = kind
        self._hung_seconds = hung_seconds
        self._supervisor = Vitals("supervisor", hung_seconds=hung_seconds)
        self._lock = threading.Lock()
        self._processes: dict[object, _Heard] = {}
        # By the name of its place: the process that does the work there; None while there is none.
        self._current: dict[str, object | None] = {}
        self._started: set[str] = set()
        # What processes that have ended counted, and the supervisor itself.
        self._ended = Figures(kind).snapshot()
        self._own = Figures(kind)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the supervisor's event loop as well."""
        with self._supervisor.watching():
            yield

    # What the supervisor tells

    def expect(self, name: str) -> None:
        """There is to be a process of this name."""
        with self._lock:
            self._current.setdefault(name, None)

    def began(self, name: str, process: object) -> None:
        with self._lock:
            self._processes[process] = _Heard(name)

    def leads(self, name: str, process: object) -> None:
        """From now on this is the process of that name that does the work; another one may still be ending."""
        with self._lock:
            self._current[name] = process

    def heard(self, process: object, report: Report) -> None:
        try:
            figures = Snapshot.read(report.figures)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # It is of another version of Duly, which was installed anew since the supervisor started.
            log.debug("the figures of a process are not understood: %r", error)
            figures = Snapshot()
        with self._lock:
            if (heard := self._processes.get(process)) is not None:
                heard.at, heard.figures, heard.wrong = time.monotonic(), figures, dict(report.wrong)
                if heard.wrong.get(STARTED) is None:
                    self._started.add(heard.name)

    def ended(self, process: object) -> None:
        with self._lock:
            if (heard := self._processes.pop(process, None)) is not None:
                self._ended = added([self._ended, heard.figures], gauges=False)
                if self._current.get(heard.name) is process:
                    self._current[heard.name] = None

    def rescued(self, requeued: int, buried: int) -> None:
        """The supervisor has taken back runs of a process that was lost."""
        self._own.rescued += requeued + buried
        self._own.runs["dead"] += buried

    # What is asked

    def snapshots(self) -> dict[str, Snapshot]:
        own = self._own.snapshot()
        with self._lock:
            running = [heard.figures for heard in self._processes.values() if heard.at is not None]
            counted = added([self._ended, own, *running], gauges=False)
        # A gauge is of those that run.
        return {self.kind: Snapshot(added(running or [own]).numbers | counted.numbers, counted.histograms)}

    def wrong(self) -> dict[str, str | None]:
        now = time.monotonic()
        with self._lock:
            processes = list(self._processes.items())
            current, started = dict(self._current), set(self._started)
        not_alive = self._supervisor.wrong()[ALIVE]
        not_ready = None
        for process, heard in processes:
            wrong = self._not_alive(heard, now)
            not_alive = not_alive or wrong
            if current.get(heard.name) is process:
                not_ready = not_ready or wrong or _told(heard, READY)
        idle = next((name for name, process in current.items() if process is None), None)
        unstarted = sorted(current.keys() - started)
        return {
            ALIVE: not_alive,
            READY: not_alive or not_ready or (f"{idle} does not run" if idle is not None else None),
            STARTED: f"{unstarted[0]} is starting" if unstarted else None,
        }

    def _not_alive(self, heard: _Heard, now: float) -> str | None:
        # A process that has said nothing yet is starting, or of a version of Duly that does not report.
        if heard.at is not None and (silent := now - heard.at) > self._hung_seconds:
            return f"{heard.name} has not reported for {silent:.0f} s: it hangs, or was stopped"
        return _told(heard, ALIVE)


def _told(heard: _Heard, question: str) -> str | None:
    if not heard.wrong:
        return f"{heard.name} is starting" if question == READY else None
    wrong = heard.wrong.get(question)
    return None if wrong is None else f"{heard.name}: {wrong}"
