"""How urgent a transfer is: one scale for slots, bandwidth and order."""

from __future__ import annotations

from enum import StrEnum

from ringrift.errors import ConfigError


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
