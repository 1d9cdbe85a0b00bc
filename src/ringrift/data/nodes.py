"""The machines that hold data, as the config file names them: how to reach each and what it may receive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ringrift.decoding import convert_to
from ringrift.errors import ConfigError

DATA_PORT = 8766
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
