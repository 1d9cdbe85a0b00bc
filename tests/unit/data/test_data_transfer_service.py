"""What moves, by which way, and what is said about it."""

import msgspec
import pytest
from transfer_kit import in_transfer_world

from ringrift.data.artifacts import Receipt
from ringrift.data.config import DataNode
from ringrift.data.transfer.contract import Moved, NodeUnreachable, Terms, TransferPriority, TransferRefused
from ringrift.data.transfer.deliveries import DeliveryStatus, delivery_id
from ringrift.data.transfer.limits import GateLimits
from ringrift.data.transfer.peers import HOLDINGS, NODE_LIMIT, BloomFilter, SyncStallHandler
from ringrift.data.transfer.service import TransferConfig
from ringrift.errors import ConfigError, StorageFull, Unavailable


def test_what_arrived_is_in_the_manifest_with_the_receivers_receipt():
    async def scenario(world):
        cards = [await world.make(f"games {number}") for number in range(3)]
        moved = await world.transfers.send("there", cards)
        assert {receipt.digest for receipt in moved.receipts} == {card.digest for card in cards}
        assert moved.failed == ()
        for card in cards:
            assert await world.copies(card) == ["there"]
            assert await world.blobs["there"].has(card.digest)

    in_transfer_world(scenario)


def test_a_digest_is_as_good_as_a_card_and_the_same_file_twice_goes_once():
    async def scenario(world):
        card = await world.make("games")
        moved = await world.transfers.send("there", [card.digest, card, card.digest])
        assert len(moved.receipts) == 1
        assert world.http.calls == [[card.digest]]

    in_transfer_world(scenario)


def test_a_fetched_file_is_a_copy_of_this_node():
    async def scenario(world):
        card = await world.make("a model", at="there")
        moved = await world.transfers.fetch("there", [card])
        assert [receipt.node for receipt in moved.receipts] == ["here"]
        assert await world.copies(card) == ["here"]

    in_transfer_world(scenario)


def test_what_the_receiver_has_already_counts_as_a_copy_and_costs_no_bytes():
    async def scenario(world):
        card = await world.make("games")
        await world.make("games", at="there")
        moved = await world.transfers.send("there", [card])
        assert [receipt.digest for receipt in moved.already_there] == [card.digest]
        assert moved.bytes_sent == 0
        assert await world.copies(card) == ["there"]

    in_transfer_world(scenario)


def test_files_that_cannot_go_are_named_and_the_others_arrive():
    async def scenario(world):
        good = await world.make("games")
        absent = await world.make("elsewhere", at="yonder")
        unknown = "0" * 64
        moved = await world.transfers.send("there", [good, absent, unknown])
        assert [receipt.digest for receipt in moved.receipts] == [good.digest]
        assert dict(moved.failed) == {
            absent.digest: "this node does not have it",
            unknown: "the manifest does not know it",
        }

    in_transfer_world(scenario)


@pytest.mark.parametrize("fault", ["down", "silent", "lie", "elsewhere", "flip"])
def test_a_way_that_fails_hands_over_to_the_next(fault):
    async def scenario(world):
        card = await world.make("games")
        world.http.faults = [fault]
        moved = await world.transfers.send("there", [card])
        assert [receipt.verifier for receipt in moved.receipts or moved.already_there] == ["rsync"]
        assert await world.copies(card) == ["there"]

    in_transfer_world(scenario)


@pytest.mark.parametrize("fault", ["silent", "lie", "elsewhere", "flip"])
def test_without_a_right_receipt_nothing_counts_as_moved(fault):
    async def scenario(world):
        card = await world.make("games")
        world.http.faults = world.rsync.faults = [fault, fault]
        moved = await world.transfers.send("there", [card])
        assert moved.receipts == ()
        assert [digest for digest, _ in moved.failed] == [card.digest]
        assert await world.copies(card) == []

    in_transfer_world(scenario)


def test_bytes_that_arrive_wrong_are_announced():
    async def scenario(world):
        card = await world.make("games")
        world.http.faults = ["flip"]
        await world.transfers.send("there", [card])
        await world.runtime.sleep(1)  # nobody waits for whoever hears it
        (said,) = world.heard("SYNC_CHECKSUM_FAILED")
        assert (said["source_path"], said["target_node"]) == (card.digest, "there")

    in_transfer_world(scenario)


def test_a_node_that_no_way_reaches_is_named_with_what_each_way_said():
    async def scenario(world):
        card = await world.make("games")
        world.http.faults, world.rsync.faults = ["down"], ["down"]
        with pytest.raises(NodeUnreachable) as caught:
            await world.transfers.send("there", [card])
        assert [name for name, _ in caught.value.attempts] == ["http", "rsync"]
        await world.runtime.sleep(1)  # nobody waits for whoever hears it
        (said,) = world.heard("SYNC_NODE_UNREACHABLE")
        assert said["node_id"] == "there"

    in_transfer_world(scenario)


def test_a_node_that_keeps_failing_is_left_alone_for_a_while_then_tried_once():
    async def scenario(world):
        card = await world.make("games")
        transfers = world.service([world.http])
        world.http.faults = ["down"] * 20
        for _ in range(NODE_LIMIT.failures_max):
            with pytest.raises(NodeUnreachable):
                await transfers.send("there", [card])
        calls = len(world.http.calls)
        with pytest.raises(TransferRefused) as caught:
            await transfers.send("there", [card])
        assert len(world.http.calls) == calls
        assert 0 < caught.value.retry_after_s <= NODE_LIMIT.cooldown_s
        world.http.faults.clear()
        assert len((await transfers.send("yonder", [card])).receipts) == 1
        await world.runtime.sleep(NODE_LIMIT.cooldown_s + 1)
        moved = await transfers.send("there", [card])
        assert len(moved.receipts) == 1

    in_transfer_world(scenario)


def test_the_stall_handler_says_which_node_is_left_alone_and_until_when():
    async def scenario(world):
        card = await world.make("games")
        stalls = SyncStallHandler(kv=world.kv, runtime=world.runtime)
        await stalls.record_stall_async("there", "its operator said so", 100)
        with pytest.raises(TransferRefused, match="its operator said so; it is tried again in 100 s"):
            await world.transfers.send("there", [card])
        assert world.http.calls == world.rsync.calls == []
        await world.runtime.sleep(101)
        assert len((await world.transfers.send("there", [card])).receipts) == 1
        assert await stalls.get_async("there") is None, "it is well again"
        await stalls.record_stall_async("there")
        await stalls.record_recovery_async("there")
        assert (await world.transfers.send("there", [card])).already_there
        assert (await stalls.stats_async())["stalls_recovered"] == 2

    in_transfer_world(scenario)


def test_what_one_process_finds_out_about_a_node_the_others_know():
    async def scenario(world):
        card = await world.make("games")
        one, other = world.service([world.http]), world.service([world.rsync])
        world.http.faults = ["down"] * 3
        for _ in range(NODE_LIMIT.failures_max):
            with pytest.raises(NodeUnreachable):
                await one.send("there", [card])
        with pytest.raises(TransferRefused, match="failed 3 times in a row"):
            await other.send("there", [card])
        assert list(await SyncStallHandler(kv=world.kv, runtime=world.runtime).set_aside_async()) == ["there"]

    in_transfer_world(scenario)


def test_a_transport_that_stops_moving_is_given_up_for_the_next():
    async def scenario(world):
        card = await world.make("games")
        world.http.faults = ["hang"]
        moved = await world.transfers.send("there", [card])
        assert [receipt.verifier for receipt in moved.receipts] == ["rsync"]
        await world.runtime.sleep(1)  # nobody waits for whoever hears it
        (said,) = world.heard("SYNC_STALLED")
        assert said["timeout_seconds"] == world.transfers.config.stall_s
        assert said["target_node"] == "there"

    in_transfer_world(scenario)


def test_a_slow_transport_that_moves_is_not_stalled():
    async def scenario(world):
        card = await world.make(bytes(20 << 20))
        world.http.chunk_s = 0.9 * world.transfers.config.stall_s
        moved = await world.transfers.send("there", [card], timeout_s=3600)
        assert [receipt.verifier for receipt in moved.receipts] == ["http"]
        assert world.said == []

    in_transfer_world(scenario)


def test_the_callers_time_limit_holds_and_what_arrived_before_it_counts():
    async def scenario(world):
        small, large = await world.make("games"), await world.make(bytes(20 << 20))
        world.http.chunk_s = 20.0
        begun_s = world.runtime.monotonic_s()
        moved = await world.transfers.send("there", [small], timeout_s=30)
        assert len(moved.receipts) == 1
        moved = await world.transfers.send("there", [large], timeout_s=30)
        assert world.runtime.monotonic_s() - begun_s == pytest.approx(50.0, abs=0.5)
        assert dict(moved.failed) == {large.digest: "no time was left"}

    in_transfer_world(scenario)


def test_a_transfer_cut_short_by_the_clock_is_no_mark_against_the_transport():
    async def scenario(world):
        large = await world.make(bytes(20 << 20))
        world.http.chunk_s = 20.0
        await world.transfers.send("there", [large], timeout_s=50)
        assert world.ranked("there") == ["http", "rsync"]
        assert world.transfers.health.track("there", "http").breaker.failures == 0

    in_transfer_world(scenario)


def test_a_broken_transfer_goes_on_where_it_stopped():
    async def scenario(world):
        large = await world.make(bytes(20 << 20))
        world.http.chunk_s = 20.0
        await world.transfers.send("there", [large], timeout_s=90)
        world.http.chunk_s = 0.0
        moved = await world.transfers.send("there", [large])
        assert 0 < moved.bytes_sent < large.size
        assert await world.copies(large) == ["there"]

    in_transfer_world(scenario)


def test_a_full_disk_there_is_not_tried_by_other_ways():
    async def scenario(world):
        card = await world.make("games")
        world.http.faults = [StorageFull("no space left at there")]
        with pytest.raises(StorageFull):
            await world.transfers.send("there", [card])
        assert world.rsync.calls == []
        assert world.ranked("there") == ["http", "rsync"]

    in_transfer_world(scenario)


@pytest.mark.parametrize(
    ("node", "options", "why"),
    [
        ("nobody", {}, "no node is called"),
        ("here", {}, "is this node"),
        ("gone", {}, "retired"),
        ("there", {"priority": "soon"}, "priority is 'soon'"),
        ("there", {"timeout_s": 0}, "timeout_s"),
        ("there", {"limit_bytes_per_s": 0}, "moves nothing"),
    ],
)
def test_a_request_that_cannot_be_honored_is_refused(node, options, why):
    async def scenario(world):
        card = await world.make("games")
        with pytest.raises(ConfigError, match=why):
            await world.transfers.send(node, [card], **options)

    in_transfer_world(scenario, nodes=[DataNode(name="there"), DataNode(name="gone", status="retired")])


def test_a_node_without_a_way_to_it_is_refused():
    async def scenario(world):
        world.http._reaches = world.rsync._reaches = lambda node: False
        with pytest.raises(ConfigError, match="no transport reaches"):
            await world.transfers.send("there", [await world.make("games")])

    in_transfer_world(scenario)


def test_progress_is_of_the_whole_call_and_never_goes_back():
    async def scenario(world):
        cards = [await world.make(bytes([number]) * (3 << 20)) for number in range(3)]
        world.http.faults = ["flip"]
        seen = []

        async def watch(progress):
            seen.append(progress)

        await world.transfers.send("there", cards, terms=Terms(on_progress=watch))
        done = [progress.bytes_done for progress in seen]
        assert done == sorted(done)
        assert {progress.bytes_total for progress in seen} == {9 << 20}
        assert seen[-1].bytes_done == 9 << 20

    in_transfer_world(scenario)


def test_the_callers_limit_slows_the_transfer_down():
    async def scenario(world):
        card = await world.make(bytes(20 << 20))
        begun_s = world.runtime.monotonic_s()
        await world.transfers.send("there", [card], limit_bytes_per_s=1e6, timeout_s=100)
        # The first chunks may go at once; the rest goes at the rate.
        assert 17 < world.runtime.monotonic_s() - begun_s < 22

    in_transfer_world(scenario)


def test_a_nodes_own_line_is_the_limit():
    async def scenario(world):
        card = await world.make(bytes(20_000_000))
        begun_s = world.runtime.monotonic_s()
        await world.transfers.send("there", [card], timeout_s=100)
        assert 6 < world.runtime.monotonic_s() - begun_s < 9  # 20 Mbit/s are 2.5 MB/s

    in_transfer_world(scenario, nodes=[DataNode(name="there", bandwidth_mbps=20)])


def test_slots_that_do_not_come_free_in_time_refuse_the_transfer():
    async def scenario(world):
        card = await world.make("games")
        async with world.transfers.gates.entered("there", priority=TransferPriority.NORMAL, wait_s=1):
            with pytest.raises(TransferRefused, match="slots"):
                await world.transfers.send("there", [card], timeout_s=5)
        assert len((await world.transfers.send("there", [card])).receipts) == 1

    in_transfer_world(scenario, config=TransferConfig(gates=GateLimits(total=1, per_node=1)))


def test_a_hint_changes_the_order_and_leaves_nothing_out():
    async def scenario(world):
        cards = [await world.make(f"games {number}") for number in range(20)]
        everything = BloomFilter(64, 1)
        everything.add_many(str(number) for number in range(10_000))  # says yes to all
        assert all(card.digest in everything for card in cards)
        await world.kv.put(HOLDINGS + "there", everything.to_bytes())
        moved = await world.transfers.send("there", cards)
        assert len(moved.receipts) == 20

    in_transfer_world(scenario)


def test_what_the_receiver_surely_lacks_goes_first():
    async def scenario(world):
        there = [await world.make(f"old {number}") for number in range(5)]
        new = await world.make("new")
        hint = BloomFilter.for_items(100, 0.0001)
        hint.add_many(card.digest for card in there)
        await world.kv.put(HOLDINGS + "there", hint.to_bytes())
        await world.transfers.send("there", [*there, new])
        assert world.http.calls[0][0] == new.digest

    in_transfer_world(scenario)


def test_every_delivery_is_one_record_over_all_its_attempts():
    async def scenario(world):
        card = await world.make("games")
        world.http.faults, world.rsync.faults = ["down"], ["down"]
        ledger = world.transfers.ledger
        with pytest.raises(NodeUnreachable):
            await world.transfers.send("there", [card])
        (record,) = await ledger.deliveries()
        assert record.status is DeliveryStatus.FAILED
        world.rsync.faults = []
        await world.transfers.send("there", [card])
        (record,) = await ledger.deliveries()
        assert record.delivery_id == delivery_id(card.digest, "there")
        assert record.status is DeliveryStatus.VERIFIED
        assert record.retry_count == 1
        assert record.method in {"http", "rsync"}

    in_transfer_world(scenario)


def answers(world, *cards, **told):
    """Both ways say that *cards* failed, and send the others as ever."""

    def way(transport):
        as_ever = transport.send

        async def send(node, artifacts, terms):
            rest = [card for card in artifacts if card not in cards]
            moved = await as_ever(node, rest, terms) if rest else Moved()
            failed = tuple((card.digest, "a test") for card in cards)
            return msgspec.structs.replace(moved, failed=failed, **told)

        return send

    world.http.send, world.rsync.send = way(world.http), way(world.rsync)


@pytest.mark.parametrize("delivered", [False, True])
def test_a_copy_is_struck_unless_another_process_brought_it_while_the_call_ran(delivered):
    async def scenario(world):
        card = await world.make("games")
        receipt = Receipt(digest=card.digest, node="there", size=card.size, verified_s=world.runtime.now_s())
        await world.manifest.add_receipts([receipt])
        await world.runtime.sleep(10.0)
        answers(world, card, lacking=frozenset({card.digest}))
        heard = world.http.send

        async def send(node, artifacts, terms):
            moved = await heard(node, artifacts, terms)
            await world.runtime.sleep(1.0)
            if delivered:
                new = msgspec.structs.replace(receipt, verified_s=world.runtime.now_s())
                await world.manifest.add_receipts([new])
            return moved

        world.http.send = send
        moved = await world.transfers.send("there", [card])
        assert moved.lacking == {card.digest}
        assert await world.copies(card) == (["there"] if delivered else [])

    in_transfer_world(scenario)


@pytest.mark.parametrize("broken", ["drop_copy_read_before", "record", "verify", "end"])
def test_what_moved_is_told_though_the_store_fails_right_after(broken, monkeypatch):
    async def fails(*_args, **_kwargs):
        raise Unavailable("the store")

    async def scenario(world):
        good, bad = await world.make("games"), await world.make("other games")
        await world.manifest.add_receipts([Receipt(digest=bad.digest, node="there", size=1, verified_s=-1.0)])
        answers(world, bad, lacking=frozenset({bad.digest}), corrupted=frozenset({bad.digest}))
        service = world.transfers
        parts = (world.manifest, service._decisions, world.blobs["here"], service.ledger)
        (part,) = (part for part in parts if hasattr(part, broken))
        monkeypatch.setattr(part, broken, fails)
        moved = await service.send("there", [good, bad])
        assert [receipt.digest for receipt in moved.receipts] == [good.digest]
        assert dict(moved.failed).keys() == {bad.digest}

    in_transfer_world(scenario)


def test_looking_at_files_that_came_wrong_ends_with_the_time_of_the_call(monkeypatch):
    async def scenario(world):
        cards = [await world.make(f"games {number}") for number in range(4)]
        answers(world, *cards, corrupted=frozenset(card.digest for card in cards))
        looked = []

        async def verify(digest):
            looked.append(digest)
            await world.runtime.sleep(10.0)

        monkeypatch.setattr(world.blobs["here"], "verify", verify)
        moved = await world.transfers.send("there", cards, timeout_s=15)
        assert len(looked) == 2
        assert len(moved.failed) == 4

    in_transfer_world(scenario)
