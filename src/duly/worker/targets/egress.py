"""Decides which addresses HTTP targets may reach. Pure: an address in, the reason for its refusal out.

The submitter of a job chooses its URL, and the worker that calls it stands inside the network. So only addresses of the
open internet are reached, unless `DULY_EGRESS_ALLOW` names them. The decision is always about an address, never about
its spelling in a URL: `127.1`, `2130706433` and a name in DNS all end as 127.0.0.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from duly.errors import ConfigError

SETTING = "DULY_EGRESS_ALLOW"

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Our own list: `is_global` of `ipaddress` changed between releases of Python, includes multicast, and does not know the
# services that clouds put on public addresses.
_REFUSED_IPV4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "an address of the shared space between a provider and its customers"),
        ("127.0.0.0/8", "a loopback address"),
        ("168.63.129.16/32", "the address of a cloud's own services"),
        ("169.254.0.0/16", "a link-local address, where clouds keep their metadata"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "an address reserved for protocols"),
        ("192.0.2.0/24", "an address for documentation"),
        ("192.88.99.0/24", "an address of 6to4 relays"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "an address for benchmarks"),
        ("198.51.100.0/24", "an address for documentation"),
        ("203.0.113.0/24", "an address for documentation"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)
_REFUSED_IPV6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("::/96", "an IPv4-compatible address"),
        ("64:ff9b:1::/48", "an address of a local translator to IPv4"),
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "an address reserved for protocols"),
        ("2001:db8::/32", "an address for documentation"),
        ("3fff::/20", "an address for documentation"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a site-local address"),
        ("ff00::/8", "a multicast address"),
    )
)
# All addresses assigned to hosts on the internet. Others are refused even if no network above names them.
_GLOBAL_IPV6 = IPv6Network("2000::/3")
# Translators: packets to these addresses go on to the IPv4 address in the last 32 bits.
_NAT64 = IPv6Network("64:ff9b::/96")

_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Egress:
    """Networks and hosts that may be reached although they are not on the open internet."""

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Egress:
        """Reads `DULY_EGRESS_ALLOW`: networks, addresses and host names, separated by commas."""
        networks: list[Network] = []
        hosts: set[str] = set()
        for entry in (part.strip() for part in text.split(",")):
            if not entry:
                continue
            try:
                networks.append(ip_network(entry))
            except ValueError as error:
                if (host := _host_name(entry)) is None:
                    raise ConfigError(f"{SETTING}: {_what_is_wrong(entry, error)}") from error
                hosts.add(host)
        return cls(tuple(networks), frozenset(hosts))

    def allows_host(self, host: str) -> bool:
        """Whether the host is allowed by its name, whatever address the name resolves to."""
        return host.lower().rstrip(".") in self.hosts

    def names(self, address: str | Address) -> bool:
        """Whether the address itself is allowed."""
        found = _plain(ip_address(address) if isinstance(address, str) else address)
        return any(found in network for network in self.networks if network.version == found.version)

    def refusal(self, address: str | Address) -> str | None:
        """Describes an address that may not be reached; None if it may be."""
        found = _plain(ip_address(address) if isinstance(address, str) else address)
        if self.names(found):
            return None
        if isinstance(found, IPv4Address):
            return _refusal_of_ipv4(found)
        for embedded in _embedded(found):
            if (kind := self.refusal(embedded)) is not None:
                return f"a way to {embedded}, {kind}"
        return _refusal_of_ipv6(found)


def _refusal_of_ipv4(address: IPv4Address) -> str | None:
    for network, kind in _REFUSED_IPV4:
        if address in network:
            return kind
    # A newer Python may know reserved networks that the list lacks.
    return None if address.is_global else "not an address of the open internet"


def _refusal_of_ipv6(address: IPv6Address) -> str | None:
    for network, kind in _REFUSED_IPV6:
        if address in network:
            return kind
    if address in _NAT64:
        return None
    if address not in _GLOBAL_IPV6:
        return "not an address of the open internet"
    # `ipaddress` does not call 6to4 global; the embedded address has been checked already.
    return None if address.is_global or address.sixtofour is not None else "not an address of the open internet"


def _plain(address: Address) -> Address:
    """Drops a zone, and turns an IPv4-mapped address into the IPv4 address that the system connects to for it."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))


def _embedded(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that packets to this one may end at."""
    found = []
    if address in _NAT64:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    # ISATAP: the interface's half of the address begins with 0000:5efe, save for the two bits that say what it is.
    if (int(address) >> 32) & 0xFCFFFFFF == 0x00005EFE:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return found


def _host_name(entry: str) -> str | None:
    host = entry.lower().rstrip(".")
    # A name whose last part is a number is another spelling of an address, and would allow more than it says.
    if not _HOST.fullmatch(host) or len(host) > 253 or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return None
    return host


def _what_is_wrong(entry: str, error: ValueError) -> str:
    shown = repr(entry[:80])
    if "host bits" in str(error):
        network = ip_network(entry, strict=False)
        return f"{shown} is an address within a network; write {network}, or the address alone"
    return (
        f"{shown} is neither a network (10.0.0.0/8), an address (10.1.2.3, fd00::1) nor the name of a host "
        "(hooks.internal); a port or a wildcard cannot be given"
    )
