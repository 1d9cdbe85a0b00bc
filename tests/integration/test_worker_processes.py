"""Real workers with real jobs: stopped, killed, exceeded, replaced; nothing is lost and nothing is left."""

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from held_job import STEPS, held_command
from ringrift.engine.ports import NewWork, WorkState
from ringrift.jobs.shards.storage import open_shard
from ringrift.learning.requests import Pauses
from ringrift.work.job.protocol import JobOrder
from ringrift.work.limits import Pause
from ringrift.work.worker.records import live_workers, running_jobs
from worker_orders import is_alive, use_command, worker_bench

DONE, DEAD, READY, CLAIMED = WorkState.DONE, WorkState.DEAD, WorkState.READY, WorkState.CLAIMED
CONFIG = "connect_four_2p"
SELFPLAY = {"config": CONFIG, "out": "{out}", "simulations": 16, "slots": 16, "seed": 5, "heartbeat_s": 1}
TALKING = """
    import json, os, subprocess, sys, time
    params = json.load(sys.stdin)
    def say(**fields):
        print(json.dumps(fields), flush=True)
    say(event="started", pid=os.getpid())
"""
SLEEPER = (
    TALKING
    + """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open(os.path.join(params["out"], "pids"), "a") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    while True:
        say(event="heartbeat", stage="sleeping", done=0)
        time.sleep(0.2)
"""
)


async def games_of(bench, item):
    """Fingerprints by game, over all shards that the item handed in."""
    found = {}
    for artifact in (each for each in item.result["artifacts"] if each["kind"] == "shard"):
        path = await bench.engine.blobs.path(artifact["digest"])
        with open_shard(path) as shard:
            for summary in shard.summaries():
                assert summary.game_id not in found, "a game was handed in twice"
                found[summary.game_id] = summary.fingerprint
    return found


def noted_pids(bench, item_id):
    path = bench.folders.of(item_id).out / "pids"
    if not path.exists() or not path.read_text().endswith("\n"):
        return []
    return [[int(word) for word in line.split()] for line in path.read_text().splitlines()]


@pytest.mark.timeout(400)
async def test_games_that_were_stopped_and_killed_are_the_same_games(tmp_path):
    gate = tmp_path / "gate"
    held = held_command(gate, "selfplay", "--params", "-", python="{python}")
    (tmp_path / "ringrift.toml").write_text(f"[jobs.selfplay]\ncommand = {json.dumps(held)}\n")
    async with worker_bench(tmp_path) as bench:
        straight = await bench.order("selfplay", {**SELFPLAY, "games": 150})
        worker = bench.start_worker()
        expected = await games_of(bench, await bench.until_state(straight, DONE))
        assert len(expected) == 150
        gate.touch()
        item_id = await bench.order("selfplay", {**SELFPLAY, "games": 150, "checkpoint_s": 0.02})

        async def played(games):
            jobs = [job for job in await running_jobs(bench.engine.kv) if job.job_id == item_id]
            return [job for job in jobs if job.done >= games]

        await bench.until(lambda: played(STEPS), "the first games")
        assert await bench.stop_worker(worker) == 0
        released = await bench.engine.queue.get(item_id)
        assert (released.state, released.attempts) == (READY, 0)
        assert await live_workers(bench.engine.kv) == []
        assert bench.folders.of(item_id).out.is_dir()

        worker = bench.start_worker()
        (job,) = await bench.until(lambda: played(2 * STEPS), "more games")
        os.kill(worker.pid, signal.SIGKILL)
        await bench.until(lambda: not is_alive(job.pid), "the end of the job")
        gate.unlink()
        bench.start_worker()  # the same name: it knows at once that the claim is nobody's
        done = await bench.until_state(item_id, DONE)
        assert done.attempts == 1
        assert done.result["fields"]["resumed_moves"] > 0
        assert {name[-7:]: print_ for name, print_ in (await games_of(bench, done)).items()} == {
            name[-7:]: print_ for name, print_ in expected.items()
        }
        assert done.result["fields"]["games"] == 150
        assert sum(each["counts"].get("games", 0) for each in done.result["artifacts"]) == 150
        await bench.until(lambda: not bench.folders.of(item_id).path.exists(), "the end of the folder")


async def test_what_a_killed_worker_left_is_ended_before_the_item_runs_again(tmp_path):
    use_command(tmp_path, "tune", SLEEPER)
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("tune", {"out": "{out}"})
        worker = bench.start_worker("w1")
        await bench.until(lambda: noted_pids(bench, item_id), "the job")
        ((leader, daemon),) = noted_pids(bench, item_id)
        guard = await bench.until(lambda: children_of(worker.pid, "guard_main"), "the guard")
        # Everything at once, so that nobody is left to clean up; the daemon left the group besides.
        os.kill(guard[0].pid, signal.SIGKILL)
        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.to_thread(worker.wait, 10)
        assert is_alive(leader)
        assert is_alive(daemon)
        bench.start_worker("w2")
        await bench.until(lambda: len(noted_pids(bench, item_id)) == 2, "the next attempt")
        assert not is_alive(leader)
        assert not is_alive(daemon)
        item = await bench.engine.queue.get(item_id)
        assert (item.state, item.holder, item.attempts) == (CLAIMED, "w2", 1)
        await bench.engine.queue.cancel(item_id, reason="enough")
        second = noted_pids(bench, item_id)[1:] or [[0, 0]]
        await bench.until(lambda: not is_alive(second[0][0]), "the end of the job")


async def test_a_worker_that_dies_over_an_item_again_and_again_gives_it_up(tmp_path):
    program = TALKING + "    os.kill(os.getppid(), 9)\n    time.sleep(600)\n"
    use_command(tmp_path, "tune", program)
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("tune", {"out": "{out}"}, attempts_max=1)
        for _ in range(8):
            worker = bench.start_worker("w1")
            await bench.until(lambda w=worker: _ended(w) or _is_dead(bench, item_id), "an end")
            if worker.poll() is None:
                break
        dead = await bench.until_state(item_id, DEAD)
        assert "workers were killed" in dead.error


def _ended(worker):
    return worker.poll() is not None


async def _is_dead(bench, item_id):
    return (await bench.engine.queue.get(item_id)).state is DEAD


def children_of(pid, word):
    return [each for each in psutil.Process(pid).children() if any(word in part for part in each.cmdline())]


async def test_two_living_workers_never_share_a_name(tmp_path):
    async with worker_bench(tmp_path) as bench:
        bench.start_worker("w1")
        await bench.until(lambda: live_workers(bench.engine.kv), "the worker")
        second = bench.start_worker("w1")
        assert await asyncio.to_thread(second.wait, 30) == 2
        assert "runs already" in bench.logs()


async def test_a_job_above_its_memory_is_ended_with_a_clear_error(tmp_path):
    program = TALKING + "    x = bytearray(400_000_000)\n    time.sleep(600)\n"
    use_command(tmp_path, "tune", program, memory_mb=200)
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("tune", {"out": "{out}"}, attempts_max=1)
        bench.start_worker()
        dead = await bench.until_state(item_id, DEAD)
        assert "MB of memory; 200 are allowed" in dead.error


async def test_output_is_bounded_and_the_last_words_are_in_the_error(tmp_path):
    program = (
        TALKING
        + """
    for number in range(60_000):
        print("noise " * 10, number, file=sys.stderr)
    print("x" * 9_000_000)
    print("no json")
    sys.exit("these are my last words")
"""
    )
    use_command(tmp_path, "tune", program)
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("tune", {"out": "{out}"})
        bench.start_worker()

        async def failed():
            return (await bench.engine.queue.get(item_id)).error

        error = await bench.until(failed, "a failure")
        assert "exited with code 1" in error
        assert error.endswith("these are my last words")


async def test_priority_and_cores_are_those_of_the_settings(tmp_path):
    program = (
        TALKING
        + """
    for _ in range(6000):  # they are set from outside, a moment after the start
        found = dict(nice=os.nice(0), cpus=sorted(os.sched_getaffinity(0)))
        if found == {"nice": params["nice"], "cpus": params["cpus"]}:
            break
        time.sleep(0.01)
    say(event="result", status="done", **found,
        kind_said=os.environ["RINGRIFT_JOB_KIND"], config=os.environ["RINGRIFT_JOB_CONFIG"])
"""
    )
    wanted = {"nice": max(7, os.nice(0)), "cpus": [max(os.sched_getaffinity(0))]}
    use_command(tmp_path, "tune", program, **wanted)
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("tune", {"out": "{out}", **wanted})
        bench.start_worker()
        fields = (await bench.until_state(item_id, DONE)).result["fields"]
        assert {name: fields[name] for name in wanted} == wanted
        assert (fields["kind_said"], fields["config"]) == ("tune", CONFIG)


async def test_a_command_that_does_not_exist_is_told_and_not_tried_again(tmp_path):
    (tmp_path / "ringrift.toml").write_text('[jobs.train]\ncommand = ["no-such-program"]\n')
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("train", {})
        bench.start_worker()
        dead = await bench.until_state(item_id, DEAD)
        assert "'no-such-program' cannot be started" in dead.error


async def test_shards_that_fail_the_check_complete_with_the_reason(tmp_path):
    async with worker_bench(tmp_path) as bench:
        bad = await bench.engine.blobs.put_bytes(b"no shard at all")
        item_id = await bench.order(
            "validate", {"shards": ["{inputs}/bad.shard.db"], "out": "{out}"}, inputs={"bad.shard.db": bad}
        )
        bench.start_worker()
        done = await bench.until_state(item_id, DONE)
        assert done.result["status"] == "data_refused"


@pytest.mark.timeout(600)
async def test_a_foreign_trainer_takes_the_place_of_ours(tmp_path):
    """From games to a model by another program, stopped half-way, and evaluated by our own job."""
    trainer = Path(__file__).parents[2] / "examples" / "foreign_trainer" / "my_trainer.py"
    gate = tmp_path / "gate"
    gate.touch()

    def train_by(*words):
        command = json.dumps(["{python}", *map(str, words)])
        (tmp_path / "ringrift.toml").write_text(f"[jobs.train]\ncommand = {command}\n")

    train_by(Path(__file__).with_name("held_trainer.py"), gate, trainer)
    async with worker_bench(tmp_path) as bench:
        worker = bench.start_worker()
        played = await bench.until_state(await bench.order("selfplay", {**SELFPLAY, "games": 30}), DONE)
        shard = played.result["artifacts"][0]["digest"]
        exporting = await bench.order(
            "export",
            {"shards": ["{inputs}/a.shard.db"], "out": "{out}/samples.npz"},
            inputs={"a.shard.db": shard},
        )
        samples = (await bench.until_state(exporting, DONE)).result["artifacts"][0]["digest"]
        files = {"samples-000.npz": samples, "samples-001.npz": samples}
        params = {"config": CONFIG, "samples": [f"{{inputs}}/{name}" for name in files]}
        item_id = await bench.order(
            "train", {**params, "out": "{out}/model.safetensors", "steps": 300, "batch": 16}, inputs=files
        )

        async def learning():
            return [job for job in await running_jobs(bench.engine.kv) if job.kind == "train" and job.done]

        await bench.until(learning, "progress")
        assert await bench.stop_worker(worker) == 0
        checkpoint = bench.folders.of(item_id).out / "model.my-checkpoint"
        assert (await bench.engine.queue.get(item_id)).state is READY
        assert checkpoint.exists()
        train_by(trainer)
        bench.start_worker()
        trained = await bench.until_state(item_id, DONE)
        assert trained.result["fields"]["steps"] == 300
        files = {each["kind"]: each["digest"] for each in trained.result["artifacts"]}
        playing = await bench.order(
            "evaluate",
            {
                "config": CONFIG,
                "candidate": "model:{inputs}/m.safetensors@4",
                "opponents": ["random"],
                "games": 4,
                "test": "none",
                "out": "{out}",
            },
            inputs={"m.safetensors": files["model"], "m.json": files["card"]},
        )
        evaluated = await bench.until_state(playing, DONE)
        assert evaluated.result["status"] == "done"


async def test_cores_that_this_machine_does_not_have_are_no_reason_not_to_run(tmp_path):
    missing, gate = max(os.sched_getaffinity(0)) + 100, tmp_path / "gate"
    gate.touch()
    # One that is over before the worker binds it has no cores to complain of.
    held = f"    while os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    use_command(tmp_path, "tune", TALKING + held + '    say(event="result", status="done")\n', cpus=[missing])
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("tune", {"out": "{out}"})
        bench.start_worker()
        await bench.until(lambda: "job.cores_not_bound" in bench.logs(), "the warning")
        gate.unlink()
        done = await bench.until_state(item_id, DONE, DEAD)
        assert done.state is DONE, done.error


QUICK = (
    TALKING
    + """
    say(event="result", status="done", exit_code=0)
"""
)


@pytest.mark.timeout(400)
async def test_workers_of_other_processes_start_nothing_that_is_paused(tmp_path):
    use_command(tmp_path, "export", QUICK)
    async with worker_bench(tmp_path) as bench:
        pauses = Pauses(bench.engine.kv)
        await pauses.set(CONFIG, Pause(reason="a look at it", by="anna"))
        paused = await bench.order("export", {"out": "{out}"})
        (free,) = await bench.engine.queue.add(
            [
                NewWork(
                    kind="export", payload=JobOrder(config="other_2p", params={"out": "{out}"}).as_payload()
                )
            ]
        )
        for name in ("w1", "w2"):
            bench.start_worker(name)
        await bench.until_state(free, DONE)
        item = await bench.engine.queue.get(paused)
        assert (item.state, item.attempts) == (READY, 0)
        await pauses.end([CONFIG])
        await bench.until_state(paused, DONE)
