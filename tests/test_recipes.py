"""The recipes of CONTRIBUTING.md: a test names the file that lacks a new field, column, endpoint or target kind."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints
from uuid import UUID

import pytest
from fastapi.routing import APIRoute

import duly.store
from duly import checks, cli
from duly.api import examples
from duly.api.documents import job_document
from duly.api.routes import make_routes
from duly.api.schemas import JobBody, JobDocument, ListedJob
from duly.app import Duly
from duly.cli.commands.submit import read_handler, submit
from duly.client import AsyncClient, Client, calls
from duly.client.documents import read_job
from duly.config import load_settings
from duly.model import (
    DEFAULT_POLICY,
    JOB_RULES,
    POLICY_RULES,
    Alerts,
    CronOptions,
    DeadLetterFilter,
    Job,
    JobChanges,
    JobOptions,
    JobRequest,
    Policy,
    PolicyOptions,
    make_run_id,
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


def job_columns() -> str:
    """The schema's table of jobs, and the steps that may add columns to it."""
    return "\n".join(
        [schema("02_jobs.sql"), *(path.read_text() for path in (SCHEMA.parent / "migrations").glob("*.sql"))]
    )


def routine(name: str) -> str:
    return (SCHEMA.parent / "routines" / name).read_text()


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if type(None) in get_args(hint) else hint


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
        for name, default, choices, low, high, whole in row.findall(routine("01_submit_checks.sql"))
    }


class TestPolicyField:
    def test_each_field_is_described(self) -> None:
        assert set(POLICY_RULES) == {field.name for field in fields(Policy)}, "give the field `described(…)` in Policy"

    @pytest.mark.parametrize("name", POLICY_RULES)
    def test_the_sdk_types_it(self, name: str) -> None:
        typed = get_type_hints(PolicyOptions)
        assert name in typed, f"add {name} to PolicyOptions in model/options.py"
        if POLICY_RULES[name].kind not in (tuple, Alerts):  # a caller may pass any sequence for a tuple, and a map
            assert typed[name] == get_type_hints(Policy)[name], f"PolicyOptions.{name} has another type than Policy's"

    @pytest.mark.parametrize("name", sorted(set(POLICY_RULES) - {"secret_fields", "alerts"}))
    def test_duly_submit_in_sql_has_the_same_rule(self, name: str) -> None:
        rule = POLICY_RULES[name]
        found = sql_rules()
        assert name in found, f"add {name} to duly.stored_policy in store/routines/01_submit_checks.sql"
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
        assert re.search(rf"^    (add column )?{name} ", job_columns(), re.MULTILINE), (
            f"add the column {name} to duly.jobs in a new file of store/migrations"
        )
        door = routine("02_submit.sql")
        assert re.search(rf"^    {name} +\w+ default", door, re.MULTILINE), (
            f"add the parameter {name} to store/routines/02_submit.sql"
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
        # A request has None where nobody has set a field for which the task has a default.
        given = {name: asked[name] if rule.optional else _without_none(asked[name]) for name, rule in JOB_RULES.items()}
        assert {name: typed[name] for name in JOB_RULES if name in typed} == {
            name: given[name] for name in JOB_RULES if name in typed
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
            column = re.search(rf"^    (?:add column )?{name} +(\w+)", job_columns(), re.MULTILINE)
            assert column is not None
            if column[1] in wanted:
                assert copying._ENCODERS.get(name) is wanted[column[1]], f"give {name} an encoder in store/copying.py"
            else:
                assert (column[1] == "text") == (name not in copying._ENCODERS), f"{name} is {column[1]} in the table"


# Values for the required arguments of the client's calls, by name.
GIVEN: dict[str, Any] = {
    "job_id": JOB.job_id, "run_id": make_run_id(JOB.job_id, NOW), "handler": "h", "schedule": "every 1h", "start": NOW,
    "text": "nightly",
    "slug": "nightly", "outcome": "start",
    "request": JobRequest("h"), "requests": [JobRequest("h")], "wanted": DeadLetterFilter(queue="q"),
    "incident_id": JOB.job_id, "window_id": JOB.job_id, "ends_at": NOW,
}  # fmt: skip
# Steps of `redrive_all` and `purge_all`, which commands call one by one to show progress.
STEPS = {"redrive_some", "purge_some", "those_now"}
# `duly job show` finds its job by `list_jobs`, because a person gives the beginning of an id, or a name.
WITHOUT_COMMAND = {"change_job", "get_job"}


@cache
def endpoints() -> dict[str, APIRoute]:
    served = [cast("APIRoute", route) for route in make_routes(load_settings())]
    return {route.operation_id or route.name: route for route in served}


@cache
def client_calls() -> dict[str, str]:
    """The endpoint that each function of `client/calls.py` calls first."""
    found = {}
    for name, function in inspect.getmembers(calls, inspect.isfunction):
        if function.__module__ != calls.__name__ or name.startswith("_") or name == "request_of":
            continue
        needed = [one.name for one in inspect.signature(function).parameters.values() if one.default is one.empty]
        made = function(**{one: GIVEN[one] for one in needed if one in GIVEN})
        call = made.at(None) if isinstance(made, calls.Pages) else next(iter(made))
        served = (
            endpoint
            for endpoint, route in endpoints().items()
            if call.method in (route.methods or ()) and route.path_regex.match(calls.PREFIX + call.path)
        )
        found[name] = next(served, "no endpoint")
    return found


@cache
def used_by_commands() -> set[str]:
    """The names of the client's methods and calls in the sources of the command line."""
    text = "".join(path.read_text() for path in Path(cli.__file__).parent.rglob("*.py"))
    return {*re.findall(r"client\.(\w+)", text), *re.findall(r"duly\.client\.calls import (\w+)", text)}


class TestEndpoint:
    @pytest.mark.parametrize("name", endpoints())
    def test_a_client_and_a_command_call_it_and_it_has_an_example(self, name: str) -> None:
        assert name in examples.EXAMPLES, f"add an example of {name} to api/examples.py"
        callers = {call for call, endpoint in client_calls().items() if endpoint == name}
        assert callers, f"add a call of {name} to client/calls.py"
        if name not in WITHOUT_COMMAND:
            assert used_by_commands() & callers, (
                f"no command calls {name}: add it to cli/backend.py, or to WITHOUT_COMMAND here"
            )

    @pytest.mark.parametrize("name", sorted(client_calls().keys() - STEPS))
    def test_both_clients_have_each_call(self, name: str) -> None:
        for client in (Client, AsyncClient):
            assert hasattr(client, name), f"add {name} to {client.__name__} in client/clients.py"


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_kind_is_known_everywhere(kind: str) -> None:
    door = routine("02_submit.sql")
    listed = ", ".join(f"'{one}'" for one in KINDS)
    assert f"not in ({listed})" in door, (
        f"duly.submit must know the target kinds {listed} (store/routines/02_submit.sql)"
    )
    assert f"must be {' or '.join(KINDS)}" in door
    described = JobBody.model_json_schema()["properties"]["handler"]["anyOf"][1:]
    assert {rules["properties"]["type"]["const"] for rules in described} == set(KINDS), (
        "describe the target in _HANDLER of api/schemas.py"
    )
    assert find_spec(f"duly.worker.targets.{kind}"), f"add worker/targets/{kind}.py with the class that calls it"
    assert f'targets["{kind}"]' in inspect.getsource(making), "make the new kind's target in worker/targets/making.py"
    assert f'"type": "{kind}"' in inspect.getsource(read_handler), "add its options to cli/commands/submit.py"
