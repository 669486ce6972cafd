"""Idempotency keys: the attempts of one occurrence share a key, and different occurrences have different keys."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from duly.errors import InvalidInput
from duly.model import DEFAULT_KEY_TEMPLATE
from duly.timing import check_template, render_key

from .helpers import NEW_YORK, utc

JOB = UUID("00000000-0000-0000-0000-000000000007")


def render(template: str, at: str = "2026-01-01 03:30", zone: str = NEW_YORK, name: str = "report") -> str:
    return render_key(template, job_id=JOB, name=name, scheduled_at=utc(at), timezone=zone)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        (DEFAULT_KEY_TEMPLATE, f"{JOB}:1767238200"),
        ("{{name}}:{{date}}", "report:2025-12-31"),
        ("{{ name }}/{{ hour }}", "report/2025-12-31T22"),
        ("{{week}}", "2026-W01"),
        ("{{month}} {{year}}", "2025-12 2025"),
        ("x-{{scheduled_at_unix}}-{{job_id}}-y", f"x-1767238200-{JOB}-y"),
        ("constant", "constant"),
        ("{single}", "{single}"),
    ],
)
def test_placeholders_are_filled_in_the_jobs_zone(template: str, key: str) -> None:
    check_template(template)
    assert render(template) == key


def test_fractions_make_different_keys() -> None:
    assert render(DEFAULT_KEY_TEMPLATE, "2026-01-01 00:00:00.25") == f"{JOB}:1767225600.250000"


def test_the_second_pass_of_an_hour_is_another_hour() -> None:
    start = utc("2026-11-01 04:00")
    keys = [
        render_key("{{hour}}", job_id=JOB, name="n", scheduled_at=start + timedelta(hours=n), timezone=NEW_YORK)
        for n in range(4)
    ]
    assert keys == ["2026-11-01T00", "2026-11-01T01", "2026-11-01T01-0500", "2026-11-01T02"]


def test_a_name_with_braces_is_not_read_as_a_template() -> None:
    assert render("{{name}}", name="{{job_id}}") == "{{job_id}}"


@pytest.mark.parametrize(
    "template",
    [
        "{{unknown}}",
        "{{}}",
        "{{ }}",
        "{{name",
        "name}}",
        "{{name}",
        "{{{{name}}}}",
        "",
        "x" * 256,
        "a\nb",
        "{{date}}\0",
    ],
)
def test_a_wrong_template_is_refused(template: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_template(template)
    assert caught.value.field == "idempotency_key_template"


def test_an_unknown_placeholder_is_named_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"\{\{day\}\} is not known, use .*\{\{date\}\}"):
        check_template("{{day}}")
