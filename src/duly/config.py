"""Settings: flags win over environment (`DULY_*`) over `duly.toml` over defaults."""

from __future__ import annotations

import difflib
import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from duly.addresses import ServerAddress
from duly.errors import ConfigError
from duly.logs import LogFormat
from duly.model import DEFAULT_TENANT
from duly.schema_name import DEFAULT_SCHEMA, check_schema
from duly.sizes import read_size
from duly.visible import CONTROLS

# By scheme: the default port, and the options after a question mark.
_COORDINATOR_SERVERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "etcd": (2379, ("prefix",)),
    "etcds": (2379, ("prefix", "ca", "cert", "key")),
    "zookeeper": (2181, ()),
}
_PREFIX = "DULY_"
_FILE = "duly.toml"
# The words of a switch, as pydantic has them.
_SWITCH = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}
# Bounds of a list of programs.
_MAX_PROGRAMS, _MAX_PROGRAM = 200, 4096
# Longest name of a tenant.
_MAX_TENANT = 100
# Variables with Duly's prefix that are not settings: the client's, those that a command of a job gets, and those of
# Duly's own tests.
_OTHER_VARIABLES = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        "URL", "API_KEY", "RUN_ID", "JOB_ID", "ATTEMPT", "SCHEDULED_AT", "IDEMPOTENCY_KEY", "FENCING_TOKEN",
        "PAYLOAD_REF",
    )
)  # fmt: skip
_TEST_VARIABLES = re.compile(rf"{_PREFIX}(TEST|SIM|TORTURE|ORACLE)_.*")
# Kubernetes gives every pod variables named after the Services of its namespace, such as DULY_API_SERVICE_HOST.
_SERVICE_VARIABLES = re.compile(rf"{_PREFIX}(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")

log = logging.getLogger("duly.config")


with warnings.catch_warnings():
    # Every pydantic model has a method of that name, deprecated in favour of `model_json_schema`.
    warnings.filterwarnings("ignore", 'Field name "schema"')

    class _Store(BaseSettings):
        """The settings that say which store it is."""

        database_url: str | None = Field(
            None, repr=False, description="address of the PostgreSQL database; unset: an embedded PostgreSQL in home"
        )
        schema: str = Field(  # type: ignore[assignment]
            DEFAULT_SCHEMA,
            description="schema of the database in which Duly's tables and functions lie; several Duly in one database "
            "have one each",
        )

        @field_validator("schema")
        @classmethod
        def _check_schema(cls, name: str) -> str:
            return check_schema(name)


class Settings(_Store):
    """Every setting, with its default and what it is for."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        toml_file=_FILE,
        # `load_settings` refuses unknown settings, in one sentence.
        extra="ignore",
        frozen=True,
        env_ignore_empty=True,
        # Addresses hold passwords.
        hide_input_in_errors=True,
    )

    home: Path | None = Field(None, description="folder of the embedded PostgreSQL; unset: one per user")
    tenant: str = Field(
        DEFAULT_TENANT,
        description="tenant of those who open the store themselves: commands without --url, the SDK, and the API's own "
        "user (its local key); a key has its own",
    )
    pgbouncer: bool = Field(False, description="database_url is a pooler in transaction mode")
    direct_url: str | None = Field(
        None, repr=False, description="direct address of PostgreSQL, for LISTEN, if database_url is a pooler"
    )
    coordinator: str = Field(
        "postgres",
        repr=False,
        description="service that elects shard leaders: postgres, postgres-advisory, etcd://… or zookeeper://…",
    )
    dispatch: str = Field("postgres", repr=False, description="transport of runs to workers; only postgres exists")
    shards: int = Field(64, ge=1, le=4096, description="number of shards; fixed when the store is created")
    pool_size: int = Field(4, ge=1, le=1000, description="database connections per process")

    leader_lease_seconds: float = Field(
        5, gt=0, description="lease of a scheduler; the shards of a crashed one move to another after this time"
    )
    worker_lease_seconds: float = Field(
        15, gt=0, description="lease of a worker; the runs of a crashed one are rescued after this time"
    )
    heartbeat_seconds: float | None = Field(
        None, gt=0, description="interval at which workers extend their leases; unset: a third of the lease"
    )
    poll_seconds: float = Field(
        1, gt=0, description="interval at which an idle worker looks for work without a notification"
    )
    notifications: bool = Field(
        True, description="use LISTEN and NOTIFY for new work; off: only polling and re-reading"
    )

    misfire_grace_seconds: float = Field(10, ge=0, description="an occurrence that is later than this counts as missed")
    fire_ahead_seconds: float = Field(
        0.5, ge=0, le=30, description="how long before its time an occurrence is put into the queue; 0: at its time"
    )
    catch_up_window_seconds: int | None = Field(
        None,
        ge=0,
        description="missed occurrences older than this do not run, for jobs that set no catch_up_window_seconds",
    )
    catch_up_per_second: float = Field(
        1000, ge=0, description="missed occurrences that a scheduler releases per second; 0: no limit"
    )
    horizon_seconds: float = Field(600, ge=10, description="how far ahead schedulers hold due times in memory")
    reread_seconds: float = Field(
        60, gt=0, description="interval at which schedulers re-read the near future from the store"
    )

    concurrency: int = Field(
        100, ge=1, le=100_000, description="maximum number of runs that a worker process holds at once"
    )
    deploy: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="deploy of the application, such as a build number or a UTC time; an older one changes no declared "
        "job of a newer one; unset: the newest time of the application's files",
    )
    missing_task_seconds: float = Field(
        600, ge=0, description="a run goes to the dead letters after no live worker has had its task for this time"
    )
    worker_max_runs: int | None = Field(
        None,
        ge=1,
        description="number of runs after which a supervised worker process, or a child of one with "
        "isolation='process', is replaced; a worker process adds up to a tenth; unset: never",
    )
    worker_max_memory: str | None = Field(
        None,
        description="resident memory, such as 512MB or 1.5GiB, above which a supervised worker process, or a child of "
        "one with isolation='process', is replaced; each is measured by itself (Linux); unset: never",
    )
    shutdown_grace_seconds: float = Field(30, ge=0, description="time that running handlers have to finish at shutdown")

    handler_pool_size: int = Field(10, ge=1, le=1000, description="connections per worker for ctx.transaction()")
    process_slots: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="maximum number of handlers with isolation='process' that run at once; unset: one per core",
    )
    allow_commands: bool | tuple[str, ...] = Field(
        False,
        description="let this worker run jobs whose handler is a command: all, or only the programs listed here, "
        "separated by commas, by name (`backup*`) or absolute path (`/usr/bin/rsync`)",
    )
    worker_tenants: str = Field(
        "", description="tenants whose runs a worker takes, separated by commas; empty: all tenants"
    )
    pass_env: str = Field(
        "",
        description="variables of the worker's environment that commands get besides PATH, HOME and the like, "
        "separated by commas",
    )
    command_user: str | None = Field(
        None, description="account that commands run as (USER or USER:GROUP; needs root); unset: the worker's own"
    )
    audit_retention_days: float = Field(
        365,
        gt=0,
        le=36_500,
        description="days for which the audit trail keeps who did what (see: `duly audit`)",
    )
    ledger_retention_seconds: int = Field(
        7 * 86400,
        ge=0,
        description="how long the ledger keeps the idempotency key of a completed run, for jobs with a key template",
    )

    run_logs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether a worker keeps what handlers log and print with their runs; auto: of at most 100 runs per "
        "second and worker process",
    )
    run_log_bytes: int = Field(
        65_536,
        ge=1024,
        le=16 * 1024 * 1024,
        description="bytes kept of what an attempt logs and prints: its beginning and its end, half of it each",
    )
    run_log_retention_seconds: int = Field(7 * 86400, ge=0, description="how long it is kept")

    egress_allow: str = Field(
        "", description="private networks and hosts that HTTP targets may reach, separated by commas"
    )
    http_connect_timeout_seconds: float = Field(10, gt=0, description="timeout of connecting to an HTTP target")
    http_response_max_bytes: int = Field(
        1024 * 1024, ge=0, description="maximum number of bytes read of an HTTP target's response; the rest is not read"
    )
    webhook_secret: str | None = Field(
        None,
        repr=False,
        description="secret from which the tenants' secrets for signing HTTP calls are derived (whsec_…; several, "
        "separated by commas, while rotating); unset: the store's own. See: duly webhook-secret",
    )

    tenant_max_jobs: int | None = Field(
        None,
        ge=0,
        description="maximum number of active and paused jobs per tenant, unless `duly tenant set` sets it",
    )
    requests_per_second: float | None = Field(
        None, gt=0, description="API requests per second, per key, unless `duly tenant set` sets it; unset: no limit"
    )
    payload_max_bytes: int = Field(256 * 1024, ge=1, description="maximum size of a payload")
    batch_max_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="maximum size of the body of a bulk submit")
    require_keys: bool = Field(False, description="the API accepts only keys of the store, no local key")
    open_api: bool = Field(
        False, description="the API needs no key while the store has none: every user of this machine may use it"
    )
    api_hosts: str = Field(
        "", description="host names that the API accepts, separated by commas, where keys are needed; empty: any"
    )
    host: str = Field("127.0.0.1", description="address that the API binds to")
    port: int = Field(8080, ge=0, le=65535, description="port that the API binds to; 0: any free port")
    health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port on which a scheduler or worker serves /livez, /readyz, /startupz and /metrics; 0: any free "
        "port; unset: none",
    )
    health_host: str = Field(
        "127.0.0.1",
        description="address that health_port binds to; 0.0.0.0: all interfaces, which probes of Kubernetes and a "
        "Prometheus on another machine need",
    )
    health_hung_seconds: float = Field(
        15, gt=0, description="a process whose event loop has not turned for longer counts as hanging: /livez is red"
    )
    deadman_url: str | None = Field(
        None,
        repr=False,
        description="address outside of the cluster that the leading scheduler requests (GET) while all is well: a "
        "dead man's switch, such as a check of healthchecks.io; unset: none. See docs/alerts.md",
    )
    deadman_seconds: float = Field(60, gt=0, description="interval of the requests to deadman_url")
    deadman_late_seconds: float = Field(
        60,
        gt=0,
        description="the requests to deadman_url stop when a due job is later than this, or when a run has waited for "
        "longer and no worker lives",
    )
    incident_webhook_url: str | None = Field(
        None,
        repr=False,
        description="address to which the leading scheduler posts incidents of jobs and monitors, signed like the "
        "calls of HTTP targets; unset: none. See docs/incidents.md",
    )
    incident_slack_url: str | None = Field(
        None, repr=False, description="address of an incoming webhook (Slack, Mattermost) that gets them as text"
    )
    incident_alertmanager_url: str | None = Field(
        None, repr=False, description="address of a Prometheus Alertmanager that gets them, such as http://host:9093"
    )
    incident_gather_seconds: float = Field(
        5, ge=0, le=300, description="how long incidents with one cause gather before one message is sent about them"
    )
    incident_email: str = Field(
        "", description="addresses that get them by e-mail, with commas between; needs smtp_url"
    )
    incident_email_from: str = Field("duly@localhost", description="sender of these e-mails")
    smtp_url: str | None = Field(
        None,
        repr=False,
        description="mail server, smtp://user:password@host:587 (with STARTTLS where the server has it, and always "
        "before a password is sent) or smtps://…",
    )
    unknown_settings: Literal["refuse", "warn"] = Field(
        "refuse", description="what to do about a setting that does not exist: refuse to start, or warn"
    )
    log_format: LogFormat = Field("text", description="format of log lines: text, or json (one object a line)")
    log_level: str = Field("INFO", description="minimum level of log messages: DEBUG, INFO, WARNING or ERROR")

    def changed(self, **changes: Any) -> Settings:
        """These settings with the flags of a command; a flag that is None was not given."""
        changed = self.model_copy(update={name: value for name, value in changes.items() if value is not None})
        try:
            changed._check_open_api()
            changed._check_tenant()
        except ValueError as error:
            raise ConfigError(f"settings: {error}") from error
        return changed

    @field_validator("allow_commands", mode="before")
    @classmethod
    def _read_programs(cls, value: Any) -> Any:
        if isinstance(value, str):
            word = value.strip()
            value = _SWITCH[word.lower()] if word.lower() in _SWITCH else [one.strip() for one in word.split(",")]
            value = [one for one in value if one] if isinstance(value, list) else value
        return check_programs(value) or False if isinstance(value, (list, tuple)) else value

    @field_validator("deadman_url", "incident_webhook_url", "incident_slack_url", "incident_alertmanager_url")
    @classmethod
    def _can_be_requested(cls, url: str | None) -> str | None:
        if url is not None:
            try:
                parts = urlsplit(url)
                whole = bool(parts.hostname) and parts.port != 0
            except ValueError:
                whole = False
            # A user and a password would be shown with the host.
            if not whole or parts.scheme not in ("http", "https") or not re.fullmatch(r"[!-?A-~]+", url):
                raise ValueError(
                    "must be an address that begins with https:// or http:// and names a host, in ASCII, without a "
                    "user (an @ elsewhere is written as %40)"
                )
        return url

    @field_validator("smtp_url")
    @classmethod
    def _is_a_mail_server(cls, url: str | None) -> str | None:
        if url is not None:
            if not url.startswith(("smtp://", "smtps://")):
                raise ValueError("must begin with smtp:// or smtps://")
            ServerAddress.parse(url, port=587)
        return url

    @field_validator("incident_email")
    @classmethod
    def _are_addresses(cls, text: str) -> str:
        for one in text.split(",") if text.strip() else []:
            if not re.fullmatch(r"[!-+\--?A-~]+@[!-+\--?A-~]+", one.strip()):
                raise ValueError("must be addresses such as oncall@example.org, with commas between")
        return text

    @field_validator("worker_max_memory")
    @classmethod
    def _is_size(cls, text: str | None) -> str | None:
        if text is not None:
            read_size(text)
        return text

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
        self._check_tenant()
        if self.incident_email.strip() and self.smtp_url is None:
            raise ValueError("incident_email (DULY_INCIDENT_EMAIL) needs a mail server: set smtp_url (DULY_SMTP_URL)")
        if self.dispatch != "postgres":
            raise ValueError(f"dispatch (DULY_DISPATCH) {_word(self.dispatch)} is not available: use postgres")
        return self

    def _check_open_api(self) -> None:
        if self.open_api and self.allow_commands:
            raise ValueError(
                "an open API (--open, DULY_OPEN_API) and commands (--allow-commands, DULY_ALLOW_COMMANDS) do not go "
                "together: everybody who reaches the port could run programs as you. Turn one of them off"
            )
        if self.open_api and self.require_keys:
            raise ValueError("open_api (DULY_OPEN_API) and require_keys (DULY_REQUIRE_KEYS) contradict each other")

    def _check_tenant(self) -> None:
        # As the tenant of a key is checked.
        if not 1 <= len(self.tenant) <= _MAX_TENANT:
            raise ValueError(f"tenant (--tenant, DULY_TENANT) must have 1 to {_MAX_TENANT} characters")
        if re.search(rf"[{CONTROLS}\ud800-\udfff]", self.tenant):
            raise ValueError("tenant (--tenant, DULY_TENANT) must not contain control characters")

    def _check_coordinator(self) -> None:
        try:
            address = self.coordinator_address
        except ValueError as error:
            raise ValueError(f"coordinator (DULY_COORDINATOR): {error}") from None
        if address is not None or self.coordinator == "postgres":
            return
        if self.coordinator != "postgres-advisory":
            raise ValueError(
                f"coordinator (DULY_COORDINATOR): {_word(self.coordinator)} is not a coordinator; use "
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
        """Address of the coordinator, if it is a server of its own."""
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
        return init_settings, _Environment(settings_cls), TomlConfigSettingsSource(settings_cls)


class _Environment(EnvSettingsSource):
    """The environment. Services named `duly` and `duly-health` make Kubernetes set DULY_PORT and DULY_HEALTH_PORT to
    addresses; those are no settings."""

    def __call__(self) -> dict[str, Any]:
        found = super().__call__()
        for name in ("port", "health_port"):
            if str(found.get(name)).startswith(("tcp://", "udp://", "sctp://")):
                del found[name]
        return found


def check_programs(patterns: Sequence[Any]) -> tuple[str, ...]:
    """The patterns of the programs that a worker may start, without repetitions; ValueError names a wrong one."""
    for pattern in patterns:
        if not isinstance(pattern, str) or not 1 <= len(pattern) <= _MAX_PROGRAM or re.search(r"[\x00-\x1f]", pattern):
            raise ValueError("must be true, false, or names or absolute paths of programs")
        if "*" in pattern[:-1]:
            raise ValueError(f"{pattern[:100]!r}: a * stands at the end of a pattern, for any ending")
        if pattern in ("*", "/*"):
            raise ValueError(f"{pattern!r} would allow every program: say so by --allow-commands or true")
        if "/" in pattern and (not pattern.startswith("/") or {"", ".", ".."} & set(pattern[1:].split("/")[:-1])
                               or pattern.endswith(("/", "/.", "/.."))):  # fmt: skip
            raise ValueError(f"{pattern[:100]!r} is neither the name of a program nor a plain absolute path")
    if len(patterns) > _MAX_PROGRAMS:
        raise ValueError(f"must be at most {_MAX_PROGRAMS} programs")
    return tuple(dict.fromkeys(patterns))


def _word(text: str) -> str:
    """The part of a setting that a message may repeat, although it may be an address with a password: a plain word."""
    word = text.partition("://")[0]
    return repr(word) if re.fullmatch(r"[a-z-]{1,30}", word) else "something"


def load_settings(**flags: Any) -> Settings:
    """Settings from all sources; a flag that is None was not given."""
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
        unknown = list(_unknown_settings(flags))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"setting {where}: {message}" if where else f"settings: {message}") from error
    except ValueError as error:
        raise ConfigError(f"{_FILE} cannot be read: {error}") from error
    if unknown and settings.unknown_settings == "refuse":
        raise ConfigError(
            "; ".join(unknown) + ". Remove it, or let Duly start all the same with DULY_UNKNOWN_SETTINGS=warn"
        )
    for message in unknown:
        log.warning("%s; it is ignored", message)
    return settings


def _unknown_settings(flags: dict[str, Any]) -> Iterator[str]:
    """A message for each setting that does not exist: misspelt, or of another version."""
    known = Settings.model_fields.keys()
    for name in sorted(os.environ):
        setting = name.upper().removeprefix(_PREFIX).lower()
        if name.upper().startswith(_PREFIX) and setting not in known and not _belongs_to_others(name.upper()):
            yield _no_such_setting(name, "an environment variable", _PREFIX + _nearest(setting).upper())
    for name in TomlConfigSettingsSource(Settings)():
        if name not in known:
            yield _no_such_setting(name, f"a key in {Path(_FILE).absolute()}", _nearest(name))
    for name in flags:
        if name not in known:
            yield _no_such_setting(name, "an argument", _nearest(name))


def _belongs_to_others(variable: str) -> bool:
    return (
        variable in _OTHER_VARIABLES
        or _TEST_VARIABLES.fullmatch(variable) is not None
        or _SERVICE_VARIABLES.fullmatch(variable) is not None
    )


def _nearest(name: str) -> str:
    """The name of the setting that was probably meant, or an empty string."""
    return next(iter(difflib.get_close_matches(name.lower(), Settings.model_fields, n=1)), "")


def _no_such_setting(name: str, where: str, nearest: str) -> str:
    meant = f" (did you mean {nearest}?)" if nearest not in ("", _PREFIX) else ""
    return f"there is no setting {name!r}, given as {where}{meant}"
