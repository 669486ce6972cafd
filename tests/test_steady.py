"""The test command tells unsteady tests from broken ones, in projects of a few tests each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import steady
import tiers
from steady import Record, judge

TESTS = Path(steady.__file__).parent

_INI = """
[pytest]
markers =
    alone: by itself
    paced: by the clock
    waits: mostly asleep
    search: seeded
    slow: long
addopts = --strict-markers -p no:cacheprovider -p xdist.plugin
"""

# Fails the first time, and passes once its mark is in the folder.
_UNSTEADY = """
import pathlib, pytest
def once(name):
    mark = pathlib.Path(__file__).parent / name
    if not mark.exists():
        mark.touch()
        print("what it printed")
        raise AssertionError("the first time of " + name)
"""


def _run(folder: Path, *arguments: str, ci: bool = False, **files: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text(_INI)
    (folder / "test_alone.py").write_text("import pytest\n@pytest.mark.alone\ndef test_alone(): pass\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(_UNSTEADY + text)
    # The inner pytest must not inherit the settings of the pytest that runs this test.
    own = ("PYTEST", "COV_", "CI")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading the plugins takes longer than these tests
    done = subprocess.run(
        [sys.executable, steady.__file__, *arguments],
        cwd=folder,
        env=environment | ({"CI": "true"} if ci else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def test_unsteady_tests_are_listed_last_and_the_run_is_green(tmp_path: Path) -> None:
    code, output = _run(
        tmp_path,
        test_a="def test_one(): once('a')\ndef test_good(): pass\n",
        test_b="@pytest.mark.alone\ndef test_two(): once('b')\n",
    )
    assert code == 0, output
    assert "three at a time: 1 passed, 1 failed" in output
    assert "one at a time: 1 passed, 1 failed" in output
    *_, last = output.splitlines()
    assert " 4 passed, 0 failed in " in last
    listed = output[output.index("UNSTEADY") :]
    assert "test_a.py::test_one" in listed
    assert "test_b.py::test_two" in listed
    assert "the first time of a" in listed
    assert "what it printed" in listed
    written = (tmp_path / "unsteady.txt").read_text()
    assert written in output
    assert "the first time of b" in written

    # The tests are steady now: the file of the last run is deleted.
    code, output = _run(tmp_path)
    assert code == 0, output
    assert "UNSTEADY" not in output
    assert not (tmp_path / "unsteady.txt").exists()


def test_a_search_stays_red(tmp_path: Path) -> None:
    code, output = _run(tmp_path, test_a="@pytest.mark.search\ndef test_one(): once('a')\ndef test_good(): pass\n")
    assert code == 1
    assert "test_one searches" in output
    assert "the first time of a" in (tmp_path / "unsteady.txt").read_text()
    assert " 2 passed, 1 failed in " in output.splitlines()[-1]


def test_a_broken_test_stays_red(tmp_path: Path) -> None:
    code, output = _run(
        tmp_path,
        test_a="@pytest.mark.parametrize('what', ['', 'a::b [x] é'])\ndef test_bad(what): assert not what\n",
        test_b="def test_one(): once('b')\n",
    )
    assert code == 1
    assert "test_b.py::test_one" in (tmp_path / "unsteady.txt").read_text()
    assert "test_bad" not in (tmp_path / "unsteady.txt").read_text()
    assert " 3 passed, 1 failed in " in output.splitlines()[-1]


def test_an_error_in_collection_stays_red(tmp_path: Path) -> None:
    code, output = _run(tmp_path, test_a="def test_good(): once('a')\n", test_b="import nothing_of_this_name\n")
    assert code == 1
    assert "RED: test_b.py cannot be collected" in output
    assert "error" in output.splitlines()[-1]


def test_a_crash_stays_red(tmp_path: Path) -> None:
    crash = "def test_dies():\n    import os\n    try: once('a')\n    except AssertionError: os._exit(1)\n"
    code, output = _run(tmp_path, test_a=crash, test_b="def test_good(): pass\n")
    assert code == 1
    assert "crashed while running" in output[output.index("RED: ") :]
    assert " error" in output.splitlines()[-1]


@pytest.mark.parametrize("ci", [True, False])
def test_in_ci_a_skipped_test_is_red(tmp_path: Path, ci: bool) -> None:
    skipping = "def test_good(): once('a')\ndef test_skips(): pytest.skip('no server')\n"
    code, output = _run(tmp_path, test_a=skipping, ci=ci)
    assert code == (1 if ci else 0), output
    assert "1 skipped" in output.splitlines()[-1]


def test_the_fast_tier_leaves_out_waits_and_searches(tmp_path: Path) -> None:
    marked = "".join(
        f"@pytest.mark.{mark}\ndef test_{mark}(): assert False\n" for mark in ("paced", "waits", "search", "slow")
    )
    code, output = _run(tmp_path, "--fast", test_a=f"def test_good(): pass\n{marked}")
    assert code == 0, output
    assert " 1 passed, 0 failed in " in output.splitlines()[-1]


def _once(*names: str) -> Record:
    return Record(passed=["good"], failed=dict.fromkeys(names, "failed so"))


def test_three_unsteady_ones_are_red() -> None:
    two, three = ("a", "b"), ("a", "b", "c")
    assert judge([_once(*two)], [Record(passed=[name]) for name in two], ci=True).is_green
    verdict = judge([_once("a"), _once("b", "c")], [Record(passed=[name]) for name in three], ci=True)
    assert not verdict.is_green
    assert verdict.failed == list(three)


@pytest.mark.parametrize(
    "second",
    [
        Record(),  # not found, or never run
        Record(skipped=["a"]),
        Record(failed={"a": "again"}),
        Record(passed=["a"], failed={"a": "in its teardown"}),
        Record(passed=["a"], broken=["the process died"]),
        Record(passed=["another"]),
    ],
)
def test_only_a_second_run_that_passes_makes_a_test_unsteady(second: Record) -> None:
    verdict = judge([_once("a")], [second], ci=False)
    assert not verdict.unsteady
    assert verdict.failed == ["a"]
    assert not verdict.is_green


def test_nothing_run_is_red() -> None:
    assert not judge([Record(), Record()], [], ci=False).is_green


def test_a_test_that_draws_its_seed_is_marked_as_a_search() -> None:
    unmarked = [
        path
        for path, text in _files_of_tests()
        if re.search(r"\b(randrange\(2\*\*32|SystemRandom|drawn_seed|DULY_TEST_SEED)", text)
        and "search" not in tiers.markers(path)
        and "mark.search" not in text
    ]
    assert not unmarked, "name them in tests/tiers.py, SEARCH, or mark their tests with pytest.mark.search"


def test_a_file_that_marks_single_tests_is_one_that_the_part_collects() -> None:
    """Otherwise `make test` would not run the marked tests at all."""
    marked = {path for path, text in _files_of_tests() if re.search(r"pytest\.mark\.(alone|paced|waits)\b", text)}
    assert marked - {"test_steady.py"} <= set(tiers.MARKED)
    named = {*tiers.ALONE, *tiers.PACED, *tiers.WAITS, *tiers.SEARCH, *tiers.SLOW, *tiers.MARKED, *tiers.LONGEST_FIRST}
    assert not [name for name in named if not (TESTS / name).exists()]


def test_tests_mirror_the_source() -> None:
    """A folder of tests has the name of a folder of src/duly or one of the names in `own`."""
    own = {"harness", "mutants", "policies", "simulation", "sql", "torture"}
    source = TESTS.parent / "src" / "duly"
    rooms = {path.parent.relative_to(source).as_posix() for path in source.rglob("*.py")}
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path()}
    assert not [folder for folder in folders if folder.parts[0] not in own and folder.as_posix() not in rooms]


def _files_of_tests() -> list[tuple[str, str]]:
    return [(path.relative_to(TESTS).as_posix(), path.read_text()) for path in sorted(TESTS.rglob("test_*.py"))]
