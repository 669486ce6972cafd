"""Settings: flags win over environment (`DULY_*`) over `duly.toml` over defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from duly.addresses import ServerAddress
from duly.errors import ConfigError

# Each with its usual port and what may follow a question mark.
_COORDINATOR_SERVERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "etcd": (2379, ("prefix",)),
    "etcds": (2379, ("prefix", "ca", "cert", "key")),
    "zookeeper": (2181, ()),
}


class Settings(BaseSettings):
    """Every setting, with its default and what it is for."""

    model_config = SettingsConfigDict(
        env_prefix="DULY_",
        toml_file="duly.toml",
        extra="ignore",
        frozen=True,
        env_ignore_empty=True,
        # Addresses hold passwords.
        hide_input_in_errors=True,
    )

    database_url: str | None = Field(
        None, repr=False, description="PostgreSQL address; unset: an embedded PostgreSQL under home"
    )
    home: Path | None = Field(None, description="where the embedded PostgreSQL keeps its data")
    pgbouncer: bool = Field(False, description="the address is a pooler in transaction mode")
    direct_url: str | None = Field(None, repr=False, description="address for LISTEN when database_url is a pooler")
    coordinator: str = Field(
        "postgres",
        repr=False,
        description="who elects shard leaders: postgres, postgres-advisory, etcd://… or zookeeper://…",
    )
    dispatch: str = Field("postgres", repr=False, description="how runs travel to workers")
    shards: int = Field(64, ge=1, le=4096, description="fixed when the store is created")
    pool_size: int = Field(4, ge=1, le=1000, description="connections per process")

    leader_lease_seconds: float = Field(5, gt=0, description="a crashed scheduler's shards move after this long")
    worker_lease_seconds: float = Field(15, gt=0, description="a crashed worker's runs are taken back after this long")
    heartbeat_seconds: float | None = Field(None, gt=0, description="how often leases are extended; default: lease / 3")
    poll_seconds: float = Field(1, gt=0, description="how often an idle worker looks without being told to")
    notifications: bool = Field(True, description="LISTEN for new work; off: polling and re-reading alone")

    misfire_grace_seconds: float = Field(10, ge=0, description="later than this, an occurrence is missed")
    fire_ahead_seconds: float = Field(
        0.5, ge=0, le=30, description="how long before its time an occurrence is put into the queue; 0: at its time"
    )
    catch_up_window_seconds: int | None = Field(
        None, ge=0, description="missed occurrences older than this do not run, for recurring jobs that say nothing"
    )
    catch_up_per_second: float = Field(
        1000, ge=0, description="how many missed occurrences a scheduler releases per second; 0: no limit"
    )
    horizon_seconds: float = Field(600, ge=10, description="how much of the future schedulers hold in memory")
    reread_seconds: float = Field(60, gt=0, description="how often schedulers re-read the near future")

    concurrency: int = Field(100, ge=1, le=100_000, description="runs a worker process holds at once")
    missing_task_seconds: float = Field(
        600, ge=0, description="a run whose task no live worker has had for so long goes to the dead letters"
    )
    shutdown_grace_seconds: float = Field(30, ge=0, description="how long running handlers may finish at shutdown")

    handler_pool_size: int = Field(10, ge=1, le=1000, description="connections for ctx.transaction() in one worker")
    process_slots: int | None = Field(
        None, ge=1, le=1000, description="handlers with isolation='process' that run at once; default: one a core"
    )
    allow_commands: bool = Field(False, description="whether this worker runs jobs whose handler is a command")
    worker_tenants: str = Field("", description="tenants whose runs a worker takes, by commas; empty: everybody's")
    pass_env: str = Field(
        "", description="environment variables that commands get of the worker's besides PATH, HOME and the like"
    )
    command_user: str | None = Field(
        None, description="the account that commands run as (USER or USER:GROUP; needs root); default: the worker's"
    )
    ledger_retention_seconds: int = Field(
        7 * 86400, ge=0, description="how long a completed idempotency key of one's own is remembered"
    )

    egress_allow: str = Field(
        "", description="networks and hosts that HTTP targets may reach although they are private, by commas"
    )
    http_connect_timeout_seconds: float = Field(10, gt=0, description="for connecting to an HTTP target")
    http_response_max_bytes: int = Field(
        1024 * 1024, ge=0, description="how much of an HTTP target's answer is read; the rest is not"
    )
    webhook_secret: str | None = Field(
        None,
        repr=False,
        description="what tenants' secrets for signing HTTP calls are derived from (whsec_…; several by commas while "
        "rotating); default: the store's. See: duly webhook-secret",
    )

    tenant_max_jobs: int | None = Field(
        None, ge=0, description="active and paused jobs a tenant may have, where `duly tenant set` says nothing"
    )
    requests_per_second: float | None = Field(
        None, gt=0, description="API requests a second and key, where `duly tenant set` says nothing"
    )
    payload_max_bytes: int = Field(256 * 1024, ge=1, description="largest payload")
    batch_max_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="largest body of a bulk submit")
    require_keys: bool = Field(False, description="the API takes keys of the store only, and no local key")
    open_api: bool = Field(
        False, description="the API needs no key while the store has none: everybody on this machine may use it"
    )
    api_hosts: str = Field("", description="names the API is reached by, by commas, where keys are needed; empty: any")
    host: str = Field("127.0.0.1", description="address the API binds to")
    port: int = Field(8080, ge=0, le=65535, description="port the API binds to; 0: any free one")
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    def changed(self, **changes: Any) -> Settings:
        """With what flags of a command say."""
        changed = self.model_copy(update={name: value for name, value in changes.items() if value is not None})
        try:
            changed._check_open_api()
        except ValueError as error:
            raise ConfigError(f"settings: {error}") from error
        return changed

    @property
    def heartbeat_interval(self) -> float:
        return self.heartbeat_seconds or self.worker_lease_seconds / 3

    @model_validator(mode="after")
    def _beats_fit_leases(self) -> Settings:
        # Two beats may be lost and the lease still stands; with fewer, one slow answer costs every run its lease.
        if self.heartbeat_interval * 3 > self.worker_lease_seconds * 1.001:
            raise ValueError(
                f"heartbeat_seconds ({self.heartbeat_interval:g}) must be at most a third of "
                f"worker_lease_seconds ({self.worker_lease_seconds:g})"
            )
        self._check_coordinator()
        self._check_open_api()
        if self.dispatch != "postgres":
            raise ValueError(f"dispatch (DULY_DISPATCH) {_word(self.dispatch)} is not available: use postgres")
        return self

    def _check_open_api(self) -> None:
        if self.open_api and self.allow_commands:
            raise ValueError(
                "an open API (--open, DULY_OPEN_API) and commands (--allow-commands, DULY_ALLOW_COMMANDS) do not go "
                "together: everybody who reaches the port could run programs as you. Leave one of them away"
            )
        if self.open_api and self.require_keys:
            raise ValueError("open_api (DULY_OPEN_API) and require_keys (DULY_REQUIRE_KEYS) contradict each other")

    def _check_coordinator(self) -> None:
        try:
            address = self.coordinator_address
        except ValueError as error:
            raise ValueError(f"coordinator (DULY_COORDINATOR): {error}") from None
        if address is not None or self.coordinator == "postgres":
            return
        if self.coordinator != "postgres-advisory":
            raise ValueError(
                f"coordinator (DULY_COORDINATOR) is {_word(self.coordinator)}, which is none: use "
                "postgres, postgres-advisory, etcd://host:2379[,host:2379], etcds://… or "
                "zookeeper://host:2181[,host:2181][/path]"
            )
        if self.pgbouncer and self.direct_url is None:
            raise ValueError(
                "coordinator (DULY_COORDINATOR) postgres-advisory holds locks on a session of its own, which a pooler "
                "does not give: set direct_url (DULY_DIRECT_URL) to PostgreSQL itself, or use the coordinator postgres"
            )

    @property
    def coordinator_address(self) -> ServerAddress | None:
        """Where the coordinator is, if it is another server."""
        scheme = self.coordinator.partition("://")[0]
        if "://" not in self.coordinator or scheme not in _COORDINATOR_SERVERS:
            return None
        port, options = _COORDINATOR_SERVERS[scheme]
        return ServerAddress.parse(self.coordinator, port=port, options=options)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def _word(text: str) -> str:
    """What may be repeated of a setting that may be an address with a password: its scheme, or one plain word."""
    word = text.partition("://")[0]
    return repr(word) if re.fullmatch(r"[a-z-]{1,30}", word) else "something"


def load_settings(**flags: Any) -> Settings:
    """Settings from all sources; a flag that is None was not given."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"setting {where}: {message}" if where else f"settings: {message}") from error
    except ValueError as error:
        raise ConfigError(f"duly.toml cannot be read: {error}") from error
