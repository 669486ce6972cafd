"""The wall clock that one process sees: libfaketime shifts it by the offset that a file contains.

The monotonic clock is left alone, as when a machine's time is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_SLEEPING = Path(__file__).parent / "sleeping"


def library() -> Path | None:
    """The path of libfaketime, in its variant for programs with threads."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class Clock:
    """`step` sets the clock of a process that was started with `environment`, which sees it after a second or two."""

    def __init__(self, file: Path, preload: Path | None) -> None:
        self._file = file
        self._preload = preload
        self.offset = 0.0
        self.step(0)

    @property
    def can_step(self) -> bool:
        return self._preload is not None

    def environment(self, others: Mapping[str, str]) -> dict[str, str]:
        """The environment of a process that sees this clock: `others`, and the variables for libfaketime."""
        if self._preload is None:
            return dict(others)
        return {
            **others, "LD_PRELOAD": str(self._preload), "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_SLEEPING), others.get("PYTHONPATH")))),
        }  # fmt: skip

    def step(self, seconds: float) -> None:
        """Sets the clock ahead of the machine's time from now on (behind it, if negative)."""
        self.offset = seconds
        # Written atomically: a reader must never see an empty file.
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+g}s\n")
        new.rename(self._file)
