"""What was to go where: the ledger, its retries, the write-ahead log and what failed for good."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transfer_kit import in_transfer_world

from ringrift.coordination.delivery_ledger import get_delivery_ledger, get_retry_queue
from ringrift.coordination.sync_durability import (
    DeadLetterEntry,
    SyncDeadLetterQueue,
    SyncWAL,
    SyncWALEntry,
    WalFull,
    get_sync_wal,
)
from ringrift.data.sync.daemon import TransferUpkeep
from ringrift.data.transfer.contract import NodeUnreachable
from ringrift.data.transfer.deliveries import DeliveryLedger, DeliveryStatus, RetryQueue, retry_delay_s
from ringrift.engine.opening import close_engine, memory_engine
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError, Unavailable
from ringrift.testing.simulation import SimulatedRuntime, simulate


def test_retries_wait_longer_each_time_up_to_a_bound():
    assert [retry_delay_s(number) for number in range(6)] == [30, 60, 120, 240, 240, 240]


def test_all_attempts_of_a_delivery_are_one_record():
    async def scenario(world):
        ledger = DeliveryLedger(kv=world.kv, runtime=world.runtime)
        for number in range(3):
            name = await ledger.record_delivery_started("model", "abc", "there", checksum="abc")
            await ledger.record_failed(name, f"try {number}")
        (record,) = await ledger.deliveries()
        assert (record.retry_count, record.error) == (2, "try 2")

    in_transfer_world(scenario)


def test_a_delivery_that_failed_too_often_is_given_up_until_somebody_asks_anew():
    async def scenario(world):
        ledger = DeliveryLedger(kv=world.kv, runtime=world.runtime)
        for _ in range(5):
            name = await ledger.record_delivery_started("model", "abc", "there", checksum="abc")
            record = await ledger.record_failed(name, "down")
        assert record.is_given_up
        await ledger.record_delivery_started("model", "abc", "there", checksum="abc")
        assert (await ledger.get(name)).retry_count == 0

    in_transfer_world(scenario)


def test_another_checksum_at_the_target_is_no_delivery():
    async def scenario(world):
        ledger = DeliveryLedger(kv=world.kv, runtime=world.runtime)
        name = await ledger.record_delivery_started("model", "path", "there", checksum="right")
        await ledger.record_transferred(name, method="rsync")
        assert (await ledger.get(name)).status is DeliveryStatus.TRANSFERRED
        assert (await ledger.record_verified(name, "wrong")).status is DeliveryStatus.FAILED
        assert (await ledger.record_verified(name, "right")).status is DeliveryStatus.VERIFIED

    in_transfer_world(scenario)


def test_a_late_failure_does_not_undo_what_was_verified():
    async def scenario(world):
        ledger = DeliveryLedger(kv=world.kv, runtime=world.runtime)
        name = await ledger.record_delivery_started("model", "path", "there", checksum="c")
        await ledger.record_verified(name, "c")
        assert (await ledger.record_failed(name, "late")).status is DeliveryStatus.VERIFIED

    in_transfer_world(scenario)


def test_an_unknown_delivery_is_named():
    async def scenario(world):
        with pytest.raises(ConfigError, match="no delivery"):
            await DeliveryLedger(kv=world.kv, runtime=world.runtime).record_verified("nobody/x", "c")

    in_transfer_world(scenario)


def test_health_follows_from_what_arrived():
    async def scenario(world):
        ledger = DeliveryLedger(kv=world.kv, runtime=world.runtime)
        assert (await ledger.stats())["success_rate"] is None
        assert (await ledger.check()).healthy, "nothing is lost"
        for number in range(10):
            name = await ledger.record_delivery_started("model", str(number), "there", checksum="c")
            if number < 7:
                await ledger.record_verified(name, "c")
            else:
                await ledger.record_failed(name, "down", final=True)
        assert (await ledger.stats())["success_rate"] == pytest.approx(0.7)
        assert not (await ledger.check()).healthy

    in_transfer_world(scenario)


def test_a_successful_retry_is_marked_on_the_same_record():
    async def scenario(world):
        card = await world.make("games")
        world.http.faults, world.rsync.faults = ["down"], ["down"]
        with pytest.raises(NodeUnreachable):
            await world.transfers.send("there", [card])
        queue = RetryQueue(world.transfers.ledger, world.runtime)
        queue.register_handler(resend(world))
        assert (await queue.run_due()).delivered == 0  # not yet due
        await world.runtime.sleep(31)
        assert (await queue.run_due()).delivered == 1
        (record,) = await world.transfers.ledger.deliveries()
        assert (record.status, record.retry_count) == (DeliveryStatus.VERIFIED, 1)
        assert (await queue.run_due()).delivered == 0

    in_transfer_world(scenario)


def test_without_a_handler_a_retry_waits_instead_of_being_dropped():
    async def scenario(world):
        ledger = await failing_ledger(world)
        queue = RetryQueue(ledger, world.runtime)
        await world.runtime.sleep(31)
        assert (await queue.run_due()).without_handler == 1
        done = []
        queue.register_handler(noting(done))
        assert (await queue.run_due()).delivered == 1
        assert len(done) == 1

    in_transfer_world(scenario)


def test_a_handler_that_breaks_costs_a_retry_and_nothing_else():
    async def scenario(world):
        ledger = await failing_ledger(world)
        queue = RetryQueue(ledger, world.runtime)

        async def broken(record):
            raise RuntimeError("a bug")

        queue.register_handler(broken)
        for tries in range(1, 5):
            await world.runtime.sleep(300)
            outcome = await queue.run_due()
            assert (outcome.failed, outcome.given_up) == ((1, 0) if tries < 4 else (0, 1))
        (record,) = await ledger.deliveries()
        assert record.is_given_up
        assert "RuntimeError: a bug" in record.error

    in_transfer_world(scenario)


def test_two_processes_never_retry_the_same_delivery_at_once():
    async def scenario(world):
        ledger, tried = await failing_ledger(world), []
        await world.runtime.sleep(31)

        async def slow(record):
            tried.append(record.delivery_id)
            await world.runtime.sleep(10)
            return True

        queues = [RetryQueue(ledger, world.runtime) for _ in range(3)]
        for queue in queues:
            queue.register_handler(slow)
        async with asyncio.TaskGroup() as group:
            for queue in queues:
                group.create_task(queue.run_due())
        assert len(tried) == 1

    in_transfer_world(scenario)


def test_what_is_older_than_a_day_is_given_up():
    async def scenario(world):
        ledger = await failing_ledger(world)
        queue = RetryQueue(ledger, world.runtime)
        queue.register_handler(noting([]))
        await world.runtime.sleep(90_000)
        assert (await queue.run_due()).given_up == 1

    in_transfer_world(scenario)


def test_an_attempt_whose_process_died_is_tried_again():
    async def scenario(world):
        ledger = DeliveryLedger(kv=world.kv, runtime=world.runtime)
        await ledger.record_delivery_started("model", "abc", "there", checksum="c")
        queue, done = RetryQueue(ledger, world.runtime), []
        queue.register_handler(noting(done))
        await queue.run_due()
        assert done == []
        await world.runtime.sleep(3_700)
        await queue.run_due()
        await world.runtime.sleep(31)
        assert (await queue.run_due()).delivered == 1

    in_transfer_world(scenario)


def test_the_process_has_one_ledger_and_one_queue():
    assert get_delivery_ledger() is get_delivery_ledger()
    assert get_retry_queue() is get_retry_queue()
    asyncio.run(close_engine())


# --- the write-ahead log ------------------------------------------------------------------------------


def test_the_same_game_with_the_same_data_is_one_entry():
    async def scenario(world):
        wal = SyncWAL(kv=world.kv, runtime=world.runtime)
        first = await wal.append("g1", "here", "there", {"moves": [1, 2], "winner": 0})
        again = await wal.append("g1", "here", "there", {"winner": 0, "moves": [1, 2]})
        other = await wal.append("g1", "here", "there", {"moves": [1, 2, 3]})
        assert first == again
        assert other != first
        assert len(await wal.recover()) == 2

    in_transfer_world(scenario)


def test_what_failed_is_recovered_like_what_was_never_tried():
    async def scenario(world):
        wal = SyncWAL(kv=world.kv, runtime=world.runtime)
        names = [await wal.append(f"g{number}", "here", "there") for number in range(3)]
        await wal.mark_in_progress(names[:2])
        await wal.mark_failed(names[0], "down")
        recovered = {entry.game_id: entry.retry_count for entry in await SyncWAL(kv=world.kv).recover()}
        assert recovered == {"g0": 1, "g1": 0, "g2": 0}

    in_transfer_world(scenario)


def test_a_full_log_refuses_and_takes_again_when_there_is_room():
    async def scenario(world):
        wal = SyncWAL(kv=world.kv, runtime=world.runtime, pending_max=3)
        names = [await wal.append(f"g{number}", "here", "there") for number in range(3)]
        with pytest.raises(WalFull):
            await wal.append("g3", "here", "there")
        assert await wal.append("g0", "here", "there") == names[0]  # it is in already
        assert await wal.mark_complete(names[:1]) == 1
        await wal.append("g3", "here", "there")

    in_transfer_world(scenario)


class CrashingKeyValue:
    """Lets so many writes through and then none: the process died there."""

    def __init__(self, kv, writes):
        self._kv, self.left = kv, writes

    def __getattr__(self, name):
        call = getattr(self._kv, name)
        if name not in {"create", "put", "update", "delete"}:
            return call

        async def counted(*args, **fields):
            if self.left <= 0:
                raise Unavailable("the process is dead")
            self.left -= 1
            return await call(*args, **fields)

        return counted


@given(st.integers(0, 12), st.integers(0, 5), st.data())
def test_row_18_no_acknowledged_game_is_lost_wherever_the_process_dies(writes, batch, data):
    async def run():
        world = SimpleNamespace(runtime=SimulatedRuntime())
        kv = memory_engine(world.runtime).kv
        dying = SyncWAL(kv=CrashingKeyValue(kv, writes), runtime=world.runtime)
        acknowledged, handed_over = {}, set()
        try:
            for number in range(5):
                name = await dying.append(f"g{number}", "here", "there")
                acknowledged[name] = f"g{number}"
                if number == batch:
                    done = data.draw(st.sets(st.sampled_from(sorted(acknowledged))))
                    handed_over |= done
                    await dying.mark_complete(done)
        except Unavailable:
            pass
        left = {entry.entry_id for entry in await SyncWAL(kv=kv, runtime=world.runtime).recover()}
        assert set(acknowledged) - handed_over <= left
        assert left <= set(acknowledged)

    simulate(run())


def test_completing_a_batch_leaves_what_was_added_meanwhile():
    async def scenario(world):
        wal = SyncWAL(kv=world.kv, runtime=world.runtime)
        batch = [await wal.append(f"g{number}", "here", "there") for number in range(3)]
        await wal.append("late", "here", "there")
        assert await wal.mark_complete(batch) == 3
        assert [entry.game_id for entry in await wal.recover()] == ["late"]
        assert (await wal.stats())["complete"] == 3
        await world.runtime.sleep(90_000)
        assert (await wal.stats())["complete"] == 0

    in_transfer_world(scenario)


def test_dead_letters_stay_until_they_are_settled():
    async def scenario(world):
        wal, dead = (
            SyncWAL(kv=world.kv, runtime=world.runtime),
            SyncDeadLetterQueue(kv=world.kv, runtime=world.runtime),
        )
        name = await wal.append("g1", "here", "there")
        entry = await wal.mark_failed(name, "down")
        await dead.add(entry, "gave up", error_type="NodeUnreachable")
        await wal.drop(name)
        assert [letter.game_id for letter in await dead.unresolved()] == ["g1"]
        await world.runtime.sleep(30 * 86_400)
        assert await dead.resolve("g1") == 1
        assert await dead.resolve("g1") == 0
        assert await dead.stats() == {"unresolved": 0, "resolved": 1}

    in_transfer_world(scenario)


def test_the_log_shows_what_transfers_did():
    async def scenario(world):
        wal, dead = SyncWAL(kv=world.kv), SyncDeadLetterQueue(kv=world.kv, runtime=world.runtime)
        sent, late = await world.make("sent"), await world.make("late")
        await world.transfers.send("there", [sent])
        entry = await wal.get(f"there/{sent.digest}")
        assert (entry.status, entry.source_host, entry.target_host) == ("complete", "here", "there")
        world.http.faults = world.rsync.faults = ["down", "down"]
        with pytest.raises(NodeUnreachable):
            await world.transfers.send("there", [late])
        (open_entry,) = await wal.recover()
        assert (open_entry.game_id, open_entry.status) == (late.digest, "failed")
        assert (await SyncWAL(kv=world.kv, runtime=world.runtime).stats())["complete"] == 1
        assert await dead.unresolved() == [], "it is tried again"

    in_transfer_world(scenario)


def test_a_file_that_is_appended_to_the_log_is_sent_by_the_machine():
    async def scenario(world):
        wal = SyncWAL(kv=world.kv, runtime=world.runtime)
        upkeep = TransferUpkeep(world.transfers, world.runtime, this="here")
        card = await world.make("wanted there")
        name = await wal.append(card.digest, "here", "there")
        elsewhere = await wal.append(card.digest, "yonder", "there2")
        game = await wal.append("a game of my own", "here", "there", {"moves": [1]})
        assert (await upkeep.run()).delivered == 1
        assert await world.copies(card) == ["there"]
        assert (await wal.get(name)).status == "complete"
        left = {entry.entry_id: entry.status for entry in await wal.recover()}
        assert left == {elsewhere: "pending", game: "pending"}, "another node's, and what is in no file"
        await world.runtime.sleep(40 * 86_400)
        assert {entry.entry_id for entry in await wal.recover()} == {elsewhere, game}, "kept for ever"

    in_transfer_world(scenario)


def test_what_users_hand_over_themselves_does_not_count_as_on_its_way():
    async def scenario(world):
        wal = SyncWAL(kv=world.kv, runtime=world.runtime)
        names = [await wal.append(f"game {number}", "here", "there") for number in range(60)]
        await wal.mark_in_progress(names[:10])
        await wal.mark_failed(names[0], "down")
        stats = await world.transfers.ledger.stats()
        assert (stats["in_flight"], stats["waiting_for_retry"], stats["given_up"]) == (0, 0, 0)
        assert (await world.transfers.ledger.check()).healthy

    in_transfer_world(scenario)


def test_what_the_machine_gives_up_is_a_dead_letter():
    async def scenario(world):
        wal, dead = (kind(kv=world.kv, runtime=world.runtime) for kind in (SyncWAL, SyncDeadLetterQueue))
        upkeep = TransferUpkeep(world.transfers, world.runtime, this="here")
        await wal.append("0" * 64, "here", "there")
        for _ in range(6):
            await upkeep.run()
            await world.runtime.sleep(300)
        (letter,) = await dead.unresolved()
        assert letter.retry_count == 4
        assert await wal.recover() == []
        assert await dead.resolve("0" * 64) == 1
        assert (await world.transfers.ledger.check()).healthy

    in_transfer_world(scenario)


def test_entries_of_an_earlier_version_are_taken_over():
    async def scenario(world):
        old = SyncWALEntry(
            entry_id="x-y", game_id="g1", source_host="here", target_host="there", data={"a": 1}
        )
        await KvRecords(world.kv, "data/wal/open/", SyncWALEntry).put("x-y", old)
        letter = DeadLetterEntry(
            entry_id="z", game_id="g2", source_host="here", target_host="there", error_message="down"
        )
        await KvRecords(world.kv, "data/wal/dead/", DeadLetterEntry).put("z", letter)
        for _ in range(2):
            (entry,) = await SyncWAL(kv=world.kv, runtime=world.runtime).recover()
            assert (entry.game_id, entry.data) == ("g1", {"a": 1})
            (found,) = await SyncDeadLetterQueue(kv=world.kv, runtime=world.runtime).unresolved()
            assert (found.game_id, found.error_message) == ("g2", "down")
        assert await world.kv.entries("data/wal/") == []

    in_transfer_world(scenario)


async def test_a_log_at_a_path_is_made_and_used_alone(tmp_path):
    path = tmp_path / "wal.db"
    path.touch()
    wal = SyncWAL(db_path=path)
    name = await wal.append("g1", "here", "there", {"moves": [1]})
    assert [entry.entry_id for entry in await SyncWAL(path).recover()] == [name]
    assert await SyncWAL().recover() == [], "another engine's"
    await close_engine()
    assert [entry.entry_id for entry in await wal.recover()] == [name]
    with pytest.raises(ConfigError, match="db_path"):
        SyncWAL(object())
    for make in (SyncWAL, SyncDeadLetterQueue):
        with pytest.raises(ConfigError, match="is a folder; name the database file in it"):
            make(tmp_path)
    await close_engine()


def test_the_log_of_this_process_takes_its_options_once(tmp_path):
    wal = get_sync_wal(tmp_path / "wal.db", pending_max=3)
    assert get_sync_wal() is wal
    assert get_sync_wal(tmp_path / "wal.db") is wal
    with pytest.raises(ConfigError, match=r"SyncWAL already.*pending_max=3"):
        get_sync_wal(pending_max=4)


async def failing_ledger(world):
    ledger = DeliveryLedger(kv=world.kv, runtime=world.runtime)
    name = await ledger.record_delivery_started("model", "abc", "there", checksum="c")
    await ledger.record_failed(name, "down")
    return ledger


def noting(done):
    async def handler(record):
        done.append(record.delivery_id)
        return True

    return handler


def resend(world):
    async def handler(record):
        moved = await world.transfers.send(record.target_node, [record.data_path])
        return not moved.failed

    return handler


def test_upkeep_sends_again_what_is_due_and_tells_what_is_held():
    async def scenario(world):
        card = await world.make("games")
        world.http.faults, world.rsync.faults = ["down"], ["down"]
        with pytest.raises(NodeUnreachable):
            await world.transfers.send("there", [card])
        upkeep = TransferUpkeep(world.transfers, world.runtime, this="here")
        assert (await upkeep.run()).delivered == 0
        assert card.digest in await world.transfers.holdings.of("here")
        await world.runtime.sleep(31)
        assert (await upkeep.run()).delivered == 1
        assert await world.copies(card) == ["there"]

    in_transfer_world(scenario)
