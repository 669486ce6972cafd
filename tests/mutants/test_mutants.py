"""The list of mutants is up to date: each mutant finds its text, differs from the original, and can be run."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from duly.store.pool import Pool
from mutants.everything import MUTANTS
from mutants.mutant import Mutant, Unmatched

ROOT = Path(__file__).resolve().parents[2]


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.name))
def test_it_applies_and_compiles(mutant: Mutant) -> None:
    text = mutant.mutated(ROOT)
    assert text != mutant.path(ROOT).read_text()
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")


async def test_the_statements_can_be_prepared(pool: Pool) -> None:
    """A statement that PostgreSQL cannot parse would be caught by any test, for the wrong reason."""
    broken = []
    for mutant in MUTANTS:
        if mutant.file.startswith("store/sql/"):
            try:
                async with pool.transaction() as transaction:
                    await transaction.connection.prepare(mutant.mutated(ROOT))
            except asyncpg.PostgresError as error:
                broken.append(f"{mutant.name}: {error}")
    assert not broken


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.name))
def test_the_tests_that_should_catch_it_are_there(mutant: Mutant) -> None:
    assert mutant.tests
    for place in mutant.tests:
        file, *names = place.split("::")
        text = (ROOT / "tests" / file).read_text()
        for name in names:
            assert f"class {name}:" in text or f"def {name}(" in text, place


def test_a_text_that_is_gone_or_ambiguous_is_an_error_that_names_the_mutant(tmp_path: Path) -> None:
    (tmp_path / "src" / "duly").mkdir(parents=True)
    (tmp_path / "src" / "duly" / "it.py").write_text("a = 1\na = 1\nb = 2\n")
    for old in ("a = 1", "c = 3"):
        with pytest.raises(Unmatched, match="the-name"):
            Mutant("the-name", "", "it.py", old, "", ()).mutated(tmp_path)
    Mutant("the-name", "", "it.py", "b = 2", "b = 3", ()).apply(tmp_path)
    assert (tmp_path / "src" / "duly" / "it.py").read_text().endswith("b = 3\n")
