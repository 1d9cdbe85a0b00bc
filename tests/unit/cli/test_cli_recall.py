"""`ringrift recall` on a real data folder."""

import multiprocessing
import time

import pytest
from run_folder import answer, in_engine, ringrift

from ringrift.cli.format import parse_moment
from ringrift.coordination.master_loop_guard import MasterLoopGuard, is_master_loop_running
from ringrift.errors import ConfigError
from ringrift.learning.facts.facts import JobEnded, JobIssued, Promoted
from ringrift.learning.facts.ledger import Ledger, remember_config
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.requests import RecallRequests
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport

CONFIG = "square8_2p"
GOOD, BAD, SAMPLES, FIRST, SECOND = ("a" * 64, "b" * 64, "5" * 64, "1" * 64, "2" * 64)


@pytest.fixture
def run():
    """Two shards of two workers, a model trained on both, and its child, which is champion."""

    async def write(engine):
        await remember_config(engine.kv, CONFIG)
        ledger = await Ledger.open(engine.kv, CONFIG, bucket_rules=BucketRules())
        now_s = time.time()
        for worker, shard, ago_s in (("good", GOOD, 7200.0), ("bad", BAD, 600.0)):
            await job(
                ledger, "selfplay", worker, now_s - ago_s, {}, artifact("shard", shard, games=10, rows=400)
            )
        checked = [
            artifact("report", shard[::-1], shard=shard, games=10, refused=0, rows=400)
            for shard in (GOOD, BAD)
        ]
        shards = {"0": GOOD, "1": BAD}
        await job(ledger, "validate", "good", now_s - 500, shards, *checked)
        await job(ledger, "export", "good", now_s - 400, shards, artifact("samples", SAMPLES, rows=800))
        inputs = {"samples.npz": SAMPLES}
        for model, at_s in ((FIRST, now_s - 300), (SECOND, now_s - 200)):
            await job(
                ledger, "train", "good", at_s, inputs, artifact("model", model), artifact("card", model)
            )
            inputs = {"samples.npz": SAMPLES, "parent.safetensors": model}
        for model, previous in ((FIRST, None), (SECOND, FIRST)):
            await ledger.append(Promoted(at_s=now_s - 100, model=model, previous=previous, reason="won"))

    in_engine(write)


def artifact(kind, digest, **counts):
    return JobArtifact(name=kind, kind=kind, digest=digest, size_bytes=1, counts=counts)


async def job(ledger, kind, worker, at_s, inputs, *artifacts):
    job_id, order = f"{kind}-{at_s}", JobOrder(config=CONFIG, params={}, inputs=inputs)
    await ledger.append(JobIssued(at_s=at_s, job_id=job_id, kind=kind, order=order, priority=0, reason=""))
    report = JobReport(
        status="done", worker=worker, node="n", started_s=at_s, wall_s=1.0, cpu_s=1.0, artifacts=artifacts
    )
    await ledger.append(JobEnded(at_s=at_s, job_id=job_id, report=report))


def state():
    async def read(engine):
        return (await Ledger.open(engine.kv, CONFIG, bucket_rules=BucketRules())).state

    return in_engine(read)


@pytest.mark.usefixtures("run")
def test_what_leaves_is_shown_first_and_nothing_is_done_without_a_yes():
    told = answer("recall", "--worker", "bad", "--reason", "its memory is broken")
    assert told["recalled"] is False
    config = told["configs"][CONFIG]
    assert (config["games"], config["rows"]) == (10, 400)
    assert [shard["shard"] for shard in config["shards"]] == [BAD]
    assert [model["model"] for model in config["models"]] == [FIRST, SECOND]
    assert config["champion_is"] == "trained"
    assert state().recalls == {}
    shown = ringrift("recall", "--worker", "bad", "--reason", "its memory is broken").stdout
    assert "was trained on these games" in shown
    assert "add --yes" in shown


@pytest.mark.usefixtures("run")
def test_a_recall_and_its_withdrawal_change_the_facts_of_a_run_that_is_stopped():
    told = answer("recall", "--worker", "bad", "--reason", "its memory is broken", "--yes")
    assert told["recalled"] is True
    assert state().rows == 400
    (row,) = answer("recall", "list")
    assert (row["recall_id"], row["state"], row["rows"]) == (told["recall"], "in force", 400)
    assert "its memory is broken" in ringrift("recall", "list").stdout
    ringrift("recall", "withdraw", told["recall"], "--reason", "the memory was fine")
    assert state().rows == 800
    assert answer("recall", "list")[0]["state"] == "withdrawn"
    assert "no recall in force" in ringrift("recall", "withdraw", told["recall"], code=2).stderr
    assert not is_master_loop_running()


@pytest.mark.usefixtures("run")
def test_a_time_span_is_recalled():
    told = answer("recall", "--from", "1h ago", "--until", "5m ago", "--reason", "x", "--yes")
    assert [shard["shard"] for shard in told["configs"][CONFIG]["shards"]] == [BAD]


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--worker", "bod"), "no worker is called 'bod'; there are bad, good"),
        (("--model", "f"), f"no model is called 'f'; there are {FIRST[:12]} ({CONFIG} 1), {SECOND[:12]}"),
        (("--from", "yesterday"), "it must be a moment such as"),
        (("--from", "now", "--until", "1h ago"), "--from must be before --until"),
        ((), "say what to recall"),
        (("--worker", "bad", "--config", "hex8_2p"), "'hex8_2p' is not learned here"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_there_is(arguments, said):
    refused = ringrift("recall", *arguments, "--reason", "x", "--yes", code=2).stderr
    assert said in refused
    assert refused.count("\n") == 1
    assert state().recalls == {}


@pytest.mark.usefixtures("run")
def test_a_recall_needs_a_reason():
    assert "needs its --reason" in ringrift("recall", "--worker", "bad", "--yes", code=2).stderr


def hold_master_loop(ready, end):
    with MasterLoopGuard():
        ready.set()
        end.wait(60)


@pytest.mark.usefixtures("run")
def test_while_another_process_writes_facts_the_recall_waits_for_it(monkeypatch):
    before = state().facts
    monkeypatch.setattr("ringrift.cli.learning.recall.TAKEN_IN_S_MAX", 0.3)
    spawn = multiprocessing.get_context("spawn")
    ready, end = spawn.Event(), spawn.Event()
    holder = spawn.Process(target=hold_master_loop, args=(ready, end))
    holder.start()
    try:
        assert ready.wait(60)
        told = ringrift("recall", "--worker", "bad", "--reason", "x", "--yes").stdout
        assert "it will at its next pass" in told
        assert state().recalls == {}
        waiting = in_engine(lambda engine: RecallRequests(engine.kv).waiting(CONFIG))
        assert [request.worker for request in waiting] == ["bad"]
        assert answer("recall", "list")[0]["state"] == "waits to be in force"
    finally:
        end.set()
        holder.join(60)
    assert state().facts == before


def test_moments():
    assert parse_moment("2h ago", option="--from", now_s=10_000.0) == 2800.0
    assert parse_moment("now", option="--from", now_s=5.0) == 5.0
    assert parse_moment("2026-01-31T12:00+00:00", option="--from", now_s=0.0) == 1769860800.0
    with pytest.raises(ConfigError, match="--until"):
        parse_moment("soon", option="--until", now_s=0.0)
