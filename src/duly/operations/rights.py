"""The rights of a role and the bounds of a tenant. No I/O.

Every key has a role. `read` only reads. `write` also changes jobs, runs and dead letters, and may trigger, pause and
end a command that an operator has submitted, but may not submit or change one. `operator` may: a command has the rights
of the worker that runs it, which exceed those of a tenant. `admin` is for the people who run the store. `monitor`
is outside all tenants: it reads figures of the whole store, and no tenant's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from duly.errors import Forbidden

Role = Literal["read", "write", "operator", "admin", "monitor"]
ROLES: tuple[Role, ...] = get_args(Role)

#: The tenant of a key of the role `monitor`: no stored object can belong to it.
NO_TENANT = ""

# The roles that each role includes.
_HOLDS: dict[Role, frozenset[Role]] = {
    "read": frozenset({"read"}),
    "write": frozenset({"read", "write"}),
    "operator": frozenset({"read", "write", "operator"}),
    "admin": frozenset(ROLES),
    "monitor": frozenset({"monitor"}),
}


def holds(role: Role, needed: Role) -> bool:
    return needed in _HOLDS[role]


@dataclass(frozen=True, slots=True)
class Rights:
    """A caller's rights beyond changing stored objects. All by default: a program that opens the store has them."""

    commands: bool = True
    """Whether the caller may submit commands and change jobs that run one."""
    whole_store: bool = True
    """Whether the caller may see other tenants' data, such as the names of all tasks."""
    anybody: bool = False
    """Whether the caller showed no key."""

    @classmethod
    def of(cls, role: Role, *, anybody: bool = False) -> Rights:
        """The rights of a role. `anybody`: the API was opened to all, and therefore takes no commands."""
        commands = holds(role, "operator") and not anybody
        return cls(commands=commands, whole_store=role == "admin", anybody=anybody)

    def check_handler(self, handler: str | Mapping[str, Any], *, doing: str = "submitting") -> None:
        if not self.commands and is_command(handler):
            needed = "a key: this API was opened to all (--open)" if self.anybody else "the role operator"
            raise Forbidden(f"{doing} a command needs {needed}", field="handler")


EVERYTHING = Rights()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a tenant, for every role of its keys. None: any. `duly.check_bounds` is the same for SQL.

    Only submits and changes of jobs are checked. Jobs that exist when the bounds become narrower go on, and may be
    triggered, resumed and redriven, just as callers without the right to submit commands may do with commands.
    """

    tenant: str
    tasks: tuple[str, ...] | None = None
    """Names of tasks; a name that ends in * stands for all names with that beginning."""
    queues: tuple[str, ...] | None = None
    commands: bool | None = None

    def check(self, handler: object, queue: object) -> None:
        if self.commands is False and is_command(handler):
            raise Forbidden(f"tenant {self.tenant!r} may not submit commands", field="handler")
        if isinstance(handler, str) and not is_among(handler, self.tasks):
            raise Forbidden(f"tenant {self.tenant!r} may not submit task {handler[:100]!r}", field="handler")
        if isinstance(queue, str) and not is_among(queue, self.queues):
            raise Forbidden(f"tenant {self.tenant!r} may not use queue {queue[:100]!r}", field="queue")


def is_among(asked: str, names: tuple[str, ...] | None) -> bool:
    return names is None or any(asked == name or (name.endswith("*") and asked.startswith(name[:-1])) for name in names)


def is_command(handler: object) -> bool:
    return isinstance(handler, Mapping) and handler.get("type") == "command"
