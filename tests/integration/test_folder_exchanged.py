"""A run whose data folder or database is exchanged under it stops, and harms nothing of what is there now."""

import asyncio
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from loop_under_test import Loop

from ringrift.cli.command import EXIT_CONTROL_LOST, EXIT_WRONG_INPUT
from ringrift.learning.facts.high_water import mark_path, read_mark

pytestmark = pytest.mark.timeout(400)
WITHIN_S = 120.0
LEASE_S = 3.0


@pytest.fixture
def loop(tmp_path):
    loop = Loop(tmp_path, tiny=True)
    loop.variables["RINGRIFT_CONTROL_LEASE"] = str(LEASE_S)
    yield loop
    loop.kill_everything()


async def until(true, what, loop):
    end_s = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < end_s, f"{what}\n{loop.last_words()}"
        await asyncio.sleep(0.05)


async def start_until_marked(loop):
    loop.start()
    await until(lambda: mark_path(loop.data).exists() and is_ready(loop), "it did not start", loop)


def is_ready(loop):
    try:
        url = json.loads((loop.data / "coordination" / "probes.json").read_bytes())["url"]
        with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
            return json.load(answer)["ready"]
    except (OSError, ValueError, urllib.error.URLError):
        return False


async def assert_stops_with_the_reason(loop, *words):
    code = await asyncio.to_thread(loop.process.wait, WITHIN_S)
    said = loop.log.read_text()
    assert code == EXIT_CONTROL_LOST, said
    for word in ("control.lost", *words):
        assert word in said
    assert "Traceback" not in said, said


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def run_for_a_moment(loop):
    command = [sys.executable, "-m", "ringrift.cli", "run", "--plain", "--no-open", "--for", "1s"]
    return subprocess.run(
        command, env=loop.environment(), cwd=loop.folder, capture_output=True, text=True, timeout=WITHIN_S
    )


async def test_a_run_whose_folder_was_moved_stops_and_the_next_one_there_keeps_its_own_mark(loop):
    await start_until_marked(loop)
    first, before = loop.process, read_mark(loop.data).identity
    loop.data.rename(loop.folder / "data.bak")
    await start_until_marked(loop)
    second, loop.process = loop.process, first
    await assert_stops_with_the_reason(loop, f"{loop.data} was")
    loop.process = second
    assert read_mark(loop.data).identity != before
    assert await loop.end() == 0
    assert read_mark(loop.folder / "data.bak").identity == before
    again = run_for_a_moment(loop)
    assert again.returncode == 0, again.stderr


async def test_nothing_is_written_by_path_into_a_folder_that_was_put_in_its_place(loop):
    await start_until_marked(loop)
    old = loop.folder / "data.old"
    loop.data.rename(old)
    loop.data.mkdir(mode=0o700)
    (loop.data / "models").mkdir()
    await assert_stops_with_the_reason(loop, f"{loop.data} was exchanged")
    await loop.all_gone()
    assert files_in(loop.data) == []
    shutil.rmtree(loop.data)
    old.rename(loop.data)
    again = run_for_a_moment(loop)
    assert again.returncode == 0, again.stderr


async def test_a_run_reaches_all_that_it_writes_through_the_folder_that_it_holds(loop):
    """Whatever goes by path could land in another folder: there is no moment in which that is harmless."""
    recorder = Path(__file__).parents[1] / "recorded_writes"
    log = loop.folder / "writes.log"
    loop.variables |= {"PYTHONPATH": str(recorder), "TEST_WRITES_LOG": str(log)}
    await start_until_marked(loop)
    assert await loop.end() == 0
    assert not log.exists(), log.read_text()


async def test_a_run_whose_database_was_exchanged_stops_and_is_not_ready(loop):
    await start_until_marked(loop)
    database = loop.data / "coordination" / "coordinator.db"
    copy = loop.folder / "copy.db"
    with sqlite3.connect(database) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    for name in ("-wal", "-shm"):
        database.with_name(database.name + name).unlink()
    copy.replace(database)
    await assert_stops_with_the_reason(loop, f"{database} was exchanged")
    assert not is_ready(loop)


async def test_a_holder_that_moves_keeps_the_folder_whatever_a_copied_lease_says(loop):
    """The database of a live run is copied elsewhere, where its lease runs out."""
    await start_until_marked(loop)
    database = loop.data / "coordination" / "coordinator.db"
    other = loop.folder / "elsewhere" / "coordinator.db"
    other.parent.mkdir(mode=0o700)
    with sqlite3.connect(database) as source, sqlite3.connect(other) as target:
        source.backup(target)
    await asyncio.sleep(LEASE_S)
    first = loop.process
    loop.variables["RINGRIFT_COORDINATOR_DB"] = str(other)
    end_s = time.monotonic() + WITHIN_S
    while "has the data folder" not in (refused := run_for_a_moment(loop)).stderr:
        assert "runs the control process" in refused.stderr, "until the copied lease runs out"
        assert time.monotonic() < end_s, refused.stderr
    assert refused.returncode == EXIT_WRONG_INPUT, refused.stderr
    assert first.poll() is None
    assert await loop.end(signal.SIGTERM) == 0
