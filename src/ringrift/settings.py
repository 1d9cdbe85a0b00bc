"""Every setting: its name, type, default, and where its value came from.

A value is looked up in the environment, then in the config file (`ringrift.toml` in the working folder, or
the file that `RINGRIFT_CONFIG` names), then in the defaults. A wrong value is a `ConfigError` that names
the setting, the value and what is allowed; nothing is guessed. The tables are checked here too, by those who
go by them, so that no command accepts what another refuses. A setting of the documents that nothing could
follow is refused with the reason, never accepted and forgotten.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from ringrift.capabilities import capability
from ringrift.errors import ConfigError
from ringrift.setting_kinds import (
    Bool,
    Count,
    CountOrZero,
    FilePath,
    Folders,
    Host,
    Hours,
    Jobs,
    JobSettings,
    LeaseSeconds,
    Name,
    Names,
    Port,
    Prices,
    Seconds,
    SecondsOrZero,
    SecretText,
    Table,
    declared_types,
    read_as,
)

CONFIG_FILE = "ringrift.toml"
CONFIG_VARIABLE = "RINGRIFT_CONFIG"
CONFIG_BYTES_MAX = 1_000_000  # some thousand nodes
# Who goes by a table, and so knows what may be in it. They stand above this module and are loaded only for a
# table that is given: commands that answer at once stay quick.
_TABLE_CHECKS: Mapping[str, str] = {
    "learning": "ringrift.learning.plan.rules:learning_rules",
    "nodes": "ringrift.data.config:check_node_table",
    "sync": "ringrift.data.config:read_sync_config",
    "http_events": "ringrift.web.endpoints:events_by_http",
}
_HOSTS_CHECK = "ringrift.data.config:check_hosts"


class Source(StrEnum):
    """Where a value came from."""

    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"
    DERIVED = "derived"  # a default that follows from another setting


@dataclass(frozen=True, slots=True)
class SettingRefusal:
    """Why nothing follows a setting of the documents: what it *needs* is not built, or a rule forbids it."""

    needs: str = ""  # a capability
    rule: str = ""
    granted: tuple[Any, ...] = (False,)  # values that ask for nothing

    @property
    def reason(self) -> str:
        return self.rule or capability(self.needs).reason


def _setting(variable: str, default: Any, about: str, *, refusal: SettingRefusal | None = None) -> Any:
    facts = {"variable": variable, "about": about, "default": default, "refusal": refusal}
    return field(default_factory=lambda: default, metadata=facts)


# The rest of a family that the documents name one variable of is refused with it.
_REFUSED_FAMILIES: Mapping[str, str] = {"RINGRIFT_SWIM_": "membership", "RINGRIFT_RAFT_": "leadership"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, typed. A path default of None lies under the data folder."""

    data_dir: FilePath = _setting("RINGRIFT_DATA_DIR", Path("data"), "everything this node keeps")
    coordinator_db: FilePath = _setting("RINGRIFT_COORDINATOR_DB", None, "database of the embedded engine")
    dlq_path: FilePath = _setting("RINGRIFT_DLQ_PATH", None, "database of dead letters")
    node_name: Name | None = _setting(
        "RINGRIFT_NODE_ID", None, "what other nodes call this one; by default its host name"
    )
    process_name: Name | None = _setting(
        "RINGRIFT_PROCESS_NAME", None, "identity of this process for event delivery"
    )
    health_host: Host = _setting(
        "RINGRIFT_HEALTH_HOST", "127.0.0.1", "address of the health probes; loopback unless you say so"
    )
    health_port: Port = _setting("RINGRIFT_HEALTH_PORT", 8790, "port of the health probes")
    health_tls: Bool = _setting("RINGRIFT_HEALTH_TLS", False, "serve the page and the probes over TLS")
    http_names: Names = _setting(
        "RINGRIFT_HTTP_NAMES", (), "host names under which the page answers, besides this host's own"
    )
    http_events: Names | None = _setting(
        "RINGRIFT_HTTP_EVENTS", None, "events that POST /event takes; by default what jobs report"
    )
    http_read_needs_token: Bool = _setting(
        "RINGRIFT_HTTP_READ_NEEDS_TOKEN", False, "ask for the token also for reading on loopback"
    )

    event_handler_timeout: Seconds = _setting(
        "RINGRIFT_EVENT_HANDLER_TIMEOUT", 600.0, "longest run of one event handler"
    )
    event_validation_strict: Bool = _setting(
        "RINGRIFT_EVENT_VALIDATION_STRICT", False, "refuse unknown events and payload fields of a wrong type"
    )
    event_backlog: SecondsOrZero = _setting(
        "RINGRIFT_EVENT_BACKLOG", 60.0, "past that a new subscription still sees"
    )
    event_retention_hours: Hours = _setting(
        "RINGRIFT_CROSS_PROCESS_RETENTION_HOURS", 24.0, "age at which events leave the log"
    )
    event_retention_rows: Count = _setting(
        "RINGRIFT_EVENT_RETENTION_ROWS",
        1_000_000,
        "most events kept in the log; twice as many while some are unseen",
    )
    trace_debug: Bool = _setting("RINGRIFT_TRACE_DEBUG", False, "log every span")

    auto_trigger_pipeline: Bool = _setting(
        "COORDINATOR_AUTO_TRIGGER_PIPELINE", False, "start the next pipeline stage by itself"
    )
    require_critical_imports: Bool = _setting(
        "RINGRIFT_REQUIRE_CRITICAL_IMPORTS", False, "bootstrap fails if a coordinator does"
    )
    skip_master_loop_check: Bool = _setting(
        "RINGRIFT_SKIP_MASTER_LOOP_CHECK", False, "do not ask for a running master loop"
    )
    spawns_per_minute: Count | None = _setting(
        "RINGRIFT_SPAWNS_PER_MINUTE",
        None,
        "most tasks that start in a minute, half of it on one node; by default 60, or 12 for each core",
    )
    job_grace_period: Seconds = _setting(
        "RINGRIFT_JOB_GRACE_PERIOD", 60.0, "time a job has to stop by itself"
    )
    job_lease: LeaseSeconds = _setting(
        "RINGRIFT_JOB_LEASE", 30.0, "silence of a worker after which its jobs go to others"
    )
    job_host_jobs: CountOrZero = _setting(
        "RINGRIFT_JOB_HOST_JOBS",
        200,
        "jobs after which the process that a worker forks them from is renewed; 0: each job is started",
    )
    control_lease: LeaseSeconds = _setting(
        "RINGRIFT_CONTROL_LEASE", 15.0, "silence of a control process after which another may take over"
    )
    learning: Table | None = _setting("RINGRIFT_LEARNING", None, "how configs are played, trained and judged")
    intake_folders: Folders = _setting(
        "RINGRIFT_INTAKE_FOLDERS", (), "folders that files named in events are taken from; none by default"
    )
    prices: Prices | None = _setting("RINGRIFT_PRICES", None, "what an hour of a node costs, by name")
    nodes: Table | None = _setting(
        "RINGRIFT_NODES", None, "the machines that hold data, by name: how to reach each"
    )
    sync: Table | None = _setting(
        "RINGRIFT_SYNC", None, "when and to where data is brought from node to node"
    )
    jobs: Jobs = _setting("RINGRIFT_JOBS", (), "commands and limits of jobs, by kind")
    allow_pending_gate: Bool = _setting(
        "RINGRIFT_ALLOW_PENDING_GATE",
        False,
        "train on games whose replay check is pending",
        refusal=SettingRefusal(rule="no game is learned from before it was replayed by the rules"),
    )

    data_host: Host = _setting(
        "RINGRIFT_DATA_HOST", "127.0.0.1", "address of the data server; loopback unless you say so"
    )
    data_port: Port = _setting("RINGRIFT_DATA_PORT", 8766, "port of the data server")
    data_tls: Bool = _setting("RINGRIFT_DATA_TLS", False, "the data server takes TLS alone")
    tls_certificate: FilePath | None = _setting(
        "RINGRIFT_TLS_CERTIFICATE", None, "certificate of page and data server; by default one of its own"
    )
    tls_key: FilePath | None = _setting("RINGRIFT_TLS_KEY", None, "key of that certificate")
    data_secret: SecretText | None = _setting(
        "RINGRIFT_DATA_SECRET", None, "what nodes prove to know when they exchange files"
    )

    max_syncs_cluster: Count = _setting(
        "RINGRIFT_MAX_SYNCS_CLUSTER", 8, "hosts that are synced at once, each under its lock"
    )
    p2p_startup_grace_period: Seconds = _setting(
        "RINGRIFT_P2P_STARTUP_GRACE_PERIOD",
        120.0,
        "time a new node has to report",
        refusal=SettingRefusal(needs="membership", granted=()),
    )
    swim_enabled: Bool = _setting(
        "RINGRIFT_SWIM_ENABLED", False, "SWIM membership", refusal=SettingRefusal(needs="membership")
    )
    raft_enabled: Bool = _setting(
        "RINGRIFT_RAFT_ENABLED", False, "Raft consensus", refusal=SettingRefusal(needs="leadership")
    )

    @property
    def coordination_dir(self) -> Path:
        return self.coordinator_db.parent

    @property
    def blob_dir(self) -> Path:
        return self.data_dir / "blobs"

    @property
    def job_dir(self) -> Path:
        return self.data_dir / "jobs"

    def job(self, kind: str) -> JobSettings:
        """What was said of this kind of job."""
        return next((job for job in self.jobs if job.kind == kind), JobSettings(kind=kind))


_DERIVED: Mapping[str, Callable[[Path], Path]] = {
    "coordinator_db": lambda data: data / "coordination" / "coordinator.db",
    "dlq_path": lambda data: data / "coordination" / "dead_letter_queue.db",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """One row of `ringrift config show`."""

    key: str
    variable: str
    value: Any
    source: Source
    about: str
    place: str = ""  # the file, when it came from one


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings with the origin of each value."""

    settings: Settings
    origins: tuple[Origin, ...]
    unknown_variables: tuple[str, ...]


def load_settings(
    environ: Mapping[str, str] | None = None, *, config_file: Path | None = None
) -> LoadedSettings:
    """Read all settings. Raises `ConfigError` for the first wrong one."""
    env = os.environ if environ is None else environ
    path, table = _read_config_file(env, config_file)
    values: dict[str, Any] = {}
    origins: list[Origin] = []
    declared = declared_types(Settings)
    for item in fields(Settings):
        value, source = _look_up(item, declared[item.name], env, table, path)
        # The data folder is declared before all that lies in it, so it is known here.
        if value is None and item.name in _DERIVED:
            value, source = _DERIVED[item.name](values["data_dir"]), Source.DERIVED
        values[item.name] = value
        place = str(path) if source is Source.FILE else ""
        origins.append(
            Origin(item.name, item.metadata["variable"], value, source, _about(item.metadata), place)
        )
    _check_tables(values)
    known = {item.metadata["variable"] for item in fields(Settings)} | {CONFIG_VARIABLE}
    unknown = sorted(name for name in env if name.startswith("RINGRIFT_") and name not in known)
    _refuse_families(unknown)
    return LoadedSettings(Settings(**values), tuple(origins), tuple(unknown))


def read_settings() -> Settings:
    """Read the settings alone. Those of a process lie in its scope, and are read once."""
    return load_settings().settings


def _check_tables(values: Mapping[str, Any]) -> None:
    for name, entry in _TABLE_CHECKS.items():
        if values[name] is not None:
            _load(entry)(values[name])
    if values["sync"] is not None:
        _load(_HOSTS_CHECK)(values["sync"], values["nodes"], values["node_name"])


def _load(entry: str) -> Callable[..., Any]:
    module, _, name = entry.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _look_up(
    item: Field[Any], declared: Any, env: Mapping[str, str], table: Mapping[str, Any], path: Path | None
) -> tuple[Any, Source]:
    variable = item.metadata["variable"]
    # The environment wins over the file: it is how a service or a test overrides one value.
    if variable in env:
        given, place, source = env[variable], variable, Source.ENVIRONMENT
    elif item.name in table:
        given, place, source = table[item.name], f"{item.name} in {path}", Source.FILE
    else:
        return item.metadata["default"], Source.DEFAULT
    value = read_as(declared, given, place)
    refusal: SettingRefusal | None = item.metadata["refusal"]
    if refusal is not None and value not in refusal.granted:
        leave = " or ".join([*(str(each).lower() for each in refusal.granted), "left out"])
        raise ConfigError(f"{place} is {given!r}; it must be {leave}: {refusal.reason}")
    return value, source


def _refuse_families(variables: Sequence[str]) -> None:
    for name in variables:
        for prefix, needs in _REFUSED_FAMILIES.items():
            if name.startswith(prefix) and not capability(needs).built:
                raise ConfigError(f"{name} is set; it must be left out: {capability(needs).reason}")


def _about(metadata: Mapping[str, Any]) -> str:
    refusal: SettingRefusal | None = metadata["refusal"]
    return metadata["about"] if refusal is None else f"{metadata['about']}; refused: {refusal.reason}"


def _read_config_file(
    env: Mapping[str, str], config_file: Path | None
) -> tuple[Path | None, Mapping[str, Any]]:
    named = config_file or (Path(env[CONFIG_VARIABLE]) if CONFIG_VARIABLE in env else None)
    path = named or Path(CONFIG_FILE)
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ConfigError(f"config file {path} has more than {CONFIG_BYTES_MAX} bytes")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named is None:  # a file that nobody named need not be there
            return None, {}
        raise ConfigError(f"config file {path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"config file {path} has tables or lists too deep in each other") from None
    except ValueError as error:  # what the reader of TOML lets through, such as a number of 5,000 digits
        raise ConfigError(f"config file {path} cannot be read: {error}") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    known = {item.name for item in fields(Settings)}
    # Refused, other than a variable: nobody else reads this file, so it is a slip.
    if unknown := sorted(set(document) - known):
        raise ConfigError(
            f"config file {path} has the unknown setting {unknown[0]!r}; "
            f"it may have: {', '.join(sorted(known))}"
        )
    return path, document
