"""Real processes on one data folder: tasks that others count, a killed one noticed, a stop for all."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ringrift.coordination.event_router import get_router
from ringrift.coordination.task_coordinator import (
    TaskCoordinator,
    can_spawn,
    check_before_spawn,
    clear_emergency_stop,
    get_task_lifecycle_coordinator,
    turn_on_emergency_stop,
    wire_task_events,
    wire_task_limits,
)
from ringrift.engine.opening import close_engine

PROGRAM = """
import os, sys
from ringrift.coordination.task_coordinator import TaskCoordinator, TaskType, can_spawn
coordinator = TaskCoordinator.get_instance()
for line in sys.stdin:
    word, _, task_id = line.strip().partition(" ")
    if word == "register":
        answer = coordinator.register_task(
            task_id=task_id, task_type=TaskType.TRAINING, node_id="", pid=os.getpid()
        )
    else:
        answer = can_spawn(TaskType.TRAINING)[1]
    print("answer", answer, flush=True)
"""


class Program:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, words):
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:  # log lines come between
            if line.startswith("answer "):
                return line.removeprefix("answer ").strip()
        raise AssertionError("the program ended")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)

    def close(self):
        self.process.kill()
        self.process.wait(timeout=10)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def program():
    program = Program()
    yield program
    program.close()


async def test_a_task_counts_everywhere_and_one_of_a_killed_process_is_dropped(program):
    said = []
    wire_task_limits()
    wire_task_events()
    get_router().subscribe("TASK_ABANDONED", lambda event: said.append(event.payload))
    assert program.ask("register theirs") == "theirs"
    (task,) = TaskCoordinator.get_instance().get_tasks("training")
    assert (task.task_id, task.pid) == ("theirs", program.process.pid)
    ok, reason = can_spawn("training")
    assert not ok
    assert reason.startswith("1 of 1 training tasks run on ")
    lifecycle = get_task_lifecycle_coordinator()
    assert await lifecycle.check_orphans() == []
    program.kill()
    assert [orphan.task_id for orphan in await lifecycle.check_orphans()] == ["theirs"]
    assert said[0]["reason"] == f"its process {task.pid} is gone"
    assert TaskCoordinator.get_instance().get_tasks() == []
    await get_router().stop()
    await close_engine()


def test_an_emergency_stop_holds_every_process(program):
    assert program.ask("may I") == "ok"
    turn_on_emergency_stop(f"drill by {os.getpid()}")
    assert check_before_spawn("selfplay")[1].endswith(f"drill by {os.getpid()}")
    assert _soon(program, f"emergency stop until it is cleared: drill by {os.getpid()}")
    clear_emergency_stop()
    assert _soon(program, "ok")


def _soon(program, words):
    """Ask until the answer begins with *words*; a view lives for a second."""
    end_s = time.monotonic() + 60.0
    while not program.ask("may I").startswith(words):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True
