"""The table of dead letters in a SQLite file of its own.

Each letter has a hash, and a file beside the database says how many letters were ever stored: it is told if a
letter is not what was stored, or if letters are lost. Other programs may change letters.
"""

from __future__ import annotations

import json
import os
import reprlib
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ringrift.engine.encoding import row_hash
from ringrift.engine.lock_files import LockFile
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.files import (
    SqliteConfig,
    check_ours,
    check_sound,
    connect,
    create_if_absent,
    fill_if_empty,
)
from ringrift.engine.sqlite.schema import Migration, migrate
from ringrift.errors import ForeignFile, StorageReadOnly, Unavailable, storable_text
from ringrift.events.event import to_json
from ringrift.files import make_folders, open_private

# Which retrier of dead letters is alive.
#
# Each takes a number whose file lock the kernel frees at its end, however it ends. A claim that names the
# number can so be told from one that a killed process left behind, without waiting for its time to run out.


# More processes than one machine runs; the bound keeps the search for a free number finite.
_SLOTS_MAX = 1_000


class RetrierSlots:
    """The numbers of one file of dead letters; *free* lets go of all that a number had claimed.

    It is called while the lock of that number is held, so that nobody can claim under it meanwhile.
    """

    def __init__(self, letters: Path, free: Callable[[int], None]) -> None:
        self._folder, self._free = letters.with_name(f"{letters.name}.retriers"), free
        self._files: dict[int, LockFile] = {}
        self._mine: int | None = None

    def mine(self) -> int:
        """The number of this retrier, taken at the first call."""
        if self._mine is None:
            for number in range(1, _SLOTS_MAX + 1):
                if self._file(number).try_lock():
                    # What the last holder of the number had claimed when it was killed.
                    self._free(number)
                    self._mine = number
                    return number
            raise Unavailable(f"{_SLOTS_MAX} processes retry the dead letters of {self._folder} already")
        return self._mine

    def free_if_gone(self, number: int) -> bool:
        """Free the claims under *number* if its holder has ended; whether it had."""
        if number in (0, self._mine) or not self._file(number).try_lock():
            return False
        try:
            self._free(number)
        finally:
            self._file(number).unlock()
        return True

    def close(self) -> None:
        """Let go of the number."""
        while self._files:
            self._files.popitem()[1].close()
        self._mine = None

    def _file(self, number: int) -> LockFile:
        if number not in self._files:
            try:
                make_folders(self._folder)
                self._files[number] = LockFile(self._folder / f"{number}.lock")
            except OSError as error:
                raise StorageReadOnly(f"{self._folder} cannot be used ({error.strerror})") from error
        return self._files[number]


log = structlog.get_logger()

T = TypeVar("T")

PENDING, RECOVERED, ABANDONED = "pending", "recovered", "abandoned"

_TABLE = """CREATE TABLE dead_letter(
    event_id TEXT PRIMARY KEY,
    event_type TEXT NOT NULL,
    payload TEXT NOT NULL,
    handler_name TEXT NOT NULL,
    error TEXT NOT NULL,
    retry_count INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL,
    last_retry_at TEXT,
    source TEXT NOT NULL DEFAULT 'unknown',
    status TEXT NOT NULL DEFAULT 'pending',
    subscription TEXT NOT NULL DEFAULT '',
    instance TEXT NOT NULL DEFAULT '',
    routed_event TEXT,
    claimed_until_s REAL NOT NULL DEFAULT 0)"""

_MIGRATIONS = (
    Migration(
        1,
        (
            _TABLE,
            "CREATE INDEX idx_dead_letter_status ON dead_letter(status)",
            "CREATE INDEX idx_dead_letter_event_type ON dead_letter(event_type)",
        ),
    ),
    Migration(2, ("ALTER TABLE dead_letter ADD COLUMN claimed_by INTEGER NOT NULL DEFAULT 0",)),
    Migration(
        3,
        (
            "ALTER TABLE dead_letter ADD COLUMN hash TEXT",  # none: stored by an earlier version
            "CREATE TABLE stored(letters INTEGER NOT NULL)",
            "INSERT INTO stored SELECT count(*) FROM dead_letter",
        ),
    ),
    # Who is through with a letter that goes to several subscriptions: a retry is for the others.
    Migration(
        4,
        (
            """CREATE TABLE handled(event_id TEXT NOT NULL, subscription TEXT NOT NULL,
                PRIMARY KEY(event_id, subscription)) WITHOUT ROWID""",
        ),
    ),
)
STORED = ".stored"  # after the name of the database: the file beside it
_LETTERS_MAX = 10**12


# By `julianday`: times bear an offset, so their texts do not sort by time.
_FIND_OLDEST = """SELECT * FROM dead_letter
    WHERE (:status IS NULL OR status = :status) AND (:event_type IS NULL OR event_type = :event_type)
    ORDER BY julianday(created_at), rowid LIMIT :limit"""
_FIND_NEWEST = _FIND_OLDEST.replace(
    "ORDER BY julianday(created_at), rowid", "ORDER BY julianday(created_at) DESC, rowid DESC"
)


@dataclass(slots=True)
class FailedEvent:
    """One event that one handler did not handle. `event_id` names this dead letter."""

    event_id: str
    event_type: str
    payload: dict[str, Any]
    handler_name: str
    error: str
    retry_count: int = 0
    created_at: str = ""
    last_retry_at: str | None = None
    source: str = "unknown"
    status: str = PENDING
    subscription: str = ""
    instance: str = ""
    routed_event: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FailedEvent:
        """Read what `to_dict` wrote, or a row; payloads may be JSON text."""
        values = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        for name in ("payload", "routed_event"):
            if isinstance(found := values.get(name), str):
                values[name] = json.loads(found)
        values["routed_event"] = values.get("routed_event") or {}
        return cls(**values)


def _storable(payload: Mapping[str, Any]) -> str:
    """Return JSON text whatever the payload is: a letter that cannot be kept is an event lost."""
    try:
        return to_json(payload).text.encode(errors="backslashreplace").decode()
    except (ValueError, RecursionError):
        return to_json({"unreadable_payload": storable_text(reprlib.repr(payload))}).text


def iso_of(seconds: float) -> str:
    """Local time with its offset, as people read it."""
    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().isoformat()


def seconds_of(iso: str) -> float:
    """Read a time; one without an offset is local."""
    return datetime.fromisoformat(iso).timestamp()


class DeadLetterStore:
    """All SQL of the dead letters. Calls block; each is short. The first letter makes the file."""

    def __init__(self, path: Path) -> None:
        self.path, self._mark = path, path.with_name(path.name + STORED)
        self._lock, self._slot_lock = threading.Lock(), threading.Lock()
        self._retriers = RetrierSlots(path, self._free_claims_of)
        self._is_made = False
        # Asked before there is a letter, it answers from an empty table in memory: asking makes no files.
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        with translated_errors(path):
            migrate(self._db, path, _MIGRATIONS)
        if path.exists() or self._mark.exists():  # a mark without a file: letters are lost, which is said
            self._open()

    def _open(self) -> None:
        """Go over to the file, made if it is absent."""
        path = self.path
        config = SqliteConfig(database=path, blob_dir=path.parent)
        with translated_errors(path):
            create_if_absent(config, _MIGRATIONS)
            fill_if_empty(path, _MIGRATIONS)  # the mark beside it says whether there were letters in it
            # Before the migrations: a database of another program must not be changed.
            check_ours(path)
            db = connect(config)
            db.row_factory = sqlite3.Row
            check_sound(db, path)
            migrate(db, path, _MIGRATIONS)
            found = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'dead_letter'").fetchone()
        if found is None:
            db.close()
            advice = "Nothing was changed. Point RINGRIFT_DLQ_PATH at another file"
            raise ForeignFile(path, found="this database holds no dead letters", advice=advice)
        with self._lock:
            if self._is_made:  # by another thread, meanwhile
                db.close()
                return
            self._db.close()
            self._db, self._is_made = db, True
        if lost := self._do(self._lost):
            log.error(
                "dead_letters.lost",
                path=str(path),
                letters=lost,
                why="the database has fewer than were stored",
            )

    def close(self) -> None:
        self._retriers.close()
        self._db.close()

    def put(self, letter: FailedEvent) -> None:
        """Store a letter. One that is there already becomes pending again and keeps its attempts."""

        def work(db: sqlite3.Connection) -> int:
            # What is lost is added to the count, so that each loss is told once and not at every start.
            db.execute("UPDATE stored SET letters = letters + 1 + ?", (self._lost(db),))
            db.execute(
                """INSERT INTO dead_letter(event_id, event_type, payload, handler_name, error, created_at,
                       source, subscription, instance, routed_event)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                   ON CONFLICT(event_id) DO UPDATE SET error = excluded.error, status = 'pending'""",
                (
                    storable_text(letter.event_id),
                    storable_text(letter.event_type),
                    _storable(letter.payload),
                    storable_text(letter.handler_name),
                    storable_text(letter.error),
                    letter.created_at,
                    storable_text(letter.source),
                    storable_text(letter.subscription),
                    storable_text(letter.instance),
                    _storable(letter.routed_event) if letter.routed_event else None,
                ),
            )
            # Over the row as it is stored: a letter that was there before keeps most of its columns.
            _seal(db, storable_text(letter.event_id))
            return int(db.execute("SELECT letters FROM stored").fetchone()[0])

        if not self._is_made:
            self._open()
        self._write_mark(self._do(work))

    def get(self, letter_id: str) -> FailedEvent | None:
        row = self._do(
            lambda db: db.execute("SELECT * FROM dead_letter WHERE event_id = ?", (letter_id,)).fetchone()
        )
        return next(iter(self._letters([] if row is None else [row])), None)

    def find(
        self,
        *,
        status: str | None,
        event_type: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[FailedEvent]:
        """Return letters in a status (None: in any), oldest first unless asked otherwise."""
        query = _FIND_NEWEST if newest_first else _FIND_OLDEST
        given = {"status": status, "event_type": event_type, "limit": limit}
        rows = self._do(lambda db: db.execute(query, given).fetchall())
        return self._letters(rows)

    def waiting(self, event_type: str | None = None) -> list[tuple[str, int, str | None]]:
        """Return id, attempts and last attempt of every pending letter, oldest first."""
        rows = self._do(
            lambda db: db.execute(
                """SELECT event_id, retry_count, last_retry_at FROM dead_letter
                   WHERE status = 'pending' AND (:event_type IS NULL OR event_type = :event_type)
                   ORDER BY julianday(created_at), rowid""",
                {"event_type": event_type},
            ).fetchall()
        )
        return [(row["event_id"], row["retry_count"], row["last_retry_at"]) for row in rows]

    def claim(self, letter_id: str, *, now_s: float, until_s: float) -> bool:
        """Keep other processes off a pending letter; False if one of them has it.

        A claim that ends later than ours would was made before the clock was set back, and is void. So is
        that of a process that has ended.
        """
        query = """UPDATE dead_letter SET claimed_until_s = ?, claimed_by = ?
            WHERE event_id = ? AND status = 'pending' AND NOT claimed_until_s BETWEEN ? AND ?"""
        # `_lock` is free between two statements; meanwhile no other thread may take or free a number.
        with self._slot_lock:
            given = (until_s, self._retriers.mine(), letter_id, now_s, until_s)
            if self._do(lambda db: db.execute(query, given).rowcount) == 1:
                return True
            if not self._retriers.free_if_gone(self._claimed_by(letter_id)):
                return False
            return self._do(lambda db: db.execute(query, given).rowcount) == 1

    def renew(self, letter_id: str, *, until_s: float) -> None:
        """Keep a claim of ours for longer."""
        query = "UPDATE dead_letter SET claimed_until_s = ? WHERE event_id = ? AND claimed_by = ?"
        with self._slot_lock:
            given = (until_s, letter_id, self._retriers.mine())
            self._do(lambda db: db.execute(query, given))

    def note_handled(self, letter_id: str, subscription: str) -> None:
        """One of the subscriptions that a letter goes to is through with it."""
        query = "INSERT OR IGNORE INTO handled VALUES (?, ?)"
        self._do(lambda db: db.execute(query, (letter_id, subscription)))

    def handled_by(self, letter_id: str) -> frozenset[str]:
        """The subscriptions that are through with a letter which others still wait for."""
        query = "SELECT subscription FROM handled WHERE event_id = ?"
        rows = self._do(lambda db: db.execute(query, (letter_id,)).fetchall())
        return frozenset(row[0] for row in rows)

    def _claimed_by(self, letter_id: str) -> int:
        query = "SELECT claimed_by FROM dead_letter WHERE event_id = ? AND status = 'pending'"
        row = self._do(lambda db: db.execute(query, (letter_id,)).fetchone())
        return 0 if row is None else int(row[0])

    def _free_claims_of(self, retrier: int) -> None:
        query = "UPDATE dead_letter SET claimed_until_s = 0, claimed_by = 0 WHERE claimed_by = ?"
        self._do(lambda db: db.execute(query, (retrier,)))

    def release(self, letter_id: str) -> None:
        """Give a claimed letter back untouched."""
        self._do(
            lambda db: db.execute(
                "UPDATE dead_letter SET claimed_until_s = 0, claimed_by = 0 WHERE event_id = ?", (letter_id,)
            )
        )

    def record_attempt(self, letter_id: str, *, status: str, error: str, retries: int, at: str) -> None:
        """Store how an attempt ended, and let go of the letter."""
        query = """UPDATE dead_letter SET status = ?, error = ?, retry_count = ?, last_retry_at = ?,
            claimed_until_s = 0, claimed_by = 0 WHERE event_id = ?"""
        self._change(letter_id, query, (status, storable_text(error), retries, at, letter_id))

    def make_due(self, letter_id: str) -> bool:
        """Make a letter due at once; an abandoned one gets a fresh set of attempts."""
        query = """UPDATE dead_letter SET last_retry_at = NULL, claimed_until_s = 0, claimed_by = 0,
            retry_count = CASE status WHEN 'abandoned' THEN 0 ELSE retry_count END, status = 'pending'
            WHERE event_id = ? AND status IN ('pending', 'abandoned')"""
        return self._change(letter_id, query, (letter_id,)) == 1

    def abandon(self, letter_id: str) -> None:
        query = "UPDATE dead_letter SET status = 'abandoned' WHERE event_id = ?"
        self._change(letter_id, query, (letter_id,))

    def delete(self, letter_ids: Sequence[str]) -> int:
        def work(db: sqlite3.Connection) -> int:
            pairs = [(letter_id,) for letter_id in letter_ids]
            db.executemany("DELETE FROM handled WHERE event_id = ?", pairs)
            return db.executemany("DELETE FROM dead_letter WHERE event_id = ?", pairs).rowcount

        return self._do(work) if letter_ids else 0

    def ages(self, *, pending: bool) -> list[tuple[str, str]]:
        """Return id and time of creation of the pending letters, or of those that are settled."""
        comparison = "=" if pending else "!="
        query = f"SELECT event_id, created_at FROM dead_letter WHERE status {comparison} 'pending'"
        return [(row[0], row[1]) for row in self._do(lambda db: db.execute(query).fetchall())]

    def count_by(self, column: str, *, pending_only: bool) -> dict[str, int]:
        """Count letters by one of their columns."""
        where = "WHERE status = 'pending'" if pending_only else ""
        # *column* never comes from outside: each caller names a column of the table.
        query = f"SELECT {column}, count(*) FROM dead_letter {where} GROUP BY 1 ORDER BY 2 DESC"
        return {row[0]: row[1] for row in self._do(lambda db: db.execute(query).fetchall())}

    def _change(self, letter_id: str, query: str, given: tuple[Any, ...]) -> int:
        """Change a letter; returns how many it were."""

        def work(db: sqlite3.Connection) -> int:
            changed = db.execute(query, given).rowcount
            if changed:
                _seal(db, letter_id)
            return changed

        return self._do(work)

    def _letters(self, rows: Sequence[sqlite3.Row]) -> list[FailedEvent]:
        """The letters of rows. What is not as it was stored is said; one that cannot be read is left out."""
        found = []
        for row in rows:
            if row["hash"] is not None and row["hash"] != _hash_of(row):
                why = "it is not what was stored: it is damaged, or another program changed it"
                log.warning("dead_letters.changed", path=str(self.path), letter=str(row["event_id"]), why=why)
            try:
                found.append(FailedEvent.from_dict(dict(row)))
            except (ValueError, RecursionError) as error:
                log.error(
                    "dead_letters.damaged", path=str(self.path), letter=str(row["event_id"]), error=str(error)
                )
        return found

    def _lost(self, db: sqlite3.Connection) -> int:
        """How many letters the file beside the database knows and the database does not."""
        try:
            noted = int(self._mark.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return 0  # it is written with the next letter
        if noted > _LETTERS_MAX:  # nobody stored so many: it is damaged
            return 0
        return max(0, noted - int(db.execute("SELECT letters FROM stored").fetchone()[0]))

    def _write_mark(self, letters: int) -> None:
        """In one write, after the letter. It guards against loss of files, not power cuts: no sync."""
        with translated_errors(self._mark):
            descriptor = open_private(self._mark, os.O_WRONLY | os.O_CREAT)
            try:
                # Of fixed width: no digits of a longer number stay behind.
                os.pwrite(descriptor, f"{letters:020d}\n".encode("ascii"), 0)
            finally:
                os.close(descriptor)

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run *work* in one transaction; the letters of a failed one are untouched."""
        if not self._is_made and self.path.exists():  # another process has made it
            self._open()
        with self._lock, translated_errors(self.path):
            # IMMEDIATE: a transaction that reads first and writes later is refused, without a wait, when
            # another process has written in between.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work(self._db)
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            return result


def _seal(db: sqlite3.Connection, letter_id: str) -> None:
    row = db.execute("SELECT * FROM dead_letter WHERE event_id = ?", (letter_id,)).fetchone()
    db.execute("UPDATE dead_letter SET hash = ? WHERE event_id = ?", (_hash_of(row), letter_id))


def _hash_of(row: sqlite3.Row) -> str:
    """Of all that a letter says; who is at work on it is not part of that."""
    return row_hash(row[name] for name in FailedEvent.__dataclass_fields__)
