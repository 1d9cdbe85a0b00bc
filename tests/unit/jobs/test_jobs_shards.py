"""Shards: what goes in comes out, and a file is whole or not there."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections import deque
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from jobs_samples import CONFIG, random_game, write_shard

from ringrift.errors import ConfigError, Corrupt, ForeignFile, SchemaTooNew, StorageFull
from ringrift.games.registry import load_game
from ringrift.jobs.shards.storage import BrokenGame, ShardWriter, open_shard


def test_a_full_disk_is_said_and_loses_no_game(tmp_path):
    writer = ShardWriter(
        tmp_path, "games", load_game(CONFIG), games_per_shard=100, facts={"config_key": CONFIG}
    )
    writer.add(random_game(seed=0))
    pages = writer._db.execute("PRAGMA page_count").fetchone()[0]
    writer._db.execute(f"PRAGMA max_page_count = {pages}")  # as a disk that has no room for more
    adding = (writer.add(random_game(seed=seed)) for seed in range(1, 50))
    with pytest.raises(StorageFull):
        deque(adding, maxlen=0)
    writer.close()
    again = ShardWriter(
        tmp_path, "games", load_game(CONFIG), games_per_shard=100, facts={"config_key": CONFIG}
    )
    assert random_game(seed=0).game_id in again.done_ids()
    again.close()


def games_of(path):
    with open_shard(path) as shard:
        return list(shard.games())


@pytest.mark.parametrize("key", ["connect_four_2p", "square8_2p", "hex8_3p"])
def test_games_come_back_as_they_were(tmp_path, key):
    played = [random_game(key, seed) for seed in range(3)]
    artifact = write_shard(tmp_path, played, key=key)
    for before, after in zip(played, games_of(artifact.path), strict=True):
        stored = after.game
        assert stored.fingerprint() == before.fingerprint() == after.fingerprint
        assert stored.actions.tolist() == before.actions.tolist()
        np.testing.assert_array_equal(stored.policies.probabilities, before.policies.probabilities)
        np.testing.assert_array_equal(stored.root_values, before.root_values)
        assert (stored.seats, stored.winner, stored.metadata) == (
            before.seats,
            before.winner,
            before.metadata,
        )
        assert (stored.termination, stored.completed_s) == (before.termination, before.completed_s)
    assert artifact.counts == {
        "games": 3,
        "moves": sum(len(each.actions) for each in played),
        "rows": sum(each.rows for each in played),
    }


def test_players_alternate_and_moves_are_readable(shard):
    stored = games_of(shard)[0]
    assert stored.moves.players[:4].tolist() == [1, 2, 1, 2]
    # What the machine does not read is there for people, who open the file with SQLite.
    with closing(sqlite3.connect(shard)) as db:
        told = db.execute(
            "SELECT turn_number, move_text FROM game_moves WHERE game_id = ? ORDER BY move_number",
            (stored.game.game_id,),
        ).fetchall()
    assert [turn for turn, _ in told[:3]] == [1, 2, 3]
    assert all(text for _, text in told)


def test_the_phase_is_that_before_the_move(tmp_path):
    played = random_game("square8_2p", 3)
    stored = games_of(write_shard(tmp_path, [played], key="square8_2p").path)[0]
    game = load_game("square8_2p")
    state = game.new_states(1)
    for action, phase in zip(played.actions, stored.moves.phases, strict=True):
        assert phase == game.to_json(state[0])["phase"]
        game.apply(state, np.array([action], dtype=np.int32))
    assert len(set(stored.moves.phases)) > 2


def test_shards_rotate_by_count_and_the_open_file_goes_away(tmp_path):
    write_shard(tmp_path, [random_game(seed=seed) for seed in range(7)], games_per_shard=3)
    counts = []
    for path in sorted(tmp_path.iterdir()):
        with open_shard(path) as shard:
            counts.append((path.name, shard.game_count))
    assert counts == [(f"games-0000{n}.shard.db", size) for n, size in enumerate((3, 3, 1))]


def test_the_same_games_have_the_same_content_digest(tmp_path):
    def digest(folder, seeds):
        with open_shard(
            write_shard(tmp_path / folder, [random_game(seed=seed) for seed in seeds]).path
        ) as found:
            return found.metadata["content_sha256"]

    assert digest("a", range(3)) == digest("b", range(3)) != digest("c", range(1, 4))


def test_other_files_are_refused_by_what_they_are(tmp_path, shard):
    with pytest.raises(ConfigError, match="No such file"), open_shard(tmp_path / "missing.db"):
        pass
    text = tmp_path / "text.db"
    text.write_bytes(b"x" * 200)
    with pytest.raises(ForeignFile, match="not a SQLite file"), open_shard(text):
        pass
    foreign = tmp_path / "foreign.db"
    sqlite3.connect(foreign).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(ForeignFile, match="no game shard"), open_shard(foreign):
        pass
    newer = tmp_path / "newer.db"
    newer.write_bytes(shard.read_bytes())
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SchemaTooNew, match="99"), open_shard(newer):
        pass


def test_a_damaged_shard_is_refused(shard):
    content = bytearray(shard.read_bytes())
    content[4096:8192] = os.urandom(4096)
    shard.write_bytes(content)
    with pytest.raises(Corrupt, match="damaged"), open_shard(shard):
        pass


def test_a_truncated_shard_is_refused(shard):
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(Corrupt, match="damaged"):
        games_of(shard)


def test_an_empty_writer_seals_nothing(tmp_path):
    assert write_shard(tmp_path, []) is None
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from jobs_samples import random_game
from ringrift.games.registry import load_game
from ringrift.jobs.shards.storage import ShardWriter

writer = ShardWriter(
    Path(sys.argv[1]), "games", load_game("connect_four_2p"), games_per_shard=4,
    facts={"config_key": "connect_four_2p"},
)
if sys.argv[3] == "before the open file is emptied":
    writer._empty = lambda: os.kill(os.getpid(), signal.SIGKILL)
for seed in range(7):
    writer.add(random_game(seed=seed))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("moment", "kept"), [("between games", range(7)), ("before the open file is emptied", range(4))]
)
def test_a_killed_writer_loses_no_committed_game(tmp_path, moment, kept):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", KILLED, str(tmp_path), here, moment]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    writer = ShardWriter(
        tmp_path,
        "games",
        load_game("connect_four_2p"),
        games_per_shard=4,
        facts={"config_key": "connect_four_2p"},
    )
    assert len(writer.done_ids()) == len(kept)
    writer.seal()
    writer.close()
    found = [stored.game.run_index for path in sorted(tmp_path.glob("*.db")) for stored in games_of(path)]
    assert found == list(kept)


KILLED_AT_A_STATEMENT = """
import os, signal, sqlite3, sys
from ringrift.jobs.shards.schema import create_tables

statements = 0

def count(_statement):
    global statements
    statements += 1
    if statements == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.set_trace_callback(count)
create_tables(db)
"""


@pytest.mark.parametrize("statement", [2, 4, 6])
def test_one_that_is_killed_while_it_makes_its_file_can_be_started_again(tmp_path, statement):
    writer = ShardWriter(tmp_path, "run", load_game(CONFIG), games_per_shard=10, facts={})
    path = writer.open_path
    writer.close()
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_AT_A_STATEMENT, str(path), str(statement)], timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    again = ShardWriter(tmp_path, "run", load_game(CONFIG), games_per_shard=10, facts={})
    assert again.done_ids() == set()
    again.close()


def test_a_game_that_cannot_be_read_leaves_those_beside_it_whole(tmp_path):
    played = [random_game(seed=seed) for seed in range(4)]
    path = write_shard(tmp_path, played).path
    with sqlite3.connect(path) as db:
        db.execute("UPDATE game_moves SET move_probs = x'00' WHERE game_id = ?", (played[2].game_id,))
    db.close()
    found = games_of(path)
    assert isinstance(found[2], BrokenGame)
    assert "1 bytes" in found[2].why
    for at in (0, 1, 3):
        assert found[at].game.fingerprint() == played[at].fingerprint() == found[at].fingerprint


# They are read together, by the order of their ids and by what each claims of itself.
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE games SET total_moves = 1",  # fewer than there are
        "UPDATE games SET total_moves = 9000000",
        "DELETE FROM game_moves WHERE game_id = :id AND move_number > 6",
        "DELETE FROM game_moves WHERE game_id = :id AND move_number = 3",
        "DELETE FROM game_moves WHERE game_id = :id",
        "DELETE FROM game_players WHERE game_id = :id AND player_number = 1",
        "UPDATE game_players SET game_id = :other WHERE game_id = :id",
        "UPDATE games SET num_players = 3 WHERE game_id = :id",
    ],
)
def test_what_one_game_claims_wrongly_moves_nothing_to_another(tmp_path, change):
    played = [random_game(seed=seed) for seed in range(150)]  # more than fit into one reading
    path = write_shard(tmp_path, played, games_per_shard=1_000).path
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(change, {"id": played[77].game_id, "other": "nobody"})
        db.commit()
    found = games_of(path)
    assert len(found) == 150
    for at, (before, after) in enumerate(zip(played, found, strict=True)):
        if at == 77:
            continue
        assert after.game.game_id == before.game_id
        assert after.game.fingerprint() == before.fingerprint()
        np.testing.assert_array_equal(after.game.root_values, before.root_values)
        assert after.game.seats == before.seats
