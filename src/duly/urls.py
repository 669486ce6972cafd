"""The check of an address that a client sends and a worker calls."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from duly.errors import InvalidInput


def split_url(field: str, url: str) -> SplitResult:
    """The parts of an http or https URL that names a host. No error repeats a part of it, which may be secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(field, f"is not a URL: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise InvalidInput(field, "must begin with https:// or http://")
    if not host or any(character.isspace() for character in url):
        raise InvalidInput(field, "must name a host, as in https://example.org/hook")
    return parts
