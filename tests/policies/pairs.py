"""All pairs: few rows in which every value of every field meets every value of every other field."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any


def all_pairs(fields: Mapping[str, Sequence[Any]], dice: random.Random) -> list[dict[str, Any]]:
    """Returns the rows, found greedily.

    Each row begins with a pair that is still missing, and each further field takes the value that adds most of the
    missing pairs.
    """
    names = list(fields)
    missing = {
        ((a, i), (b, j))
        for a, b in combinations(names, 2)
        for i in range(len(fields[a]))
        for j in range(len(fields[b]))
    }
    rows = []
    while missing:
        row: dict[str, int] = dict(dice.choice(sorted(missing)))
        for name in dice.sample(names, len(names)):
            if name not in row:
                places = dice.sample(range(len(fields[name])), len(fields[name]))
                row[name] = max(places, key=lambda place: len(_met(names, {**row, name: place}) & missing))
        missing -= _met(names, row)
        rows.append({name: fields[name][place] for name, place in row.items()})
    return rows


def _met(names: Sequence[str], row: Mapping[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    return {((a, row[a]), (b, row[b])) for a, b in combinations(names, 2) if a in row and b in row}
