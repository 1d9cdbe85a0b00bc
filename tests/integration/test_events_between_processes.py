"""Two real processes on one log, killed with -9 and restarted: every event once per subscription."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("events_process.py")


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.01)


class Processes:
    def __init__(self, folder):
        self.folder = folder
        self.running = {}

    def start(self, *labels):
        env = {**os.environ, "RINGRIFT_DATA_DIR": str(self.folder / "data")}
        argv = [sys.executable, str(PROGRAM), str(self.folder), *labels]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
        self.running[process.pid] = (process, labels)
        wait_for(lambda: (self.folder / f"ready.{process.pid}").exists() or process.poll() is not None)
        assert process.poll() is None
        return process

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()
        return self.running.pop(process.pid)[1]

    def published(self):
        path = self.folder / "published"
        return path.read_text().split() if path.exists() else []

    def handled(self):
        found = {}
        for path in self.folder.glob("handled.*"):
            pairs = [line.split() for line in path.read_text().splitlines()]
            found[path.name] = [(event_id, flag == "1") for event_id, flag in pairs]
        return found


@pytest.fixture
def processes(tmp_path):
    processes = Processes(tmp_path)
    yield processes
    for process, _ in processes.running.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("labels", [((), ()), (("one",), ("two",))], ids=["same argv", "own argv"])
def test_killed_and_restarted_processes_see_every_event_once(processes, labels):
    kills = 6
    rng = random.Random(7)
    pair = [processes.start(*each) for each in labels]
    for _ in range(kills):
        time.sleep(rng.uniform(0.05, 0.25))
        victim = rng.randrange(2)
        pair[victim] = processes.start(*processes.kill(pair[victim]))
    wait_for(lambda: len(processes.published()) > 20)
    (processes.folder / "stop").touch()
    # A publish under way still ends.
    wait_for(lambda: all((processes.folder / f"stopped.{each.pid}").exists() for each in pair))

    def all_handled():
        published = set(processes.published())
        return all(published <= {event_id for event_id, _ in seen} for seen in processes.handled().values())

    wait_for(lambda: len(processes.handled()) == 2 and all_handled())
    (processes.folder / "end").touch()
    for process in pair:
        assert process.wait(timeout=60) == 0
    repeated = 0
    for seen in processes.handled().values():
        counts = Counter(event_id for event_id, _ in seen)
        assert set(counts) >= set(processes.published())
        for event_id in (event_id for event_id, count in counts.items() if count > 1):
            # Killed between the last line of the handler and its return: it runs again, and is told so.
            flags = [flag for found, flag in seen if found == event_id]
            assert flags[1:] == [True] * (len(flags) - 1)
            repeated += len(flags) - 1
    assert repeated <= kills


def test_a_script_that_publishes_and_exits_has_published(processes, tmp_path):
    env = {**os.environ, "RINGRIFT_DATA_DIR": str(tmp_path / "data")}
    script = (
        "from ringrift.coordination.event_router import publish_sync;"
        "print(publish_sync('TRAINING_PROGRESS', {'n': 1, 'config_key': 'hex8_2p', 'epoch': 1}).event_id)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, timeout=60)
    (tmp_path / "stop").touch()
    processes.start()
    wait_for(lambda: [len(seen) for seen in processes.handled().values()] == [2])


def test_local_events_create_no_files(tmp_path):
    env = {**os.environ, "RINGRIFT_DATA_DIR": str(tmp_path / "data")}
    script = (
        "import asyncio\n"
        "from ringrift.coordination.event_router import get_router\n"
        "seen = []\n"
        "get_router().subscribe('CHECKPOINT_SAVED', seen.append)\n"
        "get_router().publish_sync('CHECKPOINT_SAVED', {})\n"
        "assert len(seen) == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, timeout=60)
    assert not (tmp_path / "data").exists()
