"""The engine in memory: deterministic, without threads, the reference for the contract.

Several engine handles may open one store: a simulation crashes a handle and keeps the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ringrift.clock import ClockAnchor, new_anchor
from ringrift.engine.limits import EngineLimits
from ringrift.engine.memory.queue import MemoryWorkQueue, QueueState
from ringrift.engine.memory.stores import (
    BlobState,
    EventState,
    Handle,
    KvState,
    MemoryBlobs,
    MemoryEventLog,
    MemoryKeyValue,
)
from ringrift.engine.ports import Engine, Entry
from ringrift.engine.waiting import EngineClock, Topics
from ringrift.engine.work_rules import HOLDS, WORK_LEASES
from ringrift.runtime import Runtime

__all__ = ["MemoryStore", "memory_engine"]


@dataclass(slots=True)
class MemoryStore:
    """What a database would hold; it outlives the handles that use it."""

    limits: EngineLimits = field(default_factory=EngineLimits)
    events: EventState = field(default_factory=EventState)
    queue: QueueState = field(default_factory=QueueState)
    kv: KvState = field(default_factory=KvState)
    blobs: BlobState = field(default_factory=BlobState)
    topics: Topics = field(default_factory=Topics)
    anchor: ClockAnchor | None = None


def memory_engine(runtime: Runtime, store: MemoryStore | None = None) -> Engine:
    """Return a handle on *store*, or on a store of its own."""
    store = store or MemoryStore()
    handle = Handle(
        runtime,
        store.topics,
        store.limits,
        make_clock=lambda: _clock(runtime, store),
        entry=store.kv.live.get,
    )

    # Read at each claim, as the other adapter does: a hold of another handle counts at once.
    def holds() -> list[Entry]:
        return [*store.kv.under(HOLDS), *store.kv.under(WORK_LEASES)]

    return Engine(
        events=MemoryEventLog(handle, store.events),
        queue=MemoryWorkQueue(handle, store.queue, holds=holds),
        kv=MemoryKeyValue(handle, store.kv),
        blobs=MemoryBlobs(handle, store.blobs),
        lifecycle=handle,
    )


def _clock(runtime: Runtime, store: MemoryStore) -> EngineClock:
    """Made at the first call, as a simulated clock stands only inside its loop."""
    if store.anchor is None:
        store.anchor = new_anchor(
            boot=runtime.boot_id, boot_s=runtime.boot_s(), now_s=runtime.now_s(), last_s=None
        )
    return EngineClock(runtime, store.anchor)
