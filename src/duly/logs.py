"""Log lines of Duly's processes, readable or as JSON, and the run to which a log record belongs.

As text: `2030-01-01 09:30:00.004 INFO    duly.worker: …`, in local time; only a record of this process begins a line
with a time, whatever text its message quotes. As JSON: one object a line, its time in UTC.

`RunFilter` is for handlers of the user's own: with it their records name the run as Duly's do, without its secrets.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from duly.errors import ConfigError
from duly.visible import visible, visible_json, visible_lines

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FORMATS = ("text", "json")
LogFormat = Literal["text", "json"]
#: What a record says of the run whose handler emitted it.
RUN_FIELDS = ("job_id", "job", "run_id", "attempt", "shard", "node", "trace_id")
_LINE = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
_MOMENT = "%Y-%m-%d %H:%M:%S"
_INDENT = "    "
# What every record has: other attributes came with `extra`, or from the filter.
_OWN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "duly_run", *RUN_FIELDS})


class LoggedRun(Protocol):
    """A run whose handler is executing, as log records need it."""

    @property
    def log_fields(self) -> Mapping[str, Any] | None:
        """Values by `RUN_FIELDS`; None once the run is over."""
        ...

    def without_secrets(self, text: str) -> str | None:
        """The text without the run's secrets; None if the run has none."""
        ...

    def logged(self, level: str, source: str, text: str) -> None:
        """Takes a record for the log that is kept with the run."""
        ...

    def printed(self, stream: str, text: str) -> None:
        """Takes a piece of output for it."""
        ...


#: The run whose handler is executing here. Coroutines and their tasks inherit it; the worker sets it in its threads.
current_run: ContextVar[LoggedRun | None] = ContextVar("duly_run", default=None)


class RunFilter(logging.Filter):
    """Gives every record the attributes `RUN_FIELDS`, None outside handlers, and hides the secrets of the run.

    For a handler, not for a logger: a logger's filter does not see what the loggers below it emit.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "duly_run"):
            return True  # another handler's filter has seen it
        run = current_run.get()
        fields = None if run is None else run.log_fields
        record.duly_run = fields
        for name in RUN_FIELDS:
            if not hasattr(record, name):  # `extra` may have set it
                setattr(record, name, None if fields is None else fields[name])
        if run is not None and fields is not None:
            _hide_secrets(record, run)
        return True


def _hide_secrets(record: logging.LogRecord, run: LoggedRun) -> None:
    text = run.without_secrets(message_of_record(record))
    if text is None:
        return
    record.msg, record.args = text, None
    if record.exc_info:
        trace = _BARE.formatException(record.exc_info) if record.exc_info[0] is not None else ""
        # Formatters show this text. The exception itself is gone: a handler would find the secrets in it.
        record.exc_text, record.exc_info = run.without_secrets(trace), None
    for name, value in vars(record).items():
        if name not in _OWN and isinstance(value, str):
            setattr(record, name, run.without_secrets(value))


def message_of_record(record: logging.LogRecord) -> str:
    """The message; what is known of it if its arguments do not fit."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments may be anything, and so may their __str__
        return f"{record.msg} (its arguments do not fit)"


_BARE = logging.Formatter()


def exception_of_record(record: logging.LogRecord) -> str | None:
    """The traceback of a record that went through `RunFilter`."""
    if record.exc_info and record.exc_info[0] is not None:
        # Not `record.exc_text`: another formatter may have left its own version there.
        return _BARE.formatException(record.exc_info)
    return None if record.exc_info else record.exc_text


class TextFormatter(logging.Formatter):
    """One line per record, with its run at the end; the lines of its traceback follow, indented."""

    def __init__(self) -> None:
        super().__init__(_LINE, _MOMENT)

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        lines = [visible(self.formatMessage(record) + _shown_run(getattr(record, "duly_run", None)))]
        below = [trace] if (trace := exception_of_record(record)) else []
        below += [self.formatStack(record.stack_info)] if record.stack_info else []
        for text in below:
            lines += [_INDENT + line for line in visible_lines(text).split("\n")]
        return "\n".join(lines)


def _shown_run(fields: Mapping[str, Any] | None) -> str:
    """`[job='nightly' run=… attempt=1 shard=3 node=… trace=…]`: the run's id contains the job's."""
    if fields is None:
        return ""
    return (
        f" [job={fields['job']!r} run={fields['run_id']} attempt={fields['attempt']} shard={fields['shard']} "
        f"node={fields['node']} trace={fields['trace_id']}]"
    )


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, the run if there is one, exception, `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": moment_text(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **(getattr(record, "duly_run", None) or {}),
        }
        if trace := exception_of_record(record):
            said["exception"] = trace
        if record.stack_info:
            said["stack"] = record.stack_info
        if extra := {name: value for name, value in vars(record).items() if name not in _OWN}:
            said["fields"] = extra
        return json_line(said)


def json_line(said: Mapping[str, Any]) -> str:
    """A log line as JSON; a value without a JSON form becomes its `repr`."""
    try:
        return visible_json(json.dumps(said, ensure_ascii=False, default=repr))
    except (ValueError, RecursionError, TypeError):  # such as keys that are no strings
        return visible_json(json.dumps({name: repr(value) for name, value in said.items()}, ensure_ascii=False))


def moment_text(seconds: float) -> str:
    """`2030-01-01T09:30:00.004Z`"""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_formatter(log_format: str) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else TextFormatter()


class ToStderr(logging.StreamHandler[Any]):
    """Duly's own handler. Other libraries' records below WARNING are shown if a handler's run emitted them."""

    def __init__(self, log_format: str) -> None:
        # What is behind a stream that passes output to runs: a record passes by another way.
        super().__init__(getattr(sys.stderr, "behind", sys.stderr))
        self.log_format = log_format
        self.setFormatter(make_formatter(log_format))
        self.addFilter(RunFilter())

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or record.duly_run is not None or _is_ours(record.name):  # type: ignore[attr-defined]
            super().emit(record)


def _is_ours(logger: str) -> bool:
    return logger == "duly" or logger.startswith("duly.")


def log_to_stderr(level: int = logging.WARNING, log_format: str = "text") -> None:
    """Log to stderr, for a process that Duly itself starts."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, ToStderr):  # a test calls several commands in one process, each with its own stderr
            root.removeHandler(handler)
    root.addHandler(ToStderr(log_format))
    root.setLevel(level)


def set_up_logging(level: str, log_format: str = "text") -> None:
    """Log to stderr at this level: stdout is for a command's results."""
    if level.upper() not in LEVELS:
        raise ConfigError(f"setting log_level: must be one of {', '.join(LEVELS)}, not {level[:40]!r}")
    if log_format not in FORMATS:
        raise ConfigError(f"setting log_format: must be one of {', '.join(FORMATS)}, not {log_format[:40]!r}")
    log_to_stderr(log_format=log_format)
    logging.getLogger("duly").setLevel(level.upper())


def let_handlers_log(level: str) -> None:
    """For a process that runs handlers, before their code is imported: its loggers too log from this level on."""
    logging.getLogger().setLevel(level.upper())
    logging.getLogger("httpx").setLevel(logging.WARNING)  # Duly's own calls; it logs their whole addresses
