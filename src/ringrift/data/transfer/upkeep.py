"""What transfers need now and then: deliveries that are due again, and a fresh hint of what is held here."""

from __future__ import annotations

import structlog

from ringrift.data.delivery_ledger import DeliveryRecord
from ringrift.data.delivery_retries import RetryQueue, RetryRound
from ringrift.data.plane import DataPlane
from ringrift.data.transfer.service import TransferService
from ringrift.errors import Unavailable
from ringrift.runtime import Runtime

log = structlog.get_logger()

HINT_S = 300.0


class TransferUpkeep:
    """Called by whoever works in cycles; does only what is due."""

    def __init__(self, transfers: TransferService, runtime: Runtime, *, this: str) -> None:
        self._transfers, self._runtime, self._this = transfers, runtime, this
        self.retries = RetryQueue(transfers.ledger, runtime, source_node=this)
        self.retries.register_handler(self._send_again)
        self._hinted_s: float | None = None

    async def run(self) -> RetryRound:
        """Publish the hint if it is old, and try again what is due."""
        now_s = self._runtime.monotonic_s()
        if self._hinted_s is None or now_s - self._hinted_s >= HINT_S:
            await self._transfers.holdings.publish(self._this)
            self._hinted_s = now_s
        outcome = await self.retries.run_due()
        if outcome.delivered or outcome.given_up:
            log.info("transfer.retried", delivered=outcome.delivered, given_up=outcome.given_up)
        return outcome

    def came_back(self, node: str) -> None:
        """A node said that it is well: what it failed at before says nothing about it now."""
        self._transfers.health.forgive(node)

    async def _send_again(self, delivery: DeliveryRecord) -> bool:
        moved = await self._transfers.send(delivery.target_node, [delivery.data_path], priority="low")
        return not moved.failed


def upkeep_of(plane: DataPlane) -> TransferUpkeep | None:
    """Return the upkeep of a plane's transfers; None if it has none that need it."""
    try:
        transfers = plane.transfers
    except Unavailable:
        return None
    if not isinstance(transfers, TransferService):
        return None
    return TransferUpkeep(transfers, plane.runtime, this=plane.this.name)
