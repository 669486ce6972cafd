"""`python -m simulation FIRST LAST` (from `tests`) simulates these seeds and prints those that break a promise."""

from __future__ import annotations

import sys
import time

from simulation.world import simulate, simulated


def main() -> int:
    first, last = int(sys.argv[1]), int(sys.argv[2])
    tracing = "--trace" in sys.argv
    began, broken, steps, outcomes, faults = time.process_time(), 0, 0, 0, 0
    with simulated():
        for seed in range(first, last + 1):
            found = simulate(seed, tracing=tracing)
            steps, outcomes, faults = steps + found.steps, outcomes + found.outcomes, faults + found.faults
            if tracing:
                print("\n".join(found.trace))
            if found.broken is not None:
                broken += 1
                print(f"seed {seed}: {found.broken}", flush=True)
    seeds = last - first + 1
    spent = time.process_time() - began
    print(
        f"{seeds} seeds, {broken} broken, {1000 * spent / seeds:.1f} ms, {steps / seeds:.0f} steps, "
        f"{outcomes / seeds:.0f} outcomes, {faults / seeds:.1f} faults per seed"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
