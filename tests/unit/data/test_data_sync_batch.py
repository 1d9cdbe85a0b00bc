"""BatchRsync: files for several hosts, carried out as every other sync."""

from functools import partial

import pytest
from app.coordination import sync_bandwidth
from guards_world import World, nodes

from ringrift.coordination.sync_bandwidth import BatchRsync
from ringrift.coordination.sync_durability import SyncWAL
from ringrift.coordination.sync_mutex import SyncMutex
from ringrift.data.protection.records import set_damaged_aside
from ringrift.data.transfer.contract import TransferFailed
from ringrift.data.transfer.service import TransferService
from ringrift.errors import ConfigError


class Way:
    """One transport of a world, up or down."""

    def __init__(self, name, direct, *, up=True):
        self.name, self._direct, self.up, self.calls = name, direct, up, 0

    def reaches(self, _node):
        return True

    async def send(self, node, artifacts, terms):
        self.calls += 1
        if not self.up:
            raise TransferFailed(f"no {self.name} there")
        return await self._direct.send(node, artifacts, terms=terms)


class Ways(World):
    """The node "a" with http and rsync to the others."""

    def __init__(self, *given):
        super().__init__(*given)
        plane = self.planes["a"]
        direct = plane.transfers
        self.http, self.rsync = Way("http", direct), Way("rsync", direct)
        plane._transfers = TransferService(
            [self.http, self.rsync],
            plane.nodes,
            plane.blobs,
            plane.kv,
            plane.runtime,
            set_aside=partial(set_damaged_aside, plane),
            router=self.router,
        )


async def test_each_host_gets_its_files_by_rsync_and_the_ledger_says_so():
    world = Ways(*nodes("a", "b", "c"))
    one, two = await world.make(b"one", "a"), await world.make(b"two", "a")
    batch = BatchRsync(world.planes["a"], bandwidth_limit_mbps=100)
    batch.add("b", [one, two.digest, one])
    batch.add("c", [one])
    assert len(batch) == 3
    results = {each.host: each for each in await batch.run_async()}
    assert (results["b"].success, results["b"].files_transferred, results["b"].bytes_transferred) == (
        True,
        2,
        6,
    )
    assert results["c"].success
    assert (world.http.calls, world.rsync.calls) == (0, 2)
    assert await world.holders(one) == {"a", "b", "c"}
    assert (await SyncWAL(kv=world.planes["a"].kv).get(f"b/{one.digest}")).status == "complete"
    assert await batch.run_async() == [], "what was brought is not brought again"


async def test_where_rsync_fails_the_next_way_has_its_turn():
    world = Ways(*nodes("a", "b"))
    one = await world.make(b"one", "a")
    world.rsync.up = False
    batch = BatchRsync(world.planes["a"])
    batch.add("b", [one])
    (result,) = await batch.run_async()
    assert result.success
    assert (world.rsync.calls, world.http.calls) == (1, 1)


async def test_what_cannot_be_brought_is_named():
    world = Ways(*nodes("a", "b"))
    one = await world.make(b"one", "a")
    batch = BatchRsync(world.planes["a"])
    batch.add("nowhere", [one])
    batch.add("b", [one, "0" * 64])
    nowhere, b = await batch.run_async()
    assert (nowhere.success, nowhere.errors) == (False, ["nowhere: no node is called that"])
    assert (b.success, b.files_transferred) == (False, 1)
    assert b.errors == ["b: 000000000000: the manifest does not know it"]


async def test_it_takes_the_sync_lock_of_each_host():
    world = Ways(*nodes("a", "b"))
    one = await world.make(b"one", "a")
    seen, locks = [], SyncMutex(kv=world.planes["a"].kv, runtime=world.runtime)
    send = world.rsync.send

    async def watched(node, artifacts, terms):
        seen.extend(info.host for info in await locks.locks_async())
        return await send(node, artifacts, terms)

    world.rsync.send = watched
    batch = BatchRsync(world.planes["a"])
    batch.add("b", [one])
    assert (await batch.run_async())[0].success
    assert seen == ["b"]


def test_it_is_made_alone_under_its_documented_name():
    assert sync_bandwidth.BatchRsync is BatchRsync
    assert BatchRsync().run() == []
    for wrong in (
        {"max_concurrent": 0},
        {"max_concurrent": "3"},
        {"max_concurrent": True},
        {"priority": "soon"},
        {"priority": ["high"]},
        {"bandwidth_limit_mbps": 0},
        {"bandwidth_limit_mbps": "100"},
        {"plane": "text"},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            BatchRsync(**wrong)
    with pytest.raises(ConfigError, match="no digest"):
        BatchRsync().add("b", ["/etc/passwd"])
    with pytest.raises(ConfigError, match="a list"):
        BatchRsync().add("b", "0" * 64)
