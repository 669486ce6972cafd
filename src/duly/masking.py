"""What of a job is secret, and how that stays out of what is shown and what is kept. Pure: the one home of both rules.

Secret are the values of `secret_env` and `secret_headers`, of a few headers wherever they stand, of a URL's query, and
of the payload's fields that the job names (`secret_fields`). Where a job is shown they are `***`. What a run leaves
behind (output, errors, results, progress, log lines) has `***` in the place of such a value, because programs print
what they were given and endpoints echo it.

A path of `secret_fields` is the names that lead to a value, with dots between them: `card.number`. Lists on the way are
gone through: of a list of users, `users.password` is everybody's. A dot that belongs to a name is written `\\.`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_plus

HIDDEN = "***"
# In what a run leaves behind, values shorter than this stay: they would blot out ordinary words, and a value that short
# is found by trying.
SHORTEST = 4
# Values of a URL's query are mostly no secrets: only those as long as a token are looked for there.
SHORTEST_IN_QUERY = 12
# Looking for more would take too long. Then nothing of what a run leaves behind is shown.
MOST_SPELLINGS = 1_000
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})


def is_secret_header(name: str) -> bool:
    return name.lower().replace("_", "-") in _SECRET_HEADERS


def target_secrets(target: Mapping[str, Any]) -> Iterator[str]:
    """The secret values of a job's handler object, each also as programs and endpoints may quote it."""
    yield from target.get("secret_env", {}).values()
    if "url" in target:
        yield from _query_secrets(target["url"])
    for name, value in [*target.get("headers", {}).items(), *target.get("secret_headers", {}).items()]:
        if name in target.get("secret_headers", {}) or is_secret_header(name):
            yield value
            yield value.rpartition(" ")[2]  # of "Bearer …" the token


def _query_secrets(url: str) -> Iterator[str]:
    _, _, query = url.partition("#")[0].partition("?")
    yield query
    for part in query.split("&"):
        value = part.rpartition("=")[2]
        for spelling in (value, unquote(value), unquote_plus(value)):
            if len(spelling) >= SHORTEST_IN_QUERY:
                yield spelling


def shown_url(url: str) -> str:
    """With the names of its query and without their values, which may be tokens."""
    rest, sharp, _ = url.partition("#")
    path, question, query = rest.partition("?")
    shown = [part.partition("=") for part in query.split("&")] if query else []
    parts = [f"{name}={HIDDEN}" if equals else HIDDEN for name, equals, _ in shown]
    return f"{path}{question}{'&'.join(parts)}" + (f"{sharp}{HIDDEN}" if sharp else "")


# A payload's secret fields

_Tree = dict[str, "_Tree | None"]
# How a place was reached: the last step, and the way to it. Spelt only for who asks.
_Trail = tuple["_Trail", str] | None


def names_of(path: str) -> list[str]:
    """The names that a path of `secret_fields` is made of."""
    names, escaped = [""], False
    for character in path:
        if character == "." and not escaped:
            names.append("")
        elif character != "\\" or escaped:
            names[-1] += character
        escaped = character == "\\" and not escaped
    return names


@lru_cache(maxsize=1024)
def _tree_of(paths: tuple[str, ...]) -> _Tree:
    """Paths by their names, so that each value of a payload is looked at once however many there are. None: secret."""
    root: _Tree = {}
    for path in paths:
        *leading, last = names_of(path)
        at: _Tree | None = root
        for name in leading:
            if at is not None:
                at = at.setdefault(name, {})
        if at is not None:
            at[last] = None
    return root


def covers(path: str, paths: Iterable[str]) -> bool:
    """Whether what a path leads to is as secret by these."""
    names = names_of(path)
    return any(names[: len(other)] == other for other in map(names_of, paths))


def shown_payload(payload: Any, paths: tuple[str, ...]) -> Any:
    """The payload as it may be shown."""
    if not paths:
        return payload
    copy = [payload]
    for holder, name, _ in _secret_places(copy, paths):
        holder[name] = HIDDEN
    return copy[0]


def payload_secrets(payload: Any, paths: tuple[str, ...]) -> Iterator[str]:
    """The secret values of a payload: its texts and numbers. What is true, false or null says too little."""
    stack = [holder[name] for holder, name, _ in _secret_places([payload], paths)]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield json.dumps(value)


def shown_instead(payload: Any, paths: tuple[str, ...]) -> str | None:
    """Where a payload holds `***` in the place of a secret, as somebody sends it back who was shown it so."""
    for holder, name, trail in _secret_places([payload], paths):
        if holder[name] == HIDDEN:
            return _spelt(trail)
    return None


def _secret_places(root: list[Any], paths: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], str, _Trail]]:
    """Where the secrets stand: an object of a copy that is made in `root`, a name in it, and how that is reached.

    A loop, not recursion, because depth is the client's choice.
    """
    stack: list[tuple[Any, Any, _Tree, _Trail]] = [(root, 0, _tree_of(paths), None)]
    while stack:
        holder, at, tree, trail = stack.pop()
        value = holder[at]
        if isinstance(value, dict):
            holder[at] = copy = dict(value)
            for name in tree.keys() & copy.keys():
                inner = tree[name]
                there = trail, f".{name}"
                if inner is None:
                    yield copy, name, there
                else:
                    stack.append((copy, name, inner, there))
        elif isinstance(value, list | tuple):
            holder[at] = items = list(value)
            stack.extend(
                (items, index, tree, (trail, f"[{index}]"))
                for index, item in enumerate(items)
                if item and isinstance(item, dict | list | tuple)
            )


def _spelt(trail: _Trail) -> str:
    pieces = []
    while trail is not None:
        trail, piece = trail
        pieces.append(piece)
    return "".join(reversed(pieces)).removeprefix(".")


class Mask:
    """Puts `***` in the place of secret values."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found: set[str] = set()
        self._everything = False
        for secret in secrets:
            found.update(_spellings(secret))
            if len(found) > MOST_SPELLINGS:
                self._everything = True
                break
        self._secrets = sorted(found, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def text(self, text: str, *, begins_amid: bool = False, ends_amid: bool = False) -> str:
        """The text without them. One that was cut, before or after, may hold a part of one there: that goes as well."""
        if self._everything:
            return HIDDEN if text else text
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
        if self._everything:
            return json.dumps(HIDDEN)
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
