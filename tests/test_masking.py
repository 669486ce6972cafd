"""Secret values are masked in the output of programs and endpoints, however it is quoted and wherever it is cut."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.masking import (
    HIDDEN,
    MAX_SPELLINGS,
    MIN_LENGTH,
    Mask,
    covers,
    make_mask,
    payload_secrets,
    shown_instead,
    shown_payload,
    shown_url,
    target_secrets,
)
from duly.worker.handler.errors import MAX_ERROR_BYTES, MAX_RESULT_CHARACTERS, error_text, exception_text, result_text

SECRET = 'hunter2-"ü"-0123'


@pytest.mark.parametrize(
    "said",
    [SECRET, json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), repr(SECRET), f"x={SECRET}&y={SECRET}"],
)
def test_a_secret_is_found_as_it_is_and_as_it_is_quoted(said: str) -> None:
    masked = Mask([SECRET]).text(f"before {said} after")
    assert "hunter2" not in masked
    assert "0123" not in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


def test_a_key_of_several_lines_is_found_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n"
    assert Mask([key]).text(key) == HIDDEN
    indented = Mask([key]).text("\n".join("> " + line for line in key.splitlines()))
    assert indented == "\n".join(["> " + HIDDEN] * 4)


def test_what_is_too_short_to_be_a_secret_stays() -> None:
    assert make_mask(["", "a", "x" * (MIN_LENGTH - 1)]) is None
    mask = make_mask(["no", "x" * MIN_LENGTH])
    assert mask is not None
    assert mask.text("no " + "x" * MIN_LENGTH) == f"no {HIDDEN}"


def test_secrets_that_overlap_are_gone_both() -> None:
    assert Mask(["abcdef", "defghi"]).text("<abcdefghi>") == f"<{HIDDEN}>"
    assert Mask(["abcd", "abcdefgh"]).text("<abcdefgh>") == f"<{HIDDEN}>"


@given(
    st.text(alphabet="ab*", min_size=MIN_LENGTH, max_size=9),
    st.text(alphabet="abc", max_size=12),
    st.text(alphabet="abc", max_size=12),
    st.data(),
)
def test_wherever_a_text_is_cut_nothing_of_the_secret_at_the_cut_is_left(
    secret: str, before: str, after: str, data: st.DataObject
) -> None:
    whole = before + secret + after
    begin = data.draw(st.integers(0, len(before) + len(secret)))
    end = data.draw(st.integers(max(begin, len(before)), len(whole)))
    masked = Mask([secret]).text(whole[begin:end], begins_amid=begin > 0, ends_amid=end < len(whole))
    kept = masked.replace(HIDDEN, "\x00")
    # The rest of the text, without the marks, holds none of the secret's own characters.
    own = range(max(begin, len(before)), min(end, len(before) + len(secret)))
    assert len(kept.replace("\x00", "")) <= end - begin - len(own)


def test_hostile_secrets_cost_what_their_length_does() -> None:
    def seconds(size: int) -> float:
        secret, text = "a" * size + "b", "a" * size + "c"
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            Mask([secret]).text(text * 2, begins_amid=True, ends_amid=True)
            best = min(best, time.thread_time() - began)
        return best

    assert seconds(64_000) < 200 * seconds(2_000)  # linear growth would be 32 times, quadratic 1,024 times


def test_results_stay_what_they_are_but_for_the_secret() -> None:
    mask = Mask(["s3cret!", "4711"])
    result = {"a s3cret!": ["x s3cret! y", 4711, 14711, 2.5, None, True], "n": {"deep": "s3cret!"}}
    text = result_text(result, mask)
    assert text is not None
    assert json.loads(text) == {
        f"a {HIDDEN}": [f"x {HIDDEN} y", HIDDEN, 14711, 2.5, None, True], "n": {"deep": HIDDEN}
    }  # fmt: skip
    long = result_text(["x" * 2000, "s3cret!" * (MAX_RESULT_CHARACTERS // 7), "y" * MAX_RESULT_CHARACTERS], mask)
    assert long is not None
    assert json.loads(long)["truncated"] is True
    assert "s3c" not in long


@pytest.mark.parametrize("shift", range(8))
def test_no_part_of_a_secret_is_left_where_an_error_is_cut(shift: int) -> None:
    mask = Mask(["S3CRET!"])
    for limit in (MAX_ERROR_BYTES // 8, MAX_ERROR_BYTES // 4, 2 * MAX_ERROR_BYTES, 4 * MAX_ERROR_BYTES):
        said = "x" * (limit - shift) + "S3CRET!" + "y" * 5 * MAX_ERROR_BYTES
        for text in (
            exception_text(ValueError(said), mask),
            exception_text(ValueError(said[::-1].replace("S3CRET!"[::-1], "S3CRET!")), mask),
            error_text("kind", said, said, mask=mask),
        ):
            assert not any(part in text for part in ("S3", "CRET", "RET!")), (limit, shift)


def test_of_headers_the_token_is_secret_by_itself() -> None:
    target = {
        "headers": {"Cookie": "session=abcdef", "X-Plain": "plain-text"},
        "secret_headers": {"Authorization": "Bearer tokentoken"},
        "secret_env": {"KEY": "of the program"},
    }
    masked = Mask(target_secrets(target)).text("tokentoken session=abcdef plain-text of the program")
    assert masked == f"{HIDDEN} {HIDDEN} plain-text {HIDDEN}"


@pytest.mark.parametrize(
    ("payload", "paths", "shown"),
    [
        ({"a": 1, "b": 2}, ("a",), {"a": "***", "b": 2}),
        ({"a": {"b": {"c": 1}, "d": 2}}, ("a.b",), {"a": {"b": "***", "d": 2}}),
        ({"a": {"b": 1}}, ("a", "a.b"), {"a": "***"}),
        ({"a": {"b": 1}}, ("a.b", "a"), {"a": "***"}),
        ({"a": {"b": 1, "c": 2}}, ("a.b", "a.c"), {"a": {"b": "***", "c": "***"}}),
        ({"a": [{"b": 1}, [{"b": 2, "c": 3}], 4]}, ("a.b",), {"a": [{"b": "***"}, [{"b": "***", "c": 3}], 4]}),
        ([{"b": 1}, {"c": 2}], ("b",), [{"b": "***"}, {"c": 2}]),
        ({"a.b": 1, "a": {"b": 2}}, ("a\\.b",), {"a.b": "***", "a": {"b": 2}}),
        ({"a": None, "b": ""}, ("a", "b", "c", "a.b"), {"a": "***", "b": "***"}),
        ({"a": "text"}, ("a.b",), {"a": "text"}),
        ("text", ("a",), "text"),
        (None, ("a",), None),
        ({}, (), {}),
    ],
)  # fmt: skip
def test_of_a_payload_the_values_at_its_secret_paths_are_hidden(
    payload: object, paths: tuple[str, ...], shown: object
) -> None:
    before = json.dumps(payload)
    assert shown_payload(payload, paths) == shown
    assert json.dumps(payload) == before, "the caller's payload must not change"
    # A payload as it was shown is recognised, and is shown the same way again.
    assert (shown_instead(shown, paths) is None) == (shown == payload)
    assert shown_payload(shown, paths) == shown


def test_hiding_costs_what_the_payload_does_however_it_is_built() -> None:
    paths = tuple(f"{'a.' * 90}{number}" for number in range(32))
    deep: object = "end"
    for _ in range(100_000):
        deep = [deep]
    hiding, writing = [], []
    # The best of three: others slow the machine down by several times for a moment, but not in all of them.
    for _ in range(3):
        began = time.thread_time()
        shown_payload([deep, [{}] * 80_000, {"a": {"a": 1}}], paths)
        hiding.append(time.thread_time() - began)
        began = time.thread_time()
        json.dumps([[{}] * 80_000, ["x"] * 100_000])
        writing.append(time.thread_time() - began)
    assert min(hiding) < 100 * min(writing)


def test_the_secrets_of_a_payload_are_its_texts_and_numbers() -> None:
    payload = {"a": {"b": ["text", 4711, 2.5, True, None, {"c": "deep"}]}, "d": "other"}
    assert sorted(payload_secrets(payload, ("a",))) == ["2.5", "4711", "deep", "text"]


def test_of_too_many_secrets_to_look_for_nothing_is_shown() -> None:
    mask = make_mask(f"secret-{number}" for number in range(MAX_SPELLINGS + 1))
    assert mask is not None
    assert mask.text("any text") == HIDDEN
    assert mask.text("") == ""
    assert json.loads(mask.json('{"any": "thing"}')) == HIDDEN
    few = make_mask(f"secret-{number}" for number in range(MAX_SPELLINGS))
    assert few is not None
    assert few.text("any text") == "any text"


@pytest.mark.parametrize(
    ("path", "paths", "covered"),
    [("a", ("a",), True), ("a.b", ("a",), True), ("a", ("a.b",), False), ("ab", ("a",), False),
     ("a\\.b", ("a",), False), ("a", (), False), ("a.b.c", ("x", "a.b"), True)],
)  # fmt: skip
def test_a_path_is_covered_by_one_that_leads_to_it(path: str, paths: tuple[str, ...], covered: bool) -> None:
    assert covers(path, paths) is covered


def test_of_a_url_the_names_of_its_query_are_shown_and_no_values() -> None:
    assert shown_url("https://a.example/p?token=abc&x=&plain&=y#part") == (
        "https://a.example/p?token=***&x=***&***&=***#***"
    )
    assert shown_url("https://a.example/p") == "https://a.example/p"
    assert shown_url("https://a.example/p?") == "https://a.example/p?"


def test_what_is_looked_for_of_a_query_is_the_whole_of_it_and_what_is_as_long_as_a_token() -> None:
    query = "token=abc%2Fdef%20ghijk&format=json&other=plus+plus+plus"
    mask = Mask(target_secrets({"url": f"https://a.example/?{query}"}))
    said = f"GET /?{query} as json: abc%2Fdef%20ghijk, abc/def ghijk, plus plus plus"
    assert mask.text(said) == f"GET /?{HIDDEN} as json: {HIDDEN}, {HIDDEN}, {HIDDEN}"
