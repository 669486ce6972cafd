"""The whole list, in the order of a run's life."""

from __future__ import annotations

from mutants import (
    cluster,
    deploys,
    door,
    edges,
    firing,
    jobs,
    requests,
    rights,
    runnable,
    schemas,
    text,
    timing,
    traces,
    trail,
    upkeep,
    versions,
    watching,
    wearing,
    working,
)
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *working.MUTANTS,
    *firing.MUTANTS,
    *jobs.MUTANTS,
    *deploys.MUTANTS,
    *runnable.MUTANTS,
    *trail.MUTANTS,
    *traces.MUTANTS,
    *upkeep.MUTANTS,
    *versions.MUTANTS,
    *wearing.MUTANTS,
    *watching.MUTANTS,
    *cluster.MUTANTS,
    *edges.MUTANTS,
    *timing.MUTANTS,
    *rights.MUTANTS,
    *schemas.MUTANTS,
    *requests.MUTANTS,
    *door.MUTANTS,
    *text.MUTANTS,
)
