"""Scratch tables of one run: on disk, so that memory stays the same however many games there are."""

from __future__ import annotations

import sqlite3

CACHE_KIB = 1024


def scratch_database(tables: str) -> sqlite3.Connection:
    """An empty database with *tables* that nobody else sees; it is gone when it is closed."""
    db = sqlite3.connect("", isolation_level=None)  # no name: SQLite keeps it in a file of its own
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    db.execute("PRAGMA temp_store = FILE")
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    db.executescript(tables)
    return db
