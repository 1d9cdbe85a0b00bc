"""What broke in practice, as tests: transfers, locks, the write-ahead log and merges.

Processes are killed and stopped at moments that they do not choose. The rows that need no process stand with
the parts: 10 and 11 in `test_data_integrity_checks`, 18, 20 and 27 also in `test_data_transfer_deliveries`
and `test_data_transactions`.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_durability import SyncWAL
from ringrift.coordination.sync_mutex import SyncMutex
from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.manifest.store import ManifestStore
from ringrift.data.transactions import TransactionLog
from ringrift.data.transfer.contract import Moved
from ringrift.data.transfer.limits import GateLimits
from ringrift.data.transfer.service import TransferConfig, TransferService
from ringrift.engine.opening import close_engine, get_engine, memory_engine
from ringrift.testing.simulation import SimulatedRuntime, simulate

CHILD = Path(__file__).with_name("data_control_child.py")
FILES = ("one", "two", "three")


class Child:
    """A process that is told what to do by its arguments, and tells by lines what it did."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.split())
                self._changed.notify_all()

    def wait_for(self, count):
        """Return once it has told that many things."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= count, timeout=90)

    def ask(self):
        count = len(self.lines)
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.wait_for(count + 1)
        return self.lines[-1]

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        self.process.stdin.close()
        self.process.stdout.close()


# --- 15 -----------------------------------------------------------------------------------------------


class CountingTransport:
    """Takes its time, and notes how many calls are inside at once."""

    name = "http"

    def __init__(self, runtime):
        self._runtime = runtime
        self.inside, self.most, self.most_at = {}, 0, 0

    def reaches(self, node):
        return True

    async def send(self, node, artifacts, terms):
        self.inside[node.name] = self.inside.get(node.name, 0) + 1
        self.most = max(self.most, sum(self.inside.values()))
        self.most_at = max(self.most_at, self.inside[node.name])
        await self._runtime.sleep(5)
        self.inside[node.name] -= 1
        return Moved(
            receipts=tuple(
                Receipt(digest=card.digest, node=node.name, size=card.size, verified_s=0.0)
                for card in artifacts
            )
        )

    fetch = send


async def nothing_is_damaged(digest, found):
    raise AssertionError(f"{digest}: {found}")


def test_row_15_a_hundred_transfers_asked_for_at_once_run_a_few_at_a_time():
    async def scenario():
        runtime = SimulatedRuntime()
        engine = memory_engine(runtime)
        nodes = DataNodes("here", [DataNode(name=f"node{n}", bandwidth_mbps=4_000) for n in range(10)])
        transport = CountingTransport(runtime)
        service = TransferService(
            [transport],
            nodes,
            engine.blobs,
            engine.kv,
            runtime,
            set_aside=nothing_is_damaged,
            router=get_router(),
            config=TransferConfig(gates=GateLimits(total=12, per_node=5)),
        )
        digest = await engine.blobs.put_bytes(b"games")
        card = Artifact(digest=digest, size=5)
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                sending = service.send(f"node{number % 10}", [card], priority="low", timeout_s=2_000)
                group.create_task(sending)
        assert transport.most <= 12
        assert transport.most_at <= 5
        assert transport.most > 1

    simulate(scenario())


# --- 17 -----------------------------------------------------------------------------------------------


class BoastingTransport(CountingTransport):
    """Says that bytes went, and has nobody's word for it."""

    async def send(self, node, artifacts, terms):
        return Moved(bytes_sent=10**9)

    fetch = send


def test_row_17_a_transfer_without_receipts_moved_nothing():
    async def scenario():
        runtime = SimulatedRuntime()
        engine = memory_engine(runtime)
        manifest = ManifestStore(engine.kv)
        nodes = DataNodes("here", [DataNode(name="there")])
        transport = BoastingTransport(runtime)
        service = TransferService(
            [transport],
            nodes,
            engine.blobs,
            engine.kv,
            runtime,
            set_aside=nothing_is_damaged,
            router=get_router(),
        )
        digest = await engine.blobs.put_bytes(b"games")
        moved = await service.send("there", [Artifact(digest=digest, size=5)])
        assert moved.receipts == moved.already_there == ()
        assert [name for name, _ in moved.failed] == [digest]
        assert await manifest.copies(digest) == []
        assert (await service.ledger.stats())["by_status"]["verified"] == 0

    simulate(scenario())


# --- 18 -----------------------------------------------------------------------------------------------


async def test_row_18_games_that_were_acknowledged_survive_kill_9():
    rng = random.Random(18)
    acknowledged, given_away = set(), set()
    for _ in range(3):
        child = Child("append")
        child.wait_for(rng.randrange(5, 60))
        child.kill()
        acknowledged |= {words[1] for words in child.lines if words[0] == "appended"}
        given_away |= {words[1] for words in child.lines if words[0] == "completing"}
    left = {entry.entry_id for entry in await SyncWAL().recover()}
    assert acknowledged - given_away <= left
    assert len(acknowledged) >= 5
    await close_engine()


# --- 19 -----------------------------------------------------------------------------------------------


async def test_row_19_a_holder_that_was_stopped_does_not_act_on_the_next_ones_lock():
    late = Child("lock")
    late.wait_for(1)
    os.kill(late.process.pid, signal.SIGSTOP)
    mutex = SyncMutex(max_global=5)
    try:
        # The stopped one's lease runs out in the store, by the store's clock.
        assert await mutex.acquire_async("host", timeout=60, wait=True, wait_timeout=60)
        token = mutex.token("host")
        assert token > int(late.lines[0][1])
        os.kill(late.process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(late.ask) == ["after", "None", "False", "False"]
        assert mutex.token("host") == token
        assert (await mutex.info_async("host")).token == token
        assert not await SyncMutex(max_global=5).acquire_async("host")
        assert await mutex.release_async("host")
    finally:
        late.kill()
        await close_engine()


# --- 20 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_row_20_files_that_are_merged_together_are_of_one_version_after_kill_9(tmp_path, seed):
    for name in FILES:
        (tmp_path / name).write_text("0 " * 20_000)
    child = Child("merge", tmp_path)
    child.wait_for(random.Random(seed).randrange(1, 6))
    child.kill()
    acknowledged = max(int(words[1]) for words in child.lines)
    await recover_at_once((await get_engine()).kv)
    versions = {(tmp_path / name).read_text() for name in FILES}
    assert len(versions) == 1
    found = versions.pop().split()
    assert len(found) == 20_000
    assert len(set(found)) == 1
    assert int(found[0]) in (acknowledged, acknowledged + 1)
    assert sorted(os.listdir(tmp_path)) == sorted(FILES)
    await close_engine()


async def recover_at_once(kv):
    """End what the dead process left, as if its lease had run out by now."""
    log = TransactionLog(kv=kv)
    for record in await log.records_async():
        await kv.delete(f"lease/transaction/{record.transaction_id}")
    await log.recover_async()
    assert all(record.state.is_final for record in await log.records_async())
