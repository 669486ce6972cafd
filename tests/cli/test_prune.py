"""`duly import crontab --prune`: what is gone from a table goes from the schedule, and nothing else does."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duly.errors import StoreUnavailable
from duly.operations.jobs import JobOperations
from harness.commands import Ended, Process

Run = Callable[..., Ended]

TABLE = "0 1 * * * first\n0 2 * * * second --all\n0 3 * * * third\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    path.write_text(TABLE)
    return path


@pytest.fixture
def imported(duly: Run, table: Path) -> Callable[..., Ended]:
    """Import the table; its file is replaced first if a text is given."""

    def run(text: str | None = None, *options: str, file: Path = table, code: int = 0) -> Ended:
        if text is not None:
            file.write_text(text)
        ended = duly("import", "crontab", str(file), "--timezone", "UTC", *options)
        assert ended.code == code, ended.err
        return ended

    return run


def live(duly: Run) -> dict[str, str]:
    """The schedules of active jobs, by name."""
    return {job["name"]: job["schedule"] for job in duly("job", "list", "--status", "active", "--json").lines}


def ids(duly: Run, **wanted: str) -> list[str]:
    jobs: list[dict[str, Any]] = duly("job", "list", "--json").lines
    return [job["job_id"] for job in jobs if all(job[name] == value for name, value in wanted.items())]


def test_lines_that_are_gone_or_edited_are_shown_and_cancelled(
    duly: Run, imported: Callable[..., Ended], table: Path
) -> None:
    imported(None, "--yes")
    # Made by hand, with the labels of an import.
    labels = ("--label", "imported=crontab", "--label", f"source={socket.gethostname()}:{table}")
    by_hand = ("submit", "--command", "--name", "by hand", "--schedule", "0 2 * * *", *labels, "--", "second")
    assert duly(*by_hand).code == 0
    (first,), (second,) = ids(duly, name="first"), ids(duly, name="second --all")
    edited = "0 2 * * * second --some\n0 3 * * * third\n"
    shown = imported(edited, "--prune", "--dry-run")
    assert f"cancel  {first}  0 1 * * * UTC  first" in shown.out
    assert f"edited  {second}  line 1: 0 2 * * * UTC  second --all → 0 2 * * * UTC  second --some" in shown.out
    assert set(live(duly)) == {"first", "second --all", "third", "by hand"}, "a dry run changes nothing"
    assert "--yes" in imported(None, "--prune", code=2).err
    assert set(live(duly)) == {"first", "second --all", "third", "by hand"}
    document = imported(None, "--prune", "--yes", "--json").document
    assert [(one["job_id"], one["edited_line"], one["status"]) for one in document["pruned"]] == [
        (second, 1, "cancelled"), (first, None, "cancelled"),
    ]  # fmt: skip
    assert set(live(duly)) == {"second --some", "third", "by hand"}
    assert imported(None, "--prune", "--yes", "--json").document["pruned"] == []


def test_without_prune_nothing_is_cancelled(duly: Run, imported: Callable[..., Ended]) -> None:
    imported(None, "--yes")
    imported("0 3 * * * third\n", "--yes")
    assert set(live(duly)) == {"first", "second --all", "third"}


def test_another_tables_jobs_stay_and_a_line_of_both_goes_with_the_last(
    duly: Run, imported: Callable[..., Ended], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    imported(None, "--yes")
    imported("0 1 * * * first\n0 9 * * * theirs\n", "--yes", file=other)
    kept = imported("0 3 * * * third\n", "--yes", "--prune")
    assert f"also a line of {socket.gethostname()}:{other}" in kept.err
    assert set(live(duly)) == {"first", "theirs", "third"}
    imported("0 9 * * * theirs\n", "--yes", "--prune", file=other)
    assert set(live(duly)) == {"theirs", "third"}


def test_a_line_that_comes_back_runs_again_unless_somebody_cancelled_it(
    duly: Run, imported: Callable[..., Ended]
) -> None:
    imported(None, "--yes")
    assert duly("job", "cancel", "third").code == 0
    without = "0 2 * * * second --all\n0 3 * * * third\n"
    for _ in range(2):
        imported(without, "--yes", "--prune")
        assert set(live(duly)) == {"second --all"}
        imported(TABLE, "--yes", "--prune")
        assert set(live(duly)) == {"first", "second --all"}
    assert len(ids(duly, name="first")) == 3
    assert len(ids(duly, name="third")) == 1


def test_a_kill_between_leaves_both_and_the_next_import_finishes(
    duly: Run, imported: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(None, "--yes")
    with monkeypatch.context() as patch:

        async def killed(*_: object, **__: object) -> None:
            raise StoreUnavailable("killed")

        patch.setattr(JobOperations, "cancel", killed)
        imported("0 4 * * * first\n0 2 * * * second --all\n0 3 * * * third\n", "--yes", "--prune", code=3)
    assert sorted(job["schedule"] for job in duly("job", "list", "--name", "first", "--json").lines) == [
        "0 1 * * *", "0 4 * * *",
    ]  # fmt: skip
    assert len(live(duly)) == 3
    imported(None, "--yes", "--prune")
    assert live(duly) == {"first": "0 4 * * *", "second --all": "0 2 * * *", "third": "0 3 * * *"}


def test_a_truncated_table_does_not_empty_the_schedule(duly: Run, imported: Callable[..., Ended]) -> None:
    lines = [f"{minute} * * * * job {minute}\n" for minute in range(30)]
    imported("".join(lines), "--yes")
    for empty in ("", "# nothing\n", "A=b\n"):
        refused = imported(empty, "--yes", "--prune", code=2)
        assert "would cancel all jobs" in refused.err
    refused = imported("".join(lines[:23]) + "59 * * * * new\n", "--yes", "--prune", code=2)
    assert "7 of the 30 jobs of this table would be cancelled" in refused.err
    assert "--max-cancel 7" in refused.err
    assert len(live(duly)) == 30, "nothing is half done: the new line is not submitted either"
    assert "nothing was done" in imported(None, "--yes", "--prune", "--max-cancel", "6", code=2).err
    assert len(live(duly)) == 30
    imported("".join(lines[:24]), "--yes", "--prune")  # a fifth
    assert len(live(duly)) == 24
    imported("".join(lines[:1]), "--yes", "--prune", "--max-cancel", "23")
    assert len(live(duly)) == 1


def test_a_line_that_cannot_be_read_keeps_its_job(duly: Run, imported: Callable[..., Ended]) -> None:
    imported(None, "--yes")
    kept = imported(TABLE.replace("0 2", "0 2 * 99"), "--yes", "--prune", "--skip-unknown")
    assert "its command is in a line that cannot be imported" in kept.err
    assert set(live(duly)) == {"first", "second --all", "third"}


def test_jobs_of_an_import_without_a_source_are_named_adopted_or_left_alone(
    duly: Run, imported: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    def piped(text: str, *options: str) -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return duly("import", "crontab", "-", "--timezone", "UTC", "--yes", *options)

    # As versions imported that knew no sources.
    assert piped(TABLE).code == 0
    (first,) = ids(duly, name="first")
    without = TABLE.partition("\n")[2]
    assert "--source NAME" in piped(without, "--prune").err
    left = imported(without, "--yes", "--prune")
    assert f"duly job cancel {first}" in left.err
    assert set(live(duly)) == {"first", "second --all", "third"}
    # The table has taken the others over.
    imported("0 3 * * * third\n", "--yes", "--prune")
    assert set(live(duly)) == {"first", "third"}
    named = piped("0 8 * * * named\n0 9 * * * also\n", "--source", "web1:root", "--prune")
    assert named.code == 0, named.err
    assert piped("0 9 * * * also\n", "--source", "web1:root", "--prune").code == 0
    assert set(live(duly)) == {"first", "third", "also"}


def test_it_prunes_through_an_api_and_for_its_tenant_only(
    duly: Run, imported: Callable[..., Ended], start: Callable[..., Process], table: Path
) -> None:
    imported(None, "--yes")
    table.write_text("0 2 * * * second --all\n")
    assert duly("--tenant", "b", "import", "crontab", str(table), "--timezone", "UTC", "--prune", "--yes").code == 0
    assert set(live(duly)) == {"first", "second --all", "third"}, "another tenant's jobs stay"
    url = start("api", "--port", "0").wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    ended = duly("--url", url, "import", "crontab", str(table), "--timezone", "UTC", "--prune", "--yes")
    assert ended.code == 0, ended.err
    assert set(live(duly)) == {"second --all"}


@pytest.mark.parametrize(("options", "words"), [(["--max-cancel", "3"], "needs --prune"), (["--source", ""], "source")])
def test_what_does_not_fit_together_is_refused(imported: Callable[..., Ended], options: list[str], words: str) -> None:
    assert words in imported(None, "--yes", *options, code=2).err
