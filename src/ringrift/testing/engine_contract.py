"""What every engine must do, one test per promise. An adapter's tests subclass and add nothing.

A test module defines a fixture `bench` that returns an `EngineBench`; with that alone it runs all of

    class TestEvents(EventLogContract): ...
    class TestQueue(WorkQueueContract): ...
    class TestKeyValue(KeyValueContract): ...
    class TestBlobs(BlobsContract): ...
    class TestValues(PortValuesContract): ...
"""

from __future__ import annotations

from typing import Protocol

from ringrift.engine.ports import Engine
from ringrift.runtime import SystemRuntime
from ringrift.testing.engine_contract_blobs import BlobsContract
from ringrift.testing.engine_contract_events import EventLogContract
from ringrift.testing.engine_contract_kv import KeyValueContract
from ringrift.testing.engine_contract_queue import WorkQueueContract
from ringrift.testing.engine_contract_values import PortValuesContract

__all__ = [
    "BlobsContract",
    "EngineBench",
    "EventLogContract",
    "KeyValueContract",
    "PortValuesContract",
    "ShiftedRuntime",
    "WorkQueueContract",
]


class EngineBench(Protocol):
    """One store on the bench, with as many handles on it as a test wants, and a way to pass time."""

    async def open(self) -> Engine:
        """Open another handle on the same store, as another process would."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Return when the engine's clock has gone on by *seconds*."""
        ...

    async def settle(self) -> None:
        """Return when calls that were just begun wait inside the engine."""
        ...

    def now_s(self) -> float:
        """The engine's clock."""
        ...


class ShiftedRuntime(SystemRuntime):
    """The real world, with clocks that can be set forward and a wall clock that can be set back."""

    def __init__(self, *, seed: int = 0) -> None:
        self._forward_s = 0.0
        self._wall_s = 0.0
        super().__init__(seed=seed)

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._forward_s += seconds

    def jump_wall_clock(self, seconds: float) -> None:
        self._wall_s += seconds

    def wall_s(self) -> float:
        return super().wall_s() + self._forward_s + self._wall_s

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._forward_s

    def boot_s(self) -> float:
        return super().boot_s() + self._forward_s

    async def sleep(self, seconds: float) -> None:
        # In small steps, to notice that the clock was set forward.
        until_s = self.monotonic_s() + seconds
        while (left_s := until_s - self.monotonic_s()) > 0:
            await super().sleep(min(left_s, 0.01))
        await super().sleep(0)
