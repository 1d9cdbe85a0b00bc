"""Work items as they are stored on JetStream, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.nats.stream import Stored, damaged, token_of
from ringrift.engine.ports import Claimant, WorkState
from ringrift.engine.work_rules import ENDED, HeldWork, why_dependents_die

T = TypeVar("T")

NOTHING = msgspec.Raw(b"null")


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An item as it is stored, all of it but large contents."""

    seq: int
    id: str
    kind: str
    state: WorkState
    payload: msgspec.Raw  # nothing where it lies apart
    trace: msgspec.Raw
    attempts_max: int
    not_before_s: float
    added_s: float
    changed_s: float
    priority: int = 0
    requires: frozenset[str] = frozenset()
    node: str | None = None
    group: str = ""
    after: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()  # those of `after` that are not done
    key: str | None = None
    attempts: int = 0
    holder: str | None = None
    token: int = 0
    lease_until_s: float | None = None
    payload_apart: bool = False
    result: msgspec.Raw = NOTHING
    result_apart: bool = False
    error: str | None = None

    def fits(self, claimant: Claimant, now_s: float, held: HeldWork) -> bool:
        return (
            self.state is WorkState.READY
            and not held.holds(self.group, self.kind)
            and self.not_before_s <= now_s
            and (claimant.kinds is None or self.kind in claimant.kinds)
            and self.kind not in claimant.except_kinds
            and self.node in (None, claimant.node)
            and self.requires <= claimant.capabilities
        )


class QueueHead(msgspec.Struct, omit_defaults=True):
    """The numbers of the queue."""

    seq: int = 0  # of the last item that was added
    token: int = 0
    ended: dict[str, dict[str, int]] = {}  # how many, by kind and state

    def items_ended(self) -> int:
        return sum(count for by_state in self.ended.values() for count in by_state.values())


@dataclass(frozen=True, slots=True)
class WorkPlaces:
    """The subjects of a queue. An item moves when it ends, so that ends can be read in their order."""

    prefix: str

    @property
    def head(self) -> str:
        return f"{self.prefix}.head"

    @property
    def holds(self) -> str:
        """Changes with everything that keeps work from being claimed."""
        return f"{self.prefix}.holds"

    @property
    def unended(self) -> str:
        return f"{self.prefix}.i.>"

    def ended(self, state: str = "*", item_id: str | None = None) -> str:
        return f"{self.prefix}.e.{state}.{'*' if item_id is None else token_of(item_id)}"

    def item(self, item_id: str, state: WorkState) -> str:
        return self.ended(state.value, item_id) if state in ENDED else f"{self.prefix}.i.{token_of(item_id)}"

    def key(self, key: str) -> str:
        return f"{self.prefix}.n.{token_of(key)}"

    def payload(self, item_id: str) -> str:
        return f"{self.prefix}.p.{token_of(item_id)}"

    def result(self, item_id: str) -> str:
        return f"{self.prefix}.r.{token_of(item_id)}"

    def apart(self, item: Item) -> list[str]:
        """Where large contents of *item* lie."""
        found = [self.payload(item.id)] if item.payload_apart else []
        return [*found, self.result(item.id)] if item.result_apart else found


def settle_by_needs(item: Item, needs: Sequence[Item]) -> None:
    """Its state, by what it needs."""
    states = {need.state for need in needs}
    item.waits_for = tuple(need.id for need in needs if need.state is not WorkState.DONE)
    if states & {WorkState.DEAD, WorkState.CANCELLED}:
        dead = first_dead(needs)
        item.state, item.error = WorkState.DEAD, why_dependents_die(dead.id, dead.state)
    else:
        item.state = WorkState.BLOCKED if item.waits_for else WorkState.READY


def first_dead(needs: Sequence[Item]) -> Item:
    dead = [need for need in needs if need.state in (WorkState.DEAD, WorkState.CANCELLED)]
    return min(dead, key=lambda need: need.seq)


def decoded(stored: Stored, kind: type[T]) -> T:
    """What *stored* holds; `Corrupt` with its place for anything else."""
    try:
        return decode_as(stored.data, kind)
    except UNREADABLE as error:
        raise damaged(f"{stored.subject} {stored.seq}", error) from None
