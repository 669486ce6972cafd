"""The recipes of CONTRIBUTING.md: if a place lacks a new field, column or target kind, a test names the place."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_type_hints
from uuid import UUID

import pytest

import duly.store
from duly import checks
from duly.api import examples
from duly.api.documents import job_document
from duly.api.schemas import JobBody, JobDocument, ListedJob
from duly.app import Duly
from duly.cli.commands.submit import submit
from duly.client import Client
from duly.client.documents import read_job
from duly.model import (
    DEFAULT_POLICY,
    JOB_RULES,
    POLICY_RULES,
    CronOptions,
    Job,
    JobChanges,
    JobOptions,
    JobRequest,
    Policy,
    PolicyOptions,
    policy_from_stored,
)
from duly.operations import revising
from duly.store.copying import JOB_COLUMNS
from duly.store.jobs import ChangedJob, NewJob
from duly.targets import KINDS
from duly.worker.targets import making

ROOT = Path(__file__).parent.parent
SCHEMA = Path(duly.store.__file__).parent / "schema"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = Job(
    **dict.fromkeys((field.name for field in fields(Job)), cast("Any", None))
    | {"job_id": UUID(int=7), "schedule": "0 9 * * *", "kind": "cron", "timezone": "UTC", "policy": DEFAULT_POLICY}
    | {"labels": {}, "handler": "h", "created_at": NOW, "updated_at": NOW}
)


def schema(name: str) -> str:
    return (SCHEMA / name).read_text()


def options(command: Any) -> set[str]:
    return set(inspect.signature(command).parameters)


def sql_rules() -> dict[str, tuple[Any, list[str] | None, float | None, float | None, bool]]:
    """The rows of the table of rules in `duly.stored_policy`: default, choices, minimum, maximum, whole."""
    row = re.compile(
        r"^ +\('(\w+)', '(.*?)'(?:::jsonb)?, (?:array\[(.*?)\]|null), (\S+), (\S+), (true|false)\),?$", re.MULTILINE
    )
    number = re.compile(r"^[\d.]+$")
    return {
        name: (
            json.loads(default),
            re.findall(r"'(\w+)'", choices) or None,
            float(low) if number.match(low) else None,
            float(high) if number.match(high) else None,
            whole == "true",
        )
        for name, default, choices, low, high, whole in row.findall(schema("10_submit_checks.sql"))
    }


class TestPolicyField:
    def test_each_field_is_described(self) -> None:
        assert set(POLICY_RULES) == {field.name for field in fields(Policy)}, "give the field `described(…)` in Policy"

    @pytest.mark.parametrize("name", POLICY_RULES)
    def test_the_sdk_types_it(self, name: str) -> None:
        typed = get_type_hints(PolicyOptions)
        assert name in typed, f"add {name} to PolicyOptions in model/options.py"
        if POLICY_RULES[name].kind is not tuple:  # a caller may pass any sequence for a tuple
            assert typed[name] == get_type_hints(Policy)[name], f"PolicyOptions.{name} has another type than Policy's"

    @pytest.mark.parametrize("name", sorted(set(POLICY_RULES) - {"secret_fields"}))
    def test_duly_submit_in_sql_has_the_same_rule(self, name: str) -> None:
        rule = POLICY_RULES[name]
        found = sql_rules()
        assert name in found, f"add {name} to duly.stored_policy in store/schema/10_submit_checks.sql"
        default, choices, low, high, whole = found[name]
        assert default == rule.default
        assert choices == (list(rule.choices) or None)
        assert (low, high) == ((rule.minimum, rule.maximum) if rule.kind in (int, float) else (None, None))
        assert whole == (rule.kind is int)

    @pytest.mark.parametrize("name", POLICY_RULES)
    def test_api_and_commands_have_it(self, name: str) -> None:
        assert name in JobBody.model_fields
        assert name in JobDocument.model_fields
        assert name in job_document(JOB)
        assert name in examples.EXAMPLES["get_job"].response
        assert name in options(submit)
        assert name in JobChanges.__annotations__

    @pytest.mark.parametrize("name", POLICY_RULES)
    def test_a_wrong_value_is_refused_and_a_right_one_kept(self, name: str) -> None:
        with pytest.raises(Exception, match=name):
            checks.check_policy(Policy(**{name: cast("Any", object())}))
        stored = Policy(**{name: getattr(DEFAULT_POLICY, name)}).to_stored()
        assert policy_from_stored(stored) == DEFAULT_POLICY


class TestJobColumn:
    def test_the_statements_name_every_column(self) -> None:
        made = subprocess.run(
            [sys.executable, ROOT / "scripts" / "columns", "--check"], capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, f"{made.stdout}{made.stderr}run: make columns"

    @pytest.mark.parametrize("name", JOB_RULES)
    def test_a_field_of_a_request_is_known_everywhere(self, name: str) -> None:
        own = {field.name for field in fields(Job)}
        assert name in own, f"add {name} to Job in model/job.py"
        assert name in NewJob._fields, f"add {name} to NewJob in store/jobs.py"
        assert re.search(rf"^    {name} ", schema("02_jobs.sql"), re.MULTILINE), (
            f"add the column {name} to store/schema/02_jobs.sql"
        )
        door = schema("11_submit.sql")
        assert re.search(rf"^    {name} +\w+ default", door, re.MULTILINE), (
            f"add the parameter {name} to store/schema/11_submit.sql"
        )
        assert f"`{name}`" in (ROOT / "docs" / "sql.md").read_text(), f"add {name} to the arguments in docs/sql.md"
        if name not in ("schedule", "payload"):
            assert name in JobOptions.__annotations__, f"add {name} to the options in model/options.py"
        if name != "dedupe_key":
            assert name in ChangedJob._fields, f"add {name} to ChangedJob in store/jobs.py"
            assert name in JobChanges.__annotations__, f"add {name} to the options in model/options.py"
            assert name in revising.CHANGEABLE

    @pytest.mark.parametrize("name", JOB_RULES)
    def test_api_and_commands_have_it(self, name: str) -> None:
        assert name in JobBody.model_fields
        assert name in JobDocument.model_fields
        assert name in options(submit)

    def test_the_sdk_takes_the_typed_options(self) -> None:
        taken: list[tuple[Any, Any]] = [
            (Duly.task, PolicyOptions),
            (Duly.cron, CronOptions),
            (Duly.request, JobOptions),
        ]
        taken += [(method, JobOptions) for method in (Duly.submit, Duly.submit_sync, Client.submit)]
        for method, typed in taken:
            keywords = list(inspect.signature(method).parameters.values())[-1]
            assert keywords.annotation == f"Unpack[{typed.__name__}]", f"{method.__qualname__} takes other options"

    def test_options_have_the_types_of_the_request(self) -> None:
        typed, asked = get_type_hints(JobOptions), get_type_hints(JobRequest)
        assert {name: typed[name] for name in JOB_RULES if name in typed} == {
            name: asked[name] for name in JOB_RULES if name in typed
        }
        assert typed.keys() <= JOB_RULES.keys() | POLICY_RULES.keys()
        assert CronOptions.__annotations__.keys() <= typed.keys()

    def test_a_job_comes_back_from_its_document(self) -> None:
        document = job_document(JOB)
        assert document.keys() == JobDocument.model_fields.keys() == ListedJob.model_fields.keys()
        assert job_document(read_job(document)) == document
        assert examples.EXAMPLES["get_job"].response.keys() == document.keys()

    def test_a_copy_writes_the_columns_that_the_statement_writes(self) -> None:
        written = {*NewJob._fields, "last_run_at", "run_count", "status", "created_at", "updated_at"}
        # Jobs with a dedupe_key are not copied.
        assert set(JOB_COLUMNS) == written - {"immediate", "dedupe_key", "fingerprint"}

    def test_a_copy_encodes_each_column_by_its_type(self) -> None:
        from duly.store import copying

        wanted = {"jsonb": copying._json, "timestamptz": copying._moment, "integer": copying._number}
        for name in copying._SHAPE_COLUMNS:
            column = re.search(rf"^    {name} +(\w+)", schema("02_jobs.sql"), re.MULTILINE)
            assert column is not None
            if column[1] in wanted:
                assert copying._ENCODERS.get(name) is wanted[column[1]], f"give {name} an encoder in store/copying.py"
            else:
                assert (column[1] == "text") == (name not in copying._ENCODERS), f"{name} is {column[1]} in the table"


def test_sql_knows_the_kinds_of_targets_that_python_does() -> None:
    door = schema("11_submit.sql")
    listed = ", ".join(f"'{kind}'" for kind in KINDS)
    assert f"not in ({listed})" in door, f"duly.submit must know the target kinds {listed} (store/schema/11_submit.sql)"
    assert f"must be {' or '.join(KINDS)}" in door
    known = {
        rules["properties"]["type"]["const"]
        for rules in JobBody.model_json_schema()["properties"]["handler"]["anyOf"][1:]
    }
    assert known == set(KINDS), "describe the target in _HANDLER of api/schemas.py"
    assert all(f'"{kind}"' in inspect.getsource(making) for kind in KINDS), (
        "construct the new kind's target in worker/targets/making.py"
    )
