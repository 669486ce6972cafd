"""Every package that `make` installs is locked by version and hash; otherwise another one could be installed unseen."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKED = (ROOT / "requirements" / "locked.txt").read_text()


def locked_versions() -> dict[str, str]:
    return {
        canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCKED, re.MULTILINE)
    }


def needed() -> set[str]:
    """The names of all packages that Duly with every extra needs here, and of those that build it."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    waiting = [Requirement("duly[dev]"), *map(Requirement, build)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in requirement.extras or {""}:
            name = canonicalize_name(requirement.name)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                wanted = distribution(name).requires or []
            except PackageNotFoundError:  # not installed: the test fails for this name
                continue
            for text in wanted:
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    waiting.append(inner)
    return {name for name, _ in seen} - {"duly"}


def test_everything_that_is_needed_is_locked_in_the_version_that_is_installed() -> None:
    locked = locked_versions()

    installed = {name: distribution(name).version for name in needed()}

    assert {name: locked.get(name) for name in installed} == installed


def test_everything_that_is_locked_has_hashes() -> None:
    entries = re.split(r"\n(?=\S)", LOCKED.strip())

    assert len(entries) == len(locked_versions())
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_setup_takes_nothing_without_its_hash() -> None:
    installs = [
        line for line in (ROOT / "scripts" / "setup").read_text().splitlines() if line.startswith("pip install")
    ]

    assert installs
    for line in installs:
        assert "--require-hashes" in line or ("--no-deps" in line and "--no-build-isolation" in line)
