"""The model does what the SQL does: the same random calls run on both; every answer and every table is compared."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from duly.model import DEFAULT_POLICY, Buried, ClaimedRun, Expired, Policy, Requeued, Succeeded
from duly.states import RunFlag
from duly.store import cluster, fires, jobs, maintenance, runs
from duly.store.fires import Fires, Release, SimpleFires
from duly.store.jobs import NewJob
from duly.store.pool import Pool
from simulation.model import INFINITY, Job, Model, Transaction

STEPS = int(os.environ.get("DULY_SIM_STEPS", "400"))
START = datetime(2031, 3, 3, 12, 0, tzinfo=UTC)
SHARDS = 2
ERROR = '{"type": "E", "message": "", "traceback": null}'


class Direct:
    """Executes statements on the model directly, without the simulated link."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def fetch(self, name: str, *args: Any) -> Any:
        return self.model.execute(name, args)

    fetch_planned = fetch

    async def row(self, name: str, *args: Any) -> Any:
        rows = self.model.execute(name, args)
        return rows[0] if rows else None

    async def together(self, work: Any) -> Any:
        within = _Within(self.model)
        result = await work(within)
        self.model.commit(within.transaction)
        return result


class _Within:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.transaction = Transaction()

    async def fetch(self, name: str, *args: Any) -> Any:
        return self.model.execute_within(self.transaction, name, args)

    async def row(self, name: str, *args: Any) -> Any:
        rows = await self.fetch(name, *args)
        return rows[0] if rows else None

    async def together(self, work: Any) -> Any:
        return await work(self)


class Pair:
    """PostgreSQL and the model, side by side, on one clock that only the test moves."""

    def __init__(self, pool: Pool, dice: Random) -> None:
        self.pool = pool
        self.dice = dice
        self.now = START
        self.model = Model(SHARDS, lambda: self.now, dice)
        self.modelled: Any = Direct(self.model)
        self.nodes = [UUID(int=dice.getrandbits(128)) for _ in range(3)]
        self.workers = [UUID(int=dice.getrandbits(128)) for _ in range(2)]
        self.jobs: list[UUID] = []
        self.terms: list[tuple[int, int]] = [(shard, 0) for shard in range(SHARDS)]
        #: Claims by number: the token each side gave, and the runs under it.
        self.claims: list[tuple[UUID, UUID, dict[Any, tuple[ClaimedRun, ClaimedRun]]]] = []
        self.real_tokens: dict[UUID, int] = {}
        self.model_tokens: dict[UUID, int] = {}

    async def both(self, call: Any, **named: Any) -> Any:
        """Makes the same call on both and checks that both give the same answer."""
        real = await call(self.pool, **named)
        ours = await call(self.modelled, **named)
        assert real == ours, f"{call.__name__}: PostgreSQL says {real}, the model {ours}"
        return real

    async def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        await self.pool.query("update duly.clock set frozen_at = $1", self.now)

    async def submit(self) -> None:
        number = len(self.jobs) + 1
        shard = self.dice.randrange(SHARDS)
        job_id = UUID(int=(0x7000 << 64) | (number * 64 + shard))
        policy = Policy(overlap=self.dice.choice(["skip", "queue", "parallel"]), max_retries=self.dice.choice([1, 3]))
        next_run_at = self.now + timedelta(seconds=self.dice.choice([1, 5]))
        job = NewJob(
            job_id=job_id, shard=shard, name="sim", payload="{}", payload_ref=None, dedupe_key=None, fingerprint=None,
            next_run_at=next_run_at, tenant="default", handler="sim", target=None, kind="interval",
            schedule="every 5s", timezone="UTC", start_at=None, end_at=None, max_runs=None, queue="default",
            priority=5, policy=policy.to_stored(), labels=None, immediate=False,
        )  # fmt: skip
        await jobs.submit(self.pool, [job], created_at=self.now)
        self.model.put(
            Job(
                job_id=job_id, shard=shard, kind="interval", schedule="every 5s", start_at=None, end_at=None,
                policy=policy.to_stored(), created_at=self.now, next_run_at=next_run_at,
            )
        )  # fmt: skip
        self.jobs.append(job_id)

    # Nodes and terms.

    async def join(self) -> None:
        await self.both(
            cluster.join, node_id=self.dice.choice(self.nodes), kind="scheduler", name="n", version="0",
            lease_seconds=self.dice.choice([5, 20]), info=self.dice.choice([{}, {"coordinator": "postgres"}]),
        )  # fmt: skip

    async def other_schedulers(self) -> None:
        await self.both(cluster.other_schedulers, node_id=self.dice.choice(self.nodes))

    async def beat(self) -> None:
        view = await self.both(cluster.beat, node_id=self.dice.choice(self.nodes), lease_seconds=10)
        if view is not None:
            self.terms = list(enumerate(view.epochs))

    async def acquire(self) -> None:
        shards = self.dice.sample(range(SHARDS), self.dice.randint(1, SHARDS))
        epochs = [max(0, self.terms[shard][1] - (self.dice.random() < 0.2)) for shard in shards]
        won = await self.both(cluster.acquire, node_id=self.dice.choice(self.nodes), shards=shards, epochs=epochs)
        for shard, epoch in won.items():
            self.terms[shard] = (shard, epoch)

    async def hand_over(self) -> None:
        shard, epoch = self.dice.choice(self.terms)
        await self.both(cluster.hand_over, node_id=self.dice.choice(self.nodes), shards=[shard], epochs=[epoch])

    async def leave(self) -> None:
        if self.dice.random() < 0.3:
            await self.both(cluster.leave, node_id=self.dice.choice(self.nodes))

    # Fires.

    def _epoch(self, shard: int) -> int:
        return max(0, self.terms[shard][1] - (self.dice.random() < 0.1))

    async def fire(self) -> None:
        job = self.model.jobs[self.dice.choice(self.jobs)]
        if job.next_run_at is None:
            return
        expected = job.next_run_at if self.dice.random() < 0.9 else job.next_run_at - timedelta(seconds=5)
        overlap = "skip" if job.policy is None or "overlap" not in job.policy else _overlap(job)
        count = self.dice.choice([0, 1, 1, 2, 3])
        moments = [expected + n * timedelta(seconds=5) for n in range(count)]
        flags = self.dice.choice([0, 8, 10])
        fire = Fires(
            [job.job_id], [expected], [expected + timedelta(seconds=50)], [overlap], [self.dice.choice([1, 100])],
            [job.job_id] * count, moments, [flags] * count, list(range(1, count + 1)),
        )  # fmt: skip
        if (dropped := self.dice.random()) < 0.3:
            first = expected + timedelta(seconds=5 * count)
            fire.drop_job_ids, fire.drop_first, fire.drop_last = [job.job_id], [first], [first + timedelta(seconds=10)]
            fire.drop_count, fire.drop_reason = [3], ["deferred" if dropped < 0.2 else "SKIP"]
        epoch, stale = self._epoch(job.shard), self.dice.random() < 0.1
        fired = []
        for store in (self.pool, self.modelled):
            seen = await fires.due(store, job_ids=[job.job_id])
            fire.versions = [999_999_999 if stale else seen[0].version]
            fired.append(await fires.fire(store, epochs={job.shard: epoch}, batch=fire))
        assert fired[0] == fired[1]

    async def on_time(self) -> None:
        """Looks at a due job on both, and fires it on each by that side's own answer."""
        asked = self.dice.choice(self.jobs)
        shard = self.model.jobs[asked].shard
        real = await fires.due(self.pool, job_ids=[asked])
        ours = await fires.due(self.modelled, job_ids=[asked])
        assert [(one.job_id, one.next_run_at, one.run_count, one.now, one.busy) for one in real] == [
            (one.job_id, one.next_run_at, one.run_count, one.now, one.busy) for one in ours
        ]
        if not real or real[0].busy:
            return
        if self.dice.random() < 0.2:
            await self.fire()  # this may move the job, whose row is then a new version
        epoch = self._epoch(shard)
        following = real[0].next_run_at + timedelta(seconds=5)
        fired = []
        for store, one in ((self.pool, real[0]), (self.modelled, ours[0])):
            batch = SimpleFires(
                [one.ctid or (0, 0)], [one.version], [one.job_id], [one.next_run_at], [following], [0], [shard]
            )  # fmt: skip
            fired.append(await fires.fire(store, epochs={shard: epoch}, batch=batch))
        assert fired[0] == fired[1]

    async def load(self) -> None:
        low, high = self.now - timedelta(seconds=60), self.now + timedelta(seconds=self.dice.choice([0, 20, 100]))
        slices = [fires.Slice(shard, low, high) for shard in range(SHARDS)]
        pages, page = [], self.dice.choice([1, 3, 100])
        for store in (self.pool, self.modelled):
            found = await fires.load(store, slices=slices, page=page)
            pages.append([(one.shard, _entries(one), one.rest) for one in found])
        assert pages[0] == pages[1]

    async def release(self) -> None:
        waiting = await fires.catch_ups(self.pool, shards=list(range(SHARDS)), limit=100)
        ours = await fires.catch_ups(self.modelled, shards=list(range(SHARDS)), limit=100)
        keys = [
            [(one.job_id, one.first_at, one.last_at, one.count, one.status) for one in two] for two in (waiting, ours)
        ]
        assert sorted(keys[0]) == sorted(keys[1])
        if not waiting:
            return
        one = self.dice.choice(waiting)
        overlap = _overlap(self.model.jobs[one.job_id])
        count = min(one.count, self.dice.randint(1, 3))
        moments = [one.first_at + n * timedelta(seconds=5) for n in range(count)]
        following = moments[-1] + timedelta(seconds=5)
        batch = Release(
            [one.job_id], [one.last_at], [one.first_at], [following if following <= one.last_at else None], [overlap],
            [self.dice.choice([1, 100])], [one.job_id] * count, moments, [10] * count, list(range(1, count + 1)),
        )  # fmt: skip
        await self.both(fires.release, shard=one.shard, epoch=self._epoch(one.shard), batch=batch)

    # Claims.

    async def claim(self) -> None:
        limit = self.dice.choice([1, 3, 100])
        worker = self.dice.choice(self.workers)
        named: dict[str, Any] = {
            "worker_id": worker, "lease_seconds": self.dice.choice([5, 20]), "limit": limit,
            "lanes": (["default"] * 10, list(range(9, -1, -1))),
        }  # fmt: skip
        before = {key: run.run_at for key, run in self.model.runs.items()}
        real = await runs.claim(self.pool, **named)
        # Of several runs that may start at the same moment the database may take any; the model takes the same ones.
        self.model.taken_first = {(run.job_id, run.scheduled_at) for run in real.runs}
        ours = await runs.claim(self.modelled, **named)
        pairs = [{(run.job_id, run.scheduled_at): run for run in claim.runs} for claim in (real, ours)]
        assert pairs[0].keys() == pairs[1].keys(), sorted(before.items())
        for key, run in pairs[0].items():
            other = pairs[1][key]
            assert (run.attempt, run.flags) == (other.attempt, other.flags)
        assert real.next_run_at == ours.next_run_at
        if real.claim_id is not None and ours.claim_id is not None:
            self.real_tokens[real.claim_id] = self.model_tokens[ours.claim_id] = len(self.claims)
            both = {key: (run, pairs[1][key]) for key, run in pairs[0].items()}
            self.claims.append((real.claim_id, ours.claim_id, both))

    def _some_runs(self) -> list[tuple[ClaimedRun, ClaimedRun]]:
        """Random runs of one or two claims, which may no longer exist."""
        found: list[tuple[ClaimedRun, ClaimedRun]] = []
        recent = self.claims[-12:]
        for *_, held in self.dice.sample(recent, min(len(recent), self.dice.randint(1, 2))):
            found += self.dice.sample(list(held.values()), self.dice.randint(1, len(held)))
        return found

    async def _end(self, write: Any, make: Any, *close: Any) -> None:
        some = self._some_runs()
        if not some:
            return
        ends = [make() for _ in some]
        real = await write(self.pool, [end(run) for end, (run, _) in zip(ends, some, strict=True)], *close[:1])
        ours = await write(self.modelled, [end(run) for end, (_, run) in zip(ends, some, strict=True)], *close[1:])
        assert real == ours

    async def complete(self) -> None:
        chosen = self.dice.sample(self.claims, min(len(self.claims), self.dice.choice([0, 0, 1])))
        close = [claim[0] for claim in chosen], [claim[1] for claim in chosen]
        await self._end(runs.complete, lambda: lambda run: Succeeded(run, 1, 2), *close)

    async def requeue(self) -> None:
        def make() -> Any:
            state, delay = self.dice.choice([("queued", 0.0), ("retrying", 3.0)])
            refund = self.dice.choice([0, 1])
            flags = self.dice.choice([0, int(RunFlag.BEGUN)])
            return lambda run: Requeued(run, state, delay, 1, 2, ERROR, refund, flags)

        await self._end(runs.requeue, make)

    async def bury(self) -> None:
        await self._end(runs.bury, lambda: lambda run: Buried(run, 1, 2, ERROR))

    async def expire(self) -> None:
        await self._end(runs.expire, lambda: lambda run: Expired(run, 2, 60))

    async def settled(self) -> None:
        some = self._some_runs()
        real = await runs.settled(self.pool, [run for run, _ in some])
        assert real == await runs.settled(self.modelled, [run for _, run in some])

    async def heartbeat(self) -> None:
        chosen = self.dice.sample(self.claims, min(len(self.claims), 4))
        worker, lease = self.dice.choice(self.workers), self.dice.choice([5, 20])
        named: dict[str, Any] = {"worker_id": worker, "lease_seconds": lease}
        real = await runs.heartbeat(self.pool, claims=[claim[0] for claim in chosen], **named)
        ours = await runs.heartbeat(self.modelled, claims=[claim[1] for claim in chosen], **named)
        assert {self.real_tokens[one] for one in real.held} == {self.model_tokens[one] for one in ours.held}
        assert real.joined == ours.joined

    async def rescue(self) -> None:
        await self.both(maintenance.rescue)
        # Rescue spreads the runs of one lost claim at random times; the model takes over PostgreSQL's times.
        for row in await self.pool.query("select job_id, scheduled_at, run_at from duly.runs where state = 'queued'"):
            key = row["job_id"], row["scheduled_at"]
            if (run := self.model.runs.get(key)) is not None and run.run_at > self.now and row["run_at"] > self.now:
                self.model.runs[key] = run._replace(run_at=row["run_at"])

    async def free_waiting(self) -> None:
        await self.both(maintenance.free_waiting)

    # Comparing.

    async def compare(self) -> None:
        real: dict[str, Any] = {}
        for table, columns in {
            "jobs": "job_id, next_run_at, last_run_at, extra_at, run_count, status",
            "runs": "job_id, scheduled_at, run_at, fired_at, epoch, attempt, flags, state",
            "claims": "claim_id, worker_id, lease_until, released, job_ids, scheduled_ats, attempts, flags",
            "history": "job_id, scheduled_at, status, claim_id, attempt, flags",
            "catch_ups": "job_id, last_at, first_at, count, served_at, shard, epoch",
            "shards": "shard, epoch, node_id",
        }.items():
            rows = await self.pool.query(f"select {columns} from duly.{table}")
            real[table] = [tuple(row) for row in rows]
        model = self.model
        assert sorted(real["jobs"], key=str) == sorted(
            [(j.job_id, j.next_run_at, j.last_run_at, j.extra_at, j.run_count, j.status) for j in model.jobs.values()],
            key=str,
        )
        theirs = [(*row[:2], INFINITY if row[2].year == 9999 else row[2], *row[3:]) for row in real["runs"]]
        assert sorted(theirs, key=str) == sorted([tuple(run) for run in model.runs.values()], key=str)
        assert sorted(
            (
                self.real_tokens[row[0]], row[1], row[2],
                sorted(
                    (*one, number in row[3]) for number, one in enumerate(zip(*row[4:], strict=True), start=1)
                ),
            )
            for row in real["claims"]
        ) == sorted(
            (
                self.model_tokens[claim.claim_id], claim.worker_id, claim.lease_until,
                sorted(
                    (one.job_id, one.scheduled_at, one.attempt, one.flags, number in claim.released)
                    for number, one in enumerate(claim.held, start=1)
                ),
            )
            for claim in model.claims.values()
        )  # fmt: skip
        ended = [(*row[:3], None if row[3] is None else self.real_tokens[row[3]], *row[4:]) for row in real["history"]]
        assert sorted(ended, key=str) == sorted(
            [
                (
                    *key,
                    one.status,
                    None if one.claim_id is None else self.model_tokens[one.claim_id],
                    one.attempt,
                    one.flags,
                )
                for key, one in model.history.items()
            ],
            key=str,
        )
        assert sorted(real["catch_ups"]) == sorted(tuple(one) for one in model.catch_ups.values())
        assert sorted(real["shards"], key=str) == sorted(
            [(number, shard.epoch, shard.node_id) for number, shard in enumerate(model.shards)], key=str
        )


def _overlap(job: Job) -> str:
    for overlap in ("queue", "parallel"):
        if job.policy is not None and f'"{overlap}"' in job.policy:
            return overlap
    return DEFAULT_POLICY.overlap


def _entries(page: fires.SlicePage) -> list[tuple[int, bytes]]:
    ids = [page.job_ids[n : n + 16] for n in range(0, len(page.job_ids), 16)]
    return sorted(zip(page.dues_us, ids, strict=True))


CALLS = (
    ["join"] * 2 + ["other_schedulers"] + ["beat"] * 4 + ["acquire"] * 4
    + ["hand_over", "leave", "load", "settled", "free_waiting"]
    + ["fire"] * 5 + ["on_time"] * 5 + ["release"] * 2 + ["claim"] * 5 + ["complete"] * 5 + ["requeue"] * 2
    + ["bury", "expire", "heartbeat", "heartbeat", "rescue", "rescue"]
)  # fmt: skip


@pytest.mark.parametrize("seed", [int(os.environ["DULY_SIM_SEED"])] if "DULY_SIM_SEED" in os.environ else [1, 2, 3])
async def test_the_model_answers_and_holds_what_postgresql_does(pool: Pool, seed: int) -> None:
    pair = Pair(pool, Random(seed))
    await pool.query("delete from duly.shards where shard >= $1", SHARDS)
    await pair.tick(0)
    for _ in range(4):
        await pair.submit()
    done: dict[str, int] = {}
    for step in range(STEPS):
        await pair.tick(pair.dice.choice([0.001, 0.1, 1, 3]))
        name = pair.dice.choice(CALLS)
        if not pair.claims and name in ("complete", "requeue", "bury", "expire", "settled", "heartbeat"):
            name = "claim"
        try:
            await getattr(pair, name)()
            await pair.compare()
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed}, step {step} ({name}): the model and PostgreSQL differ: {error}"
            ) from error
        done[name] = done.get(name, 0) + 1
    # The test must not pass because nothing happened.
    assert len(pair.model.history) > STEPS / 20
    assert len(pair.claims) > STEPS / 40
    assert done.keys() >= {"fire", "on_time", "claim", "complete", "rescue", "acquire"}
