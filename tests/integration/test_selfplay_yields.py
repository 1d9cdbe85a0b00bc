"""Other work does not wait for games: a real job of minutes yields its slot, and its games go on later."""

import os
import signal
import threading
from contextlib import contextmanager

import pytest

from ringrift.engine.ports import WorkState
from ringrift.games.registry import load_game
from ringrift.jobs.selfplay.selfplay import SUFFIX, read_unfinished
from ringrift.jobs.shards.storage import open_shard
from ringrift.work.worker.records import running_jobs
from worker_orders import is_alive, use_command, worker_bench

DONE, CLAIMED = WorkState.DONE, WorkState.CLAIMED
CONFIG = "connect_four_2p"
LONG = {
    "config": CONFIG, "out": "{out}", "simulations": 32, "slots": 16, "games": 1_000_000,
    "games_per_shard": 100_000, "hand_over": True, "heartbeat_s": 1,
}  # fmt: skip
SHORT = """
    import json, os, sys
    json.load(sys.stdin)
    print(json.dumps({"event": "started", "pid": os.getpid()}), flush=True)
    print(json.dumps({"event": "result", "status": "done", "exit_code": 0, "artifacts": []}), flush=True)
"""


async def finished_games(bench, item):
    games = set()
    for artifact in item.result["artifacts"]:
        if artifact["kind"] == "shard":
            with open_shard(await bench.engine.blobs.path(artifact["digest"])) as shard:
                games |= {summary.game_id for summary in shard.summaries()}
    return games


async def unfinished_games(bench, item):
    """The digest of the file that was handed over, and the moves of each game in it."""
    (digest,) = [each["digest"] for each in item.result["artifacts"] if each["kind"] == "unfinished"]
    games, _ = read_unfinished(await bench.engine.blobs.path(digest), load_game(CONFIG))
    return digest, {each.about.game_id: len(each.progress.moves) for each in games}


@pytest.mark.timeout(400)
async def test_a_short_job_ends_while_two_orders_of_minutes_play_and_the_games_go_on_later(tmp_path):
    use_command(tmp_path, "evaluate", SHORT)
    async with worker_bench(tmp_path) as bench:

        async def playing(*items):
            jobs = await running_jobs(bench.engine.kv)
            return {job.job_id for job in jobs if job.done > 0} >= set(items)

        orders = [await bench.order("selfplay", {**LONG, "seed": seed}) for seed in (1, 2)]
        worker = bench.start_worker(slots=2)
        await bench.until(lambda: playing(*orders), "games in both slots")
        short = await bench.order("evaluate", {"out": "{out}"})
        await bench.until_state(short, DONE)
        items = {each: await bench.engine.queue.get(each) for each in orders}
        (yielded,) = [item for item in items.values() if item.state is DONE]
        (other,) = [item for item in items.values() if item.state is CLAIMED]
        assert (yielded.attempts, yielded.result["status"]) == (1, "done")
        finished = await finished_games(bench, yielded)
        digest, left = await unfinished_games(bench, yielded)
        assert 0 < len(left) <= LONG["slots"], "but those that were not begun yet"
        assert not left.keys() & finished
        # They go on in another order, while the second still plays, and all of them end there.
        params = {**LONG, "seed": 3, "games": 2, "resume": ["{inputs}/unfinished-0.json"]}
        later = await bench.order("selfplay", params, inputs={"unfinished-0.json": digest})
        done = await bench.until_state(later, DONE)
        assert done.result["fields"]["resumed_games"] == len(left)
        more = await finished_games(bench, done)
        assert left.keys() <= more
        assert len(more) == len(left) + 2
        assert not more & finished
        # A worker that stops hands in what its games have come to.
        assert (await bench.engine.queue.get(other.id)).state is CLAIMED
        assert await bench.stop_worker(worker) == 0
        stopped = await bench.engine.queue.get(other.id)
        assert (stopped.state, stopped.attempts) == (DONE, 1)
        assert (await unfinished_games(bench, stopped))[1].keys().isdisjoint(more | finished)


@contextmanager
def kept_stopped(pid):
    """Once is not enough: who is asked to end is also told to go on, and a fast machine answers at once."""
    over = threading.Event()

    def stop():
        while not over.wait(0.001):
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                return

    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        yield
    finally:
        over.set()
        stopping.join(10)


@pytest.mark.timeout(400)
async def test_a_worker_killed_while_games_make_way_loses_nothing(tmp_path):
    """The games begin again in their folder, and the other work is done by the worker after it."""
    use_command(tmp_path, "evaluate", SHORT)
    async with worker_bench(tmp_path) as bench:

        async def playing():
            return [job for job in await running_jobs(bench.engine.kv) if job.done > 0]

        async def going_on():
            # Whichever of the two the next worker takes first, games that it begins make way once more.
            return await playing() or (await bench.engine.queue.get(games)).state is DONE

        games = await bench.order("selfplay", {**LONG, "seed": 1, "checkpoint_s": 0.02})
        worker = bench.start_worker(slots=1)
        (job,) = await bench.until(playing, "games")
        out = bench.folders.of(games).out
        # The first games may be over before any that are under way were noted for the next attempt.
        await bench.until(lambda: [*out.glob(f"*{SUFFIX}")], "a note of unfinished games")
        with kept_stopped(job.pid):  # it cannot answer when it is asked to yield
            short = await bench.order("evaluate", {"out": "{out}"})
            await bench.until_state(short, CLAIMED)
            os.kill(worker.pid, signal.SIGKILL)
        await bench.until(lambda: not is_alive(job.pid), "the end of the job")
        worker = bench.start_worker(slots=1)
        await bench.until_state(short, DONE)
        await bench.until(going_on, "games")
        assert await bench.stop_worker(worker) == 0
        done = await bench.engine.queue.get(games)
        assert done.state is DONE
        assert done.result["fields"]["resumed_moves"] > 0
