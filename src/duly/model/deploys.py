"""Applications and their deploys, and the order of deploys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

# The longest name of an application or a deploy.
MAX_NAME = 100
# Files of a build that sets no times have one of decades ago.
_OLDEST = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Declarer:
    """The application and deploy that declare jobs, with the keys of all jobs that they declare.

    `rank` sorts as text in the order of deploys. A deploy that was set comes after every deploy that was derived from
    the code's files, and an unknown one before all others.
    """

    owner: str = ""
    deploy: str | None = None
    rank: str = ""
    keys: frozenset[str] = field(default_factory=frozenset)

    def info(self, tenant: str) -> dict[str, Any]:
        """What the row of a worker says about its application."""
        return {
            "name": self.owner,
            "deploy": self.deploy,
            "rank": self.rank,
            "declares": sorted(self.keys),
            "tenant": tenant,
        }

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Declarer:
        """The application and deploy of a worker, without what it declares. An empty `info`: unknown ones."""
        return cls(info.get("name") or "", info.get("deploy"), info.get("rank") or "")

    def described(self) -> str:
        of = f" of app {self.owner!r}" if self.owner else ""
        return f"deploy {self.deploy}{of}" if self.deploy is not None else f"unknown deploy{of}"


def rank_of_setting(deploy: str) -> str:
    """The rank of a deploy that was set: digits count as numbers (9 before 10), all else as text."""
    return "1" + re.sub("[0-9]+", lambda number: _sortable(number[0]), deploy)


def rank_of_time(newest: datetime) -> str:
    """The rank of a deploy that is known by its code's files; empty if their times say nothing."""
    return "" if newest < _OLDEST else f"0{newest:%Y-%m-%dT%H:%M:%SZ}"


def _sortable(digits: str) -> str:
    digits = digits.lstrip("0")
    return f"{len(digits):03d}{digits}"
