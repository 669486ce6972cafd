"""The tenant of those who open the store themselves: `duly --tenant`, DULY_TENANT, `Duly(tenant=…)`, and the hints."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commands import Ended, Process

Run = Callable[..., Ended]
Start = Callable[..., Process]

# Two tenants, one of them in the code.
OF_ACME = """
from duly import Duly

app = Duly(tenant="acme")


@app.cron("0 9 * * *")
def of_acme() -> None:
    pass
"""


def names(ended: Ended) -> set[str]:
    assert ended.code == 0, ended.err
    return {json.loads(line)["name"] for line in ended.out.splitlines()}


def test_each_command_about_jobs_is_about_the_tenant_that_is_named(
    duly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = ("--tenant", "acme")
    assert duly(*acme, "submit", "greet", "--name", "theirs", "--schedule", "every 1h").code == 0
    assert duly("submit", "greet", "--name", "mine").code == 0
    (tmp_path / "lines").write_text('{"handler": "greet", "name": "filed"}\n')
    assert duly(*acme, "submit", "--file", str(tmp_path / "lines")).code == 0
    (tmp_path / "table").write_text("0 3 * * * backup\n")
    assert duly(*acme, "import", "crontab", str(tmp_path / "table"), "--yes").code == 0
    assert names(duly("job", "list", "--json")) == {"mine"}
    assert names(duly(*acme, "job", "list", "--json")) == {"theirs", "filed", "backup"}
    assert duly(*acme, "job", "pause", "theirs").code == 0
    assert "paused" in duly(*acme, "explain", "theirs").out
    assert {item["handler"] for item in duly(*acme, "forecast", "--minutes", "1440", "--json").document["items"]} == {
        "command"
    }
    monkeypatch.setenv("DULY_TENANT", "acme")
    assert names(duly("job", "list", "--json", "--name", "theirs")) == {"theirs"}
    assert names(duly("--tenant", "default", "job", "list", "--json")) == {"mine"}, "the option wins"
    monkeypatch.delenv("DULY_TENANT")
    (tmp_path / "duly.toml").write_text('tenant = "acme"\n')
    assert names(duly("job", "list", "--json", "--name", "theirs")) == {"theirs"}


def test_a_key_and_a_signing_secret_are_of_that_tenant_too(duly: Run) -> None:
    assert duly("--tenant", "acme", "key", "create", "--role", "read", "--json").document["tenant"] == "acme"
    assert duly("key", "create", "--role", "read", "--json").document["tenant"] == "default"
    own = duly("--tenant", "acme", "webhook-secret").out
    assert own == duly("webhook-secret", "--tenant", "acme").out
    assert own != duly("webhook-secret").out


def test_the_limits_and_bounds_of_the_tenant_hold(duly: Run) -> None:
    assert duly("tenant", "set", "acme", "--max-jobs", "1", "--no-commands").code == 0
    assert duly("--tenant", "acme", "submit", "greet", "--schedule", "every 1h").code == 0
    assert duly("--tenant", "acme", "submit", "greet", "--schedule", "every 1h").code == 6
    refused = duly("--tenant", "acme", "submit", "--command", "--", "id")
    assert (refused.code, "tenant 'acme' may not submit commands" in refused.err) == (7, True)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "a\x1bb"])
def test_a_name_that_is_none_is_refused_as_for_keys(duly: Run, name: str) -> None:
    refused = duly("--tenant", name, "job", "list")
    assert refused.code == 2
    assert "tenant (--tenant, DULY_TENANT) must" in refused.err
    assert duly("key", "create", "--role", "read", "--tenant", name).code == 2


def test_through_an_api_the_key_decides(duly: Run, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    url = start("api", "--port", "0", DULY_TENANT="acme").wait_for(r"(http://127\.0\.0\.1:\d+)/api/v1")[1]
    assert duly("--tenant", "acme", "submit", "greet", "--name", "theirs").code == 0
    refused = duly("--url", url, "--tenant", "acme", "job", "list")
    assert (refused.code, "the key decides" in refused.err) == (2, True)
    # The API's own user, who has the local key, is of the tenant of the API's settings.
    assert names(duly("--url", url, "job", "list", "--json")) == {"theirs"}
    monkeypatch.setenv("DULY_TENANT", "other")
    assert names(duly("--url", url, "job", "list", "--json")) == {"theirs"}, "DULY_TENANT is ignored"
    monkeypatch.setenv("DULY_URL", url)
    assert duly("--tenant", "acme", "job", "list").code == 2
    key = duly("key", "create", "--role", "read", "--tenant", "third").out.strip()
    monkeypatch.setenv("DULY_API_KEY", key)
    silent = duly("job", "list")
    assert silent.err == "no jobs\n", "nothing about other tenants"
    own_way = ("--database-url", os.environ["DULY_DATABASE_URL"], "--tenant", "acme")
    unknown = duly("job", "show", duly(*own_way, "job", "list", "--json").lines[0]["job_id"])
    assert (unknown.code, "acme" in unknown.err) == (4, False)


def test_a_list_of_nothing_says_who_has_jobs(duly: Run) -> None:
    assert duly("job", "list").err == "no jobs\n", "nobody has any"
    for tenant in ("b", "c d"):
        assert duly("--tenant", tenant, "submit", "fail", "--name", "theirs", "--allow-unknown-handler").code == 0
    listed = duly("job", "list", "--json")
    assert (listed.code, listed.out) == (0, "")
    assert listed.err == "tenant 'default' has no jobs; tenants here: b, c d (duly --tenant b …)\n"
    for command in (("dead", "list"), ("forecast",)):
        assert "tenants here: b, c d" in duly(*command).err
    assert "tenants here: b, c d (duly --tenant b …)" in duly("--tenant", "x", "job", "list").err
    assert "tenant" not in duly("--tenant", "b", "job", "list", "--name", "another").err
    assert duly("submit", "greet").code == 0
    assert "tenants here: default, b, c d" in duly("--tenant", "x", "job", "list").err
    assert duly("--tenant", "x", "submit", "greet").code == 0, "a submit of a new tenant just works"


def test_what_another_tenant_has_is_named_with_the_command(duly: Run, start: Start) -> None:
    job_id = duly("--tenant", "o'b", "submit", "fail", "--max-retries", "0", "--json", "--allow-unknown-handler")
    job = job_id.document["job_id"]
    assert duly("submit", "greet").code == 0
    start("worker", "--app", "tasks_of_test:app").wait_for("fail +dead")
    run = duly("--tenant", "o'b", "job", "runs", job, "--json").lines[0]["run_id"]
    hint = "tenant \"o'b\" has {} (duly --tenant 'o'\"'\"'b' …)\n"
    for command in (("job", "show", job), ("job", "runs", job[:13]), ("explain", job), ("job", "pause", job)):
        missing = duly(*command)
        assert missing.code == 4
        assert missing.err.endswith(hint.format("one with this id")), missing.err
    assert duly("job", "show", "fail").err.endswith(hint.format("one with this name"))
    for command in (("run", "show", run), ("run", "cancel", run)):
        assert duly(*command).err.endswith(hint.format("the job of this run"))
    for action in ("show", "redrive", "purge"):
        command = ("dead", action, run)
        assert duly(*command).err.endswith(hint.format("it")), command
    assert "tenant" not in duly("job", "show", "no-such-job").err


def test_the_status_says_that_it_counts_the_whole_store(duly: Run) -> None:
    assert "counts   of the whole store, all tenants" in duly("--tenant", "acme", "status").out
    assert duly("status", "--json").document["counts"]["scope"] == "store"


def test_a_worker_declares_the_jobs_of_the_tenant_that_is_named(duly: Run, start: Start, project: Path) -> None:
    (project / "of_acme.py").write_text(OF_ACME)
    worker = start("--tenant", "b", "worker", "--app", "tasks_of_test:app", "--tenant", "c", "--processes", "1")
    worker.wait_for("declares jobs of tenant 'b' and takes only the runs of 'c'")
    worker.wait_for("worker .* is running")
    assert names(duly("--tenant", "b", "job", "list", "--json")) == {"weekly"}
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    by_code = start("worker", "--app", "of_acme:app")
    by_code.wait_for("worker .* is running")
    assert names(duly("--tenant", "acme", "job", "list", "--json")) == {"of_acme"}
    assert duly("job", "list", "--json").lines == []
    contradicting = start("--tenant", "b", "worker", "--app", "of_acme:app")
    assert contradicting.end() == 2
    assert "names the tenant 'acme'" in contradicting.said


def test_the_option_goes_before_the_command(duly: Run) -> None:
    assert "goes before the command: duly --tenant … job list" in duly("job", "list", "--tenant", "b").err
