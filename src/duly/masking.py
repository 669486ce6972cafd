"""What of a job is secret, and how that stays out of what is shown and what is kept. Pure: the one home of both rules.

Secret are the values of `secret_env` and `secret_headers`, of a few headers wherever they stand, and of the payload's
fields that the job names (`secret_fields`). Where a job is shown they are `***`. What a run leaves behind (output,
errors, results, progress, log lines) has `***` in the place of such a value, because programs print what they were
given and endpoints echo it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "***"
# In what a run leaves behind, values shorter than this stay: they would blot out ordinary words, and a value that short
# is found by trying.
SHORTEST = 4
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})


def is_secret_header(name: str) -> bool:
    return name.lower().replace("_", "-") in _SECRET_HEADERS


def target_secrets(target: Mapping[str, Any]) -> Iterator[str]:
    """The secret values of a job's handler object, each also as programs and endpoints may quote it."""
    yield from target.get("secret_env", {}).values()
    for name, value in [*target.get("headers", {}).items(), *target.get("secret_headers", {}).items()]:
        if name in target.get("secret_headers", {}) or is_secret_header(name):
            yield value
            yield value.rpartition(" ")[2]  # of "Bearer …" the token


class Mask:
    """Puts `***` in the place of secret values."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {spelling for secret in secrets for spelling in _spellings(secret)}
        self._secrets = sorted(found, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def text(self, text: str, *, begins_amid: bool = False, ends_amid: bool = False) -> str:
        """The text without them. One that was cut, before or after, may hold a part of one there: that goes as well."""
        spans: list[tuple[int, int]] = []
        for secret in self._secrets:
            at = text.find(secret)
            while at >= 0:
                spans.append((at, at + len(secret)))
                at = text.find(secret, at + len(secret))
            if ends_amid and (length := _overlap(text[1 - len(secret) :], secret)):
                spans.append((len(text) - length, len(text)))
            if begins_amid and (length := _overlap(text[: len(secret) - 1][::-1], secret[::-1])):
                spans.append((0, length))
            if begins_amid and ends_amid and text in secret:
                spans.append((0, len(text)))
        if not spans:
            return text
        pieces: list[str] = []
        until = 0
        for begin, end in sorted(spans):
            if begin > until or not pieces:
                pieces += [text[until:begin], HIDDEN]
            until = max(until, end)
        return "".join([*pieces, text[until:]])

    def json(self, text: str) -> str:
        """A JSON text without them, which is still JSON."""
        return json.dumps(self._without(json.loads(text)))

    def _without(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self._without(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._without(item) for item in value]
        # A number that merely holds the digits of one is another number.
        return HIDDEN if json.dumps(value) in self._secrets else value


def make_mask(secrets: Iterable[str]) -> Mask | None:
    """None where there is nothing to hide."""
    return Mask(secrets) or None


def _spellings(secret: str) -> Iterator[str]:
    """A value as it stands in a text: itself, line by line (keys are printed so), and as JSON and Python quote it."""
    for part in {secret, secret.strip(), *(line.strip() for line in secret.splitlines())}:
        if len(part) >= SHORTEST:
            yield part
            yield json.dumps(part)[1:-1]
            yield json.dumps(part, ensure_ascii=False)[1:-1]
            yield repr(part)[1:-1]


def _overlap(text: str, secret: str) -> int:
    """How much of the secret's beginning the text ends with. In linear time: both are anybody's choice."""
    # Knuth, Morris and Pratt: how much of the beginning stands again before each place of it.
    again = [0] * len(secret)
    length = 0
    for place in range(1, len(secret)):
        while length and secret[place] != secret[length]:
            length = again[length - 1]
        length += secret[place] == secret[length]
        again[place] = length
    length = 0
    for character in text:
        while length and (length == len(secret) or character != secret[length]):
            length = again[length - 1]
        length += character == secret[length]
    return length
