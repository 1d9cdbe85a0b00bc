"""Hostile jobs and workers as real processes.

A hostile job learns no key, and hands nothing in that is not its own: whatever it breaks, its own item fails
with the reason, and the worker goes on. A worker that alters its games is found out by the others.
"""

import json
import os

import pytest

from ringrift.engine.ports import Claimant, WorkState
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.records import ShardState
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.replay import replay
from ringrift.machine import machine_kind
from ringrift.runtime import SystemRuntime
from ringrift.work.job.folder import JobFolder
from ringrift.work.job.protocol import read_report
from ringrift.work.worker.records import why_set_aside
from worker_orders import is_alive, use_command, worker_bench

DONE, DEAD = WorkState.DONE, WorkState.DEAD
SECRETS = {
    "RINGRIFT_DATA_SECRET": "a secret of the nodes",
    "AWS_SECRET_ACCESS_KEY": "a key of the cloud",
    "S3_TOKEN": "another key of the cloud",
    "GITHUB_TOKEN": "a token of the user",
    "MY_VARIABLE": "what the user passes on",
}
PROGRAM = """
    import json, os, socket, subprocess, sys, time
    params = json.load(sys.stdin)
    out = params["out"]
    def say(**fields):
        print(json.dumps(fields), flush=True)
    def done(*paths, **fields):
        artifacts = [{"path": path, "artifact": "shard"} for path in paths]
        say(event="result", status="done", artifacts=artifacts, **fields)
    def links(folder):
        places = [f"{folder}/{name}" for name in os.listdir(folder)]
        return [os.readlink(place) for place in places if os.path.islink(place)]
    def text(path):
        return open(path, "rb").read().decode("utf-8", "replace")
    def look():
        ringrift = [[sys.executable, "-m", "ringrift.cli", *words.split()] for words in params["commands"]]
        said = [subprocess.run(each, capture_output=True, timeout=200).stdout.decode() for each in ringrift]
        done(environ=dict(os.environ), argv=sys.argv, files=links("/proc/self/fd"), here=os.getcwd(),
             parent=text(f"/proc/{os.getppid()}/cmdline"), said=said)
    def link():
        os.symlink("/etc/hostname", f"{out}/a.db"); done(f"{out}/a.db")
    def folder_link():
        os.symlink("/etc", f"{out}/sub"); done(f"{out}/sub/hostname")
    def out_is_a_link():
        os.rename(out, out + "-old"); os.symlink("/etc", out); done(f"{out}/hostname")
    def dots():
        done("../record.json")
    def record():
        done(f"{out}/../record.json")
    def database():
        done(params["database"])
    def pipe():
        os.mkfifo(f"{out}/a.db"); done(f"{out}/a.db")
    def device():
        done("/dev/zero")
    def a_socket():
        socket.socket(socket.AF_UNIX).bind("a.db"); done("a.db")
    def folder():
        os.mkdir(f"{out}/a.db"); done(f"{out}/a.db")
    def odd_name():
        name = out + "/a" + chr(10) + "b.db"; open(name, "w").close(); done(name)
    def long_name():
        done("x" * 5000)
    def nul_name():
        done("x" + chr(0))
    def changed():
        open("a.db", "w").write("x")
        said = {"path": "a.db", "artifact": "shard", "sha256": "0" * 64}
        say(event="result", status="done", artifacts=[said])
    def odd_kind():
        open("a.db", "w").close()
        say(event="result", status="done", artifacts=[{"path": "a.db", "artifact": "../../model"}])
    def huge():
        done(text="x" * 20_000_000)
    def many():
        for n in range(3000):
            open(f"f{n}", "w").close()
            say(event="artifact", path=f"f{n}", artifact="shard", counts={"text": "x" * 200})
        done()
    def deep():
        print('{"event": "result", "status": "done", "x": ' + "[" * 50_000 + "]" * 50_000 + "}", flush=True)
    def large_number():
        print('{"event": "result", "status": "done", "x": ' + "9" * 500 + "}", flush=True)
    def number_of_artifacts():
        print('{"event": "progress", "done": ' + "9" * 400 + ', "total": 1e300}', flush=True)
        say(event="result", status="done", artifacts=7)
    def other_kind():
        done(kind="train")
    def other_config():
        done(config="square19_2p")
    def processor_time():
        done(cpu_s=1e15, gpu_s=1e15)
    def another_machine():
        done(machine="a machine that nobody has")
    def leave_a_process():
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL)
        done(pid=child.pid)
    def sabotage():
        for name in ("record.json", "log/stderr.log"):
            os.remove(f"{out}/../{name}"); os.mkfifo(f"{out}/../{name}")
        os.chdir(out)
        for _ in range(3000):
            os.mkdir("d"); os.chdir("d")
        sys.exit("enough")
    def forge():
        path = f"{out}/../record.json"
        forged = {"item_id": params["victim"], "worker": "gone", "token": params["token"]}
        forged = json.load(open(path)) | forged
        os.remove(path); open(path, "w").write(json.dumps(forged))
        os.kill(os.getppid(), 9)
    globals()[params["act"]]()
"""
REFUSED = {
    **dict.fromkeys(
        (
            *("link", "folder_link", "out_is_a_link", "dots", "record", "database", "pipe", "device"),
            *("a_socket", "folder", "odd_name", "long_name", "nul_name"),
        ),
        "no file of its folder",
    ),
    "changed": "the job announced 0000",
    "odd_kind": "no kind of artifact",
    "many": "bytes; 250000 are allowed",
    **dict.fromkeys(("huge", "deep", "large_number"), "ended without a result line"),
    "other_kind": "'tune' was ordered",
    "other_config": "'connect_four_2p' was ordered",
    "sabotage": "exited with code 1",
}


@pytest.fixture
def hostile(tmp_path):
    use_command(tmp_path, "tune", PROGRAM, env='["MY_VARIABLE"]')
    yield tmp_path
    JobFolder(tmp_path / "data").remove()  # pytest's own removal gives up on folders as deep as these


async def order(bench, act, **params):
    return await bench.order("tune", {"out": "{out}", "act": act, **params}, attempts_max=1)


async def test_a_job_is_told_neither_keys_nor_where_the_engine_is(hostile):
    async with worker_bench(hostile) as bench:
        await bench.engine.kv.put("learning/config/connect_four_2p", b"{}")
        commands = ["status --json", "recall --worker w1 --reason none --yes", "data gc --confirm"]
        item_id = await order(bench, "look", commands=commands)
        bench.start_worker(**SECRETS)
        told = (await bench.until_state(item_id, DONE)).result["fields"]
        environ = told["environ"]
        assert {name for name in environ if name.startswith("RINGRIFT_")} == {
            f"RINGRIFT_JOB_{word}" for word in ("ITEM", "KIND", "CONFIG", "OUT")
        }
        assert environ["MY_VARIABLE"] == SECRETS["MY_VARIABLE"]
        words = json.dumps([told["argv"], told["parent"], told["files"], environ])
        for name in SECRETS.keys() - {"MY_VARIABLE"}:
            assert SECRETS[name] not in words
        assert "coordinator.db" not in words
        folder = str(bench.folders.of(item_id).path)
        assert told["here"] == environ["RINGRIFT_JOB_OUT"] == f"{folder}/out"
        # Its parameters, its log, the pipe to the worker, and the folder that it lists at that moment.
        assert all(each.startswith((folder, "pipe:", "/proc/")) for each in told["files"]), told["files"]
        assert "connect_four" not in json.dumps(told["said"]), "a command found the run"
        facts = [entry.key for entry in await bench.engine.kv.entries("learning/")]
        assert facts == ["learning/config/connect_four_2p"]


async def test_what_a_job_may_not_hand_in_fails_its_item_with_the_reason(hostile):
    async with worker_bench(hostile) as bench:
        database = str(hostile / "data" / "coordination" / "coordinator.db")
        ordered = {act: await order(bench, act, database=database) for act in REFUSED}
        worker = bench.start_worker(slots=3)
        for act, item_id in ordered.items():
            dead = await bench.until_state(item_id, DEAD, DONE)
            assert dead.state is DEAD, act
            assert REFUSED[act] in dead.error, (act, dead.error)
        assert worker.poll() is None, "the worker is gone"
        kept = await bench.engine.blobs.digests()
        for digest in kept:  # what was taken in before the item failed is the job's own
            assert await bench.engine.blobs.size(digest) <= 1
        after = await order(bench, "number_of_artifacts")
        await bench.until_state(after, DONE)
        await bench.stop_worker(worker)
        bench.start_worker()  # tidies up at once
        await bench.until(lambda: not bench.folders.all(), "the end of the folders")
        assert os.path.exists("/etc/hostname")


async def test_what_a_job_says_of_its_own_time_counts_only_as_far_as_it_can_be(hostile):
    async with worker_bench(hostile) as bench:
        item_id = await order(bench, "processor_time")
        bench.start_worker()
        report = (await bench.until_state(item_id, DONE)).result
        assert report["gpu_s"] <= report["wall_s"]
        assert report["cpu_s"] <= (report["wall_s"] + 0.01) * os.cpu_count()


async def test_what_machine_a_job_ran_on_is_said_by_its_worker(hostile):
    """A job that could name another kind would have its games compared by distances, not by bits."""
    async with worker_bench(hostile) as bench:
        item_id = await order(bench, "another_machine")
        bench.start_worker(CUDA_VISIBLE_DEVICES="")
        report = read_report((await bench.until_state(item_id, DONE)).result)
        assert report.fields["machine"] == "a machine that nobody has"
        assert report.machine == machine_kind()


async def test_a_process_that_left_its_job_is_ended_before_anything_is_taken_in(hostile):
    async with worker_bench(hostile) as bench:
        item_id = await order(bench, "leave_a_process")
        bench.start_worker()
        fields = (await bench.until_state(item_id, DONE)).result["fields"]
        assert not is_alive(fields["pid"])


async def test_a_forged_record_reaches_no_other_item(hostile):
    async with worker_bench(hostile) as bench:
        victim = await bench.order("mine", {})
        (mine,) = await bench.engine.queue.claim(Claimant(worker="another", node="elsewhere"), lease_s=600)
        item_id = await order(bench, "forge", victim=victim, token=mine.token)
        worker = bench.start_worker("w1")
        await bench.until(lambda: worker.poll() is not None, "the end of the worker")
        bench.start_worker("w2")
        other = await order(bench, "processor_time")
        await bench.until_state(other, DONE)
        held = await bench.engine.queue.get(victim)
        assert (held.state, held.holder) == (WorkState.CLAIMED, "another")
        assert (await bench.engine.queue.get(item_id)).holder == "w1"  # until the lease runs out


ALTERING = """
    import io, json, os, subprocess, sys
    from dataclasses import replace
    from pathlib import Path
    import numpy as np
    from ringrift.games.registry import load_game
    from ringrift.jobs.files import describe
    from ringrift.jobs.shards.storage import open_shard
    from ringrift.jobs.shards.storage import ShardWriter
    params = sys.stdin.read()
    command = [sys.executable, "-m", "ringrift.jobs", "selfplay", "--params", "-"]
    played = subprocess.run(command, input=params, capture_output=True, text=True)
    result = json.loads(played.stdout.splitlines()[-1])
    if result["status"] == "done":
        path = result["artifacts"][0]["path"]
        with open_shard(Path(path)) as shard:
            games, facts = [stored.game for stored in shard.games()], shard.metadata
        game = load_game(result["config"])
        writer = ShardWriter(Path("altered"), "games", game, games_per_shard=999, facts=facts)
        for game in games:  # the search is said to have been certain of the last move, everywhere
            shares = np.zeros_like(game.policies.probabilities)
            shares[game.policies.offsets[1:][game.policies.searched] - 1] = 1.0
            writer.add(replace(game, policies=replace(game.policies, probabilities=shares)))
        result["artifacts"] = [writer.seal().as_json()]
        writer.close()
    print(json.dumps(result), flush=True)
    sys.exit(played.returncode)
"""
RULES = LearningRules(
    selfplay_games_first=4, simulations=4, selfplay_slots=16, recompute_share=1.0, diagnose_every_s=0.0
)


@pytest.mark.skipif(
    "RINGRIFT_TEST_CHEAT" not in os.environ, reason="a minute of real games: `make honest`; simulated in CI"
)
@pytest.mark.timeout(600)
async def test_a_worker_that_alters_its_games_is_found_out_and_set_aside(tmp_path):
    """Real games, policies altered so that the rules and every checksum still agree."""
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    use_command(hostile, "selfplay", ALTERING)
    async with worker_bench(tmp_path) as bench:
        controller = Controller(bench.engine, SystemRuntime(), RULES, announcer=Silent())
        await controller.open(["connect_four_2p"])
        bench.start_worker("cheat", RINGRIFT_CONFIG=str(hostile / "ringrift.toml"))
        for name in ("honest-1", "honest-2"):
            bench.start_worker(name)
        state = controller.state("connect_four_2p")

        async def is_found_out():
            await controller.reconcile()
            return controller.set_aside()

        assert set(await bench.until(is_found_out, "the end of the cheat")) == {"cheat"}
        assert "policy off by" in controller.set_aside()["cheat"].reason
        assert await why_set_aside(bench.engine.kv, "cheat")
        await controller.reconcile()
        by_worker = {shard.worker: shard.state for shard in state.shards.values()}
        assert by_worker.pop("cheat") is ShardState.RECALLED
        assert ShardState.RECALLED not in by_worker.values()
        facts = await read_facts(bench.engine.kv, "connect_four_2p")
        assert replay("connect_four_2p", facts, RULES) == []
