"""One run of the torture, or many: starts a world, gives it work, injects faults, heals them, and checks the records.

python -m torture.run --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg

from torture import audit, checker, faults, report
from torture.mutants import MUTANTS, Mutant
from torture.workload.clients import Workload
from torture.workload.sink_process import running_sink
from torture.world import World

TESTS = Path(__file__).parents[1]
STANDBYS = ("synchronous", "asynchronous", "none")
FINISH_SECONDS = 60.0


@dataclass(frozen=True)
class Plan:
    """The options of a run. An empty `coordinator` or `standby` is drawn by the seed; `kinds` None: all faults."""

    seed: int
    minutes: float = 2.0
    coordinator: str = ""
    standby: str = ""
    kinds: tuple[str, ...] | None = None
    mutant: str | None = None
    namespaces: bool | None = None
    fault_rate: float = 2.0
    rate: float = 10.0
    recurring: int = 80
    # Time to settle after the workload has ended. A run that takes longer is a finding.
    settle_seconds: float = 150.0
    settings: dict[str, float] = field(
        default_factory=lambda: {
            "leader_lease": 2,
            "worker_lease": 4,
            "misfire_grace": 6,
            "shards": 16,
            "reread": 20,
            "poll": 1,
        }
    )

    def drawn(self) -> Plan:
        dice = random.Random(f"{self.seed}:world")
        coordinator, standby = dice.choice(coordinators()), dice.choice(STANDBYS)
        mutant = MUTANTS[self.mutant] if self.mutant else None
        return replace(
            self,
            coordinator=self.coordinator or coordinator,
            standby=self.standby or (mutant.standby if mutant else "") or standby,
            kinds=mutant.faults if mutant is not None and self.kinds is None else self.kinds,
            # A mutant may never settle, and its damage is recorded before that.
            settle_seconds=self.settle_seconds if mutant is None else 10.0,
        )

    @property
    def environment(self) -> dict[str, str]:
        names = {
            "leader_lease": "LEADER_LEASE_SECONDS", "worker_lease": "WORKER_LEASE_SECONDS", "shards": "SHARDS",
            "misfire_grace": "MISFIRE_GRACE_SECONDS", "reread": "REREAD_SECONDS", "poll": "POLL_SECONDS",
        }  # fmt: skip
        return {f"DULY_{names[name]}": f"{value:g}" for name, value in self.settings.items()}


def coordinators() -> list[str]:
    """The coordinators whose servers are installed here."""
    found = ["postgres", "postgres-advisory"]
    if shutil.which("etcd"):
        found.append("etcd")
    if shutil.which("java") and Path("/usr/share/java/zookeeper.jar").exists():
        found.append("zookeeper")
    return found


@dataclass
class Result:
    seed: int
    folder: Path
    findings: list[dict[str, Any]]
    figures: dict[str, Any]
    plan: Plan
    seconds: float
    faults: int
    troubles: list[dict[str, Any]]

    @property
    def line(self) -> str:
        kinds: dict[str, int] = {}
        for finding in self.findings:
            kinds[finding["invariant"]] = kinds.get(finding["invariant"], 0) + 1
        told = ", ".join(f"{count} × {name}" for name, count in sorted(kinds.items())) or "nothing found"
        mutant = f", mutant {self.plan.mutant}" if self.plan.mutant else ""
        trouble = f" ({len(self.troubles)} went wrong in the harness)" if self.troubles else ""
        return (
            f"seed {self.seed} ({self.plan.coordinator}, standby {self.plan.standby}{mutant}): {self.faults} faults"
            f"{trouble} in {self.seconds:.0f} s: {told}; {self.folder}"
        )


async def torture(plan: Plan, folder: Path) -> Result:
    """One run, recorded into `folder`, checked and reported."""
    plan = plan.drawn()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    injected = await _recorded(plan, folder)
    # Errors of the harness are no findings, but the result line shows them.
    lines = (folder / "faults.jsonl").read_text().splitlines()
    troubles = [line for line in map(json.loads, lines) if "trouble" in (line.get("details") or {})]
    found = [_as_document(finding) for finding in await asyncio.to_thread(checker.check, folder)]
    facts = json.loads((folder / "run.json").read_text())
    if own := _own_findings(plan, facts):
        found += own
        (folder / "findings.json").write_text(json.dumps(found, indent=1))
    await asyncio.to_thread(report.write, folder)
    figures = json.loads((folder / "figures.json").read_text())
    return Result(plan.seed, folder, found, figures, plan, time.time() - began, injected, troubles)


def _own_findings(plan: Plan, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings that the records do not show: a cluster that did not heal, or work that did not settle."""
    found: list[dict[str, Any]] = []
    if reason := facts.get("unhealed"):
        message = f"the cluster did not recover by itself after the last fault: {reason}"
        found.append({"invariant": "heals", "message": message, "evidence": []})
    if facts["settled"] is None:
        message = f"work was still under way {plan.settle_seconds:.0f} s after the workload had ended"
        evidence = [{"under_way": facts["under_way"], "answered": facts["answered"]}]
        found.append({"invariant": "settles", "message": message, "evidence": evidence})
    return found


def _as_document(finding: Any) -> dict[str, Any]:
    return {"invariant": finding.invariant, "message": finding.message, "evidence": finding.evidence}


async def _recorded(plan: Plan, folder: Path) -> int:
    """Carries out the run and writes all records. Returns the number of injected faults."""
    mutant = MUTANTS[plan.mutant] if plan.mutant else None
    facts: dict[str, Any] = {
        "seed": plan.seed, "started": time.time(), "ended": None, "healed": None, "settled": None, "versions": {},
        "standby": plan.standby, "coordinator": plan.coordinator, "settings": plan.settings, "mutant": plan.mutant,
        "minutes": plan.minutes,
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        # A separate folder, because the path of a Unix socket must be short.
        nook = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torture-")))
        nook.chmod(0o755)
        sink = await stack.enter_async_context(running_sink(folder, f"unix://{nook / 'sink'}"))

        async def prepare(admin_url: str) -> None:
            await audit.install(admin_url)
            await _mutate_store(admin_url, mutant)

        world = await stack.enter_async_context(
            World(
                folder, seed=plan.seed, coordinator=plan.coordinator, standby=plan.standby,
                namespaces=plan.namespaces, launcher=[sys.executable, "-m", "torture.launch"],
                environment={
                    **plan.environment, "PYTHONPATH": _python_path(), "DULY_LOG_LEVEL": "INFO",
                    "TORTURE_SINK": sink, "TORTURE_SEED": str(plan.seed), "TORTURE_MUTANT": plan.mutant or "",
                },
                worker_arguments=["--app", "torture.workload.torture_app:app", "--quiet", "--concurrency", "40"],
                prepare=prepare,
            )
        )  # fmt: skip

        async def forgotten(old_url: str, new_url: str) -> None:
            await audit.forgotten(old_url, new_url, folder)

        if plan.standby == "asynchronous":
            world.database.before_rejoining(forgotten)
        facts["versions"] = await _versions(world)
        workload = Workload.of(
            folder, world.url, seed=plan.seed, lease=plan.settings["worker_lease"], rate=plan.rate,
            recurring=plan.recurring,
        )  # fmt: skip
        stack.push_async_callback(workload.close)
        facts["workload"] = time.time()
        async with _working(workload), _nuisance(world, mutant.nuisance if mutant else ""):
            injected = await _faulted(plan, world, folder, facts)
        facts["answered"] = await workload.finish(FINISH_SECONDS)
        facts["stopped"] = time.time()
        facts["settled"], facts["under_way"] = await _settle(world, plan.settle_seconds)
        facts["ended"] = time.time()
        await _export(world, workload, folder, plan)
    (folder / "run.json").write_text(json.dumps(facts, indent=1))
    return injected


async def _faulted(plan: Plan, world: World, folder: Path, facts: dict[str, Any]) -> int:
    """Waits through a healthy part, a part with faults and a healed part. The last matters most: failures often show
    only after the healing."""
    seconds = plan.minutes * 60
    healthy, after = max(10.0, 0.15 * seconds), max(15.0, 0.2 * seconds)
    injected = 0
    await asyncio.sleep(healthy)
    facts["faulted"] = time.time()
    with faults.open_record(folder / "faults.jsonl") as record:
        if plan.kinds != ():
            planned = faults.plan(
                random.Random(f"{plan.seed}:faults"), max(10.0, seconds - healthy - after), world=world,
                rate=plan.fault_rate, kinds=plan.kinds,
            )  # fmt: skip

            def count(line: dict[str, Any]) -> None:
                nonlocal injected
                injected += "skipped" not in (line.get("details") or {})
                record(line)

            await faults.inject_all(world, planned, count)
        facts["healed"] = time.time()
        try:
            await world.heal()
        except RuntimeError as error:
            # All faults are healed, and yet the cluster does not work: a finding.
            facts["unhealed"] = str(error)
    await asyncio.sleep(after)
    return injected


@asynccontextmanager
async def _working(workload: Workload) -> AsyncIterator[None]:
    """Runs the workload meanwhile. An error of a client is a flaw of the harness and ends the run."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        working = group.create_task(workload.run(stop))
        try:
            yield
        finally:
            stop.set()
        await working


@asynccontextmanager
async def _nuisance(world: World, statements: str) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            try:
                connection = await asyncpg.connect(world.database.admin_url)
                try:
                    while True:
                        await connection.execute(statements)
                        await asyncio.sleep(0.3)
                finally:
                    connection.terminate()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.5)

    repeating = asyncio.create_task(repeat()) if statements else None
    try:
        yield
    finally:
        if repeating is not None:
            repeating.cancel()
            await asyncio.gather(repeating, return_exceptions=True)


async def _settle(world: World, seconds: float) -> tuple[float | None, dict[str, int]]:
    """Waits until nothing is under way, twice in a row. Returns that time, or None and counts of unfinished work."""
    left: dict[str, int] = {}
    quiet = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            left = await audit.under_way(world.database.admin_url)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            left, quiet = {str(error): -1}, 0
        quiet = 0 if any(left.values()) else quiet + 1
        if quiet == 2:
            return time.time(), {}
        await asyncio.sleep(0.5)
    return None, left


async def _export(world: World, workload: Workload, folder: Path, plan: Plan) -> None:
    url = world.database.admin_url
    # Read first, before the harness's own requests add connections.
    connected = await audit.activity(url)
    asked = _questions(random.Random(f"{plan.seed}:explain"), await audit.tables(url))
    final = {
        "activity": connected,
        "processes": world.processes(),
        "exits": world.exits,
        "explained": await workload.explain(world.url, asked),
        "logs": {name: str(path) for name, path in world.logs().items()},
    }
    # If the work did not settle it would go on, and the audit must not end before the sink's record.
    for node in world.nodes.values():
        node.kill()
    for _ in range(300):
        if not await audit.activity(url):
            break
        await asyncio.sleep(0.1)
    await audit.export(url, folder)
    (folder / "final.json").write_text(json.dumps({"tables": await audit.tables(url), **final}))


def _questions(dice: random.Random, tables: dict[str, list[Any]], most: int = 60) -> list[tuple[str, float | None]]:
    """Some occurrences of each outcome, which Duly is to explain."""
    asked: list[tuple[str, float | None]] = []
    by_status: dict[str, list[Any]] = {}
    for row in tables["history"]:
        by_status.setdefault(row["status"], []).append(row)
    for rows in by_status.values():
        picked = dice.sample(rows, min(len(rows), most // len(by_status)))
        asked += [(row["job_id"], datetime.fromisoformat(row["scheduled_at"]).timestamp()) for row in picked]
    return asked


def _python_path() -> str:
    """The tests and this process's PYTHONPATH, by which another version of Duly can be tortured."""
    return os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))


async def _mutate_store(admin_url: str, mutant: Mutant | None) -> None:
    if mutant is None or not mutant.database:
        return
    connection = await asyncpg.connect(admin_url)
    try:
        for statement in mutant.database:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _versions(world: World) -> dict[str, str]:
    connection = await asyncpg.connect(world.database.admin_url)
    try:
        return {
            "python": platform.python_version(),
            "postgresql": await connection.fetchval("show server_version"),
            "duly": (await world.command("--version")).strip().removeprefix("duly "),
        }
    finally:
        await connection.close()


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    given = _options().parse_args(arguments)
    first = given.seed if given.seed is not None else random.randrange(10**6)
    where = given.folder or Path(tempfile.gettempdir()) / "duly-torture"
    results: list[Result] = []
    broken: list[int] = []
    for number in range(given.runs):
        seed = first + number
        plan = Plan(
            seed=seed, minutes=given.minutes, coordinator=given.coordinator or "", standby=given.standby or "",
            kinds=tuple(given.faults.split(",")) if given.faults else None, mutant=given.mutant,
            namespaces=False if given.plain else None, fault_rate=given.fault_rate, rate=given.rate,
            recurring=given.recurring,
        )  # fmt: skip
        folder = where / f"{seed}-{given.mutant or 'duly'}-{time.strftime('%m%d-%H%M%S')}-{os.getpid()}"
        print(f"seed {seed}: recording into {folder}", flush=True)
        try:
            results.append(asyncio.run(torture(plan, folder)))
        except Exception:  # noqa: BLE001 - the other seeds are worth their time all the same
            traceback.print_exc()
            broken.append(seed)
        else:
            print(results[-1].line, flush=True)
    if len(results) > 1:
        print(f"\n{len(results)} runs, {sum(result.faults for result in results)} faults, "
              f"{sum(len(result.findings) for result in results)} findings")  # fmt: skip
        for result in results:
            print(f"  {result.line}")
    if broken:
        print(f"the torture itself failed with the seeds {', '.join(map(str, broken))}: see above")
        return 2
    return 1 if any(result.findings for result in results) else 0


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="torture.run", description="Try to make Duly lose or double a run.")
    options.add_argument("--minutes", type=float, default=10, help="minutes of work; settling and checking come after")
    options.add_argument("--seed", type=int, help="default: a random one, which is printed")
    options.add_argument("--runs", type=int, default=1, help="number of runs, with consecutive seeds")
    options.add_argument("--coordinator", choices=("postgres", "postgres-advisory", "etcd", "zookeeper"))
    options.add_argument("--standby", choices=STANDBYS)
    options.add_argument("--faults", help="kinds of faults, separated by commas; default: all")
    options.add_argument("--fault-rate", type=float, default=2.0, help="faults per second")
    options.add_argument("--mutant", choices=sorted(MUTANTS))
    options.add_argument("--folder", type=Path, help="parent folder of the runs' folders")
    options.add_argument("--plain", action="store_true", help="no network namespaces")
    options.add_argument("--rate", type=float, default=10, help="client operations per second")
    options.add_argument("--recurring", type=int, default=80, help="number of recurring jobs")
    return options


if __name__ == "__main__":
    sys.exit(main())
