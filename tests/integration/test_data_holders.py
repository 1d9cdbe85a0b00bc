"""Asking nodes that have no data server: over ssh by the receiver's command, and archives by a look."""

import asyncio

from data_cluster import running_node
from data_transports import Store
from ringrift.data.backup.archive import DriveObjects
from ringrift.data.config import DataNode
from ringrift.data.protection.deletion import Deleter, DeletionRules
from ringrift.data.protection.promise_store import PromiseStore
from ringrift.data.protection.retention import pin
from ringrift.runtime import SystemRuntime

OLD = DeletionRules(age_s_min=0.0)


async def drive(folder):
    folder.mkdir()
    await DriveObjects(folder, SystemRuntime().new_id).prepare()
    return DataNode(name="usb", drive_path=str(folder))


async def test_a_copy_goes_when_a_node_over_ssh_and_an_archive_keep_it(tmp_path, ssh_server):
    """The node over ssh has written its promise down; the archive was read back."""
    there = Store(tmp_path / "b", SystemRuntime())
    promises = PromiseStore(there.root / "blobs", SystemRuntime())  # before its first file
    nodes = (ssh_server.node("b", there.root), await drive(tmp_path / "usb"))
    async with running_node("a", tmp_path / "a", *nodes) as node:
        plane = node.plane
        kept, gone = [await node.make(content * 1000, games=5) for content in (b"kept", b"gone")]
        for other in nodes:
            assert (await plane.transfers.send(other, [kept, gone])).failed == ()
        assert await asyncio.to_thread(promises.begin, kept.digest, reason="its own gc") == ""
        refused = await Deleter(plane, rules=OLD).delete(kept, why="gc", by="test")
        assert "b: it is being deleted there" in refused.verdict.reason
        done = await Deleter(plane, rules=OLD).delete(gone, why="gc", by="test")
        assert done.verdict.reason == "2 nodes looked now and keep it: b, usb"
        assert await asyncio.to_thread(promises.promised, gone.digest) == "", "released afterwards"
        assert there.read(gone) == b"gone" * 1000
        promises.close()


async def test_an_archive_that_lost_or_damaged_a_part_has_no_copy(tmp_path, ssh_server):
    there = Store(tmp_path / "b", SystemRuntime())
    nodes = (ssh_server.node("b", there.root), await drive(tmp_path / "usb"))
    async with running_node("a", tmp_path / "a", *nodes) as node:
        lost, bad = [await node.make(content * 1000, games=5) for content in (b"lost", b"bad!")]
        for other in nodes:
            assert (await node.plane.transfers.send(other, [lost, bad])).failed == ()
        parts = {
            path.read_bytes()[:4]: path for path in (tmp_path / "usb" / "parts").rglob("*") if path.is_file()
        }
        parts[b"lost"].unlink()
        parts[b"bad!"].chmod(0o600)
        parts[b"bad!"].write_bytes(b"BAD!" * 1000)
        for card, why in ((lost, "usb: it lost parts/"), (bad, "usb: its file is damaged")):
            refused = await Deleter(node.plane, rules=OLD).delete(card, why="gc", by="test")
            assert why in refused.verdict.reason
            assert await node.holders(card) == ["a", "b"], "the archive's copy is struck"


async def test_a_pin_on_a_node_over_ssh_keeps_the_file_here(tmp_path, ssh_server):
    there = Store(tmp_path / "b", SystemRuntime())
    async with running_node("b", there.root):
        pass  # it has an engine of its own
    async with running_node("a", tmp_path / "a", ssh_server.node("b", there.root)) as node:
        card = await node.make(b"games" * 1000, games=5)
        assert (await node.plane.transfers.send("b", [card])).failed == ()
        async with running_node("b", there.root) as b:
            await pin(b.plane.kv, card.digest, "for a paper")
        rules = DeletionRules(age_s_min=0.0, copies_min=1)
        refused = await Deleter(node.plane, rules=rules).delete(card, why="gc", by="test")
        assert refused.verdict.reason == "it is pinned on b: for a paper"
