"""The order of measurements: every round takes all measurements, every measurement all tools, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from duly.bench.processes import BenchFailed
from duly.bench.server import running_server
from duly.errors import DulyError
from peers import measures, ours
from peers.driving import PeerFailed, driven
from peers.measures import Ground, Peer, Sizes
from peers.results import MEASURES, Results, Tool
from peers.setting_up import NotSetUp, Say, redis_facts, running_redis, set_up

# Measured in the first round only: these counts do not vary.
_ONCE = "idle"


async def take(
    names: Sequence[str], chosen: Sequence[str], *, rounds: int, sizes: Sizes, quick: bool, say: Say
) -> Results:
    """Measure the tools of these names (`duly` brings the raw loop along)."""
    async with AsyncExitStack() as stack:
        rows: dict[str, Tool] = ours.tools() if "duly" in names else {}
        server = await stack.enter_async_context(running_server(None, None))
        facts = {"taken": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", **(await server.facts())}
        peers: list[Peer] = []
        redis: Path | None = None
        for name in (name for name in names if name != "duly"):
            rows[name] = tool = Tool(name, name)
            try:
                peer = await _introduced(tool, say)
                if tool.server == "redis" and redis is None:
                    redis = await stack.enter_async_context(running_redis(say))
                    facts["Redis"] = (await redis_facts(redis, "server"))["redis_version"]
            except (NotSetUp, PeerFailed) as failure:
                _failed(tool, "set up", failure, say)
            else:
                peers.append(peer)
        ground = Ground(server, redis, sizes, stack)
        peers = [peer for peer in peers if await _piloted(ground, peer, say)]
        for number in range(1, rounds + 1):
            for measure in MEASURES:
                if measure in chosen and (number == 1 or measure != _ONCE):
                    say(f"round {number} of {rounds}, {measure}")
                    await _measure_all(measure, ground, rows, peers[:: 1 if number % 2 else -1], say)
        return Results(list(rows.values()), facts, rounds, quick)


async def _introduced(tool: Tool, say: Say) -> Peer:
    """Sets the peer up and asks for its description."""
    command = await asyncio.to_thread(set_up, tool.name, say)
    async with driven(command, "postgresql://nobody@/nothing") as driver:
        about = await driver.ask("about")
    tool.title, tool.versions, tool.settings = about["title"], about["versions"], about["settings"]
    tool.server = about["server"]
    return Peer(command, tool, about["processes"], about["submits_in_worker"])


async def _piloted(ground: Ground, peer: Peer, say: Say) -> bool:
    say(f"{peer.tool.title}: how fast is it?")
    try:
        await measures.pilot(ground, peer)
    except (PeerFailed, DulyError) as failure:
        _failed(peer.tool, "set up", failure, say)
        return False
    return True


async def _measure_all(measure: str, ground: Ground, rows: dict[str, Tool], peers: Sequence[Peer], say: Say) -> None:
    if "duly" in rows and measure not in rows["duly"].failures:
        try:
            await ours.measure(measure, ground.server, ground.sizes, rows, lambda text: say(f"  {text}"))
        except (BenchFailed, DulyError) as failure:
            _failed(rows["duly"], measure, failure, say)
        else:
            _tell_figures(rows["duly"], measure, say)
    for peer in peers:
        # A measurement that failed once would fail again, after minutes of waiting.
        if measure in peer.tool.failures:
            continue
        try:
            peer.tool.add(await measures.MEASURES[measure](ground, peer))
        except (PeerFailed, DulyError) as failure:
            _failed(peer.tool, measure, failure, say)
        else:
            _tell_figures(peer.tool, measure, say)


def _failed(tool: Tool, what: str, failure: Exception, say: Say) -> None:
    tool.failures[what] = str(failure)
    say(f"  {tool.title}: {what} FAILED: {failure}")


def _tell_figures(tool: Tool, measure: str, say: Say) -> None:
    values = [f"{tool.values[figure][-1]:,.1f}" for figure in MEASURES[measure] if tool.values.get(figure)]
    jobs = f" ({tool.jobs[measure]:,} jobs)" if measure in tool.jobs else ""
    say(f"  {tool.title}: {' / '.join(values)}{jobs}")
