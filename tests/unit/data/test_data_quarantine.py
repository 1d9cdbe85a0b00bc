"""Damaged files go out of the way, whoever finds them; what is sound by then stays."""

from __future__ import annotations

import errno
import os

import pytest

from data_cluster import running_node
from ringrift.data.kv_records import DecisionLog
from ringrift.data.protection.promises import File, KeepRequest
from ringrift.data.protection.records import Quarantine, QuarantineNote, set_damaged_aside
from ringrift.data.transfer.chunks import ChunkIndex
from ringrift.data.transfer.receiving import Intake
from ringrift.engine.sqlite import blobs as sqlite_blobs
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.errors import Corrupt, Unavailable
from ringrift.runtime import SystemRuntime

SOUND, DAMAGED = b"a game", b"a gAme"


@pytest.fixture
async def node(tmp_path):
    async with running_node("a", tmp_path) as running:
        yield running


async def made_and_damaged(node):
    card = await node.make(SOUND, games=1)
    path = await node.plane.blobs.path(card.digest)
    path.chmod(0o600)
    path.write_bytes(DAMAGED)
    return card


async def verdict_of(node, card):
    with pytest.raises(Corrupt) as found:
        await node.plane.blobs.verify(card.digest)
    return found.value.found


def files_aside(node):
    folder = Quarantine(node.plane).folder
    return sorted(path for path in folder.glob("*") if not path.name.endswith(".why.json"))


async def decided(node, card):
    recent = await DecisionLog(node.plane.kv, SystemRuntime(), node="a").recent(digest=card.digest)
    return [each.action for each in recent]


async def test_a_sound_file_that_came_since_is_not_set_aside_by_an_old_verdict(node):
    card = await made_and_damaged(node)
    slow = await verdict_of(node, card)
    assert await set_damaged_aside(node.plane, card.digest, await verdict_of(node, card))
    assert await node.holders(card) == []
    assert await node.make(SOUND, games=1) == card
    asked = KeepRequest(asker="b", files=(File(digest=card.digest, size=6),), keep_s=60.0, promise="p")
    (kept,) = node.plane.holder.keep(asked).files
    assert kept.refusal == ""
    assert not await set_damaged_aside(node.plane, card.digest, slow)
    assert await node.read(card) == SOUND, "another node may have deleted its copy on our word"
    assert await node.holders(card) == ["a"]
    assert [path.read_bytes() for path in files_aside(node)] == [DAMAGED]
    assert await decided(node, card) == ["set_aside"]


async def test_a_file_that_comes_in_the_very_moment_of_moving_is_put_back(node, monkeypatch):
    card = await made_and_damaged(node)
    place, rename = await node.plane.blobs.path(card.digest), sqlite_blobs.rename_file

    def rename_late(source, target):
        if source == place:
            fresh = place.with_name("fresh")
            fresh.write_bytes(SOUND)
            rename(fresh, place)
        rename(source, target)

    monkeypatch.setattr(sqlite_blobs, "rename_file", rename_late)
    assert not await set_damaged_aside(node.plane, card.digest, "an old verdict")
    assert place.read_bytes() == SOUND
    assert await node.holders(card) == ["a"]
    assert files_aside(node) == []


async def test_a_receiver_that_reads_again_moves_no_file_that_came_since(tmp_path, monkeypatch):
    folder = BlobFolder(tmp_path / "blobs", SystemRuntime().new_id)
    index = ChunkIndex(tmp_path / "chunks.db")
    intake = Intake(folder, index, node="a", now_s=lambda: 1.0, reserve_bytes=0)
    fresh = tmp_path / "fresh"
    fresh.write_bytes(SOUND)
    digest = sqlite_blobs.file_sha256(fresh)
    place = folder.place(digest)
    place.parent.mkdir(parents=True)
    place.write_bytes(DAMAGED)
    make_folders = sqlite_blobs.make_folders

    def make_folders_late(path):  # after the damaged file was read, before it is moved
        make_folders(path)
        fresh.replace(place)

    monkeypatch.setattr(sqlite_blobs, "make_folders", make_folders_late)
    intake.read_again(digest, len(SOUND))
    assert place.read_bytes() == SOUND
    intake.close()
    index.close()


async def test_setting_aside_what_is_gone_warns_of_nothing_and_keeps_the_note(node):
    card = await made_and_damaged(node)
    found = await verdict_of(node, card)
    assert await set_damaged_aside(node.plane, card.digest, found)
    (note,) = await Quarantine(node.plane).marks.all()
    assert not await set_damaged_aside(node.plane, card.digest, found)
    assert await Quarantine(node.plane).marks.all() == [note]
    assert [str(path) for path in files_aside(node)] == [note.path]
    assert await Quarantine(node.plane).marked() == {}


async def test_only_a_warning_makes_a_sound_file_one_that_nobody_learns_from(node):
    quarantine, card = Quarantine(node.plane), await node.make(SOUND)
    before = QuarantineNote(digest=card.digest, node="a", reason="it was set aside twice", at_s=1.0)
    await quarantine.marks.put(f"{card.digest}/a", before)  # as an earlier version wrote it
    assert await quarantine.marked() == {}
    warning = await quarantine.mark(card.digest, "poor games")
    assert await quarantine.marked() == {card.digest: warning}


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_full_disk_leaves_the_record_of_a_file_that_was_set_aside(node, monkeypatch):
    card = await made_and_damaged(node)
    monkeypatch.setattr("ringrift.data.protection.records.write_file", no_room)
    assert await set_damaged_aside(node.plane, card.digest, await verdict_of(node, card))
    (note,) = await Quarantine(node.plane).marks.all()
    assert [str(path) for path in files_aside(node)] == [note.path]
    assert await decided(node, card) == ["set_aside"]
    assert await node.holders(card) == []


async def test_a_full_disk_while_a_file_is_moved_is_told_in_our_words(node, monkeypatch):
    card = await made_and_damaged(node)
    monkeypatch.setattr(sqlite_blobs, "make_folders", no_room)
    with pytest.raises(Unavailable, match="no space left"):
        await set_damaged_aside(node.plane, card.digest, await verdict_of(node, card))
    assert await node.holders(card) == [], "it is no copy, wherever it lies"
