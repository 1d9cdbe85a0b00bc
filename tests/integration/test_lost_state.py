"""A run whose database, write-ahead log or mark is lost is noticed, and never taken for a new one."""

import json
import shutil
import subprocess
import sys
import tarfile
import time

import pytest
from loop_under_test import CONFIG, Loop
from test_earlier_folder import ARCHIVE, DEADLINE_S, FACTS

from ringrift.learning.facts.high_water import mark_path, read_mark

pytestmark = pytest.mark.timeout(400)
DATA_COMMANDS = (("data", "ls"), ("data", "replicas"))
DATABASE = ("coordinator.db", "coordinator.db-wal", "coordinator.db-shm")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed after it had written facts and its mark, the newest in the write-ahead log."""
    folder = tmp_path_factory.mktemp("killed")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    loop = Loop(folder, tiny=True)
    loop.start()
    end_s = time.monotonic() + DEADLINE_S
    while True:
        mark = read_mark(loop.data)
        if mark is not None and mark.configs[CONFIG].facts > FACTS:
            break
        assert time.monotonic() < end_s, loop.last_words()
        time.sleep(0.1)
    loop.kill_everything()
    return folder


@pytest.fixture
def folder(killed, tmp_path):
    shutil.copytree(killed / "data", tmp_path / "data", ignore=shutil.ignore_patterns("*.wake"))
    return tmp_path


def ringrift(folder, *arguments):
    loop = Loop(folder, tiny=True)
    command = [sys.executable, "-m", "ringrift.cli", *arguments, "--data", str(loop.data)]
    return subprocess.run(
        command, env=loop.environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def run(folder, *arguments):
    return ringrift(folder, "run", "--plain", "--no-open", "--for", "1s", *arguments)


def lose(folder, *names):
    for name in names:
        (folder / "data" / "coordination" / name).unlink(missing_ok=True)


def assert_refused(done, *words):
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in (*words, "ringrift data restore", "ringrift rebuild", "--begin-anew"):
        assert word in done.stderr


def test_a_lost_database_is_not_a_new_run(folder):
    lose(folder, *DATABASE)
    for command in (("status",), ("doctor", "--quick"), ("replay", CONFIG), *DATA_COMMANDS):
        done = ringrift(folder, *command)
        assert_refused(done, "the database is missing")
        assert done.stdout == "", "and nothing else is said before"
    assert_refused(run(folder), "the database is missing")
    mark_path(folder / "data").unlink()
    for command in DATA_COMMANDS:
        assert_refused(ringrift(folder, *command), "the database is missing, and", "files of a run are in")
    assert_refused(run(folder), "the database is missing, and", "files of a run are in")
    assert not (folder / "data" / "coordination" / DATABASE[0]).exists()


def test_whoever_wants_to_begin_anew_has_the_old_run_set_aside(folder):
    lose(folder, *DATABASE)
    before = sorted(path.name for path in (folder / "data" / "blobs").rglob("*") if path.is_file())
    done = run(folder, "--begin-anew")
    assert done.returncode == 0, done.stdout + done.stderr
    (aside,) = (folder / "data" / "set_aside").iterdir()
    assert sorted(path.name for path in (aside / "blobs").rglob("*") if path.is_file()) == before
    assert mark_path(aside).exists()
    assert run(folder).returncode == 0, "the new run goes on"


def test_an_older_database_in_the_place_of_the_newest_is_noticed(folder):
    lose(folder, *DATABASE)
    with tarfile.open(ARCHIVE) as archive:
        names = [f"data/coordination/{name}" for name in DATABASE[:2]]
        archive.extractall(folder, members=[archive.getmember(name) for name in names], filter="data")
    status = ringrift(folder, "status")
    assert "this is older than the run was" in status.stderr
    assert_refused(run(folder), f"{CONFIG} had", "and the database has fewer")


def test_a_lost_write_ahead_log_is_noticed(folder):
    lose(folder, *DATABASE[1:])
    status = ringrift(folder, "status")
    assert "this is older than the run was" in status.stderr
    done = run(folder)  # how much of the log was in the database already is chance
    assert "is older than the run was" in done.stderr or "and the database has fewer" in done.stderr
    assert "Traceback" not in done.stderr


def as_it_is(folder):
    """Returns how to lose what is done to the database from now on."""
    place = folder / "data" / "coordination"
    before = {name: (place / name).read_bytes() for name in DATABASE if (place / name).exists()}

    def lose_what_was_done():
        lose(folder, *DATABASE)
        for name, content in before.items():
            (place / name).write_bytes(content)

    return lose_what_was_done


@pytest.mark.parametrize("command", [("pause",), ("queue", "revive", "all")])
def test_what_was_asked_of_a_stopped_run_is_noticed_when_it_is_lost(folder, command):
    lose_what_was_done = as_it_is(folder)
    done = ringrift(folder, *command)
    assert done.returncode == 0, done.stderr
    lose_what_was_done()
    assert "this is older than the run was" in ringrift(folder, "status").stderr


def test_what_commands_did_on_a_stopped_run_is_noticed_when_it_is_lost(folder):
    lose_what_was_done = as_it_is(folder)
    digest = json.loads(ringrift(folder, "data", "ls", "--json").stdout)[0]["digest"]
    pinned = ringrift(folder, "data", "pin", digest)
    assert pinned.returncode == 0, pinned.stderr
    marked = read_mark(folder / "data")
    lose_what_was_done()
    assert "this is older than the run was" in ringrift(folder, "status").stderr
    ringrift(folder, "data", "ls")
    assert read_mark(folder / "data") == marked, "the mark that tells of the loss was overwritten"
    mark_path(folder / "data").unlink()
    assert ringrift(folder, "data", "ls").returncode == 0
    worker = json.loads(ringrift(folder, "workers", "--json").stdout)[0]["name"]
    for reason in ("first", "second"):  # the first writes the mark that was removed
        recalled = ringrift(folder, "recall", "--worker", worker, "--reason", reason, "--yes", "--json")
        assert recalled.returncode == 0, recalled.stderr
    lose_what_was_done()
    for command in (("replay", CONFIG), ("recall", "--worker", worker, "--reason", "again", "--yes")):
        assert_refused(ringrift(folder, *command), f"{CONFIG} had", "and the database has fewer")
    assert "the database has fewer" in ringrift(folder, "doctor", "--quick", "--json").stdout
    assert_refused(run(folder), f"{CONFIG} had", "and the database has fewer")


@pytest.mark.parametrize("content", [None, b"{}"])
def test_a_lost_or_damaged_mark_is_written_anew(folder, content):
    path = mark_path(folder / "data")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
        status = ringrift(folder, "status", "--json")
        assert "not what was written of how far the run had come" in json.loads(status.stdout)["damage"]
    done = run(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_mark(folder / "data").configs[CONFIG].facts > FACTS
    assert path.stat().st_mode & 0o777 == 0o600
