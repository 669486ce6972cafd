"""The command behind `make test` and `make test-fast`: runs the tests in parts (tiers.py) and gives one verdict.

A test that fails is run once more at the end, in a process of its own, with nothing beside it. If it passes then, it is
*unsteady*: the run is green all the same, and the test is listed last on the screen and in `unsteady.txt`, with the
output of its failure, for somebody to find out why. These stay red:

- a test that fails again;
- three unsteady tests or more: then it is not chance;
- an unsteady test that searches (marker `search`): it draws another input each time or depends on the order of events,
  so a second run that passes proves nothing;
- anything but the failure of a test: an error in collection, a process that crashed, an interrupted run, no tests at
  all, and in CI a skipped test, because it tested nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

import tiers

_BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")


@dataclass(frozen=True)
class Part:
    """One run of pytest: how many tests at once, which ones, and the files in which those are (empty: all)."""

    options: tuple[str, ...]
    marks: str
    files: tuple[str, ...] = ()

    def arguments(self, given: Sequence[str]) -> list[str]:
        chosen = any(Path(argument.partition("::")[0]).exists() for argument in given)
        # Collecting all files takes 15 s, longer than some parts.
        files = [] if chosen else [f"tests/{name}" for name in self.files if Path("tests", name).exists()]
        return [*self.options, "-m", self.marks, *given, *files]


_PARTS = {
    # One more than there are cores: many of these tests wait for a process or for PostgreSQL.
    "three at a time": Part(("-n", "3", *_BY_FILE), "not (alone or paced or waits)"),
    "four at a time, mostly waiting": Part(
        ("-n", "4", *_BY_FILE), "waits and not (alone or paced)", tiers.WAITS + tiers.MARKED
    ),
    "two at a time, by the clock": Part(("-n", "2", "--dist", "load"), "paced and not alone", tiers.PACED),
    "one at a time": Part((), "alone", tiers.ALONE + tiers.MARKED),
}
_FAST = {"three at a time": Part(("-n", "3", *_BY_FILE), "not (alone or paced or waits or search or slow)")}
_MAX_UNSTEADY = 2
_MAX_REPEATED = 20
_FILE = "unsteady.txt"
_WIDTH = 100


@dataclass
class Record:
    """One run of pytest, as its plugin saw it. `broken` lists errors that are not failures of a test."""

    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    searches: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def counts(self) -> str:
        return _counted(len(self.passed), len(self.failed), len(self.skipped), len(self.broken))


class Recorder:
    """A plugin of the pytest that controls a run; xdist's workers send it their reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._record = Record()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = self._record
        if report.failed:
            # xdist makes up a report for the test that was running when a worker died.
            if report.when not in ("setup", "call", "teardown"):
                record.broken.append(f"{report.nodeid}: {report.longreprtext}")
                return
            record.failed[report.nodeid] = record.failed.get(report.nodeid, "") + _output(report)
            if "search" in report.keywords and report.nodeid not in record.searches:
                record.searches.append(report.nodeid)
        elif report.skipped and not hasattr(report, "wasxfail"):
            record.skipped.append(report.nodeid)
        elif report.when == "call":
            record.passed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._record.broken.append(f"{report.nodeid} cannot be collected: {report.longreprtext}")
        elif report.skipped and report.nodeid not in self._record.skipped:
            self._record.skipped.append(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object | None) -> None:
        if error:
            self._record.broken.append(f"a worker of xdist is gone: {error}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        record = self._record
        # A test that passed and then failed in its teardown has failed.
        record.passed = [test for test in record.passed if test not in record.failed]
        self._path.write_text(json.dumps(asdict(record)))


def _output(report: pytest.TestReport) -> str:
    parts = [f"in {report.when}:\n{report.longreprtext}"]
    parts += [f"--- {title} ---\n{text.rstrip()}" for title, text in report.sections]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True)
class Verdict:
    """The tests that failed, sorted into unsteady and broken, and the reasons why the run is red."""

    unsteady: dict[str, str]
    failed: list[str]
    red: list[str]
    errors: int

    @property
    def is_green(self) -> bool:
        return not self.red


def judge(records: Sequence[Record], repeated: Sequence[Record], *, ci: bool) -> Verdict:
    """`repeated` is the second run of each test that failed, as far as there was one."""
    again = {test for record in repeated if not record.broken and not record.failed for test in record.passed}
    failed = {test: output for record in records for test, output in record.failed.items()}
    unsteady = {test: output for test, output in failed.items() if test in again}
    searches = [test for record in records for test in record.searches if test in unsteady]
    lasting = [test for test in failed if test not in unsteady]
    red = [f"{test} fails" for test in lasting]
    red += [f"{test} searches: that it passed by itself says nothing" for test in searches]
    if len(unsteady) > _MAX_UNSTEADY:
        red.append(f"{len(unsteady)} tests are unsteady: more than {_MAX_UNSTEADY} are not chance")
        searches = list(unsteady)
    errors = [reason for record in records for reason in record.broken]
    if ci and (skipped := [test for record in records for test in record.skipped]):
        errors.append(f"{len(skipped)} tests were skipped, and what was skipped was not tested: {', '.join(skipped)}")
    if not any(record.passed or record.failed for record in records):
        errors.append("no test has run")
    return Verdict(unsteady, lasting + searches, red + errors, len(errors))


def main(arguments: Sequence[str]) -> int:
    """`arguments` go to every pytest; `--fast` first in them: only the fast tier."""
    parts = _PARTS
    if arguments[:1] == ["--fast"]:
        parts, arguments = _FAST, arguments[1:]
    began = time.monotonic()
    unsteady_file = Path(_FILE)
    unsteady_file.unlink(missing_ok=True)
    records: dict[str, Record] = {}
    for name, part in parts.items():
        records[name] = _run(part.arguments(arguments), may_be_empty=bool(arguments) or bool(part.files))
        if records[name].broken:
            break
    repeated = []
    failed = [test for record in records.values() for test in record.failed]
    # A run that cannot become green any more needs no second try.
    if not any(record.broken for record in records.values()):
        for number, test in enumerate(failed[:_MAX_REPEATED], start=1):
            _say(f"\nonce more, by itself ({number} of {len(failed)}): {test}")
            repeated.append(_run([test]))
    verdict = judge(list(records.values()), repeated, ci=bool(os.environ.get("CI")))
    _report(records, verdict, unsteady_file, time.monotonic() - began)
    return 0 if verdict.is_green else 1


def _run(arguments: Sequence[str], *, may_be_empty: bool = False) -> Record:
    with tempfile.TemporaryDirectory(prefix="duly-record-") as folder:
        path = Path(folder) / "record.json"
        try:
            code = subprocess.run([sys.executable, __file__, "--record", str(path), *arguments], check=False).returncode
        except KeyboardInterrupt:
            return Record(broken=["the run was interrupted"])
        record = Record(**json.loads(path.read_text())) if path.exists() else Record()
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and may_be_empty:
        return record
    # Only a failed test explains exit code 1.
    if code and not record.broken and not (code == pytest.ExitCode.TESTS_FAILED and record.failed):
        record.broken.append(f"pytest {' '.join(arguments)}: ended with {code}")
    return record


def _report(records: dict[str, Record], verdict: Verdict, unsteady_file: Path, seconds: float) -> None:
    _say("")
    for name, record in records.items():
        _say(f"{name}: {record.counts()}")
    for reason in verdict.red:
        _say(f"RED: {reason}")
    if verdict.unsteady:
        lines = [f"UNSTEADY: failed once and passed by itself: {test}" for test in verdict.unsteady]
        for test, output in verdict.unsteady.items():
            lines += ["", f" {test} ".center(_WIDTH, "_"), output]
        unsteady_file.write_text("\n".join(lines) + "\n")
        _say("\n".join(lines))
        _say(f"Find out why before the next change; {unsteady_file} says the same.")
    failed = set(verdict.failed)
    passed = {test for record in records.values() for test in record.passed} | (set(verdict.unsteady) - failed)
    skipped = sum(len(record.skipped) for record in records.values())
    counts = _counted(len(passed), len(failed), skipped, verdict.errors)
    _say(f" {counts} in {seconds:.2f}s ".center(_WIDTH, "="))


def _counted(passed: int, failed: int, skipped: int, errors: int) -> str:
    text = f"{passed} passed, {failed} failed"
    text += f", {skipped} skipped" if skipped else ""
    return text + (f", {errors} errors" if errors else "")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        sys.exit(pytest.main(sys.argv[3:], plugins=[Recorder(Path(sys.argv[2]))]))
    sys.exit(main(sys.argv[1:]))
