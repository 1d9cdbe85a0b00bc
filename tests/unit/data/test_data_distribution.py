"""Champions and samples reach the nodes that need them, and only a receipt counts as delivered."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from guards_world import World, nodes

from ringrift.data.artifacts import ArtifactKind
from ringrift.data.config import DataNode
from ringrift.data.protection.distribution import (
    DistributionDaemon,
    DistributionRules,
    create_distribution_daemon,
    digest_in,
)


async def champion(world, *holders, config="hex8_2p"):
    made_s = world.runtime.now_s()
    about = {"config": config, "created_s": made_s, "node": holders[0]}
    model = await world.make(b"weights", *holders, kind=ArtifactKind.MODEL, **about)
    card = await world.make(b"card", *holders, kind=ArtifactKind.CARD, **about)
    pointer = {"config": config, "model": model.digest, "card": card.digest, "change": 1}
    await world.planes["a"].kv.put(f"learning/champion/{config}", msgspec.json.encode(pointer))
    return model, card


def daemon_of(world, **given):
    return DistributionDaemon(plane=world.planes["a"], router=world.router, runtime=world.runtime, **given)


async def test_a_champion_and_its_card_reach_every_node_that_takes_models():
    world = World(
        *nodes("a", "b"), DataNode(name="c", ephemeral=True), DataNode(name="g", receives=("games",))
    )
    model, card = await champion(world, "a")
    daemon = daemon_of(world)
    await daemon._run_cycle()
    assert await world.holders(model) == await world.holders(card) == {"a", "b", "c"}
    (started,) = world.heard("MODEL_DISTRIBUTION_STARTED")
    assert sorted(started["target_nodes"]) == ["b", "c"]
    (done,) = world.heard("MODEL_DISTRIBUTION_COMPLETE")
    assert (done["nodes_synced"], done["models_distributed"], done["model_id"]) == (3, 2, model.digest)
    await daemon._run_cycle()
    assert len(world.transfers) == 2, "nothing is sent twice"
    assert len(world.heard("MODEL_DISTRIBUTION_COMPLETE")) == 1


async def test_a_node_that_fails_is_tried_again_later_and_told_when_given_up():
    world = World(*nodes("a", "b", "c"))
    world.down.add("c")
    model, _card = await champion(world, "a")
    daemon = daemon_of(world, rules=DistributionRules(tries=2))
    await daemon._run_cycle()
    await daemon._run_cycle()
    assert await world.holders(model) == {"a", "b"}
    assert not world.heard("MODEL_DISTRIBUTION_FAILED")
    world.runtime.advance(31.0)
    await daemon._run_cycle()
    (failed,) = world.heard("MODEL_DISTRIBUTION_FAILED")
    assert failed["failed_nodes"] == ["c"]
    assert "does not answer" in failed["error"]
    world.runtime.advance(301.0)
    await daemon._run_cycle()
    (incomplete,) = world.heard("DISTRIBUTION_INCOMPLETE")
    assert (incomplete["required_nodes"], incomplete["actual_nodes"]) == (3, 2)
    world.down.clear()
    world.runtime.advance(601.0)
    await daemon._run_cycle()
    assert await world.holders(model) == {"a", "b", "c"}
    assert len(world.heard("MODEL_DISTRIBUTION_COMPLETE")) == 1


async def test_the_newest_samples_go_to_nodes_that_train_only():
    world = World(*nodes("a", "b"), DataNode(name="t", training=True))
    now_s = world.runtime.now_s()
    old = await world.make(b"old", "a", kind=ArtifactKind.SAMPLES, config="c", created_s=now_s - 10)
    new = await world.make(b"new", "a", kind=ArtifactKind.SAMPLES, config="c", created_s=now_s)
    daemon = create_distribution_daemon({"kinds": "npz"}, router=world.router, runtime=world.runtime)
    daemon._plane = world.planes["a"]
    await daemon._run_cycle()
    assert await world.holders(new) == {"a", "t"}
    assert await world.holders(old) == {"a"}


async def test_a_wish_survives_a_restart_and_ends_when_it_is_met():
    world = World(*nodes("a", "b"))
    about = {"kind": ArtifactKind.MODEL, "config": "hex8_2p"}
    model = await world.make(b"weights", "a", **about)
    world.down.add("b")
    asked = daemon_of(world)
    await asked.start()
    payload = {"model_id": model.digest, "model_path": f"blob:{model.digest}", "target_node": "b"}
    await world.router.publish("MODEL_SYNC_REQUESTED", {**payload, "reason": "a test"}, "test")
    await asked.stop()
    world.down.clear()
    after = daemon_of(world)
    await after._run_cycle()
    assert await world.holders(model) == {"a", "b"}
    assert not await world.planes["a"].kv.entries("data/wishes/")


async def test_a_blocked_evaluation_brings_the_model_to_as_many_nodes_as_it_needs():
    world = World(*nodes("a", "b", "c"))
    model = await world.make(b"weights", "a", kind=ArtifactKind.MODEL)
    daemon = daemon_of(world)
    blocked = {"reason": "too few nodes", "required_nodes": 3, "actual_nodes": 1}
    payload = {"model_path": f"blob:{model.digest}", **blocked}
    await daemon.start()
    await world.router.publish("MODEL_EVALUATION_BLOCKED", payload, "test")
    await daemon.stop()
    await daemon._run_cycle()
    assert await world.holders(model) == {"a", "b", "c"}


async def test_a_damaged_copy_is_replaced():
    world = World(*nodes("a", "b"))
    model, _card = await champion(world, "a", "b")
    await world.planes["b"].blobs.delete(model.digest)
    daemon = daemon_of(world)
    await daemon.start()
    told = {"model_id": model.digest, "model_path": f"blob:{model.digest}", "corruption_type": "test"}
    await world.router.publish("MODEL_CORRUPTED", {**told, "node_id": "b"}, "test")
    await daemon.stop()
    await daemon._run_cycle()
    assert await world.holders(model) == {"a", "b"}


async def test_an_event_wakes_and_whoever_told_it_does_not_wait_for_transfers():
    world = World(*nodes("a", "b"))
    daemon = daemon_of(world)
    await daemon.start()
    model, _card = await champion(world, "a")
    promoted = {"config_key": "hex8_2p", "model_id": model.digest, "model_path": f"blob:{model.digest}"}
    await world.router.publish("MODEL_PROMOTED", {**promoted, "elo": 1600.0}, "test")
    assert await world.holders(model) == {"a"}
    async with asyncio.timeout(60):
        while await world.holders(model) != {"a", "b"}:
            await asyncio.sleep(0.01)
    await daemon.stop()


async def test_before_a_training_ends_its_opponent_is_brought_to_nodes_that_failed():
    world = World(*nodes("a", "b"))
    model, _card = await champion(world, "a")
    daemon = daemon_of(world)
    world.down.add("b")
    await daemon._run_cycle()
    world.down.clear()
    await daemon.start()
    progress = {"config_key": "hex8_2p", "job_id": "t1", "train_loss": 1.0, "total_epochs": 10}
    for epoch in (1, 7):
        await world.router.publish("TRAINING_PROGRESS", {**progress, "epoch": epoch}, source="t")
    assert await world.holders(model) == {"a"}  # it rests after its failure
    await world.router.publish("TRAINING_PROGRESS", {**progress, "epoch": 8}, source="t")
    await daemon._run_cycle()
    assert await world.holders(model) == {"a", "b"}
    await daemon.stop()
    await world.router.stop()


def test_a_model_is_found_in_a_path_or_an_id():
    digest = "c" * 64
    assert digest_in({"model_path": f"blob:{digest}"}) == digest
    assert digest_in({"model_path": "models/x.pt", "model_id": digest}) == digest
    assert digest_in({"model_path": "models/x.pt", "model_id": "x"}) is None


@pytest.mark.parametrize("said", ["b", "c"], ids=["who has it", "who lacks it"])
async def test_a_champion_goes_everywhere_whoever_says_that_a_node_is_offline(said):
    world = World(*nodes("a", "b", "c"))
    daemon = daemon_of(world)
    await daemon.start()
    await world.router.publish("HOST_OFFLINE", {"node_id": said, "reason": "hearsay"}, "test")
    await daemon.stop()
    model, _card = await champion(world, "b")
    await daemon._run_cycle()
    assert await world.holders(model) == {"a", "b", "c"}


async def test_a_node_that_is_set_aside_is_left_alone_until_then():
    world = World(*nodes("a", "b", "c"))
    await world.planes["a"].stalls.record_stall_async("b", "no disk", 60.0)
    model, _card = await champion(world, "a")
    daemon = daemon_of(world)
    await daemon._run_cycle()
    assert await world.holders(model) == {"a", "c"}
    world.runtime.advance(61.0)
    await daemon._run_cycle()
    assert await world.holders(model) == {"a", "b", "c"}
