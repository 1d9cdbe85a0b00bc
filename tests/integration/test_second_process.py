"""What a process that is not the control process is told of a run: live, stopped, and where there is none."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from loop_under_test import CONFIG, Loop, until

from ringrift.engine.opening import open_engine
from ringrift.learning.facts.facts import Noted
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.plan.evaluation import WANTED_TOPIC
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

ARCHIVE = Path(__file__).parents[1] / "data" / "earlier_run_folder.tar.xz"
DEADLINE_S = 120.0
ASK = """
import json
from dataclasses import asdict
from app.coordination.data_pipeline_orchestrator import get_pipeline_orchestrator, get_pipeline_status
from app.coordination.model_lifecycle_coordinator import get_model_coordinator, get_production_model_id
from app.coordination.selfplay_orchestrator import get_selfplay_orchestrator, get_selfplay_stats
from app.coordination.task_lifecycle_coordinator import get_task_stats
from app.coordination.training_coordinator import get_training_coordinator, get_training_status

print(json.dumps({
    "champion": get_production_model_id(),
    "of_config": get_production_model_id("connect_four", 2),
    "models": get_model_coordinator().get_status(),
    "pipeline": get_pipeline_status(),
    "turns": [turn.to_dict() for turn in get_pipeline_orchestrator().get_iterations()],
    "tasks": get_task_stats(),
    "selfplay": get_selfplay_stats(),
    "selfplay_tasks": len(get_selfplay_orchestrator().get_history(limit=1000)),
    "training": get_training_status(),
    "trainings": [asdict(each) for each in get_training_coordinator().get_history(limit=1000)],
}))
"""
ACT = """
import asyncio, json
from app.coordination.daemon_manager import get_daemon_manager
from app.coordination.daemon_types import DaemonType

async def act():
    manager, one = get_daemon_manager(), DaemonType.EVALUATION
    found = [manager.is_running(one), await manager.stop(one, reason="the board is needed")]
    found += [manager.is_running(one), manager.why(one)]
    found += [await manager.start(one), manager.is_running(one)]
    return [*found, await manager.start(DaemonType.FEEDBACK_LOOP)]

print(json.dumps(asyncio.run(act())))
"""
ORDER = """
import asyncio, json
from app.coordination.evaluation_daemon import get_evaluation_daemon
from app.coordination.optimization_coordinator import trigger_nas

search = trigger_nas()
wanted = asyncio.run(get_evaluation_daemon().request_evaluation("connect_four_2p", opponents=["mcts:3"]))
print(json.dumps([search and search.config_key, [(each.opponent, each.games) for each in wanted]]))
"""
TELL = """
import asyncio, json, sys
from app.coordination.event_router import get_router

async def tell():
    for payload in json.loads(sys.argv[1]):
        await get_router().publish("SELFPLAY_COMPLETE", payload, "my own program")
    await get_router().stop()

asyncio.run(tell())
print("{}")
"""


def run(arguments, environment):
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def asked(environment):
    return run(["-c", ASK], environment)


def champion_of(environment):
    models = run(["-m", "ringrift.cli", "models", "--json"], environment)[CONFIG]
    return next((each["model"] for each in models if each["is_champion"]), None)


@pytest.fixture
def loop(tmp_path):
    loop = Loop(tmp_path, tiny=True)
    yield loop
    loop.kill_everything()


def test_a_stopped_run_is_answered_from_its_folder(loop, tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    environment = loop.environment()
    status = run(["-m", "ringrift.cli", "status", "--json"], environment)["configs"][CONFIG]
    found = asked(environment)
    assert found["champion"] == found["of_config"] == champion_of(environment) == status["champion"]
    assert found["models"]["promotions"] == found["pipeline"]["promotions"] == 2
    assert found["pipeline"]["run_state"] == "stopped"
    assert found["pipeline"]["games_generated"] == status["games"] + status["games_unchecked"]
    assert found["pipeline"]["stages"][CONFIG] != "idle"
    assert [turn["promoted"] for turn in found["turns"]].count(True) == 2
    assert found["tasks"]["active"] == 0
    assert found["tasks"]["completed"] > 10
    assert found["tasks"]["mean_duration_seconds"] > 0
    assert found["selfplay"]["total_games"] == status["games"] + status["games_unchecked"]
    assert found["selfplay"]["completed_tasks"] == found["selfplay_tasks"] > 0
    assert found["selfplay"]["games_per_second"] == 0.0, "it is known that nothing plays"
    models = run(["-m", "ringrift.cli", "models", "--json"], environment)[CONFIG]
    assert {each["model_path"] for each in found["trainings"] if each["success"]} == {
        f"blob:{each['model']}" for each in models
    }
    assert run(["-c", ORDER], environment) == [CONFIG, [["mcts:3", 60]]], "waits for the run to go on"
    told = found["training"]
    assert (told["running"], told["slots"], told["by_workers"]) == (0, [], [])
    assert told["completed"] == len(models) >= 2
    assert told["failed"] == len(found["trainings"]) - len(models)


def test_without_a_run_everything_is_unknown_and_nothing_is_made(tmp_path):
    environment = {**os.environ, "RINGRIFT_DATA_DIR": str(tmp_path / "nothing")}
    found = asked(environment)
    assert found["champion"] is None
    unknown = ("promotions", "games_generated", "iterations_completed", "run_state")
    assert {name: found["pipeline"][name] for name in unknown} == dict.fromkeys(unknown)
    assert found["models"]["total_models"] is None
    assert {found["tasks"][name] for name in ("active", "completed", "failed", "spawned")} == {None}
    assert {found["selfplay"][name] for name in ("total_games", "active_tasks", "games_last_hour")} == {None}
    assert {found["training"][name] for name in ("running", "completed", "failed", "slots")} == {None}
    assert found["trainings"] == []
    assert not (tmp_path / "nothing").exists()


async def brings_games_of_its_own(loop, environment):
    """Tell of a file with games, and of games without one, from a process that is no part of the run."""
    games = [{"id": f"mine-{number}", "moves": list(range(12))} for number in range(7)]
    path = loop.folder / "mine" / "games.json"
    path.write_text(json.dumps({"games": games, "model": None}))
    told = [{"games_generated": 7, "db_path": str(path)}, {"games_generated": 1000}]
    run(["-c", TELL, json.dumps([{"config_key": CONFIG, **each} for each in told])], environment)

    async def checked():
        status = run(["-m", "ringrift.cli", "status", "--json"], environment)
        workers = {each["name"]: each for each in status["worker_statistics"]}
        games = status["configs"][CONFIG]["games"]
        return workers.get("outside", {}).get("games") == 7 and games > 7

    await until(checked, "games from outside", loop)
    (refused,) = asked(environment)["pipeline"]["refused_claims"]
    assert "it names no file" in refused["reason"]


@pytest.mark.timeout(400)
async def test_a_live_run_is_answered_from_another_process(loop):
    (loop.folder / "mine").mkdir()
    loop.variables["RINGRIFT_INTAKE_FOLDERS"] = str(loop.folder / "mine")
    loop.start()
    environment = loop.environment()

    async def promoted():
        done = subprocess.run(
            [sys.executable, "-m", "ringrift.cli", "status", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        configs = json.loads(done.stdout)["configs"] if done.returncode == 0 else {}
        return bool(configs.get(CONFIG, {}).get("promotions"))

    await until(promoted, "a first champion", loop)
    found = asked(environment)
    models = run(["-m", "ringrift.cli", "models", "--json"], environment)[CONFIG]
    champions = {
        each["model"] for each in models if "production" in {step["state"] for step in each["history"]}
    }
    assert found["champion"] in champions, "tiny jobs change it every second"
    assert found["pipeline"]["run_state"] == "running"
    assert found["pipeline"]["promotions"] >= 1
    assert found["turns"][-1]["stages_completed"][:2] == ["selfplay", "data_sync"]
    assert found["tasks"]["completed"] > 0
    assert found["selfplay"]["total_games"] > 0
    assert 0 < found["selfplay"]["games_last_hour"] <= found["selfplay"]["total_games"]
    assert found["training"]["running"] in (0, 1), "one config is trained by one at a time"
    assert found["training"]["completed"] >= 1
    assert found["trainings"][-1]["config_key"] == CONFIG
    search, (wanted,) = run(["-c", ORDER], environment)
    assert (search, wanted[0]) == (CONFIG, "mcts:3")

    engine = await open_engine(load_settings(loop.variables).settings, SystemRuntime())

    async def taken_in():
        notes = [fact for fact in await read_facts(engine.kv, CONFIG) if isinstance(fact, Noted)]
        return [note.details["opponents"] for note in notes if note.topic == WANTED_TOPIC] == [["mcts:3"]]

    await until(taken_in, "the games that were asked for", loop)
    await engine.close()
    await brings_games_of_its_own(loop, environment)
    ran, stopped, still_runs, why, started, runs_again, router_is_there = run(["-c", ACT], environment)
    assert (ran, stopped, still_runs) == (True, True, False)
    assert "stopped by a person: " in why
    assert "the board is needed" in why
    assert (started, runs_again, router_is_there) == (True, True, True)
    assert await loop.end() == 0
    told = run(["-m", "ringrift.cli", "events", "audit", "--json"], environment)["events"]
    seen = {each["name"]: (each["last_sent_s"], each["last_received_s"]) for each in told}
    for name in ("SELFPLAY_COMPLETE", "TRAINING_COMPLETED", "MODEL_PROMOTED", "WORK_COMPLETED"):
        assert all(seen[name]), name
    assert seen["SPLIT_BRAIN_DETECTED"] == (None, None)
