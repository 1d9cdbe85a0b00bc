"""Getting games off a node that may vanish: everything that only it has, to nodes that stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from ringrift.data.artifacts import Artifact
from ringrift.data.copies import CopyView
from ringrift.data.manifest_index import games_in
from ringrift.data.moves import arrived, copy_artifacts
from ringrift.data.nodes import DataNode
from ringrift.data.plane import DataPlane
from ringrift.data.replication_plan import data_type_of
from ringrift.errors import RingRiftError

log = structlog.get_logger()

TARGETS_MAX = 3
BATCH_FILES = 200
BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Evacuated:
    """What was brought to safety, and what was not."""

    moved: tuple[str, ...] = ()
    games: int = 0
    left: tuple[str, ...] = ()
    games_left: int = 0
    targets: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


async def at_risk(plane: DataPlane, host: str) -> list[Artifact]:
    """What *host* has and no node that stays has; games first, then the most games a byte."""
    stones, heirs = await plane.tombstones(), await plane.heirs()
    manifest = await plane.view()
    receipts = manifest.receipts
    view = CopyView(nodes=plane.nodes, now_s=plane.runtime.now_s())
    risky = []
    for artifact in manifest.cards:
        held = receipts.get(artifact.digest, ())
        if artifact.digest in heirs or all(receipt.node != host for receipt in held):
            continue
        if not view.of(held, stones.get(artifact.digest)).besides(host):
            risky.append(artifact)
    return sorted(risky, key=lambda each: (-each.games / max(1, each.size), each.created_s, each.digest))


async def evacuate(
    plane: DataPlane,
    host: str,
    *,
    deadline_s: float,
    priority: str = "critical",
    first: Mapping[str, int] | None = None,
) -> Evacuated:
    """Copy what is at risk on *host* to nodes that stay, until *deadline_s* of the monotonic clock.

    What one node did not take is offered to the next; only receipts count. *first* are the digests that go
    before all others, by how urgent they are.
    """
    urgent = first or {}
    order = sorted(await at_risk(plane, host), key=lambda each: -urgent.get(each.digest, -1))
    every = {artifact.digest: artifact for artifact in order}
    left, used, errors = dict(every), list[str](), list[str]()
    for target in _targets(plane, host):
        if not left:
            break
        before = len(left)
        for batch in _batches(each for each in left.values() if target.accepts(data_type_of(each.kind))):
            remaining_s = deadline_s - plane.runtime.monotonic_s()
            got, error = await _copied(plane, batch, host, target.name, priority, remaining_s)
            left = {digest: artifact for digest, artifact in left.items() if digest not in got}
            if error:
                errors.append(f"{target.name}: {error}")
                break
        if len(left) < before:
            used.append(target.name)
    moved = [digest for digest in every if digest not in left]
    return Evacuated(
        moved=tuple(moved),
        games=games_in(every[digest] for digest in moved),
        left=tuple(left),
        games_left=games_in(left.values()),
        targets=tuple(used),
        errors=tuple(errors),
    )


async def _copied(
    plane: DataPlane, batch: list[Artifact], host: str, target: str, priority: str, remaining_s: float
) -> tuple[set[str], str]:
    """What arrived, and why the rest did not."""
    if remaining_s <= 0:
        return set(), "no time was left"
    try:
        moved = await copy_artifacts(
            plane, batch, source=host, target=target, priority=priority, timeout_s=remaining_s
        )
    except RingRiftError as fault:
        log.warning("evacuation.failed", host=host, target=target, error=str(fault))
        return set(), str(fault)
    return arrived(moved), "; ".join(sorted({why for _, why in moved.failed}))


def _targets(plane: DataPlane, host: str) -> list[DataNode]:
    """Nodes that stay: this one first, since that takes one transfer, then stores and nodes with room."""
    able = [node for node in plane.nodes.all() if node.active and not node.ephemeral and node.name != host]
    this = plane.this.name
    return sorted(able, key=lambda node: (node.name != this, node.role != "storage", node.name))[:TARGETS_MAX]


def _batches(artifacts: Iterable[Artifact]) -> list[list[Artifact]]:
    """Small enough that a cut leaves most of the work done."""
    batches: list[list[Artifact]] = [[]]
    size = 0
    for artifact in artifacts:
        full = len(batches[-1]) >= BATCH_FILES or size + artifact.size > BATCH_BYTES
        if batches[-1] and full:
            batches.append([])
            size = 0
        batches[-1].append(artifact)
        size += artifact.size
    return [batch for batch in batches if batch]
