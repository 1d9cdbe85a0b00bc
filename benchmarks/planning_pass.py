"""What a pass of the controller costs with 10,000 queued items and 1,000,000 recorded games.

The facts are those a run would have written: self-play jobs of 64 games, checked 64 shards at a time, with
models, promotions and matches in between. Then one controller reads them and plans. Target: a planning pass
under 100 ms. What `ringrift status` costs on the same folder: `status_speed.py`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec

import benchmark
from ringrift.engine.opening import open_engine
from ringrift.engine.ports import Engine, NewWork
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.facts import AnyFact, JobEnded, JobIssued, Promoted
from ringrift.learning.facts.ledger import Ledger, remember_config
from ringrift.learning.plan.rules import LearningRules
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport
from ringrift.work.worker.records import WorkerRecord, worker_key

CONFIG = "square8_2p"
GAMES_PER_SHARD, ROWS_PER_GAME, SHARDS_PER_CHECK, CHECKS_PER_MODEL = 64, 40, 64, 2
PASS_MS_MAX = 100.0
PASSES = 30


def run(quick: bool) -> benchmark.Result:
    games, queued = (64_000, 1_000) if quick else (1_000_000, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), games, queued))


async def _measure(folder: Path, games: int, queued: int) -> benchmark.Result:
    settings = load_settings({"RINGRIFT_DATA_DIR": str(folder)}).settings
    runtime = SystemRuntime(seed=1)
    engine = await open_engine(settings, runtime)
    began_s = time.perf_counter()
    facts = await write_history(engine, games)
    await fill_queue(engine, queued)
    wrote_s = time.perf_counter() - began_s
    await be_a_worker(engine)
    controller = Controller(engine, runtime, LearningRules(), announcer=Silent())
    began_s = time.perf_counter()
    await controller.open([CONFIG])
    opened_s = time.perf_counter() - began_s
    await controller.reconcile()
    passes_ms = [await _timed_ms(controller) for _ in range(PASSES)]
    await engine.close()
    return {
        "games": games,
        "facts": facts,
        "queued": queued,
        "wrote_s": wrote_s,
        "opened_s": opened_s,
        "pass_ms": median(passes_ms),
        "pass_ms_worst": max(passes_ms),
        "met": max(passes_ms) < PASS_MS_MAX,
    }


async def _timed_ms(controller: Controller) -> float:
    began_s = time.perf_counter()
    await controller.reconcile()
    return 1000 * (time.perf_counter() - began_s)


async def be_a_worker(engine: Engine) -> None:
    record = WorkerRecord(
        name="bench",
        node="bench",
        pid=1,
        slots=2,
        busy=2,
        kinds=None,
        capabilities=("cpu",),
        cpus=2,
        gpus=0,
        memory_mb=1,
        memory_free_mb=1,
        load=0.0,
        started_s=0.0,
        at_s=0.0,
    )
    await engine.kv.put(worker_key("bench"), msgspec.json.encode(record), ttl_s=3600.0)


async def fill_queue(engine: Engine, queued: int) -> None:
    order = JobOrder(config="hex8_2p", params={"games": 50}).as_payload()
    for first in range(0, queued, 1000):
        await engine.queue.add(
            [NewWork(kind="selfplay", payload=order) for _ in range(first, min(first + 1000, queued))]
        )


async def write_history(engine: Engine, games: int) -> int:
    await remember_config(engine.kv, CONFIG)
    ledger = await Ledger.open(engine.kv, CONFIG, bucket_rules=LearningRules().bucket)
    # Many at a time, because the engine commits what comes together in one step.
    facts = list(history(games))
    for first in range(0, len(facts), 500):
        await asyncio.gather(*(ledger.append(fact) for fact in facts[first : first + 500]))
    return len(facts)


def history(games: int) -> list[AnyFact]:
    """The facts of a run that played so many games."""
    facts: list[AnyFact] = []
    unchecked: list[str] = []
    models: list[str] = []
    checks = 0
    for number in range(games // GAMES_PER_SHARD):
        digest = f"{number:064x}"
        counts = {"games": GAMES_PER_SHARD, "rows": GAMES_PER_SHARD * ROWS_PER_GAME}
        facts += _job(f"s{number}", "selfplay", {"simulations": 32}, {}, [("shard", digest, counts)], number)
        unchecked.append(digest)
        if len(unchecked) < SHARDS_PER_CHECK:
            continue
        inputs = {f"{d}.shard.db": d for d in unchecked}
        reports = [("report", f"r{d}"[:64], {"shard": d, "refused": 0, **counts}) for d in unchecked]
        facts += _job(f"v{checks}", "validate", {}, inputs, reports, number)
        checks, unchecked = checks + 1, []
        if checks % CHECKS_PER_MODEL == 0:
            facts += _generation(len(models), models, inputs, number)
    return facts


def _generation(number: int, models: list[str], shards: dict[str, str], at_s: float) -> list[AnyFact]:
    samples, model, card = (f"{kind}{number:062x}" for kind in ("5a", "aa", "ca"))
    previous = models[-1] if models else None
    facts = _job(
        f"e{number}", "export", {"rows_generated": 1}, shards, [("samples", samples, {"rows": 100_000})], at_s
    )
    inputs = {"samples.npz": samples} | ({} if previous is None else {"parent.safetensors": previous})
    made = [("model", model, {}), ("card", card, {})]
    facts += _job(f"t{number}", "train", {"batch": 256}, inputs, made, at_s, fields={"steps": 390})
    opponents = ["random", "mcts:32"] if previous is None else ["model:{inputs}/opponent-0.safetensors@32"]
    played = {"games": 64, "wins": 40, "draws": 0, "losses": 24, "score": 0.625, "pairs": [2, 0, 20, 0, 10]}
    facts += _job(
        f"m{number}",
        "evaluate",
        {"candidate": "model:{inputs}/candidate.safetensors@32", "opponents": opponents},
        {"candidate.safetensors": model, "opponent-0.safetensors": previous or model},
        [],
        at_s,
        fields={"matches": [{"opponent": text, **played} for text in opponents]},
    )
    facts.append(Promoted(at_s=at_s, model=model, previous=previous, reason="benchmark"))
    models.append(model)
    return facts


def _job(
    job_id: str,
    kind: str,
    params: dict[str, object],
    inputs: dict[str, str],
    artifacts: list[tuple[str, str, dict[str, object]]],
    at_s: float,
    fields: dict[str, object] | None = None,
) -> list[AnyFact]:
    report = JobReport(
        status="done",
        worker="bench",
        node="bench",
        started_s=at_s,
        wall_s=30.0,
        cpu_s=30.0,
        artifacts=tuple(
            JobArtifact(name=name, kind=name, digest=digest, size_bytes=1, counts=counts)
            for name, digest, counts in artifacts
        ),
        fields=fields or {},
    )
    order = JobOrder(config=CONFIG, params=params, inputs=inputs, purpose="promotion")
    return [
        JobIssued(at_s=at_s, job_id=job_id, kind=kind, order=order, priority=1, reason="benchmark"),
        JobEnded(at_s=at_s, job_id=job_id, report=report),
    ]


def table(result: benchmark.Result) -> str:
    return "\n".join(
        [
            f"{result['games']:,} games in {result['facts']:,} facts, {result['queued']:,} queued items",
            f"planning pass   {result['pass_ms']:.1f} ms, worst {result['pass_ms_worst']:.1f} "
            f"(want < {PASS_MS_MAX:.0f})",
            f"opening the ledger {result['opened_s']:.2f} s",
        ]
    )


if __name__ == "__main__":
    sys.exit(benchmark.command(run, table, __doc__))
