"""Fixtures of the tests with several processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.processes import Spawn
from servers import servers

__all__ = ["servers"]


@pytest.fixture
def sink(tmp_path: Path) -> Path:
    """The file in which every execution leaves its lines."""
    path = tmp_path / "sink"
    path.touch()
    return path


@pytest.fixture
def spawn(database_url: str, sink: Path, tmp_path: Path) -> Iterator[Spawn]:
    """Starts Duly's commands over this test's store. None outlives the test."""
    spawn = Spawn(tmp_path, sink, database_url)
    yield spawn
    spawn.end()
