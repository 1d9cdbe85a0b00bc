"""`ringrift doctor` on a data folder whose games, samples and model were made by the jobs themselves."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringrift.cli.main import app
from ringrift.coordination.coordinator_config import get_settings
from ringrift.engine.opening import close_engine, get_engine
from ringrift.learning.doctor.findings import read_diagnoses
from ringrift.learning.facts.facts import JobEnded, JobIssued
from ringrift.learning.facts.ledger import Ledger, remember_config
from ringrift.learning.plan.rules import LearningRules, rules_note
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport

CONFIG = "connect_four_2p"
RULES = LearningRules(hold_out=0.2)


def job(kind, *arguments):
    """Run a job and return its result line."""
    command = [sys.executable, "-m", "ringrift.jobs", kind, *map(str, arguments), "--log-level", "error"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def made(tmp_path):
    """Results of self-play, check, export and training, as (kind, inputs by name, result)."""
    games = job(
        "selfplay", "--config", CONFIG, "--games", 80, "--simulations", 8, "--out", tmp_path / "games"
    )
    shards = [each["path"] for each in games["artifacts"]]
    checked = job("validate", "--shards", *shards)
    samples = job("export", "--shards", *shards, "--out", tmp_path / "samples.npz", "--hold-out", 0.2)
    trained = job(
        "train", "--config", CONFIG, "--samples", tmp_path / "samples.npz",
        "--out", tmp_path / "m.safetensors", "--steps", 30, "--batch", 128, "--hold-out", 0.2,
    )  # fmt: skip
    return {"selfplay": games, "validate": checked, "export": samples, "train": trained}


async def write_facts(made):
    """Tell the story of *made* as a run would, and keep the files."""
    engine = await get_engine()
    try:
        await remember_config(engine.kv, CONFIG)
        ledger = await Ledger.open(engine.kv, CONFIG, bucket_rules=RULES.bucket)
        await ledger.append(rules_note(ledger.state, RULES, at_s=1.0))
        inputs = {}
        for number, (kind, result) in enumerate(made.items()):
            artifacts = []
            for each in result["artifacts"]:
                assert await engine.blobs.put(Path(each["path"])) == each["sha256"]
                artifacts.append(artifact(each))
            order = JobOrder(config=CONFIG, params={"batch": 128, "simulations": 8}, inputs=inputs)
            at_s = 10.0 * (number + 1)
            await ledger.append(
                JobIssued(at_s=at_s, job_id=kind, kind=kind, order=order, priority=0, reason="a test")
            )
            fields = {name: value for name, value in result.items() if name != "artifacts"}
            report = JobReport(
                status="done", worker="w", node="n", started_s=at_s, wall_s=1.0, cpu_s=1.0,
                artifacts=tuple(artifacts), fields=fields,
            )  # fmt: skip
            await ledger.append(JobEnded(at_s=at_s + 5, job_id=kind, report=report))
            inputs = {
                "selfplay": {each.name: each.digest for each in artifacts},
                "validate": inputs,
                "export": {"samples.npz": artifacts[0].digest},
            }.get(kind, {})
        return ledger.state
    finally:
        await close_engine()


def artifact(each):
    return JobArtifact(
        name=Path(each["path"]).name,
        kind=each["artifact"],
        digest=each["sha256"],
        size_bytes=each["size_bytes"],
        counts=each["counts"],
    )


def test_the_doctor_examines_games_samples_and_the_model(made):
    state = asyncio.run(write_facts(made))
    model = next(iter(state.models))
    done = CliRunner().invoke(app, ["doctor", str(get_settings().data_dir), "--json"])
    assert done.exit_code in (0, 1), done.output
    told = json.loads(done.stdout)
    assert told["problem"] is (done.exit_code == 1)
    found = {each["check"]: each for each in told["findings"]}
    for check in ("symmetries", "overfit", "hold_out", "duplicates", "cut_off", "draws"):
        assert found[check]["level"] == "fine", found[check]
    assert found["canary"]["evidence"]["positions"] == 64

    quick = CliRunner().invoke(app, ["doctor", "--quick"])
    assert f"Learning of {CONFIG} is held back by {told['held_back'][CONFIG]}" in " ".join(
        quick.output.split()
    )
    assert "symmetries agree" in quick.output  # what the job found is remembered
    kept = asyncio.run(diagnoses())
    assert [each.model for each in kept] == [model]


async def diagnoses():
    try:
        return await read_diagnoses((await get_engine()).kv, CONFIG)
    finally:
        await close_engine()
