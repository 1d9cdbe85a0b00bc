"""Taking files in: what is wrong never gets a name, what broke off is continued, what is here is not sent."""

import hashlib
import os
import random
import resource
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.data.config import DataNode
from ringrift.data.protection.promises import open_holder
from ringrift.data.transfer.chunks import (
    Buffers,
    ChunkedFile,
    ChunkIndex,
    ChunksLacking,
    chunk_count,
    hash_of,
)
from ringrift.data.transfer.contract import CHUNK_BYTES, Moved
from ringrift.data.transfer.http.server import Answers
from ringrift.data.transfer.http.wire import File, Files, decode, encode
from ringrift.data.transfer.receiving import Intake, disk_usage
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.errors import ConfigError, DigestMismatch, StorageFull, StorageReadOnly, Unavailable
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings


def intake_at(folder, **options):
    return Intake(
        BlobFolder(folder, SystemRuntime().new_id),
        ChunkIndex(folder / ".chunks" / "index.db"),
        node="here",
        now_s=lambda: 1000.0,
        **{"reserve_bytes": 0, **options},
    )


@pytest.fixture
def intake(tmp_path):
    opened = intake_at(tmp_path / "blobs")
    yield opened
    opened.close()
    opened.index.close()


def content(size, seed=0):
    return random.Random(seed).randbytes(size)


def chunks_of(whole):
    return [whole[at : at + CHUNK_BYTES] for at in range(0, len(whole), CHUNK_BYTES)]


def digest(whole):
    return hashlib.sha256(whole).hexdigest()


def send(intake, whole, order=None):
    """Receive *whole* by whatever chunks are missing; return the receipt and the positions that were sent."""
    pieces = chunks_of(whole)
    incoming = intake.incoming(digest(whole), len(whole))
    missing = incoming.missing(0, [hash_of(piece) for piece in pieces])
    for position in order(missing) if order else missing:
        incoming.write(position, hash_of(pieces[position]), memoryview(pieces[position]))
    return intake.seal(incoming, "test"), missing


def stored(intake, whole):
    return intake.folder.place(digest(whole))


THREE = content(2 * CHUNK_BYTES + 12_345)


def test_a_file_arrives_whole_with_a_receipt(intake):
    receipt, missing = send(intake, THREE)
    assert missing == [0, 1, 2]
    assert stored(intake, THREE).read_bytes() == THREE
    assert (receipt.digest, receipt.node, receipt.size, receipt.verified_s) == (
        digest(THREE),
        "here",
        len(THREE),
        1000.0,
    )
    assert list(intake.folder.incoming.iterdir()) == []


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), tail=st.integers(1, CHUNK_BYTES), before=st.integers(0, 3))
def test_chunks_in_any_order_with_a_break_anywhere_give_the_same_file(tmp_path_factory, seed, tail, before):
    folder = tmp_path_factory.mktemp("blobs")
    whole = content(3 * CHUNK_BYTES + tail, seed)
    pieces = chunks_of(whole)
    order = list(range(len(pieces)))
    random.Random(seed).shuffle(order)
    first = intake_at(folder)
    broken = first.incoming(digest(whole), len(whole))
    for position in order[:before]:
        broken.write(position, hash_of(pieces[position]), memoryview(pieces[position]))
    first.close()
    second = intake_at(folder)
    _, missing = send(second, whole, order=lambda positions: [p for p in order if p in positions])
    assert missing == sorted(order[before:])
    assert stored(second, whole).read_bytes() == whole
    first.index.close()
    second.index.close()


def test_many_threads_may_write_one_file(intake):
    whole = content(9 * CHUNK_BYTES + 7)
    pieces = chunks_of(whole)
    incoming = intake.incoming(digest(whole), len(whole))

    def write(positions):
        for position in positions:
            incoming.write(position, hash_of(pieces[position]), memoryview(pieces[position]))

    threads = [threading.Thread(target=write, args=(range(n % 2, len(pieces), 2),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    intake.seal(incoming, "test")
    assert stored(intake, whole).read_bytes() == whole


def test_a_flipped_bit_is_refused_and_the_chunk_can_be_sent_again(intake):
    pieces = chunks_of(THREE)
    incoming = intake.incoming(digest(THREE), len(THREE))
    flipped = bytearray(pieces[1])
    flipped[77] ^= 4
    with pytest.raises(DigestMismatch):
        incoming.write(1, hash_of(pieces[1]), memoryview(flipped))
    receipt, missing = send(intake, THREE)
    assert 1 in missing
    assert receipt.size == len(THREE)


def test_a_truncated_chunk_is_refused(intake):
    pieces = chunks_of(THREE)
    incoming = intake.incoming(digest(THREE), len(THREE))
    short = pieces[0][:-1]
    with pytest.raises(DigestMismatch):
        incoming.write(0, hash_of(short), memoryview(short))


def test_right_chunks_of_a_wrong_file_never_get_its_name(intake):
    other = content(len(THREE), seed=1)
    pieces = chunks_of(other)
    incoming = intake.incoming(digest(THREE), len(THREE))
    for position, piece in enumerate(pieces):
        incoming.write(position, hash_of(piece), memoryview(piece))
    with pytest.raises(DigestMismatch):
        intake.seal(incoming, "test")
    assert not stored(intake, THREE).exists()
    assert send(intake, THREE)[1] == [0, 1, 2], "nothing of the wrong file is left"


def test_a_chunk_that_replaces_one_already_read_back_counts(intake):
    pieces, wrong = chunks_of(THREE), chunks_of(content(len(THREE), seed=1))
    incoming = intake.incoming(digest(THREE), len(THREE))
    incoming.write(0, hash_of(wrong[0]), memoryview(wrong[0]))
    incoming.write(1, hash_of(pieces[1]), memoryview(pieces[1]))
    assert send(intake, THREE)[1] == [0, 2]
    assert stored(intake, THREE).read_bytes() == THREE


def test_a_file_without_all_chunks_is_not_sealed_and_is_continued(intake):
    pieces = chunks_of(THREE)
    incoming = intake.incoming(digest(THREE), len(THREE))
    incoming.write(0, hash_of(pieces[0]), memoryview(pieces[0]))
    with pytest.raises(Unavailable, match="lacks chunks"):
        intake.seal(incoming, "test")
    assert not stored(intake, THREE).exists()
    assert send(intake, THREE)[1] == [1, 2]


def test_what_a_crash_left_is_hashed_again(intake, tmp_path):
    pieces = chunks_of(THREE)
    intake.folder.incoming.mkdir(parents=True)
    left = intake.folder.incoming / f"{digest(THREE)}.parts"
    left.write_bytes(pieces[0] + bytes(CHUNK_BYTES))  # the second chunk never reached the disk
    assert send(intake, THREE)[1] == [1, 2]


def test_a_file_with_a_small_change_takes_its_other_chunks_from_the_old_one(intake):
    send(intake, THREE)
    changed = bytearray(THREE)
    changed[CHUNK_BYTES + 5] ^= 1
    receipt, missing = send(intake, bytes(changed))
    assert missing == [1]
    assert stored(intake, bytes(changed)).read_bytes() == changed
    assert receipt.digest == digest(bytes(changed))


@pytest.mark.parametrize("damage", ["deleted", "cut", "other bytes"])
def test_an_old_file_that_is_not_as_listed_is_not_used(intake, damage):
    send(intake, THREE)
    changed = bytearray(THREE)
    changed[0] ^= 1
    if damage == "deleted":
        stored(intake, THREE).unlink()
    elif damage == "cut":
        os.truncate(stored(intake, THREE), CHUNK_BYTES + 3)
    else:
        stored(intake, THREE).write_bytes(content(len(THREE), seed=5))
        with pytest.raises(ChunksLacking, match="wrong chunks"):
            send(intake, bytes(changed))
        assert not stored(intake, bytes(changed)).exists()
    assert set(send(intake, bytes(changed))[1]) >= {1, 2}
    assert stored(intake, bytes(changed)).read_bytes() == changed


def test_another_process_that_receives_the_file_makes_it_busy_not_corrupt(intake):
    other = intake_at(intake.folder.folder)
    incoming = other.incoming(digest(THREE), len(THREE))
    with pytest.raises(Unavailable, match="another process"):
        intake.incoming(digest(THREE), len(THREE))
    incoming.let_go()
    assert send(intake, THREE)[1] == [0, 1, 2]


def test_row_27_a_node_whose_disk_is_critically_full_takes_nothing_in(tmp_path):
    """Its databases need what is left: new files are refused before their first byte, by every way in."""
    full = intake_at(tmp_path / "blobs", full_percent=disk_usage(tmp_path).percent)
    with pytest.raises(StorageFull, match="here takes nothing in: its disk would be"):
        full.check_room(1)
    with pytest.raises(StorageFull, match="takes nothing in"):
        full.incoming("ab" * 32, 5 * CHUNK_BYTES)
    full.check_room(0)  # nothing more is to come: what is here may be asked about
    full.index.close()


def test_a_file_that_found_no_room_can_be_tried_again_at_once(intake):
    """Its lock ends with the failure, not when somebody has finished telling of it."""
    whole = content(2 * CHUNK_BYTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK_BYTES, hard))
    try:
        with pytest.raises(StorageFull) as failed:
            intake.incoming(digest(whole), len(whole))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    receipt, _ = send(intake, whole)
    assert receipt.digest == digest(whole)
    assert "no space left" in str(failed.value)


def test_a_folder_that_is_none_is_told_as_what_it_is(tmp_path):
    (tmp_path / "blobs").write_text("a file")
    intake = Intake(
        BlobFolder(tmp_path / "blobs", SystemRuntime().new_id),
        ChunkIndex(tmp_path / "index.db"),
        node="here",
        now_s=lambda: 1000.0,
    )
    with pytest.raises(StorageReadOnly, match="blobs cannot be written"):
        intake.held("ab" * 32, 5)
    intake.index.close()


def test_a_full_disk_is_refused_before_the_first_byte(tmp_path):
    full = intake_at(tmp_path / "blobs", reserve_bytes=1 << 60)
    with pytest.raises(StorageFull, match="free in"):
        full.incoming(digest(THREE), len(THREE))
    assert not list(full.folder.incoming.glob("*"))


def test_a_name_that_is_no_digest_is_refused(intake):
    for name in ("../../etc/passwd", "a" * 63, "A" * 64):
        with pytest.raises(ConfigError):
            intake.incoming(name, 10)
        with pytest.raises(ConfigError):
            intake.held(name, 10)


def test_a_batch_of_small_files_becomes_visible_together(intake):
    files = [content(1000 + n, seed=n) for n in range(40)] + [b""]
    with intake.batch("test") as batch:
        for file in files:
            batch.add(digest(file), memoryview(file))
        assert not any(stored(intake, file).exists() for file in files)
        taken = batch.seal()
    assert {receipt.digest for receipt in taken.receipts} == {digest(file) for file in files}
    assert all(stored(intake, file).read_bytes() == file for file in files)
    assert list(intake.folder.incoming.iterdir()) == []


def test_a_wrong_file_in_a_batch_fails_alone(intake):
    good, bad = b"good", b"bad"
    with intake.batch("test") as batch:
        batch.add(digest(good), memoryview(good))
        batch.add(digest(b"something else"), memoryview(bad))
        taken = batch.seal()
    assert [receipt.digest for receipt in taken.receipts] == [digest(good)]
    assert [failed for failed, _ in taken.failed] == [digest(b"something else")]


def test_a_batch_that_breaks_off_leaves_nothing(intake):
    with intake.batch("test") as batch:
        batch.add(digest(b"one"), memoryview(b"one"))
    assert not stored(intake, b"one").exists()
    assert list(intake.folder.incoming.iterdir()) == []


def test_delivered_files_are_verified_before_they_are_adopted(intake):
    intake.folder.incoming.mkdir(parents=True)
    good, cut = intake.folder.incoming / "one", intake.folder.incoming / "two"
    good.write_bytes(THREE)
    cut.write_bytes(THREE[:-1])
    wanted = digest(content(10))
    taken = intake.adopt({digest(THREE): good, wanted: cut}, "rsync")
    assert [receipt.verifier for receipt in taken.receipts] == ["rsync"]
    assert [failed for failed, _ in taken.failed] == [wanted]
    assert stored(intake, THREE).read_bytes() == THREE
    assert not cut.exists()


def test_a_copy_at_rest_has_a_receipt_of_when_it_was_finished(intake):
    send(intake, THREE)
    os.utime(stored(intake, THREE), (500, 500))
    held = intake.held(digest(THREE), len(THREE))
    assert held is not None
    assert held.verified_s == 500
    assert intake.held(digest(THREE), len(THREE) + 1) is None, "a copy of another size is no copy"
    assert intake.held(digest(b"absent"), 6) is None


def test_a_damaged_index_costs_time_only(intake):
    send(intake, THREE)
    intake.index.close()
    index = intake.folder.folder / ".chunks" / "index.db"
    index.write_bytes(b"not a database" * 1000)
    changed = THREE[:-1] + b"!"
    assert send(intake, changed)[1] in ([0, 1, 2], [2])
    assert stored(intake, changed).read_bytes() == changed
    assert send(intake, THREE[:-2] + b"??")[1] == [2], "the index works again"


def test_the_list_of_a_file_is_computed_once(intake, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(THREE)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    source = ChunkedFile(path, digest(THREE), intake.index)
    assert source.hashes([0, 1, 2], buffer) == [hash_of(piece) for piece in chunks_of(THREE)]
    source.close()
    assert len(intake.index.hashes(digest(THREE))) == 32 * chunk_count(len(THREE))


CHANGE_JOURNAL = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=0)
try:
    print(db.execute("PRAGMA journal_mode = DELETE").fetchone()[0])
except sqlite3.OperationalError as error:
    print(error)
"""


def test_a_second_index_in_the_process_leaves_the_locks_of_the_first(tmp_path):
    """Another process that sees no lock would throw away the log in which the first one writes."""
    first, second = ChunkIndex(tmp_path / "index.db"), ChunkIndex(tmp_path / "index.db")
    first.keep("a" * 64, bytes(32))
    assert second.known() == ["a" * 64]
    second.close()
    asked = [sys.executable, "-c", CHANGE_JOURNAL, str(tmp_path / "index.db")]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "locked" in said
    assert first.known() == ["a" * 64]
    first.close()


def test_a_full_node_says_of_the_files_it_has_that_it_has_them(tmp_path):
    runtime, full = SystemRuntime(), intake_at(tmp_path / "blobs", reserve_bytes=1 << 60)
    with intake_at(tmp_path / "blobs").batch("test") as batch:
        batch.add(digest(b"here"), memoryview(b"here"))
        batch.seal()
    given_settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path)}).settings
    holder = open_holder(given_settings, runtime, node=DataNode(name="here"))
    answers = Answers(full, Buffers(), holder)

    def held(*files):
        answer = answers.answer("held", encode(Files(files)), None)
        return [receipt.digest for receipt in decode(answer.head, Moved).receipts]

    assert held(File(digest(b"here"), 4)) == [digest(b"here")]
    with pytest.raises(StorageFull):
        held(File(digest(b"here"), 4), File("0" * 64, 1))
    holder.promises.close()
