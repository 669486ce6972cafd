"""Amounts of memory as strings: `512MB`, `1.5GiB`."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT])(i?)B\s*", re.IGNORECASE | re.ASCII)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}
# A process with a Python interpreter takes more than this: a smaller size is a mistake of the unit.
SMALLEST = 16 * 1024 * 1024


def read_size(text: str) -> int:
    """The number of bytes. Raises `ValueError`, with a message that follows the name of the field."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a size: write a number and a unit, such as 512MB or 1.5GiB")
    number, unit, binary = found.groups()
    size = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.upper()])
    if size < SMALLEST:
        raise ValueError(f"{text[:40]} is less than an empty process takes: give at least 16MiB")
    return size


def size_text(size: int) -> str:
    """A size for a sentence, in MB or GB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
