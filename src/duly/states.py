"""Run states and the moves between them. This is the only place that says which move is legal.

```
  fire, trigger, submit
    │       │
    │       ▼     redrive, behind an unfinished run of its job
    │    waiting ◀───────────────────────────────┐
    │       │ the run before it ended            │
    ▼       ▼              redrive               │
    queued ◀────────────────────────────────── dead
    │    ▲                                       ▲
    │    │ rescue, return, snooze                │ bury: no attempt is left
    │    └────────────┐                          │
    │ claim           │                          │
    └────────────▶ running ──────────────────────┘
                   ▲  │  │ complete
             claim │  │  └────────▶ succeeded
                   │  ▼ retry
                 retrying

  queued, waiting, retrying, running ── cancel ──▶ cancelled
  running ── expire: its start_within_seconds are over, and no handler has been called ──▶ missed
  fire ──▶ skipped (overlap policy) or missed (missed policy)
```

A run's state is where its row lies: `queued`, `retrying` and `waiting` rows are in `duly.runs`, `running` ones inside
a row of `duly.claims`, ended ones in `duly.history`. `skipped` runs begin ended, and so do most `missed` ones: they
record an occurrence that the overlap or missed policy kept from running.

A run that was fired ahead of its time and is retracted before it (`jobs/retract.sql`) is the one exception: its row is
deleted and the occurrence counts as never fired. If a change of the job drops that occurrence, it is born as `missed`.

`tests/store/test_moves.py` compares the table with every statement that moves a run, on real rows.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum


class RunState(StrEnum):
    QUEUED = "queued"
    RETRYING = "retrying"
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    MISSED = "missed"


class RunFlag(IntFlag):
    """Facts that a run carries from its fire to history. The numbers are stored: never reuse one."""

    MISSED = 2
    """The occurrence was later than the misfire grace and runs because its missed policy says so."""
    DEDUPLICATED = 4
    """The ledger already held the run's idempotency key; the handler was not called."""
    SERIAL = 8
    """The run stands in its job's line: when it ends, the job's next waiting run may start."""
    TRIGGERED = 16
    """Fired by hand, outside the schedule."""
    CANCELLED = 32
    """Never stored. A claim sets it on a run whose job was cancelled meanwhile: the worker ends the run unbegun."""
    BEGUN = 64
    """A worker has started the run before, although its attempts may say otherwise (a snooze, a return, a redrive): its
    job's `start_within_seconds` no longer applies. A run with more than one attempt needs no such flag."""


#: The states that a run may begin in.
BORN = frozenset({RunState.QUEUED, RunState.WAITING, RunState.SKIPPED, RunState.MISSED})

LEGAL_MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.CANCELLED}),
    RunState.RETRYING: frozenset({RunState.RUNNING, RunState.CANCELLED}),
    RunState.WAITING: frozenset({RunState.QUEUED, RunState.CANCELLED}),
    RunState.RUNNING: frozenset(
        {
            RunState.SUCCEEDED,
            RunState.RETRYING,
            RunState.QUEUED,
            RunState.DEAD,
            RunState.CANCELLED,
            RunState.MISSED,
        }
    ),
    RunState.SUCCEEDED: frozenset(),
    RunState.DEAD: frozenset({RunState.QUEUED, RunState.WAITING}),
    RunState.CANCELLED: frozenset(),
    RunState.SKIPPED: frozenset(),
    RunState.MISSED: frozenset(),
}

LIVE_STATES = frozenset({RunState.QUEUED, RunState.RETRYING, RunState.WAITING, RunState.RUNNING})
ENDED_STATES = frozenset(RunState) - LIVE_STATES
