"""What the daemons that keep room and order do, and that without one nobody does it."""

import os

from guards_world import nodes
from lever_world import HOUR_S, lived

from ringrift.coordination.queue_monitor import QueueMonitor
from ringrift.engine.ports import Claimant, NewWork
from ringrift.machine import NodeResources
from ringrift.process import process_scope
from ringrift.work.tasks import RunningTask, TaskRegistry, TaskType

CONFIG = "hex8_2p"
DAY_S = 24 * HOUR_S
IDLE = NodeResources(
    cpu_percent=5.0, memory_percent=30.0, disk_percent=50.0, disk_free_gb=90.0, load=0.1, cores=4
)


def is_gone(path):
    async def look():
        return not path.exists()

    return look


def put_file(machine, name, *, age_s):
    path = machine.here.settings.data_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 1000)
    made_s = machine.runtime.wall_s() - age_s
    os.utime(path, (made_s, made_s))
    return path


def test_old_files_make_room_only_while_disk_space_manager_runs(monkeypatch):
    monkeypatch.setenv("TEST_DISK_PERCENT", "80")

    async def body(machine):
        async def cause(number):
            return is_gone(put_file(machine, f"logs/control.log.{number}", age_s=2 * DAY_S))

        await machine.shows_lever("disk_space_manager", cause)

    lived(body)


def test_a_full_node_copies_files_out_only_while_coordinator_disk_manager_runs(monkeypatch):
    monkeypatch.setenv("TEST_DISK_PERCENT", "80")

    async def body(machine):
        async def cause(number):
            games = await machine.make(f"games {number}".encode(), "a", config=CONFIG, games=3)

            async def is_copied():
                return await machine.holders(games) > {"a"}

            return is_copied

        await machine.shows_lever("coordinator_disk_manager", cause)

    lived(body, *nodes("b", "c"))


def test_what_was_cut_off_logs_is_packed_only_while_maintenance_runs():
    async def body(machine):
        async def cause(number):
            return is_gone(put_file(machine, f"logs/worker{number}.log.1", age_s=HOUR_S))

        await machine.shows_lever("maintenance", cause, within_s=2 * DAY_S)

    lived(body)


def test_full_queues_are_told_and_their_end_only_while_queue_monitor_runs():
    async def body(machine):
        monitor = QueueMonitor(resources=idle, runtime=machine.runtime)
        process_scope().put(QueueMonitor, monitor)
        queue = machine.here.queue

        async def told():
            return len(machine.heard("BACKPRESSURE_ACTIVATED")) + len(machine.heard("BACKPRESSURE_RELEASED"))

        async def cause(number):
            before = await told()
            if number == 1:
                await queue.add([NewWork(kind="evaluate", payload={"n": n}) for n in range(100)])
            else:  # workers have come
                await queue.claim(
                    Claimant(worker="w", kinds=frozenset({"evaluate"})), limit=90, lease_s=DAY_S
                )

            async def is_told():
                return await told() > before

            return is_told

        await machine.shows_lever("queue_monitor", cause)

    lived(body)


async def idle():
    return IDLE


def test_tasks_that_fell_silent_are_told_only_while_work_queue_monitor_runs():
    async def body(machine):
        async def cause(number):
            now_s = machine.runtime.now_s()
            task = RunningTask(
                task_id=f"task-{number}",
                task_type=TaskType.TRAINING,
                node="b",
                started_s=now_s,
                heartbeat_s=now_s,
            )
            await TaskRegistry(runtime=machine.runtime).add(task)

            async def is_told():
                return task.task_id in {each["task_id"] for each in machine.heard("TASK_ORPHANED")}

            return is_told

        await machine.shows_lever("work_queue_monitor", cause)

    lived(body)


# Daemon: the test that stops it and sees the machine do without.
SHOWN_BY = {
    "coordinator_disk_manager": test_a_full_node_copies_files_out_only_while_coordinator_disk_manager_runs,
    "disk_space_manager": test_old_files_make_room_only_while_disk_space_manager_runs,
    "maintenance": test_what_was_cut_off_logs_is_packed_only_while_maintenance_runs,
    "queue_monitor": test_full_queues_are_told_and_their_end_only_while_queue_monitor_runs,
    "work_queue_monitor": test_tasks_that_fell_silent_are_told_only_while_work_queue_monitor_runs,
}
