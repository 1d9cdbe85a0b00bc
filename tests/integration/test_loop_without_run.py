"""The loop in two programs without `ringrift run`: one leads by the control lease, the other takes over."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import msgspec
import pytest
from loop_under_test import CONFIG, Loop, stop_between_writes

from ringrift.cli.command import EXIT_WRONG_INPUT
from ringrift.engine.leases import control_seen
from ringrift.engine.opening import open_engine
from ringrift.health.run_status import CHOICE_KEY
from ringrift.learning.control_lease import TOKEN_KEY
from ringrift.learning.facts.facts import JobIssued
from ringrift.learning.facts.ledger import read_facts, read_hashes
from ringrift.learning.facts.results import OUTSIDE
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

DEADLINE_S = 120.0
# As the documents' quick start does it: coordinators, then the daemon.
PROGRAM = """
import asyncio, json, sys
from app.coordination.coordination_bootstrap import initialize_all_coordinators
from app.coordination.daemon_manager import get_daemon_manager
from app.coordination.daemon_types import DaemonManagerConfig, DaemonType
from app.coordination.data_pipeline_orchestrator import get_pipeline_status
from app.coordination.event_router import get_router

async def main():
    initialize_all_coordinators(auto_trigger_pipeline=True)
    lost = []
    get_router().subscribe("LEADER_LOST", lambda event: lost.append(event.payload["reason"]))
    looked = DaemonManagerConfig(health_check_interval=1.0, default_startup_grace_period=0.0)
    manager = get_daemon_manager(looked)
    print("answer", json.dumps(await manager.start(DaemonType.DATA_PIPELINE, wait_for_deps=True)), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.startswith("{"):
            told = {"config_key": "connect_four_2p", **json.loads(line)}
            await get_router().publish("SELFPLAY_COMPLETE", told, "my own program")
        if line.startswith("start"):
            assert await manager.start(DaemonType.DLQ_RETRY), manager.why(DaemonType.DLQ_RETRY)
        if line.startswith("stop"):
            await manager.stop(DaemonType.DATA_PIPELINE)
        health = manager.get_all_daemon_health()[DaemonType.DATA_PIPELINE]
        status = await asyncio.to_thread(get_pipeline_status)
        told = {"health": health, "controlled_by": status["controlled_by"], "runs": status["loop_runs"]}
        told["lost"], told["dlq_retry"] = lost, manager.is_running(DaemonType.DLQ_RETRY)
        print("answer", json.dumps(told, default=str), flush=True)
    await manager.shutdown()
    await get_router().stop()

asyncio.run(main())
"""


class Program:
    """One of a user's own."""

    def __init__(self, folder, name, **variables):
        self.log = (folder / f"{name}.log").open("ab")
        self.variables = {**Loop(folder, tiny=True).variables, "RINGRIFT_INTAKE_FOLDERS": str(folder)}
        self.variables |= variables
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **self.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    async def answer(self):
        while line := await asyncio.to_thread(self.process.stdout.readline):
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError(f"the program ended with {self.process.wait()}")

    async def ask(self, line="how"):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        async with asyncio.timeout(DEADLINE_S):
            return await self.answer()

    async def until_it(self, is_so):
        async with asyncio.timeout(DEADLINE_S):
            while not is_so(told := await self.ask()):
                await asyncio.sleep(0.1)
        return told

    def close(self):
        self.process.kill()
        self.process.wait(timeout=10)
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()


@pytest.fixture
async def folder(tmp_path):
    """A data folder whose run has a config to learn, and the programs on it."""
    programs = []

    def program(name, **variables):
        programs.append(Program(tmp_path, name, **variables))
        return programs[-1]

    variables = {"RINGRIFT_DATA_DIR": str(tmp_path / "data")}
    engine = await open_engine(load_settings(variables).settings, SystemRuntime())
    await engine.kv.put(CHOICE_KEY, msgspec.json.encode({"configs": [CONFIG], "workers": 0}))
    yield tmp_path, engine, program
    for each in programs:
        each.close()
    await engine.close()


def leads(told):
    return told["runs"] and told["health"]["healthy"]


def a_file_of_games(folder, name):
    games = [{"id": f"{name}-{number}", "moves": list(range(12))} for number in range(7)]
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"games": games, "model": None}))
    return json.dumps({"games_generated": 7, "db_path": str(path)})


async def test_one_of_two_programs_leads_and_the_other_takes_over_when_it_is_killed(folder):
    path, engine, program = folder
    first = program("first")
    assert await first.answer() is True
    await first.until_it(leads)
    second = program("second")
    assert await second.answer() is True
    told = await second.until_it(lambda told: "waits for control" in told["health"]["message"])
    assert f"which process {first.process.pid} on" in told["health"]["message"]
    assert "holds until" in told["health"]["message"]
    assert not told["runs"]
    assert told["controlled_by"]["holder"].startswith(f"process {first.process.pid} on")
    assert told["controlled_by"]["until_s"] > 0
    assert leads(await first.ask()), "beside it the first one goes on"
    # Each has daemons of its own: no start is a request to the other, which would carry out none.
    for each in (first, second):
        await each.ask("start")
    # Both are told of games of their own; the one that leads takes both in.
    await first.ask(a_file_of_games(path, "mine"))
    await second.ask(a_file_of_games(path, "yours"))

    async def taken_in(files):
        async with asyncio.timeout(DEADLINE_S):
            while len([fact for fact in await outside() if fact.kind == "selfplay"]) < files:
                await asyncio.sleep(0.1)

    async def outside():
        facts = [fact for fact in await read_facts(engine.kv, CONFIG) if isinstance(fact, JobIssued)]
        return [fact for fact in facts if fact.order.purpose == OUTSIDE]

    await taken_in(2)
    assert leads(await first.ask())
    assert not (await second.ask())["runs"]
    before = await engine.kv.get(TOKEN_KEY)
    # `ringrift run` is refused as beside another one.
    refused = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "ringrift.cli", "run", "--plain", "--no-open", "--configs", CONFIG],
        env={**os.environ, **first.variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert refused.returncode == EXIT_WRONG_INPUT
    assert f"process {first.process.pid} on" in refused.stderr
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(timeout=10)
    told = await second.until_it(leads)
    assert told["controlled_by"]["holder"].startswith(f"process {second.process.pid} on")
    assert (await engine.kv.get(TOKEN_KEY)).revision > before.revision
    await second.ask(a_file_of_games(path, "later"))
    await taken_in(3)
    hashes = await read_hashes(engine.kv, CONFIG)  # which raises for facts that do not follow each other
    assert len(hashes) == len(await read_facts(engine.kv, CONFIG))
    # Its daemon is stopped: control is given back, and the program goes on.
    told = await second.ask("stop")
    assert (told["controlled_by"], told["runs"]) == (None, False)
    assert await control_seen(engine.kv, SystemRuntime()) is None
    assert second.process.poll() is None


async def test_a_program_that_was_held_up_finds_that_it_lost_control_and_stands_by(folder):
    _, engine, program = folder
    first = program("first", RINGRIFT_CONTROL_LEASE="2")
    assert await first.answer() is True
    assert (await first.until_it(leads))["lost"] == []
    second = program("second", RINGRIFT_CONTROL_LEASE="2")
    assert await second.answer() is True
    await stop_between_writes(first.process, engine.kv)
    await second.until_it(leads)
    facts = await read_facts(engine.kv, CONFIG)
    first.process.send_signal(signal.SIGCONT)
    told = await first.until_it(lambda told: "waits for control" in told["health"]["message"])
    assert f"which process {second.process.pid} on" in told["health"]["message"]
    assert not told["runs"]
    assert len((await first.until_it(lambda told: told["lost"]))["lost"]) == 1
    assert first.process.poll() is None
    assert leads(await second.ask())
    assert (await read_facts(engine.kv, CONFIG))[: len(facts)] == facts
    await read_hashes(engine.kv, CONFIG)


async def test_a_program_that_leads_says_so_and_carries_out_what_others_ask_of_its_daemons(folder):
    _, engine, program = folder
    first = program("first")
    assert await first.answer() is True
    await first.until_it(leads)
    await first.ask("start")

    async def daemons(*words):
        told = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "ringrift.cli", "daemons", *words, "--json"],
            env={**os.environ, **first.variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert told.returncode == 0, told.stderr or told.stdout
        return json.loads(told.stdout)

    elected = await engine.events.read(after=0, limit=100, types=["LEADER_ELECTED"])
    assert len(elected) == 1
    stopped = await daemons("stop", "dlq_retry", "--reason", "disk")
    assert (stopped["running"], stopped["problem"]) == (True, "")
    assert (await first.ask())["dlq_retry"] is False
    await daemons("start", "dlq_retry")
    assert (await first.ask())["dlq_retry"] is True
    # Also the loop itself, which is answered although control ends with it, and can be asked for again.
    await daemons("stop", "data_pipeline")
    told = await first.ask()
    assert (told["controlled_by"], told["runs"]) == (None, False)
    # Without its loop it has given back control, and goes on to be asked.
    await daemons("stop", "dlq_retry")
    started = await daemons("start", "dlq_retry")
    assert (started["running"], started["problem"], (await first.ask())["dlq_retry"]) == (True, "", True)
    await daemons("start", "data_pipeline")
    await first.until_it(leads)
    # The one that leads does it, and not the other; a stop lasts, so the other does it once it leads.
    second = program("second")
    assert await second.answer() is True
    await second.ask("start")
    await daemons("stop", "dlq_retry")
    assert ((await first.ask())["dlq_retry"], (await second.ask())["dlq_retry"]) == (False, True)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(timeout=10)
    await second.until_it(leads)
    await second.until_it(lambda told: not told["dlq_retry"])
