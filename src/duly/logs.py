"""How log lines of Duly's own processes look: `2030-01-01 09:30:00.004 INFO    duly.worker: …`, in local time."""

from __future__ import annotations

import logging
import sys

from duly.errors import ConfigError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LINE = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
MOMENT = "%Y-%m-%d %H:%M:%S"


def set_up_logging(level: str) -> None:
    """To stderr, one short line each: stdout is for what a command was asked for."""
    if level.upper() not in LEVELS:
        raise ConfigError(f"setting log_level: must be one of {', '.join(LEVELS)}, not {level[:40]!r}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LINE, MOMENT))
    # `force` because a test calls several commands in one process, each with a stderr of its own.
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("duly").setLevel(level.upper())
