"""Which receipts count as copies, and why the others do not.

Whoever deletes or repairs asks here, so that nothing is deleted because of a copy that nobody would repair
from. A copy counts if a node that stays read all of it not too long ago and has not given it up since.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ringrift.data.artifacts import Receipt
from ringrift.data.deletion_records import Tombstone
from ringrift.data.nodes import DataNodes
from ringrift.errors import ConfigError

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRules:
    """When a receipt is too old, or from too far in the future, to count."""

    receipt_age_s_max: float = 30 * DAY_S  # scrubbing renews receipts well before
    clock_skew_s_max: float = DAY_S

    def __post_init__(self) -> None:
        if self.receipt_age_s_max <= 0 or self.clock_skew_s_max <= 0:
            raise ConfigError("receipt_age_s_max and clock_skew_s_max must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The copies of one artifact."""

    counted: tuple[Receipt, ...] = ()
    discounted: tuple[tuple[Receipt, str], ...] = ()  # with the reason
    shares: Mapping[str, str] = field(default_factory=dict)  # node: the disk it shares with others

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(receipt.node for receipt in self.counted)

    @property
    def sources(self) -> tuple[str, ...]:
        """Nodes to get it from: those that count first, then those that may have it still."""
        return self.nodes + tuple(receipt.node for receipt, why in self.discounted if why != GIVEN_UP)

    def besides(self, node: str) -> int:
        """How many copies count if *node* is gone."""
        return sum(receipt.node != node for receipt in self.counted)

    def if_deleted_by(self, node: str) -> tuple[str, ...]:
        """Whose copies count if *node* deletes its file; those who share its disk lose it too."""
        share = self.shares.get(node)
        return tuple(
            name for name in self.nodes if name != node and (share is None or self.shares.get(name) != share)
        )


def is_given_up(receipt: Receipt, tombstone: Tombstone | None, nodes: DataNodes) -> bool:
    """Whether the copy was deleted since, by its node or by one that shares its disk."""
    return tombstone is not None and any(
        tombstone.covers(receipt, given_up_by=name) for name in nodes.sharing(receipt.node)
    )


GIVEN_UP = "it was deleted there"
AWAY = "the node does not answer"
EPHEMERAL = "the node may vanish at any moment"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """What is needed to judge receipts: the nodes, who is away, and the time."""

    nodes: DataNodes
    now_s: float
    away: frozenset[str] = frozenset()
    away_since: Mapping[str, float] = field(default_factory=dict)  # what was read there later counts
    rules: CopyRules = field(default_factory=CopyRules)

    def of(self, receipts: Iterable[Receipt], tombstone: Tombstone | None = None) -> Copies:
        """Judge the receipts of one artifact."""
        counted: list[Receipt] = []
        discounted: list[tuple[Receipt, str]] = []
        shares: dict[str, str] = {}  # a share is one copy, however many nodes see it
        for receipt in sorted(receipts, key=lambda each: each.node):
            why = self._discount(receipt, tombstone) or self._shared(receipt, shares)
            if why:
                discounted.append((receipt, why))
            else:
                counted.append(receipt)
        return Copies(counted=tuple(counted), discounted=tuple(discounted), shares=self.nodes.shares)

    def _discount(self, receipt: Receipt, tombstone: Tombstone | None) -> str:
        if is_given_up(receipt, tombstone, self.nodes):
            return GIVEN_UP
        if receipt.node not in self.nodes:
            return "the config file has no node of that name"
        node = self.nodes[receipt.node]
        if not node.active:
            return f"the node is {node.status}"
        if node.name in self.away or receipt.verified_s <= self.away_since.get(node.name, -math.inf):
            return AWAY
        if node.ephemeral:
            return EPHEMERAL
        age_s = self.now_s - receipt.verified_s
        if age_s > self.rules.receipt_age_s_max:
            return f"it was last read {age_s / DAY_S:.0f} days ago"
        if age_s < -self.rules.clock_skew_s_max:
            return "it was read in the future: a clock is wrong"
        return ""

    def _shared(self, receipt: Receipt, shares: dict[str, str]) -> str:
        share = self.nodes[receipt.node].nfs
        if not share:
            return ""
        first = shares.setdefault(share, receipt.node)
        return "" if first == receipt.node else f"it is the same file as {first}'s"
