"""One module an invariant. Each has `check(facts)`, whose docstring states the promise."""
