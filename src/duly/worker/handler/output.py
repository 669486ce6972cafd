"""Catches what handlers log and print in this process, and passes it to their runs.

The streams `sys.stdout` and `sys.stderr` and the root logger get a listener, which looks up the run that is executing
there (`duly.logs.current_run`). What is said outside of handlers passes as if there was none.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from duly.logs import current_run, exception_of_record, message_of_record

#: The logger behind `ctx.log`: of Duly's own loggers the only one whose records belong to runs.
RUN_LOGGER = "duly.run"
_EMIT = logging.StreamHandler.emit.__code__


class Stream:
    """A stream that also passes what handlers print to their runs."""

    def __init__(self, inner: Any, name: str) -> None:
        self.behind = inner
        self._name = name

    def write(self, text: Any) -> Any:
        run = current_run.get()
        # Not what a handler of the logging module writes here: the listener has the record.
        if run is not None and isinstance(text, str) and sys._getframe(1).f_code is not _EMIT:
            run.printed(self._name, text)
        return self.behind.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.behind)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.behind.flush()


class Listener(logging.Handler):
    """Passes records to the run that is executing."""

    def handle(self, record: logging.LogRecord) -> bool:
        # Not by `emit`: it is called under a lock, which costs as much as all that is done here.
        run = current_run.get()
        if run is not None:
            name = record.name
            if not name.startswith("duly.") or name == RUN_LOGGER:
                # Mostly another handler has formatted it already.
                text = getattr(record, "message", None) or message_of_record(record)
                if (record.exc_info or record.exc_text) and (trace := exception_of_record(record)):
                    text = f"{text}\n{trace}"
                run.logged(record.levelname, name, text)
        return True


@contextmanager
def listening() -> Iterator[None]:
    """Listens inside the block. Blocks may be nested: the output of a run is passed on once."""
    if isinstance(sys.stdout, Stream) or any(isinstance(one, Listener) for one in logging.getLogger().handlers):
        yield
        return
    listener, before = Listener(), (sys.stdout, sys.stderr)
    ours = Stream(sys.stdout, "stdout"), Stream(sys.stderr, "stderr")
    logging.getLogger().addHandler(listener)
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        logging.getLogger().removeHandler(listener)
        # Somebody may have replaced them meanwhile.
        if sys.stdout is ours[0]:
            sys.stdout = before[0]
        if sys.stderr is ours[1]:
            sys.stderr = before[1]
