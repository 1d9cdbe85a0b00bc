"""Why a transfer did not begin, or ended with nothing moved. Both may pass."""

from __future__ import annotations

from ringrift.data.transfer.contract import TransferFailed
from ringrift.errors import Unavailable


class TransferRefused(Unavailable):
    """It was not begun: the node is left alone after failures, or no slot or bandwidth came free in time."""

    def __init__(self, node: str, *, reason: str, retry_after_s: float) -> None:
        super().__init__(f"nothing moves to or from {node} now: {reason}", retry_after_s=retry_after_s)
        self.node, self.reason = node, reason


class NodeUnreachable(TransferFailed):
    """No transport reached the node."""

    def __init__(self, node: str, *, attempts: tuple[tuple[str, str], ...], retry_after_s: float) -> None:
        told = "; ".join(f"{transport}: {why}" for transport, why in attempts)
        told = told or "every way to it failed not long ago"
        super().__init__(f"{node} cannot be reached ({told})", retry_after_s=retry_after_s)
        self.node, self.attempts = node, attempts
