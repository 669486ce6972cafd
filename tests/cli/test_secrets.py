"""Secret values are shown nowhere. Jobs with a secret in every possible place go through everything that can happen to
a job; then every output and every column of the store is searched for the secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import typer

from api.test_matrix import calls_of
from duly import Duly
from duly.api.server import create_app
from duly.cli.main import app as commands
from duly.config import Settings
from duly.model import DEFAULT_TENANT, JobRequest, MonitorDefinition, Policy
from duly.node import running_worker
from duly.operations import StoreOperations
from duly.operations.rights import ROLES
from duly.store.opening import open_store
from duly.store.pool import Pool
from harness.commands import Ended
from harness.endpoint import Call, Endpoint
from harness.waiting import eventually

Run = Callable[..., Ended]
#: Part of every secret of these jobs.
MARKER = "kiwi7"
#: Columns that hold the secrets as they were submitted. No other column may contain one.
MONITOR = "backup"
KEPT = {("jobs", "payload"), ("jobs", "target"), ("dead_letters", "payload"), ("dead_letters", "target")}


def secret(place: str) -> str:
    return f"{MARKER}-{place}-0123456789"


@dataclass(frozen=True)
class Life:
    jobs: list[str]
    runs: list[str]
    dead: list[str]


def make_app(settings: Settings) -> Duly:
    app = Duly(settings=settings)

    @app.task(secret_fields=["password", "users.token"])
    async def echo(ctx: Any, password: str, users: list[dict[str, Any]] | None = None, n: int = 0) -> Any:
        ctx.progress(0.5, f"with {password}")
        return {"given": password, "users": users, password: [password]}

    @app.task(secret_fields=["password"], max_retries=1, retry_backoff="immediate")
    def fail(password: str) -> None:
        try:
            raise KeyError(password)
        except KeyError as error:
            raise ValueError(f"no login with {password!r} and {json.dumps({'p': password})}") from error

    return app


async def echoing(call: Call, writer: asyncio.StreamWriter) -> None:
    """Answers with everything that it was sent."""
    said = json.dumps({"path": call.path, "headers": call.headers, "body": call.body.decode()}).encode()
    status = 200 if call.path.startswith("/fine") else 400
    writer.write(f"HTTP/1.1 {status} So\r\ncontent-length: {len(said)}\r\n\r\n".encode() + said)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[tuple[Pool, StoreOperations]]:
    async with open_store(settings) as store:
        yield store.pool, await StoreOperations.open(store.pool, settings)


def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


def requests(app: Duly, endpoint: Endpoint) -> Iterator[JobRequest]:
    """Jobs with a secret in every place that can hold one, whose runs end in every possible way."""
    users = [{"name": "Zoë", "token": secret("list")}, {"token": 77123456}]
    yield app.request("echo", {"password": secret("result"), "users": users})
    # A payload that does not fit the task's parameters.
    yield app.request("fail", {"password": secret("misfit"), "n": secret("n")}, secret_fields=["password", "n"])
    yield app.request("fail", {"password": secret("error")})
    policy = Policy(max_retries=1, retry_backoff="immediate", secret_fields=("card.number", "pin"))
    payload = {"card": {"number": secret("card"), "type": "visa"}, "pin": {"deep": [secret("deep")]}}
    for path in ("/fine", "/bad"):
        target = {
            "type": "http",
            "url": endpoint.url(f"{path}?token={secret('query')}&format=json&{secret('bare')}"),
            "headers": {"Cookie": secret("cookie")},
            "secret_headers": {"X-Key": f"Bearer {secret('header')}"},
        }
        endpoint.on(target["url"].removeprefix(endpoint.url("")), echoing)  # type: ignore[attr-defined]
        yield JobRequest(target, name=path, payload=payload, policy=policy)
    unreachable = f"http://127.0.0.1:{closed_port()}/?token={secret('unreachable')}"
    yield JobRequest({"type": "http", "url": unreachable}, policy=policy)
    for status in (0, 1):
        program = f"cat; echo; echo $TOKEN; echo $TOKEN >&2; exit {status}"
        handler = {"type": "command", "argv": ["sh", "-c", program], "secret_env": {"TOKEN": secret("env")}}
        yield JobRequest(handler, name=f"command {status}", payload=payload, policy=policy)


async def live(settings: Settings) -> Life:
    """Runs the jobs to their end, and changes one more job again and again. Returns the ids of all."""
    app = make_app(settings)
    settings = settings.model_copy(update={"egress_allow": "127.0.0.0/8", "allow_commands": True})
    async with opened(settings) as (pool, store_operations), Endpoint.serving() as endpoint:
        operations = store_operations.for_tenant(DEFAULT_TENANT)
        wanted = list(requests(app, endpoint))
        ids = [str((await operations.submit(one, allow_unknown_handler=True)).job_id) for one in wanted]

        async def all_ended() -> bool:
            rows = await pool.query("select status from duly.history")
            return len(rows) == len(ids)

        async with running_worker(pool, app.tasks, settings):
            await eventually(all_ended, seconds=60)
        changed = app.request("echo", {"password": secret("old")}, schedule="0 0 1 1 *", dedupe_key="yearly")
        job_id = str((await operations.submit(changed)).job_id)
        await operations.jobs.change(
            job_id, {"payload": {"password": secret("new"), "users": {"token": secret("inner")}}}
        )
        await operations.jobs.change(job_id, {"secret_fields": ["password", "users"], "priority": 7})
        await operations.jobs.change(job_id, {"payload": {"user": "x"}, "secret_fields": ["other"]})
        await operations.jobs.change(job_id, {"payload": {"other": secret("other")}})
        await operations.declare(app.request("echo", {"password": secret("d")}, schedule="@daily", dedupe_key="yearly"))
        await operations.jobs.trigger(job_id)
        await operations.jobs.pause(job_id, reason="for now")
        await store_operations.tenants.set("default", max_jobs=1_000)
        await operations.monitors.set(MONITOR, MonitorDefinition("@daily"))
        assert {call.path.partition("?")[0] for call in endpoint.calls} == {"/fine", "/bad"}
        assert secret("card") in endpoint.calls[0].body.decode(), "the endpoint gets the real payload"
        dead = [letter.run_id for letter in (await operations.dead_letters.page()).items]
        assert len(dead) == 5
        ids.append(job_id)
        runs = [run.run_id for one in ids for run in (await operations.runs.page(one)).items]
        return Life(ids, runs, dead)


async def answers_of_the_api(settings: Settings, life: Life) -> AsyncGenerator[tuple[str, httpx.Response]]:
    """The answers of every GET route to each role that may call it."""
    async with opened(settings) as (_, store_operations):
        app = create_app(store_operations)
        calls = [call for call in calls_of(app) if call.method == "GET"]
        assert len(calls) > 10
        for role in ROLES:
            key = await store_operations.keys.create(tenant=None if role == "monitor" else "default", role=role)
            headers = {"Authorization": f"Bearer {key.text}"}
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
                for call in calls:
                    if role not in call.roles:
                        continue
                    runs = life.dead if "dead-letters" in call.path else life.runs
                    pairs = [(job, run) for job in life.jobs for run in runs]
                    if role != "read":  # the same code answers the other roles, so one pair is enough
                        pairs = pairs[-1:]
                    paths = {
                        call.path.replace("{job_id}", job).replace("{run_id}", run).replace("{slug}", MONITOR)
                        for job, run in pairs
                    }
                    if call.path.endswith("/explain"):
                        paths |= {f"{path}?from=2020-01-01T00:00:00Z" for path in paths}
                    for path in paths:
                        yield f"{role} {path}", await client.get(path)


def shows(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from shows(inner, (*path, name))
    if path and path[-1] in ("list", "show", "runs", "explain", "status", "forecast"):
        yield path


def test_a_secret_is_in_no_answer_no_output_no_log_and_no_record(
    settings: Settings, duly: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    life = asyncio.run(live(settings))
    looked_at = 0

    async def ask() -> None:
        nonlocal looked_at
        async with aclosing(answers_of_the_api(settings, life)) as answers:
            async for what, answer in answers:
                assert answer.status_code == 200, (what, answer.text)
                assert MARKER not in answer.text, what
                looked_at += 1

    async def look_through() -> set[tuple[str, str]]:
        """The columns that contain a secret."""
        found = set()
        async with opened(settings) as (pool, _):
            columns = await pool.query(
                "select table_name, column_name from information_schema.columns where table_schema = 'duly'"
            )
            assert len(columns) > 100
            for row in columns:
                table, column = row["table_name"], row["column_name"]
                rows = await pool.query(
                    f"select 1 from duly.{table} where strpos({column}::text, $1) > 0 limit 1", MARKER
                )
                if rows:
                    found.add((str(table), str(column)))
        return found

    asyncio.run(ask())
    assert looked_at > 100
    arguments = {
        ("job", "show"): life.jobs, ("job", "runs"): life.jobs, ("run", "show"): life.runs, ("dead", "show"): life.dead,
        ("explain",): life.jobs, ("tenant", "show"): ["default"], ("monitor", "show"): [MONITOR],
    }  # fmt: skip
    for command in shows(typer.main.get_command(commands)):
        for argument in arguments.get(command, [""]):
            # A JSON document is the one that the API returns, so one is enough.
            last = argument == arguments.get(command, [""])[-1]
            for option in ((), ("--json",)) if last else ((),):
                ended = duly(*command, *([argument] if argument else []), *option)
                assert ended.code == 0, (command, ended.err)
                assert MARKER not in ended.out + ended.err, (command, argument)
    assert MARKER not in caplog.text
    found = asyncio.run(look_through())
    assert {place for place in found if place[0] != "job_status"} == KEPT


def test_what_is_not_secret_is_shown_beside_it(duly: Run) -> None:
    payload = {"password": secret("a"), "user": "zoe", "cards": [{"number": 4711123, "of": "x"}, {"of": "y"}]}
    ended = duly(
        *("submit", "greet", "--name", "n", "--payload", json.dumps(payload), "--secret-field", "password"),
        *("--secret-field", "cards.number", "--secret-field", "not.there", "--schedule", "@yearly", "--json"),
    )
    assert ended.code == 0, ended.err
    job = ended.document
    assert job["secret_fields"] == ["cards.number", "not.there", "password"]
    assert job["payload"] == {
        "password": "***", "user": "zoe", "cards": [{"number": "***", "of": "x"}, {"of": "y"}]
    }  # fmt: skip
    shown = duly("job", "show", "n").out
    assert "secret_fields  cards.number, not.there, password" in " ".join(shown.split()).replace(
        "secret_fields ", "secret_fields  "
    )
    refused = duly("submit", "greet", "--payload", json.dumps(job["payload"]), "--secret-field", "password")
    assert (refused.code, "payload.password" in refused.err) == (2, True)
    refused = duly("submit", "greet", "--secret-field", "a..b")
    assert (refused.code, "secret_fields" in refused.err) == (2, True)
