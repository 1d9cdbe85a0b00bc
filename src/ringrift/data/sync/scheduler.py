"""Which host's data should be brought to safety next: scores, advice and the state of the whole cluster.

A host that may vanish counts three times as much. What is unsynced is read off the manifest: games of a host
that no other node holds a verified copy of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ringrift.data.manifest import receivers_of
from ringrift.data.manifest_index import games_in
from ringrift.data.nodes import DataNode
from ringrift.data.sync.constants import (
    AGE_WEIGHT,
    CRITICAL_S,
    EPHEMERAL_FACTOR,
    FAILURE_FACTOR,
    GAMES_PER_S,
    GAMES_WEIGHT,
    LOCAL_FACTOR,
    MANY_GAMES,
    PERSISTENT_FACTOR,
    STALE_S,
    SyncAction,
    SyncPriority,
)
from ringrift.data.sync.history import HostHistory
from ringrift.data.sync.picture import SyncPicture
from ringrift.work.backpressure_levels import BackpressureLevel

_NEVER_S = 7 * 24 * 3600.0  # the age of a host that was never synced


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host as the scheduler sees it."""

    host: str
    host_type: str  # ephemeral, persistent, local
    total_games: int
    unsynced_games: int
    unsynced_files: int
    oldest_unsynced_s: float | None
    last_sync_s: float | None
    age_s: float  # since the last good sync, or since its oldest unsynced file
    failures_24h: int
    score: float
    is_stale: bool
    is_critical: bool
    games_per_s: float | None = None
    last_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRecommendation:
    """What to do about one host, and why."""

    host: str
    action: SyncAction
    priority: SyncPriority
    reason: str
    score: float
    estimated_games: int
    estimated_duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDataStatus:
    """How well the data of all hosts is kept."""

    total_hosts: int
    healthy_hosts: int
    stale_hosts: list[str]
    critical_hosts: list[str]
    total_games: int
    unsynced_games: int
    last_full_sync_time: float | None  # when the host that waits longest was last synced
    health_score: float
    recommendations: list[SyncRecommendation] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "recommendations"}


def host_states(picture: SyncPicture) -> list[HostState]:
    """Every active host, the most urgent first."""
    hosts = [_host(picture, node) for node in picture.nodes.all() if node.active]
    return sorted(hosts, key=lambda each: (-each.score, each.host))


def _host(picture: SyncPicture, node: DataNode) -> HostState:
    held = picture.view.held_by(node.name)
    # Without a node that would take them they are as safe as they can be.
    takers = frozenset(other.name for other in receivers_of("games", node.name, picture.nodes.all()))
    alone = (
        picture.view.only_at(node.name, among=(each.name for each in picture.nodes.all())) if takers else []
    )
    games, known = games_in(alone), picture.history.get(node.name) or HostHistory()
    oldest_s = min((each.created_s for each in alone), default=None)
    age_s = _age_s(picture.now_s, known.last_success_s, oldest_s)
    host_type = _type_of(picture, node)
    waits = bool(alone)
    return HostState(
        host=node.name,
        host_type=host_type,
        total_games=games_in(held),
        unsynced_games=games,
        unsynced_files=len(alone),
        oldest_unsynced_s=oldest_s,
        last_sync_s=known.last_success_s,
        age_s=age_s,
        failures_24h=known.failures_24h,
        score=_score(games, age_s if waits else 0.0, host_type, known.failures_24h),
        is_stale=waits and age_s > STALE_S,
        is_critical=waits and (age_s > CRITICAL_S or (node.ephemeral and games > 0)),
        games_per_s=known.games_per_s,
        last_error=known.last_error,
    )


def _age_s(now_s: float, last_s: float | None, oldest_s: float | None) -> float:
    """Since when data waits: from the last good sync on, if it was there then, else from when it was made."""
    if oldest_s is None:
        return 0.0
    since_s = oldest_s if last_s is None else max(oldest_s, last_s)
    return min(max(0.0, now_s - since_s), _NEVER_S)


def _type_of(picture: SyncPicture, node: DataNode) -> str:
    if node.ephemeral:
        return "ephemeral"
    return "local" if node.name == picture.this.name or node.provider == "local" else "persistent"


_FACTORS = {"ephemeral": EPHEMERAL_FACTOR, "persistent": PERSISTENT_FACTOR, "local": LOCAL_FACTOR}


def _score(games: int, age_s: float, host_type: str, failures: int) -> float:
    urgency = games * GAMES_WEIGHT + age_s * AGE_WEIGHT
    return urgency * _FACTORS[host_type] * FAILURE_FACTOR**failures


def recommend(
    hosts: Sequence[HostState],
    *,
    pressure: BackpressureLevel = BackpressureLevel.NONE,
    max_recommendations: int = 10,
) -> list[SyncRecommendation]:
    """Advise, the most urgent first. Under pressure what can wait waits; when all stops, this does too."""
    advice = [found for host in hosts if (found := _advise(host)) is not None]
    advice.sort(key=lambda each: (-each.priority, -each.score, each.host))
    if pressure is BackpressureLevel.STOP:
        return []
    if pressure.throttles:
        urgent = [each for each in advice if each.priority >= SyncPriority.HIGH]
        others = advice[len(urgent) :]
        room = max(1, int(len(advice) * pressure.throttle_factor)) - len(urgent)
        advice = [*urgent, *(_skipped(each) for each in others[: max(0, room)])]
    return advice[:max_recommendations]


def _advise(host: HostState) -> SyncRecommendation | None:
    if not host.unsynced_files:
        return None
    told = f"{host.unsynced_games} games in {host.unsynced_files} files are on {host.host} alone"
    if host.is_critical:
        action, priority = SyncAction.SYNC_NOW, SyncPriority.CRITICAL
        told += ", which may vanish" if host.host_type == "ephemeral" else f" for {host.age_s / 3600:.1f} h"
    elif host.is_stale:
        action, priority = SyncAction.SYNC_NOW, SyncPriority.HIGH
        told += f" for {host.age_s / 60:.0f} min"
    elif host.unsynced_games > MANY_GAMES:
        action, priority = SyncAction.SCHEDULE, SyncPriority.NORMAL
    else:
        action, priority = SyncAction.SCHEDULE, SyncPriority.LOW
    return SyncRecommendation(
        host=host.host,
        action=action,
        priority=priority,
        reason=told,
        score=host.score,
        estimated_games=host.unsynced_games,
        estimated_duration_seconds=host.unsynced_games / (host.games_per_s or GAMES_PER_S),
    )


def _skipped(advice: SyncRecommendation) -> SyncRecommendation:
    return SyncRecommendation(
        host=advice.host,
        action=SyncAction.SKIP,
        priority=advice.priority,
        reason=f"{advice.reason}; it waits while the queues are full",
        score=advice.score,
        estimated_games=advice.estimated_games,
        estimated_duration_seconds=advice.estimated_duration_seconds,
    )


def cluster_status(
    hosts: Sequence[HostState], advice: Sequence[SyncRecommendation], *, now_s: float
) -> ClusterDataStatus:
    """Sum up: 70 for healthy hosts, minus for stale and critical ones, plus for a recent full round."""
    stale = [each.host for each in hosts if each.is_stale]
    critical = [each.host for each in hosts if each.is_critical]
    healthy = [each for each in hosts if not each.is_stale and not each.is_critical]
    rounds = [each.last_sync_s for each in hosts if each.last_sync_s is not None]
    full_s = min(rounds) if rounds and len(rounds) == len(hosts) else None
    count = max(1, len(hosts))
    score = 70 * len(healthy) / count - 20 * len(stale) / count - 30 * len(critical) / count
    score += _bonus(hosts, full_s, now_s)
    return ClusterDataStatus(
        total_hosts=len(hosts),
        healthy_hosts=len(healthy),
        stale_hosts=stale,
        critical_hosts=critical,
        total_games=sum(each.total_games for each in hosts),
        unsynced_games=sum(each.unsynced_games for each in hosts),
        last_full_sync_time=full_s,
        health_score=min(100.0, max(0.0, score)),
        recommendations=list(advice),
    )


def _bonus(hosts: Sequence[HostState], full_s: float | None, now_s: float) -> float:
    if not any(each.unsynced_files for each in hosts):
        return 30.0  # nothing waits, whenever the last round was
    age_s = float("inf") if full_s is None else now_s - full_s
    return next(
        (points for limit_s, points in ((1800, 30.0), (3600, 20.0), (7200, 10.0)) if age_s < limit_s), 0.0
    )
