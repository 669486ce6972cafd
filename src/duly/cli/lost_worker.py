"""The runs of a worker that was killed: its supervisor gives them back at once, not when the lease ends.

The supervisor knows more than the store does: its child is dead, so no handler of it runs any more. Programs and
isolated handlers that the worker had started are ended by the worker's guard (`worker/processes/guard_process.py`); the
runs go back when the guard is gone as well, or not before their lease ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from duly.errors import DulyError

if TYPE_CHECKING:
    from duly.config import Settings

log = logging.getLogger("duly.cli")

# The guard kills what is left and gives up on processes that hang in the kernel after a second.
GUARD_SECONDS = 3.0
GUARD_LOOK_SECONDS = 0.02
# Pauses before the looks for claims: a claim that the worker had sent may commit after its death. A store that is away
# is tried as often, and then the leases end by themselves.
PAUSES_SECONDS = (0.0, 0.3, 1.0)
_PROCESSES = Path("/proc")
_GUARD = b"guard_process.py"


async def give_back_runs(
    settings: Settings, home: Path | None, pid: int, worker_id: UUID, *, rescued: Callable[[int, int], None]
) -> None:
    """Returns the runs of a dead worker to the queue; the crash counts as an attempt, as for any lost worker.

    `home`: the folder of the embedded PostgreSQL, if that is the store. `rescued` is called with the numbers of runs
    that were requeued and buried. Never raises: the leases end by themselves.
    """
    from duly.store import maintenance
    from duly.store.opening import open_store

    try:
        if not await _until(lambda: not _has_guard(pid), GUARD_SECONDS):
            log.warning("programs of the lost worker may still run: its runs come back when their lease ends")
            return
        where = settings if home is None else settings.model_copy(update={"home": home})
        for pause in PAUSES_SECONDS:
            await asyncio.sleep(pause)
            try:
                async with open_store(where, size=1, checked=False) as store:
                    if await maintenance.end_claims(store.pool, worker_id=worker_id):
                        found = await maintenance.rescue(store.pool)
                        rescued(found.requeued, found.buried)
            except DulyError as error:
                log.warning("the runs of the lost worker cannot be given back now: %s", error)
    except OSError as error:
        log.warning("the runs of the lost worker come back when their lease ends: %s", error)


async def _until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    while not holds():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(GUARD_LOOK_SECONDS)
    return True


def _has_guard(worker_pid: int) -> bool:
    """Whether the guard of a worker still runs. Its last argument is the worker's pid."""
    if not (_PROCESSES / "self").exists():
        return True  # not on this system: nothing is known, so the lease decides
    for process in _PROCESSES.iterdir():
        if not process.name.isdigit():
            continue
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if len(arguments) > 3 and arguments[-2] == str(worker_pid).encode() and arguments[-4].endswith(_GUARD):
            return True
    return False
