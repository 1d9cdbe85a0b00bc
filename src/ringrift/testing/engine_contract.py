"""What every engine must do, one test per promise. An adapter's tests subclass and add nothing.

A test module defines a fixture `bench` that returns an `EngineBench`; with that alone it runs all of

    class TestEvents(EventLogContract): ...
    class TestQueue(WorkQueueContract): ...
    class TestKeyValue(KeyValueContract): ...
    class TestBlobs(BlobsContract): ...
    class TestValues(PortValuesContract): ...
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import pytest

from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.ports import (
    Appended,
    Change,
    CursorKey,
    Engine,
    LogBounds,
    LogEvent,
    Position,
    WriteGuard,
)
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, LeaseLost, RevisionMismatch, Unavailable
from ringrift.runtime import SystemRuntime
from ringrift.testing.queue_contract import WorkQueueContract
from ringrift.testing.values_contract import PortValuesContract

__all__ = [
    "BlobsContract",
    "EngineBench",
    "EventLogContract",
    "KeyValueContract",
    "PortValuesContract",
    "ShiftedRuntime",
    "WorkQueueContract",
]


# Promises of the blob store.


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class BlobsContract:
    """One test per promise."""

    async def test_every_handle_reads_what_was_put(self, bench: EngineBench, tmp_path: Path) -> None:
        first, second = (await bench.open()).blobs, (await bench.open()).blobs
        source = tmp_path / "model.pt"
        source.write_bytes(b"weights" * 1000)
        digest = await first.put(source)
        assert digest == _digest(b"weights" * 1000)
        with await second.open(digest) as file:
            assert file.read() == b"weights" * 1000
        assert await second.size(digest) == 7000
        await second.verify(digest)
        assert source.exists()

    async def test_content_is_stored_once(self, bench: EngineBench) -> None:
        blobs = (await bench.open()).blobs
        assert await blobs.put_bytes(b"same") == await blobs.put_bytes(b"same")
        assert await blobs.digests() == [_digest(b"same")]

    # All write the same name: whoever comes last must not replace a file that others read.
    async def test_many_may_put_the_same_content_at_once(self, bench: EngineBench) -> None:
        handles = [(await bench.open()).blobs for _ in range(4)]
        content = b"shard" * 10_000
        digests = await asyncio.gather(*(blobs.put_bytes(content) for blobs in handles))
        assert set(digests) == {_digest(content)}
        await handles[0].verify(digests[0])

    # Its digest is well known, and 0 bytes are easily taken for nothing.
    async def test_the_empty_blob_is_a_blob(self, bench: EngineBench) -> None:
        blobs = (await bench.open()).blobs
        digest = await blobs.put_bytes(b"")
        assert await blobs.has(digest)
        assert await blobs.size(digest) == 0

    async def test_absence_is_reported(self, bench: EngineBench) -> None:
        blobs, absent = (await bench.open()).blobs, _digest(b"absent")
        assert not await blobs.has(absent)
        assert await blobs.size(absent) is None
        assert await blobs.path(absent) is None
        assert not await blobs.delete(absent)
        with pytest.raises(KeyError):
            await blobs.open(absent)
        with pytest.raises(KeyError):
            await blobs.verify(absent)

    async def test_a_deleted_blob_is_gone_for_all(self, bench: EngineBench) -> None:
        first, second = (await bench.open()).blobs, (await bench.open()).blobs
        digest = await first.put_bytes(b"x")
        assert await second.delete(digest)
        assert not await first.has(digest)
        assert await first.digests() == []

    async def test_an_upload_is_invisible_until_committed(self, bench: EngineBench) -> None:
        blobs, digest = (await bench.open()).blobs, _digest(b"one two")
        upload = await blobs.upload(digest)
        assert upload.offset == 0
        await upload.write(b"one ")
        assert upload.offset == 4
        assert not await blobs.has(digest)
        assert await blobs.digests() == []
        await upload.write(b"two")
        assert await upload.commit() == digest
        await blobs.verify(digest)

    async def test_an_upload_continues_where_a_lost_handle_stopped(self, bench: EngineBench) -> None:
        digest = _digest(b"one two")
        lost = await bench.open()
        await (await lost.blobs.upload(digest)).write(b"one ")
        await lost.close()  # as a process that was killed: nobody committed or aborted
        blobs = (await bench.open()).blobs
        upload = await blobs.upload(digest)
        assert upload.offset == 4
        await upload.write(b"two")
        await upload.commit()
        with await blobs.open(digest) as file:
            assert file.read() == b"one two"

    # Forgotten, too: continuing from wrong bytes could never end well.
    async def test_an_upload_of_other_bytes_is_refused_and_forgotten(self, bench: EngineBench) -> None:
        blobs, digest = (await bench.open()).blobs, _digest(b"right")
        upload = await blobs.upload(digest)
        await upload.write(b"wrong")
        with pytest.raises(Corrupt):
            await upload.commit()
        assert not await blobs.has(digest)
        again = await blobs.upload(digest)
        assert again.offset == 0
        await again.write(b"right")
        await again.commit()

    async def test_an_aborted_upload_leaves_nothing(self, bench: EngineBench) -> None:
        blobs, digest = (await bench.open()).blobs, _digest(b"x")
        upload = await blobs.upload(digest)
        await upload.write(b"x")
        await upload.abort()
        again = await blobs.upload(digest)
        assert again.offset == 0
        await again.abort()

    @pytest.mark.parametrize("name", ["", "abc", "../../etc/passwd", "A" * 64, "0" * 63 + "/"])
    async def test_a_name_that_is_no_digest_is_refused(self, bench: EngineBench, name: str) -> None:
        blobs = (await bench.open()).blobs
        for call in (blobs.has(name), blobs.open(name), blobs.upload(name), blobs.delete(name)):
            with pytest.raises(ConfigError):
                await call


# Promises of the key-value store.


async def _next(changes: AsyncIterator[Change]) -> Change:
    return await asyncio.wait_for(anext(changes), 30)


class KeyValueContract:
    """One test per promise."""

    async def test_every_handle_sees_a_stored_value(self, bench: EngineBench) -> None:
        first, second = (await bench.open()).kv, (await bench.open()).kv
        revision = await first.create("champion", b"net-1")
        found = await second.get("champion")
        assert found is not None
        assert (found.value, found.revision, found.expires_s) == (b"net-1", revision, None)
        assert await second.get("other") is None

    async def test_a_key_is_created_once(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        revision = await kv.create("a", b"1")
        with pytest.raises(AlreadyExists) as refused:
            await kv.create("a", b"2")
        assert refused.value.revision == revision

    # Leases are made of this: two winners would be two leaders.
    async def test_of_many_who_create_one_wins(self, bench: EngineBench) -> None:
        handles = [(await bench.open()).kv for _ in range(4)]
        outcomes = await asyncio.gather(
            *(kv.create("lease", str(n).encode()) for n, kv in enumerate(handles)), return_exceptions=True
        )
        assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 3

    # In the same step as the write: a check before it would leave a moment in which the role changes hands.
    async def test_a_guarded_write_needs_the_revision_of_the_guard(self, bench: EngineBench) -> None:
        kv, other = (await bench.open()).kv, (await bench.open()).kv
        guard = WriteGuard("role", await kv.create("role", b"me"))
        revision = await kv.create("a", b"1", guard=guard)
        revision = await kv.update("a", b"2", revision=revision, guard=guard)
        await kv.put("b", b"1", guard=guard)
        newest = await other.put("role", b"another")
        for refused in (
            kv.create("c", b"1", guard=guard),
            kv.put("b", b"2", guard=guard),
            kv.update("a", b"3", revision=revision, guard=guard),
            kv.delete("a", guard=guard),
        ):
            with pytest.raises(LeaseLost, match=str(newest)) as lost:
                await refused
            assert (lost.value.name, lost.value.token) == guard
        found = {entry.key: entry.value for entry in await other.entries()}
        assert found == {"a": b"2", "b": b"1", "role": b"another"}
        assert await kv.delete("a", guard=WriteGuard("role", newest))

    async def test_a_guard_that_ran_out_or_was_deleted_lets_nobody_pass(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        short = WriteGuard("short", await kv.create("short", b"", ttl_s=5))
        gone = WriteGuard("gone", await kv.create("gone", b""))
        await kv.put("a", b"1", guard=short)
        await kv.delete("gone")
        await bench.pass_time(6)
        # A role that nobody has is not a role that everybody has.
        for guard in (short, gone, WriteGuard("never", 1)):
            with pytest.raises(LeaseLost, match="nobody has it"):
                await kv.put("a", b"2", guard=guard)
        entry = await kv.get("a")
        assert entry is not None
        assert entry.value == b"1"

    async def test_an_update_needs_the_current_revision(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        first = await kv.create("a", b"1")
        second = await kv.update("a", b"2", revision=first)
        assert second > first
        with pytest.raises(RevisionMismatch) as refused:
            await kv.update("a", b"3", revision=first)
        assert refused.value.current == second
        with pytest.raises(RevisionMismatch) as absent:
            await kv.update("b", b"1", revision=second)
        assert absent.value.current is None

    # The usual loop of reading and changing: every lost update would be missing from the count.
    async def test_no_update_is_lost_between_handles(self, bench: EngineBench) -> None:
        handles = [(await bench.open()).kv for _ in range(3)]
        await handles[0].create("count", b"0")

        async def add_one(number: int) -> None:
            kv = handles[number % 3]
            while True:
                entry = await kv.get("count")
                assert entry is not None
                try:
                    await kv.update("count", b"%d" % (int(entry.value) + 1), revision=entry.revision)
                    return
                except RevisionMismatch:
                    continue

        await asyncio.gather(*(add_one(number) for number in range(12)))
        final = await handles[0].get("count")
        assert final is not None
        assert final.value == b"12"

    async def test_put_stores_whatever_was_there(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        first = await kv.put("a", b"1")
        second = await kv.put("a", b"2")
        assert second > first
        assert [entry.value for entry in await kv.entries()] == [b"2"]

    async def test_deleting_says_whether_it_was_there(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        await kv.put("a", b"1")
        assert await kv.delete("a")
        assert not await kv.delete("a")
        assert await kv.get("a") is None

    async def test_deleting_can_ask_for_the_revision(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        old = await kv.put("a", b"1")
        current = await kv.put("a", b"2")
        with pytest.raises(RevisionMismatch):
            await kv.delete("a", revision=old)
        assert await kv.delete("a", revision=current)

    # A revision is a fencing token: after a deletion it must not start again.
    async def test_revisions_grow_over_keys_deletion_and_expiry(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        seen = [await kv.put("a", b"1"), await kv.put("b", b"1")]
        await kv.delete("a")
        seen.append(await kv.create("a", b"2", ttl_s=5))
        await bench.pass_time(6)
        seen.append(await kv.create("a", b"3"))
        seen.append(await (await bench.open()).kv.put("c", b"1"))
        assert seen == sorted(set(seen))

    async def test_entries_are_listed_by_prefix_and_key(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        # `rolex` begins like the others, without being below them
        for key in ("role/b", "role/a", "rolex", "node/é", "node/a"):
            await kv.put(key, key.encode())
        assert [entry.key for entry in await kv.entries("role/")] == ["role/a", "role/b"]
        assert [e.key for e in await kv.entries()] == ["node/a", "node/é", "role/a", "role/b", "rolex"]
        assert [e.key for e in await kv.entries("rolex", "node/", "nothing/", "node/a")] == [
            *("node/a", "node/é", "rolex")
        ]

    async def test_an_entry_ends_with_its_time(self, bench: EngineBench) -> None:
        first, second = (await bench.open()).kv, (await bench.open()).kv
        revision = await first.create("a", b"1", ttl_s=5)
        await bench.pass_time(3)
        entry = await second.get("a")
        assert entry is not None
        assert entry.expires_s == pytest.approx(bench.now_s() + 2, abs=1)
        await bench.pass_time(3)
        assert await second.get("a") is None
        assert await second.entries() == []
        assert not await second.delete("a")
        with pytest.raises(RevisionMismatch):
            await first.update("a", b"2", revision=revision)
        await second.create("a", b"3")  # the name is free again, though nobody deleted it

    # A renewal without a time means for ever: keeping the old end would drop what somebody wants kept.
    async def test_an_update_gives_new_time_or_none(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        revision = await kv.create("a", b"1", ttl_s=5)
        await bench.pass_time(3)
        revision = await kv.update("a", b"2", revision=revision, ttl_s=5)
        await bench.pass_time(3)
        revision = await kv.update("a", b"3", revision=revision)
        await bench.pass_time(100)
        entry = await kv.get("a")
        assert entry is not None
        assert entry.value == b"3"

    async def test_a_watch_sees_changes_of_every_handle_in_order(self, bench: EngineBench) -> None:
        watcher, writer = (await bench.open()).kv, (await bench.open()).kv
        start = await writer.put("x/a", b"0")
        async with aclosing(watcher.watch("x/", after=start)) as changes, asyncio.TaskGroup() as group:
            revisions = [await writer.put("x/b", b"1")]
            assert await _next(changes) == Change(key="x/b", value=b"1", revision=revisions[0])
            # a change outside of the prefix wakes, and must not be handed out
            await writer.put("y/c", b"elsewhere")
            waiting = group.create_task(_next(changes))
            await bench.settle()
            revision = await writer.put("x/a", b"2")
            assert await waiting == Change(key="x/a", value=b"2", revision=revision)

    async def test_changes_come_in_pages_without_waiting(self, bench: EngineBench) -> None:
        reader, writer = (await bench.open()).kv, (await bench.open()).kv
        for number in range(5):
            await writer.put(f"x/{number}", b"1")
            await writer.put(f"y/{number}", b"1")
        seen, after, complete = list[Change](), 0, False
        while not complete:
            page = await reader.changes("x/", after=after, limit=2)
            seen += page.changes
            after, complete = page.revision, page.complete
        assert [change.key for change in seen] == [f"x/{number}" for number in range(5)]
        await writer.put("x/1", b"2")
        await writer.delete("x/3")
        page = await reader.changes("x/", after=after)
        assert [(change.key, change.value) for change in page.changes] == [("x/1", b"2"), ("x/3", None)]
        await writer.put("y/1", b"2")
        page = await reader.changes("x/", after=page.revision)
        assert page.changes == ()
        assert page.complete

    # A reader that remembers a revision of a database that was put back from a copy.
    async def test_who_asks_beyond_the_last_change_misses_none_that_comes(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        revision = await kv.put("a", b"1")
        page = await kv.changes(after=revision + 10)
        assert (page.changes, page.revision, page.complete) == ((), revision, True)
        await kv.put("a", b"2")
        page = await kv.changes(after=page.revision)
        assert [change.value for change in page.changes] == [b"2"]

    async def test_a_watch_from_now_on_sees_nothing_older(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        await kv.put("a", b"old")
        async with aclosing(kv.watch()) as changes, asyncio.TaskGroup() as group:
            waiting = group.create_task(_next(changes))
            await bench.settle()
            revision = await kv.put("a", b"new")
            assert await waiting == Change(key="a", value=b"new", revision=revision)

    async def test_a_watch_sees_deletion(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        start = await kv.put("a", b"1")
        await kv.delete("a")
        async with aclosing(kv.watch(after=start)) as changes:
            change = await _next(changes)
            assert (change.key, change.value) == ("a", None)
            assert change.revision > start

    async def test_a_watch_sees_expiry(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        start = await kv.put("a", b"1", ttl_s=5)
        async with aclosing(kv.watch(after=start)) as changes, asyncio.TaskGroup() as group:
            waiting = group.create_task(_next(changes))
            await bench.settle()
            await bench.pass_time(6)
            change = await waiting
            assert (change.key, change.value) == ("a", None)
            assert change.revision > start

    # Who is slow needs where things are now, not every step of the way.
    async def test_a_watch_may_skip_but_never_the_last_value(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        start = await kv.put("a", b"0")
        for number in range(1, 20):
            await kv.put("a", b"%d" % number)
        async with aclosing(kv.watch(after=start)) as changes:
            change = await _next(changes)
            while change.value != b"19":
                later = await _next(changes)
                assert later.revision > change.revision
                change = later

    async def test_keys_and_times_that_make_no_sense_are_refused(self, bench: EngineBench) -> None:
        kv = (await bench.open()).kv
        for wrong in (kv.put("", b""), kv.create("k" * 600, b""), kv.put("a", b"", ttl_s=0)):
            with pytest.raises(ConfigError):
                await wrong
        with pytest.raises(ConfigError, match="blob"):
            await kv.put("a", bytes(2_000_000))
        assert await kv.entries() == []


# Promises of the event log.


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

    async def test_it_tells_when_each_type_was_last_appended(self, bench: EngineBench) -> None:
        log = (await bench.open()).events
        assert await log.last_by_type() == {}
        await log.append([event("a", "X"), event("b", "Y")])
        await log.append([event("c", "X")])
        _, of_y, of_x = (record.appended_s for record in await log.read(after=0, limit=10))
        assert await log.last_by_type() == {"X": of_x, "Y": of_y}

    async def test_a_repeated_id_is_stored_once(self, bench: EngineBench) -> None:
        first, second = await bench.open(), await bench.open()
        (stored,) = await first.events.append([event("a", body=b"first")])
        again = await second.events.append([event("a", body=b"second"), event("b"), event("b")])
        assert again[0] == Appended(stored.seq, duplicate=True)
        assert [a.duplicate for a in again] == [True, False, True]
        assert [r.body for r in await first.events.read(after=0, limit=10)] == [b"first", b"{}"]

    # A gap would look like an event that got lost, and a wake-up would make every repeat cost all readers.
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
        assert await log.bounds() == LogBounds(kept.seq + 1, kept.seq)  # empty, and still where it was
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

    # Or it would open and close with every event, and each publisher would be refused at random.
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
        # Longer in all than a position counts as live; one of the two is renewed in between.
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

    # Seven on either side, so that a search by halving meets no round number.
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
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.events.wait(after=0, timeout_s=30))
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
        await log.commit({key: Position(4, (5, 7))})  # from a process that read before and writes later
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
            # A call is taken whole or not at all.
            await log.append([event("fits"), event("huge", body=bytes(VALUE_BYTES_MAX + 1))])
        assert await log.read(after=0, limit=10) == []


class EngineBench(Protocol):
    """One store on the bench, with as many handles on it as a test wants, and a way to pass time."""

    async def open(self) -> Engine:
        """Open another handle on the same store, as another process would."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Return when the engine's clock has gone on by *seconds*."""
        ...

    async def settle(self) -> None:
        """Return when calls that were just begun wait inside the engine."""
        ...

    def now_s(self) -> float:
        """The engine's clock."""
        ...


class ShiftedRuntime(SystemRuntime):
    """The real world, with clocks that can be set forward and a wall clock that can be set back."""

    def __init__(self, *, seed: int = 0) -> None:
        self._forward_s = 0.0
        self._wall_s = 0.0
        super().__init__(seed=seed)

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._forward_s += seconds

    def jump_wall_clock(self, seconds: float) -> None:
        self._wall_s += seconds

    def wall_s(self) -> float:
        return super().wall_s() + self._forward_s + self._wall_s

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._forward_s

    def boot_s(self) -> float:
        return super().boot_s() + self._forward_s

    async def sleep(self, seconds: float) -> None:
        # In small steps, to notice that the clock was set forward.
        until_s = self.monotonic_s() + seconds
        while (left_s := until_s - self.monotonic_s()) > 0:
            await super().sleep(min(left_s, 0.01))
        await super().sleep(0)
