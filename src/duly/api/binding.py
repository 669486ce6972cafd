"""The address on which the API listens. No web framework here: `duly up` holds the socket and a child serves on it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket

from duly.errors import ConfigError

LISTEN_QUEUE = 2048


def is_loopback_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def address_of(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


async def bind_first_free(host: str, port: int, *, tries: int) -> socket.socket:
    """Listen on the port, or on one of the next ports if it is taken. Raises `ConfigError` if that is not possible."""
    family, address, _ = await find_address(host, port)
    for candidate in range(port, min(port + tries, 65536)):
        try:
            return bind(family, address, candidate)
        except PortTaken:
            continue
    return bind(family, address, port)


class PortTaken(ConfigError):
    """Another program listens on the port."""


def bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    # The protocol is named: without it asyncio leaves Nagle's algorithm on in the connections it accepts, and then each
    # answer on a connection that is kept waits 40 ms for the caller's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        # Listens at once: two programs may bind a port under SO_REUSEADDR, but only one can listen on it.
        listener.listen(LISTEN_QUEUE)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        listener.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} on {address} is taken by another program: choose another, or 0 for any free one"
            ) from error
        raise ConfigError(f"cannot listen on {address} port {port}: {error}") from error
    return listener


async def find_address(host: str, port: int) -> tuple[socket.AddressFamily, str, bool]:
    """The address to bind, and whether it is loopback. A name is loopback only if all of its addresses are."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"port must be 0 to 65535, not {port}")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} cannot be resolved: {error}") from error
    addresses = sorted({(family, str(address[0])) for family, _, _, _, address in found})
    if not addresses:
        raise ConfigError(f"host {host!r} cannot be resolved: it stands for no address")
    # AF_INET sorts first: 127.0.0.1 is what people type.
    family, address = addresses[0]
    return socket.AddressFamily(family), address, all(is_loopback_address(one) for _, one in addresses)
