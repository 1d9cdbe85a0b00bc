"""Merges are done or not done, wherever the process dies and whoever starts meanwhile."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest

from ringrift.coordination.transaction_isolation import (
    TransactionState,
    begin_merge_transaction,
    get_transaction_isolation,
    merge_transaction,
)
from ringrift.data import transactions
from ringrift.data.transactions import TransactionLog
from ringrift.engine.opening import close_engine, memory_engine
from ringrift.errors import ConfigError, Conflict, LeaseLost, StorageFull
from ringrift.testing.simulation import SimulatedRuntime, simulate


class Crash(Exception):
    """The process ends here. Nobody catches it on the way."""


class World:
    """One folder and one store; each log is a process."""

    def __init__(self, folder):
        self.folder, self.runtime = folder, SimulatedRuntime()
        self.kv = memory_engine(self.runtime).kv
        self.logs = []

    def process(self, kv=None):
        self.logs.append(TransactionLog(kv=kv or self.kv, runtime=self.runtime))
        return self.logs[-1]

    def write(self, name, content):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(content)
        return self.folder / name

    def state(self):
        return {
            str(path.relative_to(self.folder)): path.read_text()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.name.startswith("new")
        }

    async def kill(self, log):
        """End a process without a word: its lease runs out by itself."""
        for owned in log._owned.values():
            owned.renewal.cancel()
        await self.runtime.sleep(100)


def in_world(tmp_path, scenario):
    async def run():
        world = World(tmp_path)
        try:
            await scenario(world)
        finally:
            for log in world.logs:
                for owned in log._owned.values():
                    owned.renewal.cancel()

    simulate(run())


BEFORE = {"a/games.txt": "old a", "b/games.txt": "old b", "gone.txt": "bye", "log.txt": "1\n"}
AFTER = {"a/games.txt": "new a", "b/games.txt": "new b", "log.txt": "1\n2\n", "added.txt": "hello"}


def lay_out(world):
    for name, content in BEFORE.items():
        world.write(name, content)
    for number, content in enumerate(("new a", "new b", "2\n", "hello")):
        world.write(f"new{number}", content)


async def merge(world, log):
    """Change two files of one name, delete one, add one, and write behind another."""
    name = await log.begin_async("elsewhere", merge_type="games")
    steps = [
        ("update", "a/games.txt", "new0"),
        ("update", "b/games.txt", "new1"),
        ("append", "log.txt", "new2"),
        ("add", "added.txt", "new3"),
        ("delete", "gone.txt", None),
    ]
    for kind, dest, source in steps:
        from_path = None if source is None else world.folder / source
        operation = await log.add_operation_async(name, kind, world.folder / dest, from_path)
        await log.complete_operation_async(name, operation.operation_id)
    assert await log.prepare_async(name)
    await log.commit_async(name)
    return name


def test_a_merge_changes_all_its_files(tmp_path):
    async def scenario(world):
        lay_out(world)
        log = world.process()
        name = await merge(world, log)
        assert world.state() == AFTER
        assert (await log.record_async(name)).state is TransactionState.COMMITTED

    in_world(tmp_path, scenario)


def test_a_rollback_leaves_everything_as_it_was(tmp_path):
    async def scenario(world):
        lay_out(world)
        log = world.process()
        name = await log.begin_async("elsewhere")
        for dest, source in (("a/games.txt", "new0"), ("b/games.txt", "new1")):
            await log.add_operation_async(name, "update", world.folder / dest, world.folder / source)
        await log.rollback_async(name, "changed my mind")
        assert world.state() == BEFORE
        record = await log.record_async(name)
        assert (record.state, record.error) == (TransactionState.ROLLED_BACK, "changed my mind")

    in_world(tmp_path, scenario)


class CrashingKeyValue:
    """Dies at its nth write, before or after it took effect."""

    def __init__(self, kv, at, *, after):
        self._kv, self.left, self._after = kv, at, after

    def __getattr__(self, name):
        call = getattr(self._kv, name)
        if name not in {"create", "put", "update", "delete"}:
            return call

        async def counted(*args, **fields):
            self.left -= 1
            if self.left == 0 and not self._after:
                raise Crash
            result = await call(*args, **fields)
            if self.left == 0:
                raise Crash
            return result

        return counted


async def crashed_merge_then_recovery(world, log):
    """Return whether the merge died; afterwards another process ends what is left."""
    lay_out(world)
    died = False
    try:
        await merge(world, log)
    except Crash:
        died = True
    await world.kill(log)
    other = world.process()
    await other.recover_async()
    assert world.state() in (BEFORE, AFTER)
    for record in await other.records_async():
        assert record.state.is_final
        done = record.state is TransactionState.COMMITTED
        assert world.state() == (AFTER if done else BEFORE)
    # Nobody is kept out by what died.
    name = await other.begin_async("elsewhere")
    await other.add_operation_async(name, "update", world.folder / "a/games.txt")
    await other.rollback_async(name)
    return died


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 33))
def test_row_20_death_at_each_write_to_the_store_leaves_old_or_new(tmp_path, monkeypatch, at, after):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nobody cuts the power here

    async def scenario(world):
        log = world.process(CrashingKeyValue(world.kv, at, after=after))
        died = await crashed_merge_then_recovery(world, log)
        assert died or at > 24  # those numbers lie beyond the end of the merge

    in_world(tmp_path, scenario)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 40))
def test_row_20_death_at_each_step_on_the_disk_leaves_old_or_new(tmp_path, monkeypatch, at, after):
    count = 0

    def dying(call):
        def counted(*args, **fields):
            nonlocal count
            count += 1
            if count == at and not after:
                raise Crash
            result = call(*args, **fields)
            if count == at:
                if hasattr(result, "close"):
                    result.close()
                raise Crash
            return result

        return counted

    async def scenario(world):
        lay_out(world)
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "open"):
                patch.setattr(Path, name, dying(getattr(Path, name)))
            patch.setattr(transactions, "sync_folder", dying(lambda folder: None))
            patch.setattr(os, "fsync", dying(lambda descriptor: None))
            log = world.process()
            with contextlib.suppress(Crash):
                await merge(world, log)
        reached = count
        await world.kill(log)
        await world.process().recover_async()
        assert world.state() in (BEFORE, AFTER)
        assert reached >= min(at, 30)

    in_world(tmp_path, scenario)


def test_two_files_of_one_name_keep_their_own_content(tmp_path):
    async def scenario(world):
        lay_out(world)
        log = world.process()
        name = await log.begin_async("elsewhere")
        for dest, source in (("a/games.txt", "new0"), ("b/games.txt", "new1")):
            await log.add_operation_async(name, "update", world.folder / dest, world.folder / source)
        await world.kill(log)
        await world.process().recover_async()
        assert world.state() == BEFORE

    in_world(tmp_path, scenario)


def test_a_process_that_starts_leaves_a_living_transaction_alone(tmp_path):
    async def scenario(world):
        lay_out(world)
        log, other = world.process(), world.process()
        name = await log.begin_async("elsewhere")
        operation = await log.add_operation_async(
            name, "update", world.folder / "a/games.txt", world.folder / "new0"
        )
        for _ in range(20):
            await world.runtime.sleep(30)
            assert await other.recover_async() == []
        await log.complete_operation_async(name, operation.operation_id)
        assert await log.prepare_async(name)
        await log.commit_async(name)
        assert world.state()["a/games.txt"] == "new a"

    in_world(tmp_path, scenario)


def test_an_owner_that_slept_too_long_cannot_commit_what_was_undone(tmp_path):
    async def scenario(world):
        lay_out(world)
        log, other = world.process(), world.process()
        name = await log.begin_async("elsewhere")
        operation = await log.add_operation_async(
            name, "update", world.folder / "a/games.txt", world.folder / "new0"
        )
        await log.complete_operation_async(name, operation.operation_id)
        assert await log.prepare_async(name)
        await world.kill(log)
        assert [record.state for record in await other.recover_async()] == [TransactionState.ROLLED_BACK]
        with pytest.raises(LeaseLost):
            await log.commit_async(name)
        assert world.state() == BEFORE

    in_world(tmp_path, scenario)


def test_one_file_belongs_to_one_transaction_at_a_time(tmp_path):
    async def scenario(world):
        lay_out(world)
        log, other = world.process(), world.process()
        path = world.folder / "a/games.txt"
        mine, theirs = await log.begin_async("x"), await other.begin_async("y")
        await log.add_operation_async(mine, "update", path, world.folder / "new0")
        with pytest.raises(Conflict):
            await other.add_operation_async(theirs, "update", path, world.folder / "new1")
        with pytest.raises(ConfigError, match="already"):
            await log.add_operation_async(mine, "delete", path)
        await log.rollback_async(mine)
        await other.add_operation_async(theirs, "update", path, world.folder / "new1")
        await other.rollback_async(theirs)

    in_world(tmp_path, scenario)


def test_a_file_that_others_changed_meanwhile_is_not_overwritten(tmp_path):
    async def scenario(world):
        lay_out(world)
        log = world.process()
        name = await log.begin_async("elsewhere")
        path = world.folder / "a/games.txt"
        operation = await log.add_operation_async(name, "update", path, world.folder / "new0")
        await log.complete_operation_async(name, operation.operation_id)
        path.write_text("written by another program")
        assert not await log.prepare_async(name)
        with pytest.raises(ValueError, match="cannot become committing"):
            await log.commit_async(name)
        await log.rollback_async(name)
        assert path.read_text() == "written by another program"

    in_world(tmp_path, scenario)


def test_staged_content_that_changed_after_it_was_complete_is_not_used(tmp_path):
    async def scenario(world):
        lay_out(world)
        log = world.process()
        name = await log.begin_async("elsewhere")
        operation = await log.add_operation_async(name, "update", world.folder / "a/games.txt")
        Path(operation.staged_path).write_text("as it should be")
        await log.complete_operation_async(name, operation.operation_id)
        Path(operation.staged_path).write_text("torn")
        assert not await log.prepare_async(name)
        await log.rollback_async(name)

    in_world(tmp_path, scenario)


@pytest.mark.parametrize(
    ("kind", "dest"), [("add", "a/games.txt"), ("update", "none.txt"), ("delete", "none.txt"), ("mix", "x")]
)
def test_what_cannot_be_done_is_refused_at_once(tmp_path, kind, dest):
    async def scenario(world):
        lay_out(world)
        log = world.process()
        name = await log.begin_async("elsewhere")
        with pytest.raises(ConfigError):
            await log.add_operation_async(name, kind, world.folder / dest, world.folder / "new0")
        assert not await log.prepare_async(name)
        await log.rollback_async(name)
        assert world.state() == BEFORE

    in_world(tmp_path, scenario)


def test_row_27_a_full_disk_in_the_middle_leaves_the_old_files(tmp_path, monkeypatch):
    async def scenario(world):
        lay_out(world)
        log = world.process()

        def full(source, target):
            raise OSError(errno.ENOSPC, "No space left on device")

        name = await log.begin_async("elsewhere")
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "_copy", full)
            with pytest.raises(StorageFull):
                await log.add_operation_async(
                    name, "update", world.folder / "a/games.txt", world.folder / "new0"
                )
        await log.rollback_async(name)
        assert world.state() == BEFORE

    in_world(tmp_path, scenario)


def test_the_documented_calls_work_without_a_loop(tmp_path):
    path, new = tmp_path / "ratings.db", tmp_path / "incoming"
    path.write_text("old")
    new.write_text("new")
    with merge_transaction("elsewhere", merge_type="ratings") as (isolation, name):
        operation = isolation.add_operation(name, "update", path, new)
        isolation.complete_operation(name, operation.operation_id)
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert isolation.get_transaction(name).state is TransactionState.COMMITTED

    name = begin_merge_transaction("elsewhere")
    isolation = get_transaction_isolation()
    stats = isolation.get_stats()
    assert stats["active_transactions"] == 1
    assert stats["by_type"] == {"ratings": 1, "merge": 1}
    isolation.rollback(name)
    assert isolation.health_check().healthy
    asyncio.run(close_engine())


def test_a_block_that_fails_changes_nothing(tmp_path):
    path, new = tmp_path / "ratings.db", tmp_path / "incoming"
    path.write_text("old")
    new.write_text("new")

    def broken_block():
        with merge_transaction("elsewhere") as (isolation, name):
            isolation.add_operation(name, "update", path, new)
            raise RuntimeError("a bug")

    def unfinished_block():
        with merge_transaction("elsewhere") as (isolation, name):
            isolation.add_operation(name, "update", path, new)

    with pytest.raises(RuntimeError):
        broken_block()
    with pytest.raises(Conflict, match="could not be prepared"):
        unfinished_block()
    assert path.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["incoming", "ratings.db"]
    asyncio.run(close_engine())


def test_a_block_whose_preparation_raises_is_undone(tmp_path, monkeypatch):
    path, new, names = tmp_path / "ratings.db", tmp_path / "incoming", []
    path.write_text("old")
    new.write_text("new")

    def broken(operation):
        raise PermissionError(f"{operation.dest_path} cannot be read")

    def block():
        with merge_transaction("elsewhere") as (isolation, name):
            operation = isolation.add_operation(name, "update", path, new)
            isolation.complete_operation(name, operation.operation_id)
            names.append(name)

    monkeypatch.setattr(transactions, "is_unchanged", broken)
    with pytest.raises(PermissionError):
        block()
    record = get_transaction_isolation().get_transaction(names[0])
    assert record.state is TransactionState.ROLLED_BACK
    assert sorted(os.listdir(tmp_path)) == ["incoming", "ratings.db"]
    asyncio.run(close_engine())
