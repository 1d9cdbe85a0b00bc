"""Checksums of what callers stored, so that a value comes back as it went in or not at all.

SQLite checks the form of its pages and not their content: a bit that flips inside a value is returned as if
it had been written. Whatever a caller stores is therefore stored with a checksum over it and over what it
belongs to, made before it is written and compared after it is read.
"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from zlib import crc32

from ringrift.engine.sqlite.faults import LOST_ADVICE
from ringrift.errors import Corrupt

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
