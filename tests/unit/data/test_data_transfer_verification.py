"""Whether what arrived is what left, and where bad files go."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transfer_kit import TransferWorld, write_file

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.transfer_verification import (
    TransferVerifier,
    compute_batch_checksum,
    compute_file_checksum,
    get_transfer_verifier,
    quick_verify,
    verify_transfer,
    wire_transfer_events,
)
from ringrift.data.files import FileBusy
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError, Unavailable
from ringrift.testing.simulation import simulate


class VerifierWorld(TransferWorld):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.verifier = TransferVerifier(
            kv=self.engine.kv, quarantine_dir=folder / "quarantine", runtime=self.runtime, router=self.router
        )
        self.verifier.wire()

    async def stats(self):
        return await self.verifier.stats_async()


def in_world(folder, scenario):
    async def run():
        await scenario(VerifierWorld(folder))

    simulate(run())


def test_a_copy_that_is_right_and_one_that_is_not(tmp_path):
    async def scenario(world):
        source = write_file(tmp_path / "a", b"content")
        good, bad = write_file(tmp_path / "b", b"content"), write_file(tmp_path / "c", b"contenT")
        first = await world.verifier.record_transfer_async(source, good)
        second = await world.verifier.record_transfer_async(source, bad)
        assert await world.verifier.verify_transfer_async(first)
        assert not await world.verifier.verify_transfer_async(second)
        (said,) = world.heard("SYNC_CHECKSUM_FAILED")
        assert said["dest_path"] == str(bad)
        stats = await world.stats()
        assert (stats["verified_24h"], stats["failed_24h"], stats["verification_rate"]) == (1, 1, 0.5)
        assert stats["bytes_transferred_24h"] == 7
        assert stats["transfers_24h"] == 2  # its own announcement is not counted again

    in_world(tmp_path, scenario)


def test_what_nobody_has_looked_at_yet_does_not_count_against_the_rate(tmp_path):
    async def scenario(world):
        source = write_file(tmp_path / "a", b"content")
        for number in range(20):
            name = await world.verifier.record_transfer_async(source, source)
            if number < 3:
                await world.verifier.verify_transfer_async(name)
        stats = await world.stats()
        assert stats["verification_rate"] == 1.0
        assert stats["unverified_24h"] == 17

    in_world(tmp_path, scenario)


def test_old_transfers_leave_the_counts(tmp_path):
    async def scenario(world):
        source = write_file(tmp_path / "a", b"content")
        await world.verifier.record_transfer_async(source, source)
        await world.runtime.sleep(90_000)
        assert (await world.stats())["transfers_24h"] == 0

    in_world(tmp_path, scenario)


def test_a_file_that_cannot_be_read_is_no_answer(tmp_path):
    async def scenario(world):
        source = write_file(tmp_path / "a", b"content")
        name = await world.verifier.record_transfer_async(source, tmp_path / "none")
        with pytest.raises(Unavailable):
            await world.verifier.verify_transfer_async(name)
        assert (await world.stats())["failed_24h"] == 0
        with pytest.raises(ConfigError, match="no transfer"):
            await world.verifier.verify_transfer_async("nothing")

    in_world(tmp_path, scenario)


def test_a_file_that_changes_while_it_is_read_is_busy_and_stays(tmp_path, monkeypatch):
    path = write_file(tmp_path / "a", b"content")
    real = compute_file_checksum.__globals__["hashlib"].file_digest

    def while_another_writes(file, algorithm):
        digest = real(file, algorithm)
        with path.open("ab") as other:
            other.write(b"more")
        return digest

    async def scenario(world):
        with monkeypatch.context() as patch:
            patch.setattr("hashlib.file_digest", while_another_writes)
            with pytest.raises(FileBusy):
                await world.verifier.quarantine_async(path, "looks bad")
        assert path.exists()
        assert (await world.stats())["quarantine_count"] == 0

    in_world(tmp_path, scenario)


def test_a_bad_file_is_set_aside_with_its_story(tmp_path):
    async def scenario(world):
        path = write_file(tmp_path / "bad.npz", b"content")
        place = await world.verifier.quarantine_async(path, "shapes differ", {"config": "hex8_2p"})
        assert not path.exists()
        assert place.read_bytes() == b"content"
        (record,) = await world.verifier.quarantined_async()
        assert (record.original_path, record.reason) == (str(path), "shapes differ")
        assert record.metadata == {"config": "hex8_2p"}
        await world.runtime.sleep(60 * 86_400)
        assert await world.verifier.forget_quarantined_async() == 0  # nothing empties the folder
        place.unlink()
        assert await world.verifier.forget_quarantined_async() == 1

    in_world(tmp_path, scenario)


def test_what_others_found_wrong_counts(tmp_path):
    async def scenario(world):
        card = await world.make("games")
        world.http.faults = ["flip"]
        await world.transfers.send("there", [card])
        stats = await world.stats()
        assert stats["failed_24h"] == 1
        await world.router.publish(
            "DATA_SYNC_COMPLETED",
            {"games_synced": 5, "files_synced": 2, "bytes_transferred": 100, "duration_seconds": 1.0},
            "test",
        )
        stats = await world.stats()
        assert (stats["syncs_seen"], stats["files_seen"], stats["bytes_seen"]) == (1, 2, 100)

    in_world(tmp_path, scenario)


@given(st.lists(st.text(), max_size=6), st.lists(st.text(), max_size=6))
def test_batches_are_the_same_only_if_every_record_is(left, right):
    same = compute_batch_checksum(left).checksum == compute_batch_checksum(right).checksum
    assert same == (left == right)


def test_a_batch_is_verified_by_count_and_content(tmp_path):
    async def scenario(world):
        batch = await world.verifier.record_batch_async(["a", "b\nc"], ids=["g1", "g2"])
        assert await world.verifier.verify_batch_async(batch, ["a", "b\nc"])
        assert not await world.verifier.verify_batch_async(batch, ["a", "b", "c"])
        assert not await world.verifier.verify_batch_async(batch, ["a\nb\nc"])
        assert not await world.verifier.verify_batch_async("unknown", [])

    in_world(tmp_path, scenario)


def test_the_documented_calls_work_without_a_loop(tmp_path):
    source = write_file(tmp_path / "a", b"content")
    verifier = get_transfer_verifier()
    name = verifier.record_transfer(source, source)
    assert verifier.verify_transfer(name)
    assert quick_verify(source, compute_file_checksum(source))
    batch = verifier.record_batch([{"game": 1}])
    assert verifier.verify_batch(batch, [{"game": 1}])
    assert verifier.health_check().healthy
    write_file(tmp_path / "a", b"other")
    assert not verifier.verify_transfer(name)
    assert not verifier.health_check().healthy
    assert verifier.quarantine(source, "it changed").parent == get_settings().data_dir / "quarantine"
    assert len(verifier.get_quarantined()) == 1
    assert verifier.cleanup() == 0
    asyncio.run(close_engine())


def test_two_files_are_compared_as_the_documents_print_it(tmp_path):
    source, good = write_file(tmp_path / "a", b"content"), write_file(tmp_path / "b", b"content")
    assert verify_transfer(source, good)
    assert not verify_transfer(str(source), write_file(tmp_path / "c", b"contenT"))
    with pytest.raises(FileNotFoundError, match="none"):
        verify_transfer(source, tmp_path / "none")
    stats = get_transfer_verifier().get_stats()
    assert (stats["verified_24h"], stats["failed_24h"], stats["unverified_24h"]) == (1, 1, 1)
    asyncio.run(close_engine())


def test_wiring_opens_nothing():
    found = wire_transfer_events()
    assert found is get_transfer_verifier()
    assert found.status == "running"
    found.unwire()
    assert not any(get_settings().data_dir.iterdir())


def test_what_was_sent_and_what_was_fetched_have_their_records(tmp_path):
    async def scenario(world):
        sent = await world.make("games")
        await world.transfers.send("there", [sent])
        record = await world.verifier.transfer_async(f"there/{sent.digest}")
        assert (record.verified, record.dest_checksum, record.file_size) == (True, sent.digest, sent.size)
        assert (record.source_node, record.target_node) == ("here", "there")
        assert await world.verifier.verify_transfer_async(record.transfer_id)
        assert [each.transfer_id for each in await world.verifier.transfers_async()] == [record.transfer_id]
        fetched = await world.make("model", at="there")
        await world.transfers.fetch("there", [fetched])
        landed = await world.verifier.transfer_async(f"here/{fetched.digest}")
        assert (landed.verified, landed.file_size) == (True, fetched.size)
        with pytest.raises(ConfigError, match="no transfer is called"):
            await world.verifier.transfer_async(f"nowhere/{fetched.digest}")

    in_world(tmp_path, scenario)


def test_a_node_that_does_not_answer_says_nothing_about_its_bytes(tmp_path):
    async def scenario(world):
        card = await world.make("games")
        world.http.faults = world.rsync.faults = ["down", "down"]
        with pytest.raises(Unavailable):
            await world.transfers.send("there", [card])
        assert (await world.verifier.transfer_async(f"there/{card.digest}")).verified is None
        assert (await world.stats())["verification_rate"] is None, "of nothing"

    in_world(tmp_path, scenario)
