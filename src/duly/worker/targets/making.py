"""Makes the targets that this worker calls besides Python tasks, as its settings allow and its installation can."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from duly.config import Settings
from duly.errors import ConfigError
from duly.homes import default_home
from duly.signing import parse_secrets
from duly.store import embedded, stores
from duly.store.pool import Pool
from duly.worker.account import Account, passed_names
from duly.worker.pings import Pings, Sender
from duly.worker.targets import Target
from duly.worker.targets.egress import Egress

log = logging.getLogger("duly.worker")


async def make_targets(settings: Settings, pool: Pool, *, version: str) -> dict[str, Target]:
    """Targets by the type of a job's handler. A run of a missing type goes back to the queue for another worker."""
    # Settings are read even if they are not needed: a mistake in them should not wait for the first HTTP job.
    egress = Egress.parse(settings.egress_allow)
    secrets = () if settings.webhook_secret is None else parse_secrets(settings.webhook_secret)
    targets: dict[str, Target] = {}
    # Without the extra this worker still executes everything else.
    if find_spec("httpx") is None:
        log.info("this worker calls no HTTP targets; for them: pip install 'duly[http]'")
    else:
        from duly.worker.targets.http import HttpTarget

        targets["http"] = HttpTarget(
            egress=egress,
            secrets=secrets or (await stores.webhook_secret(pool),),
            clock=pool.clock,
            connect_timeout=settings.http_connect_timeout_seconds,
            response_max_bytes=settings.http_response_max_bytes,
            version=version,
        )
    check_commands(settings)
    if settings.allow_commands:
        from duly.worker.targets.command import CommandTarget

        targets["command"] = CommandTarget(settings)
    return targets


def make_pings(settings: Settings, *, name: str, version: str) -> Pings:
    """The pings of a worker of this name. Without the extra it sends none."""
    if find_spec("httpx") is None:
        return Pings(None)
    egress = Egress.parse(settings.egress_allow)

    def make_sender() -> Sender:
        from duly.worker.targets.pinging import PingSender

        return PingSender(egress=egress, version=version)

    return Pings(make_sender, host=name)


def check_commands(settings: Settings) -> None:
    """Refuses invalid settings about commands, even if this worker runs none."""
    passed_names(settings.pass_env)
    if settings.command_user is None:
        return
    account = Account.parse(settings.command_user)
    if settings.database_url is None and account.uid == embedded.owner(settings.home or default_home()):
        raise ConfigError(
            f"setting command_user (--command-user): the embedded PostgreSQL runs as {account.name!r}, so a command of "
            "that account could read and change the whole store: choose another account"
        )
