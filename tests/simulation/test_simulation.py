"""Thousands of small simulations, each from one seed: whatever fails in them, every promise holds.

`DULY_SIM_SEEDS=20000` simulates more seeds; `DULY_SIM_SEED=n` repeats one and prints its trace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from simulation.model import Model
from simulation.mutants import LOGIC, MODELS, Advancing, broken_logic
from simulation.world import Found, search, simulate, simulated

SEEDS = int(os.environ.get("DULY_SIM_SEEDS", "1000"))
#: A mistake must be found within this many seeds; most are found within ten.
MUTANT_SEEDS = 1500
BLOCK = 200


def replay(seed: int) -> str:
    return f"DULY_SIM_SEED={seed} .venv/bin/pytest -s tests/simulation/test_simulation.py -k every_promise"


def blocks() -> list[range]:
    if one := os.environ.get("DULY_SIM_SEED"):
        return [range(int(one), int(one) + 1)]
    return [range(first, min(first + BLOCK, SEEDS + 1)) for first in range(1, SEEDS + 1, BLOCK)]


@pytest.mark.parametrize("seeds", blocks(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_every_promise_holds_whatever_fails(seeds: range) -> None:
    tracing = "DULY_SIM_SEED" in os.environ
    broken: list[Found] = []
    faults = outcomes = 0
    with simulated():
        for seed in seeds:
            found = simulate(seed, tracing=tracing)
            faults, outcomes = faults + found.faults, outcomes + found.outcomes
            if found.broken is not None:
                broken.append(found)
    if tracing:
        print("\n".join(found.trace))
    assert not broken, "\n" + "\n".join(f"seed {one.seed}: {one.broken}\n  {replay(one.seed)}" for one in broken)
    if len(seeds) > 50:
        # The test must not pass because nothing happened.
        assert faults > len(seeds)
        assert outcomes > 10 * len(seeds)


def found_at(model: type[Model], logic: str | None) -> int | None:
    """The first seed that breaks a promise with the mistake and breaks none without it."""
    first = 1
    while first <= MUTANT_SEEDS:
        with broken_logic(logic) if logic is not None else nullcontext():
            found, _ = search(range(first, MUTANT_SEEDS + 1), model=model)
        if found is None:
            return None
        with simulated():
            if simulate(found.seed).broken is None:
                return found.seed
        first = found.seed + 1
    return None


@pytest.mark.parametrize("mistake", MODELS)
def test_a_mistake_in_a_statement_is_found(mistake: str) -> None:
    assert found_at(MODELS[mistake], None) is not None, f"not found within {MUTANT_SEEDS} seeds"


@pytest.mark.parametrize("mistake", LOGIC)
def test_a_mistake_in_the_logic_is_found(mistake: str) -> None:
    assert found_at(Advancing, mistake) is not None, f"not found within {MUTANT_SEEDS} seeds"


def test_a_seed_is_the_same_world_in_every_process() -> None:
    seeds = range(40, 52)
    with simulated():
        here = [simulate(seed).fingerprint for seed in seeds]
        assert [simulate(seed).fingerprint for seed in seeds] == here
    program = (
        "from simulation.world import simulate, simulated\n"
        "with simulated():\n"
        f"    print([simulate(seed).fingerprint for seed in range({seeds.start}, {seeds.stop})])\n"
    )
    for hash_seed in ("0", "12345"):
        there = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert there.stdout.strip() == repr(here)
