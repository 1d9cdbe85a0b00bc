"""What may be asked of the sync facade, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from ringrift.data.artifacts import Artifact, ArtifactKind, kinds_of
from ringrift.errors import ConfigError

PRIORITIES = ("low", "normal", "high", "critical")
_MBPS_IN_BYTES = 125_000.0  # megabits per second in bytes per second
_PLAYERS = range(2, 5)


class SyncBackend(Enum):
    """Who handles a request. All of them move files in the same way; they differ in what goes where."""

    AUTO_SYNC = "auto_sync"
    CLUSTER_SYNC = "cluster_data_sync"
    DISTRIBUTED = "distributed"
    EPHEMERAL = "ephemeral_sync"
    ROUTER = "router"

    @classmethod
    def _missing_(cls, value: object) -> SyncBackend | None:
        """Old values lead to the backends that do their work now."""
        return {
            "scheduler": cls.AUTO_SYNC,
            "unified_data_sync": cls.AUTO_SYNC,
            "orchestrator": cls.ROUTER,
        }.get(str(value))


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """What to bring where. Built with a value that cannot be honoured it raises `ConfigError`."""

    data_type: str
    targets: list[str] | None = None  # None or ["all"]: every node that takes this type
    board_type: str | None = None
    num_players: int | None = None
    priority: str = "normal"
    timeout_seconds: float = 300.0  # for the whole request, fallbacks included
    bandwidth_limit_mbps: float | None = None  # for the whole request, in megabits per second
    exclude_nodes: list[str] = field(default_factory=list)
    prefer_ephemeral: bool = False
    require_confirmation: bool = False  # each receiver hashes each file now, known copies included
    source_node: str | None = None  # only files that this node holds; they are fetched from it

    def __post_init__(self) -> None:
        kinds_of(self.data_type)
        if self.priority not in PRIORITIES:
            raise ConfigError(f"priority is {self.priority!r}; it must be one of {', '.join(PRIORITIES)}")
        if not self.timeout_seconds > 0:
            raise ConfigError(f"timeout_seconds is {self.timeout_seconds!r}; it must be above 0")
        if self.bandwidth_limit_mbps is not None and not self.bandwidth_limit_mbps > 0:
            raise ConfigError(
                f"bandwidth_limit_mbps is {self.bandwidth_limit_mbps!r}; it must be above 0 (None: no limit)"
            )
        if self.num_players is not None and self.num_players not in _PLAYERS:
            raise ConfigError(f"num_players is {self.num_players!r}; it must be 2, 3 or 4")
        for name in ("targets", "exclude_nodes"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(each, str) for each in given or ()):
                raise ConfigError(f"{name} is {given!r}; it must be a list of names of nodes")
        if self.explicit_targets and (both := sorted(set(self.explicit_targets) & set(self.exclude_nodes))):
            raise ConfigError(f"node {both[0]!r} stands both in targets and in exclude_nodes")

    @property
    def explicit_targets(self) -> tuple[str, ...]:
        """The named nodes, once each; none when every node is meant."""
        return () if self.targets in (None, ["all"]) else tuple(dict.fromkeys(self.targets or ()))

    @property
    def kinds(self) -> frozenset[ArtifactKind]:
        return kinds_of(self.data_type)

    @property
    def bytes_per_s(self) -> float | None:
        return None if self.bandwidth_limit_mbps is None else self.bandwidth_limit_mbps * _MBPS_IN_BYTES

    @property
    def config_key(self) -> str:
        """The one config that is meant, or nothing."""
        return f"{self.board_type}_{self.num_players}p" if self.board_type and self.num_players else ""

    def wants(self, artifact: Artifact) -> bool:
        """Whether the file is of the type and config that is asked for."""
        board, _, players = artifact.config.rpartition("_")
        return (
            artifact.kind in self.kinds
            and self.board_type in (None, board)
            and (self.num_players is None or players == f"{self.num_players}p")
        )


def read_request(request: SyncRequest | Mapping[str, Any] | str, options: Mapping[str, Any]) -> SyncRequest:
    """Accept a request, its fields, or only the data type; `ConfigError` names what is unknown."""
    if isinstance(request, SyncRequest):
        given = {item.name: getattr(request, item.name) for item in fields(SyncRequest)}
    elif isinstance(request, str):
        given = {"data_type": request}
    elif isinstance(request, Mapping):
        given = dict(request)
    else:
        raise ConfigError(f"a sync request is a SyncRequest, a mapping or a data type, not {request!r}")
    given |= options
    known = [item.name for item in fields(SyncRequest)]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(f"a sync request has no {unknown[0]!r}; it may have: {', '.join(known)}")
    if "data_type" not in given:
        raise ConfigError("a sync request needs data_type: games, models, npz or all")
    return SyncRequest(**given)


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """What became of a request. Every count comes from receipts that receivers wrote."""

    success: bool
    backend_used: SyncBackend
    nodes_synced: int = 0  # nodes that hold everything they should, and got or confirmed some of it now
    bytes_transferred: int = 0
    duration_seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
