"""Addresses of other people's servers, as settings spell them: `scheme://user:password@host:port,host:port/path?…`.

The standard library knows one host per address; clusters have several.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote


@dataclass(frozen=True, slots=True)
class ServerAddress:
    scheme: str
    hosts: tuple[tuple[str, int], ...]
    path: str = ""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, *, port: int, options: Collection[str] = ()) -> ServerAddress:
        """Raises ValueError with words for a user; they never repeat the password. `port`: where none is given."""
        scheme, _, rest = text.partition("://")
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        login, at, hosts = authority.rpartition("@")
        user, colon, password = login.partition(":")
        given = dict(parse_qsl(query, keep_blank_values=True))
        if unknown := sorted(given.keys() - set(options)):
            known = f"it takes {', '.join(sorted(options))}" if options else "it takes none"
            raise ValueError(f"the {scheme} address has an unknown option {unknown[0]!r}: {known}")
        return cls(
            scheme,
            tuple(_host_and_port(one.strip(), scheme, port) for one in hosts.split(",")),
            slash + path if path else "",
            unquote(user) if at else None,
            unquote(password) if colon else None,
            given,
        )

    def host_texts(self) -> list[str]:
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts]

    @property
    def shown(self) -> str:
        """For messages and logs: without the password."""
        login = "" if self.user is None else f"{self.user}:***@" if self.password is not None else f"{self.user}@"
        return f"{self.scheme}://{login}{','.join(self.host_texts())}{self.path}"


def _host_and_port(text: str, scheme: str, default: int) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"the {scheme} address has a host that cannot be read: write IPv6 as [::1]:{default}")
        number = rest[1:]
    else:
        host, _, number = text.partition(":")
    if not host:
        raise ValueError(f"the {scheme} address names no host: write {scheme}://host:{default}")
    if not number:
        return host, default
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
        raise ValueError(f"the {scheme} address has a port that is none: {number[:20]!r}")
    return host, int(number)
