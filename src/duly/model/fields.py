"""One description per field: `described` declares a field on its dataclass, `rules_of` reads the descriptions back.

Checks, the API's schema, CLI options, documents and stored policies follow from these rules: see the recipes in
CONTRIBUTING.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Rule:
    """Type, limits and help of one field."""

    name: str
    annotation: Any
    kind: type
    """The annotation without its parameters and without None; str for a choice."""
    choices: tuple[str, ...]
    default: Any
    """None for a list or a map: each has an empty one of its own."""
    optional: bool
    """Whether None is a value."""
    help_text: str
    minimum: float
    """Smallest number, or length of the shortest string."""
    maximum: float
    """Largest number, length of the longest string, or number of items in the longest list."""
    json_format: str | None
    """The API schema's name for a string, or for each string of a list, that has a rule of its own in `duly.checks`."""
    timing: bool
    """Whether a change of the field plans the job anew."""


def described(
    default: Any,
    help_text: str,
    minimum: float = 1,
    maximum: float = 0,
    *,
    json_format: str | None = None,
    timing: bool = False,
    otherwise: Any = None,
) -> Any:
    """A dataclass field with a default and the rest of its `Rule`. A field of choices needs no limits.

    `otherwise`: the default for clients, where the field itself is None as long as nobody has set it.
    """
    rule = {
        "otherwise": otherwise,
        "help_text": help_text,
        "minimum": minimum,
        "maximum": maximum,
        "json_format": json_format,
        "timing": timing,
    }
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=rule)
    return dataclasses.field(default=default, metadata=rule)


def rules_of(values: type) -> dict[str, Rule]:
    """The rules of those fields of a dataclass that are `described`, in their order."""
    hints = get_type_hints(values)
    described = (one for one in dataclasses.fields(values) if one.metadata)
    return {one.name: _rule(one, hints[one.name]) for one in described}


def _rule(one: dataclasses.Field[Any], annotation: Any) -> Rule:
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    united = get_args(annotation) if get_origin(annotation) is UnionType else ()
    first = next((part for part in united if part is not NoneType), annotation)
    kind = str if choices else get_origin(first) or first
    rest = dict(one.metadata)
    otherwise = rest.pop("otherwise")
    default = otherwise if otherwise is not None or one.default is dataclasses.MISSING else one.default
    optional = NoneType in united and otherwise is None
    return Rule(one.name, annotation, kind, choices, default, optional, **rest)
