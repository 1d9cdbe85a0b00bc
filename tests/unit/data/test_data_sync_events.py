"""What sync does at events, how fresh training data is, and how data reaches a node before it trains."""

import asyncio
from dataclasses import replace

import pytest
from guards_world import World, nodes

from ringrift.coordination.sync_coordinator import SyncCoordinator, SyncFacade, SyncRouter, SyncScheduler
from ringrift.coordination.training_activity_daemon import TrainingActivityDaemon
from ringrift.coordination.training_freshness import FreshnessChecker
from ringrift.data.artifacts import ArtifactKind
from ringrift.data.config import AutoSyncConfig, DataNode
from ringrift.data.protection.deletion import Deleter
from ringrift.data.protection.retention import read_held
from ringrift.data.sync.cluster_view import NodeReportCollector
from ringrift.data.sync.freshness import FreshnessConfig, judge_freshness
from ringrift.data.sync.staging import RUNNING, WAITING, node_of
from ringrift.engine.blocking import run_blocking
from ringrift.engine.ports import Claimant, NewWork
from ringrift.testing.simulation import ManualRuntime
from ringrift.work.backpressure import MEASURED_S_MAX, Announced, BackpressureLevel, keep_announced
from ringrift.work.job.protocol import JobOrder


class Wired:
    """A coordinator on the router of a world."""

    def __init__(self, world):
        self.world, plane, config, reports = world, world.planes["a"], AutoSyncConfig(), NodeReportCollector()
        self.facade = SyncFacade(plane, router=world.router, config=config, reports=reports)
        self.router = SyncRouter(plane, config=config, reports=reports)
        self.scheduler = SyncScheduler(plane, config=config, facade=self.facade, reports=reports)
        self.coordinator = SyncCoordinator(
            router=world.router,
            facade=self.facade,
            sync_router=self.router,
            scheduler=self.scheduler,
            plane=plane,
        )
        self.coordinator.wire()

    async def say(self, event, **payload):
        await self.world.router.publish(event, payload, source="test")

    async def end(self):
        self.coordinator.unwire()
        await self.world.router.stop()


async def test_a_request_by_event_is_carried_out():
    world = World(*nodes("a", "b", "c"))
    wired = Wired(world)
    wanted = await world.make(b"one", "a", config="hex8_2p")
    other = await world.make(b"two", "a", config="square8_2p")
    await wired.say("SYNC_REQUEST", requester="t", data_type="games", targets=["b"], config_key="hex8_2p")
    assert await world.holders(wanted) == {"a", "b"}
    assert await world.holders(other) == {"a"}
    # One name is one node, and a board alone is all of that board and nothing else.
    more = await world.make(b"three", "a", config="hex8_4p")
    await wired.say("SYNC_REQUEST", requester="t", data_type="games", targets="c", config_key="hex8")
    assert await world.holders(wanted) == {"a", "b", "c"}
    assert (await world.holders(more), await world.holders(other)) == ({"a", "c"}, {"a"})
    await wired.end()


async def test_orphans_of_a_node_are_brought_to_safety():
    world = World(*nodes("a", "b"))
    wired = Wired(world)
    lost = await world.make(b"one", "b", games=9, config="hex8_2p")
    await wired.say("ORPHAN_GAMES_DETECTED", node_id="b", orphan_count=1, orphan_paths=[])
    assert await world.holders(lost) == {"a", "b"}
    assert world.heard("ORPHAN_GAMES_REGISTERED")[0]["games_recovered"] == 9
    await wired.end()


async def test_a_model_that_is_wanted_somewhere_goes_there():
    world = World(*nodes("a", "b", "c"))
    wired = Wired(world)
    model = await world.make(b"net", "a", kind=ArtifactKind.MODEL)
    await wired.say("MODEL_SYNC_REQUESTED", model_id="m", model_path="m.pt", target_node="c")
    assert await world.holders(model) == {"a", "c"}
    await wired.end()


async def test_whoever_says_that_a_node_is_offline_it_is_tried():
    world = World(*nodes("a", "b"))
    wired = Wired(world)
    made = await world.make(b"one", "a")
    await wired.say("HOST_OFFLINE", node_id="b", reason="hearsay")
    assert (await wired.facade.sync("games")).success
    assert await world.holders(made) == {"a", "b"}
    await wired.end()


async def test_recovery_reopens_nothing_that_settings_closed():
    world = World(DataNode(name="a"), DataNode(name="b", receives=("models",)))
    wired = Wired(world)
    made = await world.make(b"one", "a")
    await wired.say("HOST_ONLINE", node_id="b")
    await wired.say("SYNC_FAILURE_CRITICAL", consecutive_failures=7)
    await wired.facade.sync("games")
    assert await world.holders(made) == {"a"}
    assert wired.coordinator.failures_in_a_row == 7
    await wired.end()


async def test_the_word_that_a_node_trains_is_taken_back():
    world = World(*nodes("a", "b"))
    wired = Wired(world)
    await wired.say("TRAINING_STARTED", config_key="hex8_2p", job_id="j", node_id="b")
    assert wired.router.reports.reports(world.runtime).training == {"b"}
    await wired.say("TRAINING_FAILED", config_key="hex8_2p", job_id="j", node_id="b", error="x", reason="x")
    assert wired.router.reports.reports(world.runtime).training == frozenset()
    await wired.end()


async def test_a_stalled_transfer_is_tried_another_way_and_in_the_end_left_alone():
    world = World(*nodes("a", "b"))
    wired = Wired(world)
    for way in ("http", "rsync", "base64"):
        await wired.say(
            "SYNC_STALLED",
            source_node="a",
            target_node="b",
            data_type="games",
            timeout_seconds=60.0,
            transport=way,
        )
    retries = world.heard("SYNC_RETRY_REQUESTED")
    assert [each["preferred_transport"] for each in retries] == ["rsync", "base64"]
    assert retries[1]["failed_transports"] == ["http", "rsync"]
    response = await wired.facade.sync("games")
    assert "every way to it failed" in response.errors[0]
    world.runtime.advance(301)
    assert (await wired.facade.sync("games")).success
    await wired.end()


async def test_advice_follows_the_pressure_that_was_measured_and_nobodys_word_of_it():
    world = World(*nodes("a", "b"))
    wired, kv = Wired(world), world.planes["a"].kv
    await world.make(b"one", "a", config="hex8_2p")

    async def advice():
        pressed = await asyncio.to_thread(wired.router.is_under_backpressure, "b")
        return pressed, len(await wired.scheduler.recommendations())

    await wired.say("BACKPRESSURE_ACTIVATED", level="stop", reason="full")
    assert await advice() == (False, 1)
    now_s = world.runtime.now_s()
    measured, _ = Announced(measured_s=now_s, reason="full").step(BackpressureLevel.STOP, now_s)
    await keep_announced(kv, replace(measured, reason="full", measured_s=now_s))
    await wired.say("BACKPRESSURE_RELEASED")
    assert await advice() == (True, 0)
    assert (await wired.scheduler.status()).recommendations == []
    world.runtime.advance(MEASURED_S_MAX)  # what nobody measures any more holds nothing
    assert await advice() == (False, 1)
    await wired.end()


async def test_on_a_loop_the_pressure_is_what_was_last_seen_and_asking_holds_up_nothing():
    world = World(*nodes("a", "b"))
    router, now_s = SyncRouter(world.planes["a"]), world.runtime.now_s()
    measured, _ = Announced(measured_s=now_s, reason="full").step(BackpressureLevel.STOP, now_s)
    await keep_announced(world.planes["a"].kv, replace(measured, reason="full", measured_s=now_s))

    async def asked():
        return router.is_under_backpressure("b")

    async with asyncio.timeout(10.0):
        while not await asked():
            await asyncio.sleep(0.01)
    assert await asyncio.to_thread(run_blocking, asked())  # on the loop of blocking calls
    world.runtime.advance(MEASURED_S_MAX)
    assert not await asked()


# --- freshness ----------------------------------------------------------------------------------------


async def test_copying_does_not_make_old_games_fresh():
    world = World(*nodes("a"))
    now_s = world.runtime.now_s()
    await world.make(b"old", "a", games=500, config="hex8_2p", created_s=now_s - 25 * 3600)
    checker = FreshnessChecker(world.planes["a"], router=world.router)
    result = await checker.check("hex8_2p")
    assert not result.is_fresh
    assert 24.9 < result.data_age_hours < 25.1
    assert result.games_available == 0
    assert world.heard("DATA_STALE")[0]["data_age_hours"] > 24
    await world.make(b"new", "a", games=60, config="hex8_2p", created_s=now_s - 60)
    assert (await checker.check("hex8_2p")).is_fresh
    assert world.heard("DATA_FRESH")


def test_few_games_are_not_fresh_and_a_clock_set_back_makes_nothing_younger_than_new():
    runtime = ManualRuntime()
    empty = judge_freshness([], FreshnessConfig(), now_s=runtime.now_s())
    assert (empty.is_fresh, empty.data_age_hours) == (False, None)


async def test_fresh_data_is_waited_for_and_the_wait_ends():
    world = World(*nodes("a", "b"))
    now_s = world.runtime.now_s()
    made = await world.make(b"new", "b", games=60, config="hex8_2p", created_s=now_s)
    brought = []

    async def sync_on_wish(event):
        brought.append(dict(event.payload))
        plane = world.planes["a"]
        await plane.transfers.fetch(plane.nodes["b"], [made])

    world.router.subscribe("SYNC_TRIGGERED", sync_on_wish)
    checker = FreshnessChecker(world.planes["a"], router=world.router)
    result = await checker.ensure_fresh("hex8_2p")
    assert (result.success, result.sync_triggered, result.sync_completed) == (True, True, True)
    assert brought[0]["targets"] == ["a"]

    config = FreshnessConfig(sync_timeout_seconds=0.02, poll_s=0.01)
    missing = FreshnessChecker(world.planes["a"], config=config, router=world.router)
    world.planes["a"].runtime.monotonic_s = iter(range(1_000_000)).__next__  # every look takes a second
    result = await missing.ensure_fresh("square8_2p")
    assert (result.success, result.sync_completed) == (False, False)
    assert "still not fresh" in result.error
    await world.router.stop()


@pytest.mark.parametrize(("error", "told"), [("b: no answer", "b: no answer"), ("", "nobody said why")])
async def test_a_sync_that_fails_ends_the_wait_for_fresh_data(error, told):
    world = World(*nodes("a", "b"))

    async def fail(event):
        about = {"node_id": "a", "error": error, "targets": ["b"]}
        await world.router.publish("DATA_SYNC_FAILED", {**about, "node_id": "c"})  # another node's
        await world.router.publish("DATA_SYNC_FAILED", {**about, "config_key": "square8_2p"})  # other games
        await world.router.publish("DATA_SYNC_FAILED", about)

    world.router.subscribe("SYNC_TRIGGERED", fail)
    checker = FreshnessChecker(world.planes["a"], router=world.router)
    async with asyncio.timeout(10):
        result = await checker.ensure_fresh("hex8_2p")
    assert (result.success, result.sync_triggered, result.sync_completed) == (False, True, False)
    assert result.sync_duration_seconds < checker.config.poll_s
    assert f"the sync failed: {told}" in result.error
    assert world.router.subscriptions_to("DATA_SYNC_FAILED") == []
    await world.router.stop()


# --- staging ------------------------------------------------------------------------------------------


async def order_training(world, *inputs, claim=None, config="hex8_2p"):
    queue = world.planes["a"].queue
    order = JobOrder(config=config, params={}, inputs={f"{n}.npz": digest for n, digest in enumerate(inputs)})
    await queue.add([NewWork(kind="train", payload=order.as_payload())])
    if claim:
        await queue.claim(Claimant(worker=claim), lease_s=1e6)


def staging(world, trigger, name="a"):
    return TrainingActivityDaemon(
        trigger,
        plane=world.planes[name],
        router=world.router,
        runtime=world.runtime,
        reports=NodeReportCollector(),
    )


async def test_what_a_running_training_reads_comes_to_its_node():
    world = World(*nodes("a", "gpu", "gpu-2"))
    samples = await world.make(b"samples", "a", kind=ArtifactKind.SAMPLES, config="hex8_2p")
    await world.make(b"unrelated", "a", kind=ArtifactKind.SAMPLES, config="square8_2p")
    await order_training(world, samples.digest, claim="gpu-2-1")
    daemon = staging(world, RUNNING)
    await daemon._run_cycle()
    assert await world.holders(samples) == {"a", "gpu-2"}
    assert world.transfers == [("a", "gpu-2", (samples.digest,))]
    await daemon._run_cycle()
    assert len(world.transfers) == 1
    assert node_of("gpu-2-1", world.planes["a"].nodes) == "gpu-2"
    assert node_of("stranger-1", world.planes["a"].nodes) == ""


async def test_a_waiting_training_finds_its_data_on_every_node_that_may_take_it():
    world = World(
        DataNode(name="a"), DataNode(name="t1", training=True), DataNode(name="t2", role="gpu_training")
    )
    samples = await world.make(b"samples", "a", kind=ArtifactKind.SAMPLES)
    await order_training(world, samples.digest)
    await staging(world, WAITING)._run_cycle()
    assert await world.holders(samples) == {"a", "t1", "t2"}


async def test_a_training_that_is_told_of_gets_the_newest_samples_of_its_config():
    world = World(*nodes("a", "b"))
    await world.make(b"older", "a", kind=ArtifactKind.SAMPLES, config="hex8_2p", created_s=1.0)
    newest = await world.make(b"newest", "a", kind=ArtifactKind.SAMPLES, config="hex8_2p", created_s=2.0)
    daemon = staging(world, RUNNING)
    await daemon.start()
    payload = {"config_key": "hex8_2p", "job_id": "j", "node_id": "b"}
    await world.router.publish("TRAINING_STARTED", payload, source="t")
    async with asyncio.timeout(60):
        while not world.transfers:
            await asyncio.sleep(0.01)
    assert world.transfers == [("a", "b", (newest.digest,))]
    await daemon.stop()
    await world.router.stop()


async def test_a_node_fetches_what_its_own_training_lacks():
    world = World(*nodes("a", "b"))
    samples = await world.make(b"samples", "b", kind=ArtifactKind.SAMPLES)
    await order_training(world, samples.digest, claim="a-1")
    await staging(world, RUNNING)._run_cycle()
    assert await world.holders(samples) == {"a", "b"}


async def test_a_file_that_was_deleted_here_comes_back_when_work_reads_it():
    world = World(*nodes("a", "b", "c"))
    games = await world.make(b"games", "a", "b", "c")
    here = world.planes["a"]
    deleted = await Deleter(here).delete(games, why="the disk was full", by="test")
    assert deleted.verdict.allowed
    order = JobOrder(config="hex8_2p", params={}, inputs={"1.db": games.digest})
    await here.queue.add([NewWork(kind="export", payload=order.as_payload())])
    await staging(world, RUNNING)._run_cycle()
    assert await world.holders(games) == {"a", "b", "c"}
    held = await read_held(here, [games])
    assert "input of export work" in held[games.digest]  # and it stays as long as it is needed


async def test_an_input_that_a_worker_found_lacking_is_brought_here():
    world = World(*nodes("a", "b"))
    games = await world.make(b"games", "b")
    queue = world.planes["a"].queue
    order = JobOrder(config="hex8_2p", params={}, inputs={"1.db": games.digest})
    await queue.add([NewWork(kind="export", payload=order.as_payload())])
    await staging(world, RUNNING)._run_cycle()
    assert await world.holders(games) == {"b"}  # another node may do it without any transfer
    (claim,) = await queue.claim(Claimant(worker="a-1"), lease_s=100.0)
    await queue.fail(claim.id, token=claim.token, error="the input is not here", retry_after_s=30.0)
    assert "input of export work" in (await read_held(world.planes["b"], [games]))[games.digest]
    await staging(world, RUNNING)._run_cycle()
    assert await world.holders(games) == {"a", "b"}
