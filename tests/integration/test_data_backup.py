"""Backups to a real S3 server and to a drive, and what is left when machines and files are lost."""

import asyncio
import json
import random

import pytest

from data_cluster import running_node
from data_transports import ArchiveThere, Files, Prefixed
from faulty_line import FaultyLine
from ringrift.data.artifacts import ArtifactKind
from ringrift.data.backup.daemons import (
    ArchiveBackup,
    ArchiveImportDaemon,
    ConsolidationOfArchives,
    DriveBackupDaemon,
    NodeBackupDaemon,
    S3BackupDaemon,
    archives,
    create_archive_backup,
    create_archive_import,
    the_archive,
)
from ringrift.data.backup.service import BackupRules
from ringrift.data.config import DataNode
from ringrift.data.protection.records import DeletionRecords, GivenUp, GivingUp, Tombstone
from ringrift.errors import ConfigError, Unavailable
from ringrift.events.event import RouterEvent
from ringrift.runtime import SystemRuntime

AT_ONCE = BackupRules(gather_s=0.0, retry_s=0.001, retry_s_max=0.001)


@pytest.fixture
def bucket_there(s3_bucket):
    return ArchiveThere(Prefixed(s3_bucket, "ringrift/"))


@pytest.fixture
def drive(tmp_path):
    folder = tmp_path / "drive"
    folder.mkdir()
    return DataNode(name="drive", drive_path=str(folder))


async def one_round(daemon):
    await daemon._run_cycle()


async def test_everything_comes_back_on_a_machine_that_lost_all(s3_bucket, tmp_path):
    archive = s3_bucket.node()
    contents = [b"", b"game " * 1000, bytes(range(256)) * 40_000]
    async with running_node("gpu-1", tmp_path / "first", archive) as node:
        cards = [await node.make(content, games=3) for content in contents]
        sent = await ArchiveBackup(node.plane, archive).send(cards)
        assert (sent.files, sent.failed) == (3, {})
        assert await node.holders(cards[1]) == ["archive", "gpu-1"]
    async with running_node("gpu-1", tmp_path / "new machine", archive) as node:
        restored = await ArchiveBackup(node.plane, archive).restore()
        assert (restored.files, restored.failed) == (3, {})
        assert [await node.read(card) for card in cards] == contents
        assert await node.holders(cards[0]) == ["archive", "gpu-1"]
        assert {card.games for card in await node.plane.manifest.artifacts()} == {3}


async def test_a_restore_reads_what_is_here_and_replaces_damaged_files(s3_bucket, tmp_path):
    archive = s3_bucket.node()
    async with running_node("gpu-1", tmp_path / "data", archive) as node:
        sound, damaged = await node.make(b"sound"), await node.make(b"damaged" * 100)
        backup = ArchiveBackup(node.plane, archive)
        await backup.send([sound, damaged])
        path = await node.plane.blobs.path(damaged.digest)
        path.write_bytes(b"rotten " * 100)
        restored = await backup.restore()
        assert (restored.already, restored.files, restored.failed) == (1, 1, {})
        assert await node.read(damaged) == b"damaged" * 100
        assert len(list((tmp_path / "data" / "quarantine").glob(f"{damaged.digest}.*"))) == 2  # with its note


async def test_a_damaged_archive_gives_nothing_back_and_says_so(s3_bucket, bucket_there, tmp_path):
    archive = s3_bucket.node()
    async with running_node("gpu-1", tmp_path / "first", archive) as node:
        good, bad = await node.make(b"good"), await node.make(b"bad" * 1000)
        await ArchiveBackup(node.plane, archive).send([good, bad])
    bucket_there.damage(bad)
    async with running_node("gpu-2", tmp_path / "second", archive) as node:
        restored = await ArchiveBackup(node.plane, archive).restore()
        assert restored.files == 1
        assert list(restored.failed) == [bad.digest]
        assert not await node.plane.blobs.has(bad.digest)


async def test_row_12_a_backup_never_mirrors_deletions(s3_bucket, bucket_there, tmp_path):
    archive = s3_bucket.node()
    async with running_node("gpu-1", tmp_path / "data", archive) as node:
        daemon = NodeBackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router)
        cards = [await node.make(f"games {number}".encode()) for number in range(4)]
        await one_round(daemon)
        before = bucket_there.objects.names()
        for card in cards:
            await node.plane.blobs.delete(card.digest)
            await node.plane.manifest.drop_copy(card.digest, "gpu-1")
        for _ in range(2):
            await DriveBackupDaemon(plane=node.plane, router=node.router)._run_cycle()
            await S3BackupDaemon(plane=node.plane, router=node.router)._run_cycle()
            await ConsolidationOfArchives(plane=node.plane, router=node.router)._run_cycle()
        assert set(before) <= set(bucket_there.objects.names())
        assert [bucket_there.read(card) for card in cards] == [f"games {n}".encode() for n in range(4)]
        await one_round(daemon)
        assert daemon.restored == 4  # lost by accident: they come back
        assert await node.read(cards[0]) == b"games 0"


async def test_row_14_the_card_comes_after_all_bytes(s3_bucket, bucket_there, tmp_path):
    """A file whose parts cannot be read back never gets a card; readers see nothing of it."""
    archive = s3_bucket.node()
    async with running_node("gpu-1", tmp_path / "data", archive) as node:
        card = await node.make(bytes(range(256)) * 50_000)
        backup = ArchiveBackup(node.plane, archive)
        seen = []

        async def watch(progress):
            names = bucket_there.objects.names()
            seen.append(
                (any(n.startswith("parts/") for n in names), any(n.startswith("cards/") for n in names))
            )

        await backup.send([card], on_progress=watch)
        assert (True, False) in seen
        first_card = seen.index((True, True)) if (True, True) in seen else len(seen)
        assert all(parts for parts, _ in seen[first_card:])
        assert bucket_there.card(card).artifact == card


async def test_row_18_a_failed_batch_is_tried_again_also_after_a_restart(s3_bucket, bucket_there, tmp_path):
    async with FaultyLine(port_of(s3_bucket)) as line:
        archive = s3_bucket.node(endpoint=f"http://127.0.0.1:{line.port}")
        line.cut = True
        async with running_node("gpu-1", tmp_path / "data", archive) as node:
            model = await node.make(b"weights", kind=ArtifactKind.MODEL)
            champion = {"config": "hex8_2p", "model": model.digest}
            await node.plane.kv.put("learning/champion/hex8_2p", json.dumps(champion).encode())
            daemon = S3BackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router)
            await daemon._on_promoted(promotion_of(model))
            for _ in range(3):
                await one_round(daemon)
                await asyncio.sleep(0.01)
            assert daemon.lacking == {"archive": 1}
            assert list(daemon.health_check().details["failing"]["archive"]) == [model.digest]
            assert "archive" in daemon.waiting
            assert node.heard("S3_BACKUP_COMPLETED") == []
        line.cut = False
        async with running_node("gpu-1", tmp_path / "data", archive) as node:
            daemon = S3BackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router)
            await one_round(daemon)
            assert bucket_there.read(model) == b"weights"
            assert (daemon.lacking, daemon.waiting) == ({"archive": 0}, {})
            [told] = node.heard("S3_BACKUP_COMPLETED")
            assert (told["uploaded_count"], told["deleted_count"]) == (1, 0)


async def test_row_09_bytes_that_change_on_the_way_never_get_a_card(s3_bucket, bucket_there, tmp_path):
    content = random.Random(9).randbytes(3_000_000)
    async with FaultyLine(port_of(s3_bucket)) as line:
        archive = s3_bucket.node(endpoint=f"http://127.0.0.1:{line.port}")
        async with running_node("gpu-1", tmp_path / "data", archive) as node:
            card = await node.make(content)
            line.flips = 4
            for _ in range(10):
                sent = await ArchiveBackup(node.plane, archive).send([card])
                archived = bucket_there.card(card)
                assert archived is None or bucket_there.read(card) == content
                if not sent.failed:
                    break
            assert line.flipped == 4
            assert bucket_there.read(card) == content


async def test_promotions_that_follow_each_other_go_together(s3_bucket, bucket_there, tmp_path):
    archive = s3_bucket.node()
    rules = BackupRules(gather_s=3600.0, gather_max=3)
    async with running_node("gpu-1", tmp_path / "data", archive) as node:
        daemon = S3BackupDaemon(plane=node.plane, rules=rules, router=node.router)
        models = [await node.make(f"weights {n}".encode(), kind=ArtifactKind.MODEL) for n in range(3)]
        for model in models[:2]:
            await daemon._on_promoted(promotion_of(model))
            await one_round(daemon)
        assert bucket_there.objects.names() == []
        await daemon._on_promoted(promotion_of(models[2]))
        await one_round(daemon)
        assert all(bucket_there.read(model) for model in models)
        assert [told["uploaded_count"] for told in node.heard("S3_BACKUP_COMPLETED")] == [3]


async def test_games_that_are_no_champions_stay_out_of_the_model_backup(s3_bucket, bucket_there, tmp_path):
    async with running_node("gpu-1", tmp_path / "data", s3_bucket.node()) as node:
        await node.make(b"games")
        await node.make(b"a model that was never promoted", kind=ArtifactKind.MODEL)
        await one_round(S3BackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router))
        assert bucket_there.objects.names() == []


async def test_what_a_node_gave_up_by_decision_does_not_come_back(s3_bucket, tmp_path):
    archive, other = s3_bucket.node(), DataNode(name="gpu-2")
    async with running_node("gpu-1", tmp_path / "data", archive, other) as node:
        daemon = NodeBackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router)
        card = await node.make(b"old games")
        await one_round(daemon)
        await give_up(node, card)
        await one_round(daemon)
        assert daemon.restored == 0
        assert not await node.plane.blobs.has(card.digest)


async def test_consolidation_joins_what_nodes_put_there_and_tells_the_cluster(
    s3_bucket, bucket_there, tmp_path
):
    archive = s3_bucket.node()
    cards = {}
    for name in ("gpu-1", "gpu-2"):
        async with running_node(name, tmp_path / name, archive) as node:
            cards[name] = await node.make(f"games of {name}".encode(), games=7)
            await one_round(NodeBackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router))
    async with running_node("control", tmp_path / "control", archive) as node:
        daemon = ConsolidationOfArchives(plane=node.plane, router=node.router)
        await one_round(daemon)
        for card in cards.values():
            assert await node.holders(card) == ["archive"]
        backup = ArchiveBackup(node.plane, archive)
        manifest = await backup.index.manifest()
        assert {card.artifact.digest for card in manifest.cards} == {card.digest for card in cards.values()}
        assert manifest.nodes == {name: (card.digest,) for name, card in cards.items()}
        written = bucket_there.objects.read("manifest.json")
        await one_round(daemon)
        assert bucket_there.objects.read("manifest.json") == written  # nothing new, nothing written


async def test_consolidation_leaves_out_files_whose_parts_are_gone(s3_bucket, bucket_there, tmp_path):
    archive = s3_bucket.node()
    async with running_node("gpu-1", tmp_path / "data", archive) as node:
        good, bad = await node.make(b"good"), await node.make(b"bad")
        backup = ArchiveBackup(node.plane, archive)
        await backup.send([good, bad])
        s3_bucket.delete("ringrift/" + bucket_there.card(bad).parts[0].key)
        daemon = ConsolidationOfArchives(plane=node.plane, router=node.router)
        await one_round(daemon)
        assert list(daemon.damaged["archive"]) == [bad.digest]
        assert [card.artifact for card in (await backup.index.manifest()).cards] == [good]


async def test_an_archive_that_rots_is_mended_from_a_copy_here(s3_bucket, bucket_there, tmp_path):
    archive = s3_bucket.node()
    async with running_node("gpu-1", tmp_path / "data", archive) as node:
        here, gone = await node.make(b"here" * 500), await node.make(b"gone" * 500)
        backup = ArchiveBackup(node.plane, archive)
        await backup.send([here, gone])
        bucket_there.damage(here)
        bucket_there.damage(gone)
        await node.plane.blobs.delete(gone.digest)
        report = await backup.reverify([here.digest, gone.digest])
        assert list(report.failed) == [gone.digest]
        assert bucket_there.read(here) == b"here" * 500
        assert await node.holders(gone) == ["gpu-1"]  # the archive's receipt was given back


async def test_a_damaged_archive_is_not_taken_for_a_copy_when_it_is_sent_again(
    s3_bucket, bucket_there, tmp_path
):
    archive = s3_bucket.node()
    async with running_node("gpu-1", tmp_path / "data", archive) as node:
        card = await node.make(b"games" * 500)
        backup = ArchiveBackup(node.plane, archive)
        await backup.send([card])
        bucket_there.damage(card)
        sent = await backup.send([card])
        assert (sent.already, sent.failed) == (1, {})
        assert bucket_there.read(card) == b"games" * 500


async def test_a_drive_is_filled_only_when_it_is_plugged_in(drive, tmp_path):
    there = ArchiveThere(Files(tmp_path / "drive"))
    async with running_node("control", tmp_path / "data", drive) as node:
        card = await node.make(b"games", games=2)
        daemon = DriveBackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router)
        await one_round(daemon)
        assert "is the drive mounted?" in daemon.waiting["drive"]
        assert there.objects.names() == []  # an empty mount point is not written to
        assert await ArchiveBackup(node.plane, drive).prepare()
        await one_round(daemon)
        assert daemon.waiting == {}
        assert there.read(card) == b"games"
        [told] = node.heard("DATA_BACKUP_COMPLETED")
        assert (told["total_files"], told["total_bytes"], told["storage_path"]) == (1, 5, drive.drive_path)


class LaterRuntime(SystemRuntime):
    """The real world, some time later."""

    ahead_s = 0.0

    def now_s(self):
        return super().now_s() + self.ahead_s


async def promote(node, content):
    model = await node.make(content, kind=ArtifactKind.MODEL)
    champion = {"config": "hex8_2p", "model": model.digest}
    await node.plane.kv.put("learning/champion/hex8_2p", json.dumps(champion).encode())
    return model


@pytest.mark.parametrize("target", ["drive", "s3"])
async def test_the_state_goes_at_every_promotion_and_every_ten_minutes(drive, s3_bucket, tmp_path, target):
    """Without being asked: a backup without it restored 0 games and no champion."""
    archive = drive if target == "drive" else s3_bucket.node()
    kind = DriveBackupDaemon if target == "drive" else NodeBackupDaemon
    runtime = LaterRuntime()
    async with running_node("gpu-1", tmp_path / "data", archive) as node:
        backup = ArchiveBackup(node.plane, archive)
        await backup.prepare()
        daemon = kind(plane=node.plane, rules=AT_ONCE, router=node.router, runtime=runtime)

        async def states():
            await one_round(daemon)
            return [(state.reason, state.champions) for state in await backup.states.all()]

        await node.make(b"games", games=3)
        assert await states() == [("the first", {})]
        await node.make(b"more games", games=3)
        assert len(await states()) == 1, "ten minutes are not over"
        model = await promote(node, b"weights")
        assert (await states())[1:] == [("promotion", {"hex8_2p": model.digest})]
        runtime.ahead_s = 601.0
        assert len(await states()) == 2, "nothing happened since"
        await node.make(b"still more games", games=3)
        assert len(await states()) == 2
        runtime.ahead_s = 1_300.0
        assert [reason for reason, _ in await states()][2:] == ["time"]
        newest = (await backup.states.all())[-1]
        assert (newest.files, newest.games) == (4, 9)
        assert daemon.health_check().details["states"] != {}
        anew = kind(plane=node.plane, rules=AT_ONCE, router=node.router, runtime=runtime)
        model = await promote(node, b"better weights")  # nobody heard of it
        await one_round(anew)
        assert (await backup.states.all())[-1].champions == {"hex8_2p": model.digest}


async def test_a_state_never_names_a_file_that_the_archive_lacks(drive, tmp_path):
    there = ArchiveThere(Files(tmp_path / "drive"))
    async with running_node("gpu-1", tmp_path / "data", drive) as node:
        backup = ArchiveBackup(node.plane, drive)
        await backup.prepare()
        card = await node.make(b"games", games=3)
        unknown = await node.plane.blobs.put_bytes(b"a report that no manifest knows")
        await node.plane.kv.put("learning/fact/hex8_2p/0000000001", json.dumps({"report": unknown}).encode())
        cards = tmp_path / "drive" / "cards"
        cards.write_text("in the way")  # files cannot arrive
        with pytest.raises(Unavailable):
            await backup.back_up_state("a test")
        assert await backup.states.all() == []
        cards.unlink()
        state = await backup.back_up_state("a test")
        assert there.read(card) == b"games"
        assert f"cards/{unknown}.json" in there.objects.names()
        assert (state.lost, state.facts) == ((), {"hex8_2p": 1})
        for key in list(cards.iterdir()):
            key.unlink()  # somebody swapped the drive; the manifest still believes in its copies
        await backup.back_up_state("a test", even_if_same=True)
        assert there.read(card) == b"games"
        lost = await node.make(b"lost before any backup")
        await node.plane.blobs.delete(lost.digest)
        assert (await backup.back_up_state("a test")).lost == (lost.digest,)


async def test_a_drive_gets_what_only_other_nodes_have(drive, ssh_server, tmp_path):
    async with running_node("gpu-1", tmp_path / "gpu-1") as gpu:
        card = await gpu.make(b"games of the gpu")
    other = ssh_server.node("gpu-1", tmp_path / "gpu-1")
    async with running_node("control", tmp_path / "control", drive, other) as node:
        await node.plane.manifest.register([card])
        async with running_node("gpu-1", tmp_path / "gpu-1") as gpu:
            await node.plane.manifest.add_receipts(await gpu.plane.manifest.copies(card.digest))
        await ArchiveBackup(node.plane, drive).prepare()
        await one_round(DriveBackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router))
        assert ArchiveThere(Files(tmp_path / "drive")).read(card) == b"games of the gpu"
        assert "drive" in await node.holders(card)


async def test_a_copy_that_goes_while_a_drive_is_filled_stops_nothing(drive, ssh_server, tmp_path):
    """The last holder drops its file between the look at what is lacking and the look at who has it."""
    other = ssh_server.node("gpu-1", tmp_path / "gpu-1")
    async with running_node("gpu-1", tmp_path / "gpu-1") as gpu:
        card = await gpu.make(b"games of the gpu")
        receipts = await gpu.plane.manifest.copies(card.digest)
    async with running_node("control", tmp_path / "control", drive, other) as node:

        class Meanwhile(ArchiveBackup):
            async def lacking(self, **asked):
                found = await super().lacking(**asked)
                assert [each.digest for each in found] == [card.digest]
                await node.plane.manifest.drop_copy(card.digest, "gpu-1")
                return found

        await node.plane.manifest.register([card])
        await node.plane.manifest.add_receipts(receipts)
        daemon = DriveBackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router)
        assert await daemon._from_others(Meanwhile(node.plane, drive)) == (0, 0)


async def test_nothing_is_lacking_of_nobody(drive, tmp_path):
    """A cluster of one node has no others; its own files are not theirs."""
    async with running_node("control", tmp_path / "data", drive) as node:
        await node.make(b"games")
        backup = ArchiveBackup(node.plane, drive)
        assert await backup.lacking(holders=()) == []
        assert len(await backup.lacking()) == 1


async def test_archived_games_come_in_for_configs_with_too_few(drive, tmp_path):
    rules = BackupRules(games_wanted=100)
    async with running_node("control", tmp_path / "first", drive) as node:
        backup = ArchiveBackup(node.plane, drive)
        await backup.prepare()
        poor = [
            await node.make(f"poor {n}".encode(), config="hex8_4p", games=60, created_s=n) for n in range(3)
        ]
        rich = await node.make(b"rich", config="hex8_2p", games=500)
        await backup.send([*poor, rich, await node.make(b"a model", kind=ArtifactKind.MODEL)])
    async with running_node("control", tmp_path / "second", drive) as node:
        await node.make(b"rich here", config="hex8_2p", games=100)
        daemon = ArchiveImportDaemon(plane=node.plane, rules=rules, router=node.router)
        await one_round(daemon)
        assert [await node.plane.blobs.has(card.digest) for card in poor] == [False, True, True]  # the newest
        assert not await node.plane.blobs.has(rich.digest)
        [told] = node.heard("NEW_GAMES_AVAILABLE")
        assert (told["config_key"], told["new_games"], told["total_games"]) == ("hex8_4p", 120, 120)
        [synced] = node.heard("DATA_SYNC_COMPLETED")
        assert (synced["games_synced"], synced["files_synced"]) == (120, 2)
        await one_round(daemon)
        assert len(node.heard("NEW_GAMES_AVAILABLE")) == 1


async def test_rows_of_the_daemon_table_find_their_daemons(s3_bucket):
    made = [
        create_archive_backup({"target": "s3", "scope": "models"}),
        create_archive_backup({"target": "s3", "scope": "node"}),
        create_archive_backup({"target": "s3", "scope": "consolidated"}),
        create_archive_backup({"target": "drive"}),
        create_archive_import(),
    ]
    names = ["s3_backup", "s3_node_sync", "s3_consolidation", "external_drive_sync", "owc_import"]
    assert [daemon.name for daemon in made] == names
    with pytest.raises(ConfigError):
        create_archive_backup({"target": "tape"})


async def test_an_archive_is_found_by_its_name(drive, s3_bucket, tmp_path):
    async with running_node("control", tmp_path / "a") as node:
        with pytest.raises(ConfigError, match="no archive is configured"):
            the_archive(node.plane.nodes)
    async with running_node("control", tmp_path / "b", drive, s3_bucket.node()) as node:
        assert [archive.name for archive in archives(node.plane.nodes)] == ["drive", "archive"]
        assert the_archive(node.plane.nodes, "drive") is drive
        with pytest.raises(ConfigError, match="which archive"):
            the_archive(node.plane.nodes)
        with pytest.raises(ConfigError, match="no archive is called"):
            the_archive(node.plane.nodes, "tape")


def port_of(bucket):
    return int(bucket.server.url.rpartition(":")[2])


def promotion_of(model):
    payload = {
        "config_key": "hex8_2p",
        "model_id": model.digest,
        "model_path": f"blob:{model.digest}",
        "elo": 1500.0,
    }
    return RouterEvent(event_type="MODEL_PROMOTED", payload=payload)


async def give_up(node, card):
    now_s = node.plane.runtime.now_s()
    gone = GivenUp(state=GivingUp.DELETED, at_s=now_s, reason="a test", by="a test", copies_left=1)
    stone = Tombstone(digest=card.digest, nodes={"gpu-1": gone})
    await DeletionRecords(node.plane.kv).change(card.digest, lambda each: each, plain=stone)
    await node.plane.blobs.delete(card.digest)
    await node.plane.manifest.drop_copy(card.digest, "gpu-1")
