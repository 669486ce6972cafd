"""Jobs whose handler is a command, run as real programs by a worker: their input, their kept output and their end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from duly.config import Settings
from duly.worker.targets.command import TAIL_BYTES
from harness.commands import Process
from harness.pids import children_of, gone, is_alive, numbers_in, open_pipes
from harness.waiting import eventually
from harness.worker import Workbench, turns


@pytest.fixture
def bench(bench: Workbench) -> Workbench:
    bench.settings = bench.settings.model_copy(update={"allow_commands": True})
    return bench


ROOT = Path(__file__).parents[3]
LOOK = "import json, os, sys; print(json.dumps([json.load(sys.stdin), dict(os.environ), sys.argv[1:], os.getcwd()]))"


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *arguments)


async def test_a_command_finds_the_payload_and_the_run_but_not_the_workers_settings(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://somebody:secret@host/name")
    monkeypatch.setenv("DULY_WEBHOOK_SECRET", "whsec_secret")
    monkeypatch.setenv("OF_THE_WORKER", "yes")
    job_id = await bench.command(
        *python(LOOK, "$HOME; *", ""),
        payload={"to": ["ops", "ünï"]},
        env={"OF_THE_JOB": "a", "OF_THE_WORKER": "changed"},
        secret_env={"TOKEN": "b"},
        cwd=str(tmp_path),
        payload_ref="s3://bucket/key",
    )
    async with bench.working():
        run = await bench.end_of(job_id)
    assert run.status == "succeeded"
    assert (run.result["exit_code"], run.result["stderr"]) == (0, "")
    payload, environment, arguments, folder = json.loads(run.result["stdout"])
    assert payload == {"to": ["ops", "ünï"]}
    assert arguments == ["$HOME; *", ""]  # no shell has expanded them
    assert folder == str(tmp_path)
    assert (environment["OF_THE_JOB"], environment["OF_THE_WORKER"], environment["TOKEN"]) == ("a", "changed", "b")
    assert environment["PATH"] == os.environ["PATH"]
    trace = environment.pop("TRACEPARENT").split("-")
    assert [len(part) for part in trace] == [2, 32, 16, 2]
    assert {name for name in environment if name.startswith("DULY_")} == {
        "DULY_RUN_ID", "DULY_JOB_ID", "DULY_ATTEMPT", "DULY_SCHEDULED_AT", "DULY_IDEMPOTENCY_KEY",
        "DULY_FENCING_TOKEN", "DULY_PAYLOAD_REF",
    }  # fmt: skip
    assert (environment["DULY_RUN_ID"], environment["DULY_JOB_ID"]) == (run.run_id, job_id)
    assert (environment["DULY_ATTEMPT"], environment["DULY_PAYLOAD_REF"]) == ("1", "s3://bucket/key")
    assert environment["DULY_IDEMPOTENCY_KEY"] == run.idempotency_key
    assert environment["DULY_SCHEDULED_AT"].endswith("Z")
    assert len(environment["DULY_FENCING_TOKEN"]) == 36


@pytest.mark.parametrize("size", [10, 60_000, 250_000])
async def test_a_payload_of_any_size_is_read_or_left_unread(bench: Workbench, size: int) -> None:
    counted = await bench.command("wc", "-c", payload={"text": "x" * size})
    unread = await bench.command("true", payload={"text": "x" * size})
    async with bench.working():
        assert int((await bench.end_of(counted)).result["stdout"]) == size + len('{"text": ""}')
        assert (await bench.end_of(unread)).status == "succeeded"


@pytest.mark.parametrize(
    ("script", "how"),
    [("exit 3", "exit code 3"), ("kill -SEGV $$", "killed by SIGSEGV"), ("exit 127", "exit code 127")],
)
async def test_a_command_that_fails_is_retried_and_its_last_words_are_kept(
    bench: Workbench, script: str, how: str
) -> None:
    job_id = await bench.command(
        "sh", "-c", f"echo working; echo 'no space on disk' >&2; {script}", max_retries=1, retry_backoff="immediate"
    )
    async with bench.working():
        run = await bench.end_of(job_id)
    assert (run.status, run.attempt) == ("dead", 2)
    assert [attempt.error and attempt.error.type for attempt in run.attempts] == ["CommandFailed"] * 2
    assert run.error is not None
    assert run.error.message == f"{how}\nstderr: no space on disk\nstdout: working"
    assert "Traceback" not in (run.error.traceback or "")


async def test_the_end_of_a_long_error_output_is_in_the_message(bench: Workbench) -> None:
    script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done | tee /dev/stderr; echo THE END >&2; exit 1"
    job_id = await bench.command("sh", "-c", script, max_retries=0)
    async with bench.working():
        run = await bench.end_of(job_id)
    assert run.error is not None
    assert run.error.message.startswith("exit code 1\nstderr: …")
    assert "line 2999\nTHE END\n" in run.error.message
    assert run.error.message.endswith("line 2999")


@pytest.mark.parametrize(
    ("argv", "options", "named"),
    [
        (("no-such-program-of-ours", "x"), {}, "'no-such-program-of-ours' cannot be started: No such file"),
        (("./pyproject.toml",), {"cwd": str(ROOT)}, "'./pyproject.toml' cannot be started: Permission denied"),
        (("true",), {"cwd": "/no/such/folder"}, "the folder '/no/such/folder' cannot be entered: No such file"),
    ],
)
async def test_a_command_that_cannot_be_started_is_not_tried_again(
    bench: Workbench, argv: tuple[str, ...], options: dict[str, Any], named: str
) -> None:
    job_id = await bench.command(*argv, **options)
    async with bench.working():
        run = await bench.end_of(job_id)
    assert (run.status, run.attempt) == ("dead", 1)
    assert run.error is not None
    assert run.error.type == "Permanent"
    assert named in run.error.message


async def test_output_that_is_no_text_is_cleaned(bench: Workbench) -> None:
    job_id = await bench.command("printf", r"a\000b\377c\303\274")
    async with bench.working():
        run = await bench.end_of(job_id)
    assert run.result["stdout"] == "a\ufffdb\ufffdcü"


SECRET = "hunter2-0123456789"


async def everything_kept(bench: Workbench, job_id: str) -> str:
    """Everything stored about a job and its runs except the handler, which must hold the secret."""
    kept = []
    for table in ("history", "attempts", "dead_letters", "progress"):
        rows = await bench.pool.query(f"select (to_jsonb(t) - 'target')::text as row from duly.{table} t")
        kept += [str(row["row"]) for row in rows]
    assert any(job_id in row for row in kept)
    return "\n".join(kept)


async def test_a_program_that_prints_its_secrets_does_not_reveal_them(
    bench: Workbench, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = []
    script = "echo out $TOKEN; printf %s 'in hun' >&2; sleep 0.2; printf %s\\\\n ter2-0123456789 >&2; exit $1"
    secret: dict[str, Any] = {"secret_env": {"TOKEN": SECRET}}
    good = await bench.command("sh", "-c", script, "sh", "0", **secret)
    bad = await bench.command("sh", "-c", script, "sh", "1", max_retries=1, retry_backoff="immediate", **secret)
    gone = await bench.command(f"/no/{SECRET}/program", **secret)
    async with bench.working(observer=lambda run, outcome: seen.append(str(outcome))):
        run = await bench.end_of(good)
        assert (run.result["stdout"], run.result["stderr"]) == ("out ***\n", "in ***\n")
        run = await bench.end_of(bad)
        assert run.error is not None
        assert run.error.message == "exit code 1\nstderr: in ***\nstdout: out ***"
        run = await bench.end_of(gone)
        assert run.error is not None
        assert "'/no/***/program' cannot be started" in run.error.message
    letter = await bench.operations.dead_letters.get((await bench.run_of(bad)).run_id)
    said = capfd.readouterr()
    for text in (
        await everything_kept(bench, bad), caplog.text, "".join(seen), said.out + said.err,
        str(letter.error), str(letter.attempts), str(await bench.operations.explain.occurrence(bad)),
    ):  # fmt: skip
        assert "hunter2" not in text


async def test_no_part_of_a_secret_is_left_where_an_output_is_cut(bench: Workbench) -> None:
    """The last bytes of an output are kept; here they begin with the last characters of a secret."""
    script = 'printf %s "yyyyyyyyy$TOKEN$1"'
    fillings = ["." * (TAIL_BYTES - left) for left in range(1, len(SECRET))]
    jobs = [
        await bench.command("sh", "-c", script, "sh", filling, secret_env={"TOKEN": SECRET}) for filling in fillings
    ]
    async with bench.working():
        for job_id, filling in zip(jobs, fillings, strict=True):
            assert (await bench.end_of(job_id)).result["stdout"] == "***" + filling


async def test_no_part_of_a_secret_is_left_in_an_output_that_goes_on(bench: Workbench) -> None:
    """Half of the secret is printed when the run ends, and a background program keeps the output open."""
    job_id = await bench.command("sh", "-c", f"printf 'so {SECRET[:9]}'; sleep 20 &", secret_env={"TOKEN": SECRET})
    async with bench.working():
        run = await bench.end_of(job_id)
    assert run.result["stdout"] == "so ***"


async def test_an_endless_output_neither_blocks_nor_fills_memory(bench: Workbench) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here
    before = memory("VmRSS")
    script = "head -c 200000000 /dev/zero | tr '\\0' x; echo; echo done; head -c 50000000 /dev/zero >&2"
    job_id = await bench.command("sh", "-c", script)
    async with bench.working():
        run = await bench.end_of(job_id, seconds=120)
    assert run.status == "succeeded"
    assert run.result["stdout"].endswith("xxx\ndone\n")
    assert len(run.result["stdout"]) == TAIL_BYTES
    assert memory("VmHWM") - before < 40_000_000


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def memory(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


FAMILY = "sleep 300 & echo $! >>{0}; (sleep 300; true) & echo $! >>{0}; echo $$ >>{0}; "


async def test_a_timeout_leaves_nothing_of_the_command_alive(bench: Workbench, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    job_id = await bench.command("sh", "-c", FAMILY.format(file) + "wait", timeout_seconds=2, max_retries=0)
    async with bench.working():
        pids = await numbers_in(file, 3)
        assert all(is_alive(pid) for pid in pids)
        run = await bench.end_of(job_id)
        assert run.error is not None
        assert run.error.type == "timeout"
        # No `eventually`: all processes have ended before the run is recorded.
        assert [pid for pid in pids if is_alive(pid)] == []
        assert (await bench.end_of(await bench.command("echo", "next"))).result["stdout"] == "next\n"


async def test_a_command_hears_of_its_end_before_it_is_killed(bench: Workbench, tmp_path: Path) -> None:
    file = tmp_path / "cleaned"
    script = f"trap 'sleep 0.3; echo yes >{file}; exit 0' TERM; echo up >{file}; while :; do sleep 0.05; done"
    job_id = await bench.command("sh", "-c", script, timeout_seconds=2, max_retries=0)
    async with bench.working():
        await bench.end_of(job_id)
    assert file.read_text() == "yes\n"


async def test_whoever_ignores_sigterm_is_killed_the_command_or_what_it_left(bench: Workbench, tmp_path: Path) -> None:
    files = tmp_path / "leader", tmp_path / "child"
    stubborn = "trap '' TERM; echo $$ >>{}; while :; do sleep 0.1; done"
    scripts = (
        stubborn.format(files[0]),
        # The command itself ends at SIGTERM; its child does not, and holds no pipe that would show that it lives.
        f'sh -c "{stubborn.format(files[1]).replace("$", chr(92) + "$")}" >/dev/null 2>&1 </dev/null & sleep 300',
    )
    jobs = [await bench.command("sh", "-c", script, timeout_seconds=2, max_retries=0) for script in scripts]
    async with bench.working():
        pids = [(await numbers_in(file, 1))[0] for file in files]
        assert all(is_alive(pid) for pid in pids)
        for job_id in jobs:
            run = await bench.end_of(job_id)
            assert run.error is not None
            assert run.error.type == "timeout"
        assert [pid for pid in pids if is_alive(pid)] == []


async def test_a_background_child_that_holds_the_output_does_not_hold_the_run(bench: Workbench, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    job_id = await bench.command("sh", "-c", f"sleep 300 & echo $! >{file}; echo started")
    async with bench.working():
        run = await bench.end_of(job_id)
        assert (run.status, run.result["stdout"]) == ("succeeded", "started\n")
        (pid,) = await numbers_in(file, 1)
    # The command left this process behind on purpose, as under cron: it goes on, even after the worker has ended.
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


async def test_a_cancelled_run_ends_its_command(bench: Workbench, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    job_id = await bench.command("sh", "-c", f"echo $$ >{file}; sleep 300")
    async with bench.working():
        (pid,) = await numbers_in(file, 1)
        await bench.operations.jobs.cancel(job_id, running=True)
        run = await bench.end_of(job_id, "cancelled")
        assert not is_alive(pid)
    assert run.attempt == 1


async def test_a_shutdown_ends_commands_and_gives_their_runs_back(bench: Workbench, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    job_id = await bench.command("sh", "-c", f"echo $$ >{file}; sleep 300")
    async with bench.working() as worker:
        (pid,) = await numbers_in(file, 1)
        await worker.stop(grace=0)
        assert not is_alive(pid)
    assert (await bench.run_of(job_id)).status == "queued"


async def test_a_worker_that_does_not_run_commands_gives_them_back_for_one_that_does(bench: Workbench) -> None:
    job_id = await bench.command("echo", "here")
    bench.settings = bench.settings.model_copy(update={"allow_commands": False})
    async with bench.working():

        async def given_back() -> bool:
            rows = await bench.pool.query("select run_at > duly.now() as later, attempt from duly.runs")
            return [(row["later"], row["attempt"]) for row in rows] == [(True, 0)]

        await eventually(given_back)
    bench.settings = bench.settings.model_copy(update={"allow_commands": True})
    async with bench.working():
        run = await bench.end_of(job_id)
    assert (run.status, run.attempt, run.result["stdout"]) == ("succeeded", 1, "here\n")


async def test_when_the_guard_dies_its_commands_end_and_the_next_ones_get_another(
    bench: Workbench, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    job_id = await bench.command("sh", "-c", FAMILY.format(file) + "wait", max_retries=0)
    async with bench.working():
        pids = await numbers_in(file, 3)
        (guard,) = [pid for pid in children_of(os.getpid()) if set(pids) & set(children_of(pid))]
        os.kill(guard, signal.SIGKILL)
        run = await bench.end_of(job_id)
        assert run.error is not None
        assert "guards" in run.error.message
        await gone(*pids)
        assert (await bench.end_of(await bench.command("echo", "next"))).result["stdout"] == "next\n"


async def test_nothing_is_left_open_after_many_commands(bench: Workbench) -> None:
    async with bench.working():
        await bench.end_of(await bench.command("true"))
        await turns()
        before = open_pipes()
        jobs = [await bench.command("sh", "-c", "exit 1", max_retries=0) for _ in range(20)]
        jobs += [await bench.command("sleep", "300", timeout_seconds=0.5, max_retries=0) for _ in range(5)]
        jobs += [await bench.command("no-such-program-of-ours") for _ in range(5)]
        await asyncio.gather(*(bench.end_of(job_id) for job_id in jobs))
        await turns()
        assert open_pipes() <= before
        (guard,) = [pid for pid in children_of(os.getpid()) if b"guard_process" in command_line(pid)]
        assert children_of(guard) == []  # not even zombies


def test_a_command_does_not_outlive_a_worker_that_was_killed(
    settings: Settings, tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "empty.py").write_text("from duly import Duly\napp = Duly()\n")
    file = tmp_path / "pids"
    environment = {"DULY_DATABASE_URL": database_url, "DULY_POLL_SECONDS": "0.2"}
    submit = ("submit", "--command", "--", "sh", "-c", FAMILY.format(file) + "trap '' TERM HUP; wait; sleep 300")
    submitted = Process(submit, environment, tmp_path)
    assert submitted.end() == 0, submitted.said
    worker = Process(("worker", "--app", "empty:app", "--allow-commands"), environment, tmp_path)
    try:
        worker.wait_for("worker .* is running")
        pids = asyncio.run(numbers_in(file, 3))
        assert all(is_alive(pid) for pid in pids)
        (guard,) = children_of(worker.pid)
        worker.signal(signal.SIGKILL)
        asyncio.run(gone(guard, *pids))
    finally:
        submitted.close()
        worker.close()
