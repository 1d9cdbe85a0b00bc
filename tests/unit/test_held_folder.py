"""What a process writes into the folder that it holds lands there or nowhere, wherever its path leads."""

import fcntl
import os
import subprocess
import sys
from hashlib import sha256
from io import BytesIO
from types import SimpleNamespace

import pytest

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.curriculum_integration import export_curriculum_weights
from ringrift.coordination.master_loop_guard import MasterLoopGuard, read_master_loop
from ringrift.coordination.safeguards import EmergencyStop
from ringrift.daemons.restarts import JsonLedger, RestartRecord
from ringrift.data.protection.promise_store import DATABASE, PromiseStore
from ringrift.engine.opening import memory_engine, open_engine
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.errors import AlreadyExists, Unavailable
from ringrift.files import (
    HeldPath,
    hold_folder,
    link_file,
    make_folders,
    make_private_folder,
    open_file,
    remove_file,
    rename_file,
    replace_file,
    secret_in,
    write_file,
)
from ringrift.health.run_status import Address, write_address
from ringrift.learning.facts.high_water import mark_path, read_mark
from ringrift.learning.facts.store_check import MarkWriter
from ringrift.runtime import SystemRuntime
from ringrift.work.job.folder import JobFolders, JobRecord
from ringrift.work.limits import EmergencyPlaces
from ringrift.work.worker.main import WRONG_INPUT

KILLED_WRITER = """
import os, sys
from pathlib import Path
from ringrift import files
files.rename_file = lambda *_: os.kill(os.getpid(), 9)
files.replace_file(Path(sys.argv[1]), b"half")
"""


def exchange(folder):
    """As `mv data data.old; mkdir data`; returns the one that was moved away."""
    old = folder.with_name(f"{folder.name}.old")
    folder.rename(old)
    folder.mkdir(mode=0o700)
    return old


def names_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def data():
    return get_settings().data_dir


@pytest.fixture
def held(data):
    with MasterLoopGuard():
        yield data


def test_whatever_is_done_in_a_held_folder_is_done_there_after_it_was_exchanged(held):
    old = exchange(held)
    make_folders(held / "a" / "b")
    make_private_folder(held / "private" / "deep")
    os.close(open_file(held / "a" / "opened", os.O_WRONLY | os.O_CREAT))
    link_file(held / "a" / "opened", held / "linked")
    rename_file(held / "linked", held / "renamed")
    replace_file(held / "replaced", b"content")
    remove_file(held / "a" / "opened")
    assert names_under(held) == []
    found = names_under(old)
    assert {"a", "a/b", "private/deep", "renamed", "replaced"} <= set(found)
    assert "a/opened" not in found


def test_a_folder_that_was_removed_gets_nothing_and_none_is_made_in_its_place(held):
    for path in sorted(held.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    held.rmdir()
    for write in (
        lambda: replace_file(held / "mark", b"x"),
        lambda: make_folders(held / "deep"),
        lambda: make_private_folder(held / "deep"),
    ):
        with pytest.raises(FileNotFoundError):
            write()
    assert not held.exists()


def test_what_lies_elsewhere_and_what_is_not_held_any_more_goes_by_path(data, tmp_path):
    with MasterLoopGuard():
        replace_file(tmp_path / "elsewhere", b"x")
        assert (tmp_path / "elsewhere").read_bytes() == b"x"
    exchange(data)
    replace_file(data / "mark", b"y")
    assert (data / "mark").read_bytes() == b"y"


def test_a_folder_is_held_under_its_real_name_and_under_that_of_a_link_to_it(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    descriptor = os.open(link, os.O_RDONLY | os.O_DIRECTORY)
    held = hold_folder(link, descriptor)
    os.close(descriptor)
    real.rename(tmp_path / "moved")
    real.mkdir()
    replace_file(link / "by_link", b"")
    replace_file(real / "by_name", b"")
    assert names_under(real) == []
    assert names_under(tmp_path / "moved") == ["by_link", "by_name"]
    held.let_go()


async def test_a_mark_whose_folder_is_exchanged_after_the_check_and_before_the_write_stays_with_its_run(held):
    engine = await open_engine(get_settings(), SystemRuntime())
    keeper = MarkWriter(engine.kv, SystemRuntime(), held)
    await keeper.keep({}, always=True)
    before = read_mark(held)
    moved = []

    class ExchangedByTheWrite:
        """The last that is done before the mark is written is to store its revision."""

        def __getattr__(self, name):
            return getattr(engine.kv, name)

        async def put(self, key, value, **more):
            revision = await engine.kv.put(key, value, **more)
            moved.append(exchange(held))
            return revision

    keeper._kv = ExchangedByTheWrite()
    await keeper.keep({}, always=True)
    assert not mark_path(held).exists()
    assert read_mark(moved[0]).revision > before.revision
    await engine.close()


async def test_the_small_files_of_a_run_do_not_go_into_another_folder(held):
    coordination, engine = get_settings().coordination_dir, memory_engine(SystemRuntime())

    async def kv():
        return engine.kv

    ledger, guard = JsonLedger(coordination / "daemon_restarts.json"), MasterLoopGuard()
    old = exchange(held)
    await ledger.save({"one": RestartRecord(in_a_row=1)}, now_s=1.0)
    write_address(coordination, Address.of_this_process("http://127.0.0.1:1"))
    export_curriculum_weights({"a": 1.0})
    secret_in(held / "http_token")
    guard.show()
    await EmergencyStop(EmergencyPlaces(held, kv)).turn_on("a test")
    assert names_under(held) == []
    small = {"curriculum_weights.json", "http_token", "EMERGENCY_STOP"}
    small |= {f"coordination/{name}" for name in ("daemon_restarts.json", "probes.json", "master_loop.pid")}
    assert small <= set(names_under(old))
    await engine.close()


def test_promises_are_not_written_into_the_record_of_another_run(held):
    """That one has a record of promises too, which SQLite opens by path."""
    promises = PromiseStore(held / "blobs", SystemRuntime())
    theirs = PromiseStore(held.with_name("theirs"), SystemRuntime())
    theirs.close()
    exchange(held)
    (held / "blobs").mkdir()
    record = held.with_name("theirs") / DATABASE
    before = record.read_bytes()
    record.rename(held / "blobs" / DATABASE)
    with pytest.raises(Unavailable):
        promises.promise("0" * 64, asker="other", promise="one", keep_s=60.0)
    assert names_under(held) == ["blobs", f"blobs/{DATABASE}"]
    assert (held / "blobs" / DATABASE).read_bytes() == before
    promises.close()


def test_a_worker_does_not_begin_in_a_folder_that_was_put_in_the_place_of_its_own(data):
    identity = HeldPath.of(data).identity
    exchange(data)
    command = [sys.executable, "-m", "ringrift.work.worker.main", "--name", "w", "--folder", identity]
    worker = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert worker.returncode == WRONG_INPUT
    assert "was exchanged for another one" in worker.stderr
    assert names_under(data) == []


async def test_a_worker_writes_nothing_of_its_jobs_into_another_folder(held):
    folders = JobFolders(held / "jobs")
    kept = folders.of("kept")
    kept.prepare()
    old = exchange(held)
    fresh = folders.of("fresh")
    fresh.prepare()
    fresh.write_record(JobRecord(item_id="fresh", kind="train", config="c"))
    fresh.copy_input("a/b", BytesIO(b"content"))
    kept.remove()
    assert names_under(held) == []
    assert (old / "jobs" / "fresh" / "inputs" / "a" / "b").read_bytes() == b"content"
    assert not (old / "jobs" / "kept").exists()


async def test_a_blob_of_another_run_is_neither_written_nor_deleted(held):
    blobs = BlobFolder(held / "blobs", SystemRuntime().new_id)
    content = b"a game"
    digest = sha256(content).hexdigest()
    blobs.publish({digest: blobs.write_private(digest, content)})
    old = exchange(held)
    theirs = blobs.place(digest)
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(content)
    assert remove_file(blobs.place(digest))
    blobs.publish({digest: blobs.write_private(digest, content)})
    assert names_under(held) == ["blobs", f"blobs/{digest[:2]}", f"blobs/{digest[:2]}/{digest}"]
    assert (old / theirs.relative_to(held)).exists()


def test_a_guard_that_is_released_twice_keeps_what_is_under_way_out_of_the_other_folder(data):
    guard = MasterLoopGuard()
    guard.acquire()
    old = exchange(data)
    guard.release()
    guard.release()
    write_file(data / "late", b"of the old run")
    assert names_under(data) == []
    assert "late" in names_under(old)


@pytest.mark.parametrize("made", [True, False])
def test_a_later_run_in_the_same_process_works_in_the_folder_that_is_there_now(data, made):
    with MasterLoopGuard():
        old = exchange(data)
        if not made:
            data.rmdir()
    before = names_under(old)
    with MasterLoopGuard() as guard:
        write_file(data / "while", b"")
        assert guard.exchanged() == ""
    write_file(data / "after", b"")
    assert {"while", "after"} <= set(names_under(data))
    assert names_under(old) == before


def test_a_guard_that_is_refused_holds_nothing(data):
    with MasterLoopGuard() as first:
        opened = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(AlreadyExists), MasterLoopGuard():
                raise AssertionError
        assert len(os.listdir("/proc/self/fd")) == opened
        assert read_master_loop(first.path).pid == os.getpid()
    other = exchange(data)
    write_file(data / "later", b"")
    assert (data / "later").exists()
    assert not (other / "later").exists()


def test_what_is_no_folder_is_not_taken_for_one(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            make_folders(tmp_path / name)


def test_the_next_draft_of_a_writer_is_not_taken_for_the_last_one(tmp_path, monkeypatch):
    """Another process opens a draft; the writer finishes it and begins the next; then the other looks on."""
    path = tmp_path / "high_water.json"
    draft = tmp_path / f".high_water.json.{os.getpid()}-1"
    draft.write_bytes(b"first")

    def lock(descriptor, how):
        if how & fcntl.LOCK_NB:
            draft.rename(tmp_path / "finished")
            draft.write_bytes(b"second")
        fcntl.flock(descriptor, how)

    with monkeypatch.context() as patched:
        patched.setattr("ringrift.files.fcntl", SimpleNamespace(**{**vars(fcntl), "flock": lock}))
        replace_file(path, b"of another writer")
    assert draft.read_bytes() == b"second"


def test_the_draft_of_a_killed_writer_is_removed_by_the_next_one(tmp_path):
    path = tmp_path / "high_water.json"
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], timeout=60)
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".high_water.json.")
    replace_file(path, b"whole")
    assert [each.name for each in tmp_path.iterdir()] == ["high_water.json"]


def test_the_draft_of_a_living_writer_and_other_files_stay(tmp_path, monkeypatch):
    path, other = tmp_path / "high_water.json", tmp_path / ".high_water.json.note"
    other.write_bytes(b"not ours")
    seen = []

    def rename(draft, target):
        if not seen:
            seen.append(draft)
            monkeypatch.setattr(os, "getpid", lambda: 1)  # another process comes in between
            replace_file(path, b"other")
            assert draft.exists()
        rename_file(draft, target)

    monkeypatch.setattr("ringrift.files.rename_file", rename)
    replace_file(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == [".high_water.json.note", "high_water.json"]
