"""`duly status`."""

from __future__ import annotations

from collections.abc import Callable

from harness.commands import Ended, Process

Run = Callable[..., Ended]
Start = Callable[..., Process]


def test_status_of_a_store_without_nodes_says_how_to_start_some(duly: Run) -> None:
    ended = duly("status")
    assert ended.code == 0
    assert "duly up" in ended.out
    assert "0 of 64 led" in ended.out
