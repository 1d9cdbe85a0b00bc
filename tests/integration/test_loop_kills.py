"""`ringrift run` learns on, whatever is killed, and counts nothing twice and loses nothing.

`scripts/kill_loop.py` does the same a hundred times and more, also with the real jobs.
"""

import asyncio
import json
import shutil
import subprocess
import sys

import msgspec
import pytest
from loop_under_test import CONFIG, DEEDS, FAST, KINDS, Killer, Loop, until, watched_loop

from held_job import STEPS, held_command
from ringrift.engine.ports import NewWork, WorkState
from ringrift.jobs.shards.storage import open_shard
from ringrift.learning.facts.facts import AnyFact, JobEnded, JobIssued, Promoted
from ringrift.learning.facts.ledger import FIRST_HASH, Ledger, prefix_of, read_facts, sealed
from ringrift.work.worker.records import running_jobs

KILLS = 3 * len(KINDS)
SLOW_GAMES = {**FAST, "simulations": 64, "selfplay_games_first": 120, "selfplay_slots": 8}


@pytest.mark.timeout(900)
async def test_a_run_goes_on_after_its_processes_were_killed_at_random_moments(tmp_path):
    async with watched_loop(tmp_path, tiny=True) as (loop, audit):
        killer = Killer(loop, audit, seed=20, tiny=True)
        loop.start()
        for strike in range(KILLS):
            await killer.strike(while_runs=KINDS[strike // 3] if strike % 3 == 0 else None)
            if strike % 4 == 3:
                await killer.goes_on()
        await until(lambda: promoted(audit), "a promotion", loop)
        await killer.goes_on()
        assert await killer.finish() == []
        assert len(killer.done) >= len(DEEDS) - 2, "too many ways to kill were left out"
        assert set(KINDS) <= set(killer.running)
        assert audit.state.promotions
        assert audit.state.games == len(audit.games) - unchecked_games(audit)


async def promoted(audit):
    return any(isinstance(fact, Promoted) for fact in await read_facts(audit.engine.kv, CONFIG))


def unchecked_games(audit):
    return sum(shard.games for shard in audit.state.unchecked())


# --- stop and start -----------------------------------------------------------------------------------------


async def games_of(audit, job_id):
    """The moves of every game of a job, and a fingerprint of all that was recorded of it."""
    item = await audit.engine.queue.get(job_id)
    games = {}
    for artifact in (each for each in item.result["artifacts"] if each["kind"] == "shard"):
        with open_shard(await audit.engine.blobs.path(artifact["digest"])) as shard:
            for stored in shard.games():
                games[stored.game.game_id] = (stored.game.actions.tolist(), stored.fingerprint)
    return games


async def play_first_job(folder, *, stop_in_the_middle):
    """Play the first job of a run; return its order and its games."""
    job_id, gate = f"{CONFIG}.selfplay.000001", folder / "gate"
    if stop_in_the_middle:
        gate.touch()
    held = {"selfplay": held_command(gate, "selfplay", "--params", "-", python="{python}")}
    options = {"learning": SLOW_GAMES, "workers": 1, "commands": held}
    async with watched_loop(folder, tiny=False, **options) as (loop, audit):

        async def in_the_middle():
            running = [job for job in await running_jobs(audit.engine.kv) if job.job_id == job_id]
            return running and running[0].done >= STEPS

        async def done():
            item = await audit.engine.queue.get(job_id)
            return item is not None and item.state is WorkState.DONE

        loop.start()
        if stop_in_the_middle:
            await until(in_the_middle, "some games", loop)
            assert await loop.end() == 0
            item = await audit.engine.queue.get(job_id)
            assert (item.state, item.attempts) == (WorkState.READY, 0)
            gate.unlink()
            loop.start()
        await until(done, "the end of the job", loop)
        assert await loop.end() == 0
        assert await loop.all_gone() == []
        assert await audit.look() == []
        (order,) = [
            fact.order for fact in audit.facts if isinstance(fact, JobIssued) and fact.job_id == job_id
        ]
        return order, await games_of(audit, job_id)


@pytest.mark.timeout(900)
async def test_games_that_were_stopped_with_the_run_go_on_as_if_nothing_had_happened(tmp_path):
    folders = [tmp_path / "straight", tmp_path / "stopped"]
    for folder in folders:
        folder.mkdir()
    straight = await play_first_job(folders[0], stop_in_the_middle=False)
    stopped = await play_first_job(folders[1], stop_in_the_middle=True)
    assert len(straight[1]) == SLOW_GAMES["selfplay_games_first"]
    assert stopped == straight


# --- the audit itself: it sees every kind of damage --------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run that was stopped in peace after a promotion."""
    folder = tmp_path_factory.mktemp("finished")

    async def learn():
        async with watched_loop(folder, tiny=True) as (loop, audit):
            loop.start()
            await until(lambda: promoted(audit), "a promotion", loop)
            assert await loop.end() == 0
            assert await loop.all_gone() == []
            assert await audit.look(recovered=True) == []

    asyncio.run(learn())
    return folder


def command(loop, *words):
    done = subprocess.run(
        [sys.executable, "-m", "ringrift.cli", *words],
        env=loop.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(900)
async def test_a_run_whose_database_is_lost_is_made_again_from_its_files_and_goes_on(finished, tmp_path):
    await asyncio.to_thread(shutil.copytree, finished, tmp_path, dirs_exist_ok=True)
    async with watched_loop(tmp_path, tiny=True) as (_, audit):
        assert await audit.look() == []
        before = audit.state
    for path in (tmp_path / "data").glob("*/coordinator.db*"):
        if path.is_file():
            path.unlink()
    (tmp_path / "data" / "high_water.json").unlink()
    loop = Loop(tmp_path, tiny=True)
    made = json.loads(await asyncio.to_thread(command, loop, "rebuild", "--json"))["configs"][CONFIG]
    for name, value in {
        "games": before.games,
        "rows": before.rows,
        "models": len(before.models),
        "matches": len(before.matches),
        "champion": before.champion,
        "promotions": len(before.promotions),
    }.items():
        assert made[name] == value, name
    again = json.loads(await asyncio.to_thread(command, loop, "rebuild", "--json"))
    assert (again["set_aside"], again["configs"][CONFIG]["made"]) == (None, 0), "it is done once"
    async with watched_loop(tmp_path, tiny=True) as (loop, audit):
        rebuilt = await read_facts(audit.engine.kv, CONFIG)
        assert audit.engine is not None
        loop.start()

        async def learned():
            later = (await read_facts(audit.engine.kv, CONFIG))[len(rebuilt) :]
            return any(isinstance(fact, JobEnded) and fact.report is not None for fact in later)

        await until(learned, "a job that ends well", loop)
        assert await loop.end() == 0
    assert "every decision follows" in await asyncio.to_thread(command, loop, "replay", CONFIG)


async def lose_a_shard(audit):
    (await audit.engine.blobs.path(next(iter(audit.state.shards)))).unlink()


async def cut_a_model(audit):
    path = await audit.engine.blobs.path(next(iter(audit.state.models)))
    path.chmod(0o644)
    path.write_bytes(b"half")


async def write_again(audit, mark):
    """Write the first fact with *mark* in it once more, as the loop would."""
    entries = await audit.engine.kv.entries(prefix_of(CONFIG))
    fact = (await read_facts(audit.engine.kv, CONFIG))[
        next(number for number, each in enumerate(entries) if mark in each.value)
    ]
    ledger = await Ledger.open(audit.engine.kv, CONFIG, bucket_rules=audit.rules.bucket)
    key = f"{prefix_of(CONFIG)}{len(entries) + 1:010d}"
    await audit.engine.kv.create(key, sealed(fact, key=key, before=ledger.last_hash)[1])


async def count_an_end_twice(audit):
    await write_again(audit, b'"job_ended"')


async def order_a_job_twice(audit):
    await write_again(audit, b'"job_issued"')


async def promote_twice(audit):
    await write_again(audit, b'"fact":"promoted"')


async def forget_why_it_was_promoted(audit):
    """The evaluations before a promotion end without a result; whoever did it made the hashes fit."""
    last_hash = FIRST_HASH
    for entry in await audit.engine.kv.entries(prefix_of(CONFIG)):
        fact = msgspec.json.decode(entry.value, type=AnyFact)
        if b'"job_ended"' in entry.value and b".evaluate.00" in entry.value:
            fact = msgspec.structs.replace(fact, report=None, error="lost")
        last_hash, value = sealed(fact, key=entry.key, before=last_hash)
        await audit.engine.kv.put(entry.key, value)


async def point_to_another_champion(audit):
    (entry,) = await audit.engine.kv.entries("learning/champion/")
    await audit.engine.kv.put(entry.key, entry.value.replace(b'"model":"', b'"model":"0'))


async def add_work_that_nobody_ordered(audit):
    await audit.engine.queue.add([NewWork(kind="selfplay", id="stray")])


async def go_on_without_an_order(audit):
    """An order that was never put into the queue, and then something that no pass does before it was."""
    ledger = await Ledger.open(audit.engine.kv, CONFIG, bucket_rules=audit.rules.bucket)
    issued = next(fact for fact in audit.facts if isinstance(fact, JobIssued))
    await ledger.append(msgspec.structs.replace(issued, job_id=f"{CONFIG}.{issued.kind}.999999"))
    await write_again(audit, b'"job_ended"')


async def complete_without_a_note(audit):
    """An acknowledged job whose end is taken out of the facts, which end before it."""
    entries = await audit.engine.kv.entries(prefix_of(CONFIG))
    last = max(number for number, each in enumerate(entries) if b'"report":{' in each.value)
    for entry in entries[last:]:
        await audit.engine.kv.delete(entry.key)


@pytest.mark.parametrize(
    ("damage", "seen"),
    [
        (lose_a_shard, "missing or damaged"),
        (cut_a_model, "missing or damaged"),
        (count_an_end_twice, "and ended 2 times"),
        (order_a_job_twice, "was issued 2"),
        (promote_twice, "promoted twice"),
        (forget_why_it_was_promoted, "does not follow from those before"),
        (point_to_another_champion, "names another model"),
        (add_work_that_nobody_ordered, "by no fact ordered: ['stray']"),
        (go_on_without_an_order, "are not in the queue, and"),
        (complete_without_a_note, "facts changed or vanished"),
    ],
)
async def test_damage_is_seen(finished, tmp_path, damage, seen):
    await asyncio.to_thread(shutil.copytree, finished, tmp_path, dirs_exist_ok=True)
    async with watched_loop(tmp_path, tiny=True) as (_, audit):
        assert await audit.look(recovered=True) == []
        await damage(audit)
        known = audit.facts
    async with watched_loop(tmp_path, tiny=True) as (_, fresh):
        fresh.expect(known)
        assert any(seen in problem for problem in await fresh.look(recovered=True)), fresh.problems
