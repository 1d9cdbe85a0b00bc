"""One value, read without opening the engine: for a program that asks one thing and ends.

Nothing is written, no thread is started, and what only an engine needs is not loaded.
"""

from __future__ import annotations

from contextlib import closing

from ringrift.engine.sqlite.checksums import check_entry
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.files import check_ours, connect
from ringrift.engine.sqlite.kv_sql import GET, GET_WITHOUT_CHECKSUM
from ringrift.engine.sqlite.schema import MIGRATIONS, WITHOUT_CHECKSUMS, missing_migrations, schema_version


def glance(config: SqliteConfig, key: str, *, now_s: float) -> bytes | None:
    """Return the value of *key* as it was last committed; None if there is none.

    Raises what opening an engine raises, without its search for damage in parts that are not read.
    """
    path = config.database
    with told_in_our_words(path):
        check_ours(path)
        with closing(connect(config, read_only=True)) as db:
            missing_migrations(db, path, MIGRATIONS)
            if schema_version(db) <= WITHOUT_CHECKSUMS:
                row = db.execute(GET_WITHOUT_CHECKSUM, (key, now_s)).fetchone()
                return None if row is None else bytes(row[0])
            row = db.execute(GET, (key, now_s)).fetchone()
    if row is None:
        return None
    check_entry(path, row)
    return bytes(row[1])
