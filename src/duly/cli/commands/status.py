"""`duly status`: the nodes of the cluster, the leader of each shard, and the amount of queued work."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from duly.cli.invocation import invocation_of, with_operations
from duly.cli.output import away, one_line, print_json, print_table, say
from duly.formats import rough_span
from duly.schema_name import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from duly.cli.backend import Backend
    from duly.model import ClusterStatus, NodeStatus


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    context: typer.Context,
    everyone: Annotated[bool, typer.Option("--all", help="Include nodes that stopped within the last hour.")] = False,
    shards: Annotated[
        bool, typer.Option("--shards", help="Show the leader of each shard, and since when it leads.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Nodes, shards and counts as a JSON document.")] = False,
) -> None:
    """Show the cluster: schedulers with their shards, workers with their runs, queued work, and the lag of firing."""

    async def look(operations: Backend) -> tuple[ClusterStatus, datetime]:
        return await operations.cluster.status(), operations.now()

    found, now = with_operations(context, look)
    invocation = invocation_of(context)
    schema = DEFAULT_SCHEMA if invocation.remote_url is not None else invocation.settings().schema
    other_schema = {} if schema == DEFAULT_SCHEMA else {"schema": schema}
    if as_json:
        print_json(other_schema | status_document(found))
        return
    nodes = [node for node in found.nodes if everyone or _state(node) != "stopped"]
    if nodes:
        epochs = _epochs(found)
        print_table(
            ("KIND", "NAME", "STATE", "SHARDS", "EPOCHS", "COORDINATOR", "RUNNING", "QUEUES", "STARTED"),
            [
                (
                    node.kind,
                    node.name,
                    _state(node),
                    str(node.shards) if node.kind == "scheduler" else "",
                    epochs.get(node.node_id, ""),
                    str(node.info.get("coordinator", "")),
                    _running(node),
                    _serves(node),
                    away(node.started_at, now),
                )
                for node in nodes
            ],
            whole=("KIND", "STATE"),
        )
    else:
        say("no scheduler and no worker is running; start them with: duly up")
    say()
    if shards:
        print_table(
            ("SHARD", "EPOCH", "LEADER", "STATE", "SINCE"),
            [
                (
                    str(shard.shard),
                    str(shard.epoch),
                    shard.node or "",
                    "alive" if shard.alive else "lost" if shard.node else "none",
                    away(shard.since, now),
                )
                for shard in found.shards
            ],
        )
        say()
    if other_schema:
        say(f"schema   {schema}")
    led = sum(shard.alive for shard in found.shards)
    say(f"shards   {led} of {len(found.shards)} led by a live scheduler")
    counts = found.counts

    def shown(name: str) -> str:
        return f"{getattr(counts, name)}{' or more' if name in counts.at_least else ''}"

    say(
        f"runs     {shown('queued')} queued, {shown('running')} running, {shown('retrying')} retrying, "
        f"{shown('waiting')} waiting; {shown('dead_letters')} in the dead letters"
    )
    oldest = f", the oldest by {rough_span(found.lag_seconds)}" if counts.oldest_overdue_at else ""
    about = "about " if counts.jobs_estimated else ""
    say(f"jobs     {about}{shown('jobs')}, {shown('overdue')} overdue{oldest}")
    whose = "of the whole store, all tenants" if counts.scope == "store" else "of the tenant of the API key"
    say(f"counts   {whose}")
    if found.unrunnable:
        first, more = found.unrunnable[0], len(found.unrunnable) - 1
        others = f" ({more} more like this: duly doctor)" if more else ""
        say(f"stuck    {one_line(f'{first.message}; {first.next_step}', 2_000)}{others}")


def status_document(status: ClusterStatus) -> dict[str, Any]:
    from duly.formats import time_text

    return {
        "nodes": [_plain(asdict(node)) for node in status.nodes],
        "shards": [_plain(asdict(shard)) for shard in status.shards],
        "counts": _plain(asdict(status.counts)),
        "lag_seconds": status.lag_seconds,
        "unrunnable": [_plain(asdict(one)) for one in status.unrunnable],
        "surveyed_at": time_text(status.surveyed_at),
    }


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    from duly.formats import time_text

    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return time_text(value)
        return str(value) if isinstance(value, UUID) else value

    return {name: plain(value) for name, value in fields.items()}


def _state(node: NodeStatus) -> str:
    if node.alive:
        return "alive"
    return "stopped" if node.stopped_at is not None else "lost"


def _serves(node: NodeStatus) -> str:
    queues = ", ".join(node.info.get("queues", ()))
    tenants = node.info.get("tenants")
    return queues if tenants is None else f"{queues} for {', '.join(tenants) or 'others'}"


def _running(node: NodeStatus) -> str:
    """The number of runs that a worker holds, its maximum, and the number of its threads that hang."""
    if node.kind != "worker":
        return ""
    most = node.info.get("concurrency")
    held = str(node.held) if most is None else f"{node.held} of {most}"
    hanging = node.info.get("hanging_threads")
    return f"{held}, {hanging} hang" if hanging else held


def _epochs(status: ClusterStatus) -> dict[UUID, str]:
    """The epochs of each node's terms: `3` if they are equal, else `1 to 7`."""
    epochs: dict[UUID, Counter[int]] = {}
    for shard in status.shards:
        if shard.node_id is not None:
            epochs.setdefault(shard.node_id, Counter())[shard.epoch] += 1
    return {
        node_id: str(min(seen)) if len(seen) == 1 else f"{min(seen)} to {max(seen)}" for node_id, seen in epochs.items()
    }
