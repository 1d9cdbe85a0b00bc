"""Whether all of a database is as it was stored: form, checksums, and what its tables say of each other.

For whoever wants to know before he relies on it: a start, the doctor. It reads all of it and changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice

from ringrift.engine.sqlite.checksums import of_entry, of_event, of_result, of_work
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.engine.sqlite.files import check_ours, connect
from ringrift.engine.sqlite.queue_sql import Code
from ringrift.engine.sqlite.schema import WITHOUT_CHECKSUMS, schema_version

PROBLEMS_MAX = 20
_ENTRIES = "SELECT key, value, revision, expires_s, checksum FROM kv"
_EVENTS = "SELECT seq, id, type, appended_s, body, checksum FROM event"
_WORK = "SELECT id, payload, trace, checksum, result, result_checksum, state FROM work"
_MISCOUNTED = (
    "SELECT count(*) FROM (SELECT lane, state, count(*) AS items FROM work GROUP BY lane, state"
    " EXCEPT SELECT lane, state, items FROM work_count)"
)
_WITHOUT_LANE = "SELECT count(*) FROM work WHERE lane NOT IN (SELECT id FROM lane)"
_AHEAD = (
    "SELECT (SELECT max(revision) FROM kv) > (SELECT value FROM counter WHERE name = 'revision'),"
    " (SELECT max(token) FROM work) > (SELECT value FROM counter WHERE name = 'token')"
)


def check_form(config: SqliteConfig) -> list[str]:
    """What SQLite finds wrong with the form of the database; blocks while it reads all of it."""
    return _ask(config, _damage)


def check_whole(config: SqliteConfig) -> list[str]:
    """What is wrong with the form or the content, in sentences, at most so many; blocks as `check_form`."""
    return _ask(config, _problems)


def _ask(config: SqliteConfig, question: Callable[[sqlite3.Connection], Iterator[str]]) -> list[str]:
    path = config.database
    with told_in_our_words(path):
        check_ours(path)
        with closing(connect(config, read_only=True)) as db:
            db.execute("BEGIN")  # one moment of a database that others may write
            return list(islice(question(db), PROBLEMS_MAX))


def _problems(db: sqlite3.Connection) -> Iterator[str]:
    yield from _damage(db)
    if schema_version(db) > WITHOUT_CHECKSUMS:
        yield from _changed(db)
        yield from _changed_work(db)
        yield from _disagreements(db)


def _damage(db: sqlite3.Connection) -> Iterator[str]:
    for (found,) in db.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})"):
        if found != "ok":
            yield f"the database is damaged: {found}"


def _changed(db: sqlite3.Connection) -> Iterator[str]:
    for key, value, revision, expires_s, checksum in db.execute(_ENTRIES):
        if checksum != of_entry(key, revision, expires_s, value):
            yield f"the value of {key!r} is not what was stored"
    for seq, event_id, kind, appended_s, body, checksum in db.execute(_EVENTS):
        if checksum != of_event(event_id, kind, appended_s, body):
            yield f"event {seq} ({kind}) is not what was appended"


def _changed_work(db: sqlite3.Connection) -> Iterator[str]:
    codes = set(Code)
    for item_id, payload, trace, checksum, result, result_checksum, state in db.execute(_WORK):
        if checksum != of_work(item_id, payload, trace) or state not in codes:
            yield f"work item {item_id} is not what was added"
        if result is not None and result_checksum != of_result(result):
            yield f"the result of work item {item_id} is not what it was completed with"


def _disagreements(db: sqlite3.Connection) -> Iterator[str]:
    """What one table says against another."""
    (miscounted,), (without_lane,) = db.execute(_MISCOUNTED).fetchone(), db.execute(_WITHOUT_LANE).fetchone()
    if miscounted or without_lane:
        yield "the states of work items are not those that were counted"
    if any(db.execute(_AHEAD).fetchone()):
        yield "a revision or token is larger than the last that was given"
