"""A config's life as facts, for tests: each call writes the facts of one step and returns what was told."""

from __future__ import annotations

from typing import Any

from ringrift.learning.announcements import events_of
from ringrift.learning.facts.facts import AnyFact, GeneratorMoved, JobEnded, JobIssued
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging.promotion import Pairing
from ringrift.learning.plan.orders import (
    evaluate_order,
    export_order,
    selfplay_order,
    train_order,
    validate_order,
)
from ringrift.learning.plan.plan import training_parent
from ringrift.learning.plan.rules import LearningRules
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport

RULES = LearningRules(
    bucket=BucketRules(chunk_steps=4000, cap_steps=40_000, rows_first_min=100),
    judging_share=1.0,  # all jobs of a story take the same time
)


class Story:
    """Writes facts as the controller does, without an engine."""

    def __init__(self, config: str = "square8_2p") -> None:
        self.state = ConfigState(config, RULES.bucket)
        self.now_s = 1000.0
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.facts: list[AnyFact] = []
        self.worker = "w1"
        self.start_s: float | None = None  # what jobs take before their first game or step
        self.measured = ""  # what the worker says of its machine
        self._number = 0

    def write(self, fact: AnyFact) -> list[tuple[str, dict[str, Any]]]:
        self.facts.append(fact)
        self.state.apply(fact)
        told = events_of(fact, self.state)
        self.told += told
        return told

    def issue(self, kind: str, order: JobOrder) -> str:
        self._number += 1
        job_id = f"{self.state.config}.{kind}.{self._number}"
        fact = JobIssued(
            at_s=self.now_s, job_id=job_id, kind=kind, order=order, priority=50, reason="for a test"
        )
        self.write(fact)
        return job_id

    def end(self, job_id: str, *artifacts: JobArtifact, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
        self.now_s += 10.0
        report = JobReport(
            status="done",
            worker=self.worker,
            node="n1",
            started_s=self.now_s - 10,
            wall_s=10.0,
            cpu_s=9.0,
            machine=self.measured,
            start_s=self.start_s,
            artifacts=artifacts,
            fields=fields,
        )
        return self.write(JobEnded(at_s=self.now_s, job_id=job_id, report=report))

    def fail(self, job_id: str, error: str = "out of memory") -> list[tuple[str, dict[str, Any]]]:
        self.now_s += 10.0
        return self.write(JobEnded(at_s=self.now_s, job_id=job_id, error=error))

    # --- whole steps ----------------------------------------------------------------------------------

    def play(self, games: int = 50, rows: int = 2000) -> str:
        job = self.issue("selfplay", selfplay_order(self.state, RULES, simulations=32))
        digest = f"shard{self._number:04d}"
        self.end(job, artifact("shard", digest, games=games, rows=rows))
        return digest

    def check(self) -> None:
        shards = self.state.unchecked()
        job = self.issue("validate", validate_order(self.state, shards))
        reports = [
            artifact("report", f"report-{s.digest}", shard=s.digest, games=s.games, refused=0, rows=s.rows)
            for s in shards
        ]
        self.end(job, *reports)

    def export(self) -> str:
        shards = list(self.state.shards.values())
        rows = self.state.rows
        job = self.issue("export", export_order(self.state, RULES, shards))
        digest = f"samples{self._number:04d}"
        self.end(job, artifact("samples", digest, rows=rows, games=self.state.games))
        return digest

    def train(self, loss: float = 1.0, **fields: Any) -> str:
        samples = self.state.newest_samples
        assert samples is not None
        parent = training_parent(self.state, RULES)
        order = train_order(self.state, RULES, [samples], parent, sample_steps=4000)
        job = self.issue("train", order)
        digest = f"model{self._number:04d}"
        kept = artifact("checkpoint", f"checkpoint-{digest}")
        parts = (artifact("model", digest), artifact("card", f"card-{digest}"), kept)
        self.end(job, *parts, steps=10, best_loss=loss, **fields)
        self.state.models[digest].losses["best_loss"] = loss
        self.write(
            GeneratorMoved(at_s=self.now_s, model=digest, previous=self.state.generator, reason="the newest")
        )
        return digest

    def evaluate(
        self, model: str, opponent: str, *, wins: int, losses: int, purpose: str = "promotion"
    ) -> None:
        candidate, games = self.state.models[model], wins + losses
        pairing = Pairing(opponent, games, purpose)
        order = evaluate_order(self.state, RULES, candidate, [pairing], purpose=purpose)
        job = self.issue("evaluate", order)
        match = {"opponent": order.params["gates"][0]["opponent"], "games": games, "wins": wins, "draws": 0}
        score = wins / games if games else 0.0
        self.end(job, matches=[{**match, "losses": losses, "score": score, "players": 2}])


def artifact(kind: str, digest: str, **counts: Any) -> JobArtifact:
    return JobArtifact(name=digest, kind=kind, digest=digest, size_bytes=1, counts=counts)
