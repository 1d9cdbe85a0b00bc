"""Sync between real nodes: data servers in processes of their own, sshd, rsync, an engine for this node."""

import asyncio
import errno
import os

import pytest

from data_cluster import running_node
from data_http import SECRET, DataServerProcess
from data_transports import Store
from ringrift.coordination.sync_bandwidth import BatchRsync
from ringrift.coordination.sync_coordinator import AutoSyncConfig, AutoSyncDaemon, SyncFacade
from ringrift.coordination.sync_durability import SyncWAL
from ringrift.coordination.sync_mutex import SyncMutex
from ringrift.coordination.transfer_verification import TransferVerifier
from ringrift.data.kv_records import DecisionLog
from ringrift.data.sync.cluster_view import NodeReportCollector
from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.data.transfer.http.wire import SECRET_FILE
from ringrift.runtime import SystemRuntime

CONFIG = AutoSyncConfig(games_min=1, disk_percent_max=100.0)  # the disk under the test must not matter


@pytest.fixture
def there(tmp_path):
    server = DataServerProcess(tmp_path / "there").start()
    yield server
    server.stop()


@pytest.fixture
def here_root(tmp_path):
    root = tmp_path / "here"
    root.mkdir()
    (root / SECRET_FILE).write_text(SECRET)
    return root


def facade_of(node):
    return SyncFacade(node.plane, router=node.router, config=CONFIG, reports=NodeReportCollector())


async def test_games_reach_two_nodes_by_two_ways_and_are_counted_once(tmp_path, here_root, there, ssh_server):
    runtime = SystemRuntime()
    by_http, by_ssh = Store(tmp_path / "there", runtime), Store(tmp_path / "yonder", runtime)
    yonder = ssh_server.node("yonder", by_ssh.root)
    async with running_node("here", here_root, there.node(ssh_port=1), yonder) as here:
        cards = [await here.make(f"game {number}".encode() * 1000, games=10) for number in range(5)]
        response = await facade_of(here).sync("games", timeout_seconds=120)
        assert response.errors == []
        assert response.success
        assert response.details["nodes"] == ["there", "yonder"]
        assert (response.details["files_moved"], response.details["games_synced"]) == (10, 50)
        for card in cards:
            content = await here.read(card)
            assert by_http.read(card) == by_ssh.read(card) == content
            assert await here.holders(card) == ["here", "there", "yonder"]
        again = await facade_of(here).sync("games", require_confirmation=True, timeout_seconds=120)
        assert again.success
        assert (again.bytes_transferred, again.details["files_confirmed"]) == (0, 10)


async def test_row_09_a_file_that_was_damaged_at_the_receiver_is_not_confirmed_by_hearsay(
    tmp_path, here_root, there
):
    """What receivers hold is read, not assumed: a truncated copy is replaced when somebody asks."""
    store = Store(tmp_path / "there", SystemRuntime())
    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        card = await here.make(b"a long game " * 100_000, games=10)
        facade = facade_of(here)
        assert (await facade.sync("games")).success
        place = store.folder.place(card.digest)
        place.chmod(0o600)
        place.write_bytes(place.read_bytes()[:1000])
        silent = await facade.sync("games")
        assert silent.details["files_moved"] == 0
        asked = await facade.sync("games", require_confirmation=True)
        assert asked.success
        assert asked.details["files_moved"] == 1
        assert store.read(card) == await here.read(card)


@pytest.mark.parametrize("way", ["http", "ssh"])
async def test_a_confirmed_sync_has_receivers_hash_what_they_hold(
    tmp_path, here_root, there, ssh_server, way
):
    """A flipped bit keeps the size: only reading finds it, and it is mended before anything is confirmed."""
    root = tmp_path / "there" if way == "http" else tmp_path / "yonder"
    store = Store(root, SystemRuntime())
    node = there.node(ssh_port=1) if way == "http" else ssh_server.node("there", root)
    async with running_node("here", here_root, node) as here:
        small, large = [await here.make(os.urandom(size), games=1) for size in (1000, CHUNK_BYTES + 1)]
        facade = facade_of(here)
        assert (await facade.sync("games")).success
        begun_s = SystemRuntime().now_s()
        for card in (small, large):
            store.folder.place(card.digest).chmod(0o600)
            store.damage(card)
        asked = await facade.sync("games", require_confirmation=True)
        assert (asked.success, asked.details["files_moved"], asked.details["not_confirmed"]) == (True, 2, {})
        for card in (small, large):
            assert store.read(card) == await here.read(card)
            (receipt,) = [
                each for each in await here.plane.manifest.copies(card.digest) if each.node == "there"
            ]
            assert receipt.verified_s >= begun_s
        assert len(list((root / "quarantine").iterdir())) == 2


async def test_what_is_not_confirmed_is_named(here_root, there, tmp_path):
    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        card = await here.make(b"game", games=1)
        facade = facade_of(here)
        assert (await facade.sync("games")).success
        await asyncio.to_thread(there.kill)
        asked = await facade.sync("games", require_confirmation=True)
        assert not asked.success
        assert asked.details["not_confirmed"] == {"there": [card.digest]}


async def test_a_copy_that_its_node_says_it_does_not_have_counts_no_more(tmp_path, here_root, there):
    """Both copies are gone or damaged: neither may make a third one look dispensable."""
    store = Store(tmp_path / "there", SystemRuntime())
    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        card = await here.make(b"a long game " * 1000, games=10)
        facade = facade_of(here)
        assert (await facade.sync("games")).success
        assert await here.holders(card) == ["here", "there"]
        store.folder.place(card.digest).unlink()
        Store(here_root, SystemRuntime()).damage(card)
        asked = await facade.sync("games", require_confirmation=True)
        assert not asked.success
        assert "the file here is damaged, and was set aside" in asked.errors[0]
        assert await here.holders(card) == [], "the product found both out"
        decided = await DecisionLog(here.plane.kv, SystemRuntime(), node="here").recent(digest=card.digest)
        reasons = {each.action: each.reason for each in decided}
        assert reasons["struck"] == "there said that it does not have it"
        assert reasons["set_aside"].startswith("found damaged while it was sent: the content has digest")
        assert len(decided) == 2
        assert not await here.plane.blobs.has(card.digest), "nobody gets the damaged bytes any more"
        assert len(list((here_root / "quarantine").glob(f"{card.digest}.*.why.json"))) == 1


@pytest.mark.parametrize("size", [0, 700, 200_000])
async def test_a_file_that_was_cut_is_set_aside_when_it_is_sent_and_brought_again(
    tmp_path, here_root, there, size
):
    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        content = b"a long game " * (100_000 if size > 1000 else 100)
        card = await here.make(content, games=10)
        place = Store(here_root, SystemRuntime()).folder.place(card.digest)
        place.chmod(0o600)
        place.write_bytes(content[:size])
        asked = await facade_of(here).sync("games", require_confirmation=True)
        assert not asked.success
        assert await here.holders(card) == []
        assert not place.exists()
        await here.plane.blobs.put_bytes(content)  # what repair brings takes its place
        await here.plane.manifest.register([card])
        assert (await here.plane.transfers.send("there", [card])).receipts


async def test_a_full_disk_while_a_damaged_file_is_set_aside_does_not_hide_how_the_send_ended(
    here_root, there, monkeypatch
):
    def no_room(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        cards = [await here.make(content * 100, games=10) for content in (b"a sound game", b"a bad game")]
        Store(here_root, SystemRuntime()).damage(cards[1])
        monkeypatch.setattr("ringrift.data.protection.records.move_damaged", no_room)
        moved = await here.plane.transfers.send("there", cards)
        assert [each.digest for each in moved.receipts] == [cards[0].digest]
        assert [digest for digest, _ in moved.failed] == [cards[1].digest]
        assert await here.holders(cards[1]) == [], "the damaged file is no copy, wherever it lies"


async def test_a_source_that_says_it_does_not_have_the_file_counts_no_more(tmp_path, here_root, there):
    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        small, large = [await here.make(os.urandom(size), games=1) for size in (1000, CHUNK_BYTES + 1)]
        assert (await facade_of(here).sync("games")).success
        for card in (small, large):
            Store(tmp_path / "there", SystemRuntime()).folder.place(card.digest).unlink()
            await here.plane.blobs.delete(card.digest)
            await here.plane.manifest.drop_copy(card.digest, "here")
        asked = await facade_of(here).sync("games", source_node="there")
        assert not asked.success
        assert [await here.holders(card) for card in (small, large)] == [[], []]


async def test_a_node_that_was_killed_gets_its_data_when_it_is_back(tmp_path, here_root, there):
    store = Store(tmp_path / "there", SystemRuntime())
    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        card = await here.make(b"game", games=10)
        daemon = AutoSyncDaemon(
            config=CONFIG,
            plane=here.plane,
            router=here.router,
            runtime=SystemRuntime(),
            reports=NodeReportCollector(),
        )
        await asyncio.to_thread(there.kill)
        await daemon._run_cycle()
        assert daemon.counts.failures == 1
        assert here.heard("DATA_SYNC_COMPLETED") == []
        assert here.heard("DATA_SYNC_FAILED")
        await asyncio.to_thread(there.start)
        async with asyncio.timeout(300):
            while store.read(card) is None:  # the breaker may hold the node back for a while
                await daemon._run_cycle()
                await asyncio.sleep(0.5)
        assert await here.holders(card) == ["here", "there"]
        (told,) = here.heard("DATA_SYNC_COMPLETED")
        assert told["games_synced"] == 10


async def test_data_of_another_node_is_fetched_from_it(tmp_path, here_root, there):
    theirs = Store(tmp_path / "there", SystemRuntime())
    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        card = await here.make(b"found over there", games=7)
        theirs.put(b"found over there")
        plane = here.plane
        copies = await plane.manifest.copies(card.digest)
        await plane.manifest.add_receipts(
            [
                type(copies[0])(
                    digest=card.digest, node="there", size=card.size, verified_s=plane.runtime.now_s()
                )
            ]
        )
        await plane.blobs.delete(card.digest)
        await plane.manifest.drop_copy(card.digest, "here")
        response = await facade_of(here).trigger_priority_sync("orphan_games_recovery", "there", "hex8_2p")
        assert response.success
        assert await here.read(card) == b"found over there"
        assert here.heard("ORPHAN_GAMES_REGISTERED")[0]["games_recovered"] == 7


async def test_a_real_transfer_shows_in_the_log_and_the_verifier_and_waits_for_whoever_holds_the_host(
    here_root, there
):
    async with running_node("here", here_root, there.node(ssh_port=1)) as here:
        kv, runtime = here.plane.kv, here.plane.runtime
        card = await here.make(b"game " * 1000, games=1)
        somebody = SyncMutex(kv=kv, runtime=runtime)
        assert await somebody.acquire_async("there", "maintenance")
        refused = await facade_of(here).sync("games", targets=["there"], timeout_seconds=1)
        assert not refused.success
        assert await somebody.release_async("there")
        assert (await facade_of(here).sync("games", targets=["there"])).success
        entry = await SyncWAL(kv=kv, runtime=runtime).get(f"there/{card.digest}")
        assert (entry.status, entry.source_host, entry.target_host) == ("complete", "here", "there")
        record = await TransferVerifier(kv=kv, runtime=runtime).transfer_async(entry.entry_id)
        assert (record.verified, record.dest_checksum, record.file_size) == (True, card.digest, card.size)
        assert await somebody.locks_async() == []


async def test_a_batch_goes_by_rsync(tmp_path, here_root, ssh_server):
    store = Store(tmp_path / "yonder", SystemRuntime())
    async with running_node("here", here_root, ssh_server.node("yonder", store.root)) as here:
        cards = [await here.make(f"game {number}".encode() * 500, games=1) for number in range(3)]
        batch = BatchRsync(here.plane)
        batch.add("yonder", cards)
        (result,) = await batch.run_async()
        assert (result.success, result.files_transferred, result.errors) == (True, 3, [])
        assert set(result.methods.values()) == {"rsync"}
        assert [store.read(card) for card in cards] == [await here.read(card) for card in cards]
