"""The `[sync]` table of the config file: when and to where data is brought. Contradictions are refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any

import msgspec

from ringrift.data.nodes import DataNodes, read_nodes
from ringrift.decoding import convert_to
from ringrift.errors import ConfigError
from ringrift.runtime import system_runtime

# The numbers of sync, in one place.


SYNC_INTERVAL_S = 60.0
GOSSIP_INTERVAL_S = 30.0
EPHEMERAL_INTERVAL_S = 5.0
INTERVAL_S_MIN = 2.0

CONCURRENT_NODES = 3  # nodes that one request sends to at a time
NEIGHBOURS = 3
FILES_PER_TRIP = 200  # that one call of a transport carries
GAMES_MIN = 10  # fewer new games than this wait for more, unless they are old

DISK_PERCENT_MAX = 70.0
BROADCAST_BYTES_MAX = 500 << 20

STALE_S = 1800.0
CRITICAL_S = 3600.0
MANY_GAMES = 100
EPHEMERAL_FACTOR, PERSISTENT_FACTOR, LOCAL_FACTOR = 3.0, 1.5, 1.0
GAMES_WEIGHT, AGE_WEIGHT = 1.0, 0.01
FAILURE_FACTOR = 0.8
GAMES_PER_S = 10.0  # as long as nothing was measured

HISTORY_S = 7 * 24 * 3600.0
HISTORY_MAX = 1000
FAILURES_S = 24 * 3600.0

BLOCKED_ALERT_S = 600.0  # a sync that cannot go on for this long is told to a person
FAILURES_CRITICAL = 5


class SyncPriority(IntEnum):
    """How urgent it is to bring a host's data to safety."""

    BACKGROUND = 10
    LOW = 25
    NORMAL = 50
    HIGH = 75
    CRITICAL = 100

    @property
    def request_priority(self) -> str:
        """The priority of a `SyncRequest`."""
        return "low" if self <= SyncPriority.LOW else self.name.lower()


class SyncAction(StrEnum):
    """What is advised for a host."""

    SYNC_NOW = "sync_now"
    SCHEDULE = "schedule"
    SKIP = "skip"
    NONE = "none"


class SyncState(StrEnum):
    """Where one sync is in its life."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class SyncStrategy(StrEnum):
    """What one cycle of the sync daemon brings where."""

    AUTO = "auto"  # one of the next three, by what this node is
    EPHEMERAL = "ephemeral"  # this node may vanish: write through to nodes that stay
    BROADCAST = "broadcast"  # this node leads: everything to everybody
    HYBRID = "hybrid"  # what is made here to the best neighbours, what is wanted here from them
    PULL = "pull"  # everything of everybody to here
    GOSSIP = "gossip"  # what a few neighbours have and this node lacks
    PUSH = "push"  # games to the coordinator as the disk fills
    PLANNED = "planned"  # as many copies as the router plans
    FRESHNESS = "freshness"  # asks for a transfer where training data is old


class S3Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bucket that data goes to."""

    bucket: str = ""
    prefix: str = "ringrift"
    primary_for: tuple[str, ...] = ("games", "models", "npz")


class AutoSyncConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about sync that a person may set."""

    enabled: bool = True
    strategy: SyncStrategy = SyncStrategy.AUTO
    interval_s: float = SYNC_INTERVAL_S
    gossip_interval_s: float = GOSSIP_INTERVAL_S
    ephemeral_interval_s: float = EPHEMERAL_INTERVAL_S
    games_min: int = GAMES_MIN  # fewer new games wait, for at most `wait_s_max`
    wait_s_max: float = 600.0
    quality_min: float = 0.0  # files of a known lower quality stay where they are; unknown is not low
    concurrent_nodes: int = CONCURRENT_NODES
    neighbours: int = NEIGHBOURS
    copies_min: int = 2  # for the strategy "planned"
    bandwidth_limit_mbps: float | None = None
    disk_percent_max: float = DISK_PERCENT_MAX  # a node may say otherwise for itself
    broadcast_bytes_max: int = BROADCAST_BYTES_MAX
    push_percent: float = 50.0  # of this node's disk, for the strategy "push"
    push_urgent_percent: float = 70.0
    excluded_hosts: tuple[str, ...] = ()
    priority_hosts: tuple[str, ...] = ()
    priority_configs: tuple[str, ...] = ()
    external_storage: str = ""
    s3: S3Place = S3Place()

    def __post_init__(self) -> None:
        if self.s3.bucket == "" and self.s3.prefix == "":
            raise ConfigError("the s3 table of [sync] needs a bucket or a prefix")
        for name in ("interval_s", "gossip_interval_s", "ephemeral_interval_s"):
            if getattr(self, name) < INTERVAL_S_MIN:
                raise ConfigError(f"{name} of [sync] must be at least {INTERVAL_S_MIN:g} s")
        for name in ("concurrent_nodes", "neighbours", "copies_min", "broadcast_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of [sync] must be at least 1")
        for name in ("disk_percent_max", "push_percent", "push_urgent_percent"):
            if not 0 < getattr(self, name) <= 100:
                raise ConfigError(f"{name} of [sync] must be above 0 and at most 100")
        if self.bandwidth_limit_mbps is not None and not self.bandwidth_limit_mbps > 0:
            raise ConfigError("bandwidth_limit_mbps of [sync] must be above 0")
        if both := sorted(set(self.excluded_hosts) & set(self.priority_hosts)):
            raise ConfigError(f"[sync] names {both[0]!r} both in excluded_hosts and in priority_hosts")

    def check_nodes(self, nodes: DataNodes) -> None:
        """Raises `ConfigError` for a host that is no node: a misspelt exclusion would exclude nobody."""
        for name in ("excluded_hosts", "priority_hosts"):
            if unknown := [host for host in getattr(self, name) if host not in nodes]:
                raise ConfigError(
                    f"{name} of [sync] names {unknown[0]!r}, which is no node of the config file"
                )


def read_sync_config(table: Mapping[str, Any] | None, **changes: Any) -> AutoSyncConfig:
    """Read the table; `ConfigError` names the field that is wrong."""
    try:
        return convert_to({**dict(table or {}), **changes}, AutoSyncConfig)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"[sync] of the config file: {error}") from None


def check_hosts(sync: Mapping[str, Any], nodes: Mapping[str, Any] | None, this: str | None) -> None:
    """Raises `ConfigError` for a host of `[sync]` that is neither in `[nodes]` nor this machine."""
    known = read_nodes(this or system_runtime().hostname, nodes)
    read_sync_config(sync).check_nodes(known)
