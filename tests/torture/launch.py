"""`python -m torture.launch worker …`: Duly's command line as the mutant that TORTURE_MUTANT names."""

from __future__ import annotations

import os
from importlib import import_module

from torture import mutants


def main() -> None:
    if name := os.environ.get("TORTURE_MUTANT"):
        mutants.apply(name)
    import_module("duly.cli.main").main()


if __name__ == "__main__":
    main()
