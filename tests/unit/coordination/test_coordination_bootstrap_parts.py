"""Snapshots, settings view, singletons and the master-loop guard."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from ringrift.coordination.coordinator_base import CoordinatorBase, CoordinatorRegistry
from ringrift.coordination.coordinator_config import get_config
from ringrift.coordination.coordinator_persistence import (
    PersistentState,
    SnapshotCoordinator,
    SnapshotStore,
    StateSnapshot,
)
from ringrift.coordination.master_loop_guard import (
    MasterLoopGuard,
    is_master_loop_running,
    read_master_loop,
    require_running_master_loop,
)
from ringrift.coordination.singleton_mixin import SingletonMeta, SingletonMixin, singleton
from ringrift.coordination.unified_health_manager import UnifiedHealthManager
from ringrift.engine.opening import close_engine, memory_engine
from ringrift.errors import AlreadyExists, ConfigError, Corrupt, SchemaTooNew
from ringrift.testing.simulation import ManualRuntime

HOLDER = """
import sys
from pathlib import Path
from ringrift.coordination.master_loop_guard import MasterLoopGuard
with MasterLoopGuard(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    path = tmp_path / "master_loop.pid"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process, path
    process.kill()
    process.wait(timeout=10)
    process.stdin.close()
    process.stdout.close()


def test_two_master_loops_cannot_run_and_a_killed_one_frees_the_way(holder):
    process, path = holder
    assert is_master_loop_running(path)
    require_running_master_loop(path)
    with pytest.raises(AlreadyExists, match=str(process.pid)):
        MasterLoopGuard(path).acquire()
    process.kill()
    process.wait(timeout=10)
    assert read_master_loop(path).pid == process.pid
    assert not is_master_loop_running(path)
    with pytest.raises(RuntimeError, match=f"{process.pid} in .* is gone"):
        require_running_master_loop(path)
    with MasterLoopGuard(path) as guard:
        assert guard.is_held
        assert is_master_loop_running(path)
    assert not is_master_loop_running(path)


def test_a_guard_that_cannot_empty_its_file_frees_the_folder_all_the_same(tmp_path, monkeypatch):
    path = tmp_path / "master_loop.pid"
    guard = MasterLoopGuard(path)
    guard.acquire()

    def full(text):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(guard, "_write", full)
    with pytest.raises(OSError, match="no space"):
        guard.release()
    assert not guard.is_held
    with MasterLoopGuard(path) as other:
        assert other.is_held


def test_a_shared_guard_stands_beside_the_one_of_its_own_process_and_leaves_the_folder_to_it():
    with MasterLoopGuard() as own:
        other = MasterLoopGuard(profile="own_program", shared=True)
        assert not MasterLoopGuard().try_acquire()
        assert other.try_acquire()
        assert other.folder_identity == own.folder_identity
        assert read_master_loop().profile == ""
        other.release()
        assert own.is_held
        assert is_master_loop_running()
    with MasterLoopGuard(profile="own_program", shared=True) as alone:
        assert read_master_loop().profile == "own_program"
        assert alone.is_held
    assert not is_master_loop_running()


def test_a_number_that_was_given_to_another_process_is_a_stale_file(holder, tmp_path):
    process, _ = holder
    path = tmp_path / "other.pid"
    path.write_text(f"{process.pid} 12345.0\n", encoding="utf-8")
    assert not is_master_loop_running(path)
    path.write_text(f"{process.pid}\n", encoding="utf-8")
    assert is_master_loop_running(path)
    for nonsense in ("", "pid?", "-"):
        path.write_text(nonsense, encoding="utf-8")
        assert not is_master_loop_running(path)


# --- snapshots -----------------------------------------------------------------------------------------


def make_store(**more):
    runtime = ManualRuntime()
    kv = memory_engine(runtime).kv
    return SnapshotStore(kv, runtime=runtime, **more), kv


async def test_the_newest_versions_are_kept_and_each_can_be_restored():
    store, _ = make_store(kept=3)
    for number in range(1, 6):
        assert (await store.save("promotion", {"count": number})).version == number
    assert await store.versions("promotion") == [3, 4, 5]
    assert (await store.load("promotion")).state == {"count": 5}
    assert (await store.load("promotion", version=3)).state == {"count": 3}
    assert await store.load("promotion", version=1) is None
    assert await store.load("nobody") is None


async def test_nothing_is_dropped_before_there_are_too_many():
    store, _ = make_store(kept=5)
    for number in range(1, 6):
        await store.save("promotion", {"count": number})
        assert await store.versions("promotion") == list(range(1, number + 1))


async def test_a_changed_byte_is_noticed_and_an_earlier_version_still_there():
    store, kv = make_store()
    await store.save("promotion", {"count": 1})
    await store.save("promotion", {"count": 2})
    entry = (await kv.entries("snapshots/promotion/"))[-1]
    await kv.put(entry.key, entry.value.replace(b'"count":2', b'"count":3'))
    with pytest.raises(Corrupt, match="checksum"):
        await store.load("promotion")
    assert (await store.load("promotion", version=1)).state == {"count": 1}
    await kv.put(entry.key, b"garbage")
    with pytest.raises(Corrupt, match="not a snapshot"):
        await store.load("promotion")


async def test_a_newer_schema_and_a_bad_name_are_refused():
    store, _ = make_store()
    await store.save("promotion", {"count": 1}, schema=2)
    with pytest.raises(SchemaTooNew):
        await store.load("promotion", schema=1)
    with pytest.raises(ConfigError, match="without '/'"):
        await store.save("a/b", {"count": 1})


def test_bytes_and_back():
    snapshot = StateSnapshot(coordinator="c", version=3, created_s=1.5, state={"b": [1], "a": None})
    assert StateSnapshot.from_bytes(snapshot.to_bytes(), key="k") == snapshot


class Promotions(PersistentState):
    """Remembers when a model was last promoted, so that its cooldown holds over a restart."""

    def __init__(self):
        self.name, self.promoted_at = "promotions", {}

    def may_promote(self, config, now_s):
        return now_s - self.promoted_at.get(config, -1e9) >= 3600

    def get_state(self):
        return {"promoted_at": self.promoted_at} if self.promoted_at else {}

    def restore_state(self, state):
        self.promoted_at = dict(state["promoted_at"])


async def test_row_9_17_a_cooldown_survives_a_restart():
    before = Promotions()
    assert await before.save() is None
    before.promoted_at["hex8_2p"] = 1000.0
    await before.save()
    await close_engine()
    after = Promotions()
    assert await after.load()
    assert not after.may_promote("hex8_2p", now_s=2000.0)
    assert after.may_promote("hex8_2p", now_s=4600.0)
    await close_engine()


async def test_what_was_forgotten_on_purpose_does_not_come_back():
    store, _ = make_store()
    snapshots, promotions = SnapshotCoordinator(store), Promotions()
    assert await snapshots.save_all({"promotions": promotions}) == {}
    assert await store.versions("promotions") == []
    promotions.promoted_at["a"] = 1.0
    await snapshots.save("promotions", promotions)
    promotions.promoted_at.clear()
    await snapshots.save_all({"promotions": promotions})
    fresh = Promotions()
    assert not await snapshots.restore("promotions", fresh)
    assert fresh.promoted_at == {}


async def test_one_bad_snapshot_keeps_no_other_from_being_restored():
    store, kv = make_store()
    snapshots = SnapshotCoordinator(store)
    good, bad = Promotions(), Promotions()
    good.promoted_at["a"] = bad.promoted_at["a"] = 1.0

    class Raising:
        def get_state(self):
            raise RuntimeError("no state today")

        def restore_state(self, state):
            raise AssertionError

    problems = await snapshots.save_all({"good": good, "bad": bad, "raising": Raising(), "none": object()})
    assert problems == {"raising": "RuntimeError: no state today"}
    await kv.put((await kv.entries("snapshots/bad/"))[0].key, b"garbage")
    fresh = {"bad": Promotions(), "good": Promotions()}
    assert set(await snapshots.restore_all(fresh)) == {"bad"}
    assert fresh["good"].promoted_at == {"a": 1.0}
    assert fresh["bad"].promoted_at == {}


@pytest.mark.parametrize("store", [Path("state.db"), "state.db", {}])
def test_a_snapshot_coordinator_of_another_kind_of_store_is_refused_when_it_is_made(store):
    with pytest.raises(ConfigError, match="must be a SnapshotStore"):
        SnapshotCoordinator(store)
    with pytest.raises(ConfigError, match="keys and values"):
        SnapshotStore(store)


async def test_a_component_without_state_is_refused_by_name():
    snapshots = SnapshotCoordinator(make_store()[0])
    for call in (snapshots.save, snapshots.restore):
        with pytest.raises(ConfigError, match="no state for clock"):
            await call("clock", object())


def test_coordinators_without_a_name_or_an_end_are_refused_when_they_are_registered():
    with pytest.raises(ConfigError, match="name of a coordinator"):
        CoordinatorBase(None)
    with pytest.raises(ConfigError, match="is no coordinator"):
        CoordinatorRegistry().register(object())
    with pytest.raises(ConfigError, match="async function"):
        UnifiedHealthManager().register_recovery("node-1", "reboot")


# --- views ---------------------------------------------------------------------------------------------


def test_the_coordinator_config_is_a_view_of_the_settings(monkeypatch):
    monkeypatch.setenv("COORDINATOR_AUTO_TRIGGER_PIPELINE", "true")
    config = get_config()
    assert config.auto_trigger_pipeline is True
    assert config.db_path.name == "coordinator.db"
    assert config.dlq_path == config.settings.dlq_path


def test_one_instance_per_class_and_process():
    class Clock(SingletonMixin):
        def __init__(self, zone="utc"):
            self.zone = zone

    class Alarm(Clock):
        pass

    assert not Clock.has_instance()
    assert Clock.get_instance("cet") is Clock.get_instance()
    assert Clock.get_instance().zone == "cet"
    assert Alarm.get_instance() is not Clock.get_instance()
    assert Clock.reset_instance().zone == "cet"
    assert not Clock.has_instance()

    class Single(metaclass=SingletonMeta):
        def __init__(self, zone="utc"):
            self.zone = zone

    assert Single() is Single()
    with pytest.raises(ConfigError, match="made with other arguments"):
        Single("cet")
    get_clock = singleton(Clock)
    assert get_clock() is Clock.get_instance()


def test_arguments_that_come_after_the_instance_are_refused_and_never_ignored():
    class Clock(SingletonMixin):
        def __init__(self, zone="utc"):
            self.zone = zone

    clock = Clock.get_instance("cet")
    assert Clock.get_instance("cet") is clock
    assert Clock.get_instance() is clock
    for arguments in ({"zone": "jst"}, {"zone": "utc"}):
        with pytest.raises(ConfigError, match="Clock already"):
            Clock.get_instance(**arguments)
    Clock.reset_instance()
    assert Clock.get_instance(zone="jst").zone == "jst"
