"""What others are told of a sync: counts come from the receipts of the response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringrift.data.manifest_index import games_in
from ringrift.data.plane import DataPlane
from ringrift.data.sync.constants import SyncStrategy
from ringrift.data.sync.requests import SyncRequest, SyncResponse
from ringrift.data.sync.strategies import CyclePlan
from ringrift.data.sync.trips import SyncTally, TripEnd
from ringrift.events.router import get_router
from ringrift.events.unified_router import UnifiedEventRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritySync:
    """A priority sync and what came of it."""

    reason: str
    node: str
    config_key: str
    data_type: str
    response: SyncResponse


class SyncAnnouncer:
    """Publishes under the name of one component."""

    def __init__(self, source: str, *, router: UnifiedEventRouter | None = None) -> None:
        self._source, self._own_router = source, router

    async def publish(self, event: str, payload: dict[str, Any]) -> None:
        await (self._own_router or get_router()).publish(event, payload=payload, source=self._source)

    async def started(self, plane: DataPlane, request: SyncRequest, targets: Sequence[str]) -> None:
        payload = {
            "node_id": plane.this.name,
            "sync_type": "facade",
            "data_type": request.data_type,
            "targets": list(targets),
        }
        await self.publish("DATA_SYNC_STARTED", payload)

    async def cycle_started(self, plane: DataPlane, cycle: CyclePlan, *, reasons: Sequence[str]) -> None:
        trips = (*cycle.plan.fetches, *cycle.plan.sends)
        payload = {
            "node_id": plane.this.name,
            "sync_type": str(cycle.strategy),
            "data_type": "all",
            "targets": list(dict.fromkeys(trip.node for trip in trips)),
        }
        if reasons:
            payload["reason"] = reasons[0]
        await self.publish("DATA_SYNC_STARTED", payload)

    async def ended(self, plane: DataPlane, request: SyncRequest, response: SyncResponse) -> None:
        payload: dict[str, Any] = {
            "node_id": plane.this.name,
            "config_key": request.config_key,
            "targets": list(response.details["nodes"]),
        }
        if not response.success:
            error = "; ".join(response.errors[:5]) or "nothing was brought"
            await self.publish("DATA_SYNC_FAILED", {**payload, "error": error})
            return
        payload |= {
            "sync_type": response.backend_used.value,
            "games_synced": response.details["games_synced"],
            "files_synced": response.details["files_moved"],
            "bytes_transferred": response.bytes_transferred,
            "duration_seconds": response.duration_seconds,
        }
        await self.publish("DATA_SYNC_COMPLETED", payload)

    async def priority(self, outcome: PrioritySync) -> None:
        response = outcome.response
        payload: dict[str, Any] = {"config_key": outcome.config_key, "source_node": outcome.node}
        if response.success:
            games = response.details["games_synced"]
            await self.publish("PRIORITY_SYNC_COMPLETED", {**payload, "games_synced": games})
        else:
            await self.publish("PRIORITY_SYNC_FAILED", {**payload, "errors": list(response.errors)})

    async def orphans(self, outcome: PrioritySync) -> None:
        """Files that nobody else had are in safety; they are counted by their receipts."""
        payload = {
            "node_id": outcome.node,
            "registered_count": outcome.response.details["files_moved"],
            "registered_paths": list(outcome.response.details["digests_moved"]),
            "games_recovered": outcome.response.details["games_synced"],
        }
        await self.publish("ORPHAN_GAMES_REGISTERED", payload)


async def tell_cycle(
    announcer: SyncAnnouncer, plane: DataPlane, cycle: CyclePlan, ends: Sequence[TripEnd], tally: SyncTally
) -> None:
    """Tell what a cycle brought where. A cycle that failed in part did bring the rest."""
    errors = [error for end in ends for error in end.errors]
    sent = [end for end in ends if not end.trip.fetch and end.moved]
    nodes = [end.trip.node for end in ends]
    if tally.files:
        payload = {
            "node_id": plane.this.name,
            "sync_type": str(cycle.strategy),
            "games_synced": sum(tally.games.values()),
            "files_synced": tally.files,
            "bytes_transferred": tally.bytes_sent,
            "duration_seconds": max((end.seconds for end in ends), default=0.0),
            "targets": nodes,
        }
        await announcer.publish("DATA_SYNC_COMPLETED", payload)
    if errors:
        payload = {"node_id": plane.this.name, "error": "; ".join(errors[:5]), "targets": nodes}
        await announcer.publish("DATA_SYNC_FAILED", payload)
    if sent and cycle.strategy is SyncStrategy.EPHEMERAL:
        payload = {
            "node_id": plane.this.name,
            "games_pushed": sum(end.games_moved for end in sent),
            "target_nodes": [end.trip.node for end in sent],
            "is_ephemeral": plane.this.ephemeral,
        }
        await announcer.publish("GAME_SYNCED", payload)
    await _tell_landed(announcer, plane, ends)


async def _tell_landed(announcer: SyncAnnouncer, plane: DataPlane, ends: Sequence[TripEnd]) -> None:
    """Games that came to this node are new here."""
    landed: Counter[str] = Counter()
    for end in ends:
        if end.trip.fetch:
            here = {receipt.digest for receipt in end.moved}
            for artifact in end.trip.artifacts:
                landed[artifact.config] += games_in([artifact]) if artifact.digest in here else 0
    for config, games in sorted(landed.items()):
        if games and config:
            payload = {"config_key": config, "node_id": plane.this.name, "new_games": games}
            await announcer.publish("NEW_GAMES_AVAILABLE", payload)
