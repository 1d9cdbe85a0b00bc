"""What is in the database: the tables and their migrations, the checksums of rows, the anchor of time."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from ringrift import clock
from ringrift.clock import NOTED_EVERY_S, ClockAnchor, new_anchor
from ringrift.engine.sqlite.faults import LOST_ADVICE
from ringrift.errors import Corrupt, SchemaTooNew

if TYPE_CHECKING:
    from ringrift.engine.sqlite.writer import Turnstile
    from ringrift.runtime import Runtime


# Checksums of what callers stored, so that a value comes back as it went in or not at all.
#
# SQLite checks the form of its pages and not their content: a bit that flips inside a value is returned as if
# it had been written. Whatever a caller stores is therefore stored with a checksum over it and over what it
# belongs to, made before it is written and compared after it is read.


EntryRow = tuple[str, bytes | None, int, float | None, int | None]  # the checksum last
_NEVER_S = 0.0  # stands for no time of expiry


def of_entry(key: str, revision: int, expires_s: float | None, value: bytes | None) -> int:
    """Of a row of the key-value store; a deleted key has no value."""
    about = struct.pack(">qd", revision, _NEVER_S if expires_s is None else expires_s)
    return crc32(b"" if value is None else value, crc32(about, crc32(key.encode())))


def check_entry(database: Path, row: EntryRow) -> None:
    """Raise `Corrupt` with the key unless a row of the key-value store is as it was stored."""
    key, value, revision, expires_s, checksum = row
    if checksum != of_entry(key, revision, expires_s, value):
        raise Corrupt(
            database,
            found=f"the value of {key!r} is not what was stored (its checksum does not fit)",
            advice=LOST_ADVICE,
        )


def of_event(event_id: str, kind: str, appended_s: float, body: bytes) -> int:
    return crc32(body, crc32(struct.pack(">d", appended_s), crc32(f"{event_id}\0{kind}\0".encode())))


def of_work(item_id: str, payload: bytes, trace: bytes) -> int:
    """Of what was asked for."""
    return crc32(payload, crc32(trace, crc32(item_id.encode())))


def of_result(result: bytes) -> int:
    """Of an answer; many items may be completed with the same one."""
    return crc32(result)


def make_available(db: sqlite3.Connection) -> None:
    """Let a migration compute the checksums of the rows that are there."""
    for name, arguments, function in (
        ("checksum_of_entry", 4, of_entry),
        ("checksum_of_event", 4, of_event),
        ("checksum_of_work", 3, of_work),
        ("checksum_of_result", 1, of_result),
    ):
        db.create_function(name, arguments, function, deterministic=True)


# The tables, as an ordered list of migrations.
#
# Each migration runs in one transaction together with its version number, so that a crash leaves either
# the old schema or the new one. A released migration never changes; a new one is added at the end.


WITHOUT_CHECKSUMS = 3  # the last version that has none
APPLICATION_ID = 0x52524654  # "RRFT" in the file header says whose database this is

_FIRST = (
    # Revisions and tokens: engine-wide, they only grow.
    "CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "INSERT INTO counter(name, value) VALUES ('revision', 0), ('token', 0)",
    # AUTOINCREMENT: a sequence number is never given twice, also after trimming.
    """CREATE TABLE event(
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        type TEXT NOT NULL,
        appended_s REAL NOT NULL,
        body BLOB NOT NULL) STRICT""",
    """CREATE TABLE cursor(
        instance TEXT NOT NULL,
        consumer TEXT NOT NULL,
        floor INTEGER NOT NULL,
        done_above BLOB NOT NULL,
        moved_s REAL NOT NULL,
        PRIMARY KEY (instance, consumer)) STRICT, WITHOUT ROWID""",
    # Items that the same claimants may take stand in one lane, so that a claim is one seek per lane.
    """CREATE TABLE lane(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,
        node TEXT NOT NULL,
        requires TEXT NOT NULL,
        UNIQUE (kind, node, requires)) STRICT""",
    # The wide columns stand last: most queries stop reading before them.
    """CREATE TABLE work(
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        lane INTEGER NOT NULL,
        state INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        attempts_max INTEGER NOT NULL,
        token INTEGER NOT NULL DEFAULT 0,
        due_s REAL,
        not_before_s REAL NOT NULL,
        added_s REAL NOT NULL,
        changed_s REAL NOT NULL,
        blockers INTEGER NOT NULL DEFAULT 0,
        holder TEXT,
        idempotency_key TEXT,
        error TEXT,
        trace BLOB NOT NULL,
        result BLOB,
        payload BLOB NOT NULL) STRICT""",
    "CREATE INDEX work_ready ON work(lane, priority DESC) WHERE state = 1",
    "CREATE INDEX work_due ON work(due_s) WHERE due_s IS NOT NULL",
    "CREATE INDEX work_dead ON work(changed_s) WHERE state = 5",
    "CREATE UNIQUE INDEX work_key ON work(idempotency_key) WHERE idempotency_key IS NOT NULL",
    """CREATE TABLE work_need(
        needs INTEGER NOT NULL,
        item INTEGER NOT NULL,
        PRIMARY KEY (needs, item)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX work_need_item ON work_need(item)",
    # A deleted key stays for a while as a row without a value, for those who watch.
    """CREATE TABLE kv(
        key TEXT PRIMARY KEY,
        revision INTEGER NOT NULL,
        expires_s REAL,
        changed_s REAL NOT NULL,
        value BLOB) STRICT, WITHOUT ROWID""",
    "CREATE UNIQUE INDEX kv_revision ON kv(revision)",
    "CREATE INDEX kv_expires ON kv(expires_s) WHERE expires_s IS NOT NULL",
)

_ENDS_IN_ORDER = (
    # A table of its own: the numbers are read without the wide rows. AUTOINCREMENT: never given twice.
    """CREATE TABLE work_end(
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        item INTEGER NOT NULL UNIQUE) STRICT""",
    "INSERT INTO work_end(item) SELECT seq FROM work WHERE state IN (4, 5, 6) ORDER BY changed_s, seq",
)

_COUNT_ONE_MORE = (
    "INSERT INTO work_count(lane, state, items) VALUES (new.lane, new.state, 1)"
    " ON CONFLICT (lane, state) DO UPDATE SET items = items + 1"
)
_COUNT_ONE_LESS = "UPDATE work_count SET items = items - 1 WHERE lane = old.lane AND state = old.state"
_WORK_COUNTED = (
    # Kept by the database itself, so that no way of changing an item can forget it.
    """CREATE TABLE work_count(
        lane INTEGER NOT NULL,
        state INTEGER NOT NULL,
        items INTEGER NOT NULL,
        PRIMARY KEY (lane, state)) STRICT, WITHOUT ROWID""",
    "INSERT INTO work_count(lane, state, items) SELECT lane, state, count(*) FROM work GROUP BY lane, state",
    f"CREATE TRIGGER work_added AFTER INSERT ON work BEGIN {_COUNT_ONE_MORE}; END",
    f"CREATE TRIGGER work_dropped AFTER DELETE ON work BEGIN {_COUNT_ONE_LESS}; END",
    "CREATE TRIGGER work_moved AFTER UPDATE OF lane, state ON work"
    " WHEN old.state <> new.state OR old.lane <> new.lane"
    f" BEGIN {_COUNT_ONE_LESS}; {_COUNT_ONE_MORE}; END",
)

_CHECKSUMS = (
    # What is there gets its checksum now: damage from before cannot be known.
    "ALTER TABLE kv ADD COLUMN checksum INTEGER",
    "UPDATE kv SET checksum = checksum_of_entry(key, revision, expires_s, value)",
    "ALTER TABLE event ADD COLUMN checksum INTEGER",
    "UPDATE event SET checksum = checksum_of_event(id, type, appended_s, body)",
    "ALTER TABLE work ADD COLUMN checksum INTEGER",
    "ALTER TABLE work ADD COLUMN result_checksum INTEGER",
    "UPDATE work SET checksum = checksum_of_work(id, payload, trace),"
    " result_checksum = iif(result IS NULL, NULL, checksum_of_result(result))",
)

_WALL_S = "((julianday('now') - 2440587.5) * 86400.0)"
_TIME_KEPT = (
    # Where the engine's time is counted from; it has no row until the database is opened.
    """CREATE TABLE clock(
        id INTEGER PRIMARY KEY CHECK (id = 1),
        boot TEXT NOT NULL,
        boot_s REAL NOT NULL,
        time_s REAL NOT NULL,
        last_s REAL NOT NULL) STRICT""",
    # Until now times came from the wall clock: one that was ahead then must not hold anything for long.
    # Whoever held a lease cannot write any more, as it does not know this schema.
    f"UPDATE work SET due_s = min(due_s, {_WALL_S} + 60.0) WHERE due_s IS NOT NULL AND state = 2",
    f"UPDATE work SET due_s = min(due_s, {_WALL_S} + 3600.0),"
    f" not_before_s = min(not_before_s, {_WALL_S} + 3600.0) WHERE due_s IS NOT NULL AND state = 3",
    f"UPDATE kv SET expires_s = min(expires_s, {_WALL_S} + 60.0)"
    " WHERE expires_s IS NOT NULL AND key >= 'lease/' AND key < 'lease0'",
    "UPDATE kv SET checksum = checksum_of_entry(key, revision, expires_s, value)"
    " WHERE expires_s IS NOT NULL AND key >= 'lease/' AND key < 'lease0'",
)

_CONFIG = "iif(json_valid(CAST(payload AS TEXT)), CAST(payload AS TEXT) ->> '$.config', NULL)"
_UNENDED = "work.state IN (0, 1, 2, 3)"
_GROUPS = (
    # A lane holds items of one group, so that a held group is passed over without a look at its items.
    """CREATE TABLE grouped_lane(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,
        node TEXT NOT NULL,
        requires TEXT NOT NULL,
        work_group TEXT NOT NULL,
        UNIQUE (kind, node, requires, work_group)) STRICT""",
    "INSERT INTO grouped_lane SELECT id, kind, node, requires, '' FROM lane",
    "DROP TABLE lane",
    "ALTER TABLE grouped_lane RENAME TO lane",
    # What waits gets the group that it would be added with now: the config that its payload names.
    "INSERT OR IGNORE INTO lane(kind, node, requires, work_group)"
    f" SELECT DISTINCT kind, node, requires, {_CONFIG} FROM work JOIN lane ON lane.id = work.lane"
    f" WHERE {_UNENDED} AND typeof({_CONFIG}) = 'text'",
    f"UPDATE work SET lane = (SELECT own.id FROM lane AS own JOIN lane AS old USING (kind, node, requires)"
    f" WHERE old.id = work.lane AND own.work_group = {_CONFIG})"
    f" WHERE {_UNENDED} AND typeof({_CONFIG}) = 'text'",
    # A pause was kept under a name that only the loop looked at.
    "UPDATE kv SET key = 'queue/hold/' || substr(key, length('learning/wish/') + 1)"
    " WHERE key >= 'learning/wish/' AND key < 'learning/wish0' AND value IS NOT NULL"
    " AND json_valid(CAST(value AS TEXT)) AND CAST(value AS TEXT) ->> '$.paused'",
    "UPDATE kv SET checksum = checksum_of_entry(key, revision, expires_s, value)"
    " WHERE key >= 'queue/hold/' AND key < 'queue/hold0'",
)


@dataclass(frozen=True, slots=True)
class Migration:
    """The statements that lead to *version* from the one before."""

    version: int
    statements: tuple[str, ...]


TIME_KEPT = Migration(5, _TIME_KEPT)
MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, _FIRST),
    Migration(2, _ENDS_IN_ORDER),
    Migration(3, _WORK_COUNTED),
    Migration(4, _CHECKSUMS),
    TIME_KEPT,
    Migration(6, _GROUPS),
)


def schema_version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def missing_migrations(
    db: sqlite3.Connection, path: Path, migrations: Sequence[Migration]
) -> list[Migration]:
    """Return what is still to be done; `SchemaTooNew` if the file is ahead of us."""
    found, newest = schema_version(db), migrations[-1].version
    if found > newest:
        raise schema_too_new(path, found, newest)
    return [migration for migration in migrations if migration.version > found]


def migrate(db: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the schema up to date. The caller keeps other writers out."""
    make_available(db)
    for migration in missing_migrations(db, path, migrations):
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in migration.statements:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {migration.version}")
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def schema_too_new(path: Path, found: int, newest: int) -> SchemaTooNew:
    return SchemaTooNew(
        path,
        found=f"it has schema version {found}, this program knows versions up to {newest}",
        advice="Nothing was changed. Update this installation, or use another data folder",
    )


# The anchor of the engine's time, as one row of the database.


_READ = "SELECT boot, boot_s, time_s, last_s FROM clock WHERE id = 1"
_STORE = "INSERT OR REPLACE INTO clock(id, boot, boot_s, time_s, last_s) VALUES (1, ?, ?, ?, ?)"
_NOTE = "UPDATE clock SET last_s = max(last_s, ?) WHERE id = 1"


def settle_anchor(
    db: sqlite3.Connection, turnstile: Turnstile, runtime: Runtime, *, wait_s: float
) -> ClockAnchor:
    """Return the anchor of this database; the first to come after a start of the machine stores a new one."""
    anchor, _ = _read(db, boot=runtime.boot_id, boot_s=runtime.boot_s())
    if anchor is not None:
        return anchor
    with turnstile.passed_within(wait_s):
        db.execute("BEGIN IMMEDIATE")
        try:
            anchor, last_s = _read(db, boot=runtime.boot_id, boot_s=runtime.boot_s())
            if anchor is None:
                anchor = new_anchor(
                    boot=runtime.boot_id, boot_s=runtime.boot_s(), now_s=runtime.now_s(), last_s=last_s
                )
                db.execute(_STORE, (anchor.boot, anchor.boot_s, anchor.time_s, anchor.time_s))
            db.execute("COMMIT")
            return anchor
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def time_of(db: sqlite3.Connection) -> float:
    """What time it is for this database, for one who only reads."""
    boot, boot_s, wall_s = clock.boot_id(), clock.boot_s(), clock.wall_s()
    anchor, last_s = _read(db, boot=boot, boot_s=boot_s)
    return (anchor or new_anchor(boot=boot, boot_s=boot_s, now_s=wall_s, last_s=last_s)).at(boot_s)


def _read(db: sqlite3.Connection, *, boot: str, boot_s: float) -> tuple[ClockAnchor | None, float | None]:
    """The anchor if it still holds, and the last time that was stored."""
    row = db.execute(_READ).fetchone()
    if row is None:
        return None, None
    anchor, last_s = ClockAnchor(*row[:3]), float(row[3])
    return (anchor if anchor.holds(boot=boot, boot_s=boot_s, last_s=last_s) else None), last_s


class TimeNote:
    """Stores now and then how late it is, so that a machine that is started again goes on from there."""

    def __init__(self) -> None:
        self._noted_s = 0.0

    def write(self, db: sqlite3.Connection, now_s: float) -> None:
        """To be called in a transaction that has changed something anyway."""
        if now_s - self._noted_s >= NOTED_EVERY_S:
            db.execute(_NOTE, (now_s,))
            self._noted_s = now_s
