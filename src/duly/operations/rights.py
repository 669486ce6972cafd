"""What a role allows, and what a tenant is bound to. No I/O: whoever asks gives what is known, and is told.

Roles are of keys. `read` looks. `write` also changes jobs, runs and dead letters, and may trigger, pause and end a
command that an operator has submitted, but brings none in and changes none. `operator` may: a command has the rights
of the worker that runs it, which is more than a tenant has. `admin` belongs to whoever runs the store. `monitor` is
outside all tenants: it reads figures of the whole store, and nothing that belongs to anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from duly.errors import Forbidden

Role = Literal["read", "write", "operator", "admin", "monitor"]
ROLES: tuple[Role, ...] = get_args(Role)

#: What a key of the role `monitor` has in place of a tenant: nothing that is stored can have it.
NO_TENANT = ""

# The roles that each has in it.
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
    """What whoever asks may do beyond changing what is there. By default all: so may who can open the store itself."""

    commands: bool = True
    """Submit commands, and change jobs that run one."""
    whole_store: bool = True
    """Be told what others have: which tasks there are."""
    anybody: bool = False
    """Nobody has shown a key."""

    @classmethod
    def of(cls, role: Role, *, anybody: bool = False) -> Rights:
        """`anybody`: of an API that was opened to all, and so takes no commands."""
        commands = holds(role, "operator") and not anybody
        return cls(commands=commands, whole_store=role == "admin", anybody=anybody)

    def check_handler(self, handler: str | Mapping[str, Any], *, doing: str = "submitting") -> None:
        if not self.commands and is_command(handler):
            needed = "a key: this API was opened to all (--open)" if self.anybody else "the role operator"
            raise Forbidden(f"{doing} a command needs {needed}", field="handler")


EVERYTHING = Rights()


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a tenant is bound to, whatever the role of its keys. None: any. `duly.check_bounds` is the same for SQL.

    What brings a job in or changes one is judged. Jobs that are there when the bounds become narrower go on, and may be
    triggered, resumed and redriven, as commands may by those who could not submit them.
    """

    tenant: str
    tasks: tuple[str, ...] | None = None
    """Names of tasks; one that ends in * stands for all that begin so."""
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
