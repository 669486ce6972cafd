"""How a piece of a user's text is quoted in an error: short, and safe to print, log and encode."""

from __future__ import annotations


def quote(text: str, longest: int = 40) -> str:
    """The text, cut, with what cannot be shown (controls, lone surrogates) escaped."""
    cut = text if len(text) <= longest else text[:longest] + "…"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)
