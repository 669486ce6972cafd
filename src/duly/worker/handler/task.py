"""Tasks: the Python functions that a worker can call. A payload's keys become their keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from duly.errors import InvalidInput, Permanent
from duly.model import DEFAULT_POLICY, DEFAULT_PRIORITY, DEFAULT_QUEUE, Policy, TaskDefaults

Handler = Callable[..., Any] | Callable[..., Awaitable[Any]]
Isolation = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class Task:
    """A registered function with the defaults its jobs get.

    A first parameter called `ctx` receives the run's context; every other parameter is a key of the payload.
    """

    name: str
    function: Handler
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    policy: Policy = DEFAULT_POLICY
    #: `process`: the function runs in a child process that can be killed; `thread`: a sync one runs in a thread.
    isolation: Isolation = "thread"
    is_async: bool = field(init=False)
    takes_context: bool = field(init=False)
    required: frozenset[str] = field(init=False)
    allowed: frozenset[str] | None = field(init=False)

    def __post_init__(self) -> None:
        parameters = list(inspect.signature(self.function).parameters.values())
        takes_context = bool(parameters) and parameters[0].name == "ctx"
        names = parameters[1:] if takes_context else parameters
        for parameter in names:
            if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
                raise InvalidInput(
                    "handler",
                    f"task {self.name}: parameter {parameter.name!r} cannot be given by name; payload keys can",
                )
        open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in names)
        named = [parameter for parameter in names if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        required = {parameter.name for parameter in named if parameter.default is inspect.Parameter.empty}
        is_async = inspect.iscoroutinefunction(self.function)
        if self.isolation not in get_args(Isolation):
            raise InvalidInput("isolation", f"must be thread or process, not {self.isolation!r}")
        set_field = object.__setattr__
        set_field(self, "is_async", is_async)
        set_field(self, "takes_context", takes_context)
        set_field(self, "required", frozenset(required))
        set_field(self, "allowed", None if open_ended else frozenset(parameter.name for parameter in named))

    @property
    def defaults(self) -> TaskDefaults:
        return TaskDefaults(self.queue, self.priority, self.policy)

    def check_payload(self, payload: Any) -> Mapping[str, Any]:
        """The payload as keyword arguments. Raises `Permanent` with the reason if it does not fit the function."""
        if not isinstance(payload, dict):
            raise Permanent(f"the payload of task {self.name} must be an object, not {type(payload).__name__}")
        if missing := self.required - payload.keys():
            raise Permanent(f"the payload of task {self.name} lacks {_names(missing)}")
        if self.allowed is not None and (unknown := payload.keys() - self.allowed):
            raise Permanent(f"the payload of task {self.name} has {_names(unknown)}, which it does not take")
        return payload


def _names(names: set[str] | frozenset[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))
