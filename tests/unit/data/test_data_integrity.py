"""What lies on the disk against what the manifest says: orphans, damage, poor games."""

from __future__ import annotations

import os
import shutil
import sqlite3

import numpy as np
import pytest
from guards_world import World, nodes

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import read_nodes
from ringrift.data.manifest.file_facts import read_facts
from ringrift.data.plane import DataPlane
from ringrift.data.protection.deletion import Deleter
from ringrift.data.protection.integrity import (
    CleanupRules,
    DataCleanupDaemon,
    IntegrityCheckDaemon,
    OrphanDetectionDaemon,
    create_integrity_daemon,
    poor_quality,
    register_orphans,
    scrub,
)
from ringrift.data.protection.records import DeletionRecords, GivenUp, GivingUp, Quarantine, Tombstone
from ringrift.engine.opening import open_engine
from ringrift.errors import ConfigError
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.jobs.shards.schema import create_tables
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.work.job.folder import DamagedInput, damaged_inputs, note_damaged


@pytest.fixture
async def plane(tmp_path):
    """A node with files on a real disk."""
    settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path)}).settings
    runtime = SystemRuntime()
    engine = await open_engine(settings, runtime)
    yield DataPlane(engine, settings, runtime, nodes=read_nodes("a", {}))
    await engine.close()


def shard(path, *, games=0, claimed=None):
    db = sqlite3.connect(path)
    create_tables(db)
    facts = {"config_key": "hex8_2p", "games": str(games if claimed is None else claimed), "rows": "0"}
    db.executemany("INSERT INTO schema_metadata VALUES (?, ?)", facts.items())
    db.commit()
    db.close()
    return path


def ear():
    heard = []
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    router.subscribe(None, lambda event: heard.append((event.event_type, dict(event.payload))), "ear")
    return router, heard


def test_files_tell_what_they_are(tmp_path):
    np.savez(tmp_path / "s.npz", features=np.zeros((3, 2)), values=np.zeros(3))
    (tmp_path / "w").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "text").write_bytes(b"hello")
    found = read_facts(shard(tmp_path / "g.shard.db"))
    assert (found.kind, found.config, found.problem) == (ArtifactKind.GAMES, "hex8_2p", "")
    assert read_facts(shard(tmp_path / "h.shard.db", claimed=3)).problem == "0 of 3 games are there"
    samples = read_facts(tmp_path / "s.npz")
    assert (samples.kind, samples.rows) == (ArtifactKind.SAMPLES, 3)
    assert read_facts(tmp_path / "w").kind is ArtifactKind.MODEL
    assert read_facts(tmp_path / "text").kind is ArtifactKind.OTHER


async def test_orphans_are_read_and_registered_once(plane, tmp_path):
    digest = await plane.blobs.put(shard(tmp_path / "g.shard.db"))
    other = await plane.blobs.put_bytes(b"a note")
    assert (await register_orphans(plane)).found == (), "too young: a job may just have made it"
    found = await register_orphans(plane, young_s=0.0)
    assert [each.digest for each in found.registered] == [digest]
    assert found.registered[0].config == "hex8_2p"
    assert [each.node for each in await plane.manifest.copies(digest)] == ["a"]
    assert await plane.manifest.artifact(other) is None
    assert (await register_orphans(plane, young_s=0.0)).found == ()


async def test_a_known_file_without_a_receipt_gets_one(plane):
    digest = await plane.blobs.put_bytes(b"a card")
    await plane.manifest.register([Artifact(digest=digest, size=6, kind=ArtifactKind.CARD)])
    await register_orphans(plane, young_s=0.0)
    assert len(await plane.manifest.copies(digest)) == 1


async def test_an_orphan_that_is_not_sound_is_refused_with_the_reason(plane, tmp_path):
    digest = await plane.blobs.put(shard(tmp_path / "g.shard.db", claimed=7))
    found = await register_orphans(plane, young_s=0.0)
    assert found.registered == ()
    assert found.refused[0][0] == digest
    assert "0 of 7 games" in found.refused[0][1]
    assert await plane.manifest.artifact(digest) is None


async def test_what_is_being_deleted_is_no_orphan(plane, tmp_path):
    digest = await plane.blobs.put(shard(tmp_path / "g.shard.db"))
    gone = GivenUp(state=GivingUp.DELETING, at_s=0.0, reason="gc", by="test", copies_left=2)
    stone = Tombstone(digest=digest, nodes={"a": gone})
    await DeletionRecords(plane.kv).change(digest, lambda each: each, plain=stone)
    await register_orphans(plane, young_s=0.0)
    assert await plane.blobs.has(digest), "no other copy is known, so the deletion was taken back"
    assert len(await plane.manifest.copies(digest)) == 1


async def test_the_daemon_takes_files_from_the_import_folder_and_tells(plane, tmp_path):
    (tmp_path / "import").mkdir()
    shard(tmp_path / "import" / "old.shard.db")
    (tmp_path / "import" / "live.db").write_bytes(b"SQLite format 3\x00 being written")
    router, heard = ear()
    daemon = OrphanDetectionDaemon(plane=plane, router=router, runtime=plane.runtime)
    await daemon._run_cycle()
    assert [path.name for path in (tmp_path / "import").glob("*.db")] == ["live.db"]
    (digest,) = await plane.blobs.digests()
    path = await plane.blobs.path(digest)
    assert heard == []
    past_s = path.stat().st_mtime - 3600
    os.utime(path, (past_s, past_s))
    await daemon._run_cycle()
    assert [name for name, _ in heard] == ["ORPHAN_GAMES_DETECTED", "ORPHAN_GAMES_REGISTERED"]
    assert heard[1][1]["registered_paths"] == [f"blob:{digest}"]


async def test_scrubbing_renews_receipts_and_sets_damage_aside(plane):
    receipts = {}
    for content in (b"good", b"changed", b"lost"):
        digest = receipts[content] = await plane.blobs.put_bytes(content)
        await plane.manifest.register([Artifact(digest=digest, size=len(content), kind=ArtifactKind.MODEL)])
    await register_orphans(plane, young_s=0.0)
    (await plane.blobs.path(receipts[b"changed"])).write_bytes(b"changEd")
    await plane.blobs.delete(receipts[b"lost"])
    daemon = IntegrityCheckDaemon(plane=plane, router=ear()[0], runtime=plane.runtime)
    await daemon._run_cycle()
    assert daemon.verified == 0, "all were read a moment ago"
    assert (daemon.damaged, daemon.missing) == ([receipts[b"changed"]], [receipts[b"lost"]])
    found = await scrub(plane, older_than_s=0.0)
    assert (found.verified, found.damaged, found.missing) == (1, (), ())
    assert [each.digest for each in await plane.manifest.receipts()] == [receipts[b"good"]]
    assert not await plane.blobs.has(receipts[b"changed"])
    aside = [path for path in Quarantine(plane).folder.iterdir() if not path.name.endswith(".why.json")]
    assert [path.read_bytes() for path in aside] == [b"changEd"]
    recent = await Deleter(plane).decisions.recent()
    assert {(each.part, each.action) for each in recent} == {
        ("integrity", "set_aside"),
        ("inventory", "struck"),
    }


async def test_a_disk_that_is_lost_is_told_as_that_and_its_files_count_no_more(plane):
    for content in (b"one", b"two", b"three"):
        digest = await plane.blobs.put_bytes(content)
        await plane.manifest.register([Artifact(digest=digest, size=len(content), kind=ArtifactKind.MODEL)])
    await register_orphans(plane, young_s=0.0)
    assert len(await plane.manifest.receipts()) == 3
    shutil.rmtree(plane.settings.blob_dir)
    daemon = IntegrityCheckDaemon(plane=plane, router=ear()[0], runtime=plane.runtime)
    await daemon._run_cycle()
    assert await plane.manifest.receipts() == []
    assert "all 3 files of this node are gone" in daemon.disk_lost
    actions = [each.action for each in await Deleter(plane).decisions.recent(part="inventory")]
    assert actions == ["disk_lost"]


async def test_a_round_of_scrubbing_reads_no_more_than_it_may(plane):
    for number in range(5):
        digest = await plane.blobs.put_bytes(bytes([number]) * 100)
        await plane.manifest.register([Artifact(digest=digest, size=100, kind=ArtifactKind.MODEL)])
    await register_orphans(plane, young_s=0.0)
    assert (await scrub(plane, older_than_s=0.0, bytes_max=250)).verified == 2


async def test_poor_games_are_marked_and_the_worst_go_only_with_enough_copies():
    world = World(*nodes("a", "b", "c"))
    worst = {"quality": 0.05, "games": 200, "config": "x"}
    safe = await world.make(b"safe", "a", "b", "c", **worst)
    alone = await world.make(b"alone", "a", **worst)
    few = await world.make(b"few", "a", "b", "c", quality=0.05, games=99, config="x")
    fine = await world.make(b"fine", "a", "b", "c", quality=0.5, games=200, config="x")
    world.runtime.advance(8 * 86_400)
    daemon = DataCleanupDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    for name in "abc":
        await scrub_receipts(world, name)
    await daemon._run_cycle()
    await daemon._run_cycle()
    assert set(await Quarantine(world.planes["a"]).marked()) == {safe.digest, alone.digest, few.digest}
    assert daemon.marked == 3
    assert await world.holders(safe) == {"b", "c"}
    assert await world.holders(alone) == {"a"}
    assert await world.holders(few) == await world.holders(fine) == {"a", "b", "c"}


async def scrub_receipts(world, name):
    await scrub(world.planes[name], older_than_s=0.0)


def test_games_that_were_not_scored_are_not_poor():
    rules = CleanupRules()
    unscored = Artifact(digest="a" * 64, size=1, kind=ArtifactKind.GAMES, games=500)
    assert poor_quality(unscored, rules) == ("", False)
    with pytest.raises(ConfigError):
        CleanupRules(quarantine_below=0.1, delete_below=0.2)


def test_rows_of_the_daemon_table_name_their_check():
    kinds = [type(create_integrity_daemon({"check": each})) for each in ("orphans", "integrity", "quality")]
    assert kinds == [OrphanDetectionDaemon, IntegrityCheckDaemon, DataCleanupDaemon]


@pytest.mark.parametrize("published", [True, False])
async def test_what_a_worker_found_damaged_is_set_aside_and_brought_again_from_the_published_model(
    plane, tmp_path, published
):
    digest = await plane.blobs.put_bytes(b"weights")
    if published:
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "canonical_hex8_2p.safetensors").write_bytes(b"weights")
    (await plane.blobs.path(digest)).write_bytes(b"waights")
    told = DamagedInput(
        digest=digest, node="a", name="champion.safetensors", item_id="i", config="hex8_2p", at_s=1.0
    )
    await note_damaged(plane.kv, told)
    daemon = IntegrityCheckDaemon(plane=plane, router=ear()[0], runtime=plane.runtime)
    await daemon._run_cycle()
    assert daemon.damaged == [digest]
    (aside,) = (path for path in (tmp_path / "quarantine").iterdir() if not path.name.endswith(".json"))
    assert aside.read_bytes() == b"waights"
    assert await plane.blobs.has(digest) is published
    assert await damaged_inputs(plane.kv) == ([] if published else [told])


@pytest.mark.parametrize("lost", ["damaged", "deleted"])
async def test_a_champion_that_no_worker_asked_for_yet_comes_back_from_the_published_model(
    plane, tmp_path, lost
):
    digest = await plane.blobs.put_bytes(b"weights")
    await plane.manifest.register([Artifact(digest=digest, size=7, kind=ArtifactKind.MODEL)])
    await plane.manifest.add_receipts(
        [Receipt(digest=digest, node="a", size=7, verified_s=1.0, verifier="w")]
    )
    await plane.kv.put("learning/champion/hex8_2p", b'{"config":"hex8_2p","model":"%s"}' % digest.encode())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "canonical_hex8_2p.safetensors").write_bytes(b"weights")
    path = await plane.blobs.path(digest)
    path.write_bytes(b"waights") if lost == "damaged" else path.unlink()
    await IntegrityCheckDaemon(plane=plane, router=ear()[0], runtime=plane.runtime)._run_cycle()
    assert (await plane.blobs.path(digest)).read_bytes() == b"weights"
    assert [receipt.node for receipt in await plane.manifest.copies(digest)] == ["a"]
