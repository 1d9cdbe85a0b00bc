"""Promises to keep files: written before they are given, kept by who gave them, judged by who asked."""

import hashlib
import shutil
import sqlite3

import pytest

from ringrift.data.deletion import HolderReply, judge_promises
from ringrift.data.nodes import DataNode
from ringrift.data.promise_store import BEING_DELETED, DATABASE, KEEP_S_MAX, LOCK, FileLook, PromiseStore
from ringrift.data.promises import FolderFiles, Holder, KeepAnswer, KeepRequest, KeptFile, ReleaseRequest
from ringrift.data.transfer.messages import File
from ringrift.engine.sqlite.blob_folder import BlobFolder
from ringrift.errors import ConfigError, Unavailable
from ringrift.testing.simulation import ManualRuntime

CONTENT = b"games"
DIGEST = "cd7ac4c61fd8b9c9a63f70c5e4ee4d1ddf7d7bc4e9d0d0a7dbd0c6d1ef3ce7ab"


@pytest.fixture
def runtime():
    made = ManualRuntime()
    made.advance(1000.0)
    return made


@pytest.fixture
def store(tmp_path, runtime):
    made = PromiseStore(tmp_path / "blobs", runtime)
    yield made
    made.close()


@pytest.fixture
def holder(store, tmp_path, runtime):
    folder = BlobFolder(tmp_path / "blobs", runtime.new_id)
    pins = {}
    made = Holder(
        FolderFiles(folder), store, node=DataNode(name="b"), runtime=runtime, pinned=lambda d: pins.get(d, "")
    )
    made.pins, made.folder = pins, folder
    return made


def put(holder, content=CONTENT):
    path = holder.folder.write_private("f" * 64, content)
    digest = hashlib.sha256(content).hexdigest()
    holder.folder.publish({digest: path})
    return File(digest, len(content))


def asked(file, keep_s=60.0, promise="p"):
    return KeepRequest(asker="a", promise=promise, keep_s=keep_s, files=(file,))


def test_a_promise_is_on_the_disk_and_holds_other_processes_to_it(store, tmp_path, runtime):
    assert store.promise(DIGEST, asker="a", promise="p", keep_s=60.0) == ""
    other = PromiseStore(tmp_path / "blobs", runtime)
    assert "promised a to keep it for 60 s more" in other.begin(DIGEST, reason="gc")
    runtime.advance(59.0)
    runtime.wall_offset_s += 86_400.0  # a clock that is set ends no promise
    assert other.begin(DIGEST, reason="gc")
    runtime.advance(2.0)
    assert other.begin(DIGEST, reason="gc") == ""
    assert store.promise(DIGEST, asker="a", promise="q", keep_s=60.0) == BEING_DELETED
    other.end(DIGEST)
    assert store.promise(DIGEST, asker="a", promise="q", keep_s=60.0) == ""
    assert other.id == store.id
    other.close()


def test_after_a_restart_of_the_machine_a_promise_runs_anew(tmp_path, runtime):
    store = PromiseStore(tmp_path, runtime)
    store.promise(DIGEST, asker="a", promise="p", keep_s=60.0)
    store.close()
    later = ManualRuntime()
    later.boot_id = "another"
    later.advance(5000.0)
    store = PromiseStore(tmp_path, later)
    assert "60 s more" in store.begin(DIGEST, reason="gc")
    later.advance(61.0)
    assert store.begin(DIGEST, reason="gc") == ""
    store.close()


def test_only_the_named_promise_is_released(store):
    for name in ("p", "q"):
        store.promise(DIGEST, asker="a", promise=name, keep_s=60.0)
    assert store.release("p") == 1
    assert store.begin(DIGEST, reason="gc")
    assert store.release("q") == 1
    assert store.begin(DIGEST, reason="gc") == ""


def _garbage(folder, _old):
    (folder / DATABASE).write_bytes(b"no database at all" * 1000)


def _emptied(folder, _old):
    (folder / DATABASE).write_bytes(b"")


def _without_rows(folder, _old):
    db = sqlite3.connect(folder / DATABASE)
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        db.execute(f"DELETE FROM {table}")
    db.commit()
    db.close()


def _deleted(folder, _old):
    (folder / DATABASE).unlink()


def _both_deleted(folder, _old):
    (folder / DATABASE).unlink()
    (folder / LOCK).unlink()


def _older(folder, old):
    shutil.copyfile(old, folder / DATABASE)


def _another_ones(folder, old):
    runtime = ManualRuntime()
    runtime.new_id()  # so that the record has another name
    other = PromiseStore(old.parent / "another", runtime)
    for number in range(100):
        other.promise(DIGEST, asker="a", promise=str(number), keep_s=60.0)
    other.close()
    shutil.copyfile(old.parent / "another" / DATABASE, folder / DATABASE)


REPLACED = [_garbage, _emptied, _without_rows, _deleted, _both_deleted, _older, _another_ones]


@pytest.mark.parametrize("harm", REPLACED)
@pytest.mark.parametrize("stays_open", [False, True])
def test_a_promise_that_was_lost_with_its_record_holds_for_the_longest_time(
    harm, stays_open, tmp_path, runtime
):
    folder, old = tmp_path / "blobs", tmp_path / "old.db"
    store = PromiseStore(folder, runtime)
    store.begin("f" * 64, reason="gc")
    shutil.copyfile(folder / DATABASE, old)
    (folder / DIGEST[:2]).mkdir()
    (folder / DIGEST[:2] / DIGEST).write_bytes(CONTENT)
    store.promise(DIGEST, asker="a", promise="p", keep_s=60.0)
    if not stays_open:
        store.close()
    harm(folder, old)
    if not stays_open:
        store = PromiseStore(folder, runtime)
    assert "was damaged, lost or replaced" in store.begin(DIGEST, reason="gc")
    runtime.advance(KEEP_S_MAX - 1)
    assert store.begin(DIGEST, reason="gc")
    runtime.advance(2)
    assert store.begin(DIGEST, reason="gc") == ""
    store.close()
    store = PromiseStore(folder, runtime)
    assert store.begin(DIGEST, reason="gc") == "", "once"
    store.close()


@pytest.mark.parametrize("change", ["digest = 'e' || substr(digest, 2)", "keep_s = 1.0", "since_s = 1.0"])
def test_a_promise_that_is_not_what_was_written_holds_for_the_longest_time(change, tmp_path, runtime):
    store = PromiseStore(tmp_path, runtime)
    store.promise(DIGEST, asker="a", promise="p", keep_s=60.0)
    store.close()
    with sqlite3.connect(tmp_path / DATABASE) as db:
        db.execute(f"UPDATE promises SET {change}")
    db.close()
    runtime.advance(30)
    store = PromiseStore(tmp_path, runtime)
    assert "was damaged, lost or replaced" in store.begin(DIGEST, reason="gc")
    runtime.advance(KEEP_S_MAX + 1)
    assert store.begin(DIGEST, reason="gc") == ""
    store.close()


def test_a_read_that_is_not_what_was_noted_is_not_known(store, tmp_path):
    store.note_read(DIGEST, FileLook(5, 7), sound=False)
    assert not store.last_reads([DIGEST])[DIGEST].sound
    with sqlite3.connect(tmp_path / "blobs" / DATABASE) as db:
        db.execute("UPDATE reads SET sound = 1")
    db.close()
    assert store.last_reads([DIGEST]) == {}


def test_promises_and_reads_of_an_earlier_version_have_no_hash_and_hold(tmp_path, runtime):
    store = PromiseStore(tmp_path, runtime)
    store.promise(DIGEST, asker="a", promise="p", keep_s=60.0)
    store.note_read(DIGEST, FileLook(5, 7), sound=True)
    store.close()
    with sqlite3.connect(tmp_path / DATABASE) as db:
        for table in ("promises", "reads"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN hash")
    db.close()
    store = PromiseStore(tmp_path, runtime)
    assert "promised a to keep it" in store.begin(DIGEST, reason="gc")
    assert store.last_reads([DIGEST])[DIGEST].sound
    store.close()


def test_a_damaged_record_is_set_aside(tmp_path, runtime):
    _garbage(tmp_path, None)
    store = PromiseStore(tmp_path, runtime)
    assert store.begun() == {}
    assert list(tmp_path.glob("*.damaged-*"))
    store.close()


def test_a_new_folder_deletes_at_once_and_files_that_came_before_the_record_wait(tmp_path, runtime):
    for name, first in (("new", False), ("files first", True)):
        (tmp_path / name / "cd").mkdir(parents=True)
        if first:
            (tmp_path / name / "cd" / DIGEST).write_bytes(CONTENT)
        store = PromiseStore(tmp_path / name, runtime)
        if not first:
            (tmp_path / name / "cd" / DIGEST).write_bytes(CONTENT)
        assert bool(store.begin(DIGEST, reason="gc")) == first
        store.close()


def test_a_record_of_an_older_version_goes_on(tmp_path, runtime):
    """It has an id, and neither a count nor a mark."""
    (tmp_path / "cd").mkdir()
    (tmp_path / "cd" / DIGEST).write_bytes(CONTENT)
    db = sqlite3.connect(tmp_path / DATABASE)
    db.execute("CREATE TABLE store (id TEXT NOT NULL, quiet_boot TEXT, quiet_until_s REAL)")
    db.execute("INSERT INTO store (id) VALUES ('x')")
    db.commit()
    db.close()
    (tmp_path / LOCK).touch()
    store = PromiseStore(tmp_path, runtime)
    assert store.begin(DIGEST, reason="gc") == ""
    assert store.id == "x"
    store.close()


@pytest.mark.parametrize("count", ["8" + "0" * 19, "9" * 200, "-1"])
def test_a_mark_with_a_count_that_nobody_reached_is_none(tmp_path, runtime, count):
    (tmp_path / "cd").mkdir()
    store = PromiseStore(tmp_path, runtime)
    assert store.promise(DIGEST, asker="a", promise="p", keep_s=60.0) == ""
    (tmp_path / "cd" / DIGEST).write_bytes(CONTENT)
    (tmp_path / LOCK).write_text(f"{store.id} {count}\n")
    assert "a" in store.promised(DIGEST)
    assert (tmp_path / LOCK).read_text() == f"{store.id} {1:020d}\n"
    store.close()


def test_the_record_is_for_its_owner_alone(tmp_path, runtime):
    (tmp_path / DATABASE).touch(0o644)
    for folder in (tmp_path, tmp_path / "new"):
        store = PromiseStore(folder, runtime)
        store.promise(DIGEST, asker="a", promise="p", keep_s=60.0)
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.glob("promises*")}
        assert modes == dict.fromkeys((DATABASE, f"{DATABASE}-journal", LOCK), 0o600)
        store.close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_was_emptied_has_another_record(store, tmp_path):
    """A process that still has the old one open would promise what it cannot hold anybody to."""
    first = store.id
    store.begin(DIGEST, reason="gc")
    shutil.rmtree(tmp_path / "blobs")
    assert store.begun() == {}
    assert store.id != first


def test_a_holder_looks_reads_promises_and_then_answers(holder, store, runtime):
    file = put(holder)
    (kept,) = holder.keep(asked(file)).files
    assert (kept.refusal, kept.size, kept.read_age_s) == ("", 5, 0.0)
    assert store.promised(file.digest)
    runtime.advance(100.0)
    (again,) = holder.keep(asked(file, promise="q")).files
    assert again.read_age_s == 100.0, "not read again within a day"
    holder.release(ReleaseRequest(promise="q"))
    runtime.advance(2 * 86_400.0)
    assert holder.keep(asked(file)).files[0].read_age_s == 0.0


def test_a_holder_does_not_promise_what_it_does_not_have_whole(holder, store):
    file = put(holder)
    place = holder.folder.place(file.digest)
    place.chmod(0o600)
    place.write_bytes(b"gamEs")
    (damaged,) = holder.keep(asked(file)).files
    assert damaged.damaged
    assert not store.promised(file.digest)
    place.write_bytes(b"game")
    assert "4 bytes instead of 5" in holder.keep(asked(file)).files[0].refusal
    place.unlink()
    assert holder.keep(asked(file)).files[0].missing
    assert holder.keep(asked(file, keep_s=0.0)).files[0].missing


def test_a_pin_travels_with_the_answer_and_unreadable_pins_refuse(holder):
    file = put(holder)
    holder.pins[file.digest] = "for a paper"
    reply = HolderReply("b", holder.keep(asked(file)))
    verdict = judge_promises([reply, answered("c")], 1, own_store="a")
    assert (verdict.allowed, verdict.reason) == (False, "it is pinned on b: for a paper")

    def unreadable(_digest):
        raise Unavailable("locked")

    holder._pinned = unreadable
    assert "it cannot look: locked" in holder.keep(asked(file)).files[0].refusal


@pytest.mark.parametrize("wrong", [{"keep_s": KEEP_S_MAX + 1}, {"keep_s": float("nan")}, {"keep_s": -1.0}])
def test_requests_out_of_bounds_are_refused(wrong):
    with pytest.raises(ConfigError):
        KeepRequest(**{"asker": "a", "promise": "p", "files": ()} | wrong)
    with pytest.raises(ConfigError):
        KeepRequest(asker="", files=())


def answered(node, *, store="", counts=True, **file):
    files = (KeptFile(digest=DIGEST, size=5, **file),)
    return HolderReply(node, KeepAnswer(node=node, store=store or node, counts=counts, files=files))


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (HolderReply("c", None, "no route"), "c does not answer: no route"),
        (answered("c", refusal="it does not have it"), "c: it does not have it"),
        (answered("c", counts=False), "c: the node may vanish"),
        (answered("c", store="a"), "c has the same folder as this node"),
        (answered("c", store="b"), "c has the same folder as b"),
    ],
)
def test_whoever_does_not_keep_a_copy_of_its_own_does_not_count(reply, why):
    verdict = judge_promises([answered("b"), reply], 2, own_store="a")
    assert not verdict.allowed
    assert verdict.reason.startswith("1 nodes keep it, 2 must")
    assert why in verdict.reason
    assert judge_promises([answered("b"), reply, answered("d")], 2, own_store="a").allowed
