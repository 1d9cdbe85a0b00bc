"""Records of a type under a key: what is damaged says so, and nobody's change is lost."""

import asyncio

import msgspec
import pytest

from ringrift.engine.memory import memory_engine
from ringrift.engine.records import KvRecords, change_record, read_record, read_records, write_record
from ringrift.errors import Corrupt, Unavailable
from ringrift.runtime import system_runtime


class Count(msgspec.Struct, frozen=True):
    number: int


def one_more(count: Count | None) -> Count:
    return Count(1 if count is None else count.number + 1)


@pytest.fixture
async def kv():
    engine = memory_engine(system_runtime())
    yield engine.kv
    await engine.close()


async def test_what_is_written_is_read_by_its_key_and_by_its_prefix(kv):
    assert await read_record(kv, "a/1", Count) is None
    await write_record(kv, "a/1", Count(3))
    await write_record(kv, "a/2", Count(4))
    assert await read_record(kv, "a/1", Count) == Count(3)
    assert await read_records(kv, "a/", Count) == [Count(3), Count(4)]


async def test_changes_at_the_same_time_all_count(kv):
    await asyncio.gather(*(change_record(kv, "a", Count, one_more) for _ in range(10)))
    assert await read_record(kv, "a", Count) == Count(10)


async def test_a_step_that_gives_none_changes_nothing(kv):
    assert await change_record(kv, "a", Count, lambda count: count) is None
    assert await kv.get("a") is None


async def test_a_record_that_is_replaced_while_it_is_removed_stays(kv):
    class Racing:
        get = kv.get

        async def delete(self, key, *, revision=None):
            await kv.put(key, msgspec.json.encode(Count(2)))
            return await kv.delete(key, revision=revision)

    await write_record(kv, "a/1", Count(1))
    assert not await KvRecords(Racing(), "a/", Count).delete_if("1", Count(1))
    assert await read_record(kv, "a/1", Count) == Count(2)


async def test_a_record_that_others_change_all_the_time_is_given_up(kv, monkeypatch):
    monkeypatch.setattr("ringrift.engine.records.TRIES_MAX", 3)
    tries = []

    class Racing:
        """Somebody else is always faster."""

        async def get(self, key):
            return await kv.get(key)

        async def create(self, key, value, *, ttl_s=None):
            tries.append(key)
            await kv.put(key, b'{"number":7}')
            return await kv.create(key, value, ttl_s=ttl_s)

        async def update(self, key, value, *, revision, ttl_s=None):
            tries.append(key)
            await kv.put(key, b'{"number":7}')
            return await kv.update(key, value, revision=revision, ttl_s=ttl_s)

    with pytest.raises(Unavailable, match="faster than it can be written"):
        await change_record(Racing(), "a", Count, one_more)
    assert tries == ["a"] * 3
    assert await read_record(kv, "a", Count) == Count(7)


async def test_a_damaged_record_names_its_key_and_what_to_do(kv):
    await kv.put("a/1", b'{"number":"many"}')
    with pytest.raises(Corrupt, match=r"a/1.*its value is no Count.*Delete the key if it is not needed"):
        await read_record(kv, "a/1", Count)
    counts = KvRecords(kv, "a/", Count, advice="Count again", what="no count")
    for reading in (counts.get("1"), counts.all(), counts.change("1", one_more)):
        with pytest.raises(Corrupt, match=r"a/1.*no count.*Count again"):
            await reading


async def test_a_damaged_record_is_there_all_the_same(kv):
    await kv.put("a/1", b"[")
    counts = KvRecords(kv, "a/", Count)
    assert await counts.has("1")
    assert not await counts.has("2")


async def test_a_record_is_deleted_only_while_it_is_the_one_that_was_meant(kv):
    counts = KvRecords(kv, "a/", Count)
    await counts.put("1", Count(1))
    assert not await counts.delete_if("1", Count(2))
    assert not await counts.delete_if("2", Count(2))
    assert await counts.delete_if("1", Count(1))
    assert await counts.all() == []
