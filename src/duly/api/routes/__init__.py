"""The routes under `/api/v1`, as section 9 of the spec lists them. Each reads its request, calls one operation and
answers with a document. Who asks, and for which tenant, comes from the key and from nothing else."""

from __future__ import annotations

from fastapi import APIRouter

from duly.api.declared import DeclaredRoute
from duly.api.routes.batch import add_routes as add_batch
from duly.api.routes.cluster import add_routes as add_cluster
from duly.api.routes.common import PREFIX
from duly.api.routes.dead_letters import add_routes as add_dead_letters
from duly.api.routes.jobs import add_routes as add_jobs
from duly.api.routes.runs import add_routes as add_runs
from duly.config import Settings

__all__ = ["PREFIX", "make_router"]


def make_router(settings: Settings, *, body_limit: int) -> APIRouter:
    router = APIRouter(prefix=PREFIX, route_class=DeclaredRoute)
    # Before the jobs: `batch` is not the id of one.
    add_batch(router, body_limit=body_limit, batch_limit=settings.batch_max_bytes)
    add_jobs(router, body_limit=body_limit)
    add_runs(router)
    add_dead_letters(router, body_limit=body_limit)
    add_cluster(router, body_limit=body_limit)
    return router
