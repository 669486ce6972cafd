"""Foreign text made safe to show in a terminal, a log or a page. No I/O; the only home of this rule.

Names, errors, results and the answers of other servers may contain characters that move the cursor, set a terminal's
title, reverse the reading direction, end a line or are invisible. Each is replaced by its Python escape (`\\x1b`,
`\\u202e`).
"""

from __future__ import annotations

import re

#: Control characters, as a part of a regular expression's set.
CONTROLS = r"\x00-\x1f\x7f-\x9f"
# Control characters except line feed and tab; Unicode's format characters (reading direction, invisible joiners, tags);
# line and paragraph separators; empty letters; lone surrogates. Not the few format characters that are drawn (Arabic
# number signs), and not variation selectors, which emoji use.
_UNSEEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
# Persian, Hindi and some emoji are written with two joiners: within such text they stay.
_JOINED = r"[^\x00-\u02ff\u2000-\u206f]"
_JOINER = rf"(?<!{_JOINED})[\u200c\u200d]|[\u200c\u200d](?!{_JOINED})"
_LINES = re.compile(rf"[{_UNSEEN}]|{_JOINER}")
_LINE = re.compile(rf"[\t\n{_UNSEEN}]|{_JOINER}")
_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def visible(text: str) -> str:
    """`text` on one line: line feeds and tabs are escaped too."""
    return _LINE.sub(_spelt, text)


def visible_lines(text: str) -> str:
    """`text` with its line feeds and tabs kept."""
    return _LINES.sub(_spelt, text.replace("\r\n", "\n"))


def visible_json(text: str) -> str:
    """Equivalent JSON without invisible characters. Letters of all languages stay readable."""
    return _LINES.sub(_in_json, text)


def _spelt(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return _SHORT.get(character) or (f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}")


def _in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
