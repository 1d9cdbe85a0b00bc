"""How the line is shared out: limits, what a host can take, and the answer to one request.

All rates are KB/s of 1,000 bytes, as the public API has them; `allocated_mbps` is Mbit/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import msgspec

from ringrift.data.nodes import DataNode
from ringrift.data.transfer.pacing import BYTES_PER_KB, KBPS_PER_MBPS
from ringrift.data.transfer.priorities import TransferPriority
from ringrift.errors import ConfigError

PROVIDER_KBPS = {
    "lambda": 100_000,
    "vast": 50_000,
    "runpod": 100_000,
    "vultr": 25_000,
    "nebius": 50_000,
    "hetzner": 100_000,
    "local": 100_000,
}
HOST_KBPS = {"gh200*": 312_500, "*-gh200*": 312_500}


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthLimits:
    """KB/s, counts and seconds."""

    max_kbps: int = 150_000  # of one transfer
    min_kbps: int = 1_000  # less is not worth beginning
    per_host_kbps: int = 50_000
    total_kbps: int = 300_000
    concurrent_per_host: int = 5
    concurrent_total: int = 12
    expires_s: float = 3_600.0

    def __post_init__(self) -> None:
        rates = 0 < self.min_kbps <= self.per_host_kbps <= self.total_kbps and self.min_kbps <= self.max_kbps
        counts = 1 <= self.concurrent_per_host <= self.concurrent_total
        if not rates or not counts or self.expires_s <= 0:
            raise ConfigError("bandwidth limits must hold: 0 < min <= per host <= total, min <= max")


class BandwidthAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the line, or why there is none."""

    host: str
    granted: bool
    allocation_id: str = ""
    allocated_kbps: int = 0
    priority: TransferPriority = TransferPriority.NORMAL
    estimated_mb: float = 0.0
    granted_at: float = 0.0
    expires_at: float = 0.0
    reason: str = ""

    @property
    def allocated_mbps(self) -> float:
        return self.allocated_kbps / KBPS_PER_MBPS

    @property
    def bytes_per_s(self) -> float:
        return float(self.allocated_kbps * BYTES_PER_KB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for a share."""

    id: str
    host: str
    host_kbps: int  # what the host can take in all
    priority: TransferPriority
    estimated_mb: float = 0.0
    limit_kbps: float | None = None  # the caller wants no more


def host_limit_kbps(node: DataNode | None, name: str, limits: BandwidthLimits) -> int:
    """What a host can take: its own entry, then its name, then its provider, then the usual."""
    if node is not None and node.bandwidth_mbps > 0:
        return max(limits.min_kbps, round(node.bandwidth_mbps * KBPS_PER_MBPS))
    for pattern, kbps in HOST_KBPS.items():
        if fnmatch(name.lower(), pattern):
            return kbps
    provider = "" if node is None else node.provider
    return PROVIDER_KBPS.get(provider, limits.per_host_kbps)


def answer(
    ask: Ask, present: Sequence[BandwidthAllocation], limits: BandwidthLimits, now_s: float
) -> BandwidthAllocation:
    """Grant a share that fits the limits of the host and of all, or say why not."""
    live = [item for item in present if item.expires_at > now_s]
    there = [item for item in live if item.host == ask.host]
    refused = BandwidthAllocation(host=ask.host, granted=False, priority=ask.priority)
    if len(there) >= limits.concurrent_per_host:
        return _because(refused, f"Max concurrent transfers per host ({limits.concurrent_per_host})")
    if len(live) >= limits.concurrent_total:
        return _because(refused, f"Max concurrent transfers total ({limits.concurrent_total})")
    left_at_host = ask.host_kbps - sum(item.allocated_kbps for item in there)
    left = limits.total_kbps - sum(item.allocated_kbps for item in live)
    wanted = min(ask.host_kbps * ask.priority.share, limits.max_kbps)
    share = min(wanted, left_at_host, left)
    # A caller may ask for less than the least that is worth beginning; the line cannot offer less.
    if share < limits.min_kbps:
        return _because(refused, "Insufficient bandwidth available")
    if ask.limit_kbps is not None:
        share = max(1.0, min(share, ask.limit_kbps))
    return BandwidthAllocation(
        host=ask.host,
        granted=True,
        allocation_id=ask.id,
        allocated_kbps=int(share),
        priority=ask.priority,
        estimated_mb=ask.estimated_mb,
        granted_at=now_s,
        expires_at=now_s + limits.expires_s,
    )


def _because(refused: BandwidthAllocation, reason: str) -> BandwidthAllocation:
    return msgspec.structs.replace(refused, reason=reason)
