"""Clients of the REST API, for programs that reach Duly over HTTP and have no connection to its PostgreSQL.

Nothing here imports the store or a database driver: an import contract and a test hold that. Read in this order:

- `calls`: every call of the API, as the request to send and the function that reads its response; no I/O;
- `documents`: the API's JSON as the values of `duly.model` (`Job`, `Run`, `DeadLetter`, …), and requests as JSON;
- `trying`: which failed attempts are retried and when, and the error for each refusal; no I/O;
- `clients`: `Client` and `AsyncClient`, which send the calls, blocking and with asyncio.
"""

from duly.errors import MissingExtra
from duly.model import JobChanges, JobOptions

try:
    from duly.client.calls import BatchItem
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
]
