"""The version of this Duly. `pyproject.toml` has the same; tests compare them."""

from __future__ import annotations

import re

VERSION = "0.2.0"


def parsed(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing. One without numbers is the oldest."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
