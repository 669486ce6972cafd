"""The command `duly` itself: a module for each command, and no import that a command does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from keyword import iskeyword
from pathlib import Path

import pytest

from duly.cli import commands
from duly.cli.main import app
from harness.commands import Process

Start = Callable[..., Process]


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


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (("--help",), ("asyncpg", "pydantic", "duly.operations")),
        (("job", "list"), ("duly.node", "duly.scheduler", "duly.worker.worker", "duly.maintenance", "fastapi")),
        (("webhook-secret",), ("duly.node", "duly.scheduler", "duly.operations", "fastapi")),
    ],
)
def test_a_command_loads_only_what_it_needs(
    arguments: tuple[str, ...], unneeded: tuple[str, ...], environment: dict[str, str]
) -> None:
    program = (
        "import sys; from duly.cli.main import execute\n"
        f"assert execute({list(arguments)}) == 0\n"
        f"print([name for name in {unneeded} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.splitlines()[-1:] == ["[]"], done.stderr


def test_every_command_is_in_the_module_of_its_name() -> None:
    """`duly dead redrive` is found in `commands/dead.py`, without a search."""
    homes: dict[str, set[str]] = {}
    for command in app.registered_commands:
        assert command.callback is not None
        homes.setdefault(command.name or "", set()).add(command.callback.__module__)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            homes.setdefault(str(group.name), set()).add(command.callback.__module__)
    wanted = {name: name.replace("-", "_") + "_" * iskeyword(name) for name in homes}
    assert homes == {name: {f"duly.cli.commands.{module}"} for name, module in wanted.items()}
    modules = {path.stem for path in Path(commands.__file__ or "").parent.glob("*.py")} - {"__init__"}
    assert modules == set(wanted.values())
