"""`ringrift workers` on a real data folder."""

import time

import pytest
from run_folder import answer, in_engine, ringrift

from ringrift.learning.facts.facts import JobEnded, JobIssued, WorkerSetAside
from ringrift.learning.facts.ledger import Ledger, read_facts, remember_config
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.replay import replay
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport

CONFIG = "square8_2p"


@pytest.fixture
def run():
    """A shard of each of two workers."""

    async def write(engine):
        await remember_config(engine.kv, CONFIG)
        ledger = await Ledger.open(engine.kv, CONFIG, bucket_rules=BucketRules())
        for number, worker in enumerate(("node1-1", "node2-1")):
            at_s, order = time.time() - 100 + number, JobOrder(config=CONFIG, params={})
            shard = JobArtifact(
                name="s",
                kind="shard",
                digest=str(number) * 64,
                size_bytes=1,
                counts={"games": 10, "rows": 400},
            )
            job_id = f"selfplay-{number}"
            await ledger.append(
                JobIssued(at_s=at_s, job_id=job_id, kind="selfplay", order=order, priority=0, reason="")
            )
            report = JobReport(
                status="done",
                worker=worker,
                node="n",
                started_s=at_s,
                wall_s=1.0,
                cpu_s=1.0,
                artifacts=(shard,),
            )
            await ledger.append(JobEnded(at_s=at_s, job_id=job_id, report=report))

    in_engine(write)


def facts():
    return in_engine(lambda engine: read_facts(engine.kv, CONFIG))


def test_every_worker_is_listed_with_what_it_brought(run):
    told = {each["name"]: each for each in answer("workers")}
    assert set(told) == {"node1-1", "node2-1"}
    assert (told["node1-1"]["games"], told["node1-1"]["rows"], told["node1-1"]["jobs"]) == (10, 400, 1)
    assert (told["node1-1"]["compared"], told["node1-1"]["set_aside"]) == (0, None)
    shown = ringrift("workers").stdout
    assert "node2-1" in shown
    assert "faults" in shown


def test_a_worker_is_set_aside_and_resumed_by_hand(run):
    ringrift("workers", "set-aside", "node2-1", "--reason", "its fans stand still")
    told = {each["name"]: each["set_aside"] for each in answer("workers")}
    assert told["node1-1"] is None
    assert told["node2-1"]["reason"] == "its fans stand still"
    assert isinstance(facts()[-1], WorkerSetAside)
    assert "set aside until" in " ".join(ringrift("workers").stdout.split())
    found = ringrift("workers", "set-aside", "node2-1", "--reason", "again", code=2).stderr
    assert "set aside already" in found
    assert answer("workers", "resume", "node2-1", "--reason", "cleaned")["done"] is True
    assert {each["set_aside"] for each in answer("workers")} == {None}
    assert "not set aside" in ringrift("workers", "resume", "node2-1", "--reason", "x", code=2).stderr
    assert [each for each in replay(CONFIG, facts(), LearningRules()) if "aside" in each.what] == []


@pytest.mark.parametrize("act", ["set-aside", "resume"])
def test_an_unknown_worker_and_a_missing_reason_are_told(run, act):
    assert "node1-1, node2-1" in ringrift("workers", act, "nobody", "--reason", "x", code=2).stderr
    assert "--reason" in ringrift("workers", act, "node1-1", code=2).stderr
