"""`duly submit --file`: every line of a file becomes a job, is refused with its line number, or exists already."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duly.cli import bulk
from harness.commands import Ended

Run = Callable[..., Ended]


def write(path: Path, *documents: Any) -> str:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(path)


def test_each_line_is_a_job_with_the_fields_that_it_gives(duly: Run, tmp_path: Path) -> None:
    file = write(
        tmp_path / "jobs",
        {"handler": "greet", "payload": {"name": "Zoë"}, "queue": "mail", "priority": 9, "labels": {"a": "b"}},
        {"handler": "greet", "schedule": "every 1h", "start_at": "2030-01-01T00:00:00+01:00", "max_retries": 0},
        {"handler": {"type": "http", "url": "https://example.org/hook"}, "name": "hook", "max_runs": None},
    )
    ended = duly("submit", "--file", file, "--json")
    assert ended.code == 0, ended.err
    assert [line["status"] for line in ended.lines] == ["created"] * 3
    mail, hourly, hook = (duly("job", "show", line["job_id"], "--json").document for line in ended.lines)
    assert (mail["payload"], mail["queue"], mail["priority"]) == ({"name": "Zoë"}, "mail", 9)
    assert mail["labels"] == {"a": "b"}
    assert (hourly["start_at"], hourly["max_retries"]) == ("2029-12-31T23:00:00Z", 0)
    assert (hook["name"], hook["handler"]["url"]) == ("hook", "https://example.org/hook")


def test_a_line_that_is_wrong_is_named_and_keeps_no_other_out(
    duly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 3)
    lines = [
        b"\xef\xbb\xbf" + b'{"handler": "greet"}',
        b"",
        b"not json",
        b'["greet"]',
        b'{"payload": {}}',
        b'{"handler": "greet", "colour": "red"}',
        b'{"handler": "greet", "schedule": "77 * * * *"}',
        b'{"handler": "greet", "start_at": "soon", "schedule": "every 1h"}',
        b'{"handler": "greet", "tenant": "other"}',
        b'{"handler": "greet", "run_at": "2030-01-01T00:00:00Z"}',
        b'{"handler": "greet", "priority": "high"}',
        b'{"handler": "greet", "name": "\xff"}',
        b"[" * 100_000,
        b'{"handler": "greet", "payload": "\\u0000"}',
        b'{"handler": "greet", "name": "last"}',
    ]
    (tmp_path / "jobs").write_bytes(b"\n".join(lines))
    ended = duly("submit", "--file", "jobs")
    assert ended.code == 2
    assert ended.out == "2 submitted, 12 refused\n"
    told = dict(line.removeprefix("line ").split(": ", 1) for line in ended.err.splitlines())
    assert list(told) == [str(number) for number in range(3, 15)]
    for number, word in ((3, "JSON"), (5, "handler"), (6, "colour"), (7, "schedule"), (8, "start_at"), (9, "tenant"),
                         (10, "run_at"), (11, "priority"), (14, "payload")):  # fmt: skip
        assert word in told[str(number)]
    assert {job["name"] for job in duly("job", "list", "--json").lines} == {"greet", "last"}
    refused = [line for line in duly("submit", "--file", "jobs", "--json").lines if line["status"] == "refused"]
    assert refused[3]["error"]["field"] == "colour"


def test_a_file_can_be_sent_again_under_its_keys(duly: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "jobs", *({"handler": "greet", "dedupe_key": f"k{number}"} for number in range(5)))
    assert duly("submit", "--file", file).out == "5 submitted\n"
    assert duly("submit", "--file", file).out == "0 submitted, 5 were there already\n"
    write(tmp_path / "jobs", {"handler": "greet", "dedupe_key": "k1", "queue": "other"})
    conflict = duly("submit", "--file", file)
    assert (conflict.code, conflict.out) == (5, "0 submitted, 1 refused\n")


def test_with_atomic_a_wrong_line_refuses_the_file(duly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"handler": "greet", "dedupe_key": "k"}
    file = write(tmp_path / "jobs", good, {"handler": "greet", "schedule": "77 * * * *"})
    ended = duly("submit", "--file", file, "--atomic")
    assert ended.code == 2
    assert "line 2: schedule" in ended.err
    write(tmp_path / "jobs", good, {"handler": "greet", "schedule": 5})
    assert "line 2: schedule" in duly("submit", "--file", file, "--atomic").err
    assert duly("job", "list", "--json").lines == []
    write(tmp_path / "jobs", good, {"handler": "greet"})
    assert duly("submit", "--file", file, "--atomic").out == "2 submitted\n"
    write(tmp_path / "jobs", {"handler": "greet", "name": "new"}, {**good, "queue": "other"})
    conflict = duly("submit", "--file", file, "--atomic")
    assert conflict.code == 5
    assert "line 2" in conflict.err
    assert len(duly("job", "list", "--json").lines) == 2
    monkeypatch.setattr(bulk, "MAX_ATOMIC", 1)
    assert "at most 1" in duly("submit", "--file", file, "--atomic").err


def test_a_file_is_read_from_standard_input_and_in_parts(duly: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 7)
    lines = b"".join(b'{"handler": "greet", "payload": %d}\n' % number for number in range(50))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    ended = duly("submit", "--file", "-", "--json")
    assert [line["line"] for line in ended.lines] == list(range(1, 51))
    assert len({line["job_id"] for line in ended.lines}) == 50


def test_progress_is_shown_to_whoever_watches(duly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 2)
    file = write(tmp_path / "jobs", *({"handler": "greet"} for _ in range(5)))
    assert duly("submit", "--file", file).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ended = duly("submit", "--file", file)
    assert "\r\x1b[K2 lines …" in ended.err
    assert "\r\x1b[K4 lines …" in ended.err
    assert ended.out == "5 submitted\n"


def test_what_does_not_go_with_a_file_is_refused(duly: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "jobs", {"handler": "greet"})
    for extra in (["greet"], ["--queue", "q"], ["--command"], ["--payload", "{}"]):
        ended = duly("submit", "--file", file, *extra)
        assert ended.code == 2
        assert "--file" in ended.err
    assert duly("submit", "--file", "no-such-file").code == 2
    assert duly("submit", "greet", "--atomic").code == 2
    assert duly("job", "list", "--json").lines == []


def test_with_an_app_the_tasks_own_defaults_apply(duly: Run, project: Path) -> None:
    file = write(project / "jobs", {"handler": "report"}, {"handler": "report", "queue": "mine"}, {"handler": "repotr"})
    ended = duly("submit", "--file", file, "--app", "tasks_of_test:app", "--json")
    first, second, misspelt = ended.lines
    assert duly("job", "show", first["job_id"], "--json").document["queue"] == "reports"
    assert duly("job", "show", second["job_id"], "--json").document["queue"] == "mine"
    assert misspelt["error"]["field"] == "handler"
