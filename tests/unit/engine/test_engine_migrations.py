"""Schema versions: an old file comes up to date, in whole steps, whatever happens in between."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from ringrift.engine.ports import Claimant, NewWork, WorkState
from ringrift.engine.sqlite.files import create_if_absent
from ringrift.engine.sqlite.queries import Code
from ringrift.engine.sqlite.schema import MIGRATIONS, Migration, make_available, of_entry, of_work
from ringrift.errors import SchemaTooNew
from ringrift.learning.requests import Pauses

NOTES = Migration(
    MIGRATIONS[-1].version + 1,
    (
        "ALTER TABLE work ADD COLUMN note TEXT",
        "UPDATE work SET note = 'from ' || id",
        "CREATE TABLE extra(x INTEGER) STRICT",
    ),
)
INDEX = Migration(NOTES.version + 1, ("CREATE INDEX work_note ON work(note)",))
NEWER = (*MIGRATIONS, NOTES, INDEX)


def look(path, query):
    db = sqlite3.connect(path)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


async def make_old(config, opened):
    engine = await opened(config)
    await engine.queue.add([NewWork(kind="k", id="a"), NewWork(kind="k", id="b")])
    await engine.close()


async def test_versions_follow_each_other():
    assert [migration.version for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


async def test_an_old_database_is_brought_up_to_date(config, opened):
    await make_old(config, opened)
    engine = await opened(config, migrations=NEWER)
    assert look(config.database, "PRAGMA user_version") == [(INDEX.version,)]
    assert look(config.database, "SELECT id, note FROM work") == [("a", "from a"), ("b", "from b")]
    assert [claim.id for claim in await claim_all(engine)] == ["a", "b"]


async def test_a_new_database_gets_every_migration(config, opened):
    await opened(config, migrations=NEWER)
    assert look(config.database, "PRAGMA user_version") == [(INDEX.version,)]
    assert look(config.database, "SELECT count(*) FROM extra") == [(0,)]


async def test_the_older_program_refuses_the_newer_file(config, opened):
    await (await opened(config, migrations=NEWER)).close()
    with pytest.raises(SchemaTooNew):
        await opened(config)


async def test_a_migration_that_fails_leaves_the_version_before_it(config, opened):
    await make_old(config, opened)
    broken = Migration(
        NOTES.version + 1, ("CREATE TABLE half(x INTEGER) STRICT", "SELECT nonsense FROM work")
    )
    with pytest.raises(sqlite3.OperationalError, match="nonsense"):
        await opened(config, migrations=(*MIGRATIONS, NOTES, broken))
    assert look(config.database, "PRAGMA user_version") == [(NOTES.version,)]
    assert look(config.database, "SELECT name FROM sqlite_schema WHERE name = 'half'") == []
    await opened(config, migrations=NEWER)


async def test_a_kill_in_the_middle_of_a_migration_leaves_the_version_before_it(config, opened):
    await make_old(config, opened)
    program = textwrap.dedent(f"""
        import os, signal, sys
        from pathlib import Path
        from ringrift.engine.sqlite.files import SqliteConfig
        from ringrift.engine.sqlite.files import connect
        from ringrift.engine.sqlite.schema import MIGRATIONS, Migration, migrate
        config = SqliteConfig(database=Path(sys.argv[1]), blob_dir=Path(sys.argv[1]).parent)
        db = connect(config)
        db.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
        statements = {NOTES.statements!r} + ("SELECT die()",)
        migrate(db, config.database, (*MIGRATIONS, Migration({NOTES.version}, statements)))
    """)
    done = subprocess.run([sys.executable, "-c", program, str(config.database)], env=os.environ, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert look(config.database, "PRAGMA user_version") == [(MIGRATIONS[-1].version,)]
    engine = await opened(config, migrations=NEWER)
    assert len(await claim_all(engine)) == 2
    assert look(config.database, "PRAGMA user_version") == [(INDEX.version,)]


async def test_ends_from_before_they_were_numbered_come_in_their_order(config, opened):
    await make_first_version(config, opened)
    engine = await opened(config)
    ends = await engine.queue.ended(after=0, limit=10)
    assert [(end.item.id, end.item.state) for end in ends] == [
        ("early", WorkState.DEAD),
        ("late", WorkState.DONE),
        ("later", WorkState.CANCELLED),
    ]
    (claim,) = await claim_all(engine)
    await engine.queue.complete(claim.id, token=claim.token)
    (newest,) = await engine.queue.ended(after=ends[-1].number, limit=10)
    assert newest.item.id == "open"


async def test_work_from_before_it_was_counted_is_counted(config, opened):
    await make_first_version(config, opened)
    engine = await opened(config)
    ended = {WorkState.DONE: 1, WorkState.DEAD: 1, WorkState.CANCELLED: 1}
    assert await engine.queue.counts() == {"k": {WorkState.READY: 1} | ended}
    await claim_all(engine)
    await engine.queue.revive("early")
    assert await engine.queue.counts() == {
        "k": {WorkState.CLAIMED: 1, WorkState.READY: 1, WorkState.DONE: 1, WorkState.CANCELLED: 1}
    }


async def test_a_pause_from_before_the_queue_knew_of_pauses_holds_what_waits(config, opened):
    create_if_absent(config, MIGRATIONS[:5])
    db = sqlite3.connect(config.database, isolation_level=None)
    make_available(db)
    db.execute("INSERT INTO lane(kind, node, requires) VALUES ('k', '', '')")
    for item_id, payload in (
        ("ours", b'{"config": "hex8_2p"}'),
        ("theirs", b'{"config": "square8_2p"}'),
        ("odd", b'{"config": 7}'),
        ("none", b"{}"),
    ):
        db.execute(
            "INSERT INTO work(id, lane, state, priority, attempts_max, not_before_s, added_s, changed_s,"
            " trace, payload, checksum) VALUES (?, 1, 1, 0, 3, 0, 0, 0, x'7b7d', ?, ?)",
            (item_id, payload, of_work(item_id, payload, b"{}")),
        )
    for revision, (key, value) in enumerate(
        (
            ("learning/wish/hex8_2p", b'{"paused": true, "reason": "why"}'),
            ("learning/wish/*", b'{"paused": false}'),
        ),
        7,
    ):
        db.execute(
            "INSERT INTO kv(key, revision, changed_s, value, checksum) VALUES (?, ?, 0, ?, ?)",
            (key, revision, value, of_entry(key, revision, None, value)),
        )
    db.execute("UPDATE counter SET value = 9 WHERE name = 'revision'")
    db.close()
    engine = await opened(config)
    assert {claim.id for claim in await claim_all(engine)} == {"theirs", "odd", "none"}
    assert (await Pauses(engine.kv).get("hex8_2p")).reason == "why"
    assert (await engine.queue.get("ours")).group == "hex8_2p"
    assert await engine.queue.counts() == {"k": {WorkState.READY: 1, WorkState.CLAIMED: 3}}
    await Pauses(engine.kv).end_all()
    assert [claim.id for claim in await claim_all(engine)] == ["ours"]


async def make_first_version(config, opened):
    """A file as the first version of the schema left it, with work in every state."""
    create_if_absent(config, MIGRATIONS[:1])
    db = sqlite3.connect(config.database, isolation_level=None)
    db.execute("INSERT INTO lane(kind, node, requires) VALUES ('k', '', '')")
    for item_id, state, changed_s in (
        ("late", Code.DONE, 20),
        ("early", Code.DEAD, 10),
        ("open", Code.READY, 5),
        ("later", Code.CANCELLED, 30),
    ):
        db.execute(
            "INSERT INTO work(id, lane, state, priority, attempts_max, not_before_s, added_s, changed_s,"
            " trace, payload) VALUES (?, 1, ?, 0, 3, 0, 0, ?, x'7b7d', x'7b7d')",
            (item_id, state, changed_s),
        )
    db.close()


async def claim_all(engine):
    return await engine.queue.claim(Claimant(worker="w"), lease_s=30, limit=100)
