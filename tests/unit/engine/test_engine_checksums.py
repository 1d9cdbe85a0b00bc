"""What was stored comes back as it went in, or not at all, whatever happened to the database meanwhile."""

import sqlite3
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from ringrift.engine.ports import Claimant, LogEvent, NewWork, WorkState
from ringrift.engine.sqlite.direct_reads import read_committed, read_committed_revision
from ringrift.engine.sqlite.files import create_if_absent
from ringrift.engine.sqlite.schema import MIGRATIONS, WITHOUT_CHECKSUMS
from ringrift.errors import Corrupt


def change(config, statement):
    """Change the database behind the engine's back, as a flipped bit does."""
    with closing(sqlite3.connect(config.database)) as db, db:
        assert db.execute(statement).rowcount == 1


@pytest.mark.parametrize(
    "damage",
    ["value = x'373434'", "revision = 77", "expires_s = 9e9", "checksum = checksum + 1", "checksum = NULL"],
)
async def test_a_value_that_is_not_what_was_stored_is_an_error_with_its_key(config, opened, damage):
    engine = await opened(config)
    await engine.kv.put("games", b"144")
    await engine.kv.put("other", b"1")
    change(config, f"UPDATE kv SET {damage} WHERE key = 'games'")
    for read in (
        lambda: engine.kv.get("games"),
        lambda: engine.kv.entries(),
        lambda: engine.kv.changes(after=0),
        lambda: engine.kv.create("games", b"0"),
        lambda: engine.kv.update("games", b"0", revision=1),
    ):
        with pytest.raises(Corrupt, match=r"'games' is not what was stored.*ringrift rebuild"):
            await read()
    with pytest.raises(Corrupt, match=r"'games' is not what was stored.*ringrift rebuild"):
        read_committed(config, "games")
    assert (await engine.kv.get("other")).value == b"1"
    await engine.kv.put("games", b"145")  # whoever knows the value may store it again
    assert (await engine.kv.get("games")).value == b"145"


async def test_work_whose_payload_is_damaged_ends_with_the_reason_and_is_never_given_out(config, opened):
    engine = await opened(config)
    await engine.queue.add([NewWork(id="a", kind="k", payload={"games": 16}), NewWork(id="b", kind="k")])
    change(config, """UPDATE work SET payload = CAST('{"games":96}' AS BLOB) WHERE id = 'a'""")
    claims = await engine.queue.claim(Claimant(worker="w"), lease_s=30, limit=10)
    assert [claim.id for claim in claims] == ["b"]
    item = await engine.queue.get("a")
    assert item.state is WorkState.DEAD
    assert item.payload == {}
    assert "its payload is not what was added" in item.error
    assert [end.item.id for end in await engine.queue.ended(after=0, limit=10)] == ["a"]


async def test_a_name_that_is_no_text_any_more_is_damage_and_is_called_so(config, opened):
    engine = await opened(config)
    await engine.queue.add([NewWork(id="a", kind="k")])
    change(config, "UPDATE work SET id = CAST(x'31ffce' AS TEXT)")
    with pytest.raises(Corrupt, match="the database is damaged"):
        await engine.queue.claim(Claimant(worker="w"), lease_s=30, limit=10)
    with pytest.raises(Corrupt, match="the database is damaged"):
        await engine.queue.unended(after=0, limit=10)


async def test_a_damaged_result_is_no_result(config, opened):
    engine = await opened(config)
    await engine.queue.add([NewWork(id="a", kind="k")])
    (claim,) = await engine.queue.claim(Claimant(worker="w"), lease_s=30)
    await engine.queue.complete("a", token=claim.token, result={"rows": 134})
    change(config, """UPDATE work SET result = CAST('{"rows":174}' AS BLOB) WHERE id = 'a'""")
    item = await engine.queue.get("a")
    assert item.result is None
    assert "its result is not what it was completed with" in item.error


async def test_a_damaged_event_is_left_out_and_said_and_the_later_ones_arrive(config, opened):
    engine = await opened(config)
    await engine.events.append([LogEvent(id=name, type="T", body=name.encode()) for name in "abc"])
    change(config, "UPDATE event SET body = CAST('x' AS BLOB) WHERE id = 'b'")
    with capture_logs() as said:
        assert [record.id for record in await engine.events.read(after=0, limit=10)] == ["a", "c"]
    assert [(line["event"], line["id"]) for line in said] == [("engine.event.damaged", "b")]


async def test_a_database_from_before_checksums_gets_them_when_it_is_opened(config, opened):
    create_if_absent(config, MIGRATIONS[:WITHOUT_CHECKSUMS])
    with closing(sqlite3.connect(config.database)) as db, db:
        db.execute("INSERT INTO kv(key, revision, changed_s, value) VALUES ('games', 7, 0, x'313434')")
    assert read_committed(config, "games").value == b"144"
    engine = await opened(config)
    assert (await engine.kv.get("games")).value == b"144"
    change(config, "UPDATE kv SET value = x'313435' WHERE key = 'games'")
    with pytest.raises(Corrupt, match=r"'games' is not what was stored.*ringrift rebuild"):
        await engine.kv.get("games")


async def test_the_revision_of_a_key_is_told_without_opening_the_engine(config, opened):
    engine = await opened(config)
    revision = await engine.kv.put("marked", b"")
    assert read_committed_revision(config, "marked") == revision
    assert read_committed_revision(config, "never") == 0
