"""The API's description is true: schemathesis sends requests that the description allows, and some that it does not."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from duly.api import schemas
from duly.api.examples import EXAMPLES
from duly.api.server import create_app
from duly.model import Buried
from duly.operations import StoreOperations
from duly.store import runs
from duly.store.pool import Pool
from harness.store import put_now, take

HERE = Path(__file__).parent
# Fewest cases of each of the two tests. More are for a release or a change of the API (6000: a minute for each test).
# The suite sends what the description calls for systematically, about 2,700 cases, and ten random ones for each
# operation: always all of them, however long they take.
CASES = int(os.environ.get("DULY_TEST_SCHEMATHESIS_CASES", "2000"))
# The same seed sends the same cases; another number sends others.
SEED = os.environ.get("DULY_TEST_SCHEMATHESIS_SEED", "6")
# Random cases for each operation. There are about 32 operations, and the systematic part sends more than the 1,200
# cases that are assumed here.
EXAMPLES_EACH = max(10, (CASES - 1200) // 32)
# 20 seconds on a quiet machine.
PATIENCE = 300 + CASES // 10


async def _schemathesis(url: str, folder: Path, *arguments: str) -> str:
    """Runs the command line of schemathesis with all checks against a real server. Returns its output."""
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"),
        "run", f"{url}/api/v1/openapi.json", "--seed", SEED, "--no-color",
        "--max-examples", str(EXAMPLES_EACH), *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=folder, env=environment,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            said = (await process.communicate())[0].decode(errors="replace")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    shown = "\n".join(line[:400] for line in said.splitlines())
    print(shown[-3000:])
    assert process.returncode == 0, shown[-20_000:]
    return shown


def _cases(said: str) -> int:
    found = re.search(r"(\d+) generated", said)
    assert found is not None, said
    return int(found[1])


async def _bury(pool: Pool, number: int, **changes: Any) -> None:
    """Stores dead letters, so that the calls about dead letters find some."""
    await put_now(pool, number, **changes)
    claim = await take(pool, limit=number)
    assert len(claim.runs) == number
    error = '{"type": "ValueError", "message": "no", "traceback": null}'
    await runs.bury(pool, [Buried(run, 1_700_000_000_000_000, 1_700_000_000_000_001, error) for run in claim.runs])


@pytest.mark.timeout(PATIENCE + 70)
async def test_without_keys_every_answer_is_as_described(
    store_operations: StoreOperations, pool: Pool, serving: Any, tmp_path: Path
) -> None:
    await _bury(pool, 300)
    async with serving(store_operations) as url:
        assert _cases(await _schemathesis(url, tmp_path)) >= CASES


@pytest.mark.timeout(PATIENCE + 70)
async def test_with_a_key_every_answer_is_as_described_and_without_it_401(
    store_operations: StoreOperations, pool: Pool, serving: Any, tmp_path: Path
) -> None:
    await _bury(pool, 300, tenant="acme")
    key = (await store_operations.keys.create(tenant="acme", role="write")).text
    async with serving(store_operations) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/api/v1/jobs")).status_code == 401  # now the description asks for a key too
        said = await _schemathesis(url, tmp_path, "-H", f"Authorization: Bearer {key}")
    assert _cases(said) >= CASES


@pytest.fixture
def description(store_operations: StoreOperations) -> dict[str, Any]:
    return create_app(store_operations).openapi()


TABLE = {
    "POST /jobs", "POST /jobs/batch", "GET /jobs", "GET /jobs/{job_id}", "PATCH /jobs/{job_id}",
    "DELETE /jobs/{job_id}", "POST /jobs/{job_id}/pause", "POST /jobs/{job_id}/resume", "POST /jobs/{job_id}/trigger",
    "GET /jobs/{job_id}/runs", "GET /jobs/{job_id}/upcoming", "GET /jobs/{job_id}/explain", "GET /forecast",
    "GET /runs/{run_id}", "POST /runs/{run_id}/cancel", "GET /dead-letters", "POST /dead-letters/{run_id}/redrive",
    "POST /dead-letters/redrive", "DELETE /dead-letters/{run_id}", "POST /schedules/preview", "GET /cluster",
    "GET /stats", "GET /audit", "GET /incidents", "POST /monitors/{slug}/ping",
}  # fmt: skip


async def test_every_call_of_the_spec_is_there(description: dict[str, Any]) -> None:
    served = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, methods in description["paths"].items()
        for method in methods
    }
    assert served >= TABLE
    assert served - TABLE == {
        "GET /dead-letters/{run_id}", "GET /dead-letters/count", "DELETE /dead-letters", "GET /monitors",
        "PUT /monitors/{slug}", "GET /monitors/{slug}", "DELETE /monitors/{slug}",
        "POST /monitors/{slug}/ping/{outcome}", "GET /runs/{run_id}/logs", "POST /incidents/{incident_id}/ack",
        "GET /maintenance-windows", "POST /maintenance-windows", "DELETE /maintenance-windows/{window_id}",
    }  # fmt: skip


async def test_every_call_is_described_with_examples_and_all_its_problems(description: dict[str, Any]) -> None:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            case = f"{method} {path}"
            assert operation["summary"], case
            assert {"401", "403", "421", "422", "429", "503"} <= operation["responses"].keys(), case
            if "{" in path and method != "put":  # which makes what is not there
                assert "404" in operation["responses"], case
            for content in operation.get("requestBody", {}).get("content", {}).values():
                assert content["example"], case
            for status, answer in operation["responses"].items():
                for content in answer.get("content", {}).values():
                    assert content["example"], f"{case} {status}"
                assert status == "204" or answer["content"], f"{case} {status}"


async def test_every_example_is_what_it_is_an_example_of(description: dict[str, Any]) -> None:
    models: dict[str, type[BaseModel]] = {
        name: model for name, model in vars(schemas).items() if isinstance(model, type) and issubclass(model, BaseModel)
    }
    checked = 0
    for methods in description["paths"].values():
        for operation in methods.values():
            assert operation["operationId"] in EXAMPLES
            contents = [
                content for answer in operation["responses"].values() for content in answer.get("content", {}).values()
            ] + list(operation.get("requestBody", {}).get("content", {}).values())
            for content in contents:
                name = content["schema"].get("$ref", "").rpartition("/")[2]
                if name in models:
                    models[name].model_validate(content["example"], strict=False)
                    checked += 1
    assert checked > 100


async def test_the_documentation_page_needs_nothing_but_this_server(store_operations: StoreOperations) -> None:
    transport = httpx.ASGITransport(app=create_app(store_operations))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        page = await client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        linked = set(re.findall(r'(?:src|href)="([^"]+)"', page.text))
        assert linked == {"/static/icon.svg", "/static/docs.css", "/static/docs.js", "/api/v1/openapi.json"}
        assert re.search(r"<style|style=|<script(?![^>]*src=)|\son[a-z]+=", page.text) is None
        for address in linked:
            assert (await client.get(address)).status_code == 200, address
        script = (await client.get("/static/docs.js")).text
        sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|setHTML|eval|https?://"
        assert re.search(sinks, script) is None
        assert "url(" not in (await client.get("/static/docs.css")).text
