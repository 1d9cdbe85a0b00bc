"""Jobs forked from a worker's host process: the same jobs as ones that are started, whoever is killed."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from ringrift.engine.ports import WorkState
from ringrift.jobs.shards.storage import open_shard
from ringrift.work.job.protocol import end_processes_in
from ringrift.work.worker.records import live_workers, running_jobs
from worker_orders import is_alive, use_command, worker_bench

DONE, DEAD = WorkState.DONE, WorkState.DEAD
CONFIG = "connect_four_2p"
# Many games of few moves: the job is met in the middle of its work, and ends soon after it was asked to.
PLAYING = {"config": CONFIG, "out": "{out}", "simulations": 2, "slots": 8, "seed": 5, "heartbeat_s": 1}
SECRETS = {"RINGRIFT_DATA_SECRET": "the secret of all the nodes", "AWS_SECRET_ACCESS_KEY": "of the cloud"}


def hosts_of(worker):
    found = []
    for each in psutil.Process(worker.pid).children():
        try:
            if "ringrift.jobs.host" in each.cmdline():
                found.append(each.pid)
        except psutil.NoSuchProcess:
            continue
    return found


async def playing(bench, item_id, attempt=1):
    """The record of the job's attempt, as soon as games are played."""

    async def played():
        jobs = await running_jobs(bench.engine.kv)
        ours = (job for job in jobs if (job.job_id, job.attempt) == (item_id, attempt))
        return next((job for job in ours if job.done and is_alive(job.pid)), None)

    return await bench.until(played, "the first games")


async def refused_check(bench):
    """The shortest job of ours that ends well: a file that is no shard is checked."""
    bad = await bench.engine.blobs.put_bytes(b"no shard at all")
    params = {"shards": ["{inputs}/bad.shard.db"], "out": "{out}"}
    return await bench.order("validate", params, inputs={"bad.shard.db": bad})


async def test_a_forked_job_has_what_a_started_one_has_and_no_more(tmp_path):
    (tmp_path / "ringrift.toml").write_text(
        f"[jobs.selfplay]\nnice = 7\ncpus = [{max(os.sched_getaffinity(0))}]\n"
    )
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("selfplay", {**PLAYING, "games": 100_000})
        worker = bench.start_worker(**SECRETS)
        job = psutil.Process((await playing(bench, item_id)).pid)
        (host,) = hosts_of(worker)
        folder = bench.folders.of(item_id)
        assert (job.ppid(), os.getsid(job.pid)) == (host, job.pid)
        assert Path(job.cwd()) == folder.out.resolve()
        assert (job.nice(), job.cpu_affinity()) == (7, [max(os.sched_getaffinity(0))])
        environ = job.environ()
        assert {name: environ[name] for name in environ if name.startswith("RINGRIFT_")} == {
            "RINGRIFT_JOB_ITEM": item_id,
            "RINGRIFT_JOB_KIND": "selfplay",
            "RINGRIFT_JOB_CONFIG": CONFIG,
            "RINGRIFT_JOB_OUT": str(folder.out.absolute()),
        }
        for process in (job.pid, host):
            shown = Path(f"/proc/{process}/environ").read_bytes().decode()
            assert not [secret for secret in SECRETS.values() if secret in shown]
        opened = {os.readlink(each) for each in Path(f"/proc/{job.pid}/fd").iterdir()}
        strange = [
            each
            for each in opened
            if not each.startswith((f"{folder.path.resolve()}/", "pipe:", "/dev/null"))
        ]
        assert strange == []
        assert os.readlink(f"/proc/{job.pid}/fd/0") == str(folder.params.resolve())
        assert os.readlink(f"/proc/{job.pid}/fd/2") == str(folder.log.resolve())
        # Found by its mark, also if all that knew its number are gone.
        assert await asyncio.to_thread(end_processes_in, folder.out) == 1
        assert not is_alive(job.pid)
        assert hosts_of(worker) == [host]


async def test_whoever_is_killed_the_games_go_on_and_no_process_is_left(tmp_path):
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("selfplay", {**PLAYING, "games": 100_000})
        worker = bench.start_worker()
        first = await playing(bench, item_id)
        (host,) = hosts_of(worker)
        os.kill(host, signal.SIGKILL)
        await bench.until(lambda: not is_alive(first.pid), "the end of what the host forked")
        again = await playing(bench, item_id, attempt=2)
        assert again.done >= first.done
        (second_host,) = hosts_of(worker)
        assert second_host != host
        assert worker.poll() is None

        os.kill(worker.pid, signal.SIGSTOP)  # so that it starts no other guard
        for each in psutil.Process(worker.pid).children():
            if any("guard_main" in word for word in each.cmdline()):
                each.kill()
        worker.kill()
        await asyncio.to_thread(worker.wait, 20)
        await bench.until(lambda: not is_alive(second_host), "the end of the host")
        assert not is_alive(again.pid)
        worker = bench.start_worker()
        last = await playing(bench, item_id, attempt=2)  # an end of the worker costs no attempt
        assert last.done >= again.done
        (last_host,) = hosts_of(worker)
        assert await bench.stop_worker(worker) == 0
        assert not is_alive(last_host)
        assert not is_alive(last.pid)


async def test_a_job_that_hangs_is_ended_and_the_next_one_comes_from_the_same_host(tmp_path):
    (tmp_path / "ringrift.toml").write_text("[jobs.selfplay]\nsilence_s = 3\n")
    async with worker_bench(tmp_path) as bench:
        item_id = await bench.order("selfplay", {**PLAYING, "games": 100_000}, attempts_max=1)
        worker = bench.start_worker()
        job = await playing(bench, item_id)
        host = hosts_of(worker)
        os.kill(job.pid, signal.SIGSTOP)
        dead = await bench.until_state(item_id, DEAD)
        assert "it said nothing for 3 s" in dead.error
        assert not is_alive(job.pid)
        done = await bench.until_state(await refused_check(bench), DONE)
        assert done.result["status"] == "data_refused"
        assert hosts_of(worker) == host
        wrong = await bench.order("selfplay", {**PLAYING, "games": 0})
        dead = await bench.until_state(wrong, DEAD)
        assert "games" in dead.error
        assert dead.attempts == 1


async def test_a_host_is_renewed_and_programs_of_users_are_started(tmp_path):
    program = """
    import json, os, sys
    parent = open(f"/proc/{os.getppid()}/cmdline").read()
    print(json.dumps({"event": "result", "status": "done", "parent": parent}))
    """
    use_command(tmp_path, "tune", program)
    async with worker_bench(tmp_path) as bench:
        worker = bench.start_worker(RINGRIFT_JOB_HOST_JOBS="2")
        foreign = await bench.until_state(await bench.order("tune", {}), DONE)
        assert "ringrift.work.worker.main" in foreign.result["fields"]["parent"]
        assert hosts_of(worker) == []
        await bench.until_state(await refused_check(bench), DONE)
        (first,) = hosts_of(worker)
        for _ in range(2):
            await bench.until_state(await refused_check(bench), DONE)
        await bench.until(lambda: not is_alive(first), "the end of the first host")
        await bench.until_state(await refused_check(bench), DONE)
        await bench.until(lambda: len(hosts_of(worker)) == 1, "the end of all hosts but one")
        assert (await live_workers(bench.engine.kv))[0].failed == 0


@pytest.mark.timeout(400)
async def test_a_forked_job_makes_the_same_bytes_as_a_started_one(tmp_path):
    async with worker_bench(tmp_path) as bench:
        forking = bench.start_worker()
        shard, games = await played(bench)
        item_id = await bench.order(
            "export",
            {"shards": ["{inputs}/a.shard.db"], "out": "{out}/samples.npz"},
            inputs={"a.shard.db": shard},
        )
        samples = (await bench.until_state(item_id, DONE)).result["artifacts"][0]["digest"]
        weights = await trained(bench, samples)
        assert len(hosts_of(forking)) == 1
        assert await bench.stop_worker(forking) == 0
        starting = bench.start_worker(RINGRIFT_JOB_HOST_JOBS="0")
        assert (await played(bench))[1] == games
        assert await trained(bench, samples) == weights
        assert hosts_of(starting) == []


async def played(bench):
    """The digest of a shard, and the games in it."""
    item = await bench.until_state(await bench.order("selfplay", {**PLAYING, "games": 20}), DONE)
    digest = item.result["artifacts"][0]["digest"]
    with open_shard(await bench.engine.blobs.path(digest)) as shard:
        return digest, [(each.game_id, each.fingerprint) for each in shard.summaries()]


async def trained(bench, samples):
    """The digest of the weights after some steps."""
    params = {"config": CONFIG, "samples": ["{inputs}/s.npz"], "out": "{out}/m.safetensors"}
    params |= {"steps": 20, "batch": 32, "seed": 3}
    item = await bench.until_state(await bench.order("train", params, inputs={"s.npz": samples}), DONE)
    return item.result["fields"]["model_sha256"]
