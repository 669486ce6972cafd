"""The folder in which Duly keeps a user's files."""

from __future__ import annotations

import os
from pathlib import Path

from duly.errors import ConfigError


def default_home() -> Path:
    """`$DULY_HOME`, else the user's own folder (`user_home`)."""
    if chosen := os.environ.get("DULY_HOME"):
        return Path(chosen).expanduser()
    return user_home()


def user_home() -> Path:
    """`/var/lib/duly` for root, else `duly` in the user's data folder (`$XDG_DATA_HOME`)."""
    if os.geteuid() == 0:
        return Path("/var/lib/duly")
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if data_home.is_absolute():  # the XDG specification says to ignore any other
        return data_home / "duly"
    try:
        return Path.home() / ".local/share/duly"
    except RuntimeError:
        raise ConfigError("this user has no home folder: set DULY_HOME") from None
