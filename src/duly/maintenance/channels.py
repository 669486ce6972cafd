"""The channels on which incidents are sent: a signed webhook, Slack, Alertmanager, e-mail.

A channel sends one group at a time and blocks; the teller calls it in a thread. It raises `Undelivered`, whose message
repeats nothing of the address, which may be secret. A receiver may get the same group again, with the same id.
"""

from __future__ import annotations

import http.client
import json
import smtplib
import ssl
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from duly.addresses import ServerAddress
from duly.errors import DulyError
from duly.formats import time_text
from duly.model.incident import Incident
from duly.signing import sign, tenant_secret
from duly.store.incidents import Group
from duly.version import VERSION

#: Of one operation on a connection. The teller bounds the whole.
SECONDS = 10.0
#: Members of a group that a message names.
SHOWN = 10
#: An Alertmanager takes an incident for over if it has not heard of it for this long.
FORGOTTEN = timedelta(minutes=15)


class Undelivered(DulyError):
    """A channel did not take a message."""


class Channel(ABC):
    """`shown`: members of a group that a message can have. `repeats`: it wants open incidents again and again."""

    name: str
    shown = SHOWN
    repeats = False

    @abstractmethod
    def send(self, group: Group, now: datetime) -> None:
        """Sends one message."""

    def repeat(self, incidents: Sequence[Incident], now: datetime) -> None:
        """Says again that these are open."""
        raise NotImplementedError


class Webhook(Channel):
    """JSON, signed by the Standard Webhooks scheme with the tenant's secret."""

    name = "webhook"

    def __init__(self, url: str, secrets: Sequence[bytes]) -> None:
        self._url = url
        self._secrets = secrets

    def send(self, group: Group, now: datetime) -> None:
        first = group.members[0]
        body = json.dumps(
            {
                "type": f"incident.{'closed' if group.closing else 'opened'}",
                "timestamp": time_text(group.at),
                "data": {
                    "tenant": first.tenant,
                    "kind": first.kind,
                    "cause": first.cause,
                    "count": group.size,
                    "message": headline(group),
                    "incidents": [_document(one) for one in group.members],
                },
            }
        ).encode()
        secrets = [tenant_secret(secret, first.tenant) for secret in self._secrets]
        signed = sign(secrets, message_id=str(group.group_id), timestamp=int(now.timestamp()), body=body)
        post(self._url, body, signed)


class Slack(Channel):
    """The JSON of an incoming webhook of Slack; Mattermost and others take it too."""

    name = "slack"

    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, group: Group, now: datetime) -> None:
        text = "\n".join([f"*{_escaped(headline(group))}*", *(f"• {_escaped(line)}" for line in lines(group))])
        post(self._url, json.dumps({"text": text}).encode(), {})


class Alertmanager(Channel):
    """Each incident as an alert of a Prometheus Alertmanager, which groups and routes them."""

    name = "alertmanager"
    shown = 20_000
    repeats = True

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/api/v2/alerts"

    def send(self, group: Group, now: datetime) -> None:
        self._post(group.members, now)

    def repeat(self, incidents: Sequence[Incident], now: datetime) -> None:
        self._post(incidents, now)

    def _post(self, incidents: Sequence[Incident], now: datetime) -> None:
        alerts = [
            {
                "labels": _labels(one),
                "annotations": {"summary": f"{one.name}: {one.message}", "incident_id": str(one.incident_id)},
                "startsAt": time_text(one.opened_at),
                "endsAt": time_text(now + FORGOTTEN if one.closed_at is None else one.closed_at),
            }
            for one in incidents
        ]
        post(self._url, json.dumps(alerts).encode(), {})


class Email(Channel):
    """A message of plain text. Its Message-ID is the same when it is sent again."""

    name = "email"

    def __init__(self, url: str, *, sender: str, to: Sequence[str]) -> None:
        self._address = ServerAddress.parse(url, port=465 if url.startswith("smtps") else 587)
        self._sender = sender
        self._to = to

    def send(self, group: Group, now: datetime) -> None:
        message = EmailMessage()
        message["Subject"] = f"[Duly] {headline(group)}"
        message["From"] = self._sender
        message["To"] = ", ".join(self._to)
        message["Date"] = format_datetime(now)
        message["Message-ID"] = f"<{group.group_id}@duly>"
        message.set_content("\n".join([headline(group), "", *lines(group), "", "All of them: duly incident list"]))
        try:
            with self._connected() as server:
                server.send_message(message)
        except (smtplib.SMTPException, OSError) as error:
            raise Undelivered(_mail_error(error)) from None

    def _connected(self) -> smtplib.SMTP:
        address = self._address
        [(host, port), *_] = address.hosts
        context = ssl.create_default_context()
        if address.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=SECONDS, context=context)
        else:
            server = smtplib.SMTP(host, port, timeout=SECONDS)
        try:
            server.ehlo()
            if address.scheme == "smtp" and server.has_extn("starttls"):
                server.starttls(context=context)
                server.ehlo()
            elif address.scheme == "smtp" and address.password is not None:
                raise Undelivered("the mail server has no STARTTLS, and a password is not sent in the clear")
            if address.user is not None:
                server.login(address.user, address.password or "")
        except BaseException:
            server.close()
            raise
        return server


def headline(group: Group) -> str:
    """The message in one line: what, how many, where."""
    first = group.members[0]
    where = "" if first.tenant == "default" else f" (tenant {first.tenant})"
    kind = first.kind.replace("_", " ")
    if group.size == 1:
        what = f"over: {first.closed_why}" if group.closing else first.message
        return f"{kind}: {first.name}{where}: {what}"
    state = "over" if group.closing else "open"
    return f"{kind}: {group.size} jobs or monitors{where}, {state}: {first.cause}"


def lines(group: Group) -> list[str]:
    """The first members, a line each."""
    shown = [
        f"{one.name} ({one.job_id or one.monitor}): {one.closed_why if group.closing else one.message}"
        for one in group.members
    ]
    more = group.size - len(shown)
    return [*shown, f"and {more} more"] if more > 0 else shown


def post(url: str, body: bytes, headers: Mapping[str, str]) -> None:
    """POSTs JSON. Follows no redirect."""
    request = urllib.request.Request(  # noqa: S310 - the settings take http and https alone
        url,
        data=body,
        headers={"Content-Type": "application/json", "User-Agent": f"duly/{VERSION}", **headers},
        method="POST",
    )
    try:
        with _opener.open(request, timeout=SECONDS) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        raise Undelivered(f"it answered {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        why = getattr(cause, "strerror", None) or "the connection broke"
        raise Undelivered(f"{type(cause).__name__}: {why}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """An address that moved is to be set anew: the answer counts as an error."""


_opener = urllib.request.build_opener(_NoRedirect)


def _document(one: Incident) -> dict[str, Any]:
    return {
        "incident_id": str(one.incident_id),
        "job_id": None if one.job_id is None else str(one.job_id),
        "monitor": one.monitor,
        "name": one.name,
        "kind": one.kind,
        "message": one.message,
        "scheduled_at": time_text(one.scheduled_at),
        "opened_at": time_text(one.opened_at),
        "closed_at": time_text(one.closed_at),
        "closed_why": one.closed_why,
    }


def _labels(one: Incident) -> dict[str, str]:
    subject = {"monitor": one.monitor} if one.job_id is None else {"job_id": str(one.job_id)}
    labels = {"alertname": "DulyIncident", "kind": one.kind, "tenant": one.tenant, "job_name": one.name, **subject}
    return {name: str(value) for name, value in labels.items()} | {"cause": one.cause}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mail_error(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        return f"it answered {error.smtp_code}"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "it refused every recipient"
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'the connection broke'}"
