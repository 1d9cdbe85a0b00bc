"""Files on their way between nodes: what is sent when they arrive, fail, hang, come wrong or are old."""

from machine import DataListeners, Listeners, listen
from recording import scenario
from sync_world import SyncWorld

from ringrift.coordination.sync_mutex import SyncMutex
from ringrift.coordination.training_trigger_daemon import TrainingTriggerDaemon
from ringrift.data.config import FAILURES_CRITICAL, DataNode, SyncStrategy
from ringrift.testing.simulation import simulate

HOUR_S = 3600.0
CONFIG = "hex8_2p"


def run_in(story, *names, spot=(), **options):
    """Run *story* with a world of nodes in simulated time, and end what it started."""
    cluster = [*(DataNode(name=name) for name in names), *(DataNode(name=n, ephemeral=True) for n in spot)]

    async def run():
        world = SyncWorld(cluster, seed=1, **{"faults": 0.0, **options})
        await story(world)
        for name in list(world.daemons):
            await world.daemons.pop(name).stop()
        await world.router.stop()

    simulate(run())


def told(world, event):
    return [payload for name, payload in world.heard if name == event]


@scenario("DATA_SYNC_STARTED", "DATA_SYNC_COMPLETED", "NEW_GAMES_AVAILABLE")
def test_games_of_another_node_are_brought_here():
    async def story(world):
        listeners = Listeners(world.router)
        card = await world.make("n1", b"games", games=7, config=CONFIG)
        await world.start("n0", "pull")
        await world.runtime.sleep(HOUR_S)
        assert "n0" in await world.holders(card)
        assert told(world, "DATA_SYNC_COMPLETED")[0]["games_synced"] == 7
        assert told(world, "NEW_GAMES_AVAILABLE")[0]["new_games"] == 7
        assert "DATA_SYNC_STARTED" in listeners["metrics_orchestrator"].events_heard

    run_in(story, "n0", "n1")


@scenario("DATA_SYNC_FAILED", "SYNC_NODE_UNREACHABLE", "SYNC_FAILURE_CRITICAL")
def test_a_node_that_does_not_answer_for_hours():
    async def story(world):
        plane = await world.start("n0", "broadcast")
        listeners = DataListeners(world.router, plane)
        world.gone.add("n1")
        await world.make("n0", b"games", games=3, config=CONFIG)
        await world.runtime.sleep(6 * HOUR_S)
        assert told(world, "SYNC_FAILURE_CRITICAL")[0]["consecutive_failures"] == FAILURES_CRITICAL
        assert told(world, "SYNC_NODE_UNREACHABLE")[0]["node_id"] == "n1"
        assert listeners.sync.failures_in_a_row >= FAILURES_CRITICAL
        assert "nobody answers" in listeners.sync.last_failure
        assert listeners.alerted("SYNC_FAILURE_CRITICAL")

    run_in(story, "n0", "n1")


@scenario("SYNC_CHECKSUM_FAILED", "SYNC_REQUEST")
def test_bytes_that_come_wrong_are_asked_for_again():
    async def story(world):
        plane = world.plane("n0")
        listeners = DataListeners(world.router, plane)
        card = await world.make("n0", b"games", games=3, config=CONFIG)
        faults = iter(["flip", "flip"])
        world.next_fault = lambda: next(faults, "")
        await listeners.facade.sync("games", targets=["n1"])
        assert told(world, "SYNC_CHECKSUM_FAILED")[0]["target_node"] == "n1"
        (asked, *_) = told(world, "SYNC_REQUEST")
        assert (asked["targets"], asked["priority"]) == (["n1"], "high")
        assert "n1" in await world.holders(card), "the request was carried out"

    run_in(story, "n0", "n1")


@scenario("SYNC_STALLED", "SYNC_RETRY_REQUESTED")
def test_a_transfer_that_hangs_is_tried_another_way():
    async def story(world):
        plane = world.plane("n0")
        listeners = DataListeners(world.router, plane)
        card = await world.make("n0", b"games", games=3, config=CONFIG)
        faults = iter(["hang"])
        world.next_fault = lambda: next(faults, "")
        await listeners.facade.sync("games", targets=["n1"])
        await world.runtime.sleep(60.0)  # the retry waits until this sync has given back its lock
        (stalled,) = told(world, "SYNC_STALLED")
        assert (stalled["target_node"], stalled["data_type"], stalled["transport"]) == ("n1", "games", "line")
        assert told(world, "SYNC_RETRY_REQUESTED")[0]["failed_transports"] == ["line"]
        assert "n1" in await world.holders(card)

    run_in(story, "n0", "n1")


@scenario("GAME_SYNCED")
def test_a_node_that_may_vanish_writes_its_games_through():
    async def story(world):
        listeners = DataListeners(world.router, world.plane("n0"))
        listeners.sync.failures_in_a_row = 3
        await world.start("spot0")
        await world.make("spot0", b"games", games=9, config=CONFIG)
        await world.runtime.sleep(60.0)
        assert told(world, "GAME_SYNCED")[0] | {"target_nodes": []} == {
            "node_id": "spot0",
            "games_pushed": 9,
            "target_nodes": [],
            "is_ephemeral": True,
        }
        assert listeners.sync.failures_in_a_row == 0

    run_in(story, "n0", "n1", spot=("spot0",))


@scenario("DATA_STALE", "DATA_FRESH", "SYNC_TRIGGERED")
def test_old_games_are_found_old_and_new_ones_new():
    async def story(world):
        plane = await world.start("n0", SyncStrategy.FRESHNESS)
        DataListeners(world.router, plane)
        listen(world.router, TrainingTriggerDaemon(router=world.router, runtime=world.runtime))
        await world.make("n0", b"old games", games=5000, config=CONFIG, created_s=world.runtime.now_s() - 1e5)
        await world.runtime.sleep(HOUR_S)
        assert 1 <= len(told(world, "DATA_STALE")) <= HOUR_S / 60, "what it says does not wake it"
        assert told(world, "DATA_STALE")[-1]["data_age_hours"] > 24
        assert told(world, "SYNC_TRIGGERED")[-1]["config_key"] == CONFIG
        assert not told(world, "DATA_FRESH")
        await world.make("n0", b"new games", games=5000, config=CONFIG)
        await world.runtime.sleep(HOUR_S)
        assert told(world, "DATA_FRESH")[-1]["data_age_hours"] <= 1

    run_in(story, "n0", "n1")


@scenario("LOCK_TIMEOUT")
def test_a_host_that_somebody_keeps_from_being_synced():
    async def story(world):
        listeners = Listeners(world.router)
        kv = world.plane("n0").kv
        holder, other = [SyncMutex(kv=kv, runtime=world.runtime, router=world.router) for _ in range(2)]
        assert await holder.acquire_async("n1", "maintenance", timeout=500)
        assert not await other.acquire_async("n1", "backup", wait=True, wait_timeout=30)
        assert listeners.alerted("LOCK_TIMEOUT")

    run_in(story, "n0", "n1")
