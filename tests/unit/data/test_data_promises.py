"""Promises to keep files: written before they are given, kept by who gave them, judged by who asked."""

import asyncio
import hashlib
import shutil
import sqlite3
import threading

import pytest

from ringrift.data.config import DataNode
from ringrift.data.plane import ASK_S_MAX, NodeHolders
from ringrift.data.protection.deletion import HolderReply, judge_promises
from ringrift.data.protection.promise_store import (
    BEING_DELETED,
    DATABASE,
    KEEP_S_MAX,
    LOCK,
    FileLook,
    PromiseStore,
)
from ringrift.data.protection.promises import (
    FolderFiles,
    Holder,
    KeepAnswer,
    KeepRequest,
    KeptFile,
    ReleaseRequest,
)
from ringrift.data.transfer.http.wire import File
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.errors import ConfigError, Unavailable
from ringrift.testing.simulation import ManualRuntime, simulate

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


def machines(folder, *boots):
    """Machines on one folder: the record as each sees it, and their clocks, which began at other times."""
    found = []
    for number, boot in enumerate(boots):
        runtime = ManualRuntime(seed=number)
        runtime.boot_id = boot
        runtime.advance(5000.0 * (len(boots) - number))
        found.append((PromiseStore(folder, runtime), runtime))
    return found


def pass_time(seconds, *seen):
    for _, runtime in seen:
        runtime.advance(seconds)


def test_a_promise_ends_though_two_machines_look_in_turn_at_the_folder_they_share(tmp_path):
    (a, _), (b, _) = both = machines(tmp_path, "a", "b")
    a.promise(DIGEST, asker="x", promise="p", keep_s=900.0)
    for minute in range(15):
        assert a.begin(DIGEST, reason="gc"), minute
        assert b.begin(DIGEST, reason="gc"), minute
        pass_time(60.0, *both)
    assert b.begin(DIGEST, reason="gc") == ""
    b.end(DIGEST)
    # It is given once more: what was seen of the first one does not count for the second.
    a.promise(DIGEST, asker="x", promise="p", keep_s=900.0)
    assert "900 s more" in b.promised(DIGEST)
    pass_time(600.0, *both)
    a.promise(DIGEST, asker="x", promise="p", keep_s=900.0)
    pass_time(899.0, *both)
    assert a.promised(DIGEST)
    assert b.promised(DIGEST)
    a.close()
    b.close()


def test_a_machine_that_never_saw_a_promise_before_counts_all_of_it(tmp_path):
    """What passed by then on a clock that it cannot read does not count; a restart begins anew, each once."""
    (a, _), (b, _), (c, _) = seen = machines(tmp_path, "a", "b", "b restarted")
    a.promise(DIGEST, asker="x", promise="p", keep_s=900.0)
    a.close()
    pass_time(600.0, *seen)
    assert "900 s more" in b.promised(DIGEST)
    pass_time(600.0, *seen)
    assert "300 s more" in b.promised(DIGEST)
    b.close()
    assert "900 s more" in c.promised(DIGEST)
    pass_time(899.0, *seen)
    assert c.promised(DIGEST)
    pass_time(1.0, *seen)
    assert c.promised(DIGEST) == ""
    c.close()


def test_a_first_look_that_is_not_what_was_written_does_not_end_a_promise(tmp_path):
    (a, _), (b, runtime) = machines(tmp_path, "a", "b")
    a.promise(DIGEST, asker="x", promise="p", keep_s=900.0)
    assert b.promised(DIGEST)
    with sqlite3.connect(tmp_path / DATABASE) as db:
        db.execute("UPDATE sightings SET since_s = 1.0")
    db.close()
    runtime.advance(899.0)
    assert "900 s more" in b.promised(DIGEST)
    a.close()
    b.close()


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


def _schema_that_is_no_text(folder, _old):
    content = bytearray(
        (folder / DATABASE).read_bytes().replace(b"CREATE TABLE begun", b"CREATE TABL\xce begun")
    )
    for counter in (27, 43):  # of changes, and of changes of the schema: who has it open reads it again
        content[counter] ^= 0x80
    (folder / DATABASE).write_bytes(content)


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


REPLACED = [
    _garbage,
    _emptied,
    _schema_that_is_no_text,
    _without_rows,
    _deleted,
    _both_deleted,
    _older,
    _another_ones,
]


def nothing_goes_for_the_longest_time(store, runtime):
    assert "was damaged, lost or replaced" in store.begin(DIGEST, reason="gc")
    runtime.advance(KEEP_S_MAX - 1)
    assert store.begin(DIGEST, reason="gc")
    runtime.advance(2)
    assert store.begin(DIGEST, reason="gc") == ""


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
    nothing_goes_for_the_longest_time(store, runtime)
    store.close()
    store = PromiseStore(folder, runtime)
    assert store.begin(DIGEST, reason="gc") == "", "once"
    store.close()


def replaced_record(folder, runtime):
    """A folder of files whose record was lost."""
    (folder / DIGEST[:2]).mkdir()
    (folder / DIGEST[:2] / DIGEST).write_bytes(CONTENT)
    store = PromiseStore(folder, runtime)
    assert "was damaged, lost or replaced" in store.begin(DIGEST, reason="gc")
    store.close()


def test_after_a_lost_record_and_a_restart_of_the_machine_files_are_deleted_again(tmp_path, runtime):
    replaced_record(tmp_path, runtime)
    (store, later), (last, _) = machines(tmp_path, "another", "a third")
    nothing_goes_for_the_longest_time(store, later)
    store.close()
    assert last.begin(DIGEST, reason="gc") == "", "it is over for good"
    last.close()


def test_after_a_lost_record_machines_that_share_the_folder_wait_once_together(tmp_path, runtime):
    replaced_record(tmp_path, runtime)
    both = machines(tmp_path, "a", "b")
    for minute in range(60):
        for store, _ in both:
            assert store.begin(DIGEST, reason="gc"), minute
        pass_time(60.0, *both)
    for store, _ in both:
        assert store.begin(DIGEST, reason="gc") == ""
        store.close()


@pytest.mark.parametrize("change", ["quiet_until_s = 1e300", "quiet_until_s = NULL", "quiet_until_s = 'x'"])
def test_a_wait_without_an_end_is_as_long_as_any(change, tmp_path, runtime):
    replaced_record(tmp_path, runtime)
    with sqlite3.connect(tmp_path / DATABASE) as db:
        db.execute(f"UPDATE store SET {change}")
    db.close()
    store = PromiseStore(tmp_path, runtime)
    assert store.begin(DIGEST, reason="gc")
    runtime.advance(KEEP_S_MAX + 1)
    assert store.begin(DIGEST, reason="gc") == ""
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


def test_threads_that_open_a_record_of_an_earlier_version_at_once_all_get_it(tmp_path, runtime):
    PromiseStore(tmp_path / "old", runtime).close()
    with sqlite3.connect(tmp_path / "old" / DATABASE) as db:
        for table in ("promises", "reads"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN hash")
    db.close()
    wrong = []

    def open_it(folder, together):
        together.wait()
        try:
            PromiseStore(folder, runtime).begun()
        except Exception as error:  # whatever it is
            wrong.append(error)

    for number in range(20):
        folder, together = tmp_path / str(number), threading.Barrier(3)
        shutil.copytree(tmp_path / "old", folder)
        threads = [threading.Thread(target=open_it, args=(folder, together)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_later_version_may_add_columns_and_what_sqlite_refuses_is_told_in_our_words(store, tmp_path):
    store.note_read(DIGEST, FileLook(5, 7), sound=True)
    with sqlite3.connect(tmp_path / "blobs" / DATABASE) as db:
        for table in ("promises", "reads", "begun"):
            db.execute(f"ALTER TABLE {table} ADD COLUMN later TEXT")
    assert store.promise(DIGEST, asker="a", promise="p", keep_s=60.0) == ""
    store.note_read(DIGEST, FileLook(5, 7), sound=True)
    assert store.begin("e" * 64, reason="gc") == ""
    with db:
        db.execute("ALTER TABLE promises RENAME COLUMN asker TO who")
    db.close()
    with pytest.raises(Unavailable, match="asker"):
        store.promise(DIGEST, asker="a", promise="q", keep_s=60.0)


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


def test_a_pin_that_is_set_while_the_holder_reads_is_told(holder):
    file = put(holder)

    class SlowFiles(FolderFiles):
        def hash(self, digest):
            holder.pins[digest] = "for a paper"
            return super().hash(digest)

    holder._files = SlowFiles(holder.folder)
    assert holder.keep(asked(file)).files[0].pinned == "for a paper"


class HungWay:
    """A node whose address takes the call and never answers."""

    def __init__(self, answers=None):
        self._answers, self.asked = answers, []

    def reaches(self, node):
        return True

    async def keep(self, node, request, *, timeout_s):
        return await self._say("keep")

    async def release(self, node, request, *, timeout_s):
        return await self._say("release")

    async def _say(self, verb):
        self.asked.append(verb)
        if self._answers is None:
            await asyncio.Event().wait()
        return self._answers


@pytest.mark.parametrize("size", [5, 1 << 40])
def test_a_node_that_hangs_is_waited_for_once_not_once_for_each_way(size):
    async def main():
        ways = [HungWay(), HungWay()]
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match=r"no answer in .*; no answer in"):
            await NodeHolders(ways).keep(DataNode(name="b"), asked(File(DIGEST, size), keep_s=900.0))
        assert asyncio.get_running_loop().time() - begun_s <= ASK_S_MAX
        answer = KeepAnswer(node="b", store="b", files=(KeptFile(digest=DIGEST),))
        ways = [HungWay(), HungWay(answer)]
        assert await NodeHolders(ways).keep(DataNode(name="b"), asked(File(DIGEST, size))) == answer

    simulate(main())
    assert ASK_S_MAX < 900.0 / 2


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
