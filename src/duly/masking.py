"""The secrets of a job, and how they are hidden in shown jobs and in stored results. No I/O; the only home of both
rules.

Secret are the values of `secret_env` and `secret_headers`, of a few headers wherever they stand, of a URL's query, of
the payload fields that the job names (`secret_fields`), and all of a `ping_url` that follows its host. Shown jobs have
`***` instead. So do, for what a handler gets of these, the output, errors, results, progress and log lines of a run,
because programs print their input and endpoints echo it.

A path in `secret_fields` consists of the names that lead to a value, separated by dots: `card.number`. It applies to
every item of a list on the way: `users.password` names the password of each user. A dot within a name is written `\\.`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_plus

HIDDEN = "***"
# Shorter values, in characters, are not masked in a run's output: masking would blot out ordinary words, and a value
# that short can be guessed.
MIN_LENGTH = 4
# The same for values in a URL's query. Most of them are not secrets: only values as long as a token are masked.
MIN_LENGTH_IN_QUERY = 12
# Searching for more spellings would take too long. A run with more secrets has all of its output masked.
MAX_SPELLINGS = 1_000
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})


def is_secret_header(name: str) -> bool:
    return name.lower().replace("_", "-") in _SECRET_HEADERS


def target_secrets(target: Mapping[str, Any]) -> Iterator[str]:
    """The secret values of a job's target, each also in the forms that programs and endpoints may quote."""
    yield from target.get("secret_env", {}).values()
    if "url" in target:
        yield from _query_secrets(target["url"])
    for name, value in [*target.get("headers", {}).items(), *target.get("secret_headers", {}).items()]:
        if name in target.get("secret_headers", {}) or is_secret_header(name):
            yield value
            yield value.rpartition(" ")[2]  # the token in "Bearer …"


def _query_secrets(url: str) -> Iterator[str]:
    _, _, query = url.partition("#")[0].partition("?")
    yield query
    for part in query.split("&"):
        value = part.rpartition("=")[2]
        for spelling in (value, unquote(value), unquote_plus(value)):
            if len(spelling) >= MIN_LENGTH_IN_QUERY:
                yield spelling


def shown_url(url: str) -> str:
    """The URL with the names of its query but without their values, which may be tokens."""
    rest, sharp, _ = url.partition("#")
    path, question, query = rest.partition("?")
    shown = [part.partition("=") for part in query.split("&")] if query else []
    parts = [f"{name}={HIDDEN}" if equals else HIDDEN for name, equals, _ in shown]
    return f"{path}{question}{'&'.join(parts)}" + (f"{sharp}{HIDDEN}" if sharp else "")


def shown_ping_url(url: str | None) -> str | None:
    """The address of a watching service without what follows its host: that is a key to ping with."""
    if url is None:
        return None
    scheme, _, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{host}/{HIDDEN}"


# A payload's secret fields

_Tree = dict[str, "_Tree | None"]
# The way to a value: the last step, and the trail before it. Written out only for an error message.
_Trail = tuple["_Trail", str] | None


def names_of(path: str) -> list[str]:
    """The names in a path of `secret_fields`."""
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
    """Paths as a tree of names, so that a payload is walked once however many paths there are. None marks a secret."""
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
    """Whether the value at `path` is secret by `paths` too."""
    names = names_of(path)
    return any(names[: len(other)] == other for other in map(names_of, paths))


def shown_payload(payload: Any, paths: tuple[str, ...]) -> Any:
    """The payload with its secret fields hidden."""
    if not paths:
        return payload
    copy = [payload]
    for holder, name, _ in _secret_places(copy, paths):
        holder[name] = HIDDEN
    return copy[0]


def payload_secrets(payload: Any, paths: tuple[str, ...]) -> Iterator[str]:
    """The secret strings and numbers of a payload. Booleans and null are too common to be masked."""
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
    """The path at which a payload has `***` instead of a secret, as a client sends it that edits a shown job."""
    for holder, name, trail in _secret_places([payload], paths):
        if holder[name] == HIDDEN:
            return _spelt(trail)
    return None


def _secret_places(root: list[Any], paths: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], str, _Trail]]:
    """The places of the secrets: an object in the copy that is made in `root`, a name in it, and the way to it.

    A loop, not recursion, because the client chooses the depth.
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
    """Replaces secret values by `***`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found: set[str] = set()
        self._everything = False
        for secret in secrets:
            found.update(_spellings(secret))
            if len(found) > MAX_SPELLINGS:
                self._everything = True
                break
        self._secrets = sorted(found, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    @property
    def secrets(self) -> list[str]:
        """What it hides, to make the same mask in another process of the worker."""
        return self._secrets

    def text(self, text: str, *, begins_amid: bool = False, ends_amid: bool = False) -> str:
        """`text` without the secrets. If it was cut it may begin or end within a secret: that part is replaced too."""
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
        """JSON without the secrets, which is still JSON."""
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
        # A number that contains the digits of a secret is another number.
        return HIDDEN if json.dumps(value) in self._secrets else value


def make_mask(secrets: Iterable[str]) -> Mask | None:
    """A mask, or None if there is nothing to hide."""
    return Mask(secrets) or None


def _spellings(secret: str) -> Iterator[str]:
    """The forms of a value in a text: itself, line by line (keys are printed so), and quoted as in JSON and Python."""
    for part in {secret, secret.strip(), *(line.strip() for line in secret.splitlines())}:
        if len(part) >= MIN_LENGTH:
            yield part
            yield json.dumps(part)[1:-1]
            yield json.dumps(part, ensure_ascii=False)[1:-1]
            yield repr(part)[1:-1]


def _overlap(text: str, secret: str) -> int:
    """Length of the secret's beginning that the text ends with. Linear time, because clients choose both."""
    # Knuth, Morris and Pratt: per position, the length of the secret's beginning that ends there.
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
