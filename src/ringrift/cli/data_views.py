"""What the data commands show, read off the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ringrift.cli.wording import NOTHING, brief, clock, count
from ringrift.data.artifacts import Artifact, kinds_of
from ringrift.data.copies import CopyView
from ringrift.data.deletion import Deleter, DeletionVerdict
from ringrift.data.deletion_records import DeletionRecords
from ringrift.data.inventory import look_everywhere
from ringrift.data.plane import DataPlane
from ringrift.data.quarantine import Quarantine
from ringrift.data.replication import RepairPlan, ReplicationRules, plan, take_snapshot
from ringrift.data.retention import read_held

LS_COLUMNS = ("digest", "kind", "config", "size", "games", "made", "copies")
LS_WIDE_COLUMNS = (*LS_COLUMNS, "name")
WIDE = 120  # characters of a terminal that has room for names too
COPY_COLUMNS = ("node", "verified", "by", "counts")
DECISIONS_SHOWN = 20
_YEAR, _SECONDS = len("YYYY-"), len("YYYY-MM-DD hh:mm")


def size_text(size: float) -> str:
    """12 B, 3.4 MiB, 1.2 GiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {units[-1]}"


def files_text(number: int) -> str:
    return "1 file" if number == 1 else f"{count(number)} files"


async def artifact_rows(plane: DataPlane, *, data_type: str, config: str, node: str) -> list[dict[str, Any]]:
    """Artifacts, the oldest first."""
    if node:
        node = plane.nodes[node].name  # says which there are
    manifest = await plane.view()
    receipts = manifest.receipts
    stones = await plane.tombstones()
    marked = await Quarantine(plane).marked()
    view, rows = CopyView(nodes=plane.nodes, now_s=plane.runtime.now_s()), []
    for artifact in manifest.cards:
        copies = view.of(receipts.get(artifact.digest, ()), stones.get(artifact.digest))
        nodes = [*copies.nodes, *(receipt.node for receipt, _ in copies.discounted)]
        if artifact.kind not in kinds_of(data_type) or config not in ("", artifact.config):
            continue
        if node and node not in nodes:
            continue
        found = {"copies": len(copies.counted), "nodes": nodes, "quarantined": artifact.digest in marked}
        rows.append({**_card(artifact), **found})
    return sorted(rows, key=lambda row: (row["created_s"], row["digest"]))


def shown_row(row: dict[str, Any]) -> Sequence[str]:
    return (
        brief(row["digest"]),
        row["kind"] + (" (quarantined)" if row["quarantined"] else ""),
        row["config"] or NOTHING,
        size_text(row["size"]),
        count(row["games"]) if row["games"] else NOTHING,
        clock(row["created_s"], with_date=True)[_YEAR:_SECONDS] if row["created_s"] else NOTHING,
        f"{row['copies']} {', '.join(row['nodes'])}",
        row["name"] or NOTHING,
    )


async def describe_artifact(plane: DataPlane, artifact: Artifact) -> dict[str, Any]:
    """All that is known of one artifact."""
    digest, deleter, records = artifact.digest, Deleter(plane), DeletionRecords(plane.kv)
    tombstone, heir = await records.tombstone(digest), await records.heir(digest)
    view = await deleter.view()
    copies = view.of(await plane.manifest.copies(digest), tombstone)
    held = await read_held(plane, (await plane.view()).cards)
    verdict = DeletionVerdict(allowed=False, reason="this node has none")
    if await plane.blobs.has(digest):
        verdict = await deleter.examine(artifact, held_for=held.get(digest, ""), ask=True)
    judged = [(receipt, "") for receipt in copies.counted] + list(copies.discounted)
    return {
        "artifact": _card(artifact),
        "copies": [
            {
                "node": receipt.node,
                "verified_s": receipt.verified_s,
                "verifier": receipt.verifier,
                "counts": not why,
                "why_not": why,
            }
            for receipt, why in judged
        ],
        "held_for": held.get(digest, ""),
        "may_delete": verdict.allowed,
        "why": verdict.reason,
        "tombstone": None if tombstone is None else msgspec.to_builtins(tombstone),
        "heir": None if heir is None else msgspec.to_builtins(heir),
        "decisions": [
            msgspec.to_builtins(each)
            for each in await deleter.decisions.recent(digest=digest, limit=DECISIONS_SHOWN)
        ],
    }


def copy_rows(copies: Sequence[dict[str, Any]]) -> list[Sequence[str]]:
    return [
        (
            each["node"],
            clock(each["verified_s"], with_date=True),
            each["verifier"] or NOTHING,
            "yes" if each["counts"] else f"no: {each['why_not']}",
        )
        for each in copies
    ]


@dataclass(frozen=True, slots=True)
class Replicas:
    """How copies stand."""

    plan: RepairPlan
    by_copies: dict[int, int]
    failures: dict[str, str] = field(default_factory=dict)  # of repairs just tried; digest: why
    unknown: dict[str, str] = field(default_factory=dict)  # nodes that did not answer, and why
    here: str = ""  # what is wrong with this node's own disk

    @property
    def verdict(self) -> str:
        """Nobody is healthy whose copies are not known."""
        healthy = self.plan.verdict == "healthy"
        return "not known" if healthy and (self.unknown or self.here) else self.plan.verdict

    @property
    def resting(self) -> int:
        """Too few copies, and neither to be repaired now nor stuck: they were tried not long ago."""
        planned = sum(each.priority != "low" for each in self.plan.repairs)
        return max(0, self.plan.under - planned - len(self.plan.stuck))

    def as_json(self) -> dict[str, Any]:
        found = self.plan
        return {
            "artifacts": found.total,
            "by_copies": {str(copies): number for copies, number in sorted(self.by_copies.items())},
            "without_copy": found.none,
            "single_copy": found.single,
            "under": found.under,
            "score": found.score,
            "verdict": self.verdict,
            "unknown": self.unknown,
            "here": self.here,
            "alerts": [{"level": each.level, "message": each.message} for each in found.alerts],
            "repairs": [
                {
                    "digest": each.artifact.digest,
                    "source": each.source,
                    "target": each.target,
                    "priority": each.priority,
                    "reason": each.reason,
                }
                for each in found.repairs
            ],
            "stuck": dict(found.stuck),
            "resting": self.resting,
            "failures": self.failures,
        }


async def read_replicas(plane: DataPlane) -> Replicas:
    """Look at this node's disk, ask the others, then count. No answer is no copy that counts."""
    seen = await look_everywhere(plane, (await plane.view()).cards)
    snapshot = await take_snapshot(plane, frozenset(seen.silent))
    counts = Counter(
        len(
            snapshot.view.of(
                snapshot.receipts.get(each.digest, ()), snapshot.tombstones.get(each.digest)
            ).counted
        )
        for each in snapshot.artifacts
        if each.digest not in snapshot.heirs
    )
    found = plan(snapshot, ReplicationRules())
    return Replicas(found, dict(counts), unknown=dict(seen.silent), here=seen.here.told)


def _card(artifact: Artifact) -> dict[str, Any]:
    card: dict[str, Any] = {name: getattr(artifact, name) for name in artifact.__struct_fields__}
    return {**card, "kind": artifact.kind.value}
