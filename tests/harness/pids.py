"""Processes of this machine, by pid and by name."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from harness.waiting import eventually


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def numbers_in(file: Path, count: int) -> list[int]:
    """The pids that processes have written into a file, once there are `count` of them."""
    await eventually(lambda: file.exists() and len(file.read_text().split()) >= count)
    return [int(word) for word in file.read_text().split()]


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


async def gone(*pids: int, seconds: float = 20) -> None:
    await eventually(lambda: not any(is_alive(pid) for pid in pids), seconds=seconds)


def open_pipes() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("pipe:")
    return found


def processes_that_name(text: str) -> dict[int, str]:
    """Every living process whose command line or environment holds the text, except this one."""
    found = {}
    needle = text.encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue  # the process ended meanwhile
        if needle in command or needle in environment:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def wait_until_gone(text: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while left := processes_that_name(text):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)
