"""The bookkeeping of one call to a transport."""

import asyncio

import pytest

from data_transports import artifact
from ringrift.data.artifacts import Receipt
from ringrift.data.transfer import contract
from ringrift.data.transfer.contract import (
    CallCounts,
    Moved,
    Terms,
    TransferCall,
    TransferFailed,
    nobody_looks,
)

CARDS = [artifact(text) for text in (b"one", b"two!", b"three")]


def receipt(card):
    return Receipt(digest=card.digest, node="there", size=card.size, verified_s=0.0)


def call_with(seen):
    async def watch(progress):
        seen.append((progress.bytes_done, progress.files_done))

    return TransferCall([*CARDS, CARDS[0]], Terms(on_progress=watch))


async def test_each_file_is_closed_once_by_a_receipt_or_a_reason():
    seen = []
    call = call_with(seen)
    call.found([receipt(CARDS[0])])
    call.arrived([receipt(CARDS[0]), receipt(CARDS[1])])
    call.fail(
        {CARDS[1].digest: "late", CARDS[2].digest: "wrong"}, corrupted=[CARDS[1].digest, CARDS[2].digest]
    )
    moved = call.moved()
    assert moved.already_there == (receipt(CARDS[0]),)
    assert moved.receipts == (receipt(CARDS[1]),)
    assert moved.failed == ((CARDS[2].digest, "wrong"),)
    assert moved.corrupted == {CARDS[2].digest}
    assert call.open == {}


async def test_a_broken_line_is_an_error_only_if_nothing_came_of_the_call():
    call = call_with([])
    with pytest.raises(TransferFailed):
        call.fail_rest(TransferFailed("gone"))
    call.arrived([receipt(CARDS[0])])
    call.fail_rest(TransferFailed("gone"))
    assert dict(call.moved().failed) == {card.digest: "gone" for card in CARDS[1:]}


async def test_progress_never_goes_back():
    seen = []
    call = call_with(seen)
    await call.reached(CARDS[2].digest, 5)
    await call.reached(CARDS[2].digest, 1)
    call.arrived([receipt(CARDS[0])])
    await call.show()
    assert seen == [(5, 0), (5, 0), (5, 1)]


async def test_who_watches_hears_of_long_work_that_moves_no_bytes(monkeypatch):
    monkeypatch.setattr(contract, "_STILL_HERE_S", 0.001)
    seen, enough = [], asyncio.Event()

    async def watch(_progress):
        seen.append(1)
        if len(seen) == 3:
            enough.set()

    call = TransferCall(CARDS, Terms(on_progress=watch))

    async def long_work():
        await enough.wait()
        return "done"

    assert await call.shown_while(long_work()) == "done"
    assert len(seen) >= 3


async def test_cancelled_work_is_not_left_behind():
    ended = asyncio.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.ensure_future(TransferCall(CARDS, Terms()).shown_while(forever()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


async def test_batches_are_bounded_in_files_and_bytes(monkeypatch):
    monkeypatch.setattr(contract, "BATCH_FILES_MAX", 2)
    assert [len(batch) for batch in call_with([]).batches()] == [2, 1]
    monkeypatch.setattr(contract, "BATCH_BYTES_MAX", 4)
    assert [len(batch) for batch in call_with([]).batches()] == [1, 1, 1]


async def test_an_error_of_who_watches_ends_the_work_and_reaches_the_caller():
    ended = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def look():
        raise TransferFailed("nobody may look")

    with pytest.raises(TransferFailed, match="nobody may look"):
        await contract.watched(work(), look, every_s=0.01)
    assert ended.is_set()


def test_what_is_said_of_a_file_later_replaces_how_far_it_had_come():
    one, two = (card.digest for card in CARDS[:2])
    begun = Moved(offsets={one: 2, two: 3})
    assert (begun + Moved(offsets={one: 5})).offsets == {one: 5, two: 3}
    assert (begun + Moved(receipts=(receipt(CARDS[0]),))).offsets == {two: 3}
    wrong = begun + Moved.wrong(one, "other bytes came")
    assert (wrong.offsets, wrong.corrupted, wrong.failed) == ({two: 3}, {one}, ((one, "other bytes came"),))


async def test_a_file_that_the_second_way_brought_arrived_though_the_first_brought_wrong_bytes():
    good, lost, _ = CARDS
    call = CallCounts(CARDS[:2], {}, receiver="there", on_progress=nobody_looks)
    call.take(Moved.wrong(good.digest, "other bytes came") + Moved.wrong(lost.digest, "cut"), method="http")
    assert call.take(Moved(receipts=(receipt(good), receipt(good))), method="rsync") == 1
    call.give_up("no way is left")
    results = {card.digest: result for card, result in call.results()}
    assert (results[good.digest].receipt, results[good.digest].why) == (receipt(good), "")
    assert (results[good.digest].method, results[good.digest].wrong) == ("rsync", "other bytes came")
    assert (results[lost.digest].receipt, results[lost.digest].why) == (None, "http: cut")
    assert call.moved().corrupted == {lost.digest}
    told = [payload["source_path"] for event, payload in call.reports("here", "there")]
    assert sorted(told) == sorted((good.digest, lost.digest)), "of both a checksum was wrong once"
