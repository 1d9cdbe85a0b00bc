"""A busy database is busy, a damaged one is damaged, and only snapshots leave a node."""

import asyncio
import errno
import os
import random
import sqlite3
import stat
import threading
import time

import pytest

from ringrift.data.artifacts import ArtifactKind
from ringrift.data.files import (
    DatabaseState,
    FileBusy,
    atomic_file_write,
    check_database,
    check_sqlite_integrity,
    compute_file_checksum,
    prepare_database_for_transfer,
    quarantine_corrupted_db,
    seal_database,
    set_aside,
    snapshot_database,
    verified_database_copy,
    verify_sync_integrity,
)
from ringrift.engine.opening import memory_engine
from ringrift.errors import ConfigError, Corrupt, RingRiftError, Unavailable
from ringrift.runtime import SystemRuntime


def make_database(path, *, rows=500, wal=False):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
    db.execute("CREATE TABLE games (id INTEGER PRIMARY KEY, moves TEXT)")
    db.execute("CREATE INDEX by_moves ON games (moves)")
    db.execute("BEGIN")
    db.executemany("INSERT INTO games (moves) VALUES (?)", ((f"{number}" * 50,) for number in range(rows)))
    db.execute("COMMIT")
    db.close()
    return path


def damage(path, *, at=0.5, count=2_000):
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(int(size * at))
        file.write(random.Random(1).randbytes(count))


@pytest.mark.parametrize("how", [{}, {"quick": True}, {"fast": True}])
def test_a_sound_database_is_sound(tmp_path, how):
    path = make_database(tmp_path / "games.db")
    assert check_database(path, **how).state is DatabaseState.SOUND
    assert check_sqlite_integrity(path) == (True, [])


def test_a_damaged_database_is_corrupt(tmp_path):
    path = make_database(tmp_path / "games.db")
    damage(path)
    found = check_database(path)
    assert found.state is DatabaseState.CORRUPT
    assert found.errors
    ok, errors = check_sqlite_integrity(path)
    assert not ok
    assert errors


@pytest.mark.parametrize("how", [{}, {"quick": True}, {"fast": True}])
def test_row_11_a_locked_database_is_busy_and_stays_where_it_is(tmp_path, how):
    path = make_database(tmp_path / "games.db")
    with locked(path):
        assert check_database(path, 0.2, **how).state is DatabaseState.BUSY
        with pytest.raises(FileBusy):
            check_sqlite_integrity(path, 0.2)
        with pytest.raises(FileBusy):
            quarantine_corrupted_db(path, timeout=0.2)
        assert path.exists()
    assert check_database(path, **how).ok


def test_row_11_the_time_that_was_given_bounds_the_wait(tmp_path):
    path = make_database(tmp_path / "games.db")
    with locked(path):
        begun_s = time.monotonic()
        check_database(path, 0.5)
        assert time.monotonic() - begun_s < 25, "it was given half a second; by itself it waits longer"


class HurriedRuntime(SystemRuntime):
    """Its clock moves ten seconds at each look."""

    def __init__(self):
        super().__init__()
        self._now_s = 0.0

    def monotonic_s(self):
        self._now_s += 10.0
        return self._now_s


def test_row_11_a_database_too_large_for_the_time_is_busy_not_corrupt(tmp_path):
    path = make_database(tmp_path / "games.db", rows=30_000)
    assert check_database(path, 25.0, runtime=HurriedRuntime()).state is DatabaseState.BUSY
    assert check_database(path).ok


def test_an_empty_a_missing_and_another_file_are_told_apart(tmp_path):
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("these are no games" * 10)
    assert check_database(tmp_path / "empty.db").state is DatabaseState.EMPTY
    assert check_database(tmp_path / "none.db").state is DatabaseState.MISSING
    assert check_database(tmp_path / "text.db").state is DatabaseState.CORRUPT


@pytest.mark.parametrize("how", [{}, {"use_quick_check": True}])
def test_an_empty_file_is_a_database_without_tables(tmp_path, how):
    (tmp_path / "empty.db").touch()
    assert check_sqlite_integrity(tmp_path / "empty.db", **how) == (True, [])
    assert check_sqlite_integrity(tmp_path / "empty.db", use_fast_check=True) == (False, ["it has no table"])
    with pytest.raises(ConfigError, match="empty, not corrupt"):
        quarantine_corrupted_db(tmp_path / "empty.db")


def test_a_folder_is_no_database_and_waiting_does_not_help(tmp_path):
    ok, (why,) = check_sqlite_integrity(tmp_path)
    assert not ok
    assert "no plain file" in why


def test_a_database_that_its_owner_must_recover_first_is_not_corrupt(tmp_path):
    path = make_database(tmp_path / "games.db")
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA cache_size = 1")
    db.execute("BEGIN")
    db.execute("UPDATE games SET moves = moves || 'x'")
    journal = (tmp_path / "games.db-journal").read_bytes()
    torn = path.read_bytes()
    db.execute("ROLLBACK")
    db.close()
    left = tmp_path / "left.db"
    left.write_bytes(torn)
    left.with_name("left.db-journal").write_bytes(journal)
    assert check_database(left, 1.0).state is DatabaseState.BUSY


def test_only_a_corrupt_database_is_set_aside_with_what_lies_beside_it(tmp_path):
    path = make_database(tmp_path / "games.db")
    with pytest.raises(ConfigError, match="sound, not corrupt"):
        quarantine_corrupted_db(path)
    damage(path)
    beside = path.with_name("games.db-wal")
    beside.write_bytes(b"")
    place = quarantine_corrupted_db(path)
    assert not path.exists()
    assert not beside.exists()
    assert place.parent == tmp_path / "quarantine"
    assert place.with_name(place.name + "-wal").exists()


def test_files_of_one_name_set_aside_in_one_second_do_not_meet(tmp_path):
    places = set()
    for number in range(5):
        path = tmp_path / "same.db"
        path.write_bytes(bytes([number]))
        places.add(set_aside(path, tmp_path / "quarantine", now_s=1_700_000_000.0))
    assert {place.read_bytes() for place in places} == {bytes([number]) for number in range(5)}


@pytest.mark.parametrize("size", [0, 1, 3 << 20])
def test_copies_of_any_size_are_compared_whole(tmp_path, size):
    source, target = tmp_path / "a", tmp_path / "b"
    content = random.Random(size).randbytes(size)
    source.write_bytes(content)
    target.write_bytes(content)
    assert verify_sync_integrity(source, target).is_valid
    if size:
        target.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        report = verify_sync_integrity(source, target)
        assert report.size_match
        assert not report.is_valid
    assert not verify_sync_integrity(source, tmp_path / "none").is_valid


@pytest.mark.parametrize("algorithm", ["sha256", "sha1", "md5", "blake2b"])
def test_the_documented_checksums_are_there(tmp_path, algorithm):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert len(compute_file_checksum(path, algorithm)) >= 32
    with pytest.raises(ConfigError, match="crc32"):
        compute_file_checksum(path, "crc32")
    with pytest.raises(Unavailable):
        compute_file_checksum(tmp_path / "none", algorithm)


def test_a_checksum_of_no_file_is_the_error_that_every_program_expects(tmp_path):
    with pytest.raises(FileNotFoundError, match="none: No such file") as missing:
        compute_file_checksum(tmp_path / "none")
    assert missing.value.errno == errno.ENOENT
    assert "try again" not in str(missing.value)
    with pytest.raises(OSError, match="Is a directory"):
        compute_file_checksum(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe: it is no plain file"):
        compute_file_checksum(tmp_path / "pipe")


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(content, *, fails):
        with atomic_file_write(path) as file:
            file.write(content)
            if fails:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write(b"half", fails=True)
    assert path.read_bytes() == b"old"
    write(b"new", fails=False)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_writes_of_one_file_in_one_thread_do_not_wait_for_each_other(tmp_path):
    path = tmp_path / "file"
    with atomic_file_write(path) as first, atomic_file_write(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first", "whoever ends last has the last word"
    assert os.listdir(tmp_path) == ["file"]


def test_row_10_snapshots_of_a_database_under_writing_are_sound_and_of_one_moment(tmp_path):
    path = tmp_path / "live.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE a (n INTEGER, pad TEXT)")
    db.execute("CREATE TABLE b (n INTEGER, pad TEXT)")
    over = threading.Event()

    def write():
        writer = sqlite3.connect(path, isolation_level=None, timeout=30)
        number = 0
        while not over.is_set():
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("INSERT INTO a VALUES (?, ?)", (number, "x" * 2_000))
            writer.execute("INSERT INTO b VALUES (?, ?)", (number, "y" * 2_000))
            writer.execute("COMMIT")
            number += 1
            if number % 50 == 0:
                writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    counts = []
    try:
        for number in range(10):
            copy = snapshot_database(path, tmp_path / f"copy{number}.db")
            counts.append(rows_of(copy))
    finally:
        over.set()
        thread.join()
        db.close()
    assert all(a == b for a, b in counts)
    assert counts == sorted(counts)
    assert counts[-1][0] > 0


def rows_of(path):
    assert check_database(path).ok
    assert [name for name in os.listdir(path.parent) if name.startswith(path.name)] == [path.name]
    assert not path.stat().st_mode & stat.S_IWUSR
    db = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    counts = tuple(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in "ab")
    db.close()
    return counts


def test_a_snapshot_touches_neither_the_database_nor_what_lies_beside_it(tmp_path):
    path = make_database(tmp_path / "live.db", wal=True)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("INSERT INTO games (moves) VALUES ('in the log only')")
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if "-shm" not in name}
    assert "live.db-wal" in before
    copy = prepare_database_for_transfer(path, tmp_path / "out")
    after = {name: (tmp_path / name).read_bytes() for name in before}
    assert after == before
    copied = sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)
    assert copied.execute("SELECT count(*) FROM games").fetchone() == (501,)
    copied.close()
    db.close()


def test_a_damaged_database_is_not_copied(tmp_path):
    path = make_database(tmp_path / "games.db")
    damage(path)
    with pytest.raises(RingRiftError):
        snapshot_database(path, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
    assert not verified_database_copy(path, tmp_path / "copy.db")
    assert sorted(os.listdir(tmp_path)) == ["games.db"]


def test_a_locked_database_is_not_copied_and_leaves_nothing_behind(tmp_path):
    path = make_database(tmp_path / "games.db")
    with locked(path), pytest.raises(Unavailable):
        snapshot_database(path, tmp_path / "copy.db", timeout=0.2)
    assert not (tmp_path / "copy.db").exists()
    assert verified_database_copy(path, tmp_path / "copy.db")


def test_a_sealed_database_is_an_artifact(tmp_path):
    async def run():
        blobs = memory_engine(SystemRuntime()).blobs
        path = make_database(tmp_path / "elo.db", wal=True)
        card = await seal_database(blobs, path, scratch=tmp_path / "scratch", node="here")
        assert card.kind is ArtifactKind.SNAPSHOT
        assert (card.name, card.size) == ("elo.db", await blobs.size(card.digest))
        assert os.listdir(tmp_path / "scratch") == []

    asyncio.run(run())


class locked:  # noqa: N801 - reads as a verb
    """Another connection has the database for itself."""

    def __init__(self, path):
        self._db = sqlite3.connect(path, isolation_level=None)

    def __enter__(self):
        self._db.execute("BEGIN EXCLUSIVE")

    def __exit__(self, *error):
        self._db.close()


def test_corrupt_is_an_error_that_no_retry_helps():
    assert not issubclass(Corrupt, Unavailable)
