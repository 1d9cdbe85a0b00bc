"""A data folder with a run in it, written as the run itself writes it; and commands on it."""

import asyncio
import json

import msgspec
from click.testing import CliRunner

from ringrift.cli.main import app
from ringrift.control.run_options import RunOptions, settle_run_options
from ringrift.engine.opening import close_engine, get_engine
from ringrift.health.run_status import STATUS_KEY
from ringrift.learning.facts.facts import JobEnded, JobIssued, Promoted
from ringrift.learning.facts.ledger import Ledger, remember_config
from ringrift.learning.facts.records import BucketRules
from ringrift.testing.sample_run import SampleRun
from ringrift.work.job.protocol import JobArtifact, JobOrder, JobReport


def ringrift(*arguments, code=0):
    """Run a command in this process, and expect its exit code."""
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == code, done.output + done.stderr
    return done


def answer(*arguments):
    """What a command prints with --json."""
    return json.loads(ringrift(*arguments, "--json").stdout)


def in_engine(work):
    """Run *work* with the engine of the data folder of this test."""

    async def do():
        try:
            return await work(await get_engine())
        finally:
            await close_engine()

    return asyncio.run(do())


def write_status(run):
    """Tell *run*, as the control process does every second."""
    status = run.status() if isinstance(run, SampleRun) else run

    async def put(engine):
        await settle_run_options(engine.kv, RunOptions(configs=tuple(status.configs) or None))
        for config in status.configs:
            await remember_config(engine.kv, config)
        await engine.kv.put(STATUS_KEY, msgspec.json.encode(status))

    in_engine(put)


def write_models(config, *, promoted=1, evidence=None):
    """Two models, the second a child of the first; returns their digests."""

    async def write(engine):
        await remember_config(engine.kv, config)
        ledger = await Ledger.open(engine.kv, config, bucket_rules=BucketRules())
        digests = [await engine.blobs.put_bytes(f"weights {n}".encode()) for n in (1, 2)]
        cards = [await engine.blobs.put_bytes(b'{"card": %d}' % n) for n in (1, 2)]
        samples = "5" * 64
        await _job(ledger, "export", {}, [_artifact("samples", samples, rows=900, games=30)], at_s=10.0)
        for number in (0, 1):
            inputs = {"samples.npz": samples}
            if number:
                inputs["parent.safetensors"] = digests[0]
            made = [_artifact("model", digests[number]), _artifact("card", cards[number])]
            await _job(ledger, "train", inputs, made, at_s=100.0 * (number + 1))
        for number in range(promoted):
            previous = digests[number - 1] if number else None
            why = "won 40 of 64 points"
            fact = Promoted(
                at_s=300.0 + number,
                model=digests[number],
                previous=previous,
                reason=why,
                evidence=evidence or {"games": 64, "score": 0.625},
            )
            await ledger.append(fact)
        return digests

    return in_engine(write)


def write_student(config, purpose, *, at_s=500.0, parent=None):
    """A network beside the line of champions; returns its digest. `write_models` comes first."""

    async def write(engine):
        ledger = await Ledger.open(engine.kv, config, bucket_rules=BucketRules())
        digest = await engine.blobs.put_bytes(f"{purpose} {at_s}".encode())
        card = await engine.blobs.put_bytes(b'{"card": "student"}')
        inputs = {"samples.npz": "5" * 64} | ({} if parent is None else {"parent.safetensors": parent})
        made = [_artifact("model", digest), _artifact("card", card)]
        await _job(ledger, "train", inputs, made, at_s=at_s, purpose=purpose)
        return digest

    return in_engine(write)


async def _job(ledger, kind, inputs, artifacts, *, at_s, purpose=""):
    job_id = f"{kind}-{at_s:.0f}"
    order = JobOrder(config=ledger.state.config, params={"batch": 64}, inputs=inputs, purpose=purpose)
    await ledger.append(
        JobIssued(at_s=at_s, job_id=job_id, kind=kind, order=order, priority=0, reason="it is time")
    )
    report = JobReport(
        status="done",
        worker="w",
        node="n",
        started_s=at_s,
        wall_s=5.0,
        cpu_s=4.0,
        artifacts=tuple(artifacts),
        fields={"steps": 10},
    )
    await ledger.append(JobEnded(at_s=at_s + 5, job_id=job_id, report=report))


def _artifact(kind, digest, **counts):
    return JobArtifact(name=kind, kind=kind, digest=digest, size_bytes=10, counts=counts)
