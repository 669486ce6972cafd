"""Tests of the checker: good histories pass, and a spoilt one is noticed by exactly the invariant that was broken."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from torture import checker
from torture.checker.invariants.owed import Queue
from torture.checker.records import micros
from torture.checker.stepping import make_grid, same_times
from torture.histories import START, Claim, History, Run, Told, iso, random_history, tell

HERE = Path(__file__).parent


def check(history: History, folder: Path) -> list[checker.Finding]:
    return checker.check(history.save(folder))


# Tools that spoil a history


def rows(h: History, table: str, op: str | None = None, run: Run | None = None) -> list[dict[str, Any]]:
    return [
        line
        for line in h.audit
        if line["table"] == table
        and op in (None, line["op"])
        and (run is None or _is_of(line["new"] or line["old"], run))
    ]


def _is_of(row: dict[str, Any], run: Run) -> bool:
    if "job_ids" in row:
        return (run.job_id, iso(run.due)) in zip(row["job_ids"], row["scheduled_ats"], strict=True)
    return (row.get("job_id"), row.get("scheduled_at")) == (run.job_id, iso(run.due))


def forget(h: History, run: Run) -> None:
    """Removes everything of a run except the move of its job by the fire."""
    gone = [line for table in ("runs", "claims", "history", "attempts") for line in rows(h, table, run=run)]
    h.audit = [line for line in h.audit if line not in gone]
    h.sink = [word for word in h.sink if word["run_id"] != run.run_id]


def words(h: History, run: Run, word: str | None = None, claim: Claim | None = None) -> list[dict[str, Any]]:
    return [
        one
        for one in h.sink
        if one["run_id"] == run.run_id
        and word in (None, one["word"])
        and (claim is None or one["token"] == claim.claim_id)
    ]


def rename(h: History, old: str, new: str) -> None:
    h.audit = json.loads(json.dumps(h.audit).replace(old, new))
    h.sink = json.loads(json.dumps(h.sink).replace(old, new))


def transaction(h: History) -> History:
    h.begin_transaction()
    return h


Spoil = Callable[[Told], History | None]
SPOILED: list[tuple[str, str, Spoil]] = []


def spoils(invariant: str) -> Callable[[Spoil], Spoil]:
    def keep(spoil: Spoil) -> Spoil:
        SPOILED.append((invariant, spoil.__name__, spoil))
        return spoil

    return keep


# Owed occurrences


@spoils("owed")
def moved_on_without_a_run(told: Told) -> None:
    forget(told.history, told.runs["on time"])


@spoils("owed")
def dropped_without_a_record(told: Told) -> None:
    """Delta's nine missed occurrences are not recorded."""
    h = told.history
    h.audit = [line for line in h.audit if line not in rows(h, "history", run=told.runs["dropped"])]


@spoils("owed")
def began_before_its_time(told: Told) -> None:
    words(told.history, told.runs["on time"], "begin")[0]["at"] = START + 9.9


@spoils("owed")
def began_late_for_no_reason(told: Told) -> None:
    for word in words(told.history, told.runs["on time"]):
        word["at"] += 6


@spoils("owed")
def recorded_but_never_begun(told: Told) -> None:
    told.history.sink = [word for word in told.history.sink if word["run_id"] != told.runs["last"].run_id]


@spoils("owed")
def skipped_although_nothing_was_unfinished(told: Told) -> None:
    h, run = told.history, told.runs["last"]
    fired = rows(h, "runs", "insert", run)[0]
    forget(h, run)
    row = {**rows(h, "history", run=told.runs["skipped"])[0]["new"], "scheduled_at": iso(110), "epoch": 3}
    h.audit.append({**fired, "table": "history", "new": row})


@spoils("owed")
def missed_within_the_grace(told: Told) -> None:
    rows(told.history, "history", run=told.runs["dropped"])[0]["new"]["finished_at"] = iso(100.5)


@spoils("owed")
def missed_more_than_there_were(told: Told) -> None:
    rows(told.history, "history", run=told.runs["dropped"])[0]["new"]["note"]["count"] = 12


@spoils("owed")
def missed_by_a_rule_the_job_does_not_have(told: Told) -> None:
    rows(told.history, "history", run=told.runs["dropped"])[0]["new"]["note"]["reason"] = "max_missed"


@spoils("owed")
def never_fired_at_all(told: Told) -> History:
    h = History()
    h.lead(0.1, 1)
    h.submit("silent", "every 10s", 1, first=11)
    return h


@spoils("owed")
def asked_and_not_answered(told: Told) -> None:
    told.history.final["explained"].append(
        {"job_id": told.alpha, "at": START + 40, "answer": {"verdict": "unrecorded"}}
    )


# One outcome


@spoils("outcomes")
def recorded_twice(told: Told) -> None:
    transaction(told.history)._record(111, told.runs["last"], "succeeded")


@spoils("outcomes")
def overwritten(told: Told) -> None:
    h = transaction(told.history)
    old = h.rows("history")[told.alpha, iso(110)]
    h.write(111, "history", "update", old, {**old, "status": "dead"})


@spoils("outcomes")
def withdrawn_without_a_redrive(told: Told) -> None:
    h = transaction(told.history)
    h.write(111, "history", "delete", h.rows("history")[told.alpha, iso(110)], None)


@spoils("outcomes")
def committed_twice(told: Told) -> None:
    row = {"job_id": told.alpha, "scheduled_at": iso(110), "token": told.claims["last"].claim_id}
    told.history.final["tables"] = {"effects": [row, dict(row)]}


# Fencing


@spoils("fencing")
def completed_by_the_lost_claim(told: Told) -> None:
    row = rows(told.history, "history", run=told.runs["rescued"])[0]["new"]
    row |= {"claim_id": told.claims["lost"].claim_id, "attempt": 1}


@spoils("fencing")
def failed_by_a_claim_that_had_let_go(told: Told) -> None:
    transaction(told.history)._tried(62, told.claims["snoozed"], told.runs["snoozed"], 1, "ValueError")


@spoils("fencing")
def effect_of_a_zombie_accepted(told: Told) -> None:
    words(told.history, told.runs["rescued"], "effect", told.claims["lost"])[0]["accepted"] = True


@spoils("fencing")
def heartbeat_of_a_claim_that_is_gone(told: Told) -> None:
    h = transaction(told.history)
    old = rows(h, "claims", "delete", told.runs["rescued"])[0]["old"]
    h.audit.append(
        {"n": 10_000, "txid": 10_000, "at": START + 33, "table": "claims", "op": "update", "old": old, "new": old}
    )
    h.final["tables"] = {"claims": []}


@spoils("fencing")
def later_claim_with_a_smaller_token(told: Told) -> None:
    rename(told.history, told.claims["again"].claim_id, "00000000-0000-7000-8000-000000000001")


@spoils("fencing")
def commit_of_a_handler_that_did_not_end_the_run(told: Told) -> None:
    row = {"job_id": told.alpha, "scheduled_at": iso(20), "token": told.claims["lost"].claim_id}
    told.history.final["tables"] = {"effects": [row]}


# Nothing acknowledged is lost


@spoils("acknowledged")
def submitted_and_gone(told: Told) -> None:
    told.history.asked("submit", "01a00000-0000-7000-8000-000000000009", 50)


@spoils("acknowledged")
def paused_in_name_only(told: Told) -> None:
    told.history.asked("pause", told.beta, 99)


@spoils("acknowledged")
def changed_in_name_only(told: Told) -> None:
    told.history.asked("change", told.alpha, 117, schedule="*/7 * * * * *")


@spoils("acknowledged")
def triggered_in_name_only(told: Told) -> None:
    told.history.asked("trigger", told.alpha, 114, answer={"run_id": Run(told.alpha, 114).run_id})


@spoils("acknowledged")
def refused_and_done_all_the_same(told: Told) -> None:
    operation = next(one for one in told.history.operations if one["job"] == "gamma")
    operation |= {"outcome": "failed", "status": 422, "answer": {"title": "Unprocessable"}}


@spoils("acknowledged")
def outcome_not_in_the_history_any_more(told: Told) -> None:
    kept = [row for key, row in told.history.rows("history").items() if key != (told.alpha, iso(110))]
    told.history.final["tables"] = {"history": kept}


# Second executions


@spoils("executions")
def began_twice_under_one_token(told: Told) -> None:
    h = told.history
    h.sink.append({**words(h, told.runs["last"], "begin")[0], "n": 10_000, "at": START + 110.3, "execution": "another"})


@spoils("executions")
def began_under_a_token_nobody_gave(told: Told) -> None:
    h = told.history
    h.sink.append(
        {**words(h, told.runs["now"], "begin")[0], "n": 10_000, "at": START + 5, "token": "a-token", "execution": "x"}
    )


@spoils("executions")
def put_back_without_a_word(told: Told) -> None:
    """The snooze is not noted in the claim."""
    h = told.history
    h.audit = [line for line in h.audit if line not in rows(h, "claims", "update", told.runs["snoozed"])]


# Leases


@spoils("leases")
def rescued_although_its_lease_stood(told: Told) -> None:
    rows(told.history, "claims", "delete", told.runs["rescued"])[0]["old"]["lease_until"] = iso(28)


@spoils("leases")
def lease_that_is_born_old(told: Told) -> None:
    """As if the lease were counted from the start of the transaction."""
    rows(told.history, "claims", "insert", told.runs["on time"])[0]["new"]["lease_until"] = iso(11)


@spoils("leases")
def worker_that_never_beats(told: Told) -> None:
    """The worker whose claim was rescued did all the other work too, for minutes and without a heartbeat."""
    h = told.history
    h.audit = json.loads(json.dumps(h.audit).replace('"worker-2"', '"worker-1"'))
    beats = [line for line in rows(h, "claims", "update") if line["new"]["released"] == line["old"]["released"]]
    h.audit = [line for line in h.audit if line not in beats]


# Overlap


@spoils("overlap")
def two_at_once(told: Told) -> History:
    h = History()
    h.lead(0.1, 1)
    job_id = h.submit("omega", "every 10s", 1, first=11)
    first = h.fire(job_id, 11.01, 21)
    claim = h.claim(11.02, first)
    h.say(11.03, "begin", claim, first)
    h.whole(h.fire(job_id, 21.01, 31), 21.02)
    h.say(25, "end", claim, first)
    h.complete(25.1, claim, first)
    h.pause(job_id, 26)
    return h


@spoils("overlap")
def one_while_another_waits_for_its_retry(told: Told) -> History:
    h = History()
    h.lead(0.1, 1)
    job_id = h.submit("omega", "every 10s", 1, first=11, overlap="queue")
    first = h.fire(job_id, 11.01, 21)
    claim = h.claim(11.02, first)
    h.say(11.03, "begin", claim, first)
    h.say(11.04, "end", claim, first)
    h.put_back(11.05, claim, first, error="ValueError", delay=12)
    h.whole(h.fire(job_id, 21.01, 31), 21.02)
    h.whole(first, 24)
    h.pause(job_id, 26)
    return h


@spoils("overlap")
def began_before_the_one_before_had_ended(told: Told) -> None:
    words(told.history, told.runs["waiting"], "begin")[0]["at"] = START + 24.2


# Expiry


def an_expired_run(expires: float = 4) -> tuple[History, Run, Claim]:
    """A run that waits in line for five seconds and has then expired."""
    h = History()
    h.lead(0.1, 1)
    job_id = h.submit("psi", "every 10s", 1, first=11, overlap="queue", start_within_seconds=expires)
    slow = h.fire(job_id, 11.01, 21)
    claim = h.claim(11.02, slow)
    h.say(11.03, "begin", claim, slow)
    for at in (13, 15, 17, 19, 21, 23, 25):
        h.beat(at, claim)
    waits = h.fire(job_id, 21.01, 31, state="waiting")
    h.say(26, "effect", claim, slow)
    h.say(26.1, "end", claim, slow)
    h.complete(26.2, claim, slow, next_in_line=waits)
    late = h.claim(26.3, waits)
    h.pause(job_id, 27)
    return h, waits, late


def test_a_run_that_expired_is_no_finding(tmp_path: Path) -> None:
    h, run, claim = an_expired_run()
    h.expire(26.4, claim, run, within=4)
    assert check(h, tmp_path) == []


@spoils("expiry")
def expired_too_early(told: Told) -> History:
    h, run, claim = an_expired_run(expires=8)
    h.expire(26.4, claim, run, within=8)
    return h


@spoils("expiry")
def expired_without_a_limit(told: Told) -> None:
    row = rows(told.history, "history", run=told.runs["last"])[0]["new"]
    row |= {"status": "missed", "attempt": 0}
    told.history.sink = [word for word in told.history.sink if word["run_id"] != told.runs["last"].run_id]


@spoils("expiry")
def expired_although_it_had_begun(told: Told) -> History:
    h, run, claim = an_expired_run()
    h.say(26.35, "begin", claim, run)
    h.expire(26.4, claim, run, within=4)
    return h


@spoils("expiry")
def began_although_it_had_expired(told: Told) -> History:
    h, run, claim = an_expired_run(expires=1)
    h.run["settings"]["misfire_grace"] = 3
    h.execute(claim, run, 26.31, 26.4)
    h.complete(26.5, claim, run)
    return h


# Deploys


def deployed(*deploys: str) -> History:
    """A job that these deploys declare one after the other, each with another schedule."""
    h = History()
    h.lead(0.1, 1)
    job_id = h.submit("declared:shop_report_1", "every 10s", 1, first=11)
    h.whole(h.fire(job_id, 11.01, 21), 11.02)
    for number, deploy in enumerate(deploys):
        h.redeclare(job_id, 12 + number, f"every {5 * (number + 1)}s", 1 + 5 * (number + 1) * (3 - number), deploy)
    h.pause(job_id, 14.5)
    return h


def test_a_deploy_after_a_deploy_is_no_finding(tmp_path: Path) -> None:
    assert check(deployed("deploy 9 of app 'shop'", "deploy 10 of app 'shop'"), tmp_path) == []


@spoils("deploys")
def redefined_by_an_older_deploy(told: Told) -> History:
    return deployed("deploy 10 of app 'shop'", "deploy 9 of app 'shop'")


@spoils("deploys")
def redefined_by_nobody_knows_whom(told: Told) -> History:
    return deployed("somebody")


@spoils("deploys")
def renamed_and_made_anew(told: Told) -> History:
    h = deployed("deploy 2 of app 'shop'")
    h.pause(h.submit("declared:shop_report_2", "every 10s", 1, first=11), 2)
    return h


@spoils("owed")
def given_up_by_a_deploy_without_a_record(told: Told) -> History:
    h = History()
    h.lead(0.1, 1)
    job_id = h.submit("declared:shop_tick", "every 10s", 1, first=11)
    h.redeclare(job_id, 40, "every 7s", 43, "deploy 2 of app 'shop'")
    h.pause(job_id, 41)
    return h


# next_run_at


def last_plan(told: Told) -> list[dict[str, Any]]:
    """Alpha's row as the fire of 08:01:50 left it, and the same row as the pause found it."""
    found = [line for line in rows(told.history, "jobs") if (line["old"] or {}).get("next_run_at") == iso(120)]
    fired = [line for line in rows(told.history, "jobs") if (line["new"] or {}).get("next_run_at") == iso(120)]
    return [*(line["new"] for line in fired), *(line["old"] for line in found)]


@spoils("grid")
def planned_off_the_grid(told: Told) -> None:
    for row in last_plan(told):
        row["next_run_at"] = iso(119.5)


@spoils("grid")
def planned_where_it_was(told: Told) -> None:
    for row in last_plan(told):
        row["next_run_at"] = iso(110)


@spoils("grid")
def resumed_with_one_that_had_fired(told: Told) -> None:
    told.history.resume(told.alpha, 116, 110)
    told.history.pause(told.alpha, 117)


@spoils("grid")
def resumed_with_one_that_fell_into_the_pause(told: Told) -> None:
    told.history.resume(told.delta, 120, 112)
    told.history.pause(told.delta, 121)


@spoils("grid")
def resumed_later_than_the_next_one(told: Told) -> None:
    told.history.resume(told.alpha, 116, 140)
    told.history.pause(told.alpha, 117)


# Epochs


@spoils("epochs")
def fired_by_a_deposed_leader(told: Told) -> None:
    rows(told.history, "runs", "insert", told.runs["snoozed"])[0]["new"]["epoch"] = 1


@spoils("epochs")
def skipped_by_a_leader_to_come(told: Told) -> None:
    rows(told.history, "history", "insert", told.runs["skipped"])[0]["new"]["epoch"] = 2


@spoils("epochs")
def epoch_that_goes_down(told: Told) -> None:
    told.history.lead(120, 2)


# Moves


@spoils("moves")
def queued_and_then_nowhere(told: Told) -> None:
    h = told.history
    run = h.trigger(told.alpha, 116)
    transaction(h)._delete_run(117, run)


@spoils("moves")
def taken_back_after_its_time(told: Told) -> None:
    """The change deletes a run that was due a second ago."""
    h = told.history
    for line in rows(h, "runs", run=Run(told.beta, 42.5)) + rows(h, "jobs") + rows(h, "changes"):
        if abs(line["at"] - START - 42.3) < 0.01:
            line["at"] = START + 43.5
    operation = next(one for one in h.operations if one["op"] == "change")
    operation["invoked"], operation["returned"] = START + 43.4, START + 43.6


@spoils("moves")
def queued_again_after_it_had_ended(told: Told) -> None:
    h = told.history
    transaction(h)._insert_run(116, told.runs["last"], "queued", 116, epoch=3)
    transaction(h)._delete_run(117, told.runs["last"])


@spoils("moves")
def claimed_while_it_waited(told: Told) -> None:
    h = told.history
    h.audit = [line for line in h.audit if line not in rows(h, "runs", "update", told.runs["waiting"])]


# Attempts


def renumber(told: Told, claim: str, run: str, attempt: int) -> None:
    h = told.history
    for line in rows(h, "claims", run=told.runs[run]):
        for row in (line["old"], line["new"]):
            if row and row["claim_id"] == told.claims[claim].claim_id:
                row["attempts"] = [attempt]
    for line in rows(h, "history", run=told.runs[run]):
        if line["new"] and line["new"]["claim_id"] == told.claims[claim].claim_id:
            line["new"]["attempt"] = attempt
    for word in words(h, told.runs[run], claim=told.claims[claim]):
        word["attempt"] = attempt


@spoils("attempts")
def one_left_out(told: Told) -> None:
    renumber(told, "retried", "retried", 3)


@spoils("attempts")
def crash_that_does_not_count(told: Told) -> None:
    renumber(told, "again", "rescued", 1)


@spoils("attempts")
def snooze_that_counts(told: Told) -> None:
    renumber(told, "woken", "snoozed", 2)


@spoils("attempts")
def redrive_that_goes_on_counting(told: Told) -> None:
    renumber(told, "redriven", "dead", 2)


@spoils("attempts")
def recorded_under_another_number(told: Told) -> None:
    rows(told.history, "history", run=told.runs["last"])[0]["new"]["attempt"] = 2


# Changes


@spoils("changes")
def fired_while_paused(told: Told) -> None:
    h = told.history
    transaction(h)._insert_run(50.01, Run(told.alpha, 50), "queued", 50.01, epoch=3)
    h.whole(Run(told.alpha, 50), 50.02)


@spoils("changes")
def fired_by_the_old_schedule(told: Told) -> None:
    h = told.history
    transaction(h)._insert_run(52.51, Run(told.beta, 52.5), "queued", 52.51, epoch=3)
    h.whole(Run(told.beta, 52.5), 52.52)


@spoils("changes")
def fired_after_the_cancel(told: Told) -> None:
    h = told.history
    transaction(h)._insert_run(122.51, Run(told.beta, 122.5), "queued", 122.51, epoch=3)
    h.whole(Run(told.beta, 122.5), 122.52)


# The end


@spoils("ending")
def stuck_in_the_queue(told: Told) -> None:
    told.history.trigger(told.alpha, 116)


@spoils("ending")
def stuck_under_a_claim(told: Told) -> None:
    h = told.history
    run = h.trigger(told.alpha, 116)
    h.say(116.2, "begin", h.claim(116.1, run), run)


@spoils("ending")
def idle_in_a_transaction(told: Told) -> None:
    row = {"pid": 9, "state": "idle in transaction", "xact_start": START + 20, "now": START + 126, "query": "select 1"}
    told.history.final["activity"].append(row)


@spoils("ending")
def too_many_connections(told: Told) -> None:
    told.history.final["activity"] *= 300


@spoils("ending")
def memory_that_only_grows(told: Told) -> None:
    sizes = [[START + at, 90_000 + 4_000 * at] for at in range(0, 121, 10)]
    told.history.final["processes"][0]["rss_kb"] = sizes


@spoils("ending")
def process_that_did_not_come_back(told: Told) -> None:
    told.history.final["processes"][0]["alive"] = False


# A spoilt history is noticed by the broken invariant alone


@pytest.mark.parametrize(("invariant", "name", "spoil"), SPOILED, ids=[name for _, name, _ in SPOILED])
def test_what_is_spoilt_is_noticed_by_its_invariant_alone(
    invariant: str, name: str, spoil: Spoil, tmp_path: Path
) -> None:
    told = tell()
    history = spoil(told) or told.history
    findings = check(history, tmp_path)
    assert {finding.invariant for finding in findings} == {invariant}, [finding.message for finding in findings]
    for finding in findings:
        assert "job" in finding.message
        assert "run" in finding.message or "operation" in finding.message
        assert "2027-01-15T08:" in finding.message or "since 18000000" in finding.message, finding.message
    assert json.loads((tmp_path / "findings.json").read_text()) == [finding.document() for finding in findings]


def test_every_invariant_is_spoilt_in_two_ways_at_least() -> None:
    ways = Counter(invariant for invariant, _, _ in SPOILED)
    assert set(ways) == set(checker.INVARIANTS)
    assert min(ways.values()) >= 2


def test_every_invariant_states_its_promise() -> None:
    for invariant in checker.INVARIANTS.values():
        assert len(invariant.__doc__ or "") > 60


def test_a_handler_in_a_process_of_its_own_may_wait_for_one(tmp_path: Path) -> None:
    told = tell()
    began_late_for_no_reason(told)
    for line in rows(told.history, "jobs"):
        for row in (line["old"], line["new"]):
            if row and row["job_id"] == told.runs["on time"].job_id:
                row["handler"] = "isolated"
    assert check(told.history, tmp_path) == []


@pytest.mark.parametrize(
    ("begins", "until", "busy"),
    [
        ([9.5, 10.2, 11.1, 12.0], 12.5, True),  # busy
        ([9.5, 10.2, 12.0], 12.5, False),  # a pause in which the run could have begun
        ([9.5, 10.2, 11.1], 12.5, False),
        ([], 10.5, False),
        ([9.5 + n / 2 for n in range(100)], 30, False),  # longer than `longest`
    ],
)
def test_a_run_may_wait_while_others_begin_without_a_pause(begins: list[float], until: float, busy: bool) -> None:
    queue = Queue([round(at * 1e6) for at in begins], longest=12_000_000)
    assert queue.between(10_000_000, round(until * 1e6)) == busy


def test_an_effect_that_came_too_late_to_be_refused_is_counted(tmp_path: Path) -> None:
    told = tell()
    assert check(told.history, tmp_path / "good") == []
    assert json.loads((tmp_path / "good" / "figures.json").read_text())["effects_too_late"] == 0
    hour = 3600
    said = words(told.history, told.runs["rescued"], "effect", told.claims["again"])[0]
    said["at"] += hour
    check(told.history, tmp_path / "late")
    assert json.loads((tmp_path / "late" / "figures.json").read_text())["effects_too_late"] == 1


# Good histories pass


def test_a_good_history_passes(tmp_path: Path) -> None:
    assert check(tell().history, tmp_path) == []
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["unchecked_schedules"] == []
    assert figures["faults"] == {"kill": 1, "postgres-crash": 1}
    assert figures["outcomes"]["missed"] == 2
    assert figures["missed"] == 10
    assert figures["effects_refused"] == 1
    assert figures["second_executions"] == 4
    assert [figures[name] for name in ("lost", "doubled", "stale_accepted")] == [0, 0, 0]


@settings(max_examples=25)
@given(st.integers(0, 10**9))
def test_any_good_history_passes(seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        assert check(random_history(seed, seconds=60), Path(folder)) == []


def test_the_order_of_rows_within_a_transaction_says_nothing(tmp_path: Path) -> None:
    history = tell().history
    ordered: list[dict[str, Any]] = []
    for number in dict.fromkeys(line["txid"] for line in history.audit):
        ordered += sorted((line for line in history.audit if line["txid"] == number), key=lambda line: line["table"])
    for number, line in enumerate(ordered, start=1):
        line["n"] = number
    history.audit = ordered
    assert check(history, tmp_path) == []


def test_partitions_and_the_products_own_names_of_tables_are_understood(tmp_path: Path) -> None:
    history = tell().history
    history.final["tables"] = {"history": list(history.rows("history").values())}
    for line in history.audit:
        if line["table"] == "history":
            line["table"] = "history_20270115"
        elif line["table"] == "changes":
            line["table"] = "job_changes"
    assert check(history, tmp_path) == []


# Time


def test_lateness_is_split_by_the_first_fault_and_the_last_heal(tmp_path: Path) -> None:
    history = tell().history
    history.fault("kill", "worker-1", 101, 102)
    check(history, tmp_path)
    lateness = json.loads((tmp_path / "figures.json").read_text())["lateness"]
    assert lateness["healthy"]["count"] == 4  # now, on time, slow, rescued
    assert lateness["healthy"]["max"] == pytest.approx(0.11)
    assert lateness["healed"]["count"] == 1  # only 110 is more than a lease after the last heal
    assert lateness["healed"]["max"] == pytest.approx(0.03)
    assert lateness["faulted"]["max"] == pytest.approx(12.21)


# A change that retracts a run before its time and takes effect after it


def given_up_by_a_change(reason: str) -> History:
    h = tell().history
    job = h.submit("delta", "every 10s", 70, first=80)
    run = h.fire(job, 79.8, 90)
    h.change(job, 79.9, "every 20s", 90, run)
    h._record(80.1, run, "missed", note={"count": 1, "first": iso(80), "last": iso(80), "reason": reason})
    h.cancel(job, 85)
    return h


def test_what_a_change_gave_up_is_explained_by_it(tmp_path: Path) -> None:
    assert check(given_up_by_a_change("changed"), tmp_path) == []


def test_a_run_that_stood_in_the_queue_is_not_missed_for_any_other_reason(tmp_path: Path) -> None:
    assert "moves" in {finding.invariant for finding in check(given_up_by_a_change("SKIP"), tmp_path)}


# A promotion of an asynchronous standby


def lost_at_a_promotion(standby: str) -> History:
    told = tell()
    h = told.history
    h.run["standby"] = standby
    h.fault("promotion", "primary", 60, 62)
    h.asked("submit", "01a00000-0000-7000-8000-000000000009", 59.5)
    begin = words(h, told.runs["after the change"], "begin")[0]
    h.sink.append({**begin, "n": 10_000, "at": START + 62.3, "token": "00-of-the-old-primary", "execution": "x"})
    h.forgets("01a00000-0000-7000-8000-000000000009", 59.4)
    h.forgets(told.runs["after the change"].job_id, 62.2, "claims")
    return h


def test_what_postgresql_had_not_replicated_is_reported_apart(tmp_path: Path) -> None:
    assert check(lost_at_a_promotion("asynchronous"), tmp_path) == []
    apart = json.loads((tmp_path / "figures.json").read_text())["not_replicated"]
    assert [finding["invariant"] for finding in apart] == ["acknowledged", "executions"]


def test_with_a_synchronous_standby_there_is_no_such_excuse(tmp_path: Path) -> None:
    findings = check(lost_at_a_promotion("synchronous"), tmp_path)
    assert [finding.invariant for finding in findings] == ["acknowledged", "executions"]


def test_nor_is_there_one_long_before_or_after_what_was_forgotten(tmp_path: Path) -> None:
    h = lost_at_a_promotion("asynchronous")
    h.forgotten[0]["at"] -= 40
    h.forgotten[1]["at"] += 5
    assert [finding.invariant for finding in check(h, tmp_path)] == ["acknowledged", "executions"]


def test_nor_for_what_the_old_primary_never_had(tmp_path: Path) -> None:
    h = lost_at_a_promotion("asynchronous")
    h.asked("submit", "01a00000-0000-7000-8000-000000000010", 59.5)
    assert [finding.invariant for finding in check(h, tmp_path)] == ["acknowledged"]


def test_a_token_that_comes_again_after_a_promotion_is_no_matter_of_replication(tmp_path: Path) -> None:
    told = tell()
    told.history.run["standby"] = "asynchronous"
    told.history.fault("promotion", "primary", 30, 31)
    rename(told.history, told.claims["again"].claim_id, told.claims["now"].claim_id)
    assert "fencing" in {finding.invariant for finding in check(told.history, tmp_path)}


# Operations of unknown effect make no finding


def test_an_unknown_operation_may_have_happened_or_not(tmp_path: Path) -> None:
    told = tell()
    h = told.history
    h.asked("submit", "01a00000-0000-7000-8000-000000000009", 50, outcome="unknown")
    h.asked("pause", told.alpha, 57, outcome="unknown")
    h.asked("change", told.alpha, 58, outcome="unknown", schedule="*/7 * * * * *")
    assert check(h, tmp_path) == []


def test_a_resume_that_overlaps_a_pause_may_have_come_after_it(tmp_path: Path) -> None:
    told = tell()
    fired_while_paused(told)
    told.history.asked("resume", told.alpha, 45, outcome="unknown", took=1)
    assert check(told.history, tmp_path) == []


# Schedules, compared with another implementation


@pytest.mark.parametrize(
    "expression", ["*/15 * * * *", "0 0 1,3,15 * *", "5-10,40 3 * * 1-5", "0 12 13 * 5", "30 2 * * 0", "7 */6 * * 7"]
)
def test_the_scan_finds_what_others_find(expression: str) -> None:
    start = datetime(2027, 1, 30, 11, 59, tzinfo=UTC)
    theirs = CronSim(expression, start)
    grid = make_grid(expression, None, None, 0)
    assert grid is not None
    at: int | None = micros(start.isoformat())
    for _ in range(30):
        assert at is not None
        at = grid.first_after(at)
        assert at == micros(next(theirs).isoformat())


def test_the_scan_knows_seconds_intervals_and_moments() -> None:
    def seconds(schedule: str, first: float, last: float, created: float = 2.5) -> list[float]:
        grid = make_grid(schedule, None, None, micros(iso(created)))
        assert grid is not None
        return [at / 1e6 - START for at in grid.between(micros(iso(first)), micros(iso(last)))]

    assert seconds("*/20 * * * * *", 0, 60) == [0, 20, 40, 60]
    assert seconds("5,7 * * * * *", 0, 66) == [5, 7, 65]
    assert seconds("every 20s", 3, 62.5) == [22.5, 42.5, 62.5]
    assert seconds("PT1M", 0, 130) == [2.5, 62.5, 122.5]
    assert seconds(iso(33.25), 0, 100) == [33.25]
    assert seconds("now", 0, 100) == []
    assert make_grid("RRULE:FREQ=DAILY", None, None, 0) is None


def test_spellings_of_one_schedule_are_one() -> None:
    assert same_times("PT60S", "every 1m")
    assert same_times("*/30 * * * * *", "0,30 * * * * *")
    assert not same_times("every 5s", "every 6s")
    assert not same_times("*/5 * * * * *", "every 5s")


# The files


def test_it_answers_in_time_for_a_long_run(tmp_path: Path) -> None:
    """Ten minutes make 50,000 changes and 30,000 words; a fifth of them shows how long checking takes."""
    history = random_history(1, seconds=200, jobs=45)
    history.save(tmp_path)
    assert len(history.audit) > 10_000
    began = time.process_time()
    assert checker.check(tmp_path) == []
    assert time.process_time() - began < 20 * len(history.audit) / 50_000


def test_half_a_line_at_the_end_of_the_sinks_log_is_left_out(tmp_path: Path) -> None:
    tell().history.save(tmp_path)
    with (tmp_path / "sink.jsonl").open("a") as file:
        file.write('{"n": 999, "wo')
    assert checker.check(tmp_path) == []


def test_a_broken_line_elsewhere_is_refused_by_file_and_line(tmp_path: Path) -> None:
    tell().history.save(tmp_path)
    path = tmp_path / "audit.jsonl"
    path.write_text("{nonsense\n" + path.read_text())
    with pytest.raises(checker.BadRecords, match=r"audit\.jsonl, line 1"):
        checker.check(tmp_path)


def test_the_command_says_what_was_broken_and_by_its_exit_code(tmp_path: Path) -> None:
    told = tell()
    assert _command(told.history.save(tmp_path / "good")) == (0, "0 findings\n")
    recorded_twice(told)
    code, said = _command(told.history.save(tmp_path / "bad"))
    assert code == 1
    assert "outcomes: job alpha" in said
    assert _command(tmp_path / "nothing")[0] == 2


def _command(folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "torture.checker", str(folder)],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_neither_the_checker_nor_the_report_imports_the_product_or_anything_else() -> None:
    seen = []
    for path in sorted([*HERE.glob("checker/**/*.py"), *HERE.glob("report/**/*.py")]):
        for name in _imports(path):
            seen.append(name)
            top = name.partition(".")[0]
            ours = name.startswith(("torture.checker", "torture.report"))
            assert ours or top in sys.stdlib_module_names, f"{path.relative_to(HERE)} imports {name}"
    assert len(seen) > 50


def _imports(path: Path) -> Iterator[str]:
    package = ["torture", *path.relative_to(HERE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            yield ".".join([*base, *([node.module] if node.module else [])])
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_a_history_is_not_changed_by_being_told_twice() -> None:
    first, second = tell().history, tell().history
    assert copy.deepcopy(first.audit) == second.audit
