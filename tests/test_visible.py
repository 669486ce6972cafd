"""Foreign text is shown as text: nothing in it controls the terminal, hides, or looks like another line."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata

import pytest

from duly.cli.output import hanging, many_lines, one_line, say, styled
from duly.logs import TextFormatter
from duly.visible import visible, visible_json, visible_lines

# Format characters that are drawn: signs in front of Arabic, Syriac and Kaithi numbers and words.
_DRAWN = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
_JOINERS = {0x200C, 0x200D}
EVERY = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp") and code not in _DRAWN
]
PLAIN = "Grüße, 日本語, नमस्ते, السلام, עברית, ✔️ 👍🏽 – “x” §\u00a0 é e\u0301"


def test_every_control_and_format_character_is_spelt_out() -> None:
    assert len(EVERY) > 2200
    for character in EVERY:
        within = f"a{character}b"
        assert character not in visible(within), hex(ord(character))
        assert visible(within).isascii()
        if character not in "\t\n":
            assert character not in visible_lines(within), hex(ord(character))
            # JSON itself escapes some characters, so the output of `json.dumps` holds none of those.
            shown = visible_json(json.dumps(within, ensure_ascii=False))
            assert character not in shown
            assert json.loads(shown) == within


def test_what_is_ordinary_text_stays_as_it_is() -> None:
    for text in (PLAIN, "می\u200cخواهم", "क्\u200dष", "👨\u200d👩\u200d👧", "".join(map(chr, sorted(_DRAWN)))):
        assert visible(text) == text
        assert visible_lines(text) == text
        assert visible_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)
    assert visible_lines("a\r\nb\tc\n") == "a\nb\tc\n"


def test_how_it_is_spelt() -> None:
    assert visible("\x1b[2J\r\x9b\u202e\U000e0041\ud800\n") == r"\x1b[2J\r\x9b\u202e\U000e0041\ud800\n"
    assert visible_json('"\x9b\u202e\U000e0041"') == r'"\u009b\u202e\udb40\udc41"'
    assert one_line(" a\r\nb\t\t c\rd ") == r"a b c\rd"
    assert one_line("x" * 300) == "x" * 199 + "…"
    assert many_lines("a\nb\x1b") == "    a\n    b\\x1b"
    assert hanging("a\nb") == "a\n    b"


def test_only_our_own_styles_reach_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `typer.echo` removes styles unless this is true.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    say(f"{styled('ours', fg='red')} \x1b[32mtheirs\x1b[0m \x1b[")
    assert capsys.readouterr().out == "\x1b[31mours\x1b[0m \\x1b[32mtheirs\\x1b[0m \\x1b[\n"
    say(styled("\x1b[32m", bold=True))
    assert capsys.readouterr().out == "\x1b[1m\\x1b[32m\x1b[0m\n"


def test_a_record_of_a_log_is_one_line_and_its_traceback_is_indented() -> None:
    record = logging.makeLogRecord(
        {"name": "duly.x", "levelname": "INFO", "msg": "said %s", "args": ("a\n2030-01-01 00:00:00 ERROR b\x1b\u2028",)}
    )
    try:
        raise ValueError("one\n2030-01-01 00:00:00.000 ERROR   duly: forged\r\x1b[2J")
    except ValueError:
        record.exc_info = sys.exc_info()
    # Another formatter has already written its text into the record.
    record.exc_text = "\x1b as another formatter made it"
    first, *below = TextFormatter().format(record).split("\n")
    assert first.endswith(r"INFO    duly.x: said a\n2030-01-01 00:00:00 ERROR b\x1b\u2028")
    assert below
    assert all(line.startswith("    ") for line in below)
    assert r"ERROR   duly: forged\r\x1b[2J" in below[-1]
    assert not any(character in "".join(below) for character in "\x1b\r")
