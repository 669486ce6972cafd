"""docs/settings.md is made from the settings, and is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from duly.config import Settings

ROOT = Path(__file__).parents[1]


def test_the_table_of_settings_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "scripts/settings_table.py"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert (ROOT / "docs/settings.md").read_text() == made, "run: make docs"


def test_every_setting_says_what_it_is_for() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
