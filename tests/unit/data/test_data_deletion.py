"""No copy is deleted unless enough verified ones stay, whoever deletes at the same time and what crashes."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from guards_world import OLD_S, Crashed, World, nodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import AutoSyncConfig, DataNode, DataNodes
from ringrift.data.kv_records import DECISIONS_MAX, DecisionLog
from ringrift.data.manifest.store import Copies, CopyView
from ringrift.data.protection.deletion import Deleter, DeletionRules, Inheritance, may_delete
from ringrift.data.protection.distribution import DistributionState
from ringrift.data.protection.promises import KeepRequest
from ringrift.data.protection.records import DeletionRecords, GivenUp, GivingUp, Successor, Tombstone
from ringrift.data.protection.retention import pin
from ringrift.data.sync.cluster_view import read_cluster_view
from ringrift.engine.ports import NewWork
from ringrift.errors import ConfigError, Corrupt
from ringrift.events.event import RouterEvent, to_log
from ringrift.testing.simulation import simulate
from ringrift.work.job.protocol import JobOrder

DIGEST, OTHER = "a" * 64, "b" * 64
NOW_S = 1_000_000_000.0
RULES, ONE = DeletionRules(), DeletionRules(copies_min=1)
GOING = GivenUp(state=GivingUp.DELETING, at_s=0.0, reason="", by="test", copies_left=2)


def card(**fields):
    return Artifact(digest=DIGEST, size=10, created_s=NOW_S - OLD_S, **fields)


def receipt(node, age_s=0.0):
    return Receipt(digest=DIGEST, node=node, size=10, verified_s=NOW_S - age_s)


def copies_on(*names, view_nodes=None, tombstone=None, **view):
    known = DataNodes("a", view_nodes or nodes("a", "b", "c", "d"))
    seen = CopyView(nodes=known, now_s=NOW_S, **view)
    return seen.of([each if isinstance(each, Receipt) else receipt(each) for each in names], tombstone)


def verdict(copies, **given):
    return may_delete(card(), copies, RULES, NOW_S, node="a", **given)


def test_a_copy_may_go_when_enough_stay_elsewhere():
    found = verdict(copies_on("a", "b", "c"))
    assert found.allowed
    assert found.copies_left == 2
    assert found.reason == "2 verified copies stay: b, c"


def test_a_copy_may_not_go_when_too_few_stay():
    found = verdict(copies_on("a", "b"))
    assert not found.allowed
    assert found.reason == "1 verified copies would stay, 2 must"


@pytest.mark.parametrize(
    ("node_of_c", "why"),
    [
        (DataNode(name="c", ephemeral=True), "may vanish"),
        (DataNode(name="c", status="retired"), "retired"),
        (DataNode(name="c", nfs="share"), "same file as b"),
    ],
)
def test_copies_that_may_not_last_do_not_count(node_of_c, why):
    known = (DataNode(name="a"), DataNode(name="b", nfs="share"), node_of_c)
    found = verdict(copies_on("a", "b", "c", view_nodes=known))
    assert not found.allowed
    assert why in found.reason


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"away": frozenset({"c"})}, "does not answer"),
        ({"tombstone": Tombstone(digest=DIGEST, nodes={"c": GOING})}, "deleted there"),
    ],
)
def test_copies_of_nodes_that_are_away_or_gave_up_do_not_count(given, why):
    found = verdict(copies_on("a", "b", "c", **given))
    assert not found.allowed
    assert why in found.reason


def test_old_receipts_and_receipts_from_the_future_do_not_count():
    assert "31 days ago" in verdict(copies_on("a", "b", receipt("c", age_s=31 * 86_400))).reason
    assert "a clock is wrong" in verdict(copies_on("a", "b", receipt("c", age_s=-2 * 86_400))).reason


def test_a_receipt_newer_than_the_deletion_counts_again():
    gone = GivenUp(state=GivingUp.DELETED, at_s=NOW_S - 10, reason="", by="test", copies_left=2)
    stone = Tombstone(digest=DIGEST, nodes={"c": gone})
    assert not verdict(copies_on("a", "b", receipt("c", age_s=10), tombstone=stone)).allowed
    assert verdict(copies_on("a", "b", receipt("c", age_s=9), tombstone=stone)).allowed


def test_what_is_needed_or_new_stays_whatever_copies_there_are():
    plenty = copies_on("a", "b", "c", "d")
    assert (
        verdict(plenty, held_for="the champion of hex8_2p").reason == "it is needed: the champion of hex8_2p"
    )
    young = Artifact(digest=DIGEST, size=1, created_s=NOW_S - 5)
    assert "younger than 1 day" in may_delete(young, plenty, RULES, NOW_S, node="a").reason


def test_an_artifact_whose_content_lives_on_may_lose_all_its_copies():
    merged = Copies(counted=copies_on("b", "c").counted)
    assert verdict(copies_on("a"), inheritance=Inheritance(successor=OTHER, copies=merged)).allowed
    alone = Copies(counted=copies_on("b").counted)
    assert not verdict(copies_on("a"), inheritance=Inheritance(successor=OTHER, copies=alone)).allowed


def test_rules_that_would_delete_the_last_copy_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        DeletionRules(copies_min=0)


async def test_a_deletion_leaves_a_tombstone_and_a_decision_with_its_reason():
    world = World(*nodes("a", "b", "c"))
    artifact = await world.make(b"games", "a", "b", "c")
    done = await Deleter(world.planes["a"]).delete(artifact, why="the disk is full", by="disk")
    assert done.bytes_freed == 5
    assert await world.holders(artifact) == {"b", "c"}
    gone = (await world.planes["b"].tombstones())[artifact.digest].nodes
    assert {node: (each.state, each.by) for node, each in gone.items()} == {"a": ("deleted", "disk")}
    assert gone["a"].reason == "the disk is full; 2 nodes looked now and keep it: b, c"
    world.runtime.advance(1.0)
    kept = await Deleter(world.planes["b"]).delete(artifact, why="the disk is full", by="disk")
    assert not kept.verdict.allowed
    decisions = await Deleter(world.planes["a"]).decisions.recent(digest=artifact.digest)
    assert [(each.node, each.action) for each in decisions] == [("a", "deleted"), ("b", "refused")]


async def test_a_late_receipt_of_a_deleted_copy_does_not_count():
    world = World(*nodes("a", "b", "c", "d"))
    artifact = await world.make(b"games", "a", "b", "c")
    slow = world.receipt(artifact, "a")
    await Deleter(world.planes["a"]).delete(artifact, why="gc", by="test")
    await world.planes["b"].manifest.add_receipts([slow])
    assert not (await Deleter(world.planes["b"]).examine(artifact)).allowed


@pytest.mark.parametrize("kind", [ArtifactKind.UNFINISHED, ArtifactKind.CHECKPOINT])
async def test_the_last_copy_of_what_work_went_on_from_may_go_unless_it_is_needed_or_pinned(kind):
    world = World(*nodes("a", "b"))
    deleter = Deleter(world.planes["a"])
    spent = await world.make(b"spent", "a", kind=kind)
    pinned = await world.make(b"pinned", "a", kind=kind)
    await pin(world.planes["b"].kv, pinned.digest, "look at it")
    kept = await deleter.delete(spent, why="the disk is full", by="disk", held_for="one of the newest")
    assert not kept.verdict.allowed
    assert not (await deleter.delete(pinned, why="the disk is full", by="disk")).verdict.allowed
    done = await deleter.delete(spent, why="the disk is full", by="disk")
    assert (done.verdict.allowed, done.bytes_freed) == (True, 5)
    assert await world.planes["a"].manifest.artifact(spent.digest) is None
    games = await world.make(b"games", "a")
    assert not (await deleter.delete(games, why="the disk is full", by="disk")).verdict.allowed


async def test_the_card_goes_with_the_last_copy_of_what_lives_on_elsewhere():
    world = World(*nodes("a", "b"))
    merged = await world.make(b"merged", "a", "b")
    small = await world.make(b"small", "a")
    records = DeletionRecords(world.planes["a"].kv)
    await records.name_successor(
        Successor(digest=small.digest, successor=merged.digest, reason="merged", at_s=0.0)
    )
    await Deleter(world.planes["a"]).delete(small, why="merged", by="consolidation")
    assert await world.holders(small) == set()
    assert await world.planes["a"].manifest.artifact(small.digest) is None
    assert await records.tombstone(small.digest) is not None


async def test_a_crash_at_any_step_leaves_the_copy_or_a_deletion_that_is_finished_later():
    """Kill the deleting node after every store call in turn; then another copy is lost, or not."""
    steps_seen = set()
    for steps in range(40):
        for another_lost in (False, True):
            world = World(*nodes("a", "b", "c"))
            artifact = await world.make(b"games", "a", "b", "c")
            world.planes["a"].kv.crash_after = steps
            with contextlib.suppress(Crashed):
                await Deleter(world.planes["a"]).delete(artifact, why="gc", by="test")
            world.planes["a"].kv.crash_after = None
            before = await world.holders(artifact)
            if another_lost:
                await world.lose(artifact, "b")
            await Deleter(world.planes["a"]).finish()
            after = await world.holders(artifact)
            stone = await DeletionRecords(world.planes["a"].kv).tombstone(artifact.digest)
            own = None if stone is None else stone.nodes.get("a")
            steps_seen.add((a_has := "a" in after, own is not None, another_lost))
            # Either it is there and nobody says otherwise, or it is gone and the record says why.
            assert a_has == (own is None)
            if another_lost and "a" in before:
                assert a_has, "the copy was still there when another was lost: it must stay"
                known = {each.node for each in await world.planes["a"].manifest.copies(artifact.digest)}
                assert known == {"a", "c"}
    assert len(steps_seen) >= 3


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    holders=st.sets(st.sampled_from("abcdef"), min_size=2),
    rounds=st.integers(1, 3),
    copies_min=st.integers(1, 3),
)
def test_all_nodes_deleting_at_once_never_leave_too_few(seed, holders, rounds, copies_min):
    async def story():
        world = World(*nodes(*"abcdef"), seed=seed)
        artifact = await world.make(b"games", *sorted(holders))
        rules = DeletionRules(copies_min=copies_min)
        for _ in range(rounds):
            requests = [
                Deleter(world.planes[name], rules=rules).delete(artifact, why="gc", by="test")
                for name in sorted(holders)
            ]
            await asyncio.gather(*requests)
        left = await world.holders(artifact)
        assert len(left) >= min(len(holders), copies_min)
        for name in sorted(left):  # one after the other nobody is in anybody's way
            await Deleter(world.planes[name], rules=rules).delete(artifact, why="gc", by="test")
        left = await world.holders(artifact)
        assert len(left) == min(len(holders), copies_min)
        stone = await DeletionRecords(world.planes["a"].kv).tombstone(artifact.digest)
        recorded = set() if stone is None else set(stone.nodes)
        assert recorded == holders - left, "every deletion is recorded, and nothing else is"

    simulate(story())


async def test_decisions_are_bounded(monkeypatch):
    monkeypatch.setattr("ringrift.data.kv_records.DECISIONS_MAX", 20)
    monkeypatch.setattr("ringrift.data.kv_records._TRIM_EVERY", 10)
    world = World(*nodes("a"))
    log = DecisionLog(world.planes["a"].kv, world.runtime, node="a")
    for number in range(95):
        world.runtime.advance(1.0)
        await log.record("test", "tried", str(number))
    kept = await log.recent(limit=DECISIONS_MAX)
    assert len(kept) <= 29
    assert kept[-1].reason == "94"


async def test_decisions_of_many_who_write_one_each_are_bounded(monkeypatch):
    monkeypatch.setattr("ringrift.data.kv_records.DECISIONS_MAX", 20)
    world = World(*nodes("a"))
    for number in range(40):
        world.runtime.advance(1.0)
        await DecisionLog(world.planes["a"].kv, world.runtime, node="a").record("test", "tried", str(number))
    kept = await DecisionLog(world.planes["a"].kv, world.runtime, node="a").recent(limit=DECISIONS_MAX)
    assert [each.reason for each in kept] == [str(number) for number in range(20, 40)]


def on_a_share():
    shared = (DataNode(name="a", nfs="share"), DataNode(name="b", nfs="share"))
    return World(*shared, *nodes("c", "d"))


async def test_a_file_on_a_shared_disk_is_gone_for_all_who_share_it():
    world = on_a_share()
    artifact = await world.make(b"games", "a", "b", "c")
    assert not (await Deleter(world.planes["b"]).examine(artifact)).allowed
    refused = await Deleter(world.planes["b"]).delete(artifact, why="gc", by="test")
    assert not refused.verdict.allowed, "a's copy is the same file"
    fourth = await world.make(b"more games", "a", "b", "c", "d")
    done = await Deleter(world.planes["a"]).delete(fourth, why="gc", by="test")
    assert done.verdict.reason == "2 nodes looked now and keep it: c, d"
    left = await Deleter(world.planes["c"]).delete(fourth, why="gc", by="test")
    assert not left.verdict.allowed, "b's receipt is of the file that a deleted"


async def test_a_file_deleted_on_a_shared_disk_is_gone_though_the_clock_of_a_sharer_is_ahead():
    world = on_a_share()
    artifact = await world.make(b"games", "a", "b", "c", "d")
    ahead = msgspec.structs.replace(world.receipt(artifact, "b"), verified_s=world.runtime.now_s() + 3_600.0)
    await world.planes["b"].manifest.add_receipts([ahead])
    assert (await Deleter(world.planes["a"]).delete(artifact, why="gc", by="test")).verdict.allowed
    assert not (await Deleter(world.planes["c"]).delete(artifact, why="gc", by="test")).verdict.allowed
    plane = world.planes["c"]
    cluster_view = await read_cluster_view(plane, AutoSyncConfig())
    assert set(cluster_view.view.copies[artifact.digest]) == {"c", "d"}
    left = (await plane.view()).without(await plane.tombstones(), plane.nodes)
    scene = DistributionState(view=left, nodes=plane.nodes)
    assert scene.confirmed(artifact.digest) == {"c", "d"}


async def pin_it(plane, artifact):
    await pin(plane.kv, artifact.digest, "a test")


async def crown_it(plane, artifact):
    await plane.kv.put("learning/champion/c", msgspec.json.encode({"config": "c", "model": artifact.digest}))


async def order_it(plane, artifact):
    order = JobOrder(config="c", params={}, inputs={"x": artifact.digest}).as_payload()
    (first,) = await plane.queue.add([NewWork(kind="selfplay")])
    await plane.queue.add([NewWork(kind="train", payload=order, after=(first,))])


@pytest.mark.parametrize("need", [pin_it, crown_it, order_it])
async def test_what_came_to_be_needed_after_the_decision_stays(need):
    """Whether the deletion went on at once, or was finished after a crash."""
    kept = set()
    for steps in range(40):
        world = World(*nodes("a", "b", "c"))
        plane = world.planes["a"]
        artifact = await world.make(b"games", "a", "b", "c")
        plane.kv.crash_after = steps
        with contextlib.suppress(Crashed):
            await Deleter(plane).delete(artifact, why="gc", by="test")
        plane.kv.crash_after = None
        had = "a" in await world.holders(artifact)
        await need(plane, artifact)
        await Deleter(plane).finish()
        assert ("a" in await world.holders(artifact)) == had
        kept.add(had)
    assert kept == {True, False}
    world = World(*nodes("a", "b", "c"))
    artifact = await world.make(b"games", "a", "b", "c")
    await need(world.planes["a"], artifact)
    stale = await Deleter(world.planes["a"]).delete(artifact, why="gc", by="test", held_for="")
    assert "it is needed" in stale.verdict.reason
    assert await world.holders(artifact) == {"a", "b", "c"}
    assert (await Deleter(world.planes["b"]).examine(artifact)).copies_left == 2, "a's copy counts again"


@pytest.mark.parametrize("place", ["d", "e", "f"])
async def test_a_pin_on_any_node_that_answers_keeps_the_file(place):
    """Nodes whose copies were not needed were not asked, and those without one did not look for a pin."""
    world = World(*nodes("a", "b", "c", "d"), DataNode(name="e", ephemeral=True), DataNode(name="f"))
    artifact = await world.make(b"games", "a", "b", "c")
    if place == "d":
        await world.planes[place].blobs.put_bytes(b"games")  # a does not know of it
    world.planes[place].holder._pinned = lambda _digest: "for a paper"
    deleter = Deleter(world.planes["a"])
    told = f"it is pinned on {place}: for a paper"
    assert (await deleter.examine(artifact, ask=True)).reason == told
    assert (await deleter.delete(artifact, why="gc", by="test")).verdict.reason == told
    assert "a" in await world.holders(artifact)
    world.down.add(place)
    assert (await Deleter(world.planes["a"]).delete(artifact, why="gc", by="test")).verdict.allowed


async def test_a_copy_on_a_node_that_may_vanish_does_not_count_whatever_that_node_says():
    world = World(*nodes("a", "b"), DataNode(name="e", ephemeral=True))
    artifact = await world.make(b"games", "a", "b", "e")
    world.planes["e"].holder._node = DataNode(name="e")  # by its own config it stays
    rules = DeletionRules(copies_min=1)
    world.down.add("b")
    assert not (
        await Deleter(world.planes["a"], rules=rules).delete(artifact, why="gc", by="t")
    ).verdict.allowed


async def test_a_deletion_whose_beginning_was_lost_with_the_record_is_not_carried_out():
    """With the record it was forgotten that the file is being deleted, and another node was promised it."""
    world = World(*nodes("a", "b", "c", "d"))
    artifact = await world.make(b"games", "a", "b", "c", "d")
    plane, kept = world.planes["a"], []
    asked = plane.holders.keep

    async def keep(node, request):
        answer = await asked(node, request)
        plane.promises._db = None  # a new one is made
        plain = KeepRequest(asker="d", promise="d", keep_s=60.0, files=request.files)
        kept.append(await asyncio.to_thread(plane.holder.keep, plain))
        return answer

    plane.holders.keep = keep
    done = await Deleter(plane).delete(artifact, why="gc", by="test")
    assert [file.refusal for answer in kept for file in answer.files][-1] == "", "a has promised d"
    assert "record of promises was lost" in done.verdict.reason
    assert await world.holders(artifact) == {"a", "b", "c", "d"}
    assert "a" in {each.node for each in await plane.manifest.copies(artifact.digest)}
    assert await Deleter(plane).finish() == []


async def test_a_second_deleter_of_a_node_waits_for_the_first():
    """It would take the first one's deletion for one that a crash interrupted."""
    world = World(*nodes("a", "b", "c", "d"))
    plane = world.planes["a"]
    artifact = await world.make(b"games", "a", "b", "c")
    blobs, may_delete_now, deleting = plane.blobs, asyncio.Event(), asyncio.Event()

    class SlowBlobs:
        def __getattr__(self, name):
            return getattr(blobs, name)

        async def delete(self, digest):
            deleting.set()
            await may_delete_now.wait()
            return await blobs.delete(digest)

    plane.blobs = SlowBlobs()
    first = asyncio.create_task(Deleter(plane).delete(artifact, why="gc", by="first"))
    await deleting.wait()
    second = asyncio.create_task(Deleter(plane).finish())
    refused = await Deleter(world.planes["b"]).delete(artifact, why="gc", by="test", rules=ONE)
    assert "b promised a" in refused.verdict.reason.replace("this node", "b")
    assert not second.done()
    may_delete_now.set()
    assert (await first).bytes_freed
    assert await second == []
    assert await world.holders(artifact) == {"b", "c"}
    stone = await DeletionRecords(plane.kv).tombstone(artifact.digest)
    view = CopyView(nodes=plane.nodes, now_s=world.runtime.now_s())
    assert view.of(await plane.manifest.copies(artifact.digest), stone).nodes == ("b", "c")


async def test_a_damaged_copy_whose_deletion_is_taken_back_is_set_aside_and_holds_up_nothing():
    world = World(*nodes("a", "b", "c"))
    plane = world.planes["a"]
    artifact = await world.make(b"games", "a", "b", "c")
    stone = Tombstone(digest=artifact.digest, nodes={"a": GOING})
    await DeletionRecords(plane.kv).change(stone.digest, lambda each: each, plain=stone)
    await world.lose(artifact, "b")
    blobs = plane.blobs

    class DamagedBlobs:
        def __getattr__(self, name):
            return getattr(blobs, name)

        async def verify(self, digest):
            raise Corrupt(digest, found="other bytes", advice="")

    plane.blobs = DamagedBlobs()
    await Deleter(plane).finish()
    assert {each.node for each in await plane.manifest.copies(artifact.digest)} == {"c"}
    actions = [each.action for each in await Deleter(plane).decisions.recent(digest=artifact.digest)]
    assert "set_aside" in actions
    assert await Deleter(plane).finish() == []


async def test_copies_of_nodes_that_were_said_to_be_offline_do_not_count_until_they_are_back():
    """Whoever deletes, a command too, knows what was told while it did not run."""
    world = World(*nodes("a", "b", "c"))
    plane = world.planes["a"]
    artifact = await world.make(b"games", "a", "b", "c")

    async def tell(event_type):
        told = {"node_id": "b", "reason": "a test"}
        await plane.engine.events.append([to_log(RouterEvent(event_type, told), session="")])

    deleter = Deleter(plane)
    assert (await deleter.examine(artifact)).allowed
    await tell("HOST_OFFLINE")
    for each in (deleter, Deleter(plane)):
        assert "b: the node does not answer" in (await each.examine(artifact)).reason
    refused = await deleter.delete(artifact, why="gc", by="test")
    assert not refused.verdict.allowed
    await tell("HOST_ONLINE")
    assert (await deleter.examine(artifact)).allowed


async def test_a_copy_of_this_node_counts_whatever_others_say_of_it():
    world = World(*nodes("a", "b"))
    plane = world.planes["a"]
    artifact = await world.make(b"games", "a", "b")
    told = RouterEvent("HOST_OFFLINE", {"node_id": "a", "reason": "hearsay"})
    await plane.engine.events.append([to_log(told, session="")])
    found = (await Deleter(plane).view()).of(await plane.manifest.copies(artifact.digest))
    assert {each.node for each in found.counted} == {"a", "b"}


async def test_a_node_that_died_stays_away_until_it_is_heard_of_however_long_that_takes():
    """It never says again that it is gone, and the log that said so is not kept for good."""
    world = World(*nodes("a", "b", "c"))
    plane = world.planes["a"]
    artifact, other = [await world.make(text, "a", "b", "c") for text in (b"games", b"more games")]
    told = RouterEvent("HOST_OFFLINE", {"node_id": "b", "reason": "a test"})
    await plane.engine.events.append([to_log(told, session="")])
    await Deleter(plane).finish()
    world.runtime.advance(7 * 86_400.0)
    assert await plane.engine.events.trim() == 1
    assert "b: the node does not answer" in (await Deleter(plane).examine(artifact)).reason
    await plane.manifest.add_receipts([world.receipt(artifact, "b")])
    assert (await Deleter(plane).examine(artifact)).allowed, "it read the file since"
    assert not (await Deleter(plane).examine(other)).allowed
    back = RouterEvent("HOST_ONLINE", {"node_id": "b"})
    await plane.engine.events.append([to_log(back, session="")])
    assert (await Deleter(plane).examine(other)).allowed
    world.runtime.advance(7 * 86_400.0)
    assert await plane.engine.events.trim() == 1
    assert (await Deleter(plane).examine(other)).allowed, "it is not remembered as away"


class CountedHolders:
    """Counts whom one node asks; a release waits until all that are to come are under way."""

    def __init__(self, holders, releases=0):
        self._holders, self.calls = holders, []
        self._all = asyncio.Barrier(releases) if releases else None

    async def keep(self, node, request):
        self.calls.append(("keep", node.name))
        return await self._holders.keep(node, request)

    async def release(self, node, request):
        self.calls.append(("release", node.name))
        if self._all is not None:
            async with asyncio.timeout(60):
                await self._all.wait()
        return await self._holders.release(node, request)


async def test_a_node_that_is_away_is_asked_once_and_only_those_who_promised_are_released():
    world = World(*nodes("a", "b", "c", "d", "e"))
    files = [await world.make(f"games {number}".encode(), "a", "b", "c", "d") for number in range(5)]
    world.down.add("d")
    plane = world.planes["a"]
    holders = plane._holders = CountedHolders(plane.holders)
    deleter = Deleter(plane)
    for file in files:
        assert (await deleter.delete(file, why="full", by="test")).verdict.allowed
    assert holders.calls.count(("keep", "d")) == 1
    assert holders.calls.count(("release", "d")) == 0, "it did not answer"
    assert holders.calls.count(("release", "e")) == 0, "it does not have them"
    for name in ("b", "c"):
        assert holders.calls.count(("release", name)) == len(files)
        assert all(world.planes[name].promises.promised(file.digest) == "" for file in files)


async def test_those_who_promised_are_released_at_the_same_time():
    world = World(*nodes("a", "b", "c"))
    file = await world.make(b"games", "a", "b", "c")
    plane = world.planes["a"]
    plane._holders = CountedHolders(plane.holders, releases=2)
    assert (await Deleter(plane).delete(file, why="full", by="test")).verdict.allowed
    assert all(world.planes[name].promises.promised(file.digest) == "" for name in ("b", "c"))


async def test_a_node_that_went_silent_after_it_promised_is_left_to_let_the_promise_end():
    world = World(*nodes("a", "b", "c"))
    first, second = [await world.make(text, "a", "b", "c") for text in (b"first", b"second")]
    plane = world.planes["a"]
    holders = plane._holders = CountedHolders(plane.holders)
    deleter = Deleter(plane, rules=ONE)
    asked = await deleter._ask(first, ONE, keep_s=60.0)
    world.down.add("c")
    assert (await deleter.delete(second, why="full", by="test")).verdict.allowed
    await deleter._end(first.digest, asked)
    assert holders.calls.count(("release", "b")) == 2
    assert holders.calls.count(("release", "c")) == 0
