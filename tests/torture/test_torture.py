"""The short version of the torture, and tests of its sink, audit and mutants.

DULY_TORTURE_SEED repeats a run, DULY_TORTURE_MINUTES makes it longer; `make torture` is the same with all options.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from duly.store.pool import Pool
from torture import audit
from torture.mutants import MUTANTS
from torture.run import TESTS, Plan, Result, torture
from torture.workload.sink_process import RECORD, running_sink

# Seven processes and their faults need the machine for themselves.
alone = pytest.mark.alone


async def _tortured(plan: Plan) -> Result:
    # Not below pytest's own folder, which the account of PostgreSQL cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="duly-torture-"))
    folder.chmod(0o755)
    print(f"seed {plan.seed}: recording into {folder}")
    result = await torture(plan, folder)
    print(result.line)
    return result


@alone
@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled_while_everything_breaks() -> None:
    # A fixed seed, so that a failure is due to what was changed; `make torture` draws new seeds.
    seed = int(os.environ.get("DULY_TORTURE_SEED") or 100)
    minutes = float(os.environ.get("DULY_TORTURE_MINUTES") or 0.6)
    result = await _tortured(Plan(seed=seed, minutes=minutes, recurring=60))
    told = "\n".join(f"{finding['invariant']}: {finding['message']}" for finding in result.findings[:20])
    assert not result.findings, f"{told}\nrepeat it with DULY_TORTURE_SEED={seed}; the records are in {result.folder}"
    assert result.faults >= 5, "too few faults: this was no torture"
    shutil.rmtree(result.folder)


# Each mutant takes a minute or two: DULY_TORTURE_MUTANTS=all, or names separated by commas. test_checker.py has
# histories with the same damage.
_MUTANTS = os.environ.get("DULY_TORTURE_MUTANTS", "")
if _MUTANTS:

    @alone
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("mutant", sorted(MUTANTS) if _MUTANTS == "all" else _MUTANTS.split(","))
    async def test_a_broken_duly_is_caught(mutant: str) -> None:
        plan = Plan(seed=11, minutes=0.8, mutant=mutant, coordinator="postgres", standby="none", fault_rate=1.5)
        result = await _tortured(plan)
        # The run does not wait for a mutant to settle, so unfinished work is no evidence.
        caught = {finding["invariant"] for finding in result.findings} - {"settles", "heals", "ending"}
        assert caught, f"{mutant} was not caught; the records are in {result.folder}"
        shutil.rmtree(result.folder)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_each_mutant_still_finds_in_the_product_what_it_changes(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TORTURE_MUTANT": name}
    command = [sys.executable, "-m", "torture.launch", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_same_seed_draws_the_same_world() -> None:
    drawn = [Plan(seed=seed).drawn() for seed in range(40)]
    assert drawn == [Plan(seed=seed).drawn() for seed in range(40)]
    assert {plan.standby for plan in drawn} == {"synchronous", "asynchronous", "none"}
    assert {"postgres", "postgres-advisory"} <= {plan.coordinator for plan in drawn}


class Caller:
    """A handler's side of the sink's protocol."""

    def __init__(self, address: str) -> None:
        self._path = address.removeprefix("unix://")

    async def __call__(
        self, word: str, *, token: str, execution: str = "e", run_id: str = "r", attempt: int = 1
    ) -> bool:
        reader, writer = await asyncio.open_unix_connection(self._path)
        said = {"word": word, "job": "j", "job_id": "i", "run_id": run_id, "scheduled_at": 0.0, "attempt": attempt,
                "token": token, "worker": "w", "execution": execution}  # fmt: skip
        writer.write(json.dumps(said).encode() + b"\n")
        answer = json.loads(await reader.readline())
        writer.close()
        return bool(answer["accepted"])


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RECORD).read_text().splitlines()]


async def test_the_sink_refuses_the_effect_of_a_token_that_was_replaced(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as nook:
        async with running_sink(tmp_path, f"unix://{nook}/sink") as address:
            call = Caller(address)
            assert await call("begin", token="01", execution="a")
            assert await call("effect", token="01", execution="a")
            assert await call("begin", token="02", execution="b")
            # The zombie wakes up.
            assert not await call("effect", token="01", execution="c")
            assert await call("effect", token="02", execution="b", attempt=1)
            assert await call("effect", token="01", execution="d", run_id="another")
            lines = _lines(tmp_path)
    assert [line["n"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["accepted"] for line in lines] == [True, True, True, False, True, True]


async def test_what_the_sink_has_answered_is_on_its_disk_and_there_once(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as nook:
        async with running_sink(tmp_path, f"unix://{nook}/sink") as address:
            call = Caller(address)
            # Many calls at once, and each repeated, as after a lost answer.
            await asyncio.gather(*(call("begin", token="01", execution=str(n % 50)) for n in range(200)))
            assert sorted(line["execution"] for line in _lines(tmp_path)) == sorted(str(n) for n in range(50))


async def _give_up_half_way(pool: Pool) -> None:
    async with pool.transaction() as within:
        await within.connection.execute("update duly.shards set epoch = epoch + 1 where shard = 4")
        raise ZeroDivisionError


async def test_the_diary_has_every_change_also_in_partitions_made_later(
    pool: Pool, database_url: str, tmp_path: Path
) -> None:
    await audit.install(database_url)
    day = datetime.now(UTC) + timedelta(days=40)
    await pool.query("select duly.make_partition('history', $1::date, 0)", day.date())
    job_id = uuid4()
    await pool.query(
        "insert into duly.history (job_id, scheduled_at, finished_at, attempt, status) "
        "values ($1, $2, $2, 1, 'succeeded')",
        job_id, day,
    )  # fmt: skip
    await pool.query("update duly.shards set epoch = epoch + 1 where shard = 3")
    await pool.query("delete from duly.history where job_id = $1", job_id)
    # A change that is rolled back is not in the audit.
    with pytest.raises(ZeroDivisionError):
        await _give_up_half_way(pool)
    await audit.export(database_url, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / audit.RECORD).read_text().splitlines()]
    changes = [(line["table"], line["op"]) for line in lines]
    assert changes == [("history", "insert"), ("shards", "update"), ("history", "delete")]
    inserted, raised, deleted = lines
    assert inserted["old"] is None
    assert inserted["new"]["job_id"] == str(job_id)
    assert raised["new"]["epoch"] == raised["old"]["epoch"] + 1
    assert deleted["new"] is None
    assert deleted["old"]["status"] == "succeeded"
    assert inserted["txid"] < raised["txid"] < deleted["txid"]
    assert abs(inserted["at"] - datetime.now(UTC).timestamp()) < 60
