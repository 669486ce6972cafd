"""Clients of the REST API, for programs that reach Duly over HTTP and hold no connection to its PostgreSQL.

`calls` builds every request once and reads its answer, without I/O; `trying` decides what is tried again and turns
refusals into Duly's own errors; `clients` sends, once blocking and once for asyncio. `documents` turns the API's JSON
into the same values that the library itself hands out (`duly.model.Job`, `Run`, `DeadLetter`, …) and back.
"""

from duly.errors import MissingExtra
from duly.model import JobChanges, JobOptions

try:
    from duly.client.calls import BatchItem, SubmittedJob
    from duly.client.clients import AsyncClient, Client
except ModuleNotFoundError as missing:
    if missing.name is not None and missing.name.partition(".")[0] == "httpx":
        raise MissingExtra("a client of the REST API", "client") from missing
    raise

__all__ = [
    "AsyncClient",
    "BatchItem",
    "Client",
    "JobChanges",
    "JobOptions",
    "SubmittedJob",
]
