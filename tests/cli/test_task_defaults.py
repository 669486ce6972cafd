"""`duly submit` applies the defaults of a task that it has not imported, on the store and through an API."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commands import Ended, Process

GENERAL = ("--queue", "default", "--priority", "5", "--max-retries", "3")


@pytest.mark.parametrize("through", ["store", "api"])
def test_what_is_not_given_comes_from_the_task(
    duly: Callable[..., Ended], start: Callable[..., Process], tmp_path: Path, through: str
) -> None:
    worker = start("worker", "--app", "tasks_of_test:app")
    worker.wait_for("is running")
    worker.close()
    where: tuple[str, ...] = ()
    if through == "api":
        where = ("--url", start("api", "--port", "0").wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1])

    def submitted(*arguments: str) -> tuple[object, ...]:
        job = duly(*where, "submit", *arguments, "--json")
        assert job.code == 0, job.err
        return tuple(job.document[name] for name in ("queue", "priority", "max_retries"))

    assert submitted("report") == ("reports", 7, 9)
    assert submitted("report", "--queue", "q") == ("q", 7, 9)
    assert submitted("report", *GENERAL) == ("default", 5, 3)
    # The application's own code decides, here and over there.
    assert submitted("report", "--app", "tasks_of_test:app") == ("reports", 7, 9)
    (tmp_path / "other.py").write_text("from duly import Duly\napp = Duly()\n@app.task()\ndef report(): ...\n")
    assert submitted("report", "--app", "other:app") == ("default", 5, 3)
    lines = [
        {"handler": "report", "name": "a"},
        {"handler": "report", "name": "b", "queue": "default", "max_retries": 3},
    ]
    (tmp_path / "jobs").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert duly(*where, "submit", "--file", str(tmp_path / "jobs")).code == 0
    listed = {job["name"]: job for job in duly("job", "list", "--json").lines}
    assert [tuple(listed[name][field] for field in ("queue", "priority", "max_retries")) for name in "ab"] == [
        ("reports", 7, 9), ("default", 7, 3),
    ]  # fmt: skip
