"""`python -m peers`: see `make bench-peers`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from peers import page, plots
from peers.measures import FULL, QUICK
from peers.results import MEASURES, Results
from peers.rounds import take
from peers.setting_up import ROOT, Say, peer_names

PUBLISHED = ROOT / "docs/benchmarks"
TRIED = ROOT / "build/bench-peers"


def _parse(arguments: list[str]) -> argparse.Namespace:
    names, measures = ["duly", *peer_names()], list(MEASURES)
    parser = argparse.ArgumentParser(prog="make bench-peers", description="Measure Duly beside its peers.")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {','.join(names)}")
    parser.add_argument("--measure", metavar="NAMES", help=f"some of {','.join(measures)}")
    parser.add_argument("--rounds", type=int, help="how often each figure is taken (default 3; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that all works, not how fast")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        help="where results go (default docs/benchmarks; for a part or a quick run build/bench-peers)",
    )
    options = parser.parse_args(arguments)
    options.only = _chosen(parser, "--only", options.only, names)
    options.measure = _chosen(parser, "--measure", options.measure, measures)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.into is None:
        whole = not options.quick and options.only == names and options.measure == measures
        options.into = PUBLISHED if whole else TRIED
    return options


def _chosen(parser: argparse.ArgumentParser, option: str, given: str | None, known: list[str]) -> list[str]:
    if given is None:
        return known
    for name in (wanted := given.split(",")):
        if name not in known:
            parser.error(f"{option}: {name!r} is not known; choose from {', '.join(known)}")
    return [name for name in known if name in wanted]


def main() -> int:
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def say(text: str) -> None:
        seconds = int(time.monotonic() - began)
        print(f"{seconds // 60:3}:{seconds % 60:02} {text}", file=sys.stderr, flush=True)

    results = asyncio.run(_until_signal(options, say))
    if results is None:
        say("interrupted: nothing was written")
        return 130
    write(results, options.into)
    print(page.generated(results))
    say(f"written to {options.into}")
    return 1 if any(not tool.values for tool in results.tools) else 0


async def _until_signal(options: argparse.Namespace, say: Say) -> Results | None:
    """Cancel on SIGTERM as on Ctrl-C, so that servers and processes end too."""
    sizes = QUICK if options.quick else FULL
    task = asyncio.ensure_future(
        take(options.only, options.measure, rounds=options.rounds, sizes=sizes, quick=options.quick, say=say)
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None


def write(results: Results, folder: Path) -> None:
    """Write the document for programs, the page for people, and a plot of each kind of figure."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results.to_json(), indent=2, ensure_ascii=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    for name, svg in plots.make_all(results).items():
        (folder / name).write_text(svg, encoding="utf-8")
    readme = folder / "README.md"
    before = readme.read_text(encoding="utf-8") if readme.exists() else page.EMPTY
    readme.write_text(page.updated(before, results), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
