"""ZooKeeper: members are ephemeral nodes, their parent is watched.

`zookeeper://host:2181,host2:2181/duly` (`user:password@` before the hosts: digest authentication, and then our nodes
are closed to all other users). The default path is `/duly`, and for a store in another schema x `/duly-x`. A member's
entry is `<path>/nodes/<node id>`. `registry.py` says what follows when ZooKeeper, PostgreSQL or a node is away.

kazoo works in threads of its own and keeps the session alive from there, even while this process's event loop hangs.
So the session alone is no sign of life: a pass asks ZooKeeper and PostgreSQL, from the loop, and only a pass that
succeeds renews the trust. kazoo's threads only carry their reports to the loop.

| kazoo says | what this node does |
| --- | --- |
| SUSPENDED: the connection is lost, the session may live | passes fail; the terms last as long as the last good one is trusted |
| LOST: the session is over, its entry is gone | ends its terms at once, enters again with the new session |
| neither, for longer than a lease | gives the client up and makes a new one |

The last row is for a ZooKeeper that came back empty or from a backup: it refuses a client that has seen a later
transaction than the server has, however often it tries, because the server believes that it lags behind. A new client has
seen nothing. By then the session is over in any case.

ZooKeeper rounds a session's end up to its tick (2 s by default) and allows no session below two ticks, so a killed
node's entry may outlive its lease. None of that delays a takeover: the lease in `duly.nodes` ends on time. It also
allows none above twenty ticks, and kazoo does not say so: keep DULY_LEADER_LEASE_SECONDS below that (40 s by default).
"""  # noqa: E501

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import UUID

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL

from duly.addresses import ServerAddress
from duly.cluster.coordinator import TermListener
from duly.cluster.registry import MIN_ENTRY_SECONDS, RegistryCoordinator, default_path, node_id_of
from duly.errors import ConfigError, CoordinatorUnavailable
from duly.store.pool import Pool

log = logging.getLogger("duly.cluster")
# kazoo logs every attempt to connect; the passes log what matters.
_kazoo_log = logging.getLogger("duly.cluster.kazoo")
_kazoo_log.setLevel(logging.ERROR)

_CLOSE_SECONDS = 5.0
_AWAY = (ConnectionLoss, KazooTimeoutError, OperationTimeoutError, SessionExpiredError)


class ZooKeeperCoordinator(RegistryCoordinator):
    def __init__(self, listener: TermListener, pool: Pool, *, address: ServerAddress, **rest: Any) -> None:
        super().__init__(listener, pool, **rest)
        self._address = address
        self._parent = (address.path.rstrip("/") or default_path(pool.schema)) + "/nodes"
        self._info["registry_path"] = self._parent
        self._entry = f"{self._parent}/{self.node_id}"
        self._client: KazooClient | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._watched = False
        self._away_since: float | None = None
        """When the client lost its connection, by the monotonic clock; None while it has one."""
        self._closing: set[asyncio.Future[None]] = set()

    async def _enter(self) -> None:
        client = await self._connected(max(MIN_ENTRY_SECONDS, self._lease / 2))
        await self._ask(client.ensure_path_async(self._parent))
        try:
            await self._ask(client.create_async(self._entry, self._name.encode(), ephemeral=True))
        except NodeExistsError:
            # An earlier session made the entry. ZooKeeper has not ended that session yet, and would remove it then.
            there = await self._ask(client.exists_async(self._entry))
            if there is not None and there.ephemeralOwner != (client.client_id or (None,))[0]:
                await self._ask(client.delete_async(self._entry))
                await self._ask(client.create_async(self._entry, self._name.encode(), ephemeral=True))

    async def _members(self) -> frozenset[UUID]:
        if self._away_since is not None and time.monotonic() - self._away_since > self._lease:
            self._give_up_client()
        client = self._client
        if client is None:
            # An entry of ours that is still there belongs to a session that ends: a new client must enter again.
            await self._connected(self._lease / 2)
            return frozenset()
        # There is one watch at a time: the first change, or a lost connection, uses it up.
        watch = None if self._watched else self._changed
        self._watched = True
        try:
            names = await self._ask(client.get_children_async(self._parent, watch=watch))
        except NoNodeError:
            names = []
            self._watched = False
        except BaseException:
            self._watched = False
            raise
        return frozenset(node for name in names if (node := node_id_of(name)) is not None)

    async def _depart(self) -> None:
        self._give_up_client()
        await asyncio.gather(*self._closing)

    async def _connected(self, seconds: float) -> KazooClient:
        """The client, which reconnects by itself from then on. A new client must connect within `seconds`."""
        if self._client is None:
            self._event_loop = asyncio.get_running_loop()
            client = self._new_client()
            try:
                await asyncio.to_thread(client.start, seconds)
            except BaseException as error:
                self._close(client)
                if isinstance(error, KazooTimeoutError):
                    raise self._away("no server answered") from error
                raise
            self._client = client
            # Its reports before this line were ignored.
            self._away_since = None if client.connected else time.monotonic()
        return self._client

    def _new_client(self) -> KazooClient:
        login: dict[str, Any] = {}
        if self._address.user is not None:
            name_and_password = f"{self._address.user}:{self._address.password or ''}"
            login = {"auth_data": [("digest", name_and_password)], "default_acl": CREATOR_ALL_ACL}
        first, longest = self.backoff
        client = KazooClient(
            hosts=",".join(self._address.host_texts()),
            timeout=self._lease,
            connection_retry={"max_tries": -1, "delay": first, "max_delay": longest},
            logger=_kazoo_log,
            **login,
        )
        client.add_listener(lambda state: self._heard(client, state))
        return client

    async def _ask(self, result: Any) -> Any:
        """Awaits a result of kazoo on the loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle() -> None:
            if answer.done():
                return
            if result.exception is not None:
                answer.set_exception(result.exception)
            else:
                answer.set_result(result.value)

        result.rawlink(lambda _: self._on_loop(settle))
        try:
            return await answer
        except ConnectionClosedError as error:
            self._give_up_client()
            raise self._away(str(error) or type(error).__name__) from error
        except _AWAY as error:
            raise self._away(str(error) or type(error).__name__) from error
        except (AuthFailedError, NoAuthError) as error:
            raise ConfigError(
                f"ZooKeeper at {self._address.shown} does not let this user at {self._parent}: "
                "check the user and password in DULY_COORDINATOR"
            ) from error
        except (NoNodeError, NodeExistsError):
            raise
        except KazooException as error:
            raise self._away(str(error) or type(error).__name__) from error

    def _give_up_client(self) -> None:
        """Drops a client that never connects again, because one of its threads ended or no server accepts it.

        The next pass makes a new one.
        """
        client, self._client = self._client, None
        self._watched = False
        self._away_since = None
        if client is not None:
            self._close(client)

    def _close(self, client: KazooClient) -> None:
        """Closes a client in a thread, because closing waits for kazoo's threads."""
        closing = asyncio.get_running_loop().run_in_executor(None, _close, client)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _away(self, detail: str) -> CoordinatorUnavailable:
        return CoordinatorUnavailable(f"ZooKeeper at {self._address.shown} cannot be reached: {detail}")

    # Called in kazoo's threads: they only schedule a call on the loop.

    def _on_loop(self, call: Any) -> None:
        try:
            if self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(call)
        except RuntimeError:
            log.debug("ZooKeeper said something after the event loop had ended")

    def _changed(self, _: object) -> None:
        self._on_loop(self._look_again)

    def _heard(self, client: KazooClient, state: str) -> None:
        self._on_loop(lambda: self._turned(client, state))

    # Called on the loop.

    def _turned(self, client: KazooClient, state: str) -> None:
        if client is not self._client:
            return  # given up, or not in use yet
        if state == KazooState.CONNECTED:
            self._away_since = None
            self._look_again()
            return
        if self._away_since is None:
            self._away_since = time.monotonic()
        if state == KazooState.LOST:
            self._session_lost()

    def _look_again(self) -> None:
        self._watched = False
        self.wake()

    def _session_lost(self) -> None:
        if self.terms:
            log.warning("the ZooKeeper session is over: stepping down from %d shards", len(self.terms))
        self._end_all()
        self._look_again()


def _close(client: KazooClient) -> None:
    try:
        client.stop()
    except Exception as error:  # noqa: BLE001 - whatever it is, the session ends by itself
        log.warning("could not leave ZooKeeper, which will forget this node by itself: %s", error)
    # kazoo refuses to close a client that another thread is stopping: try again until that is over.
    deadline = time.monotonic() + _CLOSE_SECONDS
    while True:
        try:
            client.close()
            return
        except Exception as error:  # noqa: BLE001 - kazoo has no name for it
            if time.monotonic() > deadline:
                log.warning("a ZooKeeper client could not be closed: %s", error)
                return
            time.sleep(0.05)
