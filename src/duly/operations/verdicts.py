"""Explains the fate of one occurrence: one verdict, one sentence, and the facts behind it.

No I/O: the records, the job's lifetime and the time in, an `Explanation` out. Records decide first; the job's lifetime
decides only if there is no record. So every expected occurrence has exactly one verdict.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from duly.errors import TooCostly
from duly.formats import exact_span, utc_text
from duly.model import Explanation, Occurrence, Run, Verdict, make_run_id
from duly.operations.lifetime import Lifetime, StoppedSpan, local_time, read_time
from duly.operations.wording import outcome
from duly.store.changes import Change
from duly.store.cluster import Leader
from duly.store.history import Deferred, Record
from duly.timing.schedule import MICROSECOND

# Up to this delay an occurrence counts as on time; beyond it the sentence calls it late.
_ON_TIME = timedelta(seconds=1)
_STOPPED = {"paused": Verdict.PAUSED, "parked": Verdict.PARKED, "cancelled": Verdict.CANCELLED}
_RULES = {
    "SKIP": "its missed_window is SKIP, so none of the missed ones runs",
    "RUN_ONCE": "its missed_window is RUN_ONCE, so only the latest missed one runs",
    "max_missed": "RUN_ALL runs at most max_missed of them, the newest",
    "catch_up_window": "it was older than catch_up_window_seconds allows",
    "too_costly": "the times of the schedule take too long to compute",
    "changed": "the schedule was changed before it ran, and planned anew from then on",
    "paused": "the job was paused before it ran",
    "cancelled": "the job was cancelled before it ran",
}
# The rules above that come from an operation on the job and not from its missed policy.
_UNDONE = {"changed": Verdict.CHANGED, "paused": Verdict.PAUSED, "cancelled": Verdict.CANCELLED}


class Judge:
    """Judges one job's occurrences in a range of time, by everything that is known about them."""

    def __init__(
        self,
        life: Lifetime,
        records: Sequence[Record],
        catch_ups: Sequence[Deferred],
        leader: Leader,
        days: Collection[date],
        grace: timedelta,
    ) -> None:
        self._life = life
        self._job = life.job
        self._records = {record.run.scheduled_at: record for record in records}
        self._dropped = sorted(
            ((record.run.scheduled_at, record) for record in records if _is_range(record.run)), key=lambda one: one[0]
        )
        self._catch_ups = catch_ups
        self._leader = leader
        self._now = leader.now
        self._days = days
        self._grace = grace
        self._counted: tuple[datetime, int] | None = None

    @property
    def recorded(self) -> list[datetime]:
        return list(self._records)

    def judge(self, occurrence: Occurrence) -> Explanation:
        moment = occurrence.scheduled_at
        record = self._records.get(moment)
        if record is not None:
            return self._of_record(occurrence, record)
        if occurrence.dropped:
            return self._of_dst(occurrence, {})
        if (covering := self._covering(moment)) is not None:
            return self._of_missed(occurrence, covering.run)
        for catch_up in self._catch_ups:
            if catch_up.first_at <= moment <= catch_up.last_at:
                return self._of_catch_up(occurrence, catch_up)
        if (stop := self._life.stop_at(moment)) is not None:
            return self._of_stop(occurrence, stop)
        return (
            self._of_plan(occurrence)
            or self._of_change(occurrence)
            or self._of_rezoning(occurrence)
            or self._of_nothing(occurrence)
        )

    def not_an_occurrence(self, moment: datetime) -> Explanation:
        """Explains a time at which no occurrence was expected, with the occurrences around it."""
        job, life = self._job, self._life
        here = Occurrence(moment, local_time(moment, job.timezone))
        before, after = life.before(moment), life.after(moment)
        facts: dict[str, Any] = {
            "previous": before and before.scheduled_at,
            "next": after and after.scheduled_at,
        }
        if moment < job.created_at:
            facts["created_at"] = job.created_at
            first = f"; its first occurrence is {utc_text(after.scheduled_at)}" if after is not None else ""
            sentence = f"The job did not exist yet: it was submitted at {utc_text(job.created_at)}{first}."
            return self._say(here, Verdict.NOT_CREATED, sentence, facts)
        for change in life.changes:
            if change.what == "rezoned" and read_time(change.detail["next_run_at"]) == moment:
                to = read_time(change.detail["moved_to"])
                facts |= {"rezoned_at": change.at, "reason": change.reason, "moved_to": to}
                sentence = (
                    f"Planned for this time until {change.reason} came into force and moved it to {utc_text(to)}."
                )
                return self._say(here, Verdict.CHANGED, sentence, facts)
        stretch, current = life.stretch_at(moment), life.stretches[-1]
        around = " and ".join(utc_text(one.scheduled_at) for one in (before, after) if one is not None)
        nearest = f"; the nearest are {around}" if around else "; there is none"
        if stretch.timetable is None or life.cut:
            stop = life.stop_at(moment)
            if stop is not None:
                return self._of_stop(here, stop)
            if life.cut:
                why = f"whether {stretch.definition} occurs then takes too long to compute"
                return self._cannot_tell(here, why, facts)
            return self._say(
                here, Verdict.UNRECORDED,
                f"Nothing is recorded, and the schedule ({stretch.definition}) cannot be read any more to tell whether "
                "this is an occurrence.", facts,
            )  # fmt: skip
        if stretch.ended_by is not None and life.occurs_at(current, moment):
            return self._say(
                here, Verdict.CHANGED,
                f"Not an occurrence then: until {utc_text(stretch.until)} the schedule in force was "
                f"{stretch.definition}{nearest}.",
                {"schedule_then": str(stretch.definition), "changed_at": stretch.until, **facts},
            )  # fmt: skip
        return self._say(here, Verdict.NOT_AN_OCCURRENCE, f"Not an occurrence of {stretch.definition}{nearest}.", facts)

    def _of_record(self, occurrence: Occurrence, record: Record) -> Explanation:
        run = record.run
        if run.status == "missed":
            if (run.note or {}).get("reason") == "dst_gap":
                return self._of_dst(occurrence, {"recorded_at": run.finished_at})
            return self._of_missed(occurrence, run)
        if run.status == "skipped":
            return self._of_overlap(occurrence, run)
        lag = run.fired_at - run.scheduled_at if run.fired_at is not None else timedelta(0)
        ahead, lag = max(-lag, timedelta(0)), max(lag, timedelta(0))
        facts: dict[str, Any] = {
            "fired_at": run.fired_at,
            "lag_seconds": lag.total_seconds(),
            "fired_by": record.fired_by,
            "epoch": run.epoch,
            "run_id": run.run_id,
            "run_status": run.status,
            "attempt": run.attempt,
        }
        if run.epoch is None:
            who = "by hand" if record.triggered else "by the submitter"
        elif record.fired_by is not None:
            who = f"by {record.fired_by}, epoch {run.epoch}"
        else:
            who = f"in epoch {run.epoch}, by a node that is no longer known"
        if record.triggered:
            verdict, how = Verdict.TRIGGERED, "Triggered"
        elif run.missed:
            verdict = Verdict.FIRED_LATE
            how = f"Missed, then fired {exact_span(lag)} late as missed_window={self._job.policy.missed_window} says,"
        elif lag > _ON_TIME:
            verdict, how = Verdict.FIRED_LATE, f"Fired {exact_span(lag)} late"
        elif ahead:
            verdict, how = Verdict.FIRED, f"Fired on time (in the queue {exact_span(ahead)} before it was due)"
        else:
            verdict, how = Verdict.FIRED, f"Fired on time ({exact_span(lag)} after it was due)"
        return self._say(occurrence, verdict, f"{how} {who}; {outcome(run)}.", facts, run=run)

    def _of_overlap(self, occurrence: Occurrence, run: Run) -> Explanation:
        note = run.note or {}
        unfinished = note.get("unfinished")
        facts: dict[str, Any] = {"fired_at": run.fired_at, "overlap": note.get("overlap"), "epoch": run.epoch}
        by = "an earlier run"
        if unfinished is not None:
            earlier = read_time(unfinished)
            facts |= {"unfinished": earlier, "unfinished_run_id": make_run_id(run.job_id, earlier)}
            by = f"the run of {utc_text(earlier)}"
        why = f"{by} was unfinished"
        if note.get("overlap") == "queue":
            why += " and as many as max_queued allows were waiting"
        sentence = f"Skipped: overlap is {note.get('overlap')}, and {why}."
        return self._say(occurrence, Verdict.SKIPPED, sentence, facts, run=run)

    def _of_missed(self, occurrence: Occurrence, run: Run) -> Explanation:
        note = run.note or {}
        reason = str(note.get("reason"))
        if reason == "expired":
            return self._of_expired(occurrence, run, note)
        first, last = _range(run)
        count = int(note.get("count", 1))
        facts: dict[str, Any] = {
            "rule": reason, "count": count, "first": first, "last": last, "found_at": run.finished_at,
            "epoch": run.epoch,
        }  # fmt: skip
        among = f"one of {count} from {utc_text(first)} to {utc_text(last)}" if count > 1 else "the only one"
        noticed = "given up" if reason in _UNDONE else "found unfired"
        when = f" at {utc_text(run.finished_at)}" if run.finished_at is not None else ""
        sentence = f"Missed and not run: {noticed}{when} ({among}); {_RULES.get(reason, reason)}."
        return self._say(occurrence, _UNDONE.get(reason, Verdict.MISSED), sentence, facts)

    def _of_expired(self, occurrence: Occurrence, run: Run, note: Mapping[str, Any]) -> Explanation:
        seconds = note.get("start_within_seconds")
        facts: dict[str, Any] = {
            "rule": "expired", "start_within_seconds": seconds, "fired_at": run.fired_at, "found_at": run.finished_at,
            "epoch": run.epoch, "run_id": run.run_id,
        }  # fmt: skip
        when = f" (found at {utc_text(run.finished_at)})" if run.finished_at is not None else ""
        sentence = f"Fired and not run: it expired, because no worker started it within {seconds} s{when}."
        return self._say(occurrence, Verdict.MISSED, sentence, facts, run=run)

    def _of_catch_up(self, occurrence: Occurrence, catch_up: Deferred) -> Explanation:
        facts: dict[str, Any] = {"first": catch_up.first_at, "last": catch_up.last_at, "count": catch_up.count}
        sentence = (
            f"Missed, and to be run late as missed_window={self._job.policy.missed_window} says: it waits for its turn "
            f"with {catch_up.count - 1} others of the job."
        )
        return self._say(occurrence, Verdict.CATCHING_UP, sentence, facts)

    def _of_dst(self, occurrence: Occurrence, facts: dict[str, Any]) -> Explanation:
        verb = "Dropped" if occurrence.scheduled_at <= self._now else "Will be dropped"
        note = occurrence.note or "the local time does not exist that day"
        return self._say(occurrence, Verdict.DST_DROPPED, f"{verb} because dst_gap is skip: {note}.", facts)

    def _of_stop(self, occurrence: Occurrence, stop: StoppedSpan) -> Explanation:
        change = stop.change
        facts: dict[str, Any] = {f"{change.what}_at": change.at, "reason": change.reason}
        why = f" ({change.reason})" if change.reason else ""
        if change.what == "cancelled":
            sentence = f"The job was cancelled at {utc_text(change.at)}{why}."
        elif stop.until is not None:
            facts["resumed_at"] = stop.until
            sentence = f"The job was {change.what} then{why}: from {utc_text(change.at)} until {utc_text(stop.until)}."
        else:
            ahead = "; it fires only if it is resumed before" if occurrence.scheduled_at > self._now else ""
            if (until := change.until) is not None:
                facts["paused_until"] = until
                ahead = f", until {utc_text(until)}, when it goes on by itself"
            sentence = f"The job is {change.what} since {utc_text(change.at)}{why}{ahead}."
        return self._say(occurrence, _STOPPED[change.what], sentence, facts)

    def _of_plan(self, occurrence: Occurrence) -> Explanation | None:
        """Explains an occurrence that is yet to come or overdue: the job has not moved past it."""
        moment, planned = occurrence.scheduled_at, self._job.next_run_at
        if planned is None or moment < planned:
            return None
        timetable = self._life.stretches[-1].timetable
        if self._job.max_runs is not None and timetable is not None:
            runs_left = max(0, self._job.max_runs - self._job.run_count)
            # Occurrences are judged in their order, so each count continues the previous count.
            upto, count = self._counted or (planned - MICROSECOND, 0)
            if upto > moment:
                upto, count = planned - MICROSECOND, 0
            try:
                count += (
                    timetable.count(upto, moment, runs_left + 1 - count, self._life.fuel) if count <= runs_left else 0
                )
            except TooCostly:
                return self._cannot_tell(occurrence, "the occurrences before it take too long to count")
            self._counted = moment, count
            if count > runs_left:
                return self._of_end(occurrence)
        if moment > self._now:
            return self._say(
                occurrence, Verdict.NOT_DUE, f"Not yet due: in {exact_span(moment - self._now)}.",
                {"due_in_seconds": (moment - self._now).total_seconds()},
            )  # fmt: skip
        late, leader = self._now - moment, self._leader
        facts: dict[str, Any] = {
            "late_seconds": late.total_seconds(), "shard": self._job.shard, "epoch": leader.epoch,
            "leader": leader.name, "leader_alive": leader.alive,
        }  # fmt: skip
        if leader.name is None:
            why = f"no scheduler leads its shard {self._job.shard} (start one with: duly scheduler)"
        elif leader.alive:
            why = f"{leader.name} leads its shard {self._job.shard} and has not fired it yet"
        else:
            why = f"{leader.name}, which led its shard {self._job.shard}, has not been heard of since its lease ran out"
        if late > self._grace:
            facts["missed_window"] = self._job.policy.missed_window
            why += f"; once it is found, missed_window={self._job.policy.missed_window} decides"
        return self._say(occurrence, Verdict.OVERDUE, f"Overdue by {exact_span(late)}: {why}.", facts)

    def _cannot_tell(self, occurrence: Occurrence, why: str, facts: dict[str, Any] | None = None) -> Explanation:
        """The verdict UNRECORDED, for a question that costs too much fuel; `why` names the question."""
        return self._say(occurrence, Verdict.UNRECORDED, f"Nothing is recorded, and {why}.", facts or {})

    def _of_change(self, occurrence: Occurrence) -> Explanation | None:
        """Explains an occurrence that did not fire before the job was changed, stopped or ended."""
        moment = occurrence.scheduled_at
        change = self._life.change_after(moment)
        if change is None:
            last = self._job.last_run_at
            return self._of_end(occurrence) if self._life.ended and (last is None or moment > last) else None
        if "next_run_at" in change.detail:
            stood = change.detail["next_run_at"]
            if stood is None:
                return self._of_end(occurrence)
            if read_time(stood) > moment:
                return None
        elif not self._kept(moment):
            return None
        return self._of_overdue_change(occurrence, change)

    def _of_rezoning(self, occurrence: Occurrence) -> Explanation | None:
        """Explains an occurrence by the current time-zone data, at a time before that data was in force."""
        change = self._life.rezoned_after(occurrence.scheduled_at)
        if change is None:
            return None
        return self._say(
            occurrence, Verdict.CHANGED,
            f"By the time-zone data of then this was no occurrence; it is one by {change.reason}, which is in force "
            f"since {utc_text(change.at)}.", {"rezoned_at": change.at, "reason": change.reason},
        )  # fmt: skip

    def _of_overdue_change(self, occurrence: Occurrence, change: Change) -> Explanation:
        facts: dict[str, Any] = {f"{change.what}_at": change.at, "reason": change.reason}
        why = f" ({change.reason})" if change.reason else ""
        what = f"the job was {change.what} at {utc_text(change.at)}{why}"
        if change.what not in _STOPPED:
            what += ", and was planned anew from then on"
        verdict = _STOPPED.get(change.what, Verdict.CHANGED)
        return self._say(occurrence, verdict, f"Due, but not fired before {what}.", facts)

    def _of_end(self, occurrence: Occurrence) -> Explanation:
        job = self._job
        facts: dict[str, Any] = {"runs": job.run_count, "max_runs": job.max_runs, "last_run_at": job.last_run_at}
        if job.max_runs is not None:
            tense = "has" if job.run_count >= job.max_runs else "will have"
            sentence = f"The job {tense} had all of its {job.max_runs} runs by then (max_runs)."
        else:
            last = f": its last occurrence was {utc_text(job.last_run_at)}" if job.last_run_at is not None else ""
            sentence = f"Nothing was planned any more{last}."
        return self._say(occurrence, Verdict.ENDED, sentence, facts)

    def _of_nothing(self, occurrence: Occurrence) -> Explanation:
        day = occurrence.scheduled_at.astimezone(UTC).date()
        if self._kept(occurrence.scheduled_at):
            sentence = "Nothing is recorded of it, although the job has moved past it: this should not happen."
            return self._say(occurrence, Verdict.UNRECORDED, sentence, {"next_run_at": self._job.next_run_at})
        sentence = f"No longer known: the job has moved past it, and the history of {day} is not kept any more."
        return self._say(occurrence, Verdict.PRUNED, sentence, {"day": str(day)})

    def _kept(self, moment: datetime) -> bool:
        return moment.astimezone(UTC).date() in self._days

    def _covering(self, moment: datetime) -> Record | None:
        at = bisect_right(self._dropped, moment, key=lambda one: one[0]) - 1
        if at < 0 or _range(self._dropped[at][1].run)[1] < moment:
            return None
        return self._dropped[at][1]

    def _say(
        self, occurrence: Occurrence, verdict: Verdict, sentence: str, facts: dict[str, Any], *, run: Run | None = None
    ) -> Explanation:
        stretch = self._life.stretch_at(occurrence.scheduled_at)
        if stretch.ended_by is not None and verdict is not Verdict.NOT_CREATED:
            # The job's current schedule is not the schedule that was in force then.
            facts = {"schedule_then": str(stretch.definition), "changed_at": stretch.until, **facts}
        if occurrence.note is not None and verdict is not Verdict.DST_DROPPED:
            sentence += f" DST: {occurrence.note}."
        return Explanation(
            self._job.job_id, occurrence.scheduled_at, occurrence.local, verdict, sentence, facts, occurrence.note, run
        )


def _is_range(run: Run) -> bool:
    return run.status == "missed" and (run.note or {}).get("reason") != "dst_gap"


def _range(run: Run) -> tuple[datetime, datetime]:
    """The first and the last missed occurrence that the record of `run` stands for."""
    note = run.note or {}
    first, last = note.get("first"), note.get("last")
    return (
        run.scheduled_at if first is None else read_time(first),
        run.scheduled_at if last is None else read_time(last),
    )
