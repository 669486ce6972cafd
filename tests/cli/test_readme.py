"""The README works: its Python code and each of its commands are run, in order, against a real store."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
LONG_RUNNING = ("up", "scheduler", "worker")
# The address of an API in the README.
API = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def duly_commands() -> list[list[str]]:
    """The `duly` commands in the README, without comments."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("duly ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> dict[str, str]:
    """The reader's project, and the environment its commands run in."""
    (tmp_path / "reports.py").write_text(blocks("python")[0])
    (tmp_path / "my.crontab").write_text("MAILTO=ops\n30 2 * * * backup --all\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    return {
        **kept,
        "DULY_DATABASE_URL": database_url,
        "DULY_PORT": "0",
        "DULY_HOME": str(tmp_path / "home"),
        "PWD": str(tmp_path),
    }


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=environment["PWD"], env=environment, capture_output=True, text=True, timeout=60
    )


def test_every_command_and_the_program_in_the_readme_work(project: dict[str, str]) -> None:
    commands = duly_commands()
    assert len(commands) > 8
    background: list[subprocess.Popen[bytes]] = []
    submitted = False
    try:
        api = _serve(project, background)
        for written in commands:
            command = [word.replace(API, api) for word in written]
            if command[0] in LONG_RUNNING:
                background.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "duly.cli", *command],
                        cwd=project["PWD"], env=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    )
                )  # fmt: skip
                continue
            if command[0] == "doctor":
                _wait_until_healthy(project)
            if "RUN" in command:
                command = [_waiting_run(project) if word == "RUN" else word for word in command]
            done = run(project, "-m", "duly.cli", *command)
            assert done.returncode == 0, f"duly {shlex.join(command)}\n{done.stdout}\n{done.stderr}"
            if command[0] == "doctor" and not submitted:
                submitted = True
                program = run(project, "-c", "import asyncio, reports; asyncio.run(reports.main())")
                assert program.returncode == 0, program.stderr
        program = run({**project, "DULY_URL": api}, "-c", next(one for one in blocks("python") if "Client" in one))
        assert program.returncode == 0, program.stderr
        assert "backup --all 20" in program.stdout
        listed = run(project, "-m", "duly.cli", "job", "list", "--json").stdout
        assert listed.count('"handler"') >= 5
    finally:
        for process in background:
            process.terminate()
        for process in background:
            process.wait(30)


def _waiting_run(project: dict[str, str]) -> str:
    """The id of a run that no worker claims."""
    job = run(project, "-m", "duly.cli", "submit", "send_report", "--queue", "unserved", "--json").stdout
    runs = run(project, "-m", "duly.cli", "job", "runs", json.loads(job)["job_id"], "--json").stdout
    return str(json.loads(runs)["run_id"])


def _serve(project: dict[str, str], background: list[subprocess.Popen[bytes]]) -> str:
    """An API on a port of its own; returns its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "duly.cli", "api", "--port", "0"],
        cwd=project["PWD"], env=project, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    background.append(process)
    assert process.stdout is not None
    with process.stdout as output:
        found = re.search(rb"http://[0-9.:]+", output.readline())
    assert found is not None
    return found[0].decode()


def _wait_until_healthy(project: dict[str, str]) -> None:
    """Waits until `duly doctor` says that the scheduler and the worker have started."""
    deadline = time.monotonic() + 60
    while run(project, "-m", "duly.cli", "doctor").returncode != 0 and time.monotonic() < deadline:
        continue


def test_the_install_line_names_an_extra_that_exists() -> None:
    (extra,) = re.findall(r"^pip install '\.\[(\w+)\]'$", README, re.MULTILINE)
    assert (
        extra
        in tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
