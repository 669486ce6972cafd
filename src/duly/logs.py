"""Log lines of Duly's processes: `2030-01-01 09:30:00.004 INFO    duly.worker: …`, in local time.

Only a record of this process begins a line with a time, whatever text its message quotes.
"""

from __future__ import annotations

import logging
import sys

from duly.errors import ConfigError
from duly.visible import visible, visible_lines

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LINE = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
_MOMENT = "%Y-%m-%d %H:%M:%S"
_INDENT = "    "


class LogFormatter(logging.Formatter):
    """One line per record; the lines of its traceback follow, indented."""

    def __init__(self) -> None:
        super().__init__(_LINE, _MOMENT)

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        lines = [visible(self.formatMessage(record))]
        # Not `record.exc_text`: another formatter may have left its own version there.
        below = [self.formatException(record.exc_info)] if record.exc_info else []
        below += [self.formatStack(record.stack_info)] if record.stack_info else []
        for text in below:
            lines += [_INDENT + line for line in visible_lines(text).split("\n")]
        return "\n".join(lines)


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Log to stderr, for a process that Duly itself starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    # `force` because a test calls several commands in one process, each with a stderr of its own.
    logging.basicConfig(level=level, handlers=[handler], force=True)


def set_up_logging(level: str) -> None:
    """Log to stderr at this level: stdout is for a command's results."""
    if level.upper() not in LEVELS:
        raise ConfigError(f"setting log_level: must be one of {', '.join(LEVELS)}, not {level[:40]!r}")
    log_to_stderr()
    logging.getLogger("duly").setLevel(level.upper())
