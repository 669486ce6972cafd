"""Time zones by their IANA names, and the rules that are in force for them.

Rules change: a government moves its clocks, and a release of the time-zone data follows. Plans depend on the rules, so
all nodes of one store must plan by the same ones, and must know by which rules a plan was made. The default is the
machine's own rules. `use_rules` replaces them, and keeps the previous rules of the zones that differ: `before` is the
name under which a zone's previous rules are found.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
import zoneinfo
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from zoneinfo import ZoneInfo

from duly.errors import InvalidInput

# The form of a name. Dots, a leading slash and empty parts are not allowed, so no name leaves the time-zone data.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}", re.ASCII)
_MAX_CHARS = 64
# Files beside the zones that are not zones, or differ from machine to machine.
_NOT_ZONES = frozenset({"localtime", "posixrules", "Factory", "leapseconds", "leap-seconds", "tzdata", "zone"})
_NOT_FOLDERS = ("right/", "posix/")
# Suffix for a zone by its previous rules. No client can write it: control characters are refused.
_BEFORE = "\x02before"
_RELEASE = re.compile(r"\d{4}[a-z]+")

_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)

_forgetters: list[Callable[[], None]] = []
_rules: Mapping[str, bytes] = {}
_earlier: Mapping[str, bytes] = {}
_since = _LONG_AGO


def load_zone(name: str) -> ZoneInfo:
    """The zone with an IANA name; `InvalidInput` on `timezone` for anything else.

    Zones are cached, missing zones are not: one that returns to the time-zone data is found again.
    """
    name = str(name)  # None and numbers are refused like any other invalid name
    if name.endswith(_BEFORE) and name.removesuffix(_BEFORE) in _earlier:
        return _load(name)
    if len(name) > _MAX_CHARS or not _NAME.fullmatch(name):
        raise InvalidInput("timezone", f"{name[:_MAX_CHARS]!r} is not an IANA zone name such as Europe/Berlin")
    if name in _NOT_ZONES or name.startswith(_NOT_FOLDERS):
        raise InvalidInput("timezone", f"{name} is not a zone to schedule in, use an IANA name such as Europe/Berlin")
    return _load(name)


@lru_cache(maxsize=1024)
def _load(name: str) -> ZoneInfo:
    if name.endswith(_BEFORE):
        return ZoneInfo.from_file(io.BytesIO(_earlier[name.removesuffix(_BEFORE)]), key=name)
    if name in _rules:
        return ZoneInfo.from_file(io.BytesIO(_rules[name]), key=name)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, ImportError) as error:
        raise InvalidInput("timezone", f"no zone {name} in this machine's time-zone data") from error


def when_forgotten(forget: Callable[[], None]) -> None:
    """Registers a function that clears a cache of zones, for `forget_zones` to call."""
    _forgetters.append(forget)


def forget_zones() -> None:
    """Clears all caches of zones: the time-zone data may have changed."""
    ZoneInfo.clear_cache()
    _load.cache_clear()
    for forget in _forgetters:
        forget()


def use_rules(
    rules: Mapping[str, bytes] | None = None,
    *,
    earlier: Mapping[str, bytes] | None = None,
    since: datetime = _LONG_AGO,
) -> None:
    """Plans by these rules from now on, and by the machine's own for zones without one.

    `earlier` has the previous rules of the zones that differ, by which plans were made until `since`.
    """
    global _rules, _earlier, _since
    _rules, _earlier, _since = rules or {}, earlier or {}, since
    forget_zones()


def changed_since() -> datetime | None:
    """The time at which the rules of any zone changed; None if none did, as is usual."""
    return _since if _earlier else None


def before(name: str) -> str | None:
    """The name of a zone by its previous rules; None if they are the same."""
    return name + _BEFORE if name in _earlier else None


def is_newer(version: str, other: str) -> bool:
    """Whether a version of the time-zone data replaces another. Versions without a release name replace each other."""
    if _RELEASE.fullmatch(version) and _RELEASE.fullmatch(other):
        return (version[:4], len(version), version) > (other[:4], len(other), other)
    return version != other


def machine_version() -> str:
    """The release of this machine's time-zone data, such as 2026a, or a digest of the data if it has no name."""
    folders = [Path(folder) for folder in zoneinfo.TZPATH if (Path(folder) / "UTC").exists()]
    for folder in folders:
        for name, form in (("tzdata.zi", r"# version (\S+)"), ("+VERSION", r"(\S+)")):
            try:
                with (folder / name).open(encoding="utf-8") as file:
                    found = re.match(form, file.readline())
            except OSError:
                continue
            if found is not None and _RELEASE.fullmatch(found[1]):
                return found[1]
        return _digest()
    try:
        text = resources.files("tzdata").joinpath("__init__.py").read_text(encoding="utf-8")
        release = re.search(r'IANA_VERSION = "(\S+)"', text)
    except (ModuleNotFoundError, OSError):
        release = None
    return release[1] if release is not None else _digest()


def machine_rules() -> dict[str, bytes]:
    """Every zone of this machine's time-zone data, as the bytes of its file. Reads hundreds of files."""
    found = {}
    for name in sorted(zoneinfo.available_timezones()):
        if _NAME.fullmatch(name) and name not in _NOT_ZONES and (data := _read(name)) is not None:
            found[name] = data
    return found


def pack_rules(rules: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(rules):
            archive.writestr(zipfile.ZipInfo(name), rules[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def unpack_rules(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _digest() -> str:
    whole = hashlib.sha256()
    for name, data in machine_rules().items():
        whole.update(f"{name}\0{len(data)}\0".encode() + data)
    return f"sha256:{whole.hexdigest()[:32]}"


def _read(name: str) -> bytes | None:
    for folder in zoneinfo.TZPATH:
        path = Path(folder) / name
        if path.is_file():
            return path.read_bytes()
    try:
        return resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    except (ModuleNotFoundError, OSError):
        return None
