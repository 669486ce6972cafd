"""Invariants, one in each module. Each has `check(facts)`, whose docstring states the promise."""
