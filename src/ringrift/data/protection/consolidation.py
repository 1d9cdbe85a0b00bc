"""DATA_CONSOLIDATION: many small shards become few large ones, by a job for a worker.

This part decides which shards belong together, orders the `consolidate` job, and notes when it ended well:
the merged shard holds everything of its sources. Those stay until enough verified copies of the merged shard
exist; then they go one by one through `deletion`, as everything else does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.manifest.catalog import card_of
from ringrift.data.plane import DaemonParts, DataPlane, WakingDaemon, daemon_factory
from ringrift.data.protection.deletion import Deleter, DeletionRules
from ringrift.data.protection.records import DeletionRecords, Quarantine, Successor
from ringrift.data.protection.replication import holders
from ringrift.data.protection.retention import read_held
from ringrift.data.transactions import OperationType, TransactionLog
from ringrift.decoding import convert_to
from ringrift.engine.ports import EndedWork, NewWork, WorkState
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.work.job.protocol import INPUTS, OUT, JobArtifact, JobOrder, read_order, read_report

__all__ = [
    "ConsolidationDaemon",
    "ConsolidationRules",
    "DataConsolidationDaemon",
    "ShardBatch",
    "consolidation_order",
    "create_consolidation_daemon",
    "plan",
]

log = structlog.get_logger()

KIND = "consolidate"
PART = "consolidation"
INTERVAL_S = 300.0
PRIORITY = -10  # whatever learns comes first
_CURSOR = "data/consolidation/"
_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationRules:
    """Which shards are small, and when merging them is worth a job."""

    small_games: int = 1_000
    games_min: int = 50
    shards_min: int = 4
    shards_max: int = 100
    games_max: int = 20_000
    copies_min: int = 2
    jobs_max: int = 3  # open at the same time
    debounce_s: float = 60.0  # between two jobs of one config

    def __post_init__(self) -> None:
        if not 2 <= self.shards_min <= self.shards_max:
            raise ConfigError("consolidation needs 2 <= shards_min <= shards_max")
        if not 0 < self.games_min <= self.games_max:
            raise ConfigError("consolidation needs 0 < games_min <= games_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBatch:
    """Shards that belong together."""

    config: str
    shards: tuple[Artifact, ...]
    reason: str

    @property
    def games(self) -> int:
        return sum(shard.games for shard in self.shards)

    @property
    def key(self) -> str:
        """The same for the same shards."""
        return hashlib.sha256("".join(sorted(each.digest for each in self.shards)).encode()).hexdigest()


def plan(
    shards: Iterable[Artifact], rules: ConsolidationRules, *, nodes_able: int, resting: Collection[str] = ()
) -> list[ShardBatch]:
    """Put small shards of one config together, the oldest first.

    With fewer nodes than the result needs copies the sources could never go: merging would only cost disk.
    """
    if nodes_able < rules.copies_min:
        return []
    groups: dict[str, list[Artifact]] = {}
    for shard in sorted(shards, key=lambda each: (each.created_s, each.digest)):
        if shard.kind is ArtifactKind.GAMES and 0 < shard.games < rules.small_games and shard.config:
            groups.setdefault(shard.config, []).append(shard)
    batches = []
    for config, members in groups.items():
        taken: list[Artifact] = []
        for shard in members:
            if len(taken) == rules.shards_max or sum(s.games for s in taken) + shard.games > rules.games_max:
                break
            taken.append(shard)
        games = sum(shard.games for shard in taken)
        if config in resting or len(taken) < rules.shards_min or games < rules.games_min:
            continue
        reason = f"{len(taken)} shards of {games} games, each below {rules.small_games}"
        batches.append(ShardBatch(config=config, shards=tuple(taken), reason=reason))
    return batches


def consolidation_order(batch: ShardBatch) -> JobOrder:
    """The job that merges a batch."""
    inputs = {f"{number:04d}.shard.db": shard.digest for number, shard in enumerate(batch.shards)}
    params = {
        "config": batch.config,
        "shards": [f"{INPUTS}/{name}" for name in inputs],
        "out": OUT,
        "name": f"merged-{batch.key[:16]}",
    }
    return JobOrder(config=batch.config, params=params, inputs=inputs, purpose=PART)


class ConsolidationDaemon(WakingDaemon):
    """Orders merges, takes their results in, and lets sources go when it is safe."""

    capability: ClassVar[str] = "consolidation"
    emits: ClassVar[tuple[str, ...]] = ("CONSOLIDATION_STARTED", "CONSOLIDATION_COMPLETE")

    def __init__(self, *, rules: ConsolidationRules | None = None, **parts: Unpack[DaemonParts]) -> None:
        super().__init__("data_consolidation", interval_s=INTERVAL_S, **parts)
        self.rules = rules or ConsolidationRules()
        self._ordered_s: dict[str, float] = {}
        self.merged_shards = self.merged_games = self.sources_deleted = 0
        self._looked_s = -math.inf

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"SELFPLAY_COMPLETE": self._on_games}

    def _on_games(self, _event: RouterEvent) -> None:
        """Look again, but not after every job: nothing is ordered more often than this anyway."""
        if self._runtime.monotonic_s() - self._looked_s >= self.rules.debounce_s:
            self.wake()

    async def _run_cycle(self) -> None:
        self._looked_s = self._runtime.monotonic_s()
        plane = await self._opened()
        await self._take_ends(plane)
        await self._release_sources(plane)
        await self._order(plane)

    # --- ordering -------------------------------------------------------------------------------------

    async def _order(self, plane: DataPlane) -> None:
        counts = (await plane.queue.counts()).get(KIND, {})
        free = self.rules.jobs_max - sum(
            counts.get(state, 0) for state in (WorkState.READY, WorkState.CLAIMED)
        )
        if free <= 0:
            return
        batches = plan(
            await self._cold_shards(plane),
            self.rules,
            nodes_able=len(holders(plane.nodes.all(), ArtifactKind.GAMES)),
            resting=self._resting(),
        )
        for batch in batches[:free]:
            work = NewWork(
                kind=KIND,
                payload=consolidation_order(batch).as_payload(),
                priority=PRIORITY,
                group=batch.config,
                idempotency_key=f"{KIND}/{batch.key}",
            )
            await plane.queue.add([work])
            self._ordered_s[batch.config] = self._runtime.monotonic_s()
            log.info("consolidation.ordered", config=batch.config, reason=batch.reason)
            await self.router.publish("CONSOLIDATION_STARTED", {"config_key": batch.config}, self.name)

    def _resting(self) -> set[str]:
        since_s = self._runtime.monotonic_s() - self.rules.debounce_s
        return {config for config, ordered_s in self._ordered_s.items() if ordered_s > since_s}

    async def _cold_shards(self, plane: DataPlane) -> list[Artifact]:
        """Shards of this node that nothing needs under their own name, and that live on nowhere else yet."""
        manifest = await plane.view()
        held, here = await read_held(plane, manifest.cards), manifest.receipts_at(plane.this.name)
        left_out = {*held, *await plane.successors(), *await Quarantine(plane).marked()}
        return [each for each in manifest.cards if each.digest in here and each.digest not in left_out]

    # --- taking results in ----------------------------------------------------------------------------

    async def _take_ends(self, plane: DataPlane) -> None:
        cursors, this = KvRecords(plane.kv, _CURSOR, int), plane.this.name
        number = await cursors.get(this) or 0
        while ends := await plane.queue.ended(after=number, limit=_PAGE):
            for end in ends:
                if end.item.kind == KIND and end.item.state is WorkState.DONE:
                    await self._take_end(plane, end)
            number = ends[-1].number
            await cursors.put(this, number)

    async def _take_end(self, plane: DataPlane, end: EndedWork) -> None:
        """Register the merged shard first, then name it the successor of its sources; both may repeat."""
        try:
            order, report = read_order(end.item.payload), read_report(end.item.result or {})
        except ConfigError as error:
            log.error("consolidation.unreadable_end", item=end.item.id, error=str(error))
            return
        made = next((each for each in report.artifacts if each.kind == ArtifactKind.GAMES.value), None)
        sources = _sources(order, report.fields)
        if made is None or not sources:
            log.error("consolidation.nothing_merged", item=end.item.id)
            return
        transactions = TransactionLog(kv=plane.kv, runtime=plane.runtime)
        metadata = {"work": end.item.id, "merged": made.digest}
        async with transactions.transaction(report.node, plane.this.name, PART, metadata) as name:
            for digest in (*sources, made.digest):
                await transactions.add_operation_async(name, OperationType.KEEP, f"blob:{digest}")
            await self._register(plane, order.config, made, made_s=end.item.changed_s)
            records = DeletionRecords(plane.kv)
            for digest in sources:
                reason = f"merged with {len(sources) - 1} others by work item {end.item.id}"
                at_s = plane.runtime.now_s()
                named = Successor(digest=digest, successor=made.digest, reason=reason, at_s=at_s)
                await records.name_successor(named)
        await transactions.commit_async(name)
        self.merged_shards += len(sources)
        self.merged_games += int(made.counts.get("games", 0))
        payload = {
            "config_key": order.config,
            "canonical_db": f"blob:{made.digest}",
            "games_merged": int(made.counts.get("games", 0)),
            "total_games": int(made.counts.get("games", 0)),
        }
        await self.router.publish("CONSOLIDATION_COMPLETE", payload, self.name)

    async def _register(self, plane: DataPlane, config: str, made: JobArtifact, *, made_s: float) -> None:
        card = card_of(made, config=config, node=plane.this.name, created_s=made_s)
        await plane.manifest.register([replace(card, config=config)])
        if not await plane.blobs.has(made.digest):
            return  # another node's worker made it; its own receipt says so
        begun_s = plane.runtime.now_s()
        await plane.blobs.verify(made.digest)
        await plane.note_copy(made.digest, PART, verified_s=begun_s)

    # --- letting go -----------------------------------------------------------------------------------

    async def _release_sources(self, plane: DataPlane) -> None:
        deleter = Deleter(plane, rules=DeletionRules(copies_min=self.rules.copies_min, age_s_min=0.0))
        artifacts = (await plane.view()).artifacts
        held = await read_held(plane, artifacts.values())
        for digest, successor in (await plane.successors()).items():
            artifact = artifacts.get(digest)
            if artifact is None or not await plane.blobs.has(digest):
                continue
            verdict = await deleter.examine(artifact, held_for=held.get(digest, ""))
            if verdict.allowed:
                why, pins = successor.reason, held.get(digest, "")
                done = await deleter.delete(artifact, why=why, by=PART, held_for=pins)
                self.sources_deleted += done.verdict.allowed

    def get_status(self) -> dict[str, Any]:
        counts = {
            "shards_merged": self.merged_shards,
            "games_merged": self.merged_games,
            "sources_deleted": self.sources_deleted,
        }
        return {**super().get_status(), **counts}


DataConsolidationDaemon = ConsolidationDaemon


def _sources(order: JobOrder, fields: Mapping[str, Any]) -> list[str]:
    """What the job says it merged, as far as it was asked to; a foreign program may say anything."""
    given = set(order.inputs.values())
    try:
        claimed = convert_to(fields.get("sources", ()), tuple[str, ...])
    except msgspec.ValidationError:
        return []
    return [digest for digest in claimed if digest in given]


create_consolidation_daemon = daemon_factory(lambda _: ConsolidationDaemon)
