"""What every transport promises.

A transport moves sealed files between this node and one other. Each file travels in chunks that are hashed
one by one, goes on where a broken transfer stopped, and becomes visible at the receiver only after the
receiver has read the whole of it and found its digest right. What it returns are receipts, written by the
receiver; a file without one did not arrive, whatever the transport thinks. Memory is bounded by a few
chunks, whatever the size of the file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.nodes import DataNode
from ringrift.errors import ConfigError, Unavailable

CHUNK_BYTES = 2 << 20
BYTES_PER_S_MIN = 5_000.0  # of the slowest line that is waited for: 40 kbit/s
AT_REST = "found at rest"  # the verifier of a receipt for a file that was there and was not read again


class TransferFailed(Unavailable):
    """A transfer broke; what arrived is kept, and the next attempt goes on from there."""


class Pace(Protocol):
    """Holds a transfer to its share of the line. Bytes, not bits."""

    async def spend(self, count: int) -> None:
        """Wait until *count* more bytes may go."""
        ...

    @property
    def bytes_per_s(self) -> float | None:
        """The present rate, for programs that pace themselves; None without a limit."""
        ...


class Unpaced:
    """No limit."""

    bytes_per_s: float | None = None

    async def spend(self, count: int) -> None:
        """Go at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """How far one call has come."""

    bytes_done: int
    bytes_total: int
    files_done: int
    files_total: int
    in_transit: bool = False  # bytes are on a line that somebody else watches; it is not known how many came


async def _nobody_looks(progress: TransferProgress) -> None:
    """TransferProgress that nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one call: pace, time and who watches."""

    pace: Pace = field(default_factory=Unpaced)
    timeout_s: float = 600.0  # without any progress, not in all
    on_progress: Callable[[TransferProgress], Awaitable[None]] = _nobody_looks
    read_again: bool = False  # the receiver hashes what it has already, now, before it says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What one call brought about. Files that failed are named with the reason; the others arrived."""

    receipts: tuple[Receipt, ...] = ()
    already_there: tuple[Receipt, ...] = ()  # verified there before; no byte of them went
    failed: tuple[tuple[str, str], ...] = ()  # (digest, why)
    corrupted: frozenset[str] = frozenset()  # of the failed: those whose bytes arrived, and were wrong
    lacking: frozenset[str] = frozenset()  # of the failed: those that the other node said it does not have
    bytes_sent: int = 0  # that crossed the line, without those of chunks the receiver had


class Transport(Protocol):
    """One way to move files."""

    @property
    def name(self) -> str: ...

    def reaches(self, node: DataNode) -> bool:
        """Whether the node's entry has what this transport needs."""
        ...

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        """Bring files of this node's store into *node*'s. `TransferFailed` if it cannot be reached at all."""
        ...

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        """Bring files of *node*'s store into this node's; the receipts are this node's own."""
        ...


# Why a transfer did not begin, or ended with nothing moved. Both may pass.


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


# How urgent a transfer is: one scale for slots, bandwidth and order.


class TransferPriority(StrEnum):
    """From whenever to at once."""

    BACKGROUND = "background"
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(TransferPriority).index(self)

    @property
    def share(self) -> float:
        """Multiplies what a transfer of normal priority would get of the line."""
        return _SHARES[self]


_SHARES = {
    TransferPriority.BACKGROUND: 0.25,
    TransferPriority.LOW: 0.5,
    TransferPriority.NORMAL: 1.0,
    TransferPriority.HIGH: 1.5,
    TransferPriority.CRITICAL: 2.0,
}


def priority_of(name: str) -> TransferPriority:
    try:
        return TransferPriority(str(name).lower())
    except ValueError:
        allowed = ", ".join(item.value for item in TransferPriority)
        raise ConfigError(f"priority is {name!r}; it must be one of {allowed}") from None
