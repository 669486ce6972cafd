"""The account that a command runs as, and the environment variables that it gets.

Variables are passed by a list of names, as cron does it. The rest of a worker's environment (the store's password, keys
of a cloud, secrets of the application's tasks) is not passed to commands.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass

from duly.errors import ConfigError

# Variables of the worker that every command gets; `LC_…` ones are passed as well.
PASSED = frozenset({"PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR"})
# Not passed to another account, which has values of its own. The worker's TMPDIR may be closed to it.
_OF_THE_ACCOUNT = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Account:
    """The account that commands run as, if it is not the worker's own."""

    uid: int
    gid: int
    name: str
    home: str
    shell: str

    @classmethod
    def parse(cls, text: str) -> Account:
        """Reads `USER[:GROUP]`, names or numbers. An error names the setting."""
        user, colon, group = text.partition(":")
        if os.geteuid() != 0:
            raise _mistake(
                f"{text[:100]!r} needs a worker that runs as root, and this one does not: only root can change "
                "its account. Start the worker as root, or without this setting under an account made for commands"
            )
        try:
            known = pwd.getpwuid(int(user)) if _is_number(user) else pwd.getpwnam(user)
        except (KeyError, ValueError):
            if not _is_number(user) or not colon:
                raise _mistake(f"there is no account {user[:100]!r} on this machine") from None
            return cls(int(user), _group(group), user, "/", "/bin/sh")
        gid = _group(group) if colon else known.pw_gid
        return cls(known.pw_uid, gid, known.pw_name, known.pw_dir or "/", known.pw_shell or "/bin/sh")


def _is_number(text: str) -> bool:
    # To the kernel, the greatest 32-bit number means "leave unchanged".
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**32 - 1


def _group(text: str) -> int:
    if _is_number(text):
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, ValueError):
        raise _mistake(f"there is no group {text[:100]!r} on this machine") from None


def _mistake(problem: str) -> ConfigError:
    return ConfigError(f"setting command_user (--command-user): {problem}")


def passed_names(text: str) -> frozenset[str]:
    """Reads the names in the setting `pass_env`."""
    names = frozenset(name.strip() for name in text.split(",")) - {""}
    for name in sorted(names):
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"setting pass_env (--pass-env): {name[:100]!r} is not the name of an environment variable"
            )
        if name.startswith("DULY_"):
            raise ConfigError(
                f"setting pass_env (--pass-env): {name[:100]} is a setting of Duly's, and no command gets those: they "
                "hold the store's password"
            )
    return names


def clean_environment(
    environment: Mapping[str, str], *, passed: frozenset[str] = frozenset(), account: Account | None = None
) -> dict[str, str]:
    """The worker's own variables that a command gets."""
    names = PASSED if account is None else PASSED - _OF_THE_ACCOUNT
    clean = {name: value for name, value in environment.items() if name in names or name.startswith("LC_")}
    if account is None:
        clean = _own_variables() | clean
    else:
        clean |= {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    return clean | {name: environment[name] for name in passed if name in environment}


def _own_variables() -> dict[str, str]:
    """The account's variables as cron sets them, for a worker whose environment lacks some, as a service's may."""
    try:
        known = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {}
    return {"HOME": known.pw_dir, "USER": known.pw_name, "LOGNAME": known.pw_name, "SHELL": known.pw_shell or "/bin/sh"}
