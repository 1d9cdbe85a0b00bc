"""What is needed on a node stays there, however many copies others have."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from guards_world import World, nodes

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.protection.deletion import Deleter
from ringrift.data.protection.retention import Needs, RetentionRules, held, pin, read_held, read_needs, unpin
from ringrift.engine.ports import Claimant, NewWork
from ringrift.errors import ConfigError
from ringrift.work.job.protocol import JobOrder

NOW_S = 1_000_000_000.0
DAY_S = 86_400.0
RULES = RetentionRules()


def card(number, kind=ArtifactKind.GAMES, *, age_s=0.0, config="c"):
    return Artifact(digest=f"{number:064x}", size=1, kind=kind, config=config, created_s=NOW_S - age_s)


def held_of(artifacts, **given):
    needs = {"pins": {}, "champions": {}, "former": {}, "open_inputs": {}, "windows": {}, **given}
    reasons = held(artifacts, Needs(**needs), RULES, now_s=NOW_S)
    return {int(digest, 16): why for digest, why in reasons.items()}


def test_the_training_window_and_all_that_came_after_it_stay():
    games = [card(n, age_s=(10 - n) * DAY_S) for n in range(10)]
    window = frozenset({games[5].digest, games[7].digest})
    found = held_of(games, windows={"c": window})
    assert set(found) == {5, 6, 7, 8, 9}
    assert found[5] == "in the training window of c"


def test_the_samples_of_the_last_training_and_all_that_came_after_them_stay():
    samples = [card(n, ArtifactKind.SAMPLES, age_s=(20 - n) * DAY_S) for n in range(20)]
    games = [card(100 + n, age_s=(20 - n) * DAY_S) for n in range(20)]
    window = frozenset({samples[12].digest, samples[15].digest, games[18].digest})
    found = held_of([*samples, *games], windows={"c": window})
    assert set(found) == {*range(12, 20), 118, 119}


def test_of_a_window_that_is_not_known_here_everything_stays():
    games = [card(n, age_s=(10 - n) * DAY_S) for n in range(10)]
    assert set(held_of(games, windows={"c": frozenset({"f" * 64})})) == set(range(10))


def test_the_newest_checkpoints_and_those_of_champions_stay():
    checkpoints = [card(n, ArtifactKind.CHECKPOINT, age_s=100.0 - n) for n in range(30)]
    former = {checkpoints[5].digest: "c"}
    found = held_of(checkpoints, champions={checkpoints[3].digest: "c"}, former=former)
    assert set(found) == {3, 5, *range(30 - RULES.checkpoints_kept, 30)}


def test_games_of_a_config_that_nobody_exports_stay_for_a_week():
    found = held_of([card(1, age_s=6 * DAY_S), card(2, age_s=8 * DAY_S)])
    assert found == {1: "nothing of c was exported yet"}


def test_the_newest_samples_and_models_of_each_config_stay():
    samples = [card(n, ArtifactKind.SAMPLES, age_s=100.0 - n) for n in range(5)]
    models = [card(10 + n, ArtifactKind.MODEL, age_s=100.0 - n) for n in range(5)]
    other = card(20, ArtifactKind.MODEL, age_s=1e6, config="d")
    assert set(held_of([*samples, *models, other])) == {3, 4, 12, 13, 14, 20}
    with pytest.raises(ConfigError):
        RetentionRules(models_kept=0)


def test_pins_and_champions_say_so_first():
    model = card(1, ArtifactKind.MODEL)
    assert held_of([model], champions={model.digest: "c"}) == {1: "the champion of c"}
    both = held_of([model], champions={model.digest: "c"}, pins={model.digest: "for a paper"})
    assert both == {1: "pinned: for a paper"}


async def test_needs_are_read_from_work_pins_and_champions():
    world = World(*nodes("a"))
    plane = world.planes["a"]
    digests = {name: f"{number:064x}" for number, name in enumerate(("waits", "runs", "window", "older"))}

    def work(kind, name):
        order = JobOrder(config="c", params={}, inputs={"x": digests[name]})
        return NewWork(kind=kind, payload=order.as_payload())

    await plane.queue.add([work("export", "older"), work("export", "window"), work("train", "runs")])
    for _ in range(2):
        (claim,) = await plane.queue.claim(Claimant(worker="w", kinds=frozenset({"export"})), lease_s=60.0)
        await plane.queue.complete(claim.id, token=claim.token)
    await plane.queue.claim(Claimant(worker="w"), lease_s=60.0)
    await plane.queue.add([work("validate", "waits"), NewWork(kind="foreign", payload={"any": 1})])
    champion = {"config": "c", "model": "d" * 64, "card": "e" * 64, "change": 3}
    await plane.kv.put("learning/champion/c", msgspec.json.encode(champion))
    await pin(plane.kv, "f" * 64, "why not")
    needs = await read_needs(plane)
    assert needs.open_inputs == {digests["waits"]: "validate", digests["runs"]: "train"}
    assert needs.windows == {"c": frozenset({digests["window"]})}, "the last export, not the one before"
    assert set(needs.champions) == {"d" * 64, "e" * 64}
    assert needs.pins == {"f" * 64: "why not"}
    assert await unpin(plane.kv, "f" * 64)


async def test_inputs_of_work_that_is_blocked_delayed_or_far_back_in_the_queue_stay():
    world = World(*nodes("a", "b", "c"))
    plane = world.planes["a"]
    names = ("blocked", "delayed", "last")
    files = {name: await world.make(name.encode(), "a", "b", "c") for name in names}

    def work(name, **fields):
        order = JobOrder(config="c", params={}, inputs={"x": files[name].digest})
        return NewWork(kind="train", payload=order.as_payload(), **fields)

    (first,) = await plane.queue.add([NewWork(kind="foreign", payload={"any": 1})])
    await plane.queue.add([NewWork(kind="foreign", payload={"any": 1}) for _ in range(10_050)])
    await plane.queue.add(
        [work("blocked", after=(first,)), work("delayed", delay_s=1e6), work("last", priority=-1)]
    )
    reasons = await read_held(plane, files.values())
    assert {name: reasons.get(files[name].digest) for name in names} == dict.fromkeys(
        names, "input of train work"
    )


async def test_a_pinned_file_is_not_deleted():
    world = World(*nodes("a", "b", "c"))
    plane = world.planes["a"]
    games = await world.make(b"games", "a", "b", "c")
    await pin(plane.kv, games.digest, "a test")
    reasons = await read_held(plane, [games])
    done = await Deleter(plane).delete(games, why="gc", by="test", held_for=reasons[games.digest])
    assert done.verdict.reason == "it is needed: pinned: a test"
    assert await world.holders(games) == {"a", "b", "c"}


async def test_the_ends_of_work_are_read_once_and_the_last_export_counts():
    world = World(*nodes("a"))
    plane = world.planes["a"]

    async def export(digest):
        order = JobOrder(config="hex8_2p", params={}, inputs={"1.db": digest})
        await plane.queue.add([NewWork(kind="export", payload=order.as_payload())])
        (claim,) = await plane.queue.claim(Claimant(worker="w"), lease_s=100.0)
        await plane.queue.complete(claim.id, token=claim.token)

    first, second = "a" * 64, "b" * 64
    await export(first)
    both = await asyncio.gather(plane.windows.refresh(), plane.windows.refresh())
    assert both == [{"hex8_2p": frozenset({first})}] * 2
    await export(second)
    read = []
    ended = plane.queue.ended
    counted = SimpleNamespace(ended=lambda **asked: read.append(asked["after"]) or ended(**asked))
    plane.windows._queue = counted
    assert await plane.windows.refresh() == {"hex8_2p": frozenset({second})}
    assert min(read) > 0


async def test_a_batch_of_deletions_reads_the_queue_once_and_misses_no_work_that_comes_meanwhile():
    world = World(*nodes("a", "b", "c"))
    plane = world.planes["a"]
    names = ("one", "two", "three", "ordered", "revived")
    files = {name: await world.make(name.encode(), "a", "b", "c") for name in names}

    def work(name):
        order = JobOrder(config="c", params={}, inputs={"x": files[name].digest})
        return NewWork(kind="train", payload=order.as_payload())

    (dead,) = await plane.queue.add([work("revived")])
    (claim,) = await plane.queue.claim(Claimant(worker="w"), lease_s=60.0)
    await plane.queue.fail(claim.id, token=claim.token, error="a test", final=True)
    await plane.queue.add([NewWork(kind="foreign", payload={"any": 1}) for _ in range(5)])
    queue, read = plane.queue, []

    class CountedQueue:
        def __getattr__(self, name):
            return getattr(queue, name)

        async def unended(self, *, after, limit):
            read.append(after)
            return await queue.unended(after=after, limit=limit)

    plane.queue = CountedQueue()
    deleter = Deleter(plane)

    async def delete(name):
        return (await deleter.delete(files[name], why="gc", by="test")).verdict

    for name in ("one", "two", "three"):
        assert (await delete(name)).allowed
    assert read.count(0) == 1
    await queue.add([work("ordered")])
    assert (await delete("ordered")).reason == "it is needed: input of train work"
    assert read.count(0) == 1
    await queue.revive(dead)
    assert (await delete("revived")).reason == "it is needed: input of train work"
