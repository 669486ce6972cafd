"""Incidents are sent on every channel: a webhook receiver, Slack's form, a real Alertmanager, a real mail server."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler
from aiosmtpd.smtp import AuthResult

from duly.config import Settings, load_settings
from duly.errors import ConfigError
from duly.maintenance.teller import Teller
from duly.signing import parse_secrets, sign, tenant_secret
from duly.store import incidents
from duly.store.incidents import Closing, Opening
from duly.store.pool import Pool
from harness.endpoint import Call, Endpoint, reply
from harness.servers import free_port
from harness.waiting import eventually

SECRET = "whsec_" + "A" * 44


def opening(number: int = 0, *, cause: str = "late: queue default", tenant: str = "default") -> Opening:
    return Opening(tenant, f"job {number:03}", "late", "waits", cause, job_id=UUID(int=number + 1))


def telling(pool: Pool, settings: Settings, **more: str) -> Teller:
    teller = Teller(pool, settings.changed(webhook_secret=SECRET, incident_gather_seconds=0, **more))
    teller.lead(True)
    return teller


async def close_all(pool: Pool) -> None:
    still = await incidents.open_of_jobs(pool, None, limit=1000)
    await incidents.close_many(pool, [Closing(one.incident_id, "it has started") for one in still])


async def untold(pool: Pool) -> int:
    return len(await pool.query("select from duly.incidents where not told"))


def document(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.body)
    return found


async def test_five_hundred_with_one_cause_are_one_message_that_is_signed(pool: Pool, settings: Settings) -> None:
    async with Endpoint.serving() as endpoint:
        teller = telling(pool, settings, incident_webhook_url=endpoint.on("/hook", reply(204)))
        await incidents.open_many(pool, [opening(number) for number in range(500)])
        await teller.run_once()
        await teller.run_once()
        [call] = endpoint.calls
        sent = document(call)
        assert sent["type"] == "incident.opened"
        assert (sent["data"]["count"], len(sent["data"]["incidents"])) == (500, 10)
        assert sent["data"]["message"] == "late: 500 jobs or monitors, open: late: queue default"
        secret = tenant_secret(parse_secrets(SECRET)[0], "default")
        stamp = int(call.headers["webhook-timestamp"])
        expected = sign([secret], message_id=call.headers["webhook-id"], timestamp=stamp, body=call.body)
        assert call.headers["webhook-signature"] == expected["webhook-signature"]
        await close_all(pool)
        await teller.run_once()
        [_, call] = endpoint.calls
        assert (document(call)["type"], document(call)["data"]["count"]) == ("incident.closed", 500)
        assert await untold(pool) == 0
        await teller.run_once()
        assert len(endpoint.calls) == 2


async def test_another_cause_and_another_tenant_are_other_messages(pool: Pool, settings: Settings) -> None:
    async with Endpoint.serving() as endpoint:
        teller = telling(pool, settings, incident_slack_url=endpoint.on("/slack", reply(200, "ok")))
        openings = [opening(1), opening(2, cause="late: <not> fired"), opening(3, tenant="acme")]
        await incidents.open_many(pool, openings)
        await teller.run_once()
        texts = sorted(document(call)["text"] for call in endpoint.calls)
        assert [text.splitlines()[0] for text in texts] == [
            "*late: job 001: waits*",
            "*late: job 002: waits*",
            "*late: job 003 (tenant acme): waits*",
        ]


async def test_a_group_keeps_its_id_when_it_is_sent_again(pool: Pool, settings: Settings) -> None:
    """The leader dies after the receiver has taken the message and before that is noted."""
    async with Endpoint.serving() as endpoint:
        url = endpoint.on("/hook", reply(200))
        await incidents.open_many(pool, [opening(1), opening(2)])
        await telling(pool, settings, incident_webhook_url=url).run_once()
        await pool.query("update duly.incidents set opening_sent = '{}'")
        await incidents.open_many(pool, [opening(3)])  # a newcomer does not join the group
        await telling(pool, settings, incident_webhook_url=url).run_once()
        first, again, other = endpoint.calls
        assert first.headers["webhook-id"] == again.headers["webhook-id"] != other.headers["webhook-id"]
        assert (first.body, document(other)["data"]["count"]) == (again.body, 1)


async def test_they_gather_before_they_are_sent(pool: Pool, settings: Settings) -> None:
    async with Endpoint.serving() as endpoint:
        url = endpoint.on("/slack", reply(200))
        teller = Teller(pool, settings.changed(incident_slack_url=url, incident_gather_seconds=300))
        teller.lead(True)
        await incidents.open_many(pool, [opening(1)])
        await teller.run_once()
        assert endpoint.calls == []


async def test_a_channel_that_fails_is_tried_again_and_does_not_hold_up_another(
    pool: Pool, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with Endpoint.serving() as endpoint:
        secret = endpoint.on("/T0/very-secret", reply(500), reply(307, location="/elsewhere"), reply(200))
        hook = endpoint.on("/hook", reply(200))
        await incidents.open_many(pool, [opening(1)])
        teller = telling(pool, settings, incident_slack_url=secret, incident_webhook_url=hook)
        await teller.run_once()
        assert len(endpoint.to("/hook")) == 1
        await teller.run_once()  # too early for another try
        assert len(endpoint.to("/T0/very-secret")) == 1
        for _ in range(2):
            teller._states["slack"].retry_at = 0
            await teller.run_once()
        assert [len(endpoint.to(path)) for path in ("/hook", "/T0/very-secret", "/elsewhere")] == [1, 3, 0]
        await close_all(pool)
        await teller.run_once()
        assert await untold(pool) == 0
        assert "it answered 500" in caplog.text
        assert "very-secret" not in caplog.text


async def test_nothing_of_long_ago_is_sent(pool: Pool, settings: Settings) -> None:
    async with Endpoint.serving() as endpoint:
        teller = telling(pool, settings, incident_slack_url=endpoint.on("/slack", reply(200)))
        await incidents.open_many(pool, [opening(1), opening(2)])
        await pool.query("update duly.incidents set opened_at = opened_at - interval '2 days'")
        await pool.query("update duly.incidents set closed_at = opened_at where name = 'job 001'")
        await teller.run_once()
        await close_all(pool)
        await teller.run_once()
        assert endpoint.calls == []


@pytest.mark.skipif(shutil.which("prometheus-alertmanager") is None, reason="needs Alertmanager")
async def test_a_real_alertmanager_has_it_while_it_is_open(pool: Pool, settings: Settings, tmp_path: Path) -> None:
    with alertmanager(tmp_path) as url:
        teller = telling(pool, settings, incident_alertmanager_url=url)
        await incidents.open_many(pool, [opening(number) for number in range(3)])

        async def names() -> list[str]:
            return sorted(one["labels"]["job_name"] for one in await asked(f"{url}/api/v2/alerts?active=true"))

        await eventually(lambda: asked(f"{url}/-/ready"))
        await teller.run_once()
        assert await names() == ["job 000", "job 001", "job 002"]
        [one, *_] = await asked(f"{url}/api/v2/alerts")
        assert one["labels"]["alertname"] == "DulyIncident"
        await close_all(pool)
        await teller.run_once()
        await eventually(names_are(names, []))
        assert await untold(pool) == 0


class _Mailbox(MessageHandler):
    def __init__(self) -> None:
        super().__init__()
        self.mails: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.mails.append(message)


async def test_a_real_mail_server_gets_it_with_a_login(pool: Pool, settings: Settings) -> None:
    mailbox = _Mailbox()
    with mail_server(mailbox) as (port, logins):
        # The certificate of the tests is not one that this machine trusts, so the plain server is used here.
        plain = telling(
            pool, settings, smtp_url=f"smtp://127.0.0.1:{port}", incident_email="a@example.org, b@example.org"
        )
        await incidents.open_many(pool, [opening(number) for number in range(12)])
        await plain.run_once()
        [mail] = mailbox.mails
        assert mail["subject"] == "[Duly] late: 12 jobs or monitors, open: late: queue default"
        assert mail["to"] == "a@example.org, b@example.org"
        assert "and 2 more" in mail.get_payload()
        # A password is not sent in the clear.
        login = telling(pool, settings, smtp_url=f"smtp://me:secret@127.0.0.1:{port}", incident_email="a@example.org")
        await close_all(pool)
        await login.run_once()
        assert (len(mailbox.mails), logins) == (1, [])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("incident_webhook_url", "ftp://example.org"),
        ("incident_slack_url", "https://user:hunter2@example.org/"),
        ("smtp_url", "http://hunter2"),
        ("incident_email", "not an address"),
        ("incident_email", "a@example.org"),
    ],
)
def test_a_wrong_setting_is_refused_without_repeating_it(setting: str, value: str, settings: Settings) -> None:
    with pytest.raises(ConfigError, match=setting) as refused:
        load_settings(**{setting: value})
    assert "hunter2" not in str(refused.value)


def names_are(names: Any, expected: list[str]) -> Any:
    async def are() -> bool:
        return bool(await names() == expected)

    return are


async def asked(url: str) -> Any:
    def ask() -> Any:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                body = answer.read()
        except OSError:
            return None
        return json.loads(body) if body.startswith(b"[") else body

    return await asyncio.to_thread(ask)


@contextmanager
def alertmanager(folder: Path) -> Iterator[str]:
    """A real Alertmanager that routes to nobody."""
    port = free_port()
    config = folder / "alertmanager.yml"
    config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    process = subprocess.Popen(
        [
            "prometheus-alertmanager", f"--config.file={config}", f"--storage.path={folder / uuid4().hex}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def mail_server(mailbox: _Mailbox) -> Iterator[tuple[int, list[bytes]]]:
    logins: list[bytes] = []

    def log_in(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        logins.append(data.password)
        return AuthResult(success=True)

    controller = Controller(mailbox, hostname="127.0.0.1", port=free_port(), authenticator=log_in)
    controller.start()
    try:
        yield controller.port, logins
    finally:
        controller.stop()
