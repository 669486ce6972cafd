"""The invariants, one per module. The docstring of a module's `check(facts)` states the promise."""
