"""Which nodes should get data, and from which it is best had: scores with their reasons, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.sync.picture import SyncPicture

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredNode:
    """A node, how well it suits, and why."""

    node_id: str
    score: float
    reason: str


class _Score:
    """Adds up points and says for what."""

    def __init__(self, start: float) -> None:
        self.points, self._reasons = start, [f"{start:g} to begin with"]

    def add(self, points: float, why: str, *, when: bool = True) -> None:
        if when and points:
            self.points += points
            self._reasons.append(f"{points:+g} {why}")

    def of(self, node: DataNode) -> ScoredNode:
        return ScoredNode(node_id=node.name, score=self.points, reason=", ".join(self._reasons))


def target_score(picture: SyncPicture, node: DataNode, data_type: str) -> ScoredNode:
    """How much a node wants data: those that train first, those that may vanish last."""
    score, used = _Score(50), picture.disk_percent(node.name)
    score.add(50, "trains now", when=node.name in picture.news.training)
    score.add(30, "trains", when=picture.is_training(node) and data_type in ("games", "npz"))
    score.add(20, "has priority", when=node.name in picture.config.priority_hosts)
    score.add(-15, "may vanish", when=node.ephemeral)
    score.add(10, "has room", when=used is not None and used < 50)
    score.add(-20, "is rather full", when=used is not None and used > 70)
    last_s = picture.last_sync_s(node.name)
    waited = 30.0 if last_s is None else min(30.0 * max(0.0, picture.now_s - last_s) / _HOUR_S, 30.0)
    score.add(round(waited, 1), "was never served" if last_s is None else "waited")
    return score.of(node)


def source_score(picture: SyncPicture, node: DataNode, data_type: str) -> ScoredNode:
    """How good a node is to fetch from: games from where they are played, the rest from where it is made."""
    score, used = _Score(0), picture.disk_percent(node.name)
    score.add(100, "plays", when=data_type == "games" and "selfplay" in node.role)
    score.add(50, "trains", when=data_type == "games" and picture.is_training(node))
    score.add(100, "trains", when=data_type != "games" and picture.is_training(node))
    score.add(20, "has a GPU", when="gpu" in node.role)
    score.add(10, "should be relieved", when=used is not None and used > 50)
    score.add(-30, "coordinates", when="coordinator" in node.role)
    return score.of(node)


def optimal_source_score(picture: SyncPicture, source: DataNode, target: DataNode) -> ScoredNode:
    """How well a holder suits one receiver."""
    score, used = _Score(50), picture.disk_percent(source.name)
    score.add(20, "is of the same provider", when=source.provider == target.provider != "unknown")
    score.add(-10, "may vanish", when=source.ephemeral)
    score.add(10, "is not full", when=used is not None and used < 50)
    return score.of(source)


def neighbour_score(picture: SyncPicture, node: DataNode) -> ScoredNode:
    """How safe a place a node is for what was just made."""
    score, used = _Score(0), picture.disk_percent(node.name)
    score.add(10, "is storage", when=node.role in ("storage", "backbone", "coordinator"))
    score.add(5, "stays", when=not node.ephemeral)
    score.add(2.5 if used is None else round((100 - used) / 20, 2), "for its free disk")
    return score.of(node)


def ranked(scores: Iterable[ScoredNode]) -> list[ScoredNode]:
    """The best first; equal ones in the order of their names, so that every process sees the same."""
    return sorted(scores, key=lambda each: (-each.score, each.node_id))


def best(
    picture: SyncPicture,
    nodes: Sequence[DataNode],
    score: Callable[[SyncPicture, DataNode], ScoredNode],
    count: int,
) -> list[DataNode]:
    chosen = ranked(score(picture, node) for node in nodes)[:count]
    return [picture.nodes[each.node_id] for each in chosen]


def sources_of(picture: SyncPicture, artifact: Artifact, target: DataNode) -> list[DataNode]:
    """Other nodes that hold a verified copy and can be asked for it, the best first."""
    holders = [
        picture.nodes[name]
        for name in picture.view.holders(artifact.digest)
        if name != target.name and name in picture.nodes
    ]
    asleep = picture.news.away | picture.aside.keys()
    awake = [node for node in holders if node.active and node.name not in asleep]
    scored = ranked(optimal_source_score(picture, node, target) for node in awake)
    return [picture.nodes[each.node_id] for each in scored]
