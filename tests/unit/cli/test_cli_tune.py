"""`ringrift tune`: a search ordered in a run, shown, or made here."""

import json
import sys

import msgspec
import pytest
from click.testing import CliRunner
from run_folder import in_engine, write_models

from ringrift.cli.learning import tune
from ringrift.cli.main import app
from ringrift.engine.ports import Claimant
from ringrift.learning.facts.facts import Noted
from ringrift.learning.facts.ledger import Ledger
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.tuning import OptimizationStatus, TuningStore, report_of_finding
from ringrift.process import process_scope
from ringrift.settings import Settings

CONFIG = "square8_2p"
FOUND = {"best_params": {"lr": 0.004}, "best_score": 0.61, "improved": True}
JOB = """
import json, sys
params = json.load(sys.stdin)
print(json.dumps({"event": "progress", "kind": "tune", "stage": "searching", "done": 1, "best_score": 0.6}))
print(json.dumps({"event": "result", "kind": "tune", "status": "done", "best_params": {"kind": params["kind"],
      "generations": params.get("generations", 0)}, "best_score": 0.6, "improved": False, "artifacts": []}))
"""


def ringrift(*arguments, code=0):
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == code, done.output + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture
def folder():
    write_models(CONFIG)


@pytest.fixture
def alive(monkeypatch):
    monkeypatch.setattr(tune, "is_master_loop_running", lambda: True)


def test_without_a_run_it_says_what_to_do(folder):
    told = ringrift("tune", CONFIG, code=2)
    assert "ringrift run" in told
    assert "--here" in told
    assert "No search" in ringrift("tune")


def test_a_search_is_ordered_once_and_listed(folder, alive):
    first = json.loads(
        ringrift("tune", CONFIG, "--kind", "halving", "--set", "trials=4", "--no-wait", "--json")
    )
    again = json.loads(ringrift("tune", CONFIG, "--kind", "halving", "--no-wait", "--json"))
    assert again["run_id"] == first["run_id"], "the one under way is shown"
    assert "is under way" in ringrift("tune", CONFIG, "--kind", "nas", "--no-wait", code=2)
    item = in_engine(lambda engine: engine.queue.get(first["run_id"]))
    assert item.payload["params"]["trials"] == 4
    assert item.payload["inputs"] == {"samples.npz": "5" * 64}
    assert [run["run_id"] for run in json.loads(ringrift("tune", "--json"))] == [first["run_id"]]
    assert "pending" in ringrift("tune")


def test_what_was_found_is_shown_with_what_becomes_of_it(folder, alive):
    run_id = json.loads(ringrift("tune", CONFIG, "--no-wait", "--json"))["run_id"]

    async def end(engine):
        (claim,) = await engine.queue.claim(Claimant(worker="w"), lease_s=60.0)
        await engine.queue.complete(claim.id, token=claim.token, result={})
        store = TuningStore(engine.kv)
        run = await store.get(run_id)
        done = msgspec.structs.replace(run, status=OptimizationStatus.COMPLETED, **FOUND)
        await store.put(done)  # the coordinator has yet to let the next begin

    in_engine(end)
    told = ringrift("tune", CONFIG)
    assert "0.004" in told
    assert "next trainings" in told


def test_the_list_says_what_is_in_force_and_how_it_stands(folder, alive):
    run_id = json.loads(ringrift("tune", CONFIG, "--kind", "cmaes", "--no-wait", "--json"))["run_id"]
    best = {"c_scale": 0.21}

    async def end(engine):
        store = TuningStore(engine.kv)
        done = msgspec.structs.replace(
            await store.get(run_id), status=OptimizationStatus.COMPLETED, best_params=best, improved=True
        )
        await store.put(done)
        ledger = await Ledger.open(engine.kv, CONFIG, bucket_rules=BucketRules())
        text, details = report_of_finding(ledger.state, done, "small")
        await ledger.append(Noted(at_s=500.0, topic="tuned", text=text, details=details))

    in_engine(end)
    told = " ".join(ringrift("tune").split())
    assert f"{CONFIG}: the next games are searched with c_scale 0.21" in told
    assert "on trial" in told
    assert "The next games" in ringrift("tune", CONFIG, "--kind", "cmaes")


@pytest.mark.parametrize("wrong", [("--set", "trials"), ("--kind", "magic")])
def test_wrong_input_is_one_line(folder, wrong):
    ringrift("tune", CONFIG, *wrong, code=2)


def test_a_search_here_changes_nothing_in_the_run(tmp_path, monkeypatch):
    write_models(CONFIG)
    script = tmp_path / "job.py"
    script.write_text(JOB)
    monkeypatch.setenv("RINGRIFT_JOBS", json.dumps({"tune": {"command": [sys.executable, str(script)]}}))
    process_scope().drop(Settings)
    told = json.loads(
        ringrift("tune", CONFIG, "--kind", "cmaes", "--here", "--set", "generations=3", "--json")
    )
    assert told["best_params"] == {"kind": "cmaes", "generations": 3}
    shown = ringrift("tune", CONFIG, "--kind", "cmaes", "--here")
    assert "not shown to be better" in shown
    assert "No search" in ringrift("tune"), "nothing was ordered"


def test_a_search_here_that_fails_says_why(tmp_path, monkeypatch):
    write_models(CONFIG)
    script = tmp_path / "job.py"
    script.write_text("raise SystemExit('no optuna here')")
    monkeypatch.setenv("RINGRIFT_JOBS", json.dumps({"tune": {"command": [sys.executable, str(script)]}}))
    process_scope().drop(Settings)
    assert "no optuna here" in ringrift("tune", CONFIG, "--kind", "cmaes", "--here", code=2)
