"""The one place that deletes artifacts.

A node deletes only its own copy, and only while enough others hold verified ones: `may_delete` decides,
`Deleter.delete` carries it out. It writes the tombstone first, by compare-and-swap, so that no two nodes give
up their copies because of each other's; then it looks again, and takes the tombstone back if a copy was
lost meanwhile, or a person, work or a champion came to need the file. A crash at any step leaves the copy,
or a decided deletion that `finish` completes or takes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.away import AwayLog
from ringrift.data.copies import DAY_S, Copies, CopyRules, CopyView
from ringrift.data.decisions import DecisionLog
from ringrift.data.deletion_records import (
    DeletionRecords,
    GivenUp,
    GivingUp,
    Tombstone,
    with_node,
)
from ringrift.data.plane import DataPlane
from ringrift.data.quarantine import Quarantine
from ringrift.data.retention import OpenInputs, needed_for
from ringrift.errors import ConfigError, Conflict, Corrupt

log = structlog.get_logger()

PART = "deletion"
_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRules:
    """What must hold before a copy may go."""

    copies_min: int = 2  # verified ones that stay, on other nodes
    age_s_min: float = DAY_S  # since it was made; work on it may be on its way
    copy_rules: CopyRules = field(default_factory=CopyRules)

    def __post_init__(self) -> None:
        if self.copies_min < 1:
            raise ConfigError(
                f"copies_min is {self.copies_min}; the last copy is never deleted, so at least 1"
            )
        if self.age_s_min < 0:
            raise ConfigError(f"age_s_min is {self.age_s_min}; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVerdict:
    """Whether a copy may go, and why."""

    allowed: bool
    reason: str
    copies_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """The artifact that holds everything of another, and its copies."""

    heir: str
    copies: Copies


def _span(seconds: float) -> str:
    """Whole numbers where they fit: 7 days, 1 day, 10 minutes."""
    for unit, size_s in (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0), ("second", 1.0)):
        if seconds >= size_s:
            number = f"{seconds / size_s:.3g}"
            return f"{number} {unit}" if number == "1" else f"{number} {unit}s"
    return f"{seconds:.3g} seconds"


def may_delete(
    artifact: Artifact,
    copies: Copies,
    rules: DeletionRules,
    now_s: float,
    *,
    node: str,
    held_for: str = "",
    inheritance: Inheritance | None = None,
) -> DeletionVerdict:
    """Decide about *node*'s copy. *held_for* names what still needs it, if anything does."""
    others = copies.if_deleted_by(node)
    left = len(others)
    if held_for:
        return DeletionVerdict(allowed=False, reason=f"it is needed: {held_for}", copies_left=left)
    age_s = now_s - artifact.created_s
    if artifact.created_s > 0 and age_s < rules.age_s_min:
        told = f"it is younger than {_span(rules.age_s_min)}"
        return DeletionVerdict(allowed=False, reason=told, copies_left=left)
    if left >= rules.copies_min:
        where = ", ".join(others)
        return DeletionVerdict(allowed=True, reason=f"{left} verified copies stay: {where}", copies_left=left)
    if inheritance is not None and len(inheritance.copies.counted) >= rules.copies_min:
        count = len(inheritance.copies.counted)
        told = f"all of it is in {inheritance.heir[:12]}, which has {count} verified copies"
        return DeletionVerdict(allowed=True, reason=told, copies_left=left)
    missing = f"{left} verified copies would stay, {rules.copies_min} must"
    doubts = "; ".join(f"{receipt.node}: {why}" for receipt, why in copies.discounted if receipt.node != node)
    return DeletionVerdict(
        allowed=False, reason=f"{missing} ({doubts})" if doubts else missing, copies_left=left
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """What became of one wish to delete."""

    digest: str
    verdict: DeletionVerdict
    bytes_freed: int = 0


class Deleter:
    """Deletes copies of the node that it runs on. Made anew for each batch of deletions."""

    def __init__(
        self, plane: DataPlane, *, rules: DeletionRules | None = None, away: frozenset[str] = frozenset()
    ) -> None:
        self._plane, self.rules, self.away = plane, rules or DeletionRules(), away
        self._node = plane.this.name
        self._records = DeletionRecords(plane.kv)
        for_s = self.rules.copy_rules.receipt_age_s_max  # what was read before that counts for nobody
        self._away_log = AwayLog(plane.engine.events, plane.kv, plane.runtime, for_s=for_s)
        self._inputs = OpenInputs(plane.queue)
        self.decisions = DecisionLog(plane.kv, plane.runtime, node=self._node)

    async def examine(
        self, artifact: Artifact, *, held_for: str = "", rules: DeletionRules | None = None
    ) -> DeletionVerdict:
        """Say whether this node's copy may go, without touching it."""
        return (await self._examine(artifact, held_for, rules or self.rules))[0]

    async def delete(
        self,
        artifact: Artifact,
        *,
        why: str,
        by: str,
        held_for: str = "",
        rules: DeletionRules | None = None,
    ) -> Deleted:
        """Delete this node's copy if that is safe. Refusals and deletions are both recorded."""
        rules = rules or self.rules
        for _ in range(_TRIES):
            verdict, tombstone, revision = await self._examine(artifact, held_for, rules)
            if not verdict.allowed:
                await self._record("refused", artifact.digest, verdict.reason, wanted_for=why, by=by)
                return Deleted(digest=artifact.digest, verdict=verdict)
            condemned = self._condemned(artifact, tombstone, verdict, f"{why}; {verdict.reason}", by)
            try:
                await self._records.write(condemned, revision=revision)
            except Conflict:
                continue  # another node gives up its copy of the same file: count again
            return await self._carry_out(artifact, held_for, rules)
        raise Conflict(f"copies of {artifact.digest[:12]} changed {_TRIES} times while one was to be deleted")

    async def finish(self) -> list[Deleted]:
        """Complete, or take back, deletions that a crash interrupted."""
        await self._away_log.refresh()  # whoever was said to be away is remembered, before the log forgets
        finished = []
        for tombstone in (await self._plane.tombstones()).values():
            own = tombstone.nodes.get(self._node)
            if own is None or own.state is not GivingUp.DELETING:
                continue
            artifact = await self._plane.manifest.artifact(tombstone.digest)
            card = artifact or Artifact(digest=tombstone.digest, size=own.bytes, name=tombstone.name)
            finished.append(await self._carry_out(card, "", self.rules))
        return finished

    async def _examine(
        self, artifact: Artifact, held_for: str, rules: DeletionRules
    ) -> tuple[DeletionVerdict, Tombstone | None, int | None]:
        # The tombstone is read before the receipts: whoever gives up a copy after this changes its revision.
        tombstone, revision = await self._records.tombstone_at(artifact.digest)
        view = await self.view(rules)
        copies = view.of(await self._plane.manifest.copies(artifact.digest), tombstone)
        inheritance = await self._inheritance(artifact.digest, view)
        verdict = may_delete(
            artifact,
            copies,
            rules,
            view.now_s,
            node=self._node,
            held_for=held_for,
            inheritance=inheritance,
        )
        return verdict, tombstone, revision

    async def _inheritance(self, digest: str, view: CopyView) -> Inheritance | None:
        heir = await self._records.heir(digest)
        if heir is None:
            return None
        tombstone = await self._records.tombstone(heir.heir)
        copies = view.of(await self._plane.manifest.copies(heir.heir), tombstone)
        return Inheritance(heir=heir.heir, copies=copies)

    def _condemned(
        self, artifact: Artifact, tombstone: Tombstone | None, verdict: DeletionVerdict, reason: str, by: str
    ) -> Tombstone:
        entry = GivenUp(
            state=GivingUp.DELETING,
            at_s=self._plane.runtime.now_s(),
            reason=reason,
            by=by,
            copies_left=verdict.copies_left,
            bytes=artifact.size,
        )
        plain = Tombstone(
            digest=artifact.digest, name=artifact.name, kind=artifact.kind.value, config=artifact.config
        )
        return with_node(tombstone or plain, self._node, entry)

    async def _carry_out(self, artifact: Artifact, held_for: str, rules: DeletionRules) -> Deleted:
        """Look once more, then delete; our own copy is given up already and does not count."""
        digest, manifest = artifact.digest, self._plane.manifest
        held_for = held_for or await needed_for(self._plane, digest, self._inputs)
        verdict, tombstone, _ = await self._examine(artifact, held_for, rules)
        own = None if tombstone is None else tombstone.nodes.get(self._node)
        if own is None or own.state is not GivingUp.DELETING:
            return Deleted(
                digest=digest, verdict=DeletionVerdict(allowed=False, reason="the decision was taken back")
            )
        if not verdict.allowed and await self._plane.blobs.has(digest):
            await self._take_back(digest)
            await self._record("withdrawn", digest, verdict.reason, wanted_for=own.reason, by=own.by)
            return Deleted(digest=digest, verdict=verdict)
        receipts = await manifest.copies(digest)
        await manifest.drop_copy(digest, self._node)
        freed = await self._plane.blobs.size(digest) or 0
        await self._plane.blobs.delete(digest)
        await self._records.change(
            digest, lambda each: with_node(each, self._node, self._done(own, receipts))
        )
        await self._forget_if_gone(digest)
        await self._record("deleted", digest, own.reason, by=own.by, bytes=freed, name=artifact.name)
        log.info("data.deleted", digest=digest[:12], name=artifact.name, reason=own.reason, by=own.by)
        return Deleted(digest=digest, verdict=verdict, bytes_freed=freed)

    async def _take_back(self, digest: str) -> None:
        """Keep the copy after all. A crash may have dropped its receipt, so it is read before it counts."""
        # As of when reading began: if another process of this node deletes it meanwhile, that is newer.
        begun_s, size = self._plane.runtime.now_s(), await self._plane.blobs.size(digest) or 0
        try:
            await self._plane.blobs.verify(digest)
        except KeyError:
            return  # another process of this node was faster, and has recorded it
        except Corrupt as error:
            await Quarantine(self._plane).set_aside(digest, error.found)
            await self._record("set_aside", digest, error.found)
            await self._records.change(digest, self._without_decision)
            return
        await self._records.change(digest, self._without_decision)
        receipt = Receipt(digest=digest, node=self._node, size=size, verified_s=begun_s, verifier=PART)
        await self._plane.manifest.add_receipts([receipt])

    def _without_decision(self, tombstone: Tombstone) -> Tombstone:
        """What was carried out meanwhile stays recorded."""
        own = tombstone.nodes.get(self._node)
        decided = own is not None and own.state is GivingUp.DELETING
        return with_node(tombstone, self._node, None) if decided else tombstone

    def _done(self, own: GivenUp, receipts: list[Receipt]) -> GivenUp:
        """Not before the last receipt of this file, which a slow sender may still bring to the manifest.

        Those who share this disk wrote receipts of it too, perhaps by a clock that is ahead.
        """
        sharers = self._plane.nodes.sharing(self._node)
        known = [receipt.verified_s for receipt in receipts if receipt.node in sharers]
        return GivenUp(
            state=GivingUp.DELETED,
            at_s=max(self._plane.runtime.now_s(), own.at_s, *known),
            reason=own.reason,
            by=own.by,
            copies_left=own.copies_left,
            bytes=own.bytes,
        )

    async def _forget_if_gone(self, digest: str) -> None:
        """What has an heir may lose all its copies; its card goes with the last one."""
        if await self._records.heir(digest) is not None and not await self._plane.manifest.copies(digest):
            await self._plane.manifest.forget(digest)

    async def view(self, rules: DeletionRules | None = None) -> CopyView:
        """By what copies are judged before one is deleted."""
        return CopyView(
            nodes=self._plane.nodes,
            now_s=self._plane.runtime.now_s(),
            away=self.away,
            away_since=await self._away_log.refresh(),
            rules=(rules or self.rules).copy_rules,
        )

    async def _record(self, action: str, digest: str, reason: str, **facts: Any) -> None:
        await self.decisions.record(PART, action, reason, digest=digest, **facts)


def tombstone_rows(tombstones: Mapping[str, Tombstone]) -> list[dict[str, Any]]:
    """Every deletion, oldest first, for people and programs."""
    rows = [
        {
            "at_s": gone.at_s,
            "digest": digest,
            "name": each.name,
            "node": node,
            "state": gone.state.value,
            "reason": gone.reason,
            "by": gone.by,
            "bytes": gone.bytes,
        }
        for digest, each in tombstones.items()
        for node, gone in each.nodes.items()
    ]
    return sorted(rows, key=lambda row: float(str(row["at_s"])))
