"""The local key: proof for an API that a request comes from the user who started it.

The address of a request proves nothing: behind a proxy every request comes from loopback, and so do those of other
accounts on the machine. So a server creates a secret in a file that only its user can read; a request that carries the
secret comes from a process that could read the file. The store never sees the secret. Deleting the file revokes it; the
next start creates another, unless the store has keys by then.

The file appears whole or not at all (created under another name, then linked), so that servers that start at the same
time agree on one. Only a plain file of this user that no other user can read is accepted: a symbolic link or another
user's file is refused, and a key that other users could read is replaced.

Clients find the key by the server's address. A server writes the path of its key file to a note under `serving` and
locks that note; the kernel drops the lock however the server ends. So no client sends the key to a port that another
process has taken over, nor to any other host.
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
# 256 bits, in characters that need no quotes in a link, a header or a shell.
_SECRET_BYTES = 32
_KEY = re.compile(rf"{PREFIX}[0-9a-f]{{{2 * _SECRET_BYTES}}}", re.ASCII)
# Seconds after which a server reads the key file again.
_REREAD_SECONDS = 1.0
_MAX_FILE_BYTES = 8192
# Seconds to wait for the lock on a note.
_LOCK_SECONDS = 5.0


class Exposed(ConfigError):
    """Users other than its owner may have read the file."""


def key_file(home: Path, store_id: object = None) -> Path:
    """Path of the key file: of the embedded store in `home`, or of another store by its id."""
    return home / "api.key" if store_id is None else home / "keys" / f"{store_id}.key"


def read_key(path: Path) -> str | None:
    """The key, or None if the file does not exist. Raises `ConfigError` if the file proves nothing."""
    text = _read(path)
    if text is None:
        return None
    if _KEY.fullmatch(key := text.removesuffix("\n")) is None:
        raise ConfigError(f"{path} does not hold a local key; delete it, and the next start makes another")
    return key


def obtain_key(path: Path) -> str:
    """The key in the file, which is created if it does not exist. Any number of processes may call this at once."""
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
    """Creates the key file, unless another process was faster."""
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
    """Content of a private file of this user; None if the file does not exist."""
    try:
        # Not blocking: the path may be a pipe.
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
        return os.read(descriptor, _MAX_FILE_BYTES).decode("ascii", "replace")
    finally:
        os.close(descriptor)


class LocalKey:
    """A server's view of its key. Deleting or replacing the file takes effect within a second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key: str | None = None
        self._look_again_at = 0.0
        self._logged = ""

    def opens(self, given: str) -> bool:
        """Whether this is the key. Costs a comparison, and reading a small file once a second."""
        if not given.startswith(PREFIX):
            return False
        if time.monotonic() >= self._look_again_at:
            self._look()
        return self._key is not None and hmac.compare_digest(given.encode(), self._key.encode())

    def _look(self) -> None:
        self._look_again_at = time.monotonic() + _REREAD_SECONDS
        try:
            self._key = read_key(self.path)
        except ConfigError as error:
            self._key = None
            if str(error) != self._logged:
                log.warning("the local key is not accepted any more: %s", error)
            self._logged = str(error)


# Notes: the key file of each address that is served


@contextmanager
def announced(address: str, path: Path | None) -> Iterator[None]:
    """While the context lasts, clients of this user find the key for `address`, on which the caller listens."""
    note = _note_of(address)
    if path is None or note is None:
        yield
        return
    try:
        descriptor = _write_note(note, path)
    except (OSError, ConfigError) as error:
        log.warning("clients on this machine need DULY_API_KEY: the local key cannot be announced (%s)", error)
        yield
        return
    try:
        yield
    finally:
        # No other process writes to the note while the lock is held.
        note.unlink(missing_ok=True)
        os.close(descriptor)


def key_for(url: str) -> tuple[str, str] | None:
    """The address and key of an API that this user serves on this machine; None for any other URL."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or 80
        notes = _notes_of(host, port) if parts.scheme == "http" else {}
    except (ValueError, ConfigError):
        return None
    for address, note in notes.items():
        if (path := _read_note(note)) is not None and (key := read_key(path)) is not None:
            return f"http://{address}:{port}{parts.path}", key
    return None


def links() -> list[str]:
    """Links to the pages of all APIs that this user serves now, each with its key."""
    return [
        link(f"http://{note.name}", key)
        for note in sorted(_folder().glob("*:*"))
        if (path := _read_note(note)) is not None and (key := read_key(path)) is not None
    ]


def link(address: str, key: str) -> str:
    """A link that opens the page with the key. Browsers do not send the part after # to any server."""
    return f"{address}/#key={key}"


def is_loopback_url(url: str) -> bool:
    """Whether the URL leads to this machine, so that a local key may exist for it."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(_notes_of((parts.hostname or "").lower(), parts.port or 80))
    except (ValueError, ConfigError):
        return False


def _folder() -> Path:
    # Not in the server's own home: a client knows only the address.
    return user_home() / "serving"


def _note_of(address: str) -> Path | None:
    parts = urlsplit(address)
    return next(iter(_notes_of(parts.hostname or "", parts.port or 80).values()), None)


def _notes_of(host: str, port: int) -> dict[str, Path]:
    """Paths of the notes about a host and port, by address."""
    # A name is not resolved: it may stand for several addresses, and another user may listen on one of them.
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


def _write_note(note: Path, path: Path) -> int:
    """Writes a note and locks it. Returns its descriptor: the lock lasts while that is open."""
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = note.parent.lstat()
    if folder.st_uid != os.geteuid() or not stat.S_ISDIR(folder.st_mode):
        raise ConfigError(f"{note.parent} is not a folder of this user's")
    _clear(note.parent)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        descriptor = os.open(note, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if _lock(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, note):
                os.fchmod(descriptor, 0o600)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps({"key_file": str(path.absolute())}).encode())
                return descriptor
            if time.monotonic() > deadline:
                raise ConfigError(f"{note} is held by another process")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(0.001)  # a client is reading the note


def _read_note(note: Path) -> Path | None:
    """The key file that a live server named in its note."""
    try:
        descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return None
        if _lock(descriptor, fcntl.LOCK_SH):
            return None  # the server that wrote it has ended; another process may listen there now
        return Path(json.loads(os.read(descriptor, _MAX_FILE_BYTES))["key_file"])
    except (ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(descriptor)


def _clear(folder: Path) -> None:
    """Deletes the notes of servers that were killed."""
    for note in folder.glob("*:*"):
        with suppress(OSError):
            descriptor = os.open(note, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _lock(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, note):
                    note.unlink()
            finally:
                os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, note: Path) -> bool:
    """Whether the open file is still the one at that path."""
    try:
        there, here = note.lstat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
