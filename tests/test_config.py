"""Settings: their table in the documents, and those that do not exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from duly.config import Settings, load_settings
from duly.errors import ConfigError

ROOT = Path(__file__).parents[1]


def test_the_table_of_settings_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "scripts/settings_table.py"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert (ROOT / "docs/settings.md").read_text() == made, "run: make docs"


def test_every_setting_says_what_it_is_for() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No setting from the developer's own environment or folder."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DULY_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_misspelt_variable_is_refused_with_the_nearest_setting(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("DULY_CONCURENCY", "3")
    with pytest.raises(ConfigError, match=r"'DULY_CONCURENCY', given as an environment .* mean DULY_CONCURRENCY\?"):
        load_settings()


def test_a_misspelt_key_of_the_file_is_refused_and_the_file_named(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "duly.toml").write_text('pool_sise = 3\n[worker]\nhost = "x"\n')
    with pytest.raises(ConfigError) as refused:
        load_settings()
    assert "'pool_sise'" in str(refused.value)
    assert "did you mean pool_size?" in str(refused.value)
    assert "'worker'" in str(refused.value)
    assert str(tmp_path / "duly.toml") in str(refused.value)


def test_a_misspelt_argument_is_refused(clean: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'poll_second', given as an argument \(did you mean poll_seconds\?\)"):
        load_settings(poll_second=3)


def test_unknown_settings_only_warn_if_told_so(clean: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A file that a newer version reads as well must not keep this one from starting, if its owner says so."""
    clean.setenv("DULY_OF_A_NEWER_VERSION", "3")
    clean.setenv("DULY_UNKNOWN_SETTINGS", "warn")
    clean.setenv("DULY_CONCURRENCY", "7")
    assert load_settings().concurrency == 7
    assert "DULY_OF_A_NEWER_VERSION" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DULY_SERVICE_HOST", "10.0.0.7"),
        ("DULY_SERVICE_PORT", "8080"),
        ("DULY_SERVICE_PORT_HTTP", "8080"),
        ("DULY_API_PORT", "tcp://10.0.0.7:8080"),
        ("DULY_API_PORT_8080_TCP", "tcp://10.0.0.7:8080"),
        ("DULY_API_PORT_8080_TCP_ADDR", "10.0.0.7"),
        ("DULY_PORT", "tcp://10.0.0.7:8080"),
        ("DULY_HEALTH_PORT", "tcp://10.0.0.7:9090"),
        ("DULY_RUN_ID", "x"),
        ("DULY_API_KEY", "x"),
    ],
)
def test_variables_of_kubernetes_and_of_commands_are_no_settings(
    clean: pytest.MonkeyPatch, name: str, value: str
) -> None:
    clean.setenv(name, value)
    assert load_settings().port == 8080


def test_every_variable_that_a_command_gets_is_known(clean: pytest.MonkeyPatch) -> None:
    """A command of a job may call `duly submit`."""
    source = (ROOT / "src/duly/worker/targets/command.py").read_text()
    given = set(re.findall(r"DULY_[A-Z_]+", source))
    assert {"DULY_RUN_ID", "DULY_FENCING_TOKEN"} <= given
    for name in given:
        clean.setenv(name, "")
    load_settings()
