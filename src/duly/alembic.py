"""Duly's migrations in a revision of Alembic's, for those who bring all their schemas up to date with it.

```python
# versions/4f1c_duly.py
import duly.alembic
from alembic import op

revision, down_revision = "4f1c", "8a30"

def upgrade():
    duly.alembic.upgrade(op, target=5)

def downgrade():
    duly.alembic.downgrade(op)
```

The steps run over Alembic's connection and inside its transaction; with `--sql` Alembic writes them. They are the same
steps that `duly migrate` applies, with the same records: each of the two goes on where the other has stopped, and steps
that the store has are passed over. `target` keeps a revision what it is when Duly is upgraded: the next version's steps
get a revision of their own. Neither Alembic nor SQLAlchemy is imported here.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from duly.errors import ConfigError
from duly.schema_name import DEFAULT_SCHEMA, check_schema
from duly.store.migrate import DEFAULT_SHARDS, chosen_of
from duly.store.script import Piece, pieces
from duly.store.steps import Phase, Recorded, Release, Routines, Step, this_release

log = logging.getLogger("duly.store")


class Op(Protocol):
    """What is needed of `alembic.op`."""

    def get_context(self) -> Any: ...

    def get_bind(self) -> Any: ...


def upgrade(
    op: Op,
    target: int | None = None,
    phase: Phase | None = None,
    *,
    schema: str = DEFAULT_SCHEMA,
    shards: int = DEFAULT_SHARDS,
    create_schema: bool = True,
) -> None:
    """Brings the store to step `target` (`duly migrate --plan` names them); without it, to this Duly's newest.

    `phase`: only the steps that add (`"before"`), or only those that remove (`"after"`). A step that removes raises
    while an older node lives. `schema`, `shards`: of the store, as the settings of these names.
    """
    _upgrade(op, this_release(), target, phase, schema=schema, shards=shards, create_schema=create_schema)


def downgrade(op: Op, target: int | None = None, phase: Phase | None = None) -> None:
    """Does nothing but say so: an older Duly works with the newer store, so code goes back and the store stays."""
    log.info("Duly's store stays as it is: the version before works with it, and no step leads back")


def _upgrade(
    op: Op,
    release: Release,
    target: int | None,
    phase: Phase | None,
    *,
    schema: str,
    shards: int,
    create_schema: bool,
) -> None:
    release.check_number(target, "target")
    if phase not in (None, "before", "after"):
        raise ConfigError(f"phase: must be 'before' or 'after', not {phase!r}")
    try:
        check_schema(schema)
    except ValueError as error:
        raise ConfigError(f"schema: {error}") from None
    context = op.get_context()
    if context.dialect.name != "postgresql":
        raise ConfigError(f"Duly's store is a PostgreSQL database, and this one is {context.dialect.name}")
    for piece in pieces(_all_of(release, target, phase), release, shards, create_schema=create_schema, schema=schema):
        if piece.concurrently:
            with context.autocommit_block():
                _run(op, piece)
        else:
            _run(op, piece)


def _all_of(release: Release, target: int | None, phase: Phase | None) -> list[Step | Routines]:
    """Everything up to the target. What the store has is passed over; offline, nobody could ask it."""
    chosen = chosen_of(Recorded(), release, phase, target)
    additive = [one for one in chosen if isinstance(one, Step) and one.phase == "before"]
    destructive = [one for one in chosen if isinstance(one, Step) and one.phase == "after"]
    whole = len(additive) == sum(step.phase == "before" for step in release.steps)
    return [*additive, *([release.routines] if whole else []), *destructive]


def _run(op: Op, piece: Piece) -> None:
    context = op.get_context()
    for text in piece.statements:
        if context.as_sql:
            context.impl.static_output(f"{text};")
        else:
            # The texts are full of colons and percent signs, which are not parameters.
            op.get_bind().exec_driver_sql(text, execution_options={"no_parameters": True})
