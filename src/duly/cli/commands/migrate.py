"""`duly migrate`: brings the store to this version, says what that would do, writes it as SQL, or checks the store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from duly.cli.invocation import invocation_of
from duly.cli.output import examples, one_line, print_json, print_table, say
from duly.errors import InvalidInput, StoreMismatch, StoreUnavailable

if TYPE_CHECKING:
    from duly.config import Settings
    from duly.store.catalogue import Difference
    from duly.store.migrate import Planned
    from duly.store.steps import Phase as StepPhase
    from duly.store.steps import Routines, Step

# Exit codes of --check, and of a step that was asked for and has to wait.
UP_TO_DATE, PENDING, DRIFTED = 0, 3, 4
_EMBEDDED = "nothing to do: the embedded store is updated whenever it is opened"


class Phase(StrEnum):
    """The two halves of an upgrade."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options ask for."""

    phase: StepPhase | None
    target: int | None
    shards: int
    create_schema: bool
    timeout: float | None


def register(app: typer.Typer) -> None:
    app.command(
        "migrate",
        epilog=examples(
            "duly migrate --plan",
            "duly migrate",
            "duly migrate --phase before    # before the new code starts; a deploy's first step",
            "duly migrate --phase after     # when no process of the older version is left",
            "duly migrate --check && deploy # 0: up to date",
            "duly migrate --sql > upgrade.sql && psql -X -v ON_ERROR_STOP=1 -f upgrade.sql",
            "duly migrate --sql --from 0 --shards 64 | psql -X -v ON_ERROR_STOP=1 -f - # a new store",
        )
        + "\n\nExit codes: 0 done, or nothing to do; 1 unexpected error; 2 wrong option or setting; 3 the store cannot "
        "be reached, a table stayed locked, or the store needs a newer Duly; with --phase after also: a step waits for "
        "older nodes. With --check: 0 up to date, 3 something is pending, 4 the store differs from what its steps have "
        "made, or cannot be checked.\n\nThe order of a rolling upgrade, SQL, Alembic, and rights: docs/upgrading.md.",
    )(migrate)


def migrate(
    context: typer.Context,
    plan: Annotated[
        bool, typer.Option("--plan", "--dry-run", help="Only show what would be applied, and what it waits for.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only say whether the store is up to date and as Duly made it; see the exit codes."
        ),
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Only print the SQL that would be applied, for psql or another tool.")
    ] = False,
    from_: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="N",
            help="With --sql: for a store that has the steps up to N, without connecting; 0 is a new store. "
            "Default: what the store has.",
        ),
    ] = None,
    phase: Annotated[
        Phase | None,
        typer.Option(
            help="Only the steps that add, for before the new code runs; or only those that remove, for after it. "
            "Default: both."
        ),
    ] = None,
    target: Annotated[
        int | None, typer.Option(metavar="N", help="Only steps up to this number. Default: all of this version.")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=4096, help="Shards of a new store, fixed from then on (DULY_SHARDS)."),
    ] = None,
    no_create_schema: Annotated[
        bool,
        typer.Option("--no-create-schema", help="Do not create the schema; refuse a database in which it is missing."),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long a step is tried again while a table is locked; no try makes others wait for more than a "
            "second. Default: 600.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --plan and --check: as a JSON document.")] = False,
) -> None:
    """Create the store, or bring it to this version, while processes run. Safe to repeat.

    Steps have numbers. One of the phase before only adds, and processes of the version before go on with the store. One
    of the phase after removes what this version no longer uses, and waits until no older process lives. Without options
    both phases are applied in that order; a step that has to wait is left for the next time.

    The embedded PostgreSQL does not need this command: it is brought up to date whenever it is opened.
    """
    settings = invocation_of(context).settings()
    if sum((plan, check, sql)) > 1:
        raise InvalidInput("--plan, --check, --sql", "take one of them")
    if from_ is not None and not sql:
        raise InvalidInput("--from", "goes with --sql")
    if as_json and not (plan or check):
        raise InvalidInput("--json", "goes with --plan or --check")
    asked = _Asked(
        None if phase is None else phase.value, target, shards or settings.shards, not no_create_schema, timeout
    )
    if sql:
        _print_sql(settings, asked, from_)
    elif settings.database_url is None and (plan or check):
        _check_target(asked)
        if as_json:
            print_json({"up_to_date": True, "pending": [], **({"drift": []} if check else {})})
        else:
            say(_EMBEDDED)
    elif plan:
        _print_plan(settings, asked, as_json=as_json)
    elif check:
        _check(settings, asked, as_json=as_json)
    else:
        _apply(settings, asked)


def _check_target(asked: _Asked) -> None:
    from duly.store.steps import this_release

    this_release().check_number(asked.target, "target")


def _print_plan(settings: Settings, asked: _Asked, *, as_json: bool) -> None:
    from duly.process import run

    pending, _ = run(lambda: _look(settings, asked, with_drift=False))
    if as_json:
        print_json({"up_to_date": not pending, "pending": [_document(one) for one in pending]})
    elif not pending:
        say("nothing to do: the store is up to date")
    else:
        _print_pending(pending)


def _check(settings: Settings, asked: _Asked, *, as_json: bool) -> None:
    from duly.process import run

    _check_target(asked)
    try:
        pending, differences = run(lambda: _look(settings, asked, with_drift=True))
    except (StoreUnavailable, StoreMismatch) as error:
        if as_json:
            print_json({"up_to_date": False, "error": str(error)})
        else:
            say(f"duly: {error}", err=True)
        raise typer.Exit(DRIFTED) from None
    if as_json:
        drift = [{"what": one.what, "is": one.is_so, "advice": one.advice} for one in differences]
        up_to_date = not pending and not differences
        print_json({"up_to_date": up_to_date, "pending": [_document(one) for one in pending], "drift": drift})
    else:
        for difference in differences:
            say(f"drift: {one_line(str(difference), 2000)}")
        for one in pending:
            remarks = [
                _phase(one.what),
                _kind(one.what),
                *_remarks(one.what),
                *([_waits(one)] if one.waits_for else []),
            ]
            say(f"pending: {one.what.label} ({', '.join(remarks)})")
        if not pending and not differences:
            say("up to date, and as Duly made it")
    raise typer.Exit(DRIFTED if differences else PENDING if pending else UP_TO_DATE)


async def _look(settings: Settings, asked: _Asked, *, with_drift: bool) -> tuple[list[Planned], list[Difference]]:
    from duly.store import migrate as migrations
    from duly.store.catalogue import drift
    from duly.store.opening import open_store

    async with open_store(settings, checked=False) as store:
        pending = await migrations.plan(store.pool, phase=asked.phase, target=asked.target)
        return pending, await drift(store.pool) if with_drift else []


def _print_pending(pending: list[Planned]) -> None:
    rows = [[one.what.label, _phase(one.what), _kind(one.what), ", ".join(_remarks(one.what))] for one in pending]
    print_table(("step", "phase", "kind", "remarks"), rows, whole=("step", "phase", "kind"))
    for one in pending:
        if one.waits_for:
            say(f"{one.what.label} {_waits(one)}")


def _remarks(what: Step | Routines) -> list[str]:
    """What is out of the ordinary."""
    remarks = ["beside all writers, outside a transaction"] if _concurrent(what) else []
    if (least := _min_version(what)) is not None:
        remarks.append(f"from then on Duly {least} or newer is needed")
    return remarks


def _waits(one: Planned) -> str:
    return f"waits until these older nodes have ended: {', '.join(one.waits_for)}"


def _document(one: Planned) -> dict[str, Any]:
    from duly.store.steps import Step

    return {
        "name": one.what.label,
        "number": one.what.number if isinstance(one.what, Step) else None,
        "phase": _phase(one.what),
        "kind": _kind(one.what),
        "concurrent": _concurrent(one.what),
        "min_version": _min_version(one.what),
        "waits_for": list(one.waits_for),
    }


def _phase(what: Step | Routines) -> str:
    from duly.store.steps import Step

    return what.phase if isinstance(what, Step) else "before"


def _kind(what: Step | Routines) -> Literal["additive", "destructive", "functions"]:
    from duly.store.steps import Step

    if not isinstance(what, Step):
        return "functions"
    return "destructive" if what.phase == "after" else "additive"


def _concurrent(what: Step | Routines) -> bool:
    from duly.store.steps import Step

    return isinstance(what, Step) and what.concurrently


def _min_version(what: Step | Routines) -> str | None:
    from duly.store.steps import Step

    return what.min_version if isinstance(what, Step) else None


def _print_sql(settings: Settings, asked: _Asked, start: int | None) -> None:
    from duly.store.migrate import chosen_of
    from duly.store.script import script
    from duly.store.steps import Recorded, this_release

    release = this_release()
    release.check_number(asked.target, "target")
    if start is None:
        if settings.database_url is None:
            raise InvalidInput(
                "--sql",
                "needs a store to look at (--database-url goes before the command) or --from N; --from 0: a new one",
            )
        from duly.process import run

        now = run(lambda: _recorded(settings))
    else:
        if start:
            release.check_number(start, "from")
        now = Recorded.up_to(start, release)
    if start and asked.target is not None and asked.target < start:
        raise InvalidInput("target", f"is before --from {start}: no step leads back")
    text = script(
        chosen_of(now, release, asked.phase, asked.target),
        now.steps & {step.number for step in release.steps},
        release,
        asked.shards,
        create_schema=asked.create_schema,
        schema=settings.schema,
    )
    say(text.rstrip("\n"))


async def _recorded(settings: Settings) -> Any:
    from duly.store import migrate as migrations
    from duly.store.opening import open_store

    async with open_store(settings, checked=False) as store:
        return await migrations.recorded(store.pool)


def _apply(settings: Settings, asked: _Asked) -> None:
    from duly.process import run

    applied, waiting = run(lambda: _migrate(settings, asked))
    for label in applied:
        say(f"applied {label}")
    if not applied and not waiting:
        say("nothing to do: the store is up to date")
    if waiting and asked.phase == "after":
        raise typer.Exit(PENDING)


async def _migrate(settings: Settings, asked: _Asked) -> tuple[list[str], bool]:
    """The labels of what was applied, and whether something has to wait for older nodes."""
    from duly.store import migrate as migrations
    from duly.store.opening import open_store

    async with open_store(settings, checked=False) as store:
        applied = await migrations.migrate(
            store.pool,
            shards=asked.shards,
            tell=lambda message: say(message, err=True),
            phase=asked.phase,
            target=asked.target,
            create_schema=asked.create_schema,
            patience=asked.timeout,
        )
        left = await migrations.plan(store.pool, phase=asked.phase, target=asked.target)
        return [one.label for one in applied], bool(left)
