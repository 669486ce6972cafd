"""What a supervised worker says to its supervisor: that it runs, each second how it is, and later that it is worn out.

One JSON document per line, through the socket that is the worker's lifeline (`ending.py`).
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from duly.worker.wear import Worn

log = logging.getLogger("duly.cli")


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker claims runs. `memory`: its resident bytes before its first run, if that is known.

    `cramped`: that is so much that its limit of memory leaves too little for the runs.
    """

    memory: int | None
    cramped: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The worker's figures since its start (a `figures.Snapshot` as a document), and what is wrong, by question."""

    figures: dict[str, Any]
    wrong: dict[str, str | None]


Message = Ready | Worn | Report
_KINDS: dict[str, type[Message]] = {"Ready": Ready, "Worn": Worn, "Report": Report}
# The loop speaks, and so does the thread that reports: a line must not end up inside another.
_speaking = threading.Lock()


def say(lifeline: int, message: Message) -> None:
    line = json.dumps({type(message).__name__: asdict(message)}) + "\n"
    with _speaking, suppress(OSError):  # the supervisor is gone, and this process ends as well
        os.write(lifeline, line.encode())


class Hearing:
    """Reads the messages of a worker. `heard` is called with each."""

    def __init__(self, heard: Callable[[Message], None]) -> None:
        self._heard = heard
        self._received = b""

    def receive(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            try:
                ((kind, fields),) = json.loads(line).items()
                message = _KINDS[kind](**fields)
            except (ValueError, TypeError, KeyError, AttributeError):
                # Duly may have been installed anew since the supervisor started: its workers are of another version.
                log.debug("a worker's message is not understood: %r", line)
            else:
                self._heard(message)
