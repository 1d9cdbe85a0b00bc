"""What jobs sealed is registered once, with few writes, whatever ended since the last time."""

from __future__ import annotations

import hashlib

import pytest

from ringrift.data.config import read_nodes
from ringrift.data.manifest.catalog import Cataloged, Cataloger
from ringrift.data.plane import DataPlane
from ringrift.engine.opening import open_engine
from ringrift.engine.ports import Claimant, NewWork
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.work.job.protocol import JobArtifact, JobReport


@pytest.fixture
async def plane(tmp_path):
    settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path)}).settings
    runtime = SystemRuntime()
    engine = await open_engine(settings, runtime)
    yield DataPlane(engine, settings, runtime, nodes=read_nodes("a", {}))
    await engine.close()


async def job(plane, name, *contents, games=2, node="a", stored=True):
    """Carry out a job that seals a file of games for each of *contents*."""
    await plane.queue.add([NewWork(kind="selfplay", id=name, payload={"config": "hex8_2p"})])
    (claim,) = await plane.queue.claim(Claimant(worker="w", node=node), lease_s=60)
    made = []
    for content in contents:
        digest = await plane.blobs.put_bytes(content) if stored else hashlib.sha256(content).hexdigest()
        counts = {"games": games, "rows": 5}
        made.append(
            JobArtifact(name=name, kind="shard", digest=digest, size_bytes=len(content), counts=counts)
        )
    report = JobReport(
        status="done", worker="w", node=node, started_s=0.0, wall_s=1.0, cpu_s=1.0, artifacts=tuple(made)
    )
    await plane.queue.complete(claim.id, token=claim.token, result=report.as_result())
    return [each.digest for each in made]


async def test_all_files_of_all_jobs_are_there_with_their_copies(plane):
    first = await job(plane, "one", b"1", b"2")
    second = await job(plane, "two", b"3", b"1")  # one of them as before
    found = await Cataloger(plane).catalog()
    assert found == Cataloged(registered=3, copies=3, games=6)
    for digest in (*first, *second):
        assert (await plane.manifest.artifact(digest)).config == "hex8_2p"
        assert [copy.node for copy in await plane.manifest.copies(digest)] == ["a"]
    assert await Cataloger(plane).catalog() == Cataloged()


async def test_a_copy_that_was_dropped_is_told_again_and_a_file_that_is_gone_is_not(plane):
    (digest,) = await job(plane, "one", b"1")
    await Cataloger(plane).catalog()
    await plane.manifest.drop_copy(digest, "a")
    await job(plane, "again", b"1")
    await job(plane, "gone", b"2", stored=False)
    await job(plane, "elsewhere", b"3", stored=False, node="b")
    found = await Cataloger(plane).catalog()
    assert found == Cataloged(registered=1, copies=1, games=2), "that of the other node has no copy here"


async def test_twenty_files_take_as_many_writes_as_one(plane):
    for number in range(5):
        await job(plane, str(number), *(f"{number}.{n}".encode() for n in range(4)))
    writer, rounds = plane.kv._store.writer, []
    transact = writer._transact

    def counted(batch):
        rounds.append(len(batch))
        return transact(batch)

    writer._transact = counted
    assert (await Cataloger(plane).catalog()).registered == 20
    assert sum(rounds) == 41  # a card and a copy of each, and how far it came
    assert len(rounds) <= 10, "what comes together is committed together"
