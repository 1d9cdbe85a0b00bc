"""Simulated time: ten hours of restarts in a second, the same for the same seed.

`SimulatedLoop` is an asyncio loop whose clock jumps to the next timer whenever nothing is ready to run, so
`asyncio.timeout`, `call_later` and `SimulatedRuntime.sleep` cost no real time. A loop with nothing to do and
no timer would wait forever; it raises `Stuck` instead, which is how a simulation finds lost wake-ups. What
goes to a thread elsewhere (`asyncio.to_thread`) runs in its turn on the loop, so that a run repeats exactly.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import signal
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ringrift.clock import ClockAnchor
from ringrift.errors import ConfigError
from ringrift.runtime import Child, Command

T = TypeVar("T")

EPOCH_S = 1_700_000_000.0  # some moment of our time: code that formats it must not meet 1970
# A blocking call runs on a loop of its own, with a time of its own, but in the context of its caller.
_simulated: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("simulated_loop", default=None)


class Stuck(AssertionError):
    """Every task waits for something that no timer and no other task will bring."""


class _JumpingSelector(selectors.BaseSelector):
    """Never waits in real time: reports ready files at once, else moves the loop's clock."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if ready := self._real.select(0):  # the loop wakes itself through a socket, also here
            return ready
        if timeout is None:
            raise Stuck("the simulated loop has nothing to run and no timer")
        self.now_s += max(timeout, 0.0)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Any:
        return self._real.get_map()


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run *func* at the next turn of the loop; simulated time stands still meanwhile."""
        assert executor is None, "a simulated loop has no threads"
        answer: asyncio.Future[T] = self.create_future()
        self.call_soon(_run_into, answer, func, args)
        return answer


def _run_into(answer: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    if answer.cancelled():  # whoever waited was cancelled before the turn came
        return
    try:
        answer.set_result(func(*args))
    except Exception as error:  # noqa: BLE001 - belongs to whoever awaits the answer
        answer.set_exception(error)


@dataclass
class SimulatedChild:
    """A program that exists only as what it says and as its exit code."""

    pid: int
    exit_code: asyncio.Future[int]
    signals: list[signal.Signals] = field(default_factory=list)
    unread: bytearray = field(default_factory=bytearray)
    said: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> int:
        return await asyncio.shield(self.exit_code)  # who gives up waiting must not end the child for others

    def signal_group(self, number: signal.Signals) -> None:
        self.signals.append(number)
        # A polite signal is only noted: the test decides what the program makes of it.
        if number is signal.SIGKILL:
            self.exit(-int(number))

    async def read(self, size: int) -> bytes:
        await self.said.wait()
        chunk = bytes(self.unread[:size])
        del self.unread[:size]
        if not self.unread and not self.exit_code.done():
            self.said.clear()
        return chunk

    def stop_reading(self) -> None:
        self.said.set()

    def say(self, text: bytes) -> None:
        """Write to stdout."""
        self.unread += text
        self.said.set()

    def exit(self, code: int) -> None:
        """End the program, as a crash or as a clean exit."""
        if not self.exit_code.done():
            self.exit_code.set_result(code)
        self.said.set()


class SimulatedRuntime:
    """A world of its own: seeded randomness, the loop's clock, children that are only told about.

    `wall_offset_s` may be changed at any time to make the wall clock jump; once an engine is used, that
    changes nothing for `now_s`.
    """

    def __init__(self, *, seed: int = 0, hostname: str = "sim", pid: int = 1) -> None:
        self.hostname, self.pid = hostname, pid
        self.rng = random.Random(seed)
        self.wall_offset_s = EPOCH_S
        self.boot_id = "simulated"
        self._anchor: ClockAnchor | None = None
        self.children: list[tuple[Command, SimulatedChild]] = []
        self._ids = 0

    def now_s(self) -> float:
        return self.wall_s() if self._anchor is None else self._anchor.at(self.boot_s())

    def wall_s(self) -> float:
        return self.wall_offset_s + self.monotonic_s()

    def boot_s(self) -> float:
        return self.monotonic_s()

    def keep_time(self, anchor: ClockAnchor) -> None:
        self._anchor = self._anchor or anchor

    def monotonic_s(self) -> float:
        return (_simulated.get() or asyncio.get_running_loop()).time()

    def new_id(self) -> str:
        self._ids += 1
        # The process is part of it: two with one seed must not make the same id.
        return f"{self.rng.getrandbits(32):08x}-0000-4000-a000-{self.pid % 0xFFFF:04x}{self._ids:08x}"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251 - under a SimulatedLoop this costs no real time

    async def spawn(self, command: Command) -> Child:
        child = SimulatedChild(1000 + len(self.children), asyncio.get_running_loop().create_future())
        self.children.append((command, child))
        return child


def simulate(main: Coroutine[Any, Any, T], *, limit_s: float = 1e9) -> T:
    """Run *main* in simulated time; fail when it needs more than *limit_s* simulated seconds."""
    if limit_s <= 0:
        raise ConfigError(f"limit_s is {limit_s!r}; it must be above 0")

    async def bounded() -> T:
        _simulated.set(asyncio.get_running_loop())
        async with asyncio.timeout(limit_s):
            return await main

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(bounded())


class ManualRuntime(SimulatedRuntime):
    """Clocks that move only when told, for code that is driven without a loop of simulated time."""

    def __init__(self, *, seed: int = 0, hostname: str = "sim", pid: int = 1) -> None:
        super().__init__(seed=seed, hostname=hostname, pid=pid)
        self.clock_s = 0.0

    def monotonic_s(self) -> float:
        return self.clock_s

    def advance(self, seconds: float) -> None:
        self.clock_s += seconds
