"""Promises of the key-value store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from ringrift.engine.ports import Change, WriteGuard
from ringrift.errors import AlreadyExists, ConfigError, LeaseLost, RevisionMismatch

if TYPE_CHECKING:
    from ringrift.testing.engine_contract import EngineBench


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

    async def test_of_many_who_create_one_wins(self, bench: EngineBench) -> None:
        handles = [(await bench.open()).kv for _ in range(4)]
        outcomes = await asyncio.gather(
            *(kv.create("lease", str(n).encode()) for n, kv in enumerate(handles)), return_exceptions=True
        )
        assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == 3

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
        for key in ("role/b", "role/a", "rolex", "node/é", "node/a"):
            await kv.put(key, key.encode())
        assert [entry.key for entry in await kv.entries("role/")] == ["role/a", "role/b"]
        assert [e.key for e in await kv.entries()] == ["node/a", "node/é", "role/a", "role/b", "rolex"]

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
        await second.create("a", b"3")

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
        async with aclosing(watcher.watch("x/", after=start)) as changes:
            revisions = [await writer.put("x/b", b"1")]
            assert await _next(changes) == Change(key="x/b", value=b"1", revision=revisions[0])
            await writer.put("y/c", b"elsewhere")
            waiting = asyncio.create_task(_next(changes))
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
        async with aclosing(kv.watch()) as changes:
            waiting = asyncio.create_task(_next(changes))
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
        async with aclosing(kv.watch(after=start)) as changes:
            waiting = asyncio.create_task(_next(changes))
            await bench.settle()
            await bench.pass_time(6)
            change = await waiting
            assert (change.key, change.value) == ("a", None)
            assert change.revision > start

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
