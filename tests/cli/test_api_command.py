"""`duly api` serves the API alone; completion answers at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable

import pytest

from duly.local_keys import key_for
from harness.commands import Process

Start = Callable[..., Process]


def test_the_api_is_served_until_a_signal_and_nothing_else_is(start: Start) -> None:
    process = start("api", "--port", "0")
    url = process.wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    with urllib.request.urlopen(f"{url}/readyz", timeout=30) as answer:
        assert answer.status == 200
    found = key_for(url)
    assert found is not None
    asked = urllib.request.Request(f"{url}/api/v1/cluster", headers={"Authorization": f"Bearer {found[1]}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        cluster = json.load(answer)
    assert (cluster["nodes"], cluster["workers"]) == ([], [])
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.said


def test_beyond_loopback_it_wants_keys_and_a_taken_port_is_said_to_be_so(start: Start) -> None:
    open_to_all = start("api", "--host", "0.0.0.0", "--port", "0")
    assert open_to_all.end() == 2
    assert "key" in open_to_all.said
    assert "Traceback" not in open_to_all.said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("api", "--port", str(taken.getsockname()[1]))
        assert process.end() == 2
        assert "is taken" in process.said


COMPLETED = {
    "bash": {"COMP_WORDS": "duly dead ", "COMP_CWORD": "2"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "duly dead "},
    "fish": {"_TYPER_COMPLETE_ARGS": "duly dead ", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


@pytest.mark.parametrize("shell", COMPLETED)
def test_shells_are_told_the_commands(shell: str) -> None:
    environment = os.environ | COMPLETED[shell] | {"_DULY_COMPLETE": f"complete_{shell}"}
    program = "import sys; sys.argv[0] = 'duly'; from duly.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in ("list", "show", "redrive", "purge"):
        assert command in done.stdout


def test_completion_loads_nothing_that_takes_long() -> None:
    """No database driver, web framework or settings: the shell waits for every key that is pressed."""
    program = (
        "import sys, duly.cli.main\n"
        "slow = ('asyncpg', 'fastapi', 'httpx', 'pydantic', 'uvicorn', 'zoneinfo', 'duly.operations', 'duly.client')\n"
        "print([name for name in slow if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
