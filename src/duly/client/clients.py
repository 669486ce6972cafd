"""`duly.Client` and `duly.AsyncClient`: the same calls, sent by two small transports."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from duly.client import calls
from duly.client.calls import Answer, Call, Pages, Steps
from duly.client.trying import PATIENCE_SECONDS, Attempts, refusal
from duly.errors import ApiUnavailable, ConfigError, DulyError
from duly.local_keys import is_loopback_url, key_for
from duly.model import LogLine
from duly.tracing import current_headers

# Shortest and longest pause between two looks of a follower, in seconds.
_FOLLOW_SECONDS = (0.5, 3.0)
P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

_PROBLEM = "application/problem+json"
# Smaller differences between the clocks are ignored: the header has whole seconds, and the response took some time.
_SAME_CLOCK = timedelta(seconds=2)


class _Base:
    """Address and key of the API; turns a call into a request and a response into a value."""

    def __init__(self, url: str | None, *, timeout: float, patience: float, retries: int | None) -> None:
        self._url = _check_url(url if url is not None else os.environ.get("DULY_URL"))
        if not timeout > 0:
            raise ConfigError(f"timeout must be more than 0 seconds, not {timeout!r}")
        if not patience >= 0:
            raise ConfigError(f"patience must be 0 seconds or more, not {patience!r}")
        if retries is not None and retries < 0:
            raise ConfigError(f"retries must be 0 or more, not {retries!r}")
        self._patience = patience
        self._retries = retries
        self._offset = timedelta(0)
        self._own_server = False

    def _options(self, api_key: str | None, timeout: float) -> dict[str, Any]:
        """Options of the transport, the only object that holds the key."""
        key = _check_key(api_key if api_key is not None else os.environ.get("DULY_API_KEY"))
        self._own_server = key is None and is_loopback_url(self._url)
        headers = {"Accept": f"application/json, {_PROBLEM}"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return {
            "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            "headers": headers,
            # The key must not be sent to another server, so redirects are not followed.
            "follow_redirects": False,
            # Nor must a proxy from the environment see the local key.
            "trust_env": not self._own_server,
        }

    def __repr__(self) -> str:
        return f"<duly.{type(self).__name__} {self._url}>"

    def now(self) -> datetime:
        """The server's time, reckoned from its last response."""
        return datetime.now(UTC) + self._offset

    def _attempts(self, call: Call[Any]) -> Attempts:
        return Attempts(
            self._address_of(call), repeatable=call.repeatable, patience=self._patience, retries=self._retries
        )

    def _arguments(self, call: Call[Any]) -> dict[str, Any]:
        headers = dict(call.headers)
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        current_headers(headers)
        url = self._url
        # Looked up for each call: the port belongs to this user's server only while that server runs.
        if self._own_server and (found := key_for(url)) is not None:
            url, key = found
            headers["Authorization"] = f"Bearer {key}"
        return {
            "method": call.method,
            "url": url + calls.PREFIX + call.path,
            "params": call.query or None,
            "content": call.body,
            "headers": headers,
        }

    def _address_of(self, call: Call[Any]) -> str:
        return f"{call.method} {self._url}{calls.PREFIX}{call.path}"

    def _read(self, call: Call[T], response: httpx.Response) -> T:
        self._note_time(response)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        document = None
        if response.content:
            try:
                document = json.loads(response.content)
            except (ValueError, RecursionError):
                kind = ""
        if not response.is_success:
            is_problem = kind == _PROBLEM and isinstance(document, dict)
            raise refusal(self._address_of(call), response.status_code, document if is_problem else None)
        try:
            return call.read(Answer(response.status_code, document, response.headers))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"{self._address_of(call)}: the response is not from Duly's API; check the address"
            raise ApiUnavailable(message, sent=True) from error

    def _note_time(self, response: httpx.Response) -> None:
        try:
            offset = parsedate_to_datetime(response.headers["date"]) - datetime.now(UTC)
        except (KeyError, ValueError, TypeError):
            return
        self._offset = offset if abs(offset) > _SAME_CLOCK else timedelta(0)


def _blocking(steps: Callable[P, Steps[T]]) -> Callable[Concatenate[Client, P], T]:
    """Makes a function of `calls` a method of `Client`."""

    @wraps(steps)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(steps(*args, **kwargs))

    return method


def _blocking_list(pages: Callable[P, Pages[Item]]) -> Callable[Concatenate[Client, P], Iterator[Item]]:
    @wraps(pages)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Item]:
        return self._walk(pages(*args, **kwargs))

    return method


def _awaited(steps: Callable[P, Steps[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Makes a function of `calls` a method of `AsyncClient`."""

    @wraps(steps)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(steps(*args, **kwargs))

    return method


def _awaited_list(pages: Callable[P, Pages[Item]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[Item]]:
    @wraps(pages)
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Item]:
        return self._walk(pages(*args, **kwargs))

    return method


class Client(_Base):
    """A blocking client of the REST API. Threads may share one.

        with Client("https://duly.example.org", api_key) as client:
            job = client.submit("send_report", {"kind": "weekly"}, schedule="0 9 * * MON")
            for run in client.runs(job.job_id):
                ...

    Results are values of `duly.model` (`Job`, `Run`, `DeadLetter`, …); errors are those of `duly.errors`.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = PATIENCE_SECONDS,
        retries: int | None = None,
    ) -> None:
        """`url` and `api_key` default to `DULY_URL` and `DULY_API_KEY`; your own server on loopback needs no key.

        `timeout` is for one attempt, in seconds. A call that fails for a passing reason, such as a restart of the API,
        is retried for `patience` seconds; `retries` also bounds the number of retries.
        """
        super().__init__(url, timeout=timeout, patience=patience, retries=retries)
        self._http = httpx.Client(**self._options(api_key, timeout))

    request_of = staticmethod(calls.request_of)
    submit = _blocking(calls.submit)
    submit_request = _blocking(calls.submit_request)
    submit_many = _blocking(calls.submit_many)
    jobs = _blocking_list(calls.jobs)
    jobs_page = _blocking(calls.jobs_page)
    find_jobs = _blocking(calls.find_jobs)
    get_job = _blocking(calls.get_job)
    change = _blocking(calls.change)
    cancel = _blocking(calls.cancel)
    pause = _blocking(calls.pause)
    resume = _blocking(calls.resume)
    trigger = _blocking(calls.trigger)
    upcoming = _blocking(calls.upcoming)
    explain = _blocking(calls.explain)
    explanations = _blocking_list(calls.explanations)
    explanations_page = _blocking(calls.explanations_page)
    runs = _blocking_list(calls.runs)
    runs_page = _blocking(calls.runs_page)
    get_run = _blocking(calls.get_run)
    run_logs = _blocking_list(calls.run_logs)
    run_logs_page = _blocking(calls.run_logs_page)
    cancel_run = _blocking(calls.cancel_run)
    audit = _blocking_list(calls.audit)
    audit_page = _blocking(calls.audit_page)
    incidents = _blocking_list(calls.incidents)
    incidents_page = _blocking(calls.incidents_page)
    ack_incident = _blocking(calls.ack_incident)
    maintenance_windows = _blocking(calls.maintenance_windows)
    add_maintenance_window = _blocking(calls.add_maintenance_window)
    remove_maintenance_window = _blocking(calls.remove_maintenance_window)
    dead_letters = _blocking_list(calls.dead_letters)
    dead_letters_page = _blocking(calls.dead_letters_page)
    count_dead_letters = _blocking(calls.count_dead_letters)
    get_dead_letter = _blocking(calls.get_dead_letter)
    redrive = _blocking(calls.redrive)
    redrive_all = _blocking(calls.redrive_all)
    purge = _blocking(calls.purge)
    purge_all = _blocking(calls.purge_all)
    monitors = _blocking_list(calls.monitors)
    monitors_page = _blocking(calls.monitors_page)
    get_monitor = _blocking(calls.get_monitor)
    set_monitor = _blocking(calls.set_monitor)
    remove_monitor = _blocking(calls.remove_monitor)
    ping_monitor = _blocking(calls.ping_monitor)
    ping_monitor_outcome = _blocking(calls.ping_monitor_outcome)
    preview = _blocking(calls.preview)
    forecast = _blocking(calls.forecast)
    cluster = _blocking(calls.cluster)
    stats = _blocking(calls.stats)

    def follow_run_logs(self, run_id: str, *, attempt: int | None = None, tail: int | None = None) -> Iterator[LogLine]:
        """Lines as they come, until the run has ended; those that are there first, or the last `tail` of them."""
        cursor, pause = None, _FOLLOW_SECONDS[0]
        while True:
            page = self.run_logs_page(run_id, cursor=cursor, attempt=attempt, tail=None if cursor else tail)
            yield from page.items
            if page.complete:
                return
            cursor = page.cursor
            if not page.more:
                pause = _FOLLOW_SECONDS[0] if page.items else min(1.5 * pause, _FOLLOW_SECONDS[1])
                time.sleep(pause)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, steps: Steps[T]) -> T:
        """Sends a call of `duly.client.calls`, or all the calls of a generator, and returns the result."""
        going = iter(steps)
        try:
            call = next(going)
            while True:
                try:
                    answer = self._send(call)
                except DulyError as error:
                    call = going.throw(error)
                else:
                    call = going.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    def _walk(self, pages: Pages[Item]) -> Iterator[Item]:
        cursor = None
        while True:
            page = self._send(pages.at(cursor))
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def _send(self, call: Call[T]) -> T:
        attempts = self._attempts(call)
        while True:
            try:
                response = self._http.request(**self._arguments(call))
            except httpx.RequestError as error:
                pause = attempts.after_error(error)
            else:
                wish = attempts.after_answer(response)
                if wish is None:
                    return self._read(call, response)
                pause = wish
            time.sleep(pause)


class AsyncClient(_Base):
    """A client of the REST API for asyncio: the methods of `Client`, awaited, within one event loop.

    async with AsyncClient("https://duly.example.org", api_key) as client:
        job = await client.submit("send_report", {"kind": "weekly"})
        async for run in client.runs(job.job_id):
            ...
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = PATIENCE_SECONDS,
        retries: int | None = None,
    ) -> None:
        """`url` and `api_key` default to `DULY_URL` and `DULY_API_KEY`; your own server on loopback needs no key.

        `timeout` is for one attempt, in seconds. A call that fails for a passing reason, such as a restart of the API,
        is retried for `patience` seconds; `retries` also bounds the number of retries.
        """
        super().__init__(url, timeout=timeout, patience=patience, retries=retries)
        self._http = httpx.AsyncClient(**self._options(api_key, timeout))

    request_of = staticmethod(calls.request_of)
    submit = _awaited(calls.submit)
    submit_request = _awaited(calls.submit_request)
    submit_many = _awaited(calls.submit_many)
    jobs = _awaited_list(calls.jobs)
    jobs_page = _awaited(calls.jobs_page)
    find_jobs = _awaited(calls.find_jobs)
    get_job = _awaited(calls.get_job)
    change = _awaited(calls.change)
    cancel = _awaited(calls.cancel)
    pause = _awaited(calls.pause)
    resume = _awaited(calls.resume)
    trigger = _awaited(calls.trigger)
    upcoming = _awaited(calls.upcoming)
    explain = _awaited(calls.explain)
    explanations = _awaited_list(calls.explanations)
    explanations_page = _awaited(calls.explanations_page)
    runs = _awaited_list(calls.runs)
    runs_page = _awaited(calls.runs_page)
    get_run = _awaited(calls.get_run)
    run_logs = _awaited_list(calls.run_logs)
    run_logs_page = _awaited(calls.run_logs_page)
    cancel_run = _awaited(calls.cancel_run)
    audit = _awaited_list(calls.audit)
    audit_page = _awaited(calls.audit_page)
    incidents = _awaited_list(calls.incidents)
    incidents_page = _awaited(calls.incidents_page)
    ack_incident = _awaited(calls.ack_incident)
    maintenance_windows = _awaited(calls.maintenance_windows)
    add_maintenance_window = _awaited(calls.add_maintenance_window)
    remove_maintenance_window = _awaited(calls.remove_maintenance_window)
    dead_letters = _awaited_list(calls.dead_letters)
    dead_letters_page = _awaited(calls.dead_letters_page)
    count_dead_letters = _awaited(calls.count_dead_letters)
    get_dead_letter = _awaited(calls.get_dead_letter)
    redrive = _awaited(calls.redrive)
    redrive_all = _awaited(calls.redrive_all)
    purge = _awaited(calls.purge)
    purge_all = _awaited(calls.purge_all)
    monitors = _awaited_list(calls.monitors)
    monitors_page = _awaited(calls.monitors_page)
    get_monitor = _awaited(calls.get_monitor)
    set_monitor = _awaited(calls.set_monitor)
    remove_monitor = _awaited(calls.remove_monitor)
    ping_monitor = _awaited(calls.ping_monitor)
    ping_monitor_outcome = _awaited(calls.ping_monitor_outcome)
    preview = _awaited(calls.preview)
    forecast = _awaited(calls.forecast)
    cluster = _awaited(calls.cluster)
    stats = _awaited(calls.stats)

    async def follow_run_logs(
        self, run_id: str, *, attempt: int | None = None, tail: int | None = None
    ) -> AsyncIterator[LogLine]:
        """Lines as they come, until the run has ended; those that are there first, or the last `tail` of them."""
        cursor, pause = None, _FOLLOW_SECONDS[0]
        while True:
            page = await self.run_logs_page(run_id, cursor=cursor, attempt=attempt, tail=None if cursor else tail)
            for line in page.items:
                yield line
            if page.complete:
                return
            cursor = page.cursor
            if not page.more:
                pause = _FOLLOW_SECONDS[0] if page.items else min(1.5 * pause, _FOLLOW_SECONDS[1])
                await asyncio.sleep(pause)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, steps: Steps[T]) -> T:
        """As `Client.call`."""
        going = iter(steps)
        try:
            call = next(going)
            while True:
                try:
                    answer = await self._send(call)
                except DulyError as error:
                    call = going.throw(error)
                else:
                    call = going.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _walk(self, pages: Pages[Item]) -> AsyncIterator[Item]:
        cursor = None
        while True:
            page = await self._send(pages.at(cursor))
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _send(self, call: Call[T]) -> T:
        attempts = self._attempts(call)
        while True:
            try:
                response = await self._http.request(**self._arguments(call))
            except httpx.RequestError as error:
                pause = attempts.after_error(error)
            else:
                wish = attempts.after_answer(response)
                if wish is None:
                    return self._read(call, response)
                pause = wish
            await asyncio.sleep(pause)


def _check_url(url: str | None) -> str:
    """The base URL, without the prefix that the client adds itself."""
    if not url:
        raise ConfigError("the address of the API is missing: give it, or set DULY_URL")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        # The parser's message is not passed on: it quotes the URL, which may hold a password.
        raise ConfigError("the address of the API is not a URL: it must be like https://duly.example.org") from None
    if parts.scheme not in ("http", "https") or not host or any(character.isspace() for character in url):
        raise ConfigError("the address of the API must be like https://duly.example.org")
    if "@" in url:
        # The URL is not repeated here: it would end in a log.
        raise ConfigError("the address of the API must not hold a user or password: the key is given by itself")
    if parts.query or parts.fragment:
        raise ConfigError("the address of the API must end before ? and #")
    return url.rstrip("/").removesuffix(calls.PREFIX).rstrip("/")


def _check_key(key: str | None) -> str | None:
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            "the API key (DULY_API_KEY) has characters that no key has; copy the key alone, without quotes"
        )
    return key
