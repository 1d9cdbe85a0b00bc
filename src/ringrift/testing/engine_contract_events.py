"""Promises of the event log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.ports import Appended, CursorKey, LogBounds, LogEvent, Position
from ringrift.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from ringrift.testing.engine_contract import EngineBench


def event(name: str, kind: str = "T", body: bytes = b"{}") -> LogEvent:
    return LogEvent(id=name, type=kind, body=body)


class EventLogContract:
    """One test per promise."""

    async def test_events_come_back_in_order_with_growing_numbers(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        appended = await log.append([event("a", "X", b"1"), event("b", "Y", b"2")])
        appended += await log.append([event("c", "X", b"3")])
        assert [a.seq for a in appended] == sorted({a.seq for a in appended})
        records = await log.read(after=0, limit=10)
        assert [(r.seq, r.id, r.type, r.body) for r in records] == [
            (appended[0].seq, "a", "X", b"1"),
            (appended[1].seq, "b", "Y", b"2"),
            (appended[2].seq, "c", "X", b"3"),
        ]
        assert all(abs(r.appended_s - bench.now_s()) < 60 for r in records)

    async def test_every_handle_sees_an_acknowledged_event(self, bench: EngineBench) -> None:
        writer, reader = await bench.open(), await bench.open()
        await writer.events.append([event("a")])
        assert [r.id for r in await reader.events.read(after=0, limit=10)] == ["a"]

    async def test_reading_starts_after_a_number_and_stops_at_the_limit(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        seqs = [a.seq for a in await log.append([event(str(n)) for n in range(10)])]
        assert [r.seq for r in await log.read(after=seqs[3], limit=2)] == seqs[4:6]
        assert await log.read(after=seqs[-1], limit=2) == []

    async def test_reading_can_ask_for_types(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        await log.append([event("a", "X"), event("b", "Y"), event("c", "Z"), event("d", "X")])
        assert [r.id for r in await log.read(after=0, limit=10, types=["X", "Z"])] == ["a", "c", "d"]
        assert await log.read(after=0, limit=10, types=[]) == []

    async def test_a_repeated_id_is_stored_once(self, bench: EngineBench) -> None:
        first, second = await bench.open(), await bench.open()
        (stored,) = await first.events.append([event("a", body=b"first")])
        again = await second.events.append([event("a", body=b"second"), event("b"), event("b")])
        assert again[0] == Appended(stored.seq, duplicate=True)
        assert [a.duplicate for a in again] == [True, False, True]
        assert [r.body for r in await first.events.read(after=0, limit=10)] == [b"first", b"{}"]

    async def test_a_repeated_id_uses_up_no_number_and_wakes_nobody(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        (first,) = await log.append([event("a")])
        for _ in range(3):
            await log.append([event("a")])
        assert await log.wait(after=first.seq, timeout_s=0.0) == first.seq
        (second,) = await log.append([event("b")])
        assert await log.bounds() == LogBounds(first.seq, second.seq)
        assert second.seq == first.seq + 1

    async def test_concurrent_appends_all_get_their_own_number(self, bench: EngineBench) -> None:
        handles = [await bench.open() for _ in range(3)]
        outcomes = await asyncio.gather(
            *(handles[n % 3].events.append([event(f"{n}-{m}") for m in range(3)]) for n in range(40))
        )
        seqs = [appended.seq for outcome in outcomes for appended in outcome]
        assert len(set(seqs)) == 120
        # The events of one call stand together.
        assert all(o[2].seq - o[0].seq == 2 for o in outcomes)

    async def test_bounds_of_an_empty_log(self, bench: EngineBench) -> None:
        assert await (await bench.open()).events.bounds() == LogBounds(1, 0)

    async def test_old_events_leave_and_numbers_go_on(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        await log.append([event("old")])
        await bench.pass_time(90_000)
        (kept,) = await log.append([event("new")])
        await log.trim()
        assert [r.id for r in await log.read(after=0, limit=10)] == ["new"]
        assert await log.bounds() == LogBounds(kept.seq, kept.seq)
        await bench.pass_time(90_000)
        await log.trim()
        assert await log.bounds() == LogBounds(kept.seq + 1, kept.seq)
        (after,) = await log.append([event("after")])
        assert after.seq > kept.seq

    async def test_the_log_has_a_bounded_length(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        for start in range(0, 3_000, 500):
            await log.append([event(str(n)) for n in range(start, start + 500)])
        await log.trim()
        first, last = await log.bounds()
        assert last - first + 1 == 1_000  # the bench keeps this many
        assert (await log.read(after=0, limit=1))[0].id == "2000"

    async def test_what_a_live_subscription_has_not_seen_stays_and_the_publisher_is_refused(
        self, bench: EngineBench
    ) -> None:
        log, key = (await bench.open()).events, CursorKey("slow", "node:1")
        (first,) = await log.append([event("unseen")])
        await log.commit({key: Position(first.seq - 1), CursorKey("quick", "node:1"): Position(10_000)})
        for n in range(20):
            await log.append([event(f"{n}-{m}") for m in range(100)])
        with pytest.raises(Unavailable, match=r"'slow' of 'node:1' has not seen the oldest") as refused:
            await log.append([event("refused")])
        assert refused.value.retry_after_s > 0
        await log.trim()
        found = await log.read(after=0, limit=10_000)
        assert found[0].id == "unseen"
        assert len(found) == 2_001  # the bench keeps 1,000 when all were seen
        assert found[-1].id == "19-99"  # a refused call left nothing behind
        await log.commit({key: Position(found[-1].seq)})
        await log.append([event("taken again")])
        await log.trim()
        first_left, last = await log.bounds()
        assert last - first_left + 1 == 1_000

    async def test_a_little_room_does_not_open_a_full_log(self, bench: EngineBench) -> None:
        log, key = (await bench.open()).events, CursorKey("slow", "node:1")
        await log.commit({key: Position(0)})
        await log.append([event(str(n)) for n in range(2_500)])
        await log.commit({key: Position(1)})
        with pytest.raises(Unavailable, match=r"holds 2,499 events.* 'slow' of 'node:1'"):
            await log.append([event(f"refused-{n}") for n in range(100)])
        assert (await log.bounds()).last == 2_500
        await log.commit({key: Position(501)})
        assert not (await log.append([event("taken")]))[0].duplicate

    async def test_a_full_log_of_which_much_was_seen_takes_events(self, bench: EngineBench) -> None:
        log, key = (await bench.open()).events, CursorKey("slow", "node:1")
        await log.commit({key: Position(0)})
        await log.append([event(str(n)) for n in range(7_000)])
        await log.commit({key: Position(5_500)})
        assert not (await log.append([event("taken")]))[0].duplicate

    async def test_a_subscription_that_does_not_renew_itself_holds_nobody_up_for_long(
        self, bench: EngineBench
    ) -> None:
        log, gone, there = (await bench.open()).events, CursorKey("gone", "n:1"), CursorKey("there", "n:2")
        await log.commit({gone: Position(0), there: Position(100)})
        await log.append([event(str(n)) for n in range(2_500)])
        for _ in range(4):
            await bench.pass_time(1_000)
            await log.commit({there: Position(100)})
        await log.trim()
        assert (await log.bounds()).first == 101
        with pytest.raises(Unavailable, match="'there'"):
            await log.append([event("refused")])
        await bench.pass_time(4_000)
        await log.trim()
        await log.append([event("taken")])

    async def test_the_number_at_a_time_separates_older_from_newer(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        assert await log.seq_at(since_s=bench.now_s()) == 0
        older = await log.append([event(str(n)) for n in range(7)])
        await bench.pass_time(10)
        border_s = bench.now_s() - 5
        newer = await log.append([event(str(n)) for n in range(10, 17)])
        assert await log.seq_at(since_s=border_s) == older[-1].seq
        assert await log.seq_at(since_s=0) == older[0].seq - 1
        assert await log.seq_at(since_s=bench.now_s() + 5) == newer[-1].seq

    async def test_waiting_ends_with_the_next_event_of_any_handle(self, bench: EngineBench) -> None:
        reader, writer = await bench.open(), await bench.open()
        waiting = asyncio.create_task(reader.events.wait(after=0, timeout_s=30))
        await bench.settle()
        (appended,) = await writer.events.append([event("a")])
        assert await asyncio.wait_for(waiting, 30) == appended.seq

    async def test_waiting_ends_at_its_time_out(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        assert await log.wait(after=0, timeout_s=0.05) == 0

    async def test_waiting_for_the_past_returns_at_once(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        (appended,) = await log.append([event("a")])
        assert await asyncio.wait_for(log.wait(after=0, timeout_s=30), 30) == appended.seq

    async def test_positions_belong_to_a_consumer_in_an_instance(self, bench: EngineBench) -> None:
        first, second = await bench.open(), await bench.open()
        await first.events.commit(
            {
                CursorKey("sync", "node:1"): Position(5, (7, 9)),
                CursorKey("train", "node:1"): Position(3),
                CursorKey("sync", "node:2"): Position(1),
            }
        )
        found = await second.events.positions("node:1")
        assert found == {"sync": Position(5, (7, 9)), "train": Position(3)}
        assert await second.events.positions("node:3") == {}

    async def test_a_position_never_moves_back(self, bench: EngineBench) -> None:
        log, key = (await bench.open()).events, CursorKey("sync", "n")
        await log.commit({key: Position(5, (8,))})
        await log.commit({key: Position(4, (5, 7))})
        assert await log.positions("n") == {"sync": Position(5, (7, 8))}
        await log.commit({key: Position(8, (8,))})
        assert await log.positions("n") == {"sync": Position(8)}

    async def test_forgotten_positions_are_gone(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        await log.commit({CursorKey("a", "n"): Position(1), CursorKey("b", "n"): Position(2)})
        await log.forget([CursorKey("a", "n"), CursorKey("absent", "n")])
        assert await log.positions("n") == {"b": Position(2)}

    async def test_an_event_that_is_too_large_is_refused(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        with pytest.raises(ConfigError, match="blob"):
            await log.append([event("fits"), event("huge", body=bytes(VALUE_BYTES_MAX + 1))])
        assert await log.read(after=0, limit=10) == []
