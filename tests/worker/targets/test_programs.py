"""Workers that run only the programs on their list: what is compared is what is started, and the rest goes back."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from duly.cli.commands.worker import with_commands
from duly.config import Settings, load_settings
from duly.errors import ConfigError, Unable
from duly.worker.targets.programs import Programs
from harness.waiting import eventually
from harness.worker import Workbench


def script(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {says} $1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the worker's PATH with two programs."""
    folder = tmp_path / "tools"
    script(folder / "backup-all", "backed-up")
    script(folder / "rm-all", "removed")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def allowing(bench: Workbench, *patterns: str) -> Workbench:
    bench.settings = bench.settings.model_copy(update={"allow_commands": patterns})
    return bench


async def gone_back(bench: Workbench) -> None:
    async def back() -> bool:
        rows = await bench.pool.query("select run_at > duly.now() as later, attempt from duly.runs")
        return [(row["later"], row["attempt"]) for row in rows] == [(True, 0)]

    await eventually(back)


async def test_a_program_on_the_list_runs_by_name_and_by_path(bench: Workbench, tools: Path) -> None:
    for patterns in (("backup*",), (f"{tools}/backup-all",), (f"{tools}/*",), ("other", "backup-all")):
        job_id = await allowing(bench, *patterns).command("backup-all", "now")
        async with bench.working():
            assert (await bench.end_of(job_id)).result["stdout"] == "backed-up now\n"
    job_id = await allowing(bench, f"{tools}/backup-all").command("./backup-all", "now", cwd=str(tools))
    async with bench.working():
        assert (await bench.end_of(job_id)).result["stdout"] == "backed-up now\n"


async def test_another_program_goes_back_uncounted_and_runs_where_it_is_allowed(
    bench: Workbench, tools: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "duly.worker")
    job_id = await allowing(bench, "backup*").command("rm-all", "x")
    async with bench.working():
        await gone_back(bench)
    assert f"does not run 'rm-all' ({tools}/rm-all): it runs only backup* (--allow-command" in caplog.text
    bench.settings = bench.settings.model_copy(update={"allow_commands": True})
    async with bench.working():
        run = await bench.end_of(job_id)
    assert (run.status, run.attempt) == ("succeeded", 1)
    assert await bench.pool.query("select from duly.attempts") == []


@pytest.mark.parametrize(
    "job",
    [
        {"argv": ["{evil}/backup-all"]},
        {"argv": ["./backup-all"], "cwd": "{evil}"},
        {"argv": ["{tools}/../evil/backup-all"]},
        {"argv": ["{tools}//../evil/backup-all"]},
        {"argv": ["backup-all"], "env": {"PATH": "{evil}"}},
        {"argv": ["backup-all"], "secret_env": {"PATH": "{evil}"}},
        {"argv": ["backup-all"], "env": {"LD_PRELOAD": "{evil}/x.so"}},
        {"argv": ["backup-all"], "env": {"BASH_ENV": "{evil}/backup-all"}},
        {"argv": ["sh", "-c", "backup-all"]},
        {"argv": ["env", "backup-all"]},
    ],
)
async def test_a_job_puts_no_other_program_in_the_place_of_an_allowed_one(
    bench: Workbench, tools: Path, job: dict[str, Any]
) -> None:
    evil = script(tools.parent / "evil" / "backup-all", "evil").parent

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("{evil}", str(evil)).replace("{tools}", str(tools))
        return [filled(one) for one in value] if isinstance(value, list) else {k: filled(v) for k, v in value.items()}

    await bench.submit({"type": "command", **{name: filled(value) for name, value in job.items()}})
    async with allowing(bench, "backup*", f"{tools}/*").working():
        await gone_back(bench)
    assert await bench.pool.query("select from duly.history") == []


@pytest.mark.parametrize(
    ("patterns", "target", "started"),
    [
        (["ls"], {"argv": ["ls", "-l"]}, ["{ls}", "-l"]),
        (["l*"], {"argv": ["ls"]}, ["{ls}"]),
        (["/opt/*"], {"argv": ["/opt/a/../b"]}, ["/opt/b"]),
        (["/opt/*"], {"argv": ["//opt/b"]}, ["/opt/b"]),
        (["/opt/*"], {"argv": ["b/c"], "cwd": "/opt"}, ["/opt/b/c"]),
        (["/home/x/*"], {"argv": ["./c"]}, ["/home/x/c"]),
        (["no-such-program"], {"argv": ["no-such-program"]}, ["no-such-program"]),
        (["ls"], {"argv": ["/bin/ls"]}, None),
        (["l*"], {"argv": ["./ls"]}, None),
        (["/opt/*"], {"argv": ["/opt/../bin/sh"]}, None),
        (["/opt/b"], {"argv": ["/opt/bc"]}, None),
        (["/opt*"], {"argv": ["opt-program"]}, None),
        (["ls"], {"argv": ["LS"]}, None),
        (["ls"], {"argv": ["{ls}"]}, ["{ls}"]),
        (["ls"], {"argv": ["./ls"], "cwd": "{folder}"}, ["{ls}"]),
    ],
)
def test_what_a_pattern_is_compared_with(
    tmp_path: Path, patterns: list[str], target: dict[str, Any], started: list[str] | None
) -> None:
    ls = script(tmp_path / "ls", "x")
    programs = Programs(patterns)
    target["argv"] = [part.replace("{ls}", str(ls)) for part in target["argv"]]
    if "cwd" in target:
        target["cwd"] = target["cwd"].replace("{folder}", str(tmp_path))
    if started is None:
        with pytest.raises(Unable, match="this worker does not run"):
            programs.started_as(target, path=str(tmp_path), folder="/home/x")
    else:
        expected = [part.replace("{ls}", str(ls)) for part in started]
        assert programs.started_as(target, path=str(tmp_path), folder="/home/x") == expected


async def test_a_worker_says_which_commands_it_runs(bench: Workbench) -> None:
    for allowed, said in ((False, False), (True, True), (("backup*", "/bin/ls"), ["backup*", "/bin/ls"])):
        bench.settings = bench.settings.model_copy(update={"allow_commands": allowed})
        async with bench.working() as worker:
            status = await bench.operations.cluster.status()
            (node,) = [node for node in status.nodes if node.node_id == worker.worker_id]
            assert node.info["commands"] == said


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("true", True), ("1", True), ("off", False), ("false", False), (" , ", False),
        ("backup*, /usr/bin/rsync", ("backup*", "/usr/bin/rsync")), ("rsync", ("rsync",)), ("a,a", ("a",)),
    ],
)  # fmt: skip
def test_the_setting_is_a_switch_or_a_list(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, read: object
) -> None:
    monkeypatch.setenv("DULY_ALLOW_COMMANDS", text)
    assert load_settings().allow_commands == read
    monkeypatch.delenv("DULY_ALLOW_COMMANDS")
    (tmp_path / "duly.toml").write_text(f'allow_commands = "{text}"\n')
    assert load_settings().allow_commands == read
    if isinstance(read, tuple):
        (tmp_path / "duly.toml").write_text(f"allow_commands = {list(read)!r}\n")
        assert load_settings().allow_commands == read
        with pytest.raises(ConfigError, match="do not go together"):
            load_settings(open_api=True)


@pytest.mark.parametrize("pattern", ["*", "/*", "a*b", "bin/ls", "./ls", "/opt/../ls", "/opt//ls", "a\nb", "x" * 5000])
def test_a_pattern_that_is_none_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setenv("DULY_ALLOW_COMMANDS", f"ls,{pattern}")
    with pytest.raises(ConfigError, match="allow_commands"):
        load_settings()
    with pytest.raises(ConfigError, match="--allow-command"):
        with_commands(settings, allowed=False, programs=[pattern], user=None, passed=None)


def test_the_flags_win_and_exclude_each_other(settings: Settings) -> None:
    listed = settings.model_copy(update={"allow_commands": ("ls",)})
    assert with_commands(listed, allowed=True, programs=None, user=None, passed=None).allow_commands is True
    assert with_commands(listed, allowed=False, programs=["a", "b"], user=None, passed=None).allow_commands == (
        "a",
        "b",
    )
    assert with_commands(listed, allowed=False, programs=None, user=None, passed=None).allow_commands == ("ls",)
    with pytest.raises(ConfigError, match="give one of them"):
        with_commands(settings, allowed=True, programs=["ls"], user=None, passed=None)
