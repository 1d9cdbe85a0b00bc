"""A file that is not right is told from one that is, and stays as it was byte for byte."""

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ringrift.engine.ports import LogEvent, NewWork
from ringrift.engine.sqlite import files
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import (
    Corrupt,
    ForeignFile,
    SchemaTooNew,
    StorageFull,
    StorageReadOnly,
    Unavailable,
)

HERE = Path(__file__).parent


def fingerprint(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
async def used(config, opened):
    """A database with some contents that nobody has open."""
    engine = await opened(config)
    await engine.events.append([LogEvent(id=str(n), type="T", body=bytes(400)) for n in range(500)])
    await engine.queue.add([NewWork(kind="k", id=str(n)) for n in range(100)])
    await engine.kv.put("champion", b"net-7")
    await engine.close()
    return config.database


async def refused(config, opened, error):
    before = fingerprint(config.database)
    with pytest.raises(error) as caught:
        await opened(config)
    assert fingerprint(config.database) == before
    return caught.value


async def test_a_file_that_is_no_database_is_foreign(config, opened):
    config.database.parent.mkdir()
    config.database.write_bytes(b"my diary, please keep " * 500)
    error = await refused(config, opened, ForeignFile)
    assert str(config.database) in str(error)
    assert "RINGRIFT_COORDINATOR_DB" in str(error)


async def test_another_programs_database_is_foreign(config, opened):
    config.database.parent.mkdir()
    with sqlite3.connect(config.database) as db:
        db.execute("CREATE TABLE accounts(name TEXT)")
        db.execute("INSERT INTO accounts VALUES ('ada')")
    db.close()
    error = await refused(config, opened, ForeignFile)
    assert "another program" in str(error)


async def test_an_empty_file_is_not_taken_for_a_new_database(config, opened):
    config.database.parent.mkdir()
    config.database.touch()
    assert "empty" in str(await refused(config, opened, Corrupt))


@pytest.mark.parametrize("size", [50, 4000, 4096 * 3 + 100])
async def test_a_cut_off_database_is_corrupt(config, opened, used, size):
    os.truncate(used, size)
    error = await refused(config, opened, Corrupt)
    assert "backup" in str(error)


async def test_damage_inside_a_page_is_found(config, opened, used):
    content = bytearray(used.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 200] = b"\xff" * 200
    used.write_bytes(content)
    await refused(config, opened, Corrupt)


async def test_damage_found_while_working_is_told_as_such(config, opened, used):
    engine = await opened(config)
    size = used.stat().st_size
    with used.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * (size - 4096 * 2))
    with pytest.raises(Corrupt, match="backup"):
        await engine.events.read(after=0, limit=1000)


async def test_a_newer_schema_is_refused(config, opened, used):
    db = sqlite3.connect(used)
    db.execute("PRAGMA user_version = 900")
    db.close()
    error = await refused(config, opened, SchemaTooNew)
    assert "900" in str(error)


async def test_a_schema_that_becomes_newer_stops_writing(config, opened):
    engine = await opened(config)
    await engine.kv.put("a", b"1")
    db = sqlite3.connect(config.database)
    db.execute("PRAGMA user_version = 900")
    db.close()
    with pytest.raises(SchemaTooNew):
        await engine.kv.put("a", b"2")


async def test_a_full_database_refuses_and_keeps_what_it_has(config, opened):
    engine = await opened(replace(config, database_bytes_max=2**20))
    acknowledged = []

    async def append_until_refused():
        for number in range(10_000):
            await engine.events.append([LogEvent(id=str(number), type="T", body=bytes(4000))])
            acknowledged.append(str(number))

    with pytest.raises(StorageFull):
        await append_until_refused()
    assert [r.id for r in await engine.events.read(after=0, limit=10_000)] == acknowledged
    with pytest.raises(StorageFull):
        await engine.queue.add([NewWork(kind="k", payload={"x": "y" * 50_000})])
    assert await engine.queue.counts() == {}
    # With more room it goes on where it was.
    await engine.close()
    roomy = await opened(config)
    (appended,) = await roomy.events.append([LogEvent(id="more", type="T", body=b"")])
    assert appended.seq == len(acknowledged) + 1


def in_a_world_of_its_own(code, *arguments, prefix=()):
    """Run *code* in a fresh interpreter; the last line of its standard output is the answer."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code, *map(str, arguments)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().rpartition("\n")[2]  # before it stands what was logged


PREAMBLE = """
import asyncio, ctypes, os, resource, struct, sys
from pathlib import Path
from ringrift.engine.ports import LogEvent
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.errors import RingRiftError
from ringrift.runtime import SystemRuntime
folder = Path(sys.argv[1])
config = SqliteConfig(database=folder / "engine" / "c.db", blob_dir=folder / "blobs")
"""

NO_SUPERPOWERS = (
    PREAMBLE
    + """
# Root may write anywhere; without its capabilities it is a user like any other.
libc = ctypes.CDLL(None, use_errno=True)
header, data = struct.pack("<Ii", 0x20080522, 0), bytes(24)
assert libc.capset(header, data) == 0
"""
)


async def test_a_read_only_folder_is_told_as_such(tmp_path, config, opened, used):
    before = fingerprint(used)
    for place in (used, used.parent):
        place.chmod(0o555 if place.is_dir() else 0o444)
    try:
        answer = in_a_world_of_its_own(
            NO_SUPERPOWERS
            + """
try:
    open_sqlite(config, SystemRuntime())
except RingRiftError as error:
    print(type(error).__name__)
""",
            tmp_path,
        )
    finally:
        used.parent.chmod(0o755)
    assert answer == StorageReadOnly.__name__
    assert fingerprint(used) == before


async def test_a_new_database_in_a_read_only_folder_is_told_as_such(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    answer = in_a_world_of_its_own(
        NO_SUPERPOWERS
        + """
try:
    open_sqlite(config, SystemRuntime())
except RingRiftError as error:
    print(type(error).__name__)
""",
        folder,
    )
    assert answer == StorageReadOnly.__name__
    assert list(folder.iterdir()) == []


async def test_a_path_below_a_file_is_told_as_read_only(tmp_path, opened):
    (tmp_path / "file").write_text("in the way")
    config = SqliteConfig(database=tmp_path / "file" / "c.db", blob_dir=tmp_path / "blobs")
    with pytest.raises(StorageReadOnly):
        await opened(config)
    assert (tmp_path / "file").read_text() == "in the way"


FILL = (
    PREAMBLE
    + """
async def fill():
    engine = await asyncio.to_thread(open_sqlite, config, SystemRuntime())
    acknowledged = 0
    try:
        for number in range(5000):
            await engine.events.append([LogEvent(id=str(number), type="T", body=bytes(4000))])
            acknowledged += 1
    except RingRiftError as error:
        refusal = type(error).__name__
    try:
        await engine.blobs.put_bytes(bytes(8_000_000))
    except RingRiftError as error:
        refusal += " " + type(error).__name__
    records = await engine.events.read(after=0, limit=10_000)
    assert [record.id for record in records] == [str(number) for number in range(acknowledged)]
    leftovers = [path for path in (folder / "blobs").rglob("*") if path.is_file()]
    await engine.close()
    print(refusal, "leftovers" if leftovers else "clean")
"""
)


def can_mount(tmp_path):
    mount = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    return shutil.which("unshare") is not None and subprocess.run(mount, capture_output=True).returncode == 0


async def test_a_full_disk_is_told_as_such_and_loses_nothing(tmp_path):
    if can_mount(tmp_path):
        # A real file system of 3 MB, seen by the child alone.
        shell = f'mount -t tmpfs -o size=3m none {tmp_path} && exec "$@"'
        prefix = ("unshare", "--mount", "--map-root-user", "sh", "-c", shell, "sh")
        expected = f"{StorageFull.__name__} {StorageFull.__name__} clean"
        code = FILL + "asyncio.run(fill())"
    else:
        # Files of at most 3 MB: SQLite tells it as a failed write, the blob folder as a full disk.
        prefix, expected = (), f"{Unavailable.__name__} {StorageFull.__name__} clean"
        code = FILL + "resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))\nasyncio.run(fill())"
    assert in_a_world_of_its_own(code, tmp_path, prefix=prefix) == expected


async def test_a_file_size_limit_loses_nothing(tmp_path):
    code = FILL + "resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))\nasyncio.run(fill())"
    assert in_a_world_of_its_own(code, tmp_path) == f"{Unavailable.__name__} {StorageFull.__name__} clean"


async def test_half_made_files_of_dead_processes_are_removed(config, opened):
    config.database.parent.mkdir()
    dead = config.database.with_name(f"c.db.making-{2**22 + 5}-ab")
    dead.write_bytes(b"half")
    ended = subprocess.Popen([sys.executable, "-c", ""])  # nobody has fetched its exit code yet
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    unfetched = config.database.with_name(f"c.db.making-{ended.pid}-cd")
    unfetched.write_bytes(b"half")
    await opened(config)
    assert not dead.exists()
    assert not unfetched.exists()
    ended.wait()


@pytest.fixture
async def killed(tmp_path, config, opened):
    """The files of a process that was killed with forty commits in its write-ahead log."""
    engine = await opened(config)
    for n in range(40):
        await engine.events.append([LogEvent(id=str(n), type="T", body=bytes(400))])
    left = tmp_path / "killed"
    left.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(str(config.database) + suffix, left / (config.database.name + suffix))
    await engine.close()
    return replace(config, database=left / config.database.name)


def damage(path, place):
    content = bytearray(path.read_bytes())
    for number in range(40):
        content[place + number] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
async def test_commits_behind_damage_in_the_write_ahead_log_are_not_thrown_away(killed, opened, share):
    log = killed.database.with_name(killed.database.name + "-wal")
    damage(log, int(log.stat().st_size * share))
    before = fingerprint(log)
    error = await refused(killed, opened, Corrupt)
    assert "commits follow it" in str(error)
    assert fingerprint(log) == before


async def test_a_torn_last_commit_is_no_damage(killed, opened):
    log = killed.database.with_name(killed.database.name + "-wal")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 100)
    engine = await opened(killed)
    assert (await engine.events.bounds()).last == 39


def commit_of(killed, folder, events):
    """What one commit of so many events adds to the log of the killed process."""
    folder.mkdir()
    copy = folder / killed.database.name
    for suffix in ("", "-wal"):
        shutil.copy(str(killed.database) + suffix, str(copy) + suffix)
    log = copy.with_name(copy.name + "-wal")
    begins = log.stat().st_size
    db = sqlite3.connect(copy, isolation_level=None)
    try:
        db.execute("BEGIN")
        rows = [(f"{folder.name}-{n}", bytes(3000)) for n in range(events)]
        db.executemany("INSERT INTO event(id, type, appended_s, body) VALUES (?, 'T', 0, ?)", rows)
        db.execute("COMMIT")
        return log.read_bytes()[begins:]
    finally:
        db.close()


async def test_leftovers_of_several_killed_writers_are_no_damage(killed, opened, tmp_path):
    """Each was killed between its last frame and the index; the next one began at the same place."""
    long, middle, short = (commit_of(killed, tmp_path / str(n), n) for n in (30, 12, 2))
    assert len(long) > len(middle) > len(short)
    log = killed.database.with_name(killed.database.name + "-wal")
    with log.open("ab") as file:
        file.write(short + middle[len(short) :] + long[len(middle) :])
    engine = await opened(killed)
    assert (await engine.events.bounds()).last == 42


async def test_two_commits_behind_a_damaged_one_are_damage_also_among_leftovers(killed, opened, tmp_path):
    long = commit_of(killed, tmp_path / "long", 30)
    log = killed.database.with_name(killed.database.name + "-wal")
    ends = log.stat().st_size
    with log.open("ab") as file:
        file.write(long[len(long) // 2 // 4120 * 4120 :])
    damage(log, ends - 30_000)
    await refused(killed, opened, Corrupt)


async def test_a_log_that_begins_anew_while_it_is_looked_at_is_no_damage(config, opened, monkeypatch):
    """Two commits come after the first look at the index; at the second one a writer has reset it, but not
    yet the log."""
    engine = await opened(config)
    await engine.kv.put("a", b"1")
    writer = sqlite3.connect(config.database, isolation_level=None)
    looks, pread = [], files._pread

    def watched(file, size, place):
        content = pread(file, size, place)
        if file.name.endswith("-shm"):
            looks.append(content)
            if len(looks) == 1:
                for name in ("x", "y"):
                    writer.execute(
                        "INSERT INTO event(id, type, appended_s, body) VALUES (?, 'T', 0, x'')", (name,)
                    )
            elif len(looks) == 2:
                return content[:16] + bytes(16) + b"new salt"
        return content

    monkeypatch.setattr(files, "_pread", watched)
    try:
        files.check_wal(config.database)
    finally:
        writer.close()
    assert len(looks) >= 2
