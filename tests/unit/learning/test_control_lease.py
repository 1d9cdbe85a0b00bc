"""One process controls an engine and a data folder; whoever lost control writes nothing in its name."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.coordination.event_router import get_router
from ringrift.coordination.master_loop_guard import MasterLoopGuard, pid_file, read_master_loop
from ringrift.daemons.planning import NOT_LEADER
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.engine.fencing import fenced
from ringrift.engine.opening import close_engine, memory_engine
from ringrift.engine.ports import NewWork
from ringrift.errors import Conflict, ControlLost, LeaseLost, Unavailable
from ringrift.learning.control_lease import ControlLease, control_holder, in_control
from ringrift.learning.facts.facts import Blocked
from ringrift.learning.facts.ledger import Ledger, read_facts
from ringrift.learning.plan.rules import LearningRules
from ringrift.process import process_scope
from ringrift.settings import Settings
from ringrift.testing.engine_contract import ShiftedRuntime

LEASE_S = 15.0

CONTROLLER = """
import asyncio, sys
from ringrift.learning.control_lease import ControlLease
from ringrift.engine.opening import get_engine, close_engine
from ringrift.runtime import system_runtime
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import MasterLoopGuard

async def main():
    lease = ControlLease(await get_engine(), system_runtime(), MasterLoopGuard(), get_settings())
    await lease.take()
    print("held", flush=True)
    await lease.keep()

asyncio.run(main())
"""


@pytest.fixture
def runtime():
    return ShiftedRuntime()


@pytest.fixture
async def engine(runtime):
    engine = memory_engine(runtime)
    yield engine
    await engine.close()


class FolderOfAnother(MasterLoopGuard):
    """The lock of a data folder as a process on another one has it."""

    def __init__(self, path):
        path.mkdir()
        super().__init__(path / "master_loop.pid")


async def test_the_holder_is_known_and_a_second_one_is_refused_by_name(engine, runtime, tmp_path):
    lease = ControlLease(engine, runtime, MasterLoopGuard(), get_settings())
    await lease.take()
    assert await control_holder(engine.kv) == lease.me
    second = ControlLease(engine, runtime, FolderOfAnother(tmp_path / "other"), get_settings())
    with pytest.raises(Conflict, match=f"process {lease.me.pid} on .* .since 20"):
        await second.take()
    await lease.release()
    await second.take()
    await second.release()


async def test_writes_under_an_old_token_are_refused_and_the_holder_hears_of_it(engine, runtime, tmp_path):
    first = ControlLease(engine, runtime, MasterLoopGuard(), get_settings())
    await first.take()
    mine = fenced(engine, first.guard, on_lost=first.note_refusal)
    ledger = await Ledger.open(mine.kv, "c", bucket_rules=LearningRules().bucket)
    await ledger.append(note(1.0))
    keeping = asyncio.create_task(first.keep())
    await asyncio.sleep(0)
    runtime.advance(LEASE_S + 1)  # held up for longer than its lease
    second = ControlLease(engine, runtime, FolderOfAnother(tmp_path / "other"), get_settings())
    assert await first.is_ours(), "nobody else had control yet"
    await second.take()
    assert [await first.is_ours(), await second.is_ours()] == [False, True], "by the store, not by an event"
    with pytest.raises(LeaseLost):
        await ledger.append(note(2.0))
    with pytest.raises(LeaseLost):
        await mine.queue.add([NewWork(kind="k", id="late")])
    with pytest.raises(ControlLost, match="took over"):
        await asyncio.wait_for(keeping, 30)
    assert await read_facts(engine.kv, "c") == [note(1.0)]
    assert await engine.queue.counts() == {}
    theirs = fenced(engine, second.guard, on_lost=second.note_refusal)
    await (await Ledger.open(theirs.kv, "c", bucket_rules=LearningRules().bucket)).append(note(3.0))
    await first.release()
    await theirs.kv.put("a", b"1")
    await second.release()


class Loop:
    """Stands where the training loop stands."""

    async def run(self, *, on_ready):
        on_ready()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        ("LEADER_ELECTED", {"leader_id": "evil", "term": 9}),
        ("LEADER_LOST", {"old_leader_id": "here", "reason": "evil says so"}),
        ("SPLIT_BRAIN_DETECTED", {"leaders_seen": ["evil", "here"]}),
    ],
)
async def test_a_word_about_leadership_makes_the_loop_look_and_only_the_lease_stops_it(
    engine, runtime, tmp_path, event, payload
):
    process_scope().put(Settings, replace(get_settings(), control_lease=600.0))
    router, lease = get_router(), ControlLease(engine, runtime, MasterLoopGuard(), get_settings())
    manager = DaemonManager(DaemonManagerConfig(loop_watchdog=False), bus=router)
    manager.reactions.leads = lease.is_ours
    manager.register_factory(DaemonType.DATA_PIPELINE, Loop)
    await lease.take()
    keeping = asyncio.create_task(lease.keep())
    assert await manager.start(DaemonType.DATA_PIPELINE)
    await router.publish(event, payload, "evil")
    assert manager.is_running(DaemonType.DATA_PIPELINE)
    assert not keeping.done()
    runtime.advance(601.0)
    second = ControlLease(engine, runtime, FolderOfAnother(tmp_path / "other"), get_settings())
    await second.take()
    await router.publish(event, payload, "evil")
    with pytest.raises(ControlLost, match="took over"):
        await asyncio.wait_for(keeping, 60)  # it would renew after 75 s by itself
    async with asyncio.timeout(30):
        while NOT_LEADER not in manager.why(DaemonType.DATA_PIPELINE):
            await asyncio.sleep(0.01)
    await manager.shutdown()
    await router.stop()
    await lease.release()
    await second.release()
    await close_engine()


async def test_a_store_that_does_not_answer_proves_nothing(engine, runtime):
    lease = ControlLease(engine, runtime, MasterLoopGuard(), get_settings())
    await lease.take()
    assert await lease.is_ours()

    async def away(_key):
        raise Unavailable("the store is away")

    proved = asyncio.Event()
    lease._kv, lease.on_proved = SimpleNamespace(get=away), proved.set
    assert not await lease.is_ours()
    lease._kv = engine.kv
    keeping = asyncio.create_task(lease.keep())
    await asyncio.wait_for(proved.wait(), 60)  # the next renewal says it by itself
    keeping.cancel()
    await asyncio.wait({keeping})
    await lease.release()


async def test_a_holder_that_slept_goes_on_if_nobody_else_had_control(engine, runtime):
    process_scope().put(Settings, replace(get_settings(), control_lease=0.4))
    lease = ControlLease(engine, runtime, MasterLoopGuard(), get_settings())
    await lease.take()
    token = lease.guard
    runtime.advance(3600.0)
    keeping = asyncio.create_task(lease.keep())
    while await engine.kv.get("lease/control") is None:
        await asyncio.sleep(0.01)
    mine = fenced(engine, lease.guard, on_lost=lease.note_refusal)
    await mine.kv.put("a", b"1")
    assert lease.guard == token
    assert not keeping.done()
    keeping.cancel()
    await lease.release()


async def test_the_pid_file_is_written_again_and_is_nobody_s_authority(engine, runtime):
    process_scope().put(Settings, replace(get_settings(), control_lease=0.4))
    lease = ControlLease(engine, runtime, MasterLoopGuard(), get_settings())
    await lease.take()
    keeping = asyncio.create_task(lease.keep())
    pid_file().unlink()
    assert not MasterLoopGuard().try_acquire()
    while read_master_loop() is None:
        await asyncio.sleep(0.01)
    keeping.cancel()
    await lease.release()
    assert read_master_loop() is None
    assert MasterLoopGuard().try_acquire()


async def test_a_command_takes_the_place_of_a_control_process_for_a_moment(engine, runtime):
    async with in_control(engine, runtime, MasterLoopGuard(), get_settings()) as mine:
        await mine.kv.put("a", b"1")
        with pytest.raises(Conflict):
            async with in_control(engine, runtime, MasterLoopGuard(), get_settings()):
                raise AssertionError
    async with in_control(engine, runtime, MasterLoopGuard(), get_settings()):
        pass


async def test_a_killed_holder_is_not_waited_for_and_a_stopped_one_only_for_its_lease(monkeypatch):
    folder = get_settings().data_dir
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(folder))
    monkeypatch.setenv("RINGRIFT_CONTROL_LEASE", "2")
    first = await asyncio.to_thread(start_controller)
    try:
        assert "process" in await refused()
        (folder / "coordination" / "master_loop.pid").unlink()
        assert f"process {first.pid}" in await refused()
        monkeypatch.setenv("RINGRIFT_COORDINATOR_DB", str(folder / "elsewhere" / "other.db"))
        assert "has the data folder" in await refused()
        monkeypatch.delenv("RINGRIFT_COORDINATOR_DB")
        first.send_signal(signal.SIGKILL)
        first.wait(30)
        second = await asyncio.to_thread(start_controller)  # at once
        second.send_signal(signal.SIGSTOP)
        third = await asyncio.to_thread(start_controller, within_s=30.0)
        second.send_signal(signal.SIGCONT)
        _, said = await asyncio.to_thread(second.communicate, timeout=30)
        assert f"process {third.pid} on" in said
        assert third.poll() is None
        third.kill()
        third.communicate()
    finally:
        first.kill()
        first.communicate()


def note(at_s):
    return Blocked(at_s=at_s, stage="train", reason="x", until_s=at_s)


def start_controller(within_s=0.0):
    """A process that takes control and keeps it; tries again for so long."""
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if process.stdout.readline() == "held\n":
            return process
        _, said = process.communicate()
        assert within_s > 0, said
        within_s -= 0.5


async def refused():
    process = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", CONTROLLER], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 1
    return process.stderr
