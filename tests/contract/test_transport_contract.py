"""What every transport promises, on each of them, with a real server at the other end."""

import asyncio
import random

import pytest

from data_benches import bench_of
from data_transports import HERE, THERE, artifact
from ringrift.data.config import DataNode
from ringrift.data.transfer.contract import CHUNK_BYTES, Terms, TransferFailed
from ringrift.errors import Corrupt

TRANSPORTS = ["http", "rsync", "base64", "s3", "drive"]


def content_of(size, seed=0):
    return random.Random(seed * 1_000_003 + size).randbytes(size)


@pytest.fixture(params=TRANSPORTS)
async def bench(request, tmp_path, tmp_path_factory):
    made = bench_of(request, tmp_path, tmp_path_factory)
    yield made
    await made.close()


async def test_files_arrive_whole_and_are_told_by_the_receiver(bench):
    sizes = [0, 1, 1000, CHUNK_BYTES, CHUNK_BYTES + 7]
    cards = [bench.here.put(content_of(size)) for size in sizes]
    moved = await bench.transport.send(bench.node, cards, Terms())
    assert moved.failed == ()
    assert {(receipt.digest, receipt.size) for receipt in moved.receipts} == {
        (c.digest, c.size) for c in cards
    }
    assert {receipt.node for receipt in moved.receipts} == {THERE}
    assert moved.bytes_sent >= sum(sizes)
    assert [bench.there.read(card) for card in cards] == [content_of(size) for size in sizes]


async def test_what_is_there_does_not_go_again(bench):
    cards = [bench.here.put(content_of(size)) for size in (0, 10, CHUNK_BYTES + 1)]
    await bench.transport.send(bench.node, cards[1:], Terms())
    moved = await bench.transport.send(bench.node, cards, Terms())
    assert [receipt.digest for receipt in moved.receipts] == [cards[0].digest]
    assert {receipt.digest for receipt in moved.already_there} == {card.digest for card in cards[1:]}
    assert moved.bytes_sent < 10


async def test_files_come_back_and_are_verified_here(bench):
    cards = [bench.there.put(content_of(size)) for size in (0, 5, CHUNK_BYTES + 100)]
    own = bench.here.put(b"here already")
    moved = await bench.transport.fetch(bench.node, [*cards, own], Terms())
    assert moved.failed == ()
    assert {receipt.digest for receipt in moved.receipts} == {card.digest for card in cards}
    assert {receipt.node for receipt in (*moved.receipts, *moved.already_there)} == {HERE}
    assert [receipt.digest for receipt in moved.already_there] == [own.digest]
    assert [bench.here.read(card) for card in cards] == [content_of(card.size) for card in cards]


async def test_a_file_that_is_not_here_fails_alone(bench):
    good, absent = bench.here.put(b"good"), artifact(b"nowhere")
    moved = await bench.transport.send(bench.node, [absent, good], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [good.digest]
    assert [digest for digest, _ in moved.failed] == [absent.digest]


async def test_a_file_that_is_not_there_fails_alone(bench):
    good, absent = bench.there.put(b"good"), artifact(b"nowhere")
    moved = await bench.transport.fetch(bench.node, [absent, good], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [good.digest]
    assert [digest for digest, _ in moved.failed] == [absent.digest]
    assert bench.here.read(absent) is None


async def test_a_damaged_file_of_ours_never_becomes_visible_there(bench):
    content = content_of(CHUNK_BYTES + 50)
    bad, good = bench.here.put(content), bench.here.put(b"good")
    bench.here.damage(bad)
    moved = await bench.transport.send(bench.node, [bad, good], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [good.digest]
    assert [digest for digest, _ in moved.failed] == [bad.digest]
    assert moved.corrupted == {bad.digest}
    assert bench.there.read(bad) is None


async def test_a_damaged_file_of_theirs_never_becomes_visible_here(bench):
    bad, good = bench.there.put(content_of(CHUNK_BYTES + 50)), bench.there.put(b"good")
    bench.there.damage(bad)
    moved = await bench.transport.fetch(bench.node, [bad, good], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [good.digest]
    assert moved.corrupted == {bad.digest}
    assert bench.here.read(bad) is None


async def test_a_node_that_does_not_answer_is_told(bench):
    card = bench.here.put(b"x")
    with pytest.raises(TransferFailed):
        await bench.transport.send(bench.unreachable, [card], Terms(timeout_s=60.0))
    with pytest.raises(TransferFailed):
        await bench.transport.fetch(bench.unreachable, [artifact(b"y")], Terms(timeout_s=60.0))


async def test_a_node_without_an_address_is_not_for_it(bench):
    assert bench.transport.reaches(bench.node)
    assert not bench.transport.reaches(DataNode(name="bare"))


async def test_progress_grows_to_the_whole(bench):
    cards = [bench.here.put(content_of(size)) for size in (10, 2 * CHUNK_BYTES)]
    seen = []

    async def watch(progress):
        seen.append(progress)

    await bench.transport.send(bench.node, cards, Terms(on_progress=watch))
    done = [progress.bytes_done for progress in seen]
    assert done == sorted(done)
    assert (seen[-1].bytes_done, seen[-1].files_done) == (10 + 2 * CHUNK_BYTES, 2)
    assert {(p.bytes_total, p.files_total) for p in seen} == {(10 + 2 * CHUNK_BYTES, 2)}


class HalfOfIt:
    """Lets so many bytes go and no more; programs that pace themselves go too slowly to come to the end."""

    bytes_per_s = CHUNK_BYTES / 4

    def __init__(self, count):
        self._left = count

    async def spend(self, count):
        self._left -= count
        if self._left < 0:
            await asyncio.Event().wait()


async def test_a_broken_transfer_goes_on_where_it_stopped(bench):
    size = 4 * CHUNK_BYTES
    card = bench.here.put(content_of(size))
    under_way = asyncio.Event()

    async def watch(progress):
        if progress.bytes_done >= CHUNK_BYTES // 2:
            under_way.set()

    # As text a part is a third larger, and the first must be through.
    terms = Terms(pace=HalfOfIt(2 * CHUNK_BYTES), on_progress=watch)
    sending = asyncio.ensure_future(bench.transport.send(bench.node, [card], terms))
    await asyncio.wait_for(under_way.wait(), 120)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert bench.there.read(card) is None
    moved = await bench.transport.send(bench.node, [card], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [card.digest]
    assert bench.there.read(card) == content_of(size)
    assert moved.bytes_sent < size * 4 / 3


async def test_two_may_send_the_same_file_at_once(bench):
    card = bench.here.put(content_of(2 * CHUNK_BYTES))
    both = [bench.transport.send(bench.node, [card], Terms()) for _ in range(2)]
    told = await asyncio.gather(*both, return_exceptions=True)
    assert not [error for error in told if isinstance(error, Corrupt)]
    moved = await bench.transport.send(bench.node, [card], Terms())
    assert moved.failed == ()
    assert bench.there.read(card) == content_of(2 * CHUNK_BYTES)
