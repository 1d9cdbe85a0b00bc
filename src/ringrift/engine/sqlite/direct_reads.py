"""One value, read without opening the engine: for a program that asks one thing and ends.

Nothing is written, no thread is started, and what only an engine needs is not loaded.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from ringrift.clock import wall_s
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.files import SqliteConfig, check_ours, connect
from ringrift.engine.sqlite.queries import GET_ENTRY, GET_ENTRY_WITHOUT_CHECKSUM, KEYS, LAST_REVISION_OF
from ringrift.engine.sqlite.schema import (
    MIGRATIONS,
    TIME_KEPT,
    WITHOUT_CHECKSUMS,
    check_entry,
    missing_migrations,
    schema_version,
    time_of,
)


class CommittedValue(NamedTuple):
    """The value of a key as it was last committed, None if there is none; and the engine's time."""

    value: bytes | None
    now_s: float


def read_committed_revision(config: SqliteConfig, key: str) -> int:
    """Return the revision of the last change of *key*, 0 if none; raises as `read_committed` does."""
    path = config.database
    with translated_errors(path):
        check_ours(path)
        with closing(connect(config, read_only=True)) as db:
            row = db.execute(LAST_REVISION_OF, (key,)).fetchone()
    return 0 if row is None else int(row[0])


def read_committed_keys(config: SqliteConfig, prefix: str) -> list[str]:
    """Return the keys under *prefix* in order; raises as `read_committed` does."""
    path, after = config.database, prefix[:-1] + chr(ord(prefix[-1]) + 1)
    with translated_errors(path):
        check_ours(path)
        with closing(connect(config, read_only=True)) as db:
            return [str(key) for (key,) in db.execute(KEYS, (prefix, after, wall_s()))]


def read_committed(config: SqliteConfig, key: str) -> CommittedValue:
    """Look at *key*.

    Raises what opening an engine raises, without its search for damage in parts that are not read.
    """
    path = config.database
    with translated_errors(path):
        check_ours(path)
        with closing(connect(config, read_only=True)) as db:
            missing = missing_migrations(db, path, MIGRATIONS)
            now_s = wall_s() if TIME_KEPT in missing else time_of(db)
            if schema_version(db) <= WITHOUT_CHECKSUMS:
                row = db.execute(GET_ENTRY_WITHOUT_CHECKSUM, (key, now_s)).fetchone()
                return CommittedValue(None if row is None else bytes(row[0]), now_s)
            row = db.execute(GET_ENTRY, (key, now_s)).fetchone()
    if row is None:
        return CommittedValue(None, now_s)
    check_entry(path, row)
    return CommittedValue(bytes(row[1]), now_s)
