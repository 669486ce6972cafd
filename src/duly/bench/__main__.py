"""`python -m duly.bench`: the same as `duly bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from duly.bench.main import DEFAULT_JSON, LONG, MEASURES, run_bench
from duly.errors import DulyError


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="duly bench", description="Measure Duly beside raw SQL.")
    parser.add_argument(
        "--only",
        metavar="NAMES",
        help=f"some of {','.join(MEASURES)} (default: all of these), or of {','.join(LONG)}, which take long",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of rounds, each of which takes every figure once (default 3)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the amount of work (default 1)")
    parser.add_argument(
        "--jobs",
        type=int,
        help="number of jobs that `registered` and `steady` register (default 1,000,000 and 10,000,000), "
        "and of runs that wait in `backlog` (default 5,000,000)",
    )
    parser.add_argument("--seconds", type=int, help="duration of `steady` and `handlers` (default 600 and 300)")
    parser.add_argument("--json", type=Path, default=Path(DEFAULT_JSON), metavar="PATH", help="file for the results")
    parser.add_argument("--database-url", help="PostgreSQL to measure on; default: an embedded one")
    parser.add_argument("--home", type=Path, help="home of the embedded PostgreSQL; default: a temporary one")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="also write a cProfile of one draining worker")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    return run_bench(
        only=options.only.split(",") if options.only else None,
        rounds=options.rounds,
        scale=options.scale,
        json_path=options.json,
        database_url=options.database_url,
        home=options.home,
        quiet=options.quiet,
        profile=options.profile,
        jobs=options.jobs,
        seconds=options.seconds,
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DulyError as error:
        sys.exit(str(error))
