"""Room is made before the disk is full, by levels that rise, and never with anybody's last copies."""

from __future__ import annotations

import asyncio
import gzip
import os
import sqlite3

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_holders import WillingHolders
from ringrift.coordination.maintenance_daemon import MaintenanceDaemon, create_housekeeping_daemon
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.manifest.store import DiskStates
from ringrift.data.plane import DataPlane
from ringrift.data.protection.records import Quarantine
from ringrift.data.protection.retention import pin
from ringrift.data.transfer.contract import Moved
from ringrift.engine.opening import open_engine
from ringrift.errors import ConfigError
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.resources.disk import (
    DiskLevel,
    DiskRules,
    DiskSpaceManagerDaemon,
    DiskUsage,
    archive_logs,
    disk_usage,
    rotate_logs,
    vacuum,
    worth_freeing,
)
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

DAY_S = 86_400.0
NODES = (DataNode(name="a"), DataNode(name="b"), DataNode(name="c"))


class Receivers:
    """The other nodes: they confirm whatever they are sent."""

    def __init__(self, plane):
        self._plane = plane
        self.sent = []

    async def send(self, node, artifacts, **_terms):
        self.sent += [(node.name, each.name) for each in artifacts]
        receipts = [receipt(each, node.name, self._plane.runtime.now_s()) for each in artifacts]
        await self._plane.manifest.add_receipts(receipts)
        return Moved(receipts=tuple(receipts))


def receipt(artifact, node, now_s):
    return Receipt(digest=artifact.digest, node=node, size=artifact.size, verified_s=now_s)


@pytest.fixture
async def plane(tmp_path):
    settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path)}).settings
    runtime = SystemRuntime()
    engine = await open_engine(settings, runtime)
    nodes = DataNodes("a", NODES)
    yield DataPlane(
        engine, settings, runtime, nodes=nodes, make_transfers=Receivers, make_holders=WillingHolders
    )
    await engine.close()


async def made(plane, name, *holders, size=100, age_s=30 * DAY_S, **card):
    digest = await plane.blobs.put_bytes(name.encode().ljust(size, b"."))
    now_s = plane.runtime.now_s()
    given = {"kind": ArtifactKind.GAMES, "config": "c", "created_s": now_s - age_s, **card}
    artifact = Artifact(digest=digest, size=size, name=name, **given)
    await plane.manifest.register([artifact])
    await plane.manifest.add_receipts([receipt(artifact, node, now_s) for node in holders])
    return artifact


class Disk:
    """A disk that holds the blobs of a plane, and something else."""

    def __init__(self, plane, *, total=1_000, other=0):
        self._folder, self._total, self.other = plane.settings.blob_dir, total, other

    def __call__(self, _folder):
        # The record of promises is larger than the files of these tests.
        found = (path for path in self._folder.rglob("*") if not path.name.startswith("promises."))
        files = [path for path in found if path.is_file()]
        return DiskUsage(self._total, self.other + sum(path.stat().st_size for path in files))


def daemon_of(plane, disk, **given):
    heard = []
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    router.subscribe(None, lambda event: heard.append((event.event_type, dict(event.payload))), "ear")
    daemon = DiskSpaceManagerDaemon(plane=plane, measure=disk, router=router, runtime=plane.runtime, **given)
    return daemon, heard


@given(st.lists(st.floats(0, 100, allow_nan=False), min_size=2, max_size=20))
def test_a_fuller_disk_is_never_at_a_lower_level(percents):
    rules = DiskRules()
    levels = [rules.level(percent) for percent in sorted(percents)]
    assert levels == sorted(levels)
    assert rules.level(rules.emergency) > rules.level(rules.critical) > rules.level(rules.warning)


@pytest.mark.parametrize(
    "wrong", [{"emergency": 95.0}, {"critical": 80.0}, {"target": 75.0}, {"emergency": 101.0}]
)
def test_levels_that_do_not_rise_are_refused(wrong):
    with pytest.raises(ConfigError, match="must rise"):
        DiskRules(**wrong)


def test_freeing_goes_down_to_the_target_and_begins_at_the_first_level():
    rules = DiskRules()
    assert rules.to_free(DiskUsage(1_000, 699)) == 0
    assert rules.to_free(DiskUsage(1_000, 700)) == 200


def test_what_is_elsewhere_goes_before_what_is_not():
    card = Artifact(digest="a" * 64, size=1, created_s=0.0, quality=0.9)
    about = {"copies": 2, "now_s": DAY_S, "inherited": False, "poor": False}
    plain = worth_freeing(card, **about)
    assert worth_freeing(card, **{**about, "copies": 4}) > plain
    assert worth_freeing(card, **{**about, "now_s": 60 * DAY_S}) > plain
    assert worth_freeing(card, **{**about, "inherited": True}) > worth_freeing(
        card, **{**about, "poor": True}
    )


async def test_a_disk_that_is_fine_is_left_alone_and_told(plane):
    await made(plane, "games", "a", "b", "c")
    daemon, heard = daemon_of(plane, Disk(plane, other=100))
    await daemon._run_cycle()
    assert heard == []
    state = await DiskStates(plane.kv).of("a")
    assert (state.level, state.writes_blocked, state.used_percent) == ("fine", False, 20.0)


async def test_copies_that_others_have_go_until_the_target_and_the_rest_stays(plane):
    safe = [await made(plane, f"safe {n}", "a", "b", "c") for n in range(6)]
    alone = await made(plane, "alone", "a")
    single = await made(plane, "single", "a", "b")
    daemon, heard = daemon_of(plane, Disk(plane))
    await daemon._run_cycle()
    left = [each for each in safe if await plane.blobs.has(each.digest)]
    assert len(left) == 3, "from 80 % down to 50 %"
    assert await plane.blobs.has(alone.digest)
    assert await plane.blobs.has(single.digest)
    assert [name for name, _ in heard] == ["DISK_SPACE_LOW", "DISK_CLEANUP_TRIGGERED"]
    assert heard[1][1]["bytes_freed"] == 300
    stones = await plane.tombstones()
    assert {next(iter(each.nodes.values())).by for each in stones.values()} == {"disk_space_manager"}
    assert all("80 % full" in each.nodes["a"].reason for each in stones.values())


async def test_old_checkpoints_go_although_there_is_room(plane):
    kind = ArtifactKind.CHECKPOINT
    made_of = [await made(plane, f"checkpoint {n}", "a", kind=kind, age_s=DAY_S - n) for n in range(20)]
    young = await made(plane, "young", "a", kind=kind, age_s=60.0)
    await pin(plane.kv, made_of[1].digest, "for a look")
    games = await made(plane, "games", "a")
    daemon, _ = daemon_of(plane, Disk(plane, total=1_000_000))
    await daemon._run_cycle()
    assert daemon.level is DiskLevel.FINE
    there = [each for each in (*made_of, young, games) if await plane.blobs.has(each.digest)]
    assert there == [made_of[1], *made_of[5:], young, games]


async def test_two_managers_of_one_machine_do_not_wake_each_other(plane):
    """Both tell that the disk fills up, and both hear it: a look of one must not cause one of the other."""
    router, looks = UnifiedEventRouter(enable_cross_process_polling=False), []

    def measure(_folder):
        looks.append(1)
        return DiskUsage(1_000, 750)

    managers = [
        DiskSpaceManagerDaemon(
            copy_out=copy_out, plane=plane, measure=measure, router=router, runtime=plane.runtime
        )
        for copy_out in (False, True)
    ]
    for manager in managers:
        await manager.start()
    try:
        while len(looks) < len(managers):
            await asyncio.sleep(0.01)
        for manager in managers:
            await manager._run_cycle()
        assert not any(manager._woken.is_set() for manager in managers)
        told = {"node_id": "a", "usage_percent": 99.0, "free_gb": 0.1, "threshold": 95.0}
        await router.publish("DISK_SPACE_LOW", told, "a_worker")
        assert all(manager._woken.is_set() for manager in managers), "somebody else's word counts"
    finally:
        for manager in managers:
            await manager.stop()


def test_a_disk_is_as_full_as_df_says(tmp_path):
    """What the system keeps for itself is not used by anybody."""
    percent = psutil.disk_usage(str(tmp_path)).percent
    assert disk_usage(tmp_path / "not there yet").percent == pytest.approx(percent, abs=0.5)


async def test_row_27_a_full_disk_takes_neither_the_quarantine_nor_the_last_copies(plane, tmp_path):
    aside = tmp_path / "quarantine" / "bad"
    aside.parent.mkdir()
    aside.write_bytes(b"evidence")
    os.utime(aside, (1, 1))
    alone = await made(plane, "alone", "a")
    daemon, _ = daemon_of(plane, Disk(plane, other=890))
    await daemon._run_cycle()
    assert daemon.level is DiskLevel.EMERGENCY
    assert aside.exists()
    assert await plane.blobs.has(alone.digest)
    assert (await DiskStates(plane.kv).of("a")).writes_blocked


async def test_young_copies_go_only_when_it_is_urgent(plane):
    young = await made(plane, "young", "a", "b", "c", age_s=2 * DAY_S, kind=ArtifactKind.REPORT)
    calm, _ = daemon_of(plane, Disk(plane, other=700))
    await calm._run_cycle()
    assert await plane.blobs.has(young.digest)
    urgent, _ = daemon_of(plane, Disk(plane, other=800))
    await urgent._run_cycle()
    assert not await plane.blobs.has(young.digest)


async def test_old_logs_and_caches_go_first(plane, tmp_path):
    safe = await made(plane, "safe", "a", "b", "c")
    taken = tmp_path / "import" / "taken"
    old = [tmp_path / "logs" / "control.log.1", tmp_path / "cache" / "x", taken / f"{safe.digest[:12]}-y"]
    kept = [
        tmp_path / "logs" / "control.log",
        tmp_path / "coordination" / "elo.db",
        tmp_path / "models" / "m.npz",
    ]
    for path in (*old, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1, 1))
    daemon, _ = daemon_of(plane, Disk(plane, other=650))
    await daemon._run_cycle()
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in kept)
    assert await plane.blobs.has(safe.digest)


async def test_an_import_stays_until_a_verified_copy_of_it_is_known(plane, tmp_path):
    """The copy that was taken in may have been found damaged: then this is the only good one."""
    damaged = await made(plane, "damaged", "a")
    original = tmp_path / "import" / "taken" / f"{damaged.digest[:12]}-mine.npz"
    original.parent.mkdir(parents=True)
    original.write_bytes(bytes(100))
    os.utime(original, (1, 1))
    path = await plane.blobs.path(damaged.digest)
    path.chmod(0o600)
    path.write_bytes(b"other bytes")
    assert await Quarantine(plane).set_aside(damaged.digest, "a test")
    daemon, _ = daemon_of(plane, Disk(plane, other=900))
    await daemon._run_cycle()
    assert original.exists()
    await plane.manifest.add_receipts([receipt(damaged, "b", plane.runtime.now_s())])
    await daemon._run_cycle()
    assert not original.exists()


async def test_a_coordinator_copies_out_before_it_lets_go(plane):
    alone = await made(plane, "alone", "a", size=500)
    plain, _ = daemon_of(plane, Disk(plane, other=300))
    await plain._run_cycle()
    assert plane.transfers.sent == []
    daemon, _ = daemon_of(plane, Disk(plane, other=300), copy_out=True)
    for _ in range(3):
        await daemon._run_cycle()
    assert sorted(plane.transfers.sent) == [("b", "alone"), ("c", "alone")]
    assert not await plane.blobs.has(alone.digest)
    assert {each.node for each in await plane.manifest.copies(alone.digest)} == {"b", "c"}


def test_a_real_disk_can_be_measured_before_its_folder_is_there(tmp_path):
    found = disk_usage(tmp_path / "not" / "there")
    assert 0 < found.used_bytes < found.total_bytes


# --- upkeep -------------------------------------------------------------------------------------------------


def test_long_logs_are_cut_and_packed(tmp_path):
    log = tmp_path / "control.log"
    log.write_bytes(b"old\n" * 1_000 + b"new\n")
    assert rotate_logs(tmp_path, bytes_max=400) > 3_000
    assert log.read_bytes() == b""
    assert archive_logs(tmp_path) > 0
    (packed,) = tmp_path.glob("*.gz")
    assert gzip.decompress(packed.read_bytes()).endswith(b"new\n")
    assert rotate_logs(tmp_path, bytes_max=400) == 0


def test_row_11_a_busy_database_is_left_for_later_and_a_large_one_alone(tmp_path):
    path = tmp_path / "letters.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN")
    db.execute("CREATE TABLE t (x)")
    db.executemany("INSERT INTO t VALUES (?)", [("x" * 1_000,)] * 500)
    db.execute("COMMIT")
    db.execute("DELETE FROM t")
    assert vacuum(path).startswith("from ")
    assert "would be written anew" in vacuum(path, bytes_max=10)
    assert vacuum(tmp_path / "none.db") == "there is none"
    db.execute("BEGIN EXCLUSIVE")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ringrift.resources.disk.VACUUM_WAIT_S", 0.01)
        assert vacuum(path).startswith("left for later")
    db.close()


async def test_upkeep_is_done_when_its_time_has_come(tmp_path):
    purges = []
    settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path)}).settings
    daemon = MaintenanceDaemon(
        settings=settings,
        purge_dead_letters=lambda: purges.append(1) or 3,
        router=UnifiedEventRouter(enable_cross_process_polling=False),
        runtime=SystemRuntime(),
    )
    await daemon._run_cycle()
    await daemon._run_cycle()
    assert len(purges) == 1
    assert daemon.last == {"dead letters": "3 went", "vacuum": "there is none"}


def test_rows_of_the_daemon_table_name_their_scope():
    disk = create_housekeeping_daemon({"scope": "disk", "copy_out": "yes"})
    assert isinstance(disk, DiskSpaceManagerDaemon)
    assert disk.copy_out
    assert isinstance(create_housekeeping_daemon({"scope": "logs+databases"}), MaintenanceDaemon)
