"""The run as a whole: who controls it, who works for it, and whether it gets on."""

import asyncio

import msgspec
import pytest
from machine import Listeners, listen
from recording import scenario

from ringrift.control.process import run_control_process
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.master_loop_guard import MasterLoopGuard
from ringrift.coordination.progress_watchdog import ProgressWatchdog
from ringrift.coordination.selfplay_scheduler import SelfplayScheduler
from ringrift.coordination.sync_coordinator import get_sync_router
from ringrift.engine.memory import memory_engine
from ringrift.engine.opening import open_engine
from ringrift.errors import ControlLost
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import STATUS_KEY
from ringrift.learning.control_lease import TOKEN_KEY, ControlLease
from ringrift.runtime import SystemRuntime, system_runtime
from ringrift.testing.sample_run import idle_config, idle_run
from ringrift.testing.simulation import ManualRuntime
from ringrift.work.worker.records import WorkerRecord, worker_key

CONFIG = "square8_2p"


@scenario("LEADER_ELECTED", "LEADER_LOST", "STARTUP_STATE_VALIDATED")
async def test_a_control_process_takes_control_and_loses_it_to_another(recording):
    """The other one is a second holder of the same store, as after a sleep of this machine."""
    heard, started = [], asyncio.Event()
    get_router().subscribe("STARTUP_STATE_VALIDATED", heard.append)
    running = asyncio.create_task(
        run_control_process(profile="minimal", stop=asyncio.Event(), on_started=lambda _: started.set())
    )
    await started.wait()
    while "LEADER_ELECTED" not in recording.received:
        await asyncio.sleep(0.01)
    (validated,) = heard
    assert validated.payload["valid"]
    assert get_sync_router().reports.leader == system_runtime().hostname
    engine = await open_engine(get_settings(), SystemRuntime())
    await engine.kv.put(
        TOKEN_KEY,
        msgspec.json.encode(ControlLease(engine, SystemRuntime(), MasterLoopGuard(), get_settings()).me),
    )
    await get_daemon_manager().reactions.leads()  # whatever makes it look
    with pytest.raises(ControlLost, match="took over"):
        await running
    await engine.close()


class Run:
    """What a control process says of its run, and who listens to those who read it."""

    def __init__(self):
        self.runtime = ManualRuntime()
        self.kv = memory_engine(self.runtime).kv
        self.router = UnifiedEventRouter(enable_cross_process_polling=False)
        self.listeners = Listeners(self.router)
        self.scheduler = listen(
            self.router, SelfplayScheduler(router=self.router, runtime=self.runtime, kv=self.kv)
        )

    async def says(self, **status):
        seen = idle_run(at_s=self.runtime.now_s(), **status)
        await self.kv.put(STATUS_KEY, msgspec.json.encode(seen))

    async def has_worker(self, name, *, node, kinds=None):
        record = WorkerRecord(
            name=name, node=node, pid=1, slots=1, busy=0, kinds=kinds, capabilities=("cpu",), cpus=1, gpus=0,
            memory_mb=1, memory_free_mb=1, load=0.0, started_s=0.0, at_s=self.runtime.now_s(),
        )  # fmt: skip
        await self.kv.put(worker_key(name), msgspec.json.encode(record))


@scenario("PROGRESS_STALL_DETECTED", "PROGRESS_RECOVERED")
async def test_a_config_that_gets_no_games_for_hours_and_then_does():
    run = Run()
    watchdog = ProgressWatchdog(runtime=run.runtime, router=run.router, kv=run.kv)
    for games in (*range(10), *[9] * 100, 10):
        run.runtime.advance(30.0)
        await run.says(configs={CONFIG: idle_config(games=games)})
        await watchdog._run_cycle()
    signals = run.scheduler.signals.all()[CONFIG]
    assert signals["PROGRESS_STALL_DETECTED"]["escalation_tier"] >= 1
    assert signals["PROGRESS_RECOVERED"]["recovery_duration_hours"] > 0
    await run.router.stop()


@scenario("P2P_SELFPLAY_SCALED", "NODE_INCOMPATIBLE_WITH_WORKLOAD")
async def test_workers_come_and_one_of_them_takes_nothing_of_what_there_is():
    run = Run()
    orders = {"selfplay": {"ready": 3}, "train": {"ready": 1}}
    await run.has_worker("w1", node="sound")
    await run.says(workers=1, configs={CONFIG: idle_config(share=1.0)}, queue=orders)
    await run.scheduler._run_cycle()
    assert not run.listeners.alerted("NODE_INCOMPATIBLE_WITH_WORKLOAD")
    await run.has_worker("w2", node="odd", kinds=("render",))
    await run.says(workers=2, configs={CONFIG: idle_config(share=1.0)}, queue=orders)
    for _ in range(2):
        await run.scheduler._run_cycle()
    assert run.listeners.alerted("NODE_INCOMPATIBLE_WITH_WORKLOAD") == [
        "its workers take only render; the run has selfplay, train"
    ]
    assert run.listeners["metrics_orchestrator"].events_heard["P2P_SELFPLAY_SCALED"] == 1
    await run.router.stop()
