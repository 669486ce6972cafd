"""Clients of the API, which record their requests and the answers.

The clients use plain HTTP and not Duly's own client, which would hide the cases of interest (a request sent twice, an
answer lost). Every job belongs to one client, which sends one request after the other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, TextIO

import httpx

from . import drawing
from .drawing import Palette

RECORD = "operations.jsonl"
# Longer than a leader's lease and shorter than most outages, so that some answers come too late.
TIMEOUT = 4.0


class Recorder:
    """Writes `operations.jsonl`: one line per operation, at its end."""

    def __init__(self, folder: Path) -> None:
        self._file: TextIO = (folder / RECORD).open("w", encoding="utf-8", buffering=1)
        self._numbers = itertools.count(1)
        self.outcomes: dict[str, int] = {"ok": 0, "failed": 0, "unknown": 0}

    def number(self) -> int:
        return next(self._numbers)

    def write(self, line: dict[str, Any]) -> None:
        self.outcomes[line["outcome"]] += 1
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()


@dataclass
class Own:
    """A job of this client, as far as the client knows it."""

    name: str
    body: dict[str, Any]
    job_id: str | None = None
    #: `asked`: submitted, without an answer so far. `live`, `paused`, `over`: as last acknowledged. `unsure`: the last
    #: request had no answer.
    state: str = "asked"
    again_at: float = 0.0

    @property
    def recurs(self) -> bool:
        return "overlap" in self.body


@dataclass
class Answer:
    outcome: str
    document: Any


@dataclass
class Client:
    name: str
    url: str
    recorder: Recorder
    dice: Random
    palette: Palette
    rate: float
    recurring: int
    jobs: list[Own] = field(default_factory=list)
    _names: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._http = self._connect()

    def _connect(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"{self.url}/api/v1", timeout=TIMEOUT, trust_env=False)

    async def run(self, stop: asyncio.Event) -> None:
        """Submits recurring jobs first, so that there is work to torture, then takes one step after the other."""
        for _ in range(self.recurring * 3 // 4):
            await self._submit_new(recurs=True)
        while not stop.is_set():
            await self._step()
            try:
                async with asyncio.timeout(self.dice.expovariate(self.rate)):
                    await stop.wait()
            except TimeoutError:
                pass

    async def finish(self, seconds: float) -> bool:
        """Repeats submits without an answer, then pauses all recurring jobs. Returns whether all were answered in time.

        Jobs that were paused or cancelled are paused once more: a promoted standby may have lost that change.
        """
        until = time.monotonic() + seconds
        for own in self.jobs:
            if own.recurs and own.state in ("paused", "over"):
                own.state = "unsure"
        while time.monotonic() < until:
            open_ends = [own for own in self.jobs if own.state == "asked"]
            open_ends += [own for own in self.jobs if own.recurs and own.state in ("live", "unsure")]
            if not open_ends:
                return True
            for own in open_ends:
                if own.state == "asked":
                    await self._submit(own)
                elif (answer := await self._act("pause", own)).outcome != "unknown":
                    own.state = "paused" if answer.outcome == "ok" else "over"
                if time.monotonic() > until:
                    break
            await asyncio.sleep(0.2)
        return False

    async def close(self) -> None:
        await self._http.aclose()

    # One step

    async def _step(self) -> None:
        now = time.monotonic()
        for own in self.jobs:
            if own.state == "asked" and own.again_at <= now:
                return await self._submit(own)
        alive = [own for own in self.jobs if own.recurs and own.state in ("live", "paused", "unsure", "asked")]
        if len(alive) < self.recurring and self.dice.random() < 0.6:
            return await self._submit_new(recurs=True)
        choices = {
            "one_off": 30, "batch": 4, "change": 14, "pause": 8, "resume": 14, "cancel": 7, "trigger": 12, "get": 5,
            "explain": 4, "runs": 10,
        }  # fmt: skip
        drawn = self.dice.choices(list(choices), list(choices.values()))[0]
        if drawn == "one_off":
            return await self._submit_new(recurs=False)
        if drawn == "batch":
            return await self._submit_batch()
        if drawn == "resume":
            known = [own for own in alive if own.job_id is not None and own.state in ("paused", "unsure")]
        elif drawn in ("get", "explain", "runs"):
            known = [own for own in self.jobs if own.job_id is not None]
        elif drawn == "trigger":
            known = [own for own in alive if own.job_id is not None]
        else:
            known = [own for own in alive if own.job_id is not None and own.state != "asked"]
        if not known:
            return None
        own = self.dice.choice(known)
        if drawn == "runs":
            return await self._touch_a_run(own)
        return await self._do(drawn, own)

    async def _do(self, what: str, own: Own) -> None:
        if what == "explain":
            await self._call(
                "get", "GET", f"/jobs/{own.job_id}/explain", own=own, request={"what": "explain", "at": None}
            )
            return
        request: dict[str, Any] = {}
        if what == "change":
            request = drawing.change(self.dice, own.body)
        elif what == "cancel":
            request = {"running": self.dice.choice(("keep", "cancel"))}
        answer = await self._act(what, own, request)
        if what in ("get", "trigger"):
            return
        if answer.outcome == "unknown":
            own.state = "unsure"
        elif answer.outcome == "failed":
            # The job has ended, or was cancelled by a request whose answer was lost.
            await self._look(own)
        else:
            own.state = _shown(answer.document)
            if what == "change":
                own.body = {**own.body, **request}

    async def _look(self, own: Own) -> None:
        answer = await self._act("get", own)
        if answer.outcome == "ok":
            own.state = _shown(answer.document)

    async def _act(self, what: str, own: Own, request: dict[str, Any] | None = None) -> Answer:
        place = f"/jobs/{own.job_id}"
        request = request or {}
        if what == "change":
            return await self._call(what, "PATCH", place, own=own, request=request, body=request)
        if what == "cancel":
            return await self._call(what, "DELETE", f"{place}?running={request['running']}", own=own, request=request)
        if what == "get":
            return await self._call(what, "GET", place, own=own, request={"what": "job"})
        return await self._call(what, "POST", f"{place}/{what}", own=own, request=request)

    async def _touch_a_run(self, own: Own) -> None:
        """Lists a job's runs, then redrives a dead one or cancels an unfinished one."""
        answer = await self._call("get", "GET", f"/jobs/{own.job_id}/runs?limit=10", own=own, request={"what": "runs"})
        if answer.outcome != "ok":
            return
        runs = answer.document["items"]
        dead = [run["run_id"] for run in runs if run["status"] == "dead"]
        live = [run["run_id"] for run in runs if run["status"] in ("queued", "waiting", "running", "retrying")]
        if dead and self.dice.random() < 0.7:
            run_id = self.dice.choice(dead)
            await self._call("redrive", "POST", f"/dead-letters/{run_id}/redrive", own=own, request={"run_id": run_id})
        elif live:
            run_id = self.dice.choice(live)
            await self._call("cancel_run", "POST", f"/runs/{run_id}/cancel", own=own, request={"run_id": run_id})

    # Submitting

    def _new(self, *, recurs: bool) -> Own:
        name = f"{self.name}-{next(self._names)}"
        draw = drawing.recurring if recurs else drawing.one_off
        return Own(name, draw(self.dice, self.palette, name))

    async def _submit_new(self, *, recurs: bool) -> None:
        own = self._new(recurs=recurs)
        self.jobs.append(own)
        await self._submit(own)

    async def _submit(self, own: Own) -> None:
        answer = await self._call("submit", "POST", "/jobs", own=own, request=own.body, body=own.body)
        self._heard(own, answer.outcome, answer.document.get("job_id") if answer.outcome == "ok" else None)

    async def _submit_batch(self) -> None:
        batch = [self._new(recurs=False) for _ in range(self.dice.randrange(2, 12))]
        self.jobs += batch
        bodies = [own.body for own in batch]
        answer = await self._call(
            "submit_batch", "POST", "/jobs/batch", own=None, request={"jobs": bodies}, body=bodies
        )
        items = answer.document["items"] if answer.outcome == "ok" else [{}] * len(batch)
        for own, item in zip(batch, items, strict=True):
            refused = answer.outcome == "ok" and item.get("job_id") is None
            self._heard(own, "failed" if refused else answer.outcome, item.get("job_id"))

    def _heard(self, own: Own, outcome: str, job_id: str | None) -> None:
        if outcome == "ok":
            own.state, own.job_id = "live", job_id
        elif outcome == "failed":
            own.state = "over"
        else:
            own.again_at = time.monotonic() + self.dice.uniform(0.5, 8)

    # Asking

    async def _call(
        self, op: str, method: str, path: str, *, own: Own | None, request: Any, body: Any = None
    ) -> Answer:
        line = {
            "id": self.recorder.number(), "client": self.name, "op": op, "job": own.name if own else None,
            "job_id": own.job_id if own else None, "request": request, "invoked": time.time(),
            "returned": None, "outcome": "unknown", "status": None, "answer": None,
        }  # fmt: skip
        try:
            # httpx limits each read, this the whole request.
            async with asyncio.timeout(TIMEOUT * 1.5):
                response = await self._http.request(method, path, json=body)
            line["status"] = response.status_code
            if response.status_code < 500:
                line["answer"] = response.json()
                line["outcome"] = "ok" if response.status_code < 300 else "failed"
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            line["error"] = f"{type(error).__name__}: {error}"
        finally:
            line["returned"] = time.time()
            self.recorder.write(line)
        return Answer(str(line["outcome"]), line["answer"])


def _shown(document: Any) -> str:
    return {"active": "live", "paused": "paused"}.get(document["status"], "over")


@dataclass
class Workload:
    """Several clients that work concurrently."""

    clients: Sequence[Client]
    recorder: Recorder

    @classmethod
    def of(
        cls,
        folder: Path,
        url: str,
        *,
        seed: int,
        lease: float,
        clients: int = 4,
        rate: float = 10.0,
        recurring: int = 80,
    ) -> Workload:
        recorder = Recorder(folder)
        palette = Palette(lease)
        return cls(
            [
                Client(
                    f"c{number}",
                    url,
                    recorder,
                    Random(f"{seed}:client:{number}"),
                    palette,
                    rate / clients,
                    recurring // clients,
                )
                for number in range(clients)
            ],
            recorder,
        )

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(client.run(stop))

    async def finish(self, seconds: float) -> bool:
        return all(await asyncio.gather(*(client.finish(seconds) for client in self.clients)))

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        self.recorder.close()

    async def explain(self, url: str, asked: Sequence[tuple[str, float | None]]) -> list[dict[str, Any]]:
        """Duly's explanations of these occurrences, for `final.json`."""
        answers = []
        async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=TIMEOUT, trust_env=False) as http:
            for job_id, at in asked:
                moment = None if at is None else datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
                answer: dict[str, Any] = {"job_id": job_id, "at": at, "status": None, "answer": None}
                try:
                    found = await http.get(f"/jobs/{job_id}/explain", params={} if moment is None else {"at": moment})
                    answer |= {"status": found.status_code, "answer": found.json()}
                except (httpx.HTTPError, ValueError) as error:
                    answer["error"] = f"{type(error).__name__}: {error}"
                answers.append(answer)
        return answers
