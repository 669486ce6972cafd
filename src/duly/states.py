"""Run states and the moves between them. This is the only place that says which move is legal.

```
              claim               complete
  queued ───────────────▶ running ─────────▶ succeeded
    ▲  ▲                  │ │ │ ▲
    │  │ rescue, return,  │ │ │ │ claim
    │  └── snooze ────────┘ │ │ │
    │                 retry │ │ │
    │                       ▼ │ │
    │                  retrying─┼─┘
  waiting (overlap queue)     │ bury
                              ▼
                            dead ── redrive ──▶ queued
```

A run's state is where its row lies: `queued`, `retrying` and `waiting` rows are in `duly.runs`, `running` ones inside
a row of `duly.claims`, ended ones in `duly.history`. `skipped` and `missed` are born ended: they record an occurrence
that the overlap or missed policy kept from running.
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
    """What a run carries from fire to history. The numbers are stored: never reuse one."""

    MISSED = 2
    """It was late beyond the misfire grace and runs on purpose."""
    DEDUPLICATED = 4
    """The ledger already held its idempotency key; the handler was not called."""
    SERIAL = 8
    """Overlap `queue`: when it ends, the job's next waiting run may start."""
    TRIGGERED = 16
    """Fired by hand, outside the schedule."""
    CANCELLED = 32
    """Never stored: a claim says by it that the run's job was cancelled meanwhile. The run ends unbegun."""


LEGAL_MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.CANCELLED}),
    RunState.RETRYING: frozenset({RunState.RUNNING, RunState.CANCELLED}),
    RunState.WAITING: frozenset({RunState.QUEUED, RunState.CANCELLED}),
    RunState.RUNNING: frozenset(
        {RunState.SUCCEEDED, RunState.RETRYING, RunState.QUEUED, RunState.DEAD, RunState.CANCELLED}
    ),
    RunState.SUCCEEDED: frozenset(),
    RunState.DEAD: frozenset({RunState.QUEUED}),
    RunState.CANCELLED: frozenset(),
    RunState.SKIPPED: frozenset(),
    RunState.MISSED: frozenset(),
}

LIVE_STATES = frozenset({RunState.QUEUED, RunState.RETRYING, RunState.WAITING, RunState.RUNNING})
ENDED_STATES = frozenset(RunState) - LIVE_STATES


def may_move(before: RunState, after: RunState) -> bool:
    return after in LEGAL_MOVES[before]
