"""`make mutants` puts each mutant of the list into a copy of the tree and runs the tests that should catch it.

    make mutants                              # all mutants
    make mutants ARGS="claim fire-skips"      # mutants whose name contains one of these words
    make mutants ARGS="--jobs 2 --timeout 120"

The tests first run without any mutant: a test that fails anyway catches nothing. Mutants that survive are listed last,
and the exit code tells whether there are any.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import pytest

from harness.store import hasty_postgres
from mutants.everything import MUTANTS
from mutants.mutant import Mutant, Unmatched

ROOT = Path(__file__).resolve().parents[2]
_PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin",
    "-p", "no:cacheprovider")  # fmt: skip
_COPIED = ("src", "tests", "bench", "docs", "pyproject.toml", "README.md", "Makefile")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    became: str
    seconds: float
    detail: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and copies are removed
    chosen = [one for one in MUTANTS if not options.names or any(word in one.name for word in options.names)]
    if not chosen:
        print(f"no mutant has one of these words in its name: {' '.join(options.names)}")
        return 2
    try:
        for mutant in chosen:
            mutant.mutated(ROOT)
    except Unmatched as error:
        print(f"the list of mutants is out of date: {error}")
        return 2
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name}: {mutant.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="duly-mutants-") as folder:
        clean = Path(folder) / "clean"
        _copy(clean)
        if not options.unchecked and not _pass_without_mutants(clean, chosen):
            return 2
        return _report(_run_all(chosen, Path(folder), options.jobs, options.timeout))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__, add_help=True)
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these words")
    parser.add_argument("--jobs", type=int, default=1, help="number of mutants to run at the same time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one mutant")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a mutant first")
    return parser.parse_args(arguments)


def _copy(target: Path) -> None:
    target.mkdir()
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=_LEFT_OUT)
        else:
            shutil.copy2(ROOT / name, target / name)


def _pytest(
    tree: Path, tests: Sequence[str], *options: str, server: str, timeout: float | None = None
) -> tuple[int | None, str]:
    """Runs the tests. Returns the exit code, or None if they took too long, and the output."""
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),  # before the installed duly, which is the checkout
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # loading the others takes as long as most of the tests
        "DULY_TEST_SERVER": server,
    }
    places = [f"tests/{one}" for one in tests]
    command = [sys.executable, "-m", "pytest", "-q", *_PLUGINS, *options, *places]
    process = subprocess.Popen(
        command, cwd=tree, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # First SIGTERM, so that pytest stops the server and the processes that it has started; then SIGKILL.
        process.terminate()
        try:
            output, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        return None, output
    return process.returncode, output


def _pass_without_mutants(clean: Path, chosen: Sequence[Mutant]) -> bool:
    where = subprocess.run(
        [sys.executable, "-c", "import duly; print(duly.__file__)"],
        env=os.environ | {"PYTHONPATH": str(clean / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if not where.startswith(str(clean)):
        print(f"duly is not imported from the copy in {clean}, but from {where}")
        return False
    tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    print(f"without a mutant: {len(tests)} tests or files of tests", flush=True)
    with hasty_postgres() as server:
        code, output = _pytest(clean, tests, server=server)
    print(output.splitlines()[-1] if output else "", flush=True)
    if code != pytest.ExitCode.OK:
        print(output)
        print("these tests fail without a mutant, so they prove nothing about mutants")
    return code == pytest.ExitCode.OK


def _run_all(chosen: Sequence[Mutant], folder: Path, jobs: int, timeout: float) -> list[Result]:
    results = []
    # One server for each mutant that runs at the same time: every mutant makes the template of its databases anew.
    servers: Queue[str] = Queue()
    with ExitStack() as stack:
        for _ in range(jobs):
            servers.put(stack.enter_context(hasty_postgres()))
        executor = ThreadPoolExecutor(jobs)
        # An interrupt waits for the mutants under way, not for all that are still to come.
        stack.callback(executor.shutdown, cancel_futures=True)
        running = [executor.submit(_run, mutant, folder, servers, timeout) for mutant in chosen]
        for number, future in enumerate(running, start=1):
            result = future.result()
            results.append(result)
            print(
                f"[{number}/{len(chosen)}] {result.mutant.name}: {result.became} in {result.seconds:.0f} s "
                f"{result.detail}",
                flush=True,
            )
    return results


def _run(mutant: Mutant, folder: Path, servers: Queue[str], timeout: float) -> Result:
    server = servers.get()
    began = time.monotonic()
    tree = folder / mutant.name
    shutil.copytree(folder / "clean", tree)
    try:
        mutant.apply(tree)
        code, output = _pytest(tree, mutant.tests, "-x", server=server, timeout=timeout)
        found = _failed(output)
        if code == pytest.ExitCode.TESTS_FAILED and not any(
            one.split("[")[0].startswith(mutant.named) for one in found
        ):
            # In a whole file an unrelated test may have failed by chance. It must fail again.
            code, output = _pytest(tree, found, server=server, timeout=timeout)
            if code == pytest.ExitCode.OK:
                return Result(mutant, "UNSURE", time.monotonic() - began, f"{found[0]} failed once and then passed")
    finally:
        servers.put(server)
        shutil.rmtree(tree, ignore_errors=True)
    seconds = time.monotonic() - began
    if code is None:
        # The tests have their own timeouts: a test that hangs fails there.
        return Result(mutant, "UNSURE", seconds, "its tests took too long")
    if code == pytest.ExitCode.TESTS_FAILED:
        return Result(mutant, "caught", seconds, f"by {', '.join(found)}")
    if code == pytest.ExitCode.OK:
        return Result(mutant, "SURVIVED", seconds)
    # The mutant cannot be imported, or the tests do not exist: nothing was tried.
    return Result(mutant, "ERROR", seconds, output[-2000:])


def _failed(output: str) -> list[str]:
    """The failed tests that pytest's output names, relative to tests."""
    lines = [line.split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    return [line.split(" ", 1)[1].removeprefix("tests/") for line in lines]


def _report(results: Sequence[Result]) -> int:
    missed = [result for result in results if result.became != "caught"]
    print(f"\n{len(results)} mutants, {len(results) - len(missed)} caught, {len(missed)} not")
    for result in missed:
        mutant = result.mutant
        print(f"{result.became} {mutant.name}: {mutant.what}\n    {mutant.file}; tried: {' '.join(mutant.tests)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
