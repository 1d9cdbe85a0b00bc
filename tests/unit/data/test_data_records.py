"""Records of ratings and models: merged between nodes, the same in whatever order, never as live files."""

import sqlite3
import threading

import pytest
from guards_world import World, nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.coordination.database_sync_manager import RatingRecordSync, RatingSyncDaemon, RegistryRecordSync
from ringrift.data.artifacts import ArtifactKind
from ringrift.data.files import snapshot_database
from ringrift.data.table_merge import RecordTable, merge_database
from ringrift.data.transactions import TransactionLog
from ringrift.errors import ConfigError, Corrupt, Unavailable

MODELS = RecordTable(table="models", key=("model_id",), age="updated_at")


def write_models(path, rows, *, extra=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS models "
            f"(model_id TEXT PRIMARY KEY, elo REAL, updated_at REAL {extra})"
        )
        database.executemany("INSERT OR REPLACE INTO models (model_id, elo, updated_at) VALUES (?,?,?)", rows)
    database.close()


def rows_of(path, table="models"):
    with sqlite3.connect(path) as database:
        found = sorted(database.execute(f"SELECT * FROM {table}").fetchall())
    database.close()
    return found


RECORDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 2.0])), max_size=6
)


@settings(max_examples=20, deadline=None)
@given(first=RECORDS, second=RECORDS, third=RECORDS)
def test_every_order_of_merging_ends_with_the_same_records(tmp_path_factory, first, second, third):
    folder = tmp_path_factory.mktemp("merge")
    paths = []
    for number, rows in enumerate((first, second, third)):
        paths.append(folder / f"{number}.db")
        write_models(paths[-1], rows)
    ends = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 0, 2, 1, 1)):
        local = folder / f"local-{''.join(map(str, order))}.db"
        for number in order:
            merge_database(local, paths[number], [MODELS])
        ends.append(rows_of(local))
    assert all(end == ends[0] for end in ends)
    again = merge_database(folder / "local-012.db", paths[0], [MODELS])
    assert again.changed == 0, "merging the same again changes nothing"


def test_a_newer_record_replaces_an_older_one_and_not_the_other_way_round(tmp_path):
    mine, theirs = tmp_path / "mine.db", tmp_path / "theirs.db"
    write_models(mine, [("a", 1500.0, 5.0), ("b", 1500.0, 5.0)])
    write_models(theirs, [("a", 1600.0, 6.0), ("b", 1400.0, 4.0), ("c", 1.0, 1.0)])
    merged = merge_database(mine, theirs, [MODELS])
    assert (merged.added, merged.replaced, merged.kept) == (1, 1, 1)
    assert rows_of(mine) == [("a", 1600.0, 6.0), ("b", 1500.0, 5.0), ("c", 1.0, 1.0)]


def test_a_column_that_one_side_lacks_is_an_error_and_changes_nothing(tmp_path):
    mine, theirs = tmp_path / "mine.db", tmp_path / "theirs.db"
    write_models(mine, [("a", 1.0, 1.0)])
    write_models(theirs, [("b", 1.0, 1.0)], extra=", note TEXT")
    with pytest.raises(ConfigError, match="note"):
        merge_database(mine, theirs, [MODELS])
    assert rows_of(mine) == [("a", 1.0, 1.0)]


def test_a_merge_that_breaks_in_the_middle_leaves_all_as_it_was(tmp_path):
    mine, theirs = tmp_path / "mine.db", tmp_path / "theirs.db"
    write_models(mine, [("a", 1.0, 1.0)])
    with sqlite3.connect(mine) as database:
        database.execute(
            "CREATE TRIGGER stop BEFORE INSERT ON models WHEN NEW.model_id = 'c' "
            "BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    database.close()
    write_models(theirs, [("b", 1.0, 1.0), ("c", 1.0, 1.0)])
    with pytest.raises(Corrupt):
        merge_database(mine, theirs, [MODELS])
    assert rows_of(mine) == [("a", 1.0, 1.0)]


def test_row_10_a_snapshot_taken_while_others_write_is_whole(tmp_path):
    """Live files copied as db and wal were corrupt; only the backup API's snapshots leave a node."""
    live = tmp_path / "live.db"
    write_models(live, [("a", 0.0, 0.0)])
    with sqlite3.connect(live) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE pairs (number INTEGER, half TEXT)")
    database.close()
    stop = threading.Event()

    def write():
        writer = sqlite3.connect(live, timeout=10)
        for number in range(100_000):
            if stop.is_set():
                break
            with writer:
                writer.executemany("INSERT INTO pairs VALUES (?, ?)", [(number, "left"), (number, "right")])
        writer.close()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for number in range(4):
            copy = tmp_path / f"copy-{number}.db"
            snapshot_database(live, copy)
            found = sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)
            assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            uneven = "SELECT count(*) FROM (SELECT number FROM pairs GROUP BY number HAVING count(*) != 2)"
            assert found.execute(uneven).fetchone() == (0,)
            found.close()
            assert not copy.with_name(f"{copy.name}-wal").exists()
    finally:
        stop.set()
        writing.join()


async def test_two_nodes_end_up_with_the_same_records(tmp_path):
    world = World(*nodes("a", "b"))
    mine = RegistryRecordSync(world.planes["a"], db_path=tmp_path / "a" / "registry.db")
    theirs = RegistryRecordSync(world.planes["b"], db_path=tmp_path / "b" / "registry.db")
    write_models(mine.db_path, [("m1", 1500.0, 1.0), ("m2", 1510.0, 9.0)])
    write_models(theirs.db_path, [("m2", 1400.0, 2.0), ("m3", 1600.0, 1.0)])
    await mine.sync()
    await theirs.sync()
    await mine.sync()
    expected = [("m1", 1500.0, 1.0), ("m2", 1510.0, 9.0), ("m3", 1600.0, 1.0)]
    assert rows_of(mine.db_path) == rows_of(theirs.db_path) == expected
    before = len(world.transfers)
    await theirs.sync()
    await mine.sync()
    assert len(world.transfers) - before <= 1, "nothing new, nothing to carry but the last change"
    assert mine.health_check().healthy
    view = [each async for each in _snapshots(world)]
    assert {each.kind for each in view} == {ArtifactKind.SNAPSHOT}
    successors = await world.planes["a"].successors()
    assert successors, "older snapshots live on in newer ones, so that they may be deleted"


async def _snapshots(world):
    for artifact in await world.planes["a"].manifest.artifacts():
        yield artifact


async def test_a_node_without_the_database_gets_one(tmp_path):
    world = World(*nodes("a", "b"))
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("CREATE TABLE matches (match_id TEXT PRIMARY KEY, winner TEXT)")
        database.execute("INSERT INTO matches VALUES ('m', 'x')")
    database.close()
    await RatingRecordSync(world.planes["a"], db_path=tmp_path / "a.db").sync()
    await RatingRecordSync(world.planes["b"], db_path=tmp_path / "new" / "b.db").sync()
    assert rows_of(tmp_path / "new" / "b.db", "matches") == [("m", "x")]


async def test_a_node_that_does_not_answer_is_a_failed_round_and_stops_no_other(tmp_path):
    world = World(*nodes("a", "b", "c"))
    for name in ("b", "c"):
        write_models(tmp_path / f"{name}.db", [(name, 1.0, 1.0)])
        await RegistryRecordSync(world.planes[name], db_path=tmp_path / f"{name}.db").publish()
    world.down = {"b"}
    manager = RegistryRecordSync(world.planes["a"], db_path=tmp_path / "a.db")
    await RatingSyncDaemon(plane=world.planes["a"], managers=[manager], runtime=world.runtime)._run_cycle()
    assert rows_of(tmp_path / "a.db") == [("c", 1.0, 1.0)]
    assert manager.counts.failures == 1
    assert not manager.health_check().healthy
    world.down = set()
    await manager.sync()
    assert [row[0] for row in rows_of(tmp_path / "a.db")] == ["b", "c"]


async def test_a_snapshot_comes_from_another_holder_when_its_own_node_is_down(tmp_path):
    world = World(*nodes("a", "b", "c"))
    a, b = (RegistryRecordSync(world.planes[name], db_path=tmp_path / f"{name}.db") for name in "ab")
    write_models(b.db_path, [("b", 1.0, 1.0)])
    card = await b.publish()
    await world.planes["c"].transfers.fetch(world.planes["c"].nodes["b"], [card])
    world.down = {"b"}
    assert (await a.sync()).added == 1
    assert world.transfers[-1][:2] == ("c", "a")
    assert a.counts.failures == 0


async def test_a_snapshot_that_nobody_sends_names_every_node_that_was_asked(tmp_path):
    world = World(*nodes("a", "b", "c"))
    a, b = (RegistryRecordSync(world.planes[name], db_path=tmp_path / f"{name}.db") for name in "ab")
    write_models(b.db_path, [("b", 1.0, 1.0)])
    card = await b.publish()
    await world.planes["c"].transfers.fetch(world.planes["c"].nodes["b"], [card])
    world.down = {"b"}
    await world.planes["c"].blobs.delete(card.digest)
    assert (await a.sync()).added == 0
    assert "b or a does not answer" in a.counts.last_error
    assert "c does not have it" in a.counts.last_error


async def test_records_are_merged_in_a_transaction_and_a_file_has_one_at_a_time(tmp_path):
    world = World(*nodes("a", "b"))
    theirs = RegistryRecordSync(world.planes["b"], db_path=tmp_path / "b.db")
    write_models(theirs.db_path, [("m1", 1500.0, 1.0)])
    await theirs.sync()
    mine = RegistryRecordSync(world.planes["a"], db_path=tmp_path / "a.db")
    write_models(mine.db_path, [("m2", 1400.0, 1.0)])
    somebody = TransactionLog(kv=world.planes["a"].kv, runtime=world.runtime)
    held = await somebody.begin_async("elsewhere", merge_type="by hand")
    await somebody.add_operation_async(held, "update", mine.db_path)
    await mine.sync()
    assert f"belongs to transaction {held}" in mine.counts.last_error
    assert rows_of(mine.db_path) == [("m2", 1400.0, 1.0)]
    await somebody.rollback_async(held)
    await mine.sync()
    assert rows_of(mine.db_path) == [("m1", 1500.0, 1.0), ("m2", 1400.0, 1.0)]
    done = {each.merge_type: each.state for each in await somebody.records_async()}
    assert done == {"by hand": "rolled_back", "records.registry": "committed"}
    assert [path.name for path in tmp_path.iterdir() if ".staged-" in path.name] == []


async def test_a_merge_that_was_decided_on_is_finished_by_the_next_process(tmp_path):
    world = World(*nodes("a", "b"))
    theirs = RegistryRecordSync(world.planes["b"], db_path=tmp_path / "b.db")
    write_models(theirs.db_path, [("m1", 1500.0, 1.0)])
    await theirs.sync()

    class Dying(RegistryRecordSync):
        def _merge_databases(self, remote):
            raise Unavailable("the process ends here")

    dying = Dying(world.planes["a"], db_path=tmp_path / "a.db")
    await dying.sync()
    assert not (tmp_path / "a.db").exists()
    for owned in dying._transactions._owned.values():
        owned.renewal.cancel()
    world.runtime.advance(1000.0)
    await RatingRecordSync(world.planes["a"], db_path=tmp_path / "other.db").sync()
    assert rows_of(tmp_path / "a.db") == [("m1", 1500.0, 1.0)]


async def test_a_merge_that_met_a_locked_database_is_finished_in_the_next_round(tmp_path):
    world = World(*nodes("a", "b"))
    theirs = RegistryRecordSync(world.planes["b"], db_path=tmp_path / "b.db")
    write_models(theirs.db_path, [("m1", 1500.0, 1.0)])
    await theirs.sync()

    class Busy(RegistryRecordSync):
        def _merge_databases(self, remote):
            raise Unavailable("another writes to it")

    mine = Busy(world.planes["a"], db_path=tmp_path / "a.db")
    await mine.sync()
    assert "another writes to it" in mine.counts.last_error
    await mine.sync()
    assert rows_of(tmp_path / "a.db") == [("m1", 1500.0, 1.0)]
