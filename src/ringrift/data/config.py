"""What the config file says about data: the machines that hold it, and when and to where it is brought.

`[nodes]` says how to reach each and what it may receive, `[sync]` what goes where. Contradictions are
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ringrift.decoding import convert_to
from ringrift.errors import ConfigError
from ringrift.runtime import system_runtime

# The `[nodes]` table.


# What becomes a word of a command line must not look like an option, nor carry a line break into a file.
Word = Annotated[str, Meta(pattern=r"^(?!-)[^\x00-\x1f\x7f]*\Z", max_length=1_000)]
Host = Annotated[str, Meta(pattern=r"^([A-Za-z0-9:\[][A-Za-z0-9.:%\[\]_-]*)?\Z", max_length=255)]
User = Annotated[str, Meta(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._@+-]*)?\Z", max_length=100)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Fingerprint = Annotated[str, Meta(pattern=r"^(([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}|[0-9A-Fa-f]{64})?\Z")]
Percent = Annotated[float, Meta(gt=0, le=100)]
NodeName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=100)]
NodeStatus = Literal[
    "ready", "active", "unknown", "proxy_only", "terminated", "offline", "setup", "retired", "archived"
]
_INACTIVE = frozenset({"terminated", "offline", "setup", "retired", "archived"})


class DataNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node, under `[nodes.NAME]` of the config file. An empty address means: not reachable that way."""

    name: NodeName
    status: NodeStatus = "ready"
    role: Word = "selfplay"
    provider: Word = "unknown"
    overlay_ip: Host = ""  # Tailscale or the like; tried before the plain address
    ssh_host: Host = ""
    ssh_port: Annotated[int, Meta(ge=1, le=65_535)] = 22
    ssh_user: User = ""
    ssh_key: Word = ""
    ssh_known_hosts: Word = ""  # empty: ssh's own file
    root_path: Word = ""  # the data folder there
    s3_url: Word = ""  # s3://BUCKET/PREFIX: an object store instead of a machine
    s3_endpoint: Word = ""  # empty: Amazon's
    s3_region: Word = "us-east-1"
    drive_path: Word = ""  # where an archive drive is mounted, instead of a machine
    python: Word = "python3"  # the interpreter there that has ringrift
    data_port: Port = 0  # of its data server; 0: none
    data_tls_sha256: Fingerprint = ""  # of its key; with one, nothing is said but over TLS with that key
    ephemeral: bool = False  # may vanish at any moment
    training: bool = False
    nfs: Word = ""  # nodes that name the same share need no copies of each other's
    receives: tuple[Literal["games", "models", "npz"], ...] = ("games", "models", "npz")
    bandwidth_mbps: Annotated[float, Meta(ge=0)] = 0.0  # 0: by provider
    disk_max_percent: Percent = 70.0

    @property
    def active(self) -> bool:
        return self.status not in _INACTIVE

    @property
    def addresses(self) -> tuple[str, ...]:
        """Hosts to try, the overlay first."""
        return tuple(dict.fromkeys(host for host in (self.overlay_ip, self.ssh_host) if host))

    @property
    def is_archive(self) -> bool:
        """Whether it only keeps files: a bucket or a drive."""
        return bool(self.s3_url or self.drive_path)

    def accepts(self, data_type: str) -> bool:
        return self.active and (data_type == "all" or data_type in self.receives)


# By which ways a node can be reached, as its entry says.


def has_data_server(node: DataNode) -> bool:
    return node.data_port > 0 and bool(node.addresses)


def has_ssh(node: DataNode) -> bool:
    """Whether the node's entry says how to get there by ssh and where its data are."""
    return bool(node.addresses and node.root_path)


def has_bucket(node: DataNode) -> bool:
    return bool(node.s3_url)


def has_drive(node: DataNode) -> bool:
    return bool(node.drive_path and not node.s3_url)


class DataNodes:
    """All nodes by name, this one among them."""

    def __init__(self, this: str, nodes: Iterable[DataNode] = ()) -> None:
        self._nodes = {node.name: node for node in nodes}
        self.this = self._nodes.setdefault(this, DataNode(name=this))
        self.shares: Mapping[str, str] = {each.name: each.nfs for each in self._nodes.values() if each.nfs}

    def __getitem__(self, name: str) -> DataNode:
        try:
            return self._nodes[name]
        except KeyError:
            known = ", ".join(sorted(self._nodes))
            raise ConfigError(f"no node is called {name!r}; the config file has: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def all(self) -> tuple[DataNode, ...]:
        return tuple(self._nodes.values())

    def sharing(self, name: str) -> tuple[str, ...]:
        """The node, and those that share its disk: a file of one is a file of all of them."""
        share = self.shares.get(name)
        if share is None:
            return (name,)
        return tuple(other for other, its in self.shares.items() if its == share)

    def others(self) -> tuple[DataNode, ...]:
        return tuple(node for node in self._nodes.values() if node.name != self.this.name)


def read_nodes(this: str, table: Mapping[str, Any] | None) -> DataNodes:
    """Read the `nodes` table of the config file; `ConfigError` names the node and the field."""
    return DataNodes(this, check_node_table(table or {}))


def check_node_table(table: Mapping[str, Any]) -> list[DataNode]:
    """The nodes of the table; `ConfigError` names the first one that is wrong, and its field."""
    nodes = []
    for name, fields in table.items():
        if not isinstance(fields, Mapping):
            raise ConfigError(f"[nodes] has {name!r} = {fields!r}; each node is a table, [nodes.{name}]")
        try:
            nodes.append(convert_to({**fields, "name": name}, DataNode))
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise ConfigError(f"[nodes.{name}]: {error}") from None
        for field in ("s3_url", "s3_endpoint"):
            if "@" in getattr(nodes[-1], field).partition("://")[2].partition("/")[0]:
                # It would be shown wherever the address is.
                raise ConfigError(
                    f"[nodes.{name}]: {field} holds a key; keys belong into the environment or the profile"
                )
    return nodes


# The `[sync]` table, and the numbers of sync.


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
    HYBRID = "hybrid"  # what is made here to the best neighbors, what is wanted here from them
    PULL = "pull"  # everything of everybody to here
    GOSSIP = "gossip"  # what a few neighbors have and this node lacks
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
        """Raises `ConfigError` for a host that is no node: a misspelled exclusion would exclude nobody."""
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
