"""The programs that a worker may start for commands, where its settings name them.

A pattern with a slash is compared with the program's absolute path. One without a slash is compared with the name of a
command that uses no path, or the path to which that name leads. A * at the end of a pattern stands for any ending. The
path that was compared is the one that is started: a name is looked up in the worker's own PATH, `..` is resolved, and
symbolic links are not followed. So neither the job's PATH nor its folder can put another program in its place.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from duly.errors import Unable

# Variables by which a job can make the loader, a shell or an interpreter run other code than the program's.
_LOADING = ("LD_", "DYLD_", "BASH_", "PYTHON", "PERL", "RUBY")
_LOADING_NAMES = frozenset(
    {"PATH", "IFS", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "ZDOTDIR", "NODE_OPTIONS", "NODE_PATH", "GCONV_PATH"}
    | {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}
)


def may_start(name: str, patterns: Iterable[str]) -> bool:
    """Whether a worker with these patterns may start a command of this name, as far as that can be said elsewhere.

    Only the worker knows where a name without a path leads, so a pattern for a path counts if it could lead there.
    """
    last = name.rpartition("/")[2]
    return any(
        _fits(name, pattern)
        or (_fits(last, pattern) if "/" not in pattern else not name.startswith("/") and _may_lead(last, pattern))
        for pattern in patterns
    )


def _may_lead(last: str, pattern: str) -> bool:
    return pattern.endswith(("*", f"/{last}"))


def _looked_up(name: str, path: str | None) -> str | None:
    """The absolute path of the program to which a name leads."""
    found = shutil.which(name, path=path) if name and path else None
    return None if found is None else os.path.abspath(found)


def _fits(program: str, pattern: str) -> bool:
    if ("/" in pattern) != ("/" in program):
        return False
    return program.startswith(pattern[:-1]) if pattern.endswith("*") else program == pattern


class Programs:
    """The patterns of a worker's setting `allow_commands`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)

    def started_as(self, target: Mapping[str, Any], *, path: str | None, folder: str) -> list[str]:
        """The arguments with which an allowed command is started; raises `Unable` for any other.

        `path`: the PATH in which a name is looked up. `folder`: that of the command, if the job names none.
        """
        argv: list[str] = target["argv"]
        name = argv[0]
        leads_to = _looked_up(posixpath.basename(name), path)
        # Not `normpath` alone, which keeps two slashes at the beginning.
        joined = posixpath.join(folder, target.get("cwd") or "", name)
        program = leads_to if "/" not in name else "/" + posixpath.normpath(joined).lstrip("/")
        named = "/" not in name or program == leads_to
        if not ((named and self._has(posixpath.basename(name))) or (program is not None and self._has(program))):
            where = f" ({program})" if program not in (None, name) else ""
            raise Unable(
                f"this worker does not run {name!r}{where}: it runs only {', '.join(self._patterns)} "
                "(--allow-command, DULY_ALLOW_COMMANDS)"
            )
        self._check_variables([*target.get("env", ()), *target.get("secret_env", ())])
        return [program or name, *argv[1:]]

    def _has(self, program: str) -> bool:
        return any(_fits(program, pattern) for pattern in self._patterns)

    def _check_variables(self, names: Iterable[str]) -> None:
        for name in names:
            if name in _LOADING_NAMES or name.startswith(_LOADING):
                raise Unable(
                    f"this worker runs only some programs (--allow-command, DULY_ALLOW_COMMANDS), and no command whose "
                    f"job sets {name}, by which a program can be made to run other code"
                )
