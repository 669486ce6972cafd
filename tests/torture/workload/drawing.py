"""Draws the clients' requests by seed: job bodies and changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

OVERLAPS = ("skip", "queue", "parallel")
MISSED = ("SKIP", "RUN_ONCE", "RUN_ALL")


@dataclass(frozen=True)
class Palette:
    """`lease`: the worker lease in seconds, which slow handlers exceed. `longest`: seconds of the longest handlers."""

    lease: float
    longest: float = 12.0


def recurring(dice: Random, palette: Palette, name: str) -> dict[str, Any]:
    handler, payload, busy = _handler(dice, palette)
    # Most handlers end long before their job's next occurrence. The slow ones overlap with it on purpose, but not so
    # much that the queues never empty again.
    schedule = _schedule(dice, slow=busy > 1)
    body: dict[str, Any] = {
        "name": name,
        "handler": handler,
        "payload": payload,
        "schedule": schedule,
        "dedupe_key": name,
        "priority": dice.choice((1, 5, 5, 5, 9)),
        "overlap": dice.choice(OVERLAPS),
        "missed_window": dice.choice(MISSED),
        "max_missed": 3 if busy > 1 else dice.choice((5, 20, 100)),
        "max_queued": 2 if busy > 1 else dice.choice((3, 20)),
        **_retries(dice),
        **_expiry(dice),
    }
    if dice.random() < 0.15:
        body["timezone"] = dice.choice(("America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"))
    return body


def one_off(dice: Random, palette: Palette, name: str) -> dict[str, Any]:
    handler, payload, _ = _handler(dice, palette)
    body: dict[str, Any] = {
        "name": name,
        "handler": handler,
        "payload": payload,
        "dedupe_key": name,
        "priority": dice.choice((0, 5, 5, 9)),
        **_retries(dice),
        **_expiry(dice),
    }
    if dice.random() < 0.6:
        moment = datetime.now(UTC) + timedelta(seconds=dice.uniform(0.2, 15))
        body["schedule"] = moment.isoformat(timespec="milliseconds")
    return body


def change(dice: Random, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a change request; mostly another schedule."""
    slow = body["max_queued"] == 2
    drawn = dice.random()
    if drawn < 0.7:
        return {"schedule": _schedule(dice, slow=slow)}
    if drawn < 0.8:
        return {"overlap": dice.choice(OVERLAPS)}
    if drawn < 0.9:
        return {"missed_window": dice.choice(MISSED)}
    return {"priority": dice.randrange(10)}


def _schedule(dice: Random, *, slow: bool) -> str:
    seconds = dice.choice((5, 6, 8) if slow else (1, 2, 2, 3, 3, 4, 5))
    drawn = dice.random()
    if drawn < 0.25:
        return f"every {seconds}s"
    if drawn < 0.4:
        return f"PT{seconds}S"
    if drawn < 0.8:
        return f"*/{seconds} * * * * *"
    first = dice.randrange(60)
    moments = sorted({(first + step) % 60 for step in range(0, 60, seconds)})
    return f"{','.join(map(str, moments))} * * * * *"


def _retries(dice: Random) -> dict[str, Any]:
    return {
        "max_retries": dice.choice((3, 6, 10)),
        "retry_backoff": dice.choice(("immediate", "linear")),
        "retry_delay_seconds": dice.choice((0.5, 1)),
        "retry_max_delay_seconds": 3,
        "timeout_seconds": 60,
    }


def _expiry(dice: Random) -> dict[str, Any]:
    return {"start_within_seconds": dice.choice((2, 4, 10))} if dice.random() < 0.2 else {}


def _handler(dice: Random, palette: Palette) -> tuple[str, dict[str, Any], float]:
    """A handler's name, its payload, and for about how many seconds it works."""
    kind = dice.choices(
        ("quick", "slow", "threaded", "isolated", "flaky", "doomed", "drowsy", "transacted", "long"),
        (30, 7, 12, 3, 14, 5, 6, 16, 5),
    )[0]
    brief = round(dice.choice((0.0, 0.01, 0.1, 0.4)), 2)
    if kind == "slow":
        seconds = round(palette.lease * dice.uniform(1.2, 2), 2)
        return dice.choice(("quick", "threaded")), {"seconds": seconds}, seconds
    if kind == "long":
        seconds = round(dice.uniform(palette.longest / 2, palette.longest), 2)
        return "long", {"seconds": seconds}, seconds
    if kind == "flaky":
        return "flaky", {"rate": dice.choice((0.1, 0.5)), "seconds": brief}, 0.5
    if kind == "doomed":
        return "doomed", {"rate": 0.3}, 0
    if kind == "drowsy":
        return "drowsy", {"rate": 0.4, "seconds": 1}, 2
    return kind, {"seconds": brief}, brief
