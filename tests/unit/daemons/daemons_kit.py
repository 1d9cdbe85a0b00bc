"""What the tests of the daemon room share: a manager in simulated time and daemons with every bad habit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons.reactions import EventBus
from ringrift.daemons.registry import DaemonSpec, Registry
from ringrift.daemons.restarts import LedgerStore
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.runtime import Runtime
from ringrift.testing.simulation import SimulatedRuntime, simulate

HOUR_S = 3600.0


async def at_once(function: Callable[[], Any]) -> Any:
    """Run a health check on the loop; simulated time has no threads."""
    return function()


def own_type(name: str) -> DaemonType:
    return DaemonType.register(name)


def make_manager(
    *,
    runtime: Runtime | None = None,
    bus: EventBus | None = None,
    ledger: LedgerStore | None = None,
    registry: Registry | None = None,
    node_id: str = "here",
    memory_percent: float = 10.0,
    **config: Any,
) -> DaemonManager:
    return DaemonManager(
        DaemonManagerConfig(**{"loop_watchdog": False, **config}),
        runtime=runtime or SimulatedRuntime(),
        registry=registry,
        bus=bus,
        ledger=ledger,
        node_id=node_id,
        memory_percent=lambda: memory_percent,
        offload=at_once,
    )


class Election:
    """What the store would say of who leads."""

    def __init__(self, manager: DaemonManager) -> None:
        self.leads = True
        manager.reactions.leads = self._look

    async def _look(self) -> bool:
        return self.leads


class Pressure:
    """What QUEUE_MONITOR would have measured."""

    def __init__(self, manager: DaemonManager, reason: str = "") -> None:
        self.reason = reason
        manager.reactions.pressure = self._look

    async def _look(self) -> str:
        return self.reason


def rows(*specs: DaemonSpec) -> Registry:
    return Registry(specs)


def in_simulation(main: Callable[[], Awaitable[Any]]) -> Any:
    async def body() -> Any:
        return await main()

    return simulate(body())


class Steady:
    """A daemon without faults that counts what happens to it."""

    def __init__(self) -> None:
        self.lives = 0
        self.alive = 0
        self.most_alive = 0
        self.paused = False
        self.healthy: Any = True
        self.health_checks = 0

    def __call__(self) -> Steady:
        return self

    async def run(self, *, on_ready: Callable[[], None]) -> None:
        self.lives += 1
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        try:
            on_ready()
            await asyncio.get_running_loop().create_future()
        finally:
            self.alive -= 1

    def health_check(self) -> Any:
        self.health_checks += 1
        return self.healthy

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Crasher:
    """Runs for a while, then raises."""

    def __init__(self, error: BaseException | None = None, *, after_s: float = 0.0) -> None:
        self.error = error or RuntimeError("broken")
        self.after_s = after_s
        self.starts: list[float] = []

    async def __call__(self) -> None:
        self.starts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.after_s)
        raise self.error


class Stubborn:
    """Swallows every cancellation until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.lives = 0

    async def __call__(self) -> None:
        self.lives += 1
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue
