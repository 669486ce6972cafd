"""Connections to HTTP targets: an address is checked, and the connection goes to that very address."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore

from duly.worker.targets.egress import SETTING, Egress

# Addresses of a name that are tried: each one gets a share of the connect timeout.
_MAX_ADDRESSES = 8


class EgressRefused(Exception):
    """The target resolves to an address that this worker may not reach."""


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves a host once, checks the addresses, and connects to the checked ones.

    A name that is resolved for the check and again for the connection can lead to two places (DNS rebinding). Every
    connection is made here, so redirects are checked as well.
    """

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        deadline = None if timeout is None else time.monotonic() + timeout
        addresses = self._reachable(host, await _resolve(host, port, timeout))
        errors: list[Exception] = []
        for index, address in enumerate(addresses):
            share = None
            if deadline is not None:
                # One dead address must not use up the time of those after it.
                share = max(0.01, deadline - time.monotonic()) / (len(addresses) - index)
            try:
                stream = await self._network.connect_tcp(
                    address, port, timeout=share, local_address=local_address, socket_options=socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                errors.append(error)
            else:
                return _ClosedWhenCancelled(stream)
        raise errors[0]

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise EgressRefused("HTTP targets are not called through unix sockets")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _reachable(self, host: str, addresses: list[str]) -> list[str]:
        """The addresses that may be reached. Raises `EgressRefused` if there is none.

        A name is not refused because one of its addresses may not be reached: nothing is sent to that address, and
        names that mean one thing inside a network and another outside have such addresses rightly.
        """
        if self._egress.allows_host(host):
            return addresses[:_MAX_ADDRESSES]
        refusals = [(address, self._refusal(address)) for address in addresses]
        if reachable := [address for address, refusal in refusals if refusal is None]:
            return reachable[:_MAX_ADDRESSES]
        address, refusal = refusals[0]
        leads = f"{host} leads to {address}" if host != address else address
        raise EgressRefused(
            f"{leads}, {refusal}: HTTP targets may not reach it; the setting {SETTING} of the worker can allow it"
        )

    def _refusal(self, address: str) -> str | None:
        refusal = self._egress.refusal(address)
        if refusal is None and not self._egress.names(address) and is_own(address):
            # Public, and yet inside: services that listen there for neighbours stand behind the outer firewall.
            return "an address of the worker's own machine"
        return refusal


def is_own(address: str) -> bool:
    """Whether packets to this address stay on this machine: then they come from that very address. Sends nothing.

    Checked before connecting, so that an open port and a closed one look the same to the job.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == probe.getpeername()[0])
    except OSError:  # no route: connecting reports it
        return False


async def _resolve(host: str, port: int, timeout: float | None) -> list[str]:
    """The addresses that the system would connect to for this host, in whatever spelling."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(f"the name {host} was not resolved in time") from error
    except OSError as error:
        raise httpcore.ConnectError(f"the name {host} cannot be resolved: {error.strerror or error}") from error
    except ValueError as error:  # a part of more than 63 characters, for example
        raise EgressRefused(f"{host[:100]!r} cannot be the name of a host: {error}") from error
    addresses = [str(sockaddr[0]) for family, _, _, _, sockaddr in answers if family in _FAMILIES]
    if not addresses:
        raise httpcore.ConnectError(f"the name {host} has no address")
    return list(dict.fromkeys(addresses))


_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class _ClosedWhenCancelled(httpcore.AsyncNetworkStream):
    """A connection that is closed when its TLS handshake is cancelled; httpcore's own is closed by errors only."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
