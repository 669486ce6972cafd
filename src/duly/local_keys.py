"""The local key: how an API knows the user who started it, where an address would prove nothing.

Behind a proxy everybody comes from loopback, and other accounts of a machine do anyway. So a server makes a secret in a
file that only its user can read, and whoever shows it has read that file. The store never sees it. Deleting the file
revokes it; the next start makes another, unless the store has keys by then.

The file appears whole or not at all (made beside its place, then linked to it), so that servers that start at once
agree on one. It counts only as a plain file of this user's own that nobody else can read: a link to another file, or
another user's, is refused, and a key that others could read is replaced.

Clients find it by the address of the server. A server notes under `serving` which file its callers need, and holds a
lock on that note, which the kernel drops however it ends. So no client sends the key to a port that somebody else has
taken over, nor to any host but this one.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from duly.errors import ConfigError
from duly.homes import user_home

log = logging.getLogger("duly.api")

PREFIX = "duly_local_"
# 256 bits, in letters that need no quotes in a link, a header or a shell.
_SECRET_BYTES = 32
_KEY = re.compile(rf"{PREFIX}[0-9a-f]{{{2 * _SECRET_BYTES}}}", re.ASCII)
# How long a server goes on with what it read of the file.
_BELIEVED_SECONDS = 1.0
_LONGEST_FILE = 8192
_WAIT_SECONDS = 5.0


class Exposed(ConfigError):
    """Others than its owner may have read the file."""


def key_file(home: Path, store_id: object = None) -> Path:
    """Where the key is: of the embedded store in `home`, or of another by its id."""
    return home / "api.key" if store_id is None else home / "keys" / f"{store_id}.key"


def read_key(path: Path) -> str | None:
    """The key, or None if there is no such file. Raises `ConfigError` for one that proves nothing."""
    text = _read(path)
    if text is None:
        return None
    if _KEY.fullmatch(key := text.removesuffix("\n")) is None:
        raise ConfigError(f"{path} does not hold a local key; delete it, and the next start makes another")
    return key


def obtain_key(path: Path) -> str:
    """The key in that file, which is made if there is none. Any number of processes may ask at once."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            try:
                if (found := read_key(path)) is not None:
                    return found
            except Exposed as error:
                log.warning("%s; it is replaced, and links with the old one no longer work", error)
                path.unlink(missing_ok=True)
            _make(path)
    except OSError as error:
        raise ConfigError(
            f"the local key of the API cannot be kept in {path}: {error.strerror}; set DULY_HOME to a folder of yours, "
            "or make a key in the store: duly key create"
        ) from error


def _make(path: Path) -> None:
    """Unless another process was faster."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask takes away
            file.write(f"{PREFIX}{secrets.token_hex(_SECRET_BYTES)}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> str | None:
    """A private file of this user's. None if there is none."""
    try:
        # Not blocking: what lies there may be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"{path} cannot be used as a local key: {why}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path} cannot be used as a local key: it is not a file")
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"{path} belongs to another user (uid {found.st_uid}), who knows what is in it: run this as that user, "
                "or delete the file"
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise Exposed(f"{path} could be read by others (mode {stat.S_IMODE(found.st_mode):o})")
        return os.read(descriptor, _LONGEST_FILE).decode("ascii", "replace")
    finally:
        os.close(descriptor)


class LocalKey:
    """What a server knows of its key. A file that was deleted or replaced counts within a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key: str | None = None
        self._look_again_at = 0.0
        self._told = ""

    def opens(self, given: str) -> bool:
        """Whether this is the key. Costs a comparison, and a small file a second."""
        if not given.startswith(PREFIX):
            return False
        if time.monotonic() >= self._look_again_at:
            self._look()
        return self._key is not None and hmac.compare_digest(given.encode(), self._key.encode())

    def _look(self) -> None:
        self._look_again_at = time.monotonic() + _BELIEVED_SECONDS
        try:
            self._key = read_key(self.path)
        except ConfigError as error:
            self._key = None
            if str(error) != self._told:
                log.warning("the local key is not accepted any more: %s", error)
            self._told = str(error)


# Which file the callers of an address need


@contextmanager
def announced(address: str, path: Path | None) -> Iterator[None]:
    """While this lasts, clients of this user find the key for `address`, on which the caller listens."""
    place = _place_of(address)
    if path is None or place is None:
        yield
        return
    try:
        descriptor = _note(place, path)
    except (OSError, ConfigError) as error:
        log.warning("clients on this machine need DULY_API_KEY: the local key cannot be announced (%s)", error)
        yield
        return
    try:
        yield
    finally:
        # Nobody else writes to it while the lock is held.
        place.unlink(missing_ok=True)
        os.close(descriptor)


def key_for(url: str) -> tuple[str, str] | None:
    """The key for an API of this user's on this machine, and the address to send it to; None for all others."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or 80
        places = _places(host, port) if parts.scheme == "http" else {}
    except (ValueError, ConfigError):
        return None
    for address, place in places.items():
        if (path := _noted(place)) is not None and (key := read_key(path)) is not None:
            return f"http://{address}:{port}{parts.path}", key
    return None


def links() -> list[str]:
    """The pages of all APIs of this user's that are served now, each with its key."""
    return [
        link(f"http://{place.name}", key)
        for place in sorted(_folder().glob("*:*"))
        if (path := _noted(place)) is not None and (key := read_key(path)) is not None
    ]


def link(address: str, key: str) -> str:
    """The page, opened. What follows # stays in the browser: it is sent to no server."""
    return f"{address}/#key={key}"


def is_loopback_url(url: str) -> bool:
    """Whether a key of this machine may be meant for this address."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(_places((parts.hostname or "").lower(), parts.port or 80))
    except (ValueError, ConfigError):
        return False


def _folder() -> Path:
    # Whatever the server's home is: a client knows its address and nothing more.
    return user_home() / "serving"


def _place_of(address: str) -> Path | None:
    parts = urlsplit(address)
    return next(iter(_places(parts.hostname or "", parts.port or 80).values()), None)


def _places(host: str, port: int) -> dict[str, Path]:
    """Where a note about this may be, by the address that it is about."""
    # A name is not looked up: it may stand for several addresses, and on one of them somebody else may listen.
    hosts = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    found = {}
    for one in hosts:
        try:
            address = ipaddress.ip_address(one)
        except ValueError:
            continue
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_loopback:
            shown = f"[{address}]" if address.version == 6 else str(address)
            found[shown] = _folder() / f"{shown}:{port}"
    return found


def _note(place: Path, path: Path) -> int:
    """Write it down under a lock, which lasts as long as the descriptor is open."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = place.parent.lstat()
    if folder.st_uid != os.geteuid() or not stat.S_ISDIR(folder.st_mode):
        raise ConfigError(f"{place.parent} is not a folder of this user's")
    _clear(place.parent)
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if _lock(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, place):
                os.fchmod(descriptor, 0o600)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps({"key_file": str(path.absolute())}).encode())
                return descriptor
            if time.monotonic() > deadline:
                raise ConfigError(f"{place} is held by another process")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(0.001)  # a client looks at it


def _noted(place: Path) -> Path | None:
    """The file that a server which is alive has named."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return None
        if _lock(descriptor, fcntl.LOCK_SH):
            return None  # whoever wrote it has ended; who listens there now is not known
        return Path(json.loads(os.read(descriptor, _LONGEST_FILE))["key_file"])
    except (ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(descriptor)


def _clear(folder: Path) -> None:
    """Away with what killed servers have left behind."""
    for place in folder.glob("*:*"):
        with suppress(OSError):
            descriptor = os.open(place, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _lock(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, place):
                    place.unlink()
            finally:
                os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, place: Path) -> bool:
    """Whether the file that is open is still the one of that name."""
    try:
        there, here = place.lstat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
