"""`duly run`."""

from __future__ import annotations

from collections.abc import Callable

from harness.commands import Ended

Run = Callable[..., Ended]


def test_a_run_is_shown_and_cancelled(duly: Run) -> None:
    job_id = duly("submit", "greet", "--json").document["job_id"]
    run_id = duly("job", "runs", job_id, "--json").lines[0]["run_id"]
    assert "queued" in duly("run", "show", run_id).out
    assert "cancelled" in duly("run", "cancel", run_id).out
    again = duly("run", "cancel", run_id)
    assert again.code == 5
    assert "it is cancelled" in again.err
    assert duly("run", "show", "nonsense").code == 4
