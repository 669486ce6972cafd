"""Server addresses in settings: `scheme://user:password@host:port,host:port/path?…`. Parses, checks and shows them.

The standard library knows one host per address; clusters have several. Its errors also quote the part it could not
read, which may be a part of a password. Messages from here repeat a part only if it cannot belong to a password.

`ServerAddress` is for etcd and ZooKeeper, `check_postgres` and `shown_postgres` are for PostgreSQL, and
`without_passwords` cleans a message of any origin.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote

POSTGRES = ("postgresql", "postgres")
#: Shown in place of an address whose password cannot be told from the rest.
UNREADABLE = "***"
# Options of a PostgreSQL address that identify the server. Some of the others are secret.
_SHOWN_OPTIONS = ("host", "port", "user", "dbname", "database")
# Options whose values may contain an @.
_FREE_OPTIONS = (*_SHOWN_OPTIONS, "password", "sslpassword", "options", "application_name", "passfile")
_NAMED = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_ESCAPED = "escape special characters in a user or password: %2F (/), %3F (?), %23 (#), %40 (@), %3A (:)"
# The login of an address, and a password given as an option.
_LOGIN = re.compile(r"(?<=://)[^\n]*@")
_OPTION = re.compile(r"(?i)((?:password|passwd|pwd)\s*=\s*)(?:'[^']*'|[^\s&'\"]+)")


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an address, still escaped. An address is refused if another part could belong to its password."""

    scheme: str
    user: str | None
    password: str | None = field(repr=False)
    hosts: tuple[tuple[str, int | None], ...]
    path: str
    options: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, text: str, *, free: Collection[str] = ()) -> Self:
        """Raises ValueError. `free`: options whose values may contain an @."""
        scheme, colon, rest = text.partition("://")
        scheme = scheme.lower()
        if not colon or not _SCHEME.fullmatch(scheme):
            raise ValueError("it does not begin with a scheme and ://")
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        login, at, hosts = authority.rpartition("@")
        options = _options(query)
        odd = [name for name, value in options.items() if "@" in name or ("@" in value and name not in free)]
        if "#" in text or "@" in login or "@" in path or odd:
            raise ValueError(_ESCAPED)
        user, parted, password = login.partition(":")
        return cls(
            scheme,
            user if at else None,
            password if parted else None,
            tuple(_host_and_port(one.strip()) for one in hosts.split(",")) if hosts else (),
            slash + path if path else "",
            options,
        )


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
        """Raises ValueError with a message for users that quotes no part of the address. `port` is the default port."""
        scheme = text.partition("://")[0]
        try:
            parts = _Parts.of(text)
        except ValueError as error:
            raise ValueError(f"the {scheme} address cannot be read: {error}") from None
        if not parts.hosts or not all(host for host, _ in parts.hosts):
            raise ValueError(f"the {scheme} address names no host: write {scheme}://host:{port}")
        if unknown := sorted(parts.options.keys() - set(options)):
            # No @ follows the question mark, so the name is not a part of a password.
            known = f"it takes {', '.join(sorted(options))}" if options else "it takes none"
            raise ValueError(f"the {scheme} address has an unknown option {unknown[0][:40]!r}: {known}")
        return cls(
            scheme,
            tuple((host, port if number is None else number) for host, number in parts.hosts),
            parts.path,
            None if parts.user is None else unquote(parts.user),
            None if parts.password is None else unquote(parts.password),
            parts.options,
        )

    def host_texts(self) -> list[str]:
        return [_with_port(host, port) for host, port in self.hosts]

    @property
    def shown(self) -> str:
        """For messages and logs: without the password."""
        login = "" if self.user is None else f"{self.user}:***@" if self.password is not None else f"{self.user}@"
        return f"{self.scheme}://{login}{','.join(self.host_texts())}{self.path}"


def check_postgres(text: str) -> None:
    """Raises ValueError with a message for users that quotes no part of the address."""
    parts = _postgres(text)
    if parts.scheme not in POSTGRES:
        raise ValueError("it does not begin with postgresql://")
    if any(not _NAMED.fullmatch(name) for name in parts.options):
        raise ValueError(_ESCAPED)


def shown_postgres(text: str) -> str:
    """The address as user, hosts, ports and database: enough to tell stores apart, without secrets."""
    try:
        check_postgres(text)
    except ValueError:
        return f"postgresql://{UNREADABLE}"
    parts = _postgres(text)
    login = "" if parts.user is None else f"{parts.user}:***@" if parts.password is not None else f"{parts.user}@"
    hosts = ",".join(_with_port(host, port) for host, port in parts.hosts)
    options = "&".join(f"{name}={parts.options[name]}" for name in _SHOWN_OPTIONS if name in parts.options)
    return f"{parts.scheme}://{login}{hosts}{parts.path}" + (f"?{options}" if options else "")


def known_options(text: str) -> list[str]:
    """The names of the address's options that are known to be option names."""
    try:
        names = _postgres(text).options
    except ValueError:
        return []
    return sorted(name for name in names if name in _FREE_OPTIONS or name.startswith(("ssl", "target_")))


def without_passwords(text: str) -> str:
    """`text`, which may quote an address, without logins and passwords."""
    return _OPTION.sub(rf"\1{UNREADABLE}", _LOGIN.sub(f"{UNREADABLE}@", text))


def _postgres(text: str) -> _Parts:
    return _Parts.of(text, free=_FREE_OPTIONS)


def _options(query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise ValueError(_ESCAPED) from None


def _with_port(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def _host_and_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("an IPv6 address is written as [::1] or [::1]:port")
        number = rest[1:]
    else:
        host, _, number = text.partition(":")
    if not number:
        return host, None
    if not (number.isascii() and number.isdigit() and len(number) <= 5 and 0 < int(number) < 65536):
        raise ValueError(f"a port is not a number from 1 to 65535; {_ESCAPED}")
    return host, int(number)
