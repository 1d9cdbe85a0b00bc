"""Files where they lie: copies counted and repaired, models brought out, shards merged, backups, disks."""

import asyncio
import os

from guards_world import World, nodes
from machine import SYNC, DataListeners, Listeners, listen
from recording import scenario
from test_data_consolidation import daemon_of as consolidation_of
from test_data_consolidation import worked, world_of_shards
from test_data_distribution import champion
from test_data_integrity import shard

from data_cluster import running_node
from data_http import SECRET, DataServerProcess
from data_transports import Store
from ringrift.coordination.ephemeral_data_guard import EphemeralDataGuard
from ringrift.coordination.maintenance_daemon import MaintenanceDaemon
from ringrift.coordination.sync_coordinator import AutoSyncDaemon
from ringrift.data.artifacts import ArtifactKind
from ringrift.data.backup.daemons import ArchiveBackup, DriveBackupDaemon, S3BackupDaemon
from ringrift.data.backup.service import BackupRules
from ringrift.data.config import DataNode
from ringrift.data.protection.distribution import DistributionDaemon, DistributionRules
from ringrift.data.protection.integrity import OrphanDetectionDaemon
from ringrift.data.protection.replication import ReplicationMonitorDaemon, ReplicationRepairDaemon
from ringrift.data.transfer.http.wire import SECRET_FILE
from ringrift.resources.disk import LOG_BYTES_MAX, DiskSpaceManagerDaemon, DiskUsage
from ringrift.runtime import SystemRuntime

AT_ONCE = BackupRules(gather_s=0.0, retry_s=0.001, retry_s_max=0.001)
HOUR_S = 3600.0


def of(world, daemon, node="a", **given):
    return listen(
        world.router, daemon(plane=world.planes[node], router=world.router, runtime=world.runtime, **given)
    )


@scenario("REPLICATION_ALERT", "REPAIR_COMPLETED", "REPAIR_FAILED")
async def test_games_with_a_single_copy_are_told_and_copied():
    world = World(*nodes("a", "b"))
    listeners = Listeners(world.router)
    games = await world.make(b"games", "a", config="hex8_2p", games=3)
    monitor, repair = of(world, ReplicationMonitorDaemon), of(world, ReplicationRepairDaemon)
    await monitor._run_cycle()
    world.runtime.advance(HOUR_S)
    await monitor._run_cycle()
    assert world.heard("REPLICATION_ALERT")[0]["game_count"] == 1
    assert any(issue.kind == "replication" for issue in listeners["health_manager"].issues())
    world.down.add("b")
    await repair._run_cycle()
    assert listeners.alerted("REPAIR_FAILED") == [world.heard("REPAIR_FAILED")[0]["error"]]
    world.down.clear()
    world.runtime.advance(HOUR_S)
    await repair._run_cycle()
    assert await world.holders(games) == {"a", "b"}
    assert world.heard("REPAIR_COMPLETED")[0]["new_replica_count"] == 2
    assert listeners["metrics_orchestrator"].events_heard["REPAIR_COMPLETED"] == 1
    await world.router.stop()


@scenario("HOST_OFFLINE")
async def test_a_rented_node_says_that_it_goes():
    world = World(*nodes("a", "b"), DataNode(name="vast-1", ephemeral=True))
    DataListeners(world.router, world.planes["a"])
    repair = of(world, ReplicationRepairDaemon)
    games = await world.make(b"games", "vast-1", games=10)

    async def plane():
        return world.planes["vast-1"]

    guard = EphemeralDataGuard(get_plane=plane, router=world.router)
    guard.wire()
    await guard.stop()
    assert world.heard("HOST_OFFLINE")[0]["node_id"] == "vast-1"
    assert await world.holders(games) - {"vast-1"}
    assert "vast-1" in repair.away.now()
    await world.router.stop()


@scenario(
    "MODEL_DISTRIBUTION_STARTED",
    "MODEL_DISTRIBUTION_COMPLETE",
    "MODEL_DISTRIBUTION_FAILED",
    "DISTRIBUTION_INCOMPLETE",
)
async def test_a_champion_is_brought_to_nodes_of_which_one_is_down():
    world = World(*nodes("a", "b", "c"))
    listeners = Listeners(world.router)
    sync = of(world, AutoSyncDaemon, config=SYNC)
    world.down.add("c")
    await champion(world, "a")
    daemon = of(world, DistributionDaemon, rules=DistributionRules(tries=1))
    await daemon._run_cycle()
    world.runtime.advance(HOUR_S)
    await daemon._run_cycle()
    world.down.clear()
    world.runtime.advance(HOUR_S)
    await daemon._run_cycle()
    assert world.heard("MODEL_DISTRIBUTION_FAILED")[0]["failed_nodes"] == ["c"]
    assert world.heard("DISTRIBUTION_INCOMPLETE")[0]["actual_nodes"] == 2
    assert world.heard("MODEL_DISTRIBUTION_COMPLETE")[0]["nodes_synced"] == 3
    assert listeners.alerted("DISTRIBUTION_INCOMPLETE")
    assert sync._woken.is_set()
    await world.router.stop()


@scenario("CONSOLIDATION_STARTED", "CONSOLIDATION_COMPLETE")
async def test_small_shards_are_merged(tmp_path):
    world, shards = await world_of_shards(tmp_path)
    listeners = Listeners(world.router)
    daemon = consolidation_of(world)
    await daemon._run_cycle()
    merged = await worked(world, tmp_path)
    await daemon._run_cycle()
    assert world.heard("CONSOLIDATION_COMPLETE")[0] | {"total_games": 4} == {
        "config_key": "connect_four_2p",
        "canonical_db": f"blob:{merged}",
        "games_merged": len(shards),
        "total_games": 4,
    }
    assert listeners["metrics_orchestrator"].events_heard["CONSOLIDATION_STARTED"] == 1
    await world.router.stop()


@scenario(
    "ORPHAN_GAMES_DETECTED", "ORPHAN_GAMES_REGISTERED", "PRIORITY_SYNC_COMPLETED", "PRIORITY_SYNC_FAILED"
)
async def test_games_that_nobody_knew_of_are_registered_and_brought_to_safety(tmp_path):
    """Over a real line to a node in another process, which is there for the first and not the second."""
    there = DataServerProcess(tmp_path / "there").start()
    root = tmp_path / "here"
    root.mkdir()
    (root / SECRET_FILE).write_text(SECRET)
    try:
        async with running_node("here", root, there.node(ssh_port=1)) as here:
            listeners = DataListeners(here.router, here.plane)
            daemon = OrphanDetectionDaemon(plane=here.plane, router=here.router, runtime=here.plane.runtime)
            first = await lost_games(here.plane, tmp_path / "first.shard.db", games=0)
            await daemon._run_cycle()
            assert here.heard("ORPHAN_GAMES_DETECTED")[0]["orphan_paths"] == [f"blob:{first}"]
            assert here.heard("PRIORITY_SYNC_COMPLETED") != []
            assert Store(tmp_path / "there", SystemRuntime()).folder.place(first).exists()
            assert listeners["metrics_orchestrator"].events_heard["ORPHAN_GAMES_REGISTERED"]
            await asyncio.to_thread(there.kill)
            await lost_games(here.plane, tmp_path / "second.shard.db", games=1)
            await daemon._run_cycle()
            assert here.heard("PRIORITY_SYNC_FAILED")[0]["source_node"] == "here"
            assert listeners.sync.failures_in_a_row
    finally:
        there.stop()


async def lost_games(plane, path, *, games):
    """A sealed shard that lies here for an hour, and of which no one has written down anything."""
    digest = await plane.blobs.put(shard(path, claimed=games))
    place = await plane.blobs.path(digest)
    past_s = place.stat().st_mtime - HOUR_S
    os.utime(place, (past_s, past_s))
    return digest


@scenario("DATA_BACKUP_COMPLETED")
async def test_a_drive_that_is_plugged_in_is_filled(tmp_path):
    folder = tmp_path / "drive"
    folder.mkdir()
    drive = DataNode(name="drive", drive_path=str(folder))
    async with running_node("control", tmp_path / "data", drive) as node:
        listeners = Listeners(node.router)
        await node.make(b"games", games=2)
        assert await ArchiveBackup(node.plane, drive).prepare()
        await DriveBackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router)._run_cycle()
        assert node.heard("DATA_BACKUP_COMPLETED")[0]["total_bytes"] == 5
        assert listeners["metrics_orchestrator"].events_heard["DATA_BACKUP_COMPLETED"] == 1


@scenario("S3_BACKUP_COMPLETED")
async def test_a_champion_is_put_into_a_bucket(tmp_path, s3_bucket):
    async with running_node("gpu-1", tmp_path / "data", s3_bucket.node()) as node:
        listeners = Listeners(node.router)
        model = await node.make(b"weights", kind=ArtifactKind.MODEL)
        pointer = f'{{"config": "hex8_2p", "model": "{model.digest}"}}'
        await node.plane.kv.put("learning/champion/hex8_2p", pointer.encode())
        await S3BackupDaemon(plane=node.plane, rules=AT_ONCE, router=node.router)._run_cycle()
        assert node.heard("S3_BACKUP_COMPLETED")[0]["uploaded_count"] == 1
        assert listeners["metrics_orchestrator"].events_heard["S3_BACKUP_COMPLETED"] == 1


@scenario("DISK_SPACE_LOW", "DISK_CLEANUP_TRIGGERED")
async def test_a_full_disk_is_told_and_room_is_made(tmp_path):
    async with running_node("here", tmp_path / "data") as node:
        listeners = Listeners(node.router)
        logs = tmp_path / "data" / "logs"
        logs.mkdir()
        with (logs / "control.log").open("wb") as file:
            os.truncate(file.fileno(), LOG_BYTES_MAX + 1000)
        manager = DiskSpaceManagerDaemon(
            plane=node.plane,
            router=node.router,
            runtime=node.plane.runtime,
            measure=lambda _path: DiskUsage(total_bytes=100, used_bytes=96),
        )
        upkeep = listen(
            node.router,
            MaintenanceDaemon(settings=node.plane.settings, router=node.router, runtime=SystemRuntime()),
        )
        await manager._run_cycle()
        assert node.heard("DISK_SPACE_LOW")[0]["usage_percent"] == 96.0
        assert upkeep._woken.is_set()
        await upkeep._run_cycle()
        (cleaned,) = node.heard("DISK_CLEANUP_TRIGGERED")
        assert cleaned["bytes_freed"] > 0
        assert cleaned["cleanups_performed"] == 2, "the log was cut, and what was cut off packed"
        assert listeners["metrics_orchestrator"].events_heard["DISK_CLEANUP_TRIGGERED"] == 1
