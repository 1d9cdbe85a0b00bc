"""A worker in simulated time does jobs that end well, badly, too late, or give way to others."""

import signal

import pytest
from recording import scenario
from tasks_world import ROOMY
from worker_world import WorkerWorld, end_well, say

from ringrift.coordination.backpressure import QueueMonitor, QueueMonitorDaemon, WorkQueueMonitorDaemon
from ringrift.coordination.coordination_bootstrap import (
    initialize_all_coordinators,
    shutdown_all_coordinators,
    start_coordination,
)
from ringrift.coordination.event_router import get_router
from ringrift.coordination.task_coordinator import get_task_coordinator
from ringrift.engine.opening import shared_engine
from ringrift.engine.ports import NewWork, WorkState
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime
from ringrift.testing.simulation import simulate
from ringrift.work.job.protocol import JobOrder

DONE, DEAD, READY = WorkState.DONE, WorkState.DEAD, WorkState.READY


class ToldWorld(WorkerWorld):
    """What the worker tells goes to the router of this process, where the coordinators listen."""

    async def __aenter__(self):
        self.publish = get_router().publish
        process_scope().put(SystemRuntime, self.runtime)
        shared_engine().put(self.engine)
        await start_coordination()
        self.monitors = [
            WorkQueueMonitorDaemon(resources=self.resources),
            QueueMonitorDaemon(monitor=QueueMonitor(resources=self.resources)),
        ]
        for each in self.monitors:
            await each.start()
        return await super().__aenter__()

    async def resources(self):
        return ROOMY

    async def __aexit__(self, *about):
        for each in self.monitors:
            await each.stop()
        await shutdown_all_coordinators()
        await super().__aexit__(*about)


@pytest.fixture
def world(tmp_path):
    def run(body, **config):
        async def main():
            async with ToldWorld(tmp_path, **config) as here:
                await body(here)

        simulate(main(), limit_s=50_000)

    return run


@scenario(
    "TASK_COMPLETED",
    "TASK_HEARTBEAT",
    "TASK_SPAWNED",
    "TRAINING_PROGRESS",
    "TRAINING_STARTED",
    "WORK_CLAIMED",
    "WORK_COMPLETED",
    "WORK_STARTED",
)
def test_a_training_is_claimed_goes_on_and_ends_well(world):
    async def body(here):
        item_id = await here.add("train")
        child = await here.child()
        for step in range(1, 4):
            say(child, event="progress", stage="training", done=step, total=9, train_policy=2.0, epoch=step)
            await here.runtime.sleep(15)
        end_well(child)
        await here.until(item_id, DONE)
        await here.runtime.sleep(5)

    world(body)


@scenario("TASK_FAILED", "WORK_FAILED", "WORK_RETRY", "WORK_TIMEOUT")
def test_a_job_takes_too_long_and_then_fails_for_good(world):
    async def body(here):
        item_id = await here.add("export", limits={"timeout_s": 60.0}, attempts_max=2)
        await here.until(item_id, READY, DEAD)
        again = await here.child(1)
        again.exit(1)
        await here.until(item_id, DEAD)
        await here.runtime.sleep(5)

    world(body)


@scenario("JOB_PREEMPTED")
def test_games_make_way_for_an_evaluation(world):
    async def body(here):
        order = JobOrder(config="c", params={"out": "{out}", "hand_over": True})
        (games,) = await here.engine.queue.add(
            [NewWork(kind="selfplay", payload=order.as_payload(), priority=-1)]
        )
        player = await here.child()
        await here.runtime.sleep(5)
        short = await here.add("evaluate")
        while signal.SIGTERM not in player.signals:
            await here.wait_a_little()
        end_well(player)
        end_well(await here.child(1))
        await here.until(games, DONE)
        await here.until(short, DONE)

    world(body)


@scenario("TASK_ABANDONED")
def test_a_worker_that_is_stopped_gives_its_job_back(world):
    async def body(here):
        item_id = await here.add("export")
        child = await here.child()
        here.stop.set()
        while signal.SIGTERM not in child.signals:
            await here.wait_a_little()
        child.exit(3)
        await here.until(item_id, READY)
        await here.runtime.sleep(5)

    world(body)


@scenario("TASK_ORPHANED")
def test_a_task_falls_silent(world):
    async def body(here):
        await get_task_coordinator().register("export-1", "export")
        await here.runtime.sleep(600)

    world(body)


@scenario("TASK_CANCELLED")
def test_a_person_cancels_a_task():
    initialize_all_coordinators()
    tasks = get_task_coordinator()
    tasks.register_task("export-1", "export")
    assert tasks.cancel_task("export-1", "not wanted any more")


@scenario("BACKPRESSURE_ACTIVATED", "BACKPRESSURE_RELEASED")
def test_a_queue_fills_and_drains(world):
    async def body(here):
        waiting = [await here.add("export", requires=frozenset({"gpu"})) for _ in range(120)]
        await here.runtime.sleep(120)
        for each in waiting:
            await here.engine.queue.cancel(each, reason="not wanted any more")
        await here.runtime.sleep(1200)

    world(body)
