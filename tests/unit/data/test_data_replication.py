"""Too few copies are told and repaired; gc, repair and loss together never lose what could be kept."""

from __future__ import annotations

import asyncio

import pytest
from guards_world import World, nodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.manifest.store import CopyView, DiskState, DiskStates, ManifestView
from ringrift.data.protection.deletion import Deleter
from ringrift.data.protection.records import DeletionRecords
from ringrift.data.protection.replication import (
    CopiesSnapshot,
    ReplicationMonitorDaemon,
    ReplicationRepairDaemon,
    ReplicationRules,
    create_replication_daemon,
    plan,
    take_snapshot,
)
from ringrift.data.sync.cluster_view import ClusterView
from ringrift.errors import ConfigError

NOW_S = 1_000_000_000.0
RULES = ReplicationRules()
FOUR = nodes("a", "b", "c", "d")


def artifact(number, kind=ArtifactKind.GAMES):
    return Artifact(digest=f"{number:064x}", size=10, kind=kind, created_s=NOW_S - 1000 + number)


def snapshot(placed, *, known=FOUR, this="a", away=frozenset(), kind=ArtifactKind.GAMES, **given):
    """*placed*: for each artifact the nodes that have it, as a text of one letter each."""
    artifacts = [artifact(number, kind) for number in range(len(placed))]
    receipts = {
        each.digest: [Receipt(digest=each.digest, node=name, size=10, verified_s=NOW_S) for name in names]
        for each, names in zip(artifacts, placed, strict=True)
    }
    view = CopyView(nodes=DataNodes(this, known), now_s=NOW_S, away=away)
    return CopiesSnapshot(artifacts=artifacts, receipts=receipts, view=view, this=this, **given)


def ways(found):
    return [
        (int(each.artifact.digest, 16), each.source, each.target, each.priority) for each in found.repairs
    ]


def test_the_fewest_copies_are_repaired_first():
    found = plan(snapshot(["abc", "ab", "b", "abc"]), RULES)
    assert [(number, priority) for number, _, _, priority in ways(found)] == [(2, "high"), (1, "low")]
    assert (found.total, found.single, found.under, found.below_target) == (4, 1, 1, 2)
    assert found.repairs[0].reason == "1 verified copies, minimum 2"


def test_this_node_is_the_source_where_it_has_the_file():
    assert ways(plan(snapshot(["ab"], this="b"), RULES))[0][1] == "b"
    assert ways(plan(snapshot(["ab"], this="c"), RULES))[0][1] == "a"


def test_a_copy_on_a_node_that_may_vanish_is_a_source_but_does_not_count():
    known = (DataNode(name="a"), DataNode(name="b"), DataNode(name="e", ephemeral=True))
    found = plan(snapshot(["e"], known=known), RULES)
    assert ways(found)[0][1] == "e"
    assert found.none == 1
    assert found.emergency


@pytest.mark.parametrize("kind", [ArtifactKind.REPORT, ArtifactKind.SNAPSHOT, ArtifactKind.UNFINISHED])
def test_what_is_neither_games_nor_models_nor_samples_is_repaired_where_a_sync_brings_it_too(kind):
    known = (DataNode(name="a"), DataNode(name="m", receives=("models",)))
    assert ways(plan(snapshot(["a"], known=known, kind=kind), RULES))[0][2] == "m"
    view = ClusterView(view=ManifestView(), nodes=DataNodes("a", known), now_s=NOW_S)
    assert view.takes(known[1], artifact(0, kind))
    assert not view.takes(known[1], artifact(0))


def test_copies_lost_for_good_are_told_and_not_invented():
    found = plan(snapshot([""]), RULES)
    assert not found.repairs
    assert list(found.stuck.values()) == ["no node is known to have it"]
    assert [(alert.kind, alert.level) for alert in found.alerts] == [("zero_copy", "critical")]
    assert found.score == 0.0
    assert found.verdict == "critical"


def test_few_files_with_too_few_copies_among_many_are_not_healthy():
    many = ["abc"] * 300
    assert plan(snapshot(many), RULES).verdict == "healthy"
    single, none = plan(snapshot([*many, "a"]), RULES), plan(snapshot([*many, ""]), RULES)
    assert (single.score > 90, single.verdict) == (True, "degraded")
    assert (none.score > 90, none.verdict) == (True, "critical")


def test_a_machine_alone_is_content():
    found = plan(snapshot(["a", "a"], known=nodes("a")), RULES)
    assert (found.under, found.repairs, found.alerts, found.score) == (0, (), (), 100.0)


@pytest.mark.parametrize(
    ("third", "why"),
    [
        (DataNode(name="c", receives=("models",)), "c takes no games"),
        (DataNode(name="c", status="offline"), "c is offline"),
        (DataNode(name="c", ephemeral=True), "c may vanish"),
    ],
)
def test_nodes_that_cannot_take_a_copy_are_not_asked(third, why):
    known = (DataNode(name="a"), DataNode(name="b"), DataNode(name="x"), third)
    found = plan(snapshot(["a"], known=known, away=frozenset({"b"}), disk_percent={"x": 75.0}), RULES)
    assert not found.repairs
    (told,) = found.stuck.values()
    assert why in told
    assert "x its disk is 75 % full" in told
    assert "b does not answer" in told


def test_models_go_where_models_are_taken():
    known = (DataNode(name="a"), DataNode(name="b", receives=("games",)), DataNode(name="c"))
    assert ways(plan(snapshot(["a"], known=known, kind=ArtifactKind.MODEL), RULES))[0][2] == "c"


def test_training_nodes_and_empty_disks_are_preferred():
    known = (DataNode(name="a"), DataNode(name="b"), DataNode(name="c", training=True))
    assert ways(plan(snapshot(["a"], known=known), RULES))[0][2] == "c"
    full = plan(snapshot(["a"], known=FOUR, disk_percent={"b": 60.0, "c": 10.0, "d": 60.0}), RULES)
    assert ways(full)[0][2] == "c"


def test_limits_hold_except_in_an_emergency():
    tight = ReplicationRules(repairs_per_hour=3)
    placed = ["a"] * 10
    assert len(plan(snapshot(placed, repairs_last_hour=1), tight).repairs) == 2
    assert len(plan(snapshot([*placed, "e"]), tight).repairs) == 10


def test_what_was_just_tried_rests_and_what_lives_on_elsewhere_is_left_alone():
    resting = snapshot(["a", "a"], resting=frozenset({artifact(0).digest}))
    assert [number for number, *_ in ways(plan(resting, RULES))] == [1]
    inherited = plan(snapshot(["", "a"], successors=frozenset({artifact(0).digest})), RULES)
    assert (inherited.total, inherited.none) == (1, 0)


def test_alerts_for_many_single_copies_and_for_late_ones():
    many = plan(snapshot(["a"] * 100), RULES)
    assert [alert.kind for alert in many.alerts] == ["single_copy"]
    assert many.alerts[0].nodes == ("a",)
    late = snapshot(["a"], under_since_s={artifact(0).digest: NOW_S - 901})
    assert [alert.kind for alert in plan(late, RULES).alerts] == ["under_replicated"]


def test_rules_that_cannot_be_met_are_refused():
    with pytest.raises(ConfigError, match="minimum is at least 1"):
        ReplicationRules(copies_min=4, copies_target=3)


async def test_repairs_end_with_receipts_and_are_told():
    world = World(*FOUR)
    games = await world.make(b"games", "a")
    daemon = ReplicationRepairDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    await daemon._run_cycle()
    await daemon._run_cycle()
    assert len(await world.holders(games)) == 3
    assert [told["new_replica_count"] for told in world.heard("REPAIR_COMPLETED")] == [2, 3]
    actions = [each.action for each in await Deleter(world.planes["a"]).decisions.recent(part="replication")]
    assert actions == ["repaired", "repaired"]
    assert daemon.last_plan.under == 0


async def test_many_small_files_travel_together():
    world = World(*nodes("a", "b"))
    games = [await world.make(f"games {number}".encode(), "a") for number in range(250)]
    daemon = ReplicationRepairDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    await daemon.repair_once()
    assert sorted(len(digests) for _, _, digests in world.transfers) == [50, 100, 100]
    assert len(world.heard("REPAIR_COMPLETED")) == 250
    for each in games:
        assert await world.holders(each) == {"a", "b"}


async def test_two_other_nodes_are_served_by_passing_through():
    world = World(DataNode(name="a", receives=("models",)), *nodes("b", "c"))
    games = await world.make(b"games", "b")
    daemon = ReplicationRepairDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    await daemon._run_cycle()
    assert {"b", "c"} <= await world.holders(games)
    assert [way[:2] for way in world.transfers] == [("b", "a"), ("a", "c")]


async def test_a_failed_repair_is_told_and_rests():
    world = World(*nodes("a", "b"))
    world.down.add("b")
    games = await world.make(b"games", "a")
    daemon = ReplicationRepairDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    await daemon._run_cycle()
    (told,) = world.heard("REPAIR_FAILED")
    assert "does not answer" in told["error"]
    world.down.clear()
    await daemon._run_cycle()
    assert await world.holders(games) == {"a"}, "it rests first"
    world.runtime.advance(601.0)
    await daemon._run_cycle()
    assert await world.holders(games) == {"a", "b"}


async def test_a_node_that_a_repair_did_not_get_to_is_the_last_choice():
    """The same one was chosen again and again, and files stayed single beside a node that was free."""
    world = World(*FOUR)
    world.down.add("d")
    games = await world.make(b"games", "a")
    daemon = ReplicationRepairDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    await daemon._run_cycle()
    assert [told["target_nodes"] for told in world.heard("REPAIR_FAILED")] == [["d"]]
    world.down.clear()
    world.runtime.advance(601.0)
    await daemon._run_cycle()
    assert await world.holders(games) == {"a", "c"}
    world.down |= {"b"}
    for _ in range(3):
        world.runtime.advance(601.0)
        await daemon._run_cycle()
    assert await world.holders(games) == {"a", "c", "d"}


async def test_two_repairers_do_not_make_the_same_copy():
    world = World(*nodes("a", "b"), DataNode(name="c", training=True), DataNode(name="d"))
    await world.make(b"games", "a", "b")
    daemons = [
        ReplicationRepairDaemon(plane=world.planes[name], router=world.router, runtime=world.runtime)
        for name in "ab"
    ]
    await asyncio.gather(*(daemon._run_cycle() for daemon in daemons))
    assert len(world.transfers) == 1


async def test_a_node_that_went_away_makes_others_repair():
    world = World(*FOUR)
    games = await world.make(b"games", "a", "b", "c")
    daemon = ReplicationRepairDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    await daemon.start()
    world.down.add("b")
    await world.router.publish("HOST_OFFLINE", {"node_id": "b", "reason": "test"}, "test")
    await daemon._run_cycle()
    await daemon.stop()
    assert "d" in await world.holders(games)


@pytest.mark.parametrize("told", ["a", "b"], ids=["itself", "one that answers"])
async def test_a_node_that_is_there_is_not_away_because_somebody_says_so(told):
    world = World(*FOUR)
    games = await world.make(b"games", "a", "b", "c")
    monitor = ReplicationMonitorDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    repair = ReplicationRepairDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime)
    for each in (monitor, repair):
        await each.start()
    await world.router.publish("HOST_OFFLINE", {"node_id": told, "reason": "hearsay"}, "test")
    for each in (monitor, repair):
        await each._run_cycle()
        await each.stop()
    assert world.heard("REPLICATION_ALERT") == []
    assert await world.holders(games) == {"a", "b", "c"}


async def test_the_monitor_tells_once_until_it_gets_worse():
    world = World(*nodes("a", "b"))
    lost = await world.make(b"games", "a")
    await world.lose(lost, "a")
    monitor = create_replication_daemon({"action": "count"}, router=world.router, runtime=world.runtime)
    assert isinstance(monitor, ReplicationMonitorDaemon)
    monitor._plane = world.planes["a"]
    await monitor._run_cycle()
    await monitor._run_cycle()
    (told,) = world.heard("REPLICATION_ALERT")
    assert told["level"] == "critical"
    world.runtime.advance(3_601.0)
    await monitor._run_cycle()
    assert [told["level"] for told in world.heard("REPLICATION_ALERT")] == ["critical", "critical", "warning"]


async def test_nodes_tell_how_full_they_are():
    world = World(*nodes("a", "b", "c"))
    full = DiskState(
        node="c",
        used_percent=91.0,
        free_bytes=9,
        total_bytes=100,
        level="warning",
        writes_blocked=False,
        at_s=0.0,
    )
    await DiskStates(world.planes["c"].kv).tell(full)
    await world.make(b"games", "a")
    found = plan(await take_snapshot(world.planes["a"]), RULES)
    assert [each.target for each in found.repairs] == ["b"]


STEPS = st.lists(
    st.tuples(st.sampled_from(("gc", "repair", "lose", "return")), st.sampled_from("abcde")), max_size=14
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), steps=STEPS)
def test_any_sequence_of_gc_repair_and_loss_keeps_enough_copies(seed, steps):
    """Deletions never bring an artifact below the minimum, and repairs bring it back after losses."""

    async def story():
        world = World(*nodes(*"abcde"), seed=seed)
        games = await world.make(b"games", "a", "b", "c")
        deleted: set[tuple[str, int]] = set()
        for number, (step, name) in enumerate(steps):
            world.runtime.advance(700.0)
            before = await world.holders(games)
            if step == "gc":
                every = [Deleter(plane).delete(games, why="gc", by="test") for plane in world.planes.values()]
                await asyncio.gather(*every)
                after = await world.holders(games)
                deleted |= {(each, number) for each in before - after}
                assert len(after) >= min(2, len(before)), "gc left too few"
            elif step == "repair" and name in before:
                await _repaired(world, name)
                assert await world.holders(games) >= before
            elif step == "lose" and name in before and len(before) > 1:
                await world.lose(games, name)
        holder = min(await world.holders(games))
        for _ in range(4):
            world.runtime.advance(700.0)
            await _repaired(world, holder)
        known = {each.node for each in await world.planes["a"].manifest.copies(games.digest)}
        assert known == await world.holders(games), "the manifest says what is there"
        assert len(known) >= 3
        stone = await DeletionRecords(world.planes["a"].kv).tombstone(games.digest)
        assert {name for name, _ in deleted} <= set(stone.nodes if stone else ()), "a deletion has no record"

    asyncio.run(story())


async def _repaired(world, name):
    daemon = ReplicationRepairDaemon(plane=world.planes[name], router=world.router, runtime=world.runtime)
    await daemon._run_cycle()
