"""A tenant is bound once, by `for_tenant`: no operation on jobs, runs or dead letters takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from duly.operations import Operations, StoreOperations


def public_methods(part: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(part):
        if not name.startswith("_"):
            value = getattr(part, name)
            if callable(value):
                yield name, value
            elif type(value).__module__.startswith("duly.operations"):
                yield from ((f"{name}.{inner}", method) for inner, method in public_methods(value))


async def test_no_operation_of_a_tenant_takes_a_tenant(operations: Operations) -> None:
    methods = dict(public_methods(operations))
    assert {"submit", "jobs.get", "runs.cancel", "dead_letters.redrive_all", "explain.page", "counts"} <= methods.keys()
    for name, method in methods.items():
        assert "tenant" not in inspect.signature(method).parameters, name


async def test_only_what_is_about_tenants_themselves_takes_one(store_operations: StoreOperations) -> None:
    taking = {
        name for name, method in public_methods(store_operations) if "tenant" in inspect.signature(method).parameters
    }
    assert taking == {
        "for_tenant", "keys.create", "keys.all", "keys.revoke", "tenants.set", "tenants.get", "submitters.add",
        "neighbours.of_empty", "neighbours.of_missing",
    }  # fmt: skip
