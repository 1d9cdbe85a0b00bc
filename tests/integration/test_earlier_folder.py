"""A data folder that an earlier release wrote, without checksums, hashes of facts and a high-water mark.

`tests/data/earlier_run_folder.tar.xz` is the folder of a run of tiny jobs that was stopped after two
promotions: 79 facts, most of them still in the write-ahead log.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from loop_under_test import CONFIG, Loop, until

from ringrift.engine.opening import open_engine
from ringrift.learning.facts.facts import JobEnded, Promoted
from ringrift.learning.facts.ledger import read_facts
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

ARCHIVE = Path(__file__).parents[1] / "data" / "earlier_run_folder.tar.xz"
FACTS, PROMOTIONS = 79, 2
DEADLINE_S = 120.0


@pytest.fixture
def loop(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    loop = Loop(tmp_path, tiny=True)
    yield loop
    loop.kill_everything()


def ringrift(loop, *arguments):
    command = [sys.executable, "-m", "ringrift.cli", *arguments]
    return subprocess.run(
        command, env=loop.environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


async def facts_of(loop):
    settings = load_settings({"RINGRIFT_DATA_DIR": str(loop.data)}).settings
    engine = await open_engine(settings, SystemRuntime())
    try:
        return await read_facts(engine.kv, CONFIG)
    finally:
        await engine.close()


@pytest.mark.timeout(400)
async def test_a_folder_of_an_earlier_release_opens_reports_and_goes_on_learning(loop):
    status = ringrift(loop, "status", "--json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["configs"][CONFIG]["promotions"] == PROMOTIONS
    before = await facts_of(loop)
    assert len(before) == FACTS
    assert sum(isinstance(fact, Promoted) for fact in before) == PROMOTIONS

    loop.start()

    async def learned():
        later = (await facts_of(loop))[FACTS:]
        return any(isinstance(fact, JobEnded) and fact.report is not None for fact in later)

    await until(learned, "a job that ends well", loop)
    assert await loop.end() == 0
    assert (await facts_of(loop))[:FACTS] == before
    for command in (("replay", CONFIG), ("report", "--out", str(loop.folder / "report.html"))):
        done = ringrift(loop, *command)
        assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(ringrift(loop, "doctor", "--quick", "--json").stdout)["findings"]
    assert {each["check"] for each in findings} <= {"search_budget"}, "tiny jobs search little, by design"
