"""What others are told of a sync: counts come from the receipts of the response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringrift.data.plane import DataPlane
from ringrift.data.sync.requests import SyncRequest, SyncResponse
from ringrift.events.router import get_router
from ringrift.events.unified_router import UnifiedEventRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A priority sync and what came of it."""

    reason: str
    node: str
    config_key: str
    data_type: str
    response: SyncResponse


class Announcer:
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

    async def priority(self, outcome: Outcome) -> None:
        response = outcome.response
        payload: dict[str, Any] = {"config_key": outcome.config_key, "source_node": outcome.node}
        if response.success:
            games = response.details["games_synced"]
            await self.publish("PRIORITY_SYNC_COMPLETED", {**payload, "games_synced": games})
        else:
            await self.publish("PRIORITY_SYNC_FAILED", {**payload, "errors": list(response.errors)})

    async def orphans(self, outcome: Outcome) -> None:
        """Files that nobody else had are in safety; they are counted by their receipts."""
        payload = {
            "node_id": outcome.node,
            "registered_count": outcome.response.details["files_moved"],
            "registered_paths": list(outcome.response.details["digests_moved"]),
            "games_recovered": outcome.response.details["games_synced"],
        }
        await self.publish("ORPHAN_GAMES_REGISTERED", payload)
