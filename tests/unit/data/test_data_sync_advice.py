"""Which host comes first, where data goes, and what the manifest says: the advice behind sync."""

import asyncio
from types import SimpleNamespace

import pytest
from guards_world import World, nodes
from hypothesis import given
from hypothesis import strategies as st

from ringrift.coordination.cluster_manifest import ClusterManifest, get_cluster_manifest, stale_data
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.sync_base import get_data_plane
from ringrift.coordination.sync_coordinator import (
    SyncAction,
    SyncPriority,
    SyncRouter,
    SyncScheduler,
    cluster_status,
    execute_priority_sync,
    get_cluster_data_status,
    get_sync_recommendations,
    host_states,
    recommend,
)
from ringrift.coordination.sync_facade import SyncFacade
from ringrift.coordination.sync_router import plan_copies
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import AutoSyncConfig, DataNode, DataNodes
from ringrift.data.manifest.store import DiskState, ManifestIndex, ManifestView
from ringrift.data.protection.deletion import Deleter
from ringrift.data.protection.retention import pin, unpin
from ringrift.data.sync.cluster_view import (
    ClusterView,
    HostHistory,
    NodeReportCollector,
    NodeReports,
    SyncRecord,
    judge_hosts,
)
from ringrift.data.sync.plan import neighbor_score, source_score, sources_of, target_score
from ringrift.engine.opening import close_engine
from ringrift.errors import ConfigError
from ringrift.process import process_scope
from ringrift.testing.simulation import ManualRuntime
from ringrift.work.backpressure import BackpressureLevel

NOW_S = 1_000_000.0
DAY_S = 86_400.0


def card(number, *, games=0, created_s=NOW_S, config="hex8_2p", kind=ArtifactKind.GAMES, node="a", **fields):
    digest = f"{number:064x}"
    return Artifact(
        digest=digest,
        size=10,
        games=games,
        created_s=created_s,
        config=config,
        kind=kind,
        node=node,
        **fields,
    )


def cluster_view_of(nodes_given, placed, *, this="a", **fields):
    """*placed* are pairs of a file and the names of its holders."""
    view = ManifestView(
        {artifact.digest: artifact for artifact, _ in placed},
        {
            artifact.digest: {
                name: Receipt(digest=artifact.digest, node=name, size=10, verified_s=NOW_S)
                for name in holders
            }
            for artifact, holders in placed
        },
    )
    return ClusterView(view=view, nodes=DataNodes(this, nodes_given), now_s=NOW_S, **fields)


def disk(node, percent):
    return DiskState(
        node=node,
        used_percent=percent,
        free_bytes=int(100 - percent),
        total_bytes=100,
        level="",
        writes_blocked=False,
        at_s=NOW_S,
    )


# --- hosts --------------------------------------------------------------------------------------------


def test_a_host_that_may_vanish_counts_three_times_and_failures_count_less():
    given_nodes = [DataNode(name="v", ephemeral=True), *nodes("p", "q"), DataNode(name="a")]
    placed = [(card(1, games=10), ["v"]), (card(2, games=10), ["p"]), (card(3, games=10), ["q"])]
    history = {"q": HostHistory(failures_24h=1)}
    scores = {
        each.host: each.score for each in host_states(cluster_view_of(given_nodes, placed, history=history))
    }
    assert scores == {"v": 30.0, "p": 15.0, "q": pytest.approx(12.0), "a": 0.0}


def test_advice_follows_from_age_number_and_risk():
    given_nodes = [
        DataNode(name="a"),
        DataNode(name="v", ephemeral=True),
        *nodes("old", "stale", "many", "few", "safe"),
    ]
    placed = [
        (card(1, games=1), ["v"]),
        (card(2, games=1, created_s=NOW_S - 3700), ["old"]),
        (card(3, games=1, created_s=NOW_S - 1900), ["stale"]),
        (card(4, games=101), ["many"]),
        (card(5, games=2), ["few"]),
        (card(6, games=500, created_s=1.0), ["safe", "a"]),
    ]
    advice = {each.host: each for each in recommend(host_states(cluster_view_of(given_nodes, placed)))}
    assert {host: (each.action, each.priority) for host, each in advice.items()} == {
        "v": (SyncAction.SYNC_NOW, SyncPriority.CRITICAL),
        "old": (SyncAction.SYNC_NOW, SyncPriority.CRITICAL),
        "stale": (SyncAction.SYNC_NOW, SyncPriority.HIGH),
        "many": (SyncAction.SCHEDULE, SyncPriority.NORMAL),
        "few": (SyncAction.SCHEDULE, SyncPriority.LOW),
    }
    assert list(advice)[:2] == ["old", "v"]
    assert advice["many"].estimated_duration_seconds == pytest.approx(10.1)


def test_under_pressure_what_can_wait_waits_and_what_is_at_risk_goes():
    given_nodes = [DataNode(name="a"), DataNode(name="v", ephemeral=True), *nodes("b", "c", "d", "e")]
    placed = [(card(1, games=5), ["v"]), *((card(n, games=5), [name]) for n, name in enumerate("bcde", 2))]
    hosts = host_states(cluster_view_of(given_nodes, placed))
    slowed = recommend(hosts, pressure=BackpressureLevel.SOFT)
    assert [(each.host, each.action) for each in slowed] == [
        ("v", SyncAction.SYNC_NOW),
        ("b", SyncAction.SKIP),
    ]
    assert [each.host for each in recommend(hosts, pressure=BackpressureLevel.CRITICAL)] == ["v"]
    assert recommend(hosts, pressure=BackpressureLevel.STOP) == []


def test_a_failed_sync_does_not_make_a_host_look_synced_and_failures_pass():
    records = [
        SyncRecord(host="b", started_s=0.0, completed_s=100.0, success=True, games=50),
        SyncRecord(host="b", started_s=150.0, completed_s=200.0, success=False, error="broke"),
    ]
    now = judge_hosts(records, now_s=300.0)["b"]
    assert (now.last_success_s, now.failures_24h, now.games_per_s) == (100.0, 1, 0.5)
    later = judge_hosts(records, now_s=300.0 + 86_400.0)["b"]
    assert later.failures_24h == 0


@given(st.permutations([(1.0, True), (2.0, False), (3.0, True), (4.0, False)]))
def test_the_order_of_records_does_not_matter(order):
    records = [SyncRecord(host="b", started_s=0.0, completed_s=at, success=good) for at, good in order]
    assert judge_hosts(records, now_s=5.0)["b"].last_success_s == 3.0


def test_the_cluster_is_well_when_nothing_waits_and_worse_with_every_host_at_risk():
    given_nodes = [DataNode(name="a"), *nodes("b")]
    well = host_states(cluster_view_of(given_nodes, [(card(1, games=9), ["a", "b"])]))
    assert cluster_status(well, [], now_s=NOW_S).health_score == 100.0
    badly = host_states(cluster_view_of(given_nodes, [(card(1, games=9, created_s=1.0), ["a"])]))
    status = cluster_status(badly, [], now_s=NOW_S)
    assert (status.stale_hosts, status.critical_hosts, status.unsynced_games) == (["a"], ["a"], 9)
    assert status.health_score == pytest.approx(35 - 10 - 15)


async def test_advice_can_be_carried_out():
    world = World(*nodes("a", "b"))
    theirs = await world.make(b"one", "b", games=200)
    reports = NodeReportCollector()
    facade = SyncFacade(world.planes["a"], router=world.router, config=AutoSyncConfig(), reports=reports)
    scheduler = SyncScheduler(world.planes["a"], config=AutoSyncConfig(), facade=facade, reports=reports)
    process_scope().put(SyncScheduler, scheduler)
    (advice,) = await scheduler.recommendations()
    assert (advice.host, advice.priority >= SyncPriority.HIGH) == ("b", True)
    (response,) = await execute_priority_sync(advice)
    assert response.success
    assert await world.holders(theirs) == {"a", "b"}
    assert await scheduler.recommendations() == []
    assert await execute_priority_sync(max_syncs=3) == []

    asked = []

    async def advised(most):
        asked.append(most)
        return []

    scheduler.recommendations = advised
    await execute_priority_sync(max_syncs=30)
    assert asked == [30]
    with pytest.raises(ConfigError, match="max_syncs"):
        await execute_priority_sync(max_syncs=0)


# --- where to and where from --------------------------------------------------------------------------


def test_targets_that_train_come_first_and_those_that_may_vanish_last():
    given_nodes = [
        DataNode(name="a"),
        DataNode(name="busy", training=True),
        DataNode(name="trains", role="gpu_training"),
        DataNode(name="plain"),
        DataNode(name="spot", ephemeral=True),
    ]
    cluster_view = cluster_view_of(given_nodes, [], reports=NodeReports(training=frozenset({"busy"})))
    scores = {
        node.name: target_score(cluster_view, node, "games").score for node in cluster_view.nodes.others()
    }
    assert scores == {"busy": 160, "trains": 110, "plain": 80, "spot": 65}
    models = {
        node.name: target_score(cluster_view, node, "models").score for node in cluster_view.nodes.others()
    }
    assert models["trains"] == models["plain"]


def test_a_node_that_was_served_waits_its_turn():
    given_nodes = [DataNode(name="a"), *nodes("b", "c")]
    history = {"b": HostHistory(last_success_s=NOW_S - 1800.0)}
    cluster_view = cluster_view_of(given_nodes, [], history=history)
    assert target_score(cluster_view, cluster_view.nodes["b"], "games").score == 65
    assert target_score(cluster_view, cluster_view.nodes["c"], "games").score == 80


def test_disks_count():
    cluster_view = cluster_view_of(
        [*nodes("a", "b", "c")], [], disks={"b": disk("b", 20), "c": disk("c", 75)}
    )
    assert neighbor_score(cluster_view, cluster_view.nodes["b"]).score == 9
    assert neighbor_score(cluster_view, cluster_view.nodes["c"]).score == 6.25
    assert source_score(cluster_view, cluster_view.nodes["c"], "games").score == 110
    assert "has room" in target_score(cluster_view, cluster_view.nodes["b"], "games").reason


def test_the_source_of_the_same_provider_is_preferred():
    given_nodes = [
        DataNode(name="a", provider="vast"),
        DataNode(name="far", provider="lambda"),
        DataNode(name="near", provider="vast"),
        DataNode(name="gone", provider="vast", status="offline"),
    ]
    made = card(1)
    cluster_view = cluster_view_of(given_nodes, [(made, ["far", "near", "gone"])])
    assert [node.name for node in sources_of(cluster_view, made, cluster_view.this)] == ["near", "far"]


def test_copies_are_planned_by_quality_and_nodes_that_lack_are_said():
    made = card(1, quality=1.0)
    cluster_view = cluster_view_of([*nodes("a", "b")], [(made, ["a"])])
    plan = plan_copies(cluster_view, made.digest, min_copies=3)
    assert ([each.node_id for each in plan.targets], plan.missing, plan.priority) == (["b"], 1, 80)
    assert plan_copies(cluster_view, made.digest, min_copies=2, quality=0.0).priority == 50
    with pytest.raises(ConfigError, match="no file"):
        plan_copies(cluster_view, "0" * 64, min_copies=2)


def test_news_have_an_end():
    desk, runtime = NodeReportCollector(), ManualRuntime()
    now_s = runtime.now_s()
    desk.training_began("b", now_s)
    assert desk.reports(runtime).training == {"b"}
    runtime.advance(6 * 3600 + 1)
    assert desk.reports(runtime).training == frozenset()


def test_when_every_way_failed_a_type_is_closed_for_a_while_and_recovery_reopens_only_that_node():
    desk, runtime = NodeReportCollector(), ManualRuntime()
    ways = [desk.way_failed("b", "games", way, runtime.now_s()) for way in ("http", "rsync", "base64")]
    assert ways == ["rsync", "base64", ""]
    for way in ("http", "rsync", "base64"):
        desk.way_failed("c", "games", way, runtime.now_s())
    cluster_view = cluster_view_of([*nodes("a", "b", "c")], [], reports=desk.reports(runtime))
    shifted = ClusterView(
        view=cluster_view.view, nodes=cluster_view.nodes, now_s=runtime.now_s(), reports=cluster_view.reports
    )
    assert "every way to it failed" in shifted.blocked(cluster_view.nodes["b"], "games")
    assert shifted.blocked(cluster_view.nodes["b"], "models") == ""
    desk.came_back("b")
    assert set(desk.reports(runtime).closed) == {("c", "games")}
    runtime.advance(301)
    assert desk.reports(runtime).closed == {}


async def test_the_router_understands_singular_and_plural_and_nothing_else():
    router = SyncRouter(get_data_plane())
    assert router.get_sync_targets("game") == router.get_sync_targets("games") == []
    with pytest.raises(ConfigError, match="pictures"):
        router.get_sync_targets("pictures")
    assert router.get_s3_uri("games") is None
    await close_engine()


def test_a_node_that_has_the_data_takes_no_place_among_the_targets(monkeypatch):
    given_nodes = nodes("a", "b", "c")
    router, seen = SyncRouter(config=AutoSyncConfig()), [cluster_view_of(given_nodes, [])]

    async def cluster_view():
        return seen[-1]

    monkeypatch.setattr(router, "cluster_view", cluster_view)
    first, second = (each.node_id for each in router.get_sync_targets("games"))
    seen.append(cluster_view_of(given_nodes, [(card(1, games=1), ["a", first])]))
    targets = router.get_sync_targets("games", "hex8", 2, max_targets=1)
    assert [each.node_id for each in targets] == [second]


# --- the manifest -------------------------------------------------------------------------------------


def test_data_of_the_only_node_is_not_stale():
    cluster_view = cluster_view_of([DataNode(name="a")], [(card(1, games=5, created_s=1.0), ["a"])])
    assert stale_data(cluster_view.view, cluster_view.nodes, now_s=NOW_S, max_age_hours=1) == []


def test_stale_is_what_one_node_alone_holds_although_others_would_take_it():
    placed = [
        (card(1, games=5, created_s=NOW_S - 7200), ["b"]),
        (card(2, games=6, created_s=NOW_S - 3700), ["b"]),
        (card(3, games=7, created_s=NOW_S - 60), ["b"]),
        (card(4, games=8, created_s=1.0), ["a", "b"]),
        (card(5, created_s=1.0, kind=ArtifactKind.MODEL), ["a"]),
    ]
    given_nodes = [DataNode(name="a"), DataNode(name="b", receives=("games",))]
    cluster_view = cluster_view_of(given_nodes, placed)
    (found,) = stale_data(cluster_view.view, cluster_view.nodes, now_s=NOW_S, max_age_hours=1)
    assert (found.node, found.games, found.data_type, found.age_hours) == ("b", 11, "games", 2.0)
    assert len(found.digests) == 2


async def test_the_picture_of_the_manifest_sees_every_change_whoever_looks():
    world = World(*nodes("a", "b"))
    plane = world.planes["a"]
    one = await world.make(b"one", "a")
    before = await plane.view()
    made = await world.make(b"two", "a", "b")
    views = await asyncio.gather(*(plane.view() for _ in range(20)))
    assert all(sorted(view.holders(made.digest)) == ["a", "b"] for view in views)
    assert before.holders(made.digest) == ()  # a picture does not change under its reader
    await plane.manifest.drop_copy(made.digest, "b")
    await plane.manifest.drop_copy(made.digest, "a")
    await plane.manifest.forget(made.digest)
    after = await plane.view()
    assert after == await ManifestIndex(plane.kv, plane.runtime).refresh()
    assert list(after.artifacts) == [one.digest]
    assert await plane.view() is after  # nothing changed, so nothing is copied


async def test_the_picture_of_the_manifest_costs_what_changed_not_what_is_there():
    world = World(*nodes("a", "b"))
    plane = world.planes["a"]
    files = [card(number) for number in range(3_000)]
    await plane.manifest.register(files)
    pages = []
    read = plane.kv.changes

    async def counted(*args, **fields):
        pages.append(await read(*args, **fields))
        return pages[-1]

    index = ManifestIndex(SimpleNamespace(changes=counted), plane.runtime)
    assert len((await index.refresh()).artifacts) == 3_000
    assert max(len(page.changes) for page in pages) <= 500  # each is a short turn of the event loop
    pages.clear()
    receipt = Receipt(digest=files[7].digest, node="b", size=files[7].size, verified_s=NOW_S)
    await plane.manifest.add_receipts([receipt])
    assert (await index.refresh()).holders(files[7].digest) == ("b",)
    assert sum(len(page.changes) for page in pages) == 1


async def test_a_picture_of_days_ago_is_read_anew():
    """The store forgets deletions after a day: whoever slept longer would believe in copies that are gone."""
    world = World(*nodes("a", "b"))
    plane = world.planes["a"]
    made = await world.make(b"one", "a", "b")
    await plane.view()
    await plane.manifest.drop_copy(made.digest, "b")
    del world.store.kv.changes[f"locations/{made.digest}/b"]  # the store forgot the deletion
    world.runtime.advance(2 * 86_400.0)
    assert (await plane.view()).holders(made.digest) == ("a",)


async def test_the_manifest_of_this_process_answers_without_a_loop():
    manifest = get_cluster_manifest()
    digest = await get_data_plane().blobs.put_bytes(b"games")
    made = card(1)
    made = Artifact(digest=digest, size=5, kind=made.kind, games=3, config="hex8_2p", created_s=1.0)
    assert manifest.register([made]) == 1
    assert manifest.register([made]) == 0
    this = get_data_plane().this.name
    receipts = [Receipt(digest=digest, node=name, size=5, verified_s=2.0) for name in (this, "b", "c")]
    assert not manifest.health_check().details["copies"]
    manifest.add_receipts(receipts)
    assert manifest.get_replication_count(digest) == 3
    manifest.drop_copy(digest, "c")
    assert manifest.get_replication_count(digest) == 2
    assert manifest.get_node_inventory().games == 3
    assert manifest.find_stale_data(max_age_hours=1) == []
    assert manifest.get_under_replicated(3) == [made]
    assert get_sync_recommendations() == []
    assert get_cluster_data_status().total_hosts == 1
    assert not manifest.is_safe_to_delete(digest), "receipts of the past do not say that a copy may go"
    assert not manifest.is_safe_to_delete("f" * 64)
    assert manifest.deletion_verdict("f" * 64).reason == "this node has none"
    with pytest.raises(ConfigError, match="max_age_hours"):
        manifest.find_stale_data(max_age_hours=-1)
    await close_engine()


@pytest.mark.parametrize(
    ("others", "is_safe", "why"),
    [
        (nodes("b", "c"), True, "2 nodes looked now and keep it: b, c"),
        ((*nodes("b"), DataNode(name="c", ephemeral=True)), False, "c: the node may vanish at any moment"),
        ((*nodes("b"), DataNode(name="c", status="terminated")), False, "c: the node is terminated"),
        (nodes("b"), False, "c: "),  # no node of this cluster
    ],
)
async def test_a_copy_is_safe_to_delete_where_the_deletion_rule_would_delete_it_now(others, is_safe, why):
    world = World(*nodes("a"), *others)
    made = await world.make(
        b"games", "a", *(each.name for each in others), created_s=world.runtime.now_s() - 8 * DAY_S
    )
    await world.planes["a"].manifest.add_receipts([world.receipt(made, "c")])
    manifest = ClusterManifest(world.planes["a"])
    assert await asyncio.to_thread(manifest.is_safe_to_delete, made.digest) is is_safe
    found = await asyncio.to_thread(manifest.deletion_verdict, made.digest)
    assert (found.allowed, why in found.reason) == (is_safe, True), found
    # The rule that the manifest asks is the one that deletes.
    done = await Deleter(world.planes["a"]).delete(made, why="a test", by="test")
    assert done.verdict.allowed is is_safe


async def test_a_copy_that_a_holder_no_longer_has_or_a_person_pinned_is_not_safe_to_delete():
    world = World(*nodes("a", "b", "c"))
    made = await world.make(b"games", "a", "b", "c", created_s=world.runtime.now_s() - 8 * DAY_S)
    manifest = ClusterManifest(world.planes["a"])
    assert await asyncio.to_thread(manifest.is_safe_to_delete, made.digest)
    await pin(world.planes["a"].kv, made.digest, "kept for a talk")
    found = await asyncio.to_thread(manifest.deletion_verdict, made.digest)
    assert (found.allowed, found.reason) == (False, "it is needed: pinned: kept for a talk")
    await unpin(world.planes["a"].kv, made.digest)
    # The receipts still say that c has it.
    await world.planes["c"].blobs.delete(made.digest)
    found = await asyncio.to_thread(manifest.deletion_verdict, made.digest)
    assert (found.allowed, "1 nodes keep it, 2 must" in found.reason) == (False, True), found


def test_a_manifest_of_no_store_calls_nothing_safe_to_delete(tmp_path):
    assert not ClusterManifest().is_safe_to_delete("f" * 64)
    assert not get_settings().coordinator_db.exists(), "asking made a store"
