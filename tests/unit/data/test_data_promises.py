"""Promises to keep files: written before they are given, kept by who gave them, judged by who asked."""

import hashlib
import shutil

import pytest

from ringrift.data.deletion import HolderReply, judge_promises
from ringrift.data.nodes import DataNode
from ringrift.data.promises import (
    BEING_DELETED,
    DATABASE,
    KEEP_S_MAX,
    FolderFiles,
    Holder,
    KeepAnswer,
    KeepRequest,
    KeptFile,
    PromiseStore,
    ReleaseRequest,
)
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


def test_a_damaged_record_is_set_aside_and_nothing_is_deleted_for_the_longest_promise(tmp_path, runtime):
    store = PromiseStore(tmp_path, runtime)
    store.promise(DIGEST, asker="a", promise="p", keep_s=60.0)
    store.close()
    (tmp_path / DATABASE).write_bytes(b"no database at all" * 1000)
    store = PromiseStore(tmp_path, runtime)
    assert "was damaged" in store.begin(DIGEST, reason="gc")
    assert list(tmp_path.glob("*.damaged-*"))
    runtime.advance(KEEP_S_MAX + 1)
    assert store.begin(DIGEST, reason="gc") == ""
    store.close()


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
