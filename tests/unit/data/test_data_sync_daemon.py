"""What the sync daemon brings where by itself, and what it says of it."""

import asyncio
from functools import partial

import pytest
from guards_world import DirectTransfers, World, nodes

from ringrift.coordination.sync_coordinator import (
    AutoSyncConfig,
    AutoSyncDaemon,
    SyncFacade,
    SyncStrategy,
    create_sync_daemon,
)
from ringrift.coordination.sync_mutex import SyncMutex
from ringrift.data.artifacts import ArtifactKind
from ringrift.data.config import DataNode
from ringrift.data.kv_records import DecisionLog
from ringrift.data.manifest.store import DiskState, DiskStates
from ringrift.data.protection.records import (
    DeletionRecords,
    GivenUp,
    GivingUp,
    Successor,
    Tombstone,
    set_damaged_aside,
)
from ringrift.data.sync.cluster_view import NodeReportCollector
from ringrift.data.transfer.contract import TransferFailed, TransferRefused
from ringrift.data.transfer.peers import SyncStallHandler
from ringrift.data.transfer.service import TransferService
from ringrift.engine.ports import Claimant, NewWork
from ringrift.errors import ConfigError
from ringrift.events.event import RouterEvent
from ringrift.status import CoordinatorStatus
from ringrift.work.backpressure import Announced, keep_announced
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport


def daemon_of(world, name="a", strategy="auto", **config):
    return AutoSyncDaemon(
        strategy,
        config=AutoSyncConfig(games_min=1, **config),
        plane=world.planes[name],
        router=world.router,
        runtime=world.runtime,
        reports=NodeReportCollector(),
    )


async def full(world, name, percent):
    state = DiskState(
        node=name,
        used_percent=percent,
        free_bytes=int(100 - percent),
        total_bytes=100,
        level="",
        writes_blocked=False,
        at_s=world.runtime.now_s(),
    )
    await DiskStates(world.planes["a"].kv).tell(state)


async def arrived(world, artifact, *holders):
    """An event wakes the daemon; what it then does takes its time."""
    async with asyncio.timeout(60):
        while await world.holders(artifact) != set(holders):
            await asyncio.sleep(0.01)


class LeftAlone:
    """Transfers that set a node aside after its failures."""

    def __init__(self, plane):
        self.asked, self._stalls = 0, plane.stalls

    async def send(self, node, artifacts, **_terms):
        self.asked += 1
        await self._stalls.record_stall_async(node.name, "it failed 3 times in a row", 300.0)
        raise TransferRefused(node.name, reason="it failed 3 times in a row", retry_after_s=300.0)


class Lines:
    """A transport whose lines are down until somebody mends them."""

    name, up, calls, through = "lines", False, 0, None

    def reaches(self, node):
        return True

    async def send(self, node, artifacts, terms):
        self.calls += 1
        if not self.up:
            raise TransferFailed("the line is down")
        return await self.through.send(node, artifacts, terms=terms)


async def test_a_node_that_is_left_alone_is_not_asked_at_every_new_file():
    world = World(*nodes("a", "b"))
    await world.make(b"own", "a", node="a", games=5)
    daemon, transfers = daemon_of(world), LeftAlone(world.planes["a"])
    world.planes["a"]._transfers = transfers
    for _ in range(5):
        await daemon._run_cycle()
    assert (transfers.asked, len(world.heard("DATA_SYNC_FAILED"))) == (1, 1)
    assert daemon.counts.held_back[-1] == "b: it failed 3 times in a row; it is tried again in 300 s"
    await daemon._on_recovered(RouterEvent("NODE_RECOVERED", {"node_id": "b"}, 1.0, "test"))
    await daemon._run_cycle()
    assert transfers.asked == 2, "news of the node are worth a try"
    world.runtime.advance(301.0)
    await daemon._run_cycle()
    assert transfers.asked == 3


async def test_a_host_is_served_whoever_says_that_it_is_offline():
    world = World(*nodes("a", "b", "c"))
    daemon = daemon_of(world)
    await daemon.start()
    await world.router.publish("HOST_OFFLINE", {"node_id": "b", "reason": "hearsay"}, "test")
    await daemon.stop()
    own = await world.make(b"own", "a", node="a", games=5)
    await daemon._run_cycle()
    assert await world.holders(own) == {"a", "b", "c"}
    await world.router.stop()


async def test_a_node_that_somebody_sets_aside_is_left_alone_until_then():
    world = World(*nodes("a", "b", "c"))
    made = await world.make(b"own", "a", node="a", games=5)
    theirs = await world.make(b"theirs", "b", "c", node="b", games=5)
    daemon = daemon_of(world, strategy="pull")
    await SyncStallHandler(kv=world.planes["b"].kv, runtime=world.runtime).record_stall_async(
        "b", "no disk", 60
    )
    await daemon_of(world)._run_cycle()
    assert await world.holders(made) == {"a", "c"}
    await daemon._run_cycle()
    assert [source for source, target, _ in world.transfers if target == "a"] == ["c"], "another source"
    assert await world.holders(theirs) == {"a", "b", "c"}
    refused = await SyncFacade(
        world.planes["a"], router=world.router, config=AutoSyncConfig(), reports=NodeReportCollector()
    ).sync("games", targets=["b"])
    assert refused.errors == ["b: no disk; it is tried again in 60 s"]
    world.runtime.advance(61.0)
    await daemon_of(world)._run_cycle()
    assert await world.holders(made) == {"a", "b", "c"}, "and afterwards it is used again"


async def test_a_node_that_is_well_again_is_sent_to_although_its_breaker_is_open():
    world = World(*nodes("a", "b"))
    plane = world.planes["a"]
    direct, down = plane.transfers, Lines()
    down.through = direct
    plane._transfers = TransferService(
        [down],
        plane.nodes,
        plane.blobs,
        plane.kv,
        plane.runtime,
        set_aside=partial(set_damaged_aside, plane),
        router=world.router,
    )
    own = await world.make(b"own", "a", node="a", games=5)
    daemon = daemon_of(world)
    for _ in range(10):
        await daemon._run_cycle()
        world.runtime.advance(1.0)
    down.up, tried = True, down.calls
    await daemon._on_recovered(RouterEvent("NODE_RECOVERED", {"node_id": "b"}, 1.0, "test"))
    await daemon._run_cycle()
    assert down.calls > tried
    assert await world.holders(own) == {"a", "b"}


# --- strategies ---------------------------------------------------------------------------------------


async def test_hybrid_pushes_what_was_made_here_to_three_good_neighbors():
    world = World(*nodes("a", "b", "c", "d"), DataNode(name="v", ephemeral=True))
    own = await world.make(b"own", "a", node="a", games=5)
    foreign = await world.make(b"foreign", "a", node="x", games=5)
    await daemon_of(world)._run_cycle()
    assert await world.holders(own) == {"a", "b", "c", "d"}, "nodes that stay come before one that may vanish"
    assert await world.holders(foreign) == {"a"}, "what others made they push themselves"


async def test_a_node_that_trains_gathers_what_others_have():
    world = World(DataNode(name="a", training=True), *nodes("b", "c"))
    games = await world.make(b"games", "b", node="b", games=5)
    await daemon_of(world)._run_cycle()
    assert await world.holders(games) == {"a", "b"}
    landed = world.heard("NEW_GAMES_AVAILABLE")
    assert landed == [], "games without a config are nobody's news"


async def test_fetched_games_are_news():
    world = World(DataNode(name="a", role="coordinator"), *nodes("b"))
    await world.make(b"games", "b", games=5, config="hex8_2p")
    await daemon_of(world, strategy="pull")._run_cycle()
    assert world.heard("NEW_GAMES_AVAILABLE") == [
        {"config_key": "hex8_2p", "node_id": "a", "new_games": 5}
        | {
            k: v
            for k, v in world.heard("NEW_GAMES_AVAILABLE")[0].items()
            if k not in ("config_key", "node_id")
        }
    ]


async def test_an_ephemeral_node_first_saves_everything_once_then_a_second_time():
    world = World(DataNode(name="a", ephemeral=True), *nodes("b", "c"), DataNode(name="v", ephemeral=True))
    old = await world.make(b"old", "a", games=5, created_s=1.0)
    new = await world.make(b"new", "a", games=5, created_s=2.0)
    daemon = daemon_of(world)
    await daemon._run_cycle()
    assert daemon.counts.strategy == "ephemeral"
    _, target, digests = world.transfers[0]
    assert digests == (new.digest, old.digest), "the newest first: it is the least likely to be elsewhere"
    assert len(world.transfers) == 1
    pushed = world.heard("GAME_SYNCED")[0]
    assert (pushed["games_pushed"], pushed["target_nodes"], pushed["is_ephemeral"]) == (10, [target], True)
    await daemon._run_cycle()
    assert await world.holders(old) == {"a", "b", "c"}


async def test_a_leader_broadcasts_to_all_and_keeps_very_large_files_back():
    world = World(*nodes("a", "b", "c", "d", "e"))
    small = await world.make(b"small", "a", games=5)
    large = await world.make(b"l" * 100, "a", games=5)
    daemon = daemon_of(world, broadcast_bytes_max=50)
    daemon._reports.leader = "a"
    await daemon._run_cycle()
    assert daemon.counts.strategy == "broadcast"
    assert await world.holders(small) == {"a", "b", "c", "d", "e"}
    assert await world.holders(large) == {"a"}
    assert any("too many to send to all" in reason for reason in daemon.counts.held_back)


async def test_gossip_brings_what_neighbors_have():
    world = World(*nodes("a", "b", "c"))
    made = await world.make(b"one", "c", games=5)
    await daemon_of(world, strategy="gossip")._run_cycle()
    assert await world.holders(made) == {"a", "c"}


async def test_push_waits_for_the_disk_to_fill_and_then_serves_the_coordinator():
    world = World(*nodes("a", "b"), DataNode(name="c", role="coordinator"))
    made = await world.make(b"one", "a", games=5)
    await full(world, "a", 40.0)
    daemon = daemon_of(world, strategy="push")
    await daemon._run_cycle()
    assert daemon.counts.held_back[0] == "this disk is 40 % full: nothing is pushed"
    await full(world, "a", 55.0)
    await daemon._run_cycle()
    assert await world.holders(made) == {"a", "c"}


async def test_planned_makes_the_copies_that_are_missing_and_no_more():
    world = World(*nodes("a", "b", "c", "d"))
    made = await world.make(b"one", "a", games=5)
    enough = await world.make(b"two", "a", "d", games=5)
    await daemon_of(world, strategy="planned", copies_min=2)._run_cycle()
    assert len(await world.holders(made)) == 2
    assert await world.holders(enough) == {"a", "d"}


async def test_freshness_asks_where_data_is_old():
    world = World(*nodes("a"))
    await world.make(b"one", "a", games=500, config="hex8_2p")
    await daemon_of(world, strategy="freshness")._run_cycle()
    assert world.heard("DATA_STALE")[0]["config_key"] == "hex8_2p"
    assert world.heard("SYNC_TRIGGERED")[0]["config_key"] == "hex8_2p"


async def test_every_sync_daemon_type_is_a_strategy_of_the_one_daemon():
    assert create_sync_daemon({"strategy": "hybrid"})._strategy is None
    for strategy in ("broadcast", "ephemeral", "gossip", "push", "planned", "freshness"):
        assert create_sync_daemon({"strategy": strategy})._strategy is SyncStrategy(strategy)
    with pytest.raises(ConfigError, match="telepathy"):
        AutoSyncDaemon("telepathy")


# --- what may wait ------------------------------------------------------------------------------------


async def test_a_few_games_wait_for_more_but_not_for_ever_and_not_when_asked():
    world = World(*nodes("a", "b"))
    made = await world.make(b"one", "a", games=3, created_s=world.runtime.now_s())
    daemon = AutoSyncDaemon(
        config=AutoSyncConfig(games_min=10, wait_s_max=600),
        plane=world.planes["a"],
        router=world.router,
        runtime=world.runtime,
        reports=NodeReportCollector(),
    )
    await daemon._run_cycle()
    assert await world.holders(made) == {"a"}
    assert daemon.counts.held_back == ("3 new games wait for more",)
    daemon._requests.at_once = True
    await daemon._run_cycle()
    assert await world.holders(made) == {"a", "b"}
    late = await world.make(b"two", "a", games=3, created_s=world.runtime.now_s())
    world.runtime.advance(601)
    await daemon._run_cycle()
    assert await world.holders(late) == {"a", "b"}


async def test_row_28_files_of_known_low_quality_stay_and_unknown_quality_is_not_low():
    world = World(*nodes("a", "b"))
    bad = await world.make(b"bad", "a", games=5, quality=0.2)
    unknown = await world.make(b"unknown", "a", games=5)
    await daemon_of(world, quality_min=0.5)._run_cycle()
    assert await world.holders(bad) == {"a"}
    assert await world.holders(unknown) == {"a", "b"}, "a cold start without scores must not stop"


async def test_backpressure_pauses_and_its_end_resumes():
    world = World(*nodes("a", "b"))
    daemon = daemon_of(world)
    kv, now_s = world.planes["a"].kv, world.runtime.now_s()
    await keep_announced(kv, Announced(True, now_s, reason="queues are full", measured_s=now_s))
    await daemon.start()
    made = await world.make(b"one", "a", games=5)
    await daemon._cycle()
    assert await world.holders(made) == {"a"}
    assert daemon.counts.held_back == ("queues are full",)
    await keep_announced(kv, Announced())
    await world.router.publish("BACKPRESSURE_RELEASED", {}, source="t")
    await arrived(world, made, "a", "b")
    await daemon.stop()
    await world.router.stop()


async def test_backpressure_that_somebody_only_says_pauses_nothing():
    world = World(*nodes("a", "b"))
    daemon = daemon_of(world)
    await daemon.start()
    pressure = {"level": "stop", "reason": "hearsay"}
    await world.router.publish("BACKPRESSURE_ACTIVATED", pressure, source="t")
    made = await world.make(b"one", "a", games=5)
    await daemon._cycle()
    await arrived(world, made, "a", "b")
    await daemon.stop()
    await world.router.stop()


async def test_events_make_it_look_at_once():
    world = World(*nodes("a", "b"))
    daemon = daemon_of(world)
    await daemon.start()
    made = await world.make(b"one", "a", games=5)
    await world.router.publish("SYNC_REQUEST", {"requester": "test", "data_type": "games"}, source="t")
    await arrived(world, made, "a", "b")
    await daemon.stop()
    await world.router.stop()


async def test_one_process_of_a_node_syncs_at_a_time():
    world = World(*nodes("a", "b"))
    made = await world.make(b"one", "a", games=5)
    other = SyncMutex(kv=world.planes["a"].kv, runtime=world.runtime)
    assert await other.acquire_async("sync_cycle:a", "maintenance")
    daemon = daemon_of(world)
    await daemon._run_cycle()
    assert await world.holders(made) == {"a"}
    assert "sync_cycle:a: its sync lock is held by" in daemon.counts.held_back[0]
    assert await other.release_async("sync_cycle:a")
    await daemon._run_cycle()
    assert await world.holders(made) == {"a", "b"}


async def test_a_host_whose_sync_lock_is_held_is_not_synced_and_it_is_said_why():
    world = World(*nodes("a", "b", "c"))
    made = await world.make(b"one", "a", games=5)
    somebody = SyncMutex(kv=world.planes["a"].kv, runtime=world.runtime)
    assert await somebody.acquire_async("b", "maintenance")
    daemon = daemon_of(world)
    await daemon._run_cycle()
    assert await world.holders(made) == {"a", "c"}, "the others are synced"
    (why,) = daemon.counts.held_back
    assert why.startswith("b: its sync lock is held by process")
    assert "'maintenance'" in why
    assert await somebody.release_async("b")
    await daemon._run_cycle()
    assert await world.holders(made) == {"a", "b", "c"}
    assert await somebody.locks_async() == [], "what the cycle held is given back"


async def test_a_cycle_whose_lock_was_ended_has_brought_what_it_brought_and_says_so():
    world = World(*nodes("a", "b"))
    made = await world.make(b"one", "a", games=5)
    plane = world.planes["a"]
    others = SyncMutex(kv=plane.kv, runtime=world.runtime)

    class Ended(DirectTransfers):
        async def send(self, node, artifacts, **terms):
            for host in ("sync_cycle:a", "b"):
                assert await others.force_release_async(host)
            return await super().send(node, artifacts, **terms)

    plane._transfers = Ended(world, plane)
    daemon = daemon_of(world)
    await daemon._run_cycle()
    assert await world.holders(made) == {"a", "b"}
    assert daemon.counts.files == 1
    assert "sync_cycle:a: lease on" in daemon.counts.held_back[0]


async def test_a_host_is_locked_while_files_go_to_it():
    world = World(*nodes("a", "b"))
    await world.make(b"one", "a", games=5)
    plane, seen = world.planes["a"], []
    others = SyncMutex(kv=plane.kv, runtime=world.runtime)

    class Watched(DirectTransfers):
        async def send(self, node, artifacts, **terms):
            seen.extend(info.host for info in await others.locks_async())
            assert not await others.acquire_async(node.name)
            return await super().send(node, artifacts, **terms)

    plane._transfers = Watched(world, plane)
    await daemon_of(world)._run_cycle()
    assert sorted(seen) == ["b", "sync_cycle:a"]


# --- what it says -------------------------------------------------------------------------------------


async def test_events_count_what_receivers_verified():
    world = World(*nodes("a", "b", "c"))
    await world.make(b"one", "a", games=7, node="a")
    world.down = {"c"}
    daemon = daemon_of(world)
    await daemon._run_cycle()
    (told,) = world.heard("DATA_SYNC_COMPLETED")
    assert (told["games_synced"], told["files_synced"], told["bytes_transferred"]) == (7, 1, 3)
    (failed,) = world.heard("DATA_SYNC_FAILED")
    assert "c" in failed["error"]
    decisions = await DecisionLog(world.planes["a"].kv, world.runtime, node="a").recent(part="sync")
    assert {(each.facts["peer"], each.facts["arrived"]) for each in decisions} == {("b", 1), ("c", 0)}


async def test_failures_in_a_row_are_told_as_critical():
    world = World(*nodes("a", "b"))
    await world.make(b"one", "a", games=7)
    world.down = {"b"}
    daemon = daemon_of(world)
    for _ in range(5):
        await daemon._run_cycle()
    (told,) = world.heard("SYNC_FAILURE_CRITICAL")
    assert told["consecutive_failures"] == 5
    daemon._running = True
    assert daemon.health_check().status is CoordinatorStatus.DEGRADED
    world.down = set()
    await daemon._run_cycle()
    assert daemon.counts.failures_in_a_row == 0


async def test_row_16_a_sync_that_nothing_can_receive_is_told_within_minutes():
    """A disk limit that silently stopped sync for days must be heard of."""
    world = World(*nodes("a", "b"))
    await world.make(b"one", "a", games=7)
    await full(world, "b", 71.0)
    daemon = daemon_of(world)
    await daemon._run_cycle()
    assert world.heard("DATA_SYNC_FAILED") == []
    for _ in range(11):
        world.runtime.advance(60)
        await full(world, "b", 71.0)
        await daemon._run_cycle()
    (told,) = world.heard("DATA_SYNC_FAILED")
    assert "b: its disk is 71 % full, the limit is 70 %" in told["error"]
    daemon._running = True
    health = daemon.health_check()
    assert health.status is CoordinatorStatus.DEGRADED
    assert "71 %" in health.message


async def test_row_17_nothing_moved_is_not_called_a_sync():
    world = World(*nodes("a", "b"))
    await world.make(b"one", "a", "b", games=7)
    daemon = daemon_of(world)
    await daemon._run_cycle()
    assert world.heard("DATA_SYNC_COMPLETED") == []
    assert (daemon.counts.syncs, daemon.counts.games) == (0, 0)


# --- files of jobs ------------------------------------------------------------------------------------


async def finish_job(world, content, *, kind="shard", node="sim", **counts):
    plane = world.planes["a"]
    digest = await plane.blobs.put_bytes(content)
    order = JobOrder(config="hex8_2p", params={})
    (item,) = await plane.queue.add([NewWork(kind="selfplay", payload=order.as_payload())])
    (claim,) = await plane.queue.claim(Claimant(worker="sim-1", node=node), lease_s=30.0)
    made = JobArtifact(name="games.rsg", kind=kind, digest=digest, size_bytes=len(content), counts=counts)
    report = JobReport(
        status="done", worker="sim-1", node=node, started_s=1.0, wall_s=1.0, cpu_s=1.0, artifacts=(made,)
    )
    await plane.queue.complete(item, token=claim.token, result=report.as_result())
    return digest


async def test_what_a_job_sealed_is_registered_and_goes_to_others_by_itself():
    world = World(*nodes("a", "b"))
    digest = await finish_job(world, b"shard", games=40, rows=900)
    daemon = daemon_of(world)
    await daemon._run_cycle()
    card = await world.planes["a"].manifest.artifact(digest)
    assert (card.kind, card.config, card.games, card.rows) == (ArtifactKind.GAMES, "hex8_2p", 40, 900)
    assert card.node == "a", "the host name of this machine is this node"
    copies = {receipt.node: receipt for receipt in await world.planes["a"].manifest.copies(digest)}
    assert copies["a"].verifier == "sim-1"
    assert set(copies) == {"a", "b"}


async def test_a_file_is_registered_once_however_often_and_wherever_its_end_is_read():
    world = World(*nodes("a", "b"))
    digest = await finish_job(world, b"shard", games=40)
    for name in ("a", "b", "a"):
        await daemon_of(world, name, strategy="planned", copies_min=1)._run_cycle()
    assert [each.digest for each in await world.planes["a"].manifest.artifacts()] == [digest]
    copies = [receipt.node for receipt in await world.planes["a"].manifest.copies(digest)]
    assert copies == ["a"], "only who has the file says so"


# --- what was deleted ---------------------------------------------------------------------------------


async def give_up(world, artifact, node, state=GivingUp.DELETED):
    gone = GivenUp(
        state=state, at_s=world.runtime.now_s(), reason="room", by="disk", copies_left=2, bytes=artifact.size
    )
    records = DeletionRecords(world.planes["a"].kv)
    stone = Tombstone(digest=artifact.digest, nodes={node: gone})
    await records.change(artifact.digest, lambda each: each, plain=stone)


async def test_what_a_node_deleted_does_not_come_back_by_itself():
    world = World(*nodes("a", "b", "c"))
    made = await world.make(b"one", "a", node="a", games=5)
    await give_up(world, made, "b")
    for strategy in ("hybrid", "broadcast", "planned"):
        await daemon_of(world, strategy=strategy, copies_min=3)._run_cycle()
    assert await world.holders(made) == {"a", "c"}
    for strategy in ("pull", "gossip"):
        await daemon_of(world, "b", strategy=strategy)._run_cycle()
    assert await world.holders(made) == {"a", "c"}


async def test_a_copy_that_is_being_given_up_is_no_copy():
    world = World(DataNode(name="a", ephemeral=True), *nodes("b", "c"))
    made = await world.make(b"one", "a", "b", games=5)
    await give_up(world, made, "b", GivingUp.DELETING)
    await daemon_of(world)._run_cycle()
    assert "c" in await world.holders(made), "b was the only node that stays, and its copy goes"


async def test_files_that_live_on_in_a_larger_one_stay_where_they_are():
    world = World(*nodes("a", "b"))
    small = await world.make(b"small", "a", node="a", games=5)
    large = await world.make(b"large", "a", node="a", games=50)
    successor = Successor(digest=small.digest, successor=large.digest, reason="merged", at_s=1.0)
    await DeletionRecords(world.planes["a"].kv).name_successor(successor)
    await daemon_of(world)._run_cycle()
    assert await world.holders(small) == {"a"}
    assert await world.holders(large) == {"a", "b"}
