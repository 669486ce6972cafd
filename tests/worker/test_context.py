"""`Context` is the public part of an execution: no other module of Duly looks behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import duly
from duly.worker.handler import context

SOURCE = Path(duly.__file__).parent
PRIVATE = {name for name in (*context.Context.__slots__, *vars(context.Context)) if name[0] == "_" and name[1] != "_"}


def private_uses(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Accesses to a private attribute of a context, found by the name of the attribute or of the object."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        owner = node.value
        name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        if name.strip("_") in ("context", "ctx") or (node.attr in PRIVATE and name not in ("self", "cls")):
            yield node


def test_no_module_looks_behind_the_context() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{use.lineno}: {ast.unparse(use)}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != Path(context.__file__)
        for use in private_uses(ast.parse(path.read_text()))
    ]
    assert not found, "these use the execution instead of asking it through Context:\n" + "\n".join(found)


def test_the_search_sees_a_private_use() -> None:
    tree = ast.parse("ctx._run\nself._context._recorded = True\nrunning._execution\nself._execution\nctx.attempt")
    assert [ast.unparse(use) for use in private_uses(tree)] == [
        "ctx._run",
        "self._context._recorded",
        "running._execution",
    ]
