"""Games of nodes that may vanish are brought to nodes that stay, before it is too late."""

from __future__ import annotations

import asyncio

import pytest
from guards_world import World, nodes

from ringrift.coordination import ephemeral_data_guard
from ringrift.coordination.ephemeral_data_guard import (
    KEPT_S,
    EphemeralDataGuard,
    EphemeralRecords,
    EphemeralRules,
    EvacuationState,
    HostNote,
    checkpoint_games,
    evacuate,
    get_ephemeral_guard,
    is_ephemeral,
    risk_of,
    wire_ephemeral_events,
)
from ringrift.data.config import DataNode, DataNodes
from ringrift.errors import ConfigError
from ringrift.process import process_scope

RENTED = DataNode(name="vast-1", ephemeral=True)
RULES = EphemeralRules()


def world_of(*names, **given):
    return World(*nodes(*names), RENTED, **given)


def guard_of(world, name="a", **given):
    async def plane():
        return world.planes[name]

    return EphemeralDataGuard(get_plane=plane, router=world.router, **given)


@pytest.mark.parametrize(
    ("unsynced", "silent_s", "needs"),
    [(50, 120, True), (49, 120, False), (50, 119, False), (500, 10_000, True)],
)
def test_a_silent_host_with_many_games_needs_evacuation(unsynced, silent_s, needs):
    note = HostNote(host="h", heartbeat_s=1000.0 - silent_s)
    found = risk_of("h", ephemeral=True, unsynced=unsynced, note=note, now_s=1000.0, rules=RULES)
    assert found.needs_evacuation is needs
    stays = risk_of("h", ephemeral=False, unsynced=unsynced, note=note, now_s=1000.0, rules=RULES)
    assert not stays.needs_evacuation


def test_the_config_file_says_who_may_vanish_and_names_only_where_it_is_silent():
    known = DataNodes("a", (DataNode(name="a"), RENTED, DataNode(name="spotless")))
    assert is_ephemeral("vast-1", known)
    assert not is_ephemeral("spotless", known)
    assert is_ephemeral("runpod-7", known)
    with pytest.raises(ConfigError):
        EphemeralRules(checkpoint_s=120.0, silent_s=60.0)


async def test_what_only_the_host_has_is_at_risk():
    world = world_of("a", "b")
    await world.make(b"safe", "vast-1", "b", games=30)
    await world.make(b"unsafe", "vast-1", games=20)
    guard = guard_of(world)
    await guard.note_checkpoint("vast-1", games_generated=60, unsealed_games=10)
    (risk,) = await guard.risks()
    assert (risk.unsynced_games, risk.unsealed_games, risk.silent_s) == (20, 10, 0.0)
    world.runtime.advance(130.0)
    assert (await guard.risks())[0].silent_s == 130.0
    await guard.note_heartbeat("vast-1")
    assert (await guard.risks())[0].silent_s == 0.0


async def test_a_host_that_was_silent_for_a_week_is_forgotten_also_after_a_heartbeat():
    world = world_of("a")
    records, now_s = EphemeralRecords(world.planes["a"].kv), world.runtime.now_s()
    await records.checkpoint("vast-1", games_generated=1, unsealed_games=0, now_s=now_s)
    world.runtime.advance(KEPT_S - 1.0)
    await records.heartbeat("vast-1", now_s=world.runtime.now_s())
    await records.heartbeat("vast-2", now_s=world.runtime.now_s())
    world.runtime.advance(KEPT_S - 1.0)
    assert set(await records.hosts()) == {"vast-1", "vast-2"}
    world.runtime.advance(2.0)
    assert await records.hosts() == {}


async def test_an_evacuation_is_carried_out_and_not_only_written_down():
    world = world_of("a", "b")
    games = [await world.make(f"games {n}".encode(), "vast-1", games=10) for n in range(3)]
    done = await guard_of(world).evacuate_host("vast-1", "a test")
    assert (done.state, done.games_saved, done.games_left) == (EvacuationState.DONE, 30, 0)
    for each in games:
        assert "a" in await world.holders(each)
    (told,) = world.heard("GAME_SYNCED")
    assert (told["games_pushed"], told["target_nodes"]) == (30, ["a"])


async def test_games_that_were_asked_for_leave_first_and_are_done_when_they_arrived():
    world = world_of("a", "b")
    games = [await world.make(f"games {n}".encode(), "vast-1", games=10) for n in range(4)]
    guard, records = guard_of(world), EphemeralRecords(world.planes["a"].kv)
    await records.queue("g2", "vast-1", f"blob:{games[2].digest}", 10, 1.0)
    await records.queue("g3", "vast-1", games[3].digest, 5, 1.0)
    await records.queue("other", "vast-2", games[1].digest, 9, 1.0)
    await records.queue("gone", "vast-1", "a file that nobody knows", 9, 1.0)
    done = await evacuate(world.planes["a"], "vast-1", deadline_s=1e9, first=await records.urgent("vast-1"))
    assert done.moved[:2] == (games[2].digest, games[3].digest)
    games.append(await world.make(b"more", "vast-1", games=1))
    await records.queue("g4", "vast-1", games[4].digest, 0, 1.0)
    await records.arrived("vast-1", done.moved)
    assert {each.game_id for each in await records.pending(10)} == {"other", "gone", "g4"}
    await guard.evacuate_host("vast-1", "a test")
    assert {each.game_id for each in await records.pending(10)} == {"other", "gone"}


async def test_a_node_that_leaves_brings_out_first_what_was_asked_for_by_the_name_of_its_file():
    world = world_of("a", "b")
    games = [await world.make(f"games-{n}.db".encode(), "vast-1", games=10) for n in range(4)]
    safe = await world.make(b"safe.db", "vast-1", "b", games=10)
    guard, records = guard_of(world, "vast-1"), EphemeralRecords(world.planes["a"].kv)
    order, send = [], world.planes["vast-1"].transfers.send

    async def watched(node, artifacts, **terms):
        order.extend(each.digest for each in artifacts)
        return await send(node, artifacts, **terms)

    world.planes["vast-1"].transfers.send = watched
    await asyncio.to_thread(guard.queue_write_through, "g3", "vast-1", "games-3.db", 5)
    await asyncio.to_thread(guard.queue_write_through, "g2", "vast-1", "/data/games/games-2.db", 10)
    await asyncio.to_thread(guard.queue_write_through, "safe", "vast-1", safe.name)
    await asyncio.to_thread(guard.queue_write_through, "later", "vast-1", "not-sealed-yet.db")
    await asyncio.to_thread(guard.queue_write_through, "nameless", "vast-1")
    status = await asyncio.to_thread(guard.get_status)
    assert (status["pending_write_throughs"], status["write_throughs_without_file"]) == (4, 2)
    await world.make(b"not-sealed-yet.db", "vast-1", games=10)
    await guard.leave()
    assert order[:2] == [games[2].digest, games[3].digest]
    assert [each.game_id for each in await records.pending(10)] == ["nameless"]


def test_a_write_through_of_nothing_is_refused():
    guard = get_ephemeral_guard()
    for wrong in (("", "vast-9"), ("g1", ""), ("g1", "vast-9", 5), ("g1", "vast-9", "x.db", "high")):
        with pytest.raises(ConfigError):
            guard.queue_write_through(*wrong)
    assert guard.get_pending_write_throughs() == []


async def test_an_evacuation_that_fails_says_so():
    world = world_of("a", "b")
    await world.make(b"games", "vast-1", games=10)
    world.down.add("vast-1")
    guard = guard_of(world)
    done = await guard.evacuate_host("vast-1", "a test")
    assert (done.state, done.games_left) == (EvacuationState.FAILED, 10)
    assert "does not answer" in done.errors[0]
    assert [each.evacuation_id for each in await guard.evacuations()] == [done.evacuation_id]


async def test_a_file_that_cannot_be_sent_does_not_keep_the_others_from_the_same_node(monkeypatch):
    monkeypatch.setattr(ephemeral_data_guard, "BATCH_FILES", 1)
    world = world_of("a", "b")
    lost = await world.make(b"lost", "vast-1", games=50)
    games = [await world.make(f"games {n}".encode(), "vast-1", games=10) for n in range(3)]
    await world.planes["vast-1"].blobs.delete(lost.digest)
    done = await evacuate(world.planes["a"], "vast-1", deadline_s=1e9)
    assert set(done.moved) == {each.digest for each in games}
    assert (done.left, done.targets) == ((lost.digest,), ("a",))
    assert done.errors == ("a: vast-1 does not have it", "b: vast-1 does not have it")


async def test_a_host_that_goes_away_is_evacuated_without_keeping_anybody_waiting():
    world = world_of("a", "b")
    games = await world.make(b"games", "vast-1", games=10)
    guard = guard_of(world)
    guard.wire()
    await world.router.publish("HOST_OFFLINE", {"node_id": "b", "reason": "test"}, "test")
    await world.router.publish("HOST_OFFLINE", {"node_id": "vast-1", "reason": "test"}, "test")
    await guard.wait_for_evacuations()
    assert "a" in await world.holders(games)
    assert len(await guard.evacuations()) == 1
    await guard.stop()


async def test_a_host_that_is_told_to_be_away_twice_is_evacuated_once():
    world = world_of("a", "b")
    await world.make(b"games", "vast-1", games=10)
    guard, begun, go_on = guard_of(world), [], asyncio.Event()

    async def evacuate_host(host, reason):
        begun.append(host)
        await go_on.wait()

    guard.evacuate_host = evacuate_host
    guard.wire()
    for _ in range(2):
        await world.router.publish("HOST_OFFLINE", {"node_id": "vast-1", "reason": "test"}, "test")
        await asyncio.sleep(0)
    assert begun == ["vast-1"]
    go_on.set()
    await guard.wait_for_evacuations()
    await world.router.publish("HOST_OFFLINE", {"node_id": "vast-1", "reason": "test"}, "test")
    await guard.wait_for_evacuations()
    assert begun == ["vast-1", "vast-1"]
    await guard.stop()


async def test_the_final_push_tries_the_next_node_when_one_is_down():
    world = world_of("a", "b", "c")
    games = [await world.make(f"games {n}".encode(), "vast-1", games=10) for n in range(5)]
    world.down.add("a")
    guard = guard_of(world, "vast-1")
    guard.wire()
    await guard.stop()
    for each in games:
        assert await world.holders(each) >= {"vast-1", "b"}
    (offline,) = world.heard("HOST_OFFLINE")
    assert offline["reason"] == "ephemeral_termination:pending_games=50"


async def test_a_node_that_stays_pushes_nothing_when_it_stops():
    world = world_of("a", "b")
    await world.make(b"games", "a", games=10)
    guard = guard_of(world, "a")
    guard.wire()
    await guard.stop()
    assert world.transfers == []
    assert guard.health_check().healthy is False


async def test_the_final_push_ends_at_its_deadline():
    world = world_of("a")
    await world.make(b"games", "vast-1", games=10)
    rules = EphemeralRules(final_push_s=0.05)
    guard = guard_of(world, "vast-1", rules=rules)

    async def never(*_args, **_terms):
        await asyncio.Event().wait()

    world.planes["vast-1"].transfers.send = never
    async with asyncio.timeout(60):
        done = await guard.leave()
    assert done.games_left == 10
    assert "took more than" in done.errors[0]


def test_the_calls_of_the_documents_work_without_an_event_loop(tmp_path):
    assert checkpoint_games("vast-9", games_generated=12).games_generated == 12
    guard = get_ephemeral_guard()
    guard.heartbeat("vast-9")
    guard.queue_write_through("g1", "vast-9", "x.db")
    guard.queue_write_through("g2", "vast-9", "y.db", priority=10)
    assert [each.game_id for each in guard.get_pending_write_throughs()] == ["g2", "g1"]
    assert guard.mark_write_through_complete("g2")
    assert not guard.mark_write_through_complete("g2")
    status = guard.get_status()
    assert (status["pending_write_throughs"], status["total_unsynced_games"]) == (1, 0)
    assert status["hosts"]["vast-9"]["ephemeral"] is True
    assert guard.get_evacuation_candidates() == []


async def test_wiring_gives_the_one_guard_of_the_process():
    world = world_of("a")
    guard = wire_ephemeral_events(world.router)
    assert guard is get_ephemeral_guard()
    assert guard.wiring().subscribes == ("HOST_OFFLINE", "HOST_ONLINE", "TASK_HEARTBEAT")
    assert wire_ephemeral_events(world.router) is guard is wire_ephemeral_events()
    other = world_of("a").router
    elsewhere = wire_ephemeral_events(other)
    assert (elsewhere.router, guard.router) == (other, world.router)
    elsewhere.unwire()
    guard.unwire()
    process_scope().drop(EphemeralDataGuard)
