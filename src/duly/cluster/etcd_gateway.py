"""The few etcd calls that Duly needs, through etcd's JSON gateway (3.4 and newer): keys and values are base64."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx

from duly.addresses import ServerAddress
from duly.cluster.registry import MIN_ENTRY_SECONDS
from duly.errors import ConfigError, CoordinatorUnavailable

# A watch that is silent for this long is opened again: a connection that died silently looks the same.
QUIET_SECONDS = 30.0
# gRPC's codes for requests that every other endpoint refuses as well: without a login, or for this user.
INVALID, DENIED, UNAUTHENTICATED = 3, 7, 16


class EtcdRefused(Exception):
    """An error that etcd answered."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class EtcdGateway:
    """Sends calls to one endpoint as long as it answers, then to the next."""

    def __init__(self, address: ServerAddress, *, patience: float) -> None:
        """`patience`: seconds within which one of the endpoints must have answered."""
        self._address = address
        self._patience = patience
        secure = address.scheme == "etcds"
        self._endpoints = deque(f"{'https' if secure else 'http'}://{host}/v3" for host in address.host_texts())
        # The environment is ignored: a web proxy does not lead to etcd.
        verify: ssl.SSLContext | bool = _tls(address) if secure else True
        self._client = httpx.AsyncClient(timeout=patience, verify=verify, trust_env=False)
        self._token: str | None = None

    async def close(self) -> None:
        await self._client.aclose()

    async def grant(self, seconds: int) -> tuple[str, float]:
        """Makes a lease. Returns its id and the seconds that etcd actually grants."""
        answer = await self._call("/lease/grant", {"TTL": str(seconds)}, patience=self._unhurried)
        return str(answer["ID"]), float(answer["TTL"])

    async def keep_alive(self, lease_id: str) -> bool:
        """Renews a lease. Returns False if it has expired."""
        answer = await self._call("/lease/keepalive", {"ID": lease_id})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def revoke(self, lease_id: str) -> None:
        """Ends a lease at once, and its keys with it."""
        await self._call("/lease/revoke", {"ID": lease_id})

    async def put(self, key: str, value: str, *, lease_id: str) -> None:
        await self._call(
            "/kv/put", {"key": _text(key), "value": _text(value), "lease": lease_id}, patience=self._unhurried
        )

    async def keys(self, prefix: str) -> list[str]:
        answer = await self._call("/kv/range", {**_range(prefix), "keys_only": True})
        return [b64decode(one["key"]).decode(errors="replace") for one in answer.get("kvs", ())]

    async def watch(self, prefix: str, changed: Callable[[], None]) -> None:
        """Calls `changed` at the beginning and for every change, until the connection ends."""
        timeout = httpx.Timeout(self._patience, read=QUIET_SECONDS)
        body = {"create_request": _range(prefix)}
        endpoint = self._endpoints[0]
        try:
            async with self._client.stream(
                "POST", f"{endpoint}/watch", json=body, headers=await self._headers(), timeout=timeout
            ) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise _refusal(response)
                async for line in response.aiter_lines():
                    result = json.loads(line).get("result", {}) if line.strip() else {}
                    if result.get("canceled"):
                        return
                    if result.get("created") or result.get("events"):
                        changed()
        except httpx.ReadTimeout:
            return
        except EtcdRefused as error:
            raise self._away(str(error)) from error
        except (httpx.HTTPError, httpx.StreamError, ValueError) as error:
            raise self._away(_words(error)) from error

    @property
    def _unhurried(self) -> float:
        """A longer timeout for a node that enters: it holds no lease that could run out meanwhile."""
        return max(self._patience, MIN_ENTRY_SECONDS)

    async def _call(self, path: str, body: dict[str, Any], *, patience: float | None = None) -> dict[str, Any]:
        """Sends a call, again if necessary. That is always safe: of a lease granted twice, the first one expires.

        Each endpoint is asked at most twice while there is time: one that refuses at once takes none from the others.
        """
        patience = self._patience if patience is None else patience
        deadline = time.monotonic() + patience
        share = patience / (len(self._endpoints) + 1)
        troubles: dict[str, str] = {}
        for _ in range(2 * len(self._endpoints)):
            if time.monotonic() >= deadline:
                break
            try:
                return await self._ask(path, body, share)
            except EtcdRefused as error:
                # A token expires, and an etcd that was restarted has forgotten it.
                renewed = error.code == UNAUTHENTICATED and self._token is not None
                self._token, troubles[self._endpoints[0]] = None, str(error)
                if error.code in (INVALID, DENIED, UNAUTHENTICATED) and not renewed:
                    raise ConfigError(f"etcd at {self._address.shown} refused {path}: {error}") from error
            except (httpx.HTTPError, ValueError) as error:
                troubles[self._endpoints[0]] = _words(error)
                self._endpoints.rotate(-1)
        raise self._away("; ".join(dict.fromkeys(troubles.values())))

    async def _ask(self, path: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        url = self._endpoints[0] + path
        # httpx limits each step of a request; this limits all steps together.
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.post(url, json=body, headers=await self._headers(), timeout=seconds)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no answer in {seconds:.2g} s") from error
        if response.status_code == httpx.codes.OK:
            return dict(json.loads(response.text))
        refusal = _refusal(response)
        if response.status_code >= 500:
            # No leader, or a timeout inside the cluster: another endpoint may succeed.
            raise httpx.RemoteProtocolError(str(refusal))
        raise refusal

    async def _headers(self) -> dict[str, str]:
        if self._address.user is None:
            return {}
        if self._token is None:
            login = {"name": self._address.user, "password": self._address.password or ""}
            response = await self._client.post(f"{self._endpoints[0]}/auth/authenticate", json=login)
            if response.status_code >= 500:
                raise httpx.RemoteProtocolError(str(_refusal(response)))
            if response.status_code != httpx.codes.OK:
                raise ConfigError(f"etcd at {self._address.shown} refused the login: {_refusal(response)}")
            self._token = str(response.json()["token"])
        return {"Authorization": self._token}

    def _away(self, detail: str) -> CoordinatorUnavailable:
        return CoordinatorUnavailable(f"etcd at {self._address.shown} cannot be reached: {detail}")


def _refusal(response: httpx.Response) -> EtcdRefused:
    try:
        answer = json.loads(response.text)
        return EtcdRefused(int(answer.get("code", 0)), str(answer.get("message") or answer.get("error")))
    except (ValueError, AttributeError, TypeError):
        return EtcdRefused(0, f"HTTP {response.status_code}, not like etcd 3.4 or newer")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _text(value: str) -> str:
    return b64encode(value.encode()).decode()


def _range(prefix: str) -> dict[str, str]:
    """The range of all keys that begin with `prefix`: up to the first key that does not."""
    return {"key": _text(prefix), "range_end": _text(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def _tls(address: ServerAddress) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.options.get("ca"))
        if "cert" in address.options:
            context.load_cert_chain(address.options["cert"], address.options.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"DULY_COORDINATOR: the certificate files for etcd cannot be used: {error}") from error
    return context
