"""Log records: as text and as JSON, with the run whose handler emits them, and without its secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from duly.errors import ConfigError
from duly.logs import RUN_FIELDS, JsonFormatter, RunFilter, TextFormatter, current_run, set_up_logging
from duly.masking import Mask

FIELDS = dict(zip(RUN_FIELDS, ("j", "nightly", "j-1", 2, 3, "host:1", "t"), strict=True))


class Run:
    def __init__(self, *secrets: str) -> None:
        self.log_fields: Mapping[str, Any] | None = FIELDS
        self._mask = Mask(secrets) if secrets else None

    def logged(self, level: str, source: str, text: str) -> None:
        pass

    def printed(self, stream: str, text: str) -> None:
        pass

    def without_secrets(self, text: str) -> str | None:
        return None if self._mask is None else self._mask.text(text)


def emitted(formatter: logging.Formatter, *said: Any, **more: Any) -> str:
    """A record as a handler with the filter shows it."""
    logger = logging.Logger("app.part")
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Kept()
    handler.addFilter(RunFilter())
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    logger.info(*said, **more)
    return lines[0]


def within(run: Run, *said: Any, formatter: logging.Formatter | None = None, **more: Any) -> str:
    token = current_run.set(run)
    try:
        return emitted(formatter or JsonFormatter(), *said, **more)
    finally:
        current_run.reset(token)


def test_json_is_one_object_a_line_with_the_run_and_the_fields_of_the_call() -> None:
    line = within(Run(), "sent %d", 3, extra={"amount": 12.5, "kind": object})
    assert "\n" not in line
    said = json.loads(line)
    assert said.pop("time").endswith("Z")
    assert said == {
        "level": "INFO", "logger": "app.part", "message": "sent 3", **FIELDS,
        "fields": {"amount": 12.5, "kind": repr(object)},
    }  # fmt: skip


def test_outside_a_handler_a_record_names_no_run() -> None:
    assert json.loads(emitted(JsonFormatter(), "hello")).keys() == {"time", "level", "logger", "message"}
    assert emitted(TextFormatter(), "hello").endswith("app.part: hello")
    assert emitted(logging.Formatter("%(run_id)s %(message)s"), "hello") == "None hello"


def test_text_names_the_run_at_the_end_of_the_line() -> None:
    line = within(Run(), "hello", formatter=TextFormatter())
    assert line.endswith("app.part: hello [job='nightly' run=j-1 attempt=2 shard=3 node=host:1 trace=t]")


def test_a_run_that_is_over_is_not_named() -> None:
    run = Run()
    run.log_fields = None
    assert "run_id" not in json.loads(within(run, "late"))


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter(), logging.Formatter("%(message)s %(token)s")])
def test_secrets_are_hidden_in_message_exception_and_fields(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("refused: hunter22")
    except ValueError:
        line = within(
            Run("hunter22"), "with %s", "hunter22", formatter=formatter, exc_info=True, extra={"token": "x hunter22"}
        )
    assert "hunter22" not in line
    assert line.count("***") >= 2
    assert "Traceback" in line


def test_arguments_that_do_not_fit_do_not_raise() -> None:
    assert "%d items" in within(Run("hunter22"), "%d items hunter22", "three")


async def test_tasks_and_to_thread_inherit_the_run() -> None:
    async def inner() -> str:
        return await asyncio.to_thread(emitted, JsonFormatter(), "hello")

    token = current_run.set(Run())
    try:
        task = asyncio.create_task(inner())
    finally:
        current_run.reset(token)
    assert json.loads(await task)["run_id"] == "j-1"
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(emitted(JsonFormatter(), "hello")))
    thread.start()
    thread.join()
    assert "run_id" not in json.loads(found[0])


def test_a_wrong_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"log_format.*text, json"):
        set_up_logging("INFO", "xml")
