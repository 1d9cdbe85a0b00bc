"""The one place that deletes artifacts.

A node deletes only its own copy. `may_delete` says from the records whether it is worth asking; then the
node notes that it begins, asks the other holders now, and deletes only if enough of them looked at their
disks and promised to keep the file (`judge_promises`). No answer is no copy: the records are only what
somebody said once. A crash at any step leaves the copy, or a decision that `finish` asks about anew and
completes or takes back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import structlog

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.config import DataNode
from ringrift.data.kv_records import for_each
from ringrift.data.manifest.store import DAY_S, EPHEMERAL, AwayLog, Copies, CopyRules, CopyView
from ringrift.data.plane import DataPlane
from ringrift.data.protection.inventory import learn_from_answer
from ringrift.data.protection.promise_store import BEING_DELETED
from ringrift.data.protection.promises import KEEP_S, KeepAnswer, KeepRequest, KeptFile, ReleaseRequest
from ringrift.data.protection.records import (
    DeletionRecords,
    GivenUp,
    GivingUp,
    Quarantine,
    Tombstone,
    with_node,
)
from ringrift.data.protection.retention import OpenInputs, copies_needed, needed_for, read_held
from ringrift.data.transfer.http.wire import File
from ringrift.errors import ConfigError, Corrupt, RingRiftError

log = structlog.get_logger()

PART = "deletion"
SILENT_S = 60.0  # before a node that did not answer is asked again
REFUSALS_RECORDED_MAX = 20  # of one reason, in one batch
_TRIES = 3
_PAUSE_S = (0.05, 0.5)  # before another try, when two nodes wanted to delete the same file at once


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

    successor: str
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
        reason = f"it is younger than {_span(rules.age_s_min)}"
        return DeletionVerdict(allowed=False, reason=reason, copies_left=left)
    if left >= copies_needed(artifact, rules.copies_min):
        reason = f"{left} verified copies stay: {', '.join(others) or 'more are not needed'}"
        return DeletionVerdict(allowed=True, reason=reason, copies_left=left)
    if inheritance is not None and len(inheritance.copies.counted) >= rules.copies_min:
        count = len(inheritance.copies.counted)
        reason = f"all of it is in {inheritance.successor[:12]}, which has {count} verified copies"
        return DeletionVerdict(allowed=True, reason=reason, copies_left=left)
    missing = f"{left} verified copies would stay, {rules.copies_min} must"
    doubts = "; ".join(f"{receipt.node}: {why}" for receipt, why in copies.discounted if receipt.node != node)
    return DeletionVerdict(
        allowed=False, reason=f"{missing} ({doubts})" if doubts else missing, copies_left=left
    )


class HolderReply(NamedTuple):
    """What came of asking one node about one file."""

    node: str
    answer: KeepAnswer | None
    why: str = ""  # there is no answer

    @property
    def file(self) -> KeptFile | None:
        return None if self.answer is None else next(iter(self.answer.files), None)

    @property
    def promises(self) -> bool:
        return self.file is not None and not self.file.refusal


def judge_promises(
    replies: Sequence[HolderReply], copies_min: int, *, own_store: str, successor: str = ""
) -> DeletionVerdict:
    """Whether enough nodes looked, have the file and keep it. Without a promise asked for: would they?

    *own_store* is the folder of the copy that is to go; of a successor, which stays, it counts as any other.
    """
    stores: dict[str, str] = {}
    doubts = []
    for reply in replies:
        file = reply.file
        if reply.answer is None or file is None:
            doubts.append(f"{reply.node} does not answer: {reply.why}")
        elif file.pinned:
            return DeletionVerdict(allowed=False, reason=f"it is pinned on {reply.node}: {file.pinned}")
        elif file.refusal:
            doubts.append(f"{reply.node}: {file.refusal}")
        elif not reply.answer.counts:
            doubts.append(f"{reply.node}: {EPHEMERAL}")
        elif reply.answer.store == own_store and not successor:
            doubts.append(f"{reply.node} has the same folder as this node")
        elif reply.answer.store in stores:
            doubts.append(f"{reply.node} has the same folder as {stores[reply.answer.store]}")
        else:
            stores[reply.answer.store] = reply.node
    keeping = sorted(stores.values())
    if len(keeping) >= copies_min:
        what = f"{successor[:12]}, which has all of it" if successor else "it"
        reason = f"{len(keeping)} nodes looked now and keep {what}: {', '.join(keeping)}"
        return DeletionVerdict(allowed=True, reason=reason, copies_left=0 if successor else len(keeping))
    reason = f"{len(keeping)} nodes keep {'its successor' if successor else 'it'}, {copies_min} must"
    reason = f"{reason} ({'; '.join(doubts)})" if doubts else reason
    return DeletionVerdict(allowed=False, reason=reason, copies_left=len(keeping))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """What became of one request to delete."""

    digest: str
    verdict: DeletionVerdict
    bytes_freed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the other holders said, and until when (by `boot_s`) that may be acted upon."""

    verdict: DeletionVerdict
    promise: str = ""
    until_s: float = 0.0
    promised: tuple[DataNode, ...] = ()  # what others may have promised, without an answer, ends by itself
    busy: bool = False  # somebody else deletes the same file just now
    pinned: bool = False


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
        # Nodes that did not answer: why, and when they are asked again.
        self._silent: dict[str, tuple[str, float]] = {}
        self._refusals: Counter[str] = Counter()
        self.decisions = plane.decisions

    async def examine(
        self,
        artifact: Artifact,
        *,
        held_for: str = "",
        rules: DeletionRules | None = None,
        ask: bool = False,
    ) -> DeletionVerdict:
        """Say whether this node's copy may go, without touching it: by the records, or by asking, too."""
        rules = rules or self.rules
        verdict = await self._examine(artifact, held_for, rules)
        if verdict.allowed and ask:
            verdict = (await self._ask(artifact, rules, keep_s=0.0)).verdict
        return verdict

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
        verdict = await self._examine(artifact, held_for, rules)
        if verdict.allowed:
            async with self._plane.promises.deleting():
                for _ in range(_TRIES):
                    done, again = await self._try_to_delete(artifact, why, by, held_for, rules)
                    if not again:
                        break
                    await self._plane.runtime.sleep(self._plane.runtime.rng.uniform(*_PAUSE_S))
        else:
            done = Deleted(digest=artifact.digest, verdict=verdict)
        if not done.verdict.allowed:
            await self._refused(artifact.digest, done.verdict.reason, wanted_for=why, by=by)
        return done

    async def finish(self) -> list[Deleted]:
        """Complete, or take back, deletions that a crash interrupted."""
        await self._away_log.refresh()  # whoever was said to be away is remembered, before the log forgets
        if not await self._unfinished():
            return []
        async with self._plane.promises.deleting():
            return [await self._finish(digest) for digest in await self._unfinished()]

    # --- one deletion -------------------------------------------------------------------------------------

    async def _try_to_delete(
        self, artifact: Artifact, why: str, by: str, held_for: str, rules: DeletionRules
    ) -> tuple[Deleted, bool]:
        """Begin, ask, and delete if enough promise; also return whether it is worth trying again soon."""
        digest = artifact.digest
        # Before anybody is asked: from here on this node promises nobody to keep the file.
        if refusal := await asyncio.to_thread(self._plane.promises.begin, digest, reason=why):
            return _kept(digest, refusal), False
        asked = _Asked(verdict=DeletionVerdict(allowed=False, reason=""))
        try:
            asked = await self._ask(artifact, rules, keep_s=KEEP_S)
            held_for = held_for or await needed_for(self._plane, digest, self._inputs)
        except RingRiftError:
            await self._end(digest, asked)
            raise
        if held_for or not asked.verdict.allowed:
            await self._end(digest, asked)
            kept = _kept(digest, f"it is needed: {held_for}")
            return (kept if held_for else Deleted(digest=digest, verdict=asked.verdict)), asked.busy
        own = self._entry(artifact, asked.verdict, f"{why}; {asked.verdict.reason}", by)
        await self._write_entry(artifact, own)
        return await self._carry_out(artifact, own, asked), False

    async def _carry_out(self, artifact: Artifact, own: GivenUp, asked: _Asked) -> Deleted:
        """Delete what is decided, if the promises still hold."""
        digest, manifest, plane = artifact.digest, self._plane.manifest, self._plane
        receipts = await manifest.copies(digest)
        await manifest.drop_copy(digest, self._node)
        freed = await plane.blobs.size(digest) or 0
        if plane.runtime.boot_s() > asked.until_s:
            await self._take_back(digest)
            await self._end(digest, asked)
            return _kept(digest, "the promises to keep it were running out before it was deleted")
        if not await asyncio.to_thread(plane.promises.has_begun, digest):
            # Others may have been promised the file since.
            await self._take_back(digest)
            await self._end(digest, asked)
            return _kept(digest, "the record of promises was lost while it was being deleted")
        await plane.blobs.delete(digest)
        await self._complete(digest, own, receipts)
        await self._end(digest, asked)
        await self._record("deleted", digest, own.reason, by=own.by, bytes=freed, name=artifact.name)
        log.info("data.deleted", digest=digest[:12], name=artifact.name, reason=own.reason, by=own.by)
        return Deleted(digest=digest, verdict=asked.verdict, bytes_freed=freed)

    async def _complete(self, digest: str, own: GivenUp, receipts: list[Receipt]) -> None:
        await self._records.change(
            digest, lambda each: with_node(each, self._node, self._done(own, receipts))
        )
        await asyncio.to_thread(self._plane.promises.forget_reads, digest)
        await self._forget_if_gone(digest)

    async def _end(self, digest: str, asked: _Asked) -> None:
        """This node may promise to keep the file again; those who promised us need not any longer."""
        await asyncio.to_thread(self._plane.promises.end, digest)
        await for_each(asked.promised, lambda node: self._release(node, asked.promise))

    async def _release(self, node: DataNode, promise: str) -> None:
        try:
            if node.name == self._node:
                await asyncio.to_thread(self._plane.promises.release, promise)
            elif not self._why_silent(node):
                await self._plane.holders.release(node, ReleaseRequest(promise=promise))
        except (RingRiftError, TimeoutError) as error:  # it ends by itself
            log.info("deletion.promise_not_released", node=node.name, error=str(error))

    # --- after a crash ------------------------------------------------------------------------------------

    async def _unfinished(self) -> list[str]:
        begun = set(await asyncio.to_thread(self._plane.promises.begun))
        stones = (await self._plane.tombstones()).values()
        return sorted(begun | {each.digest for each in stones if each.is_deciding(self._node)})

    async def _finish(self, digest: str) -> Deleted:
        artifact = await self._plane.manifest.artifact(digest)
        tombstone = await self._records.tombstone(digest)
        own = None if tombstone is None else tombstone.nodes.get(self._node)
        nothing = _Asked(verdict=DeletionVerdict(allowed=False, reason=""))
        if own is None or own.state is not GivingUp.DELETING:  # it was begun, and nothing was decided
            await self._end(digest, nothing)
            return _kept(digest, "nothing was decided")
        if not await self._plane.blobs.has(digest):
            receipts = await self._plane.manifest.copies(digest)
            await self._plane.manifest.drop_copy(digest, self._node)
            await self._complete(digest, own, receipts)
            await self._end(digest, nothing)
            await self._record("deleted", digest, own.reason, by=own.by, bytes=own.bytes)
            return Deleted(digest=digest, verdict=DeletionVerdict(allowed=True, reason=own.reason))
        card = artifact or Artifact(digest=digest, size=own.bytes)
        asked = await self._asked_anew(card, own)
        if asked.verdict.allowed:
            return await self._carry_out(card, own, asked)
        await self._take_back(digest)
        await self._end(digest, asked)
        await self._record("withdrawn", digest, asked.verdict.reason, wanted_for=own.reason, by=own.by)
        return Deleted(digest=digest, verdict=asked.verdict)

    async def _asked_anew(self, artifact: Artifact, own: GivenUp) -> _Asked:
        """What was promised before the crash may be over, and what was not needed then may be now."""
        held_for = await needed_for(self._plane, artifact.digest, self._inputs)
        verdict = await self._examine(artifact, held_for, self.rules)
        if verdict.allowed:
            begin = self._plane.promises.begin
            if refusal := await asyncio.to_thread(begin, artifact.digest, reason=own.reason):
                verdict = DeletionVerdict(allowed=False, reason=refusal)
        if not verdict.allowed:
            return _Asked(verdict=verdict)
        return await self._ask(artifact, self.rules, keep_s=KEEP_S)

    # --- asking -------------------------------------------------------------------------------------------

    async def _ask(self, artifact: Artifact, rules: DeletionRules, *, keep_s: float) -> _Asked:
        """Ask who has the file, then who has its successor, if it has one."""
        asked = await self._ask_about(artifact, rules, keep_s=keep_s)
        successor = await self._records.successor(artifact.digest)
        card = None if successor is None else await self._plane.manifest.artifact(successor.successor)
        if asked.verdict.allowed or asked.pinned or card is None:
            return asked
        inherited = await self._ask_about(
            card, rules, keep_s=keep_s, promise=asked.promise, is_successor=True
        )
        return replace(inherited, promised=tuple(dict.fromkeys((*asked.promised, *inherited.promised))))

    async def _ask_about(
        self,
        artifact: Artifact,
        rules: DeletionRules,
        *,
        keep_s: float,
        promise: str = "",
        is_successor: bool = False,
    ) -> _Asked:
        plane, begun_s = self._plane, self._plane.runtime.boot_s()
        copies_min = copies_needed(artifact, rules.copies_min)
        request = KeepRequest(
            asker=self._node,
            promise=promise or plane.runtime.new_id(),
            keep_s=keep_s,
            files=(File(artifact.digest, artifact.size),),
        )
        own_store = await asyncio.to_thread(lambda: plane.promises.id)
        successor = artifact.digest if is_successor else ""
        replies: list[HolderReply] = []
        verdict = judge_promises(replies, copies_min, own_store=own_store, successor=successor)
        promised: list[DataNode] = []
        for group in await self._groups(artifact.digest, with_self=is_successor):
            heard = await for_each(group, lambda node: self._ask_one(node, request))
            promised += [node for node, reply in zip(group, heard, strict=True) if reply.promises]
            replies += (
                heard if is_successor else [self._of_another_folder(reply, own_store) for reply in heard]
            )
            verdict = judge_promises(replies, copies_min, own_store=own_store, successor=successor)
            if verdict.allowed or _pinned(replies):
                break
        return _Asked(
            verdict=verdict,
            promise=request.promise,
            until_s=begun_s + keep_s / 2,  # the rest is for clocks that run at different rates
            promised=tuple(promised) if keep_s > 0 else (),
            busy=any(self._is_busy(reply) for reply in replies),
            pinned=_pinned(replies),
        )

    async def _groups(self, digest: str, *, with_self: bool) -> list[list[DataNode]]:
        """Whom to ask: first all nodes, for the pins that they may have; then archives without a receipt."""
        known = {receipt.node for receipt in await self._plane.manifest.copies(digest)}
        able = [each for each in self._plane.nodes.all() if each.active]
        # Of its successor this node's own copy counts, too: it is not the one that goes.
        able = [each for each in able if with_self or each.name != self._node]
        first = [each for each in able if each.name in known or not each.is_archive]
        return [group for group in (first, [each for each in able if each not in first]) if group]

    def _of_another_folder(self, reply: HolderReply, own_store: str) -> HolderReply:
        """Nodes that share this one's disk, by the config file, are asked for their pins only."""
        if reply.answer is None or reply.node not in self._plane.nodes.sharing(self._node):
            return reply
        return reply._replace(answer=msgspec.structs.replace(reply.answer, store=own_store))

    def _is_busy(self, reply: HolderReply) -> bool:
        """Whether another node deletes the file just now."""
        being_deleted = reply.file is not None and reply.file.refusal == BEING_DELETED
        return being_deleted and reply.node not in self._plane.nodes.sharing(self._node)

    async def _ask_one(self, node: DataNode, request: KeepRequest) -> HolderReply:
        plane, began_s = self._plane, self._plane.runtime.now_s()
        if node.name == self._node:
            return HolderReply(node.name, await asyncio.to_thread(plane.holder.keep, request))
        if why := self._why_silent(node):
            return HolderReply(node.name, None, why)
        try:
            answer = await plane.holders.keep(node, request)
        except RingRiftError as error:
            self._silent[node.name] = (str(error), plane.runtime.boot_s() + SILENT_S)
            return HolderReply(node.name, None, str(error))
        await learn_from_answer(plane, answer, began_s=began_s)
        if node.ephemeral:
            answer = msgspec.structs.replace(answer, counts=False)  # whatever its own config says
        return HolderReply(node.name, answer)

    def _why_silent(self, node: DataNode) -> str:
        why, again_s = self._silent.get(node.name, ("", 0.0))
        return why if self._plane.runtime.boot_s() < again_s else ""

    # --- records ------------------------------------------------------------------------------------------

    async def _examine(self, artifact: Artifact, held_for: str, rules: DeletionRules) -> DeletionVerdict:
        tombstone = await self._records.tombstone(artifact.digest)
        view = await self.view(rules)
        copies = view.of(await self._plane.manifest.copies(artifact.digest), tombstone)
        inheritance = await self._inheritance(artifact.digest, view)
        return may_delete(
            artifact,
            copies,
            rules,
            view.now_s,
            node=self._node,
            held_for=held_for,
            inheritance=inheritance,
        )

    async def _inheritance(self, digest: str, view: CopyView) -> Inheritance | None:
        successor = await self._records.successor(digest)
        if successor is None:
            return None
        tombstone = await self._records.tombstone(successor.successor)
        copies = view.of(await self._plane.manifest.copies(successor.successor), tombstone)
        return Inheritance(successor=successor.successor, copies=copies)

    def _entry(self, artifact: Artifact, verdict: DeletionVerdict, reason: str, by: str) -> GivenUp:
        return GivenUp(
            state=GivingUp.DELETING,
            at_s=self._plane.runtime.now_s(),
            reason=reason,
            by=by,
            copies_left=verdict.copies_left,
            bytes=artifact.size,
        )

    async def _write_entry(self, artifact: Artifact, own: GivenUp) -> None:
        """Enter this node into the tombstone: after a crash, the entry says what was decided."""
        plain = Tombstone(
            digest=artifact.digest, name=artifact.name, kind=artifact.kind.value, config=artifact.config
        )
        await self._records.change(
            artifact.digest, lambda each: with_node(each, self._node, own), plain=plain
        )

    async def _take_back(self, digest: str) -> None:
        """Keep the copy after all. A crash may have dropped its receipt, so it is read before it counts."""
        # As of when reading began: if another process of this node deletes it meanwhile, that is newer.
        begun_s = self._plane.runtime.now_s()
        try:
            await self._plane.blobs.verify(digest)
        except KeyError:
            return  # another process of this node was faster, and has recorded it
        except Corrupt as error:
            await Quarantine(self._plane).set_aside(digest, error.found, part=PART)
            await self._records.change(digest, self._without_decision)
            return
        await self._records.change(digest, self._without_decision)
        await self._plane.note_copy(digest, PART, verified_s=begun_s)

    def _without_decision(self, tombstone: Tombstone) -> Tombstone:
        """What was carried out meanwhile stays recorded."""
        deciding = tombstone.is_deciding(self._node)
        return with_node(tombstone, self._node, None) if deciding else tombstone

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
        """What has a successor, or needs none, may lose all its copies; its card goes with the last one."""
        card, successor = await self._plane.manifest.artifact(digest), await self._records.successor(digest)
        is_spare = card is not None and not copies_needed(card, 1)
        if (is_spare or successor is not None) and not await self._plane.manifest.copies(digest):
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

    async def _refused(self, digest: str, reason: str, **facts: Any) -> None:
        """Record a refusal; the same one of many files only so often."""
        self._refusals[reason] += 1
        if self._refusals[reason] <= REFUSALS_RECORDED_MAX:
            await self._record("refused", digest, reason, **facts)

    async def _record(self, action: str, digest: str, reason: str, **facts: Any) -> None:
        await self.decisions.record(PART, action, reason, digest=digest, **facts)


def _kept(digest: str, reason: str) -> Deleted:
    return Deleted(digest=digest, verdict=DeletionVerdict(allowed=False, reason=reason))


def _pinned(replies: Sequence[HolderReply]) -> bool:
    return any(reply.file is not None and bool(reply.file.pinned) for reply in replies)


async def verdict_on(plane: DataPlane, digest: str, *, held_for: str | None = None) -> DeletionVerdict:
    """Whether this node's copy would be deleted now: by what needs it, the records, and its holders."""
    artifact = await plane.manifest.artifact(digest)
    if artifact is None or not await plane.blobs.has(digest):
        return DeletionVerdict(allowed=False, reason="this node has none")
    if held_for is None:
        held_for = (await read_held(plane, (await plane.view()).cards)).get(digest, "")
    return await Deleter(plane).examine(artifact, held_for=held_for, ask=True)
