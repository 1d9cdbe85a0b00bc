"""A machine in simulated time on which the manager runs daemons as a default run does.

Beside it lie other nodes within reach. A test starts a daemon through the manager, brings about what the
daemon is for, and compares what happens with the daemon, without it, and with it again.
"""

from importlib import import_module

import msgspec
from guards_world import World, nodes

from ringrift.cli.learning.decisions import stopped_beside
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.run_coordinator import get_loop_waker
from ringrift.daemons.registry import product_registry
from ringrift.daemons.requests import DaemonRequest, DaemonRequests, DaemonVerb
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.data.plane import DataPlane
from ringrift.engine.opening import get_engine, shared_engine
from ringrift.learning.plan.stages import StageMembers
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime
from ringrift.testing.simulation import SimulatedRuntime, simulate

HOUR_S = 3_600.0
LOOK_EVERY_S = 5.0
PATIENCE = 20  # a machine that is busy may do in real time much later what it does
# Not under test here, and it would order work of its own.
LOOP = DaemonType.DATA_PIPELINE


class Levers:
    """A machine with the manager of its daemons: what happens with one of them, and what without it."""

    async def start(self, name):
        for each in needed({name}):
            assert await self.manager.start(each), self.manager.why(each)

    async def leads(self):
        return True

    async def ask(self, kv, request):
        """Have the manager carry *request* out, as a person would."""
        await DaemonRequests(kv).ask(msgspec.structs.replace(request, at_s=self.runtime.now_s()))

        async def is_done():
            return (found := await DaemonRequests(kv).get(request.daemon)).done_s is not None and found

        assert await self.happens(is_done, HOUR_S)
        assert not (await is_done()).problem

    async def happens(self, effect, within_s):
        """Whether *effect* comes about in time: an async function, or one that says what there is."""
        until_s = self.runtime.monotonic_s() + within_s
        while self.runtime.monotonic_s() < until_s:
            if await effect():
                return True
            await self.runtime.sleep(LOOK_EVERY_S)
        return False

    async def shows_lever(self, name, cause, *, within_s=2 * HOUR_S):
        """With the daemon what *cause* is the cause of happens, without it not, and with it again.

        *cause* is given a number, brings the cause about, and returns an async function that says whether
        what should follow has happened.
        """
        daemon = DaemonType(name)
        await self.start(name)
        in_time_s = PATIENCE * within_s
        assert await self.happens(await cause(1), in_time_s), "with it, the machine does the thing"
        kv = (await get_engine()).kv
        await self.manager.serve_requests(kv, self.leads)
        await self.ask(kv, DaemonRequest(daemon=name, want=DaemonVerb.STOP, by="anna", reason="to see"))
        second = await cause(2)
        assert not await self.happens(second, within_s), "without it, it does not"
        told = stopped_beside([], await DaemonRequests(kv).stops())[name]
        assert told.startswith(f"{name.upper()} is stopped: anna, to see (since "), "and `explain` says why"
        assert product_registry()[daemon].about in told, "and what is not done meanwhile"
        await self.ask(kv, DaemonRequest(daemon=name, want=DaemonVerb.START))
        assert await self.happens(second, in_time_s), "with it again, it does"


class Machine(Levers, World):
    """The first node is the one under test: it has the router, the manager and the daemons."""

    def __init__(self, *others):
        runtime = SimulatedRuntime(seed=1)
        process_scope().put(SystemRuntime, runtime)
        super().__init__(*nodes("a"), *others, runtime=runtime, router=get_router())
        self.here = self.planes["a"]
        self.here.settings = get_settings()
        process_scope().put(DataPlane, self.here)
        process_scope().put(StageMembers, StageMembers(runtime, waker=get_loop_waker()))
        shared_engine().put(self.here.engine)
        self.manager = DaemonManager(
            DaemonManagerConfig(loop_watchdog=False),
            runtime=runtime,
            bus=self.router,
            offload=at_once,
            memory_percent=lambda: 30.0,
        )
        self.manager.register_factory(LOOP, self._nothing, depends_on=[DaemonType.EVENT_ROUTER])

    async def _nothing(self):
        await self.runtime.sleep(float("inf"))

    async def live(self, body):
        try:
            await body(self)
        finally:
            await self.manager.shutdown()
            await self.router.stop()


async def at_once(work):
    return work()


def needed(names):
    """The daemons of those types in an order in which they start, each after what it needs."""
    registry, order = product_registry(), []

    def add(daemon):
        if daemon not in order:
            for need in registry[daemon].depends_on:
                add(need)
            # In this thread: simulated time does not wait for others.
            import_module(registry[daemon].entry_point.partition(":")[0])
            order.append(daemon)

    for name in sorted(names):
        add(DaemonType(name))
    return order


def lived(body, *others):
    """Run *body* with a machine and the nodes *others* in simulated time."""

    async def run():
        await Machine(*others).live(body)

    simulate(run())
