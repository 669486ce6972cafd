"""Reads stored JSON. Other programs may write to the tables too: one unreadable row must not hide the rest."""

from __future__ import annotations

import json
import math
from typing import Any

from duly.errors import InvalidInput
from duly.model import DEFAULT_POLICY, Policy, policy_from_stored

_MAX_FLOAT_DIGITS = 308


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("it holds a number that is too large")
    return value


class Reading:
    """Reads the columns of one row, and keeps the first error."""

    __slots__ = ("said",)

    def __init__(self) -> None:
        self.said: str | None = None

    def json(self, field: str, text: str | None, *, otherwise: Any, kind: type | None = None) -> Any:
        """The value of `text`; `otherwise` if Python cannot read it, or if it is not of the required `kind`."""
        if text is None:
            return otherwise
        try:
            # PostgreSQL writes every digit of a number, so a shorter string holds none beyond the range of a float.
            value = json.loads(text) if len(text) < _MAX_FLOAT_DIGITS else json.loads(text, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            self._cannot(field, "it is nested too deeply" if isinstance(error, RecursionError) else str(error))
            return otherwise
        if kind is not None and not isinstance(value, kind):
            self._cannot(field, "it is not an object" if kind is dict else f"it is not a {kind.__name__}")
            return otherwise
        return value

    def policy(self, text: str | None) -> Policy:
        try:
            return policy_from_stored(text)
        except InvalidInput as error:
            self._cannot(error.field, error.message)
            return DEFAULT_POLICY

    def _cannot(self, field: str, why: str) -> None:
        if self.said is None:
            self.said = f"the stored {field} cannot be read: {why[:120]}"
