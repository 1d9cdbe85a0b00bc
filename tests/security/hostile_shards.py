"""Shards as an attacker would write them: each function changes a sound one."""

import json
import shutil
import sqlite3


def changed(shard, target, *statements, writable_schema=False):
    shutil.copy(shard, target)
    db = sqlite3.connect(target, isolation_level=None)
    if writable_schema:
        db.execute("PRAGMA writable_schema = ON")
    for statement in statements:
        db.execute(*statement) if isinstance(statement, tuple) else db.execute(statement)
    db.close()
    return target


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
DEEP = json.dumps({"a": 1}).replace("1", "[" * 50_000 + "]" * 50_000)

# Name: the statements, and what the refusal says.
HOSTILE = {
    "view_in_place_of_a_table": (
        [
            "DROP TABLE schema_metadata",
            f"CREATE VIEW schema_metadata AS {ENDLESS} SELECT x AS key, x AS value FROM n",
        ],
        "a view 'schema_metadata' that is not ours",
    ),
    "view_beside": (["CREATE VIEW v AS SELECT 1"], "a view 'v' that is not ours"),
    "trigger": (
        ["CREATE TRIGGER t AFTER DELETE ON games BEGIN SELECT 1; END"],
        "a trigger 't' that is not ours",
    ),
    "virtual_table": (["CREATE VIRTUAL TABLE f USING fts5(x)"], "that is not ours"),
    "index_on_an_expression": (
        ["CREATE INDEX i ON games (abs(rng_seed))"],
        "an index 'i' that is not ours".replace("an index", "a index"),
    ),
    "generated_column": (
        ["ALTER TABLE games ADD COLUMN g AS (zeroblob(1000000000))"],
        "declared in another way",
    ),
    "column_with_a_default": (
        ["ALTER TABLE game_players ADD COLUMN d TEXT DEFAULT 'x' COLLATE NOCASE"],
        "declared in another way",
    ),
    "other_type": (
        ["ALTER TABLE games RENAME COLUMN winner TO loser"],
        "differ in the column 'loser'",
    ),
    "two_tables_on_one_page": (
        [
            "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'games') "
            "WHERE name = 'game_moves'"
        ],
        "the database is damaged",
    ),
    "text_that_goes_on_behind_a_nul": (
        ["UPDATE games SET source = 'a' || char(0) || hex(zeroblob(1000000))"],
        "games.source holds a value",
    ),
    "text_for_a_number": (["UPDATE games SET rng_seed = 'x'"], "games.rng_seed holds a value"),
    "blob_for_a_text": (["UPDATE game_moves SET move_type = x'00'"], "game_moves.move_type holds a value"),
    "endless_time": (["UPDATE games SET completed_at = 9e999"], "games.completed_at holds a value"),
    "long_name": (["UPDATE games SET game_id = game_id || printf('%.*c', 5000, 'x')"], "games.game_id holds"),
    "value_of_20_mib": (
        ["INSERT INTO schema_metadata VALUES ('x', printf('%.*c', 20971520, 'x'))"],
        "too big",
    ),
    "policy_of_two_mib": (
        ["UPDATE game_moves SET move_probs = zeroblob(2097152)"],
        "move_probs holds a value",
    ),
    "a_thousand_facts": (
        [
            "INSERT INTO schema_metadata WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n "
            "WHERE x < 1000) SELECT 'fact' || x, '' FROM n"
        ],
        "more than 100 facts",
    ),
    "games_that_are_no_number": (
        ["UPDATE schema_metadata SET value = 'x' WHERE key = 'games'"],
        "of x games are there",
    ),
}
# The same for single games: the shard is read, the game refused.
HOSTILE_GAMES = {
    "a_million_million_players": ["UPDATE games SET num_players = 1000000000000"],
    "no_player": ["UPDATE games SET num_players = 0"],
    "one_value_for_all": ["UPDATE game_moves SET root_values = x'00000000'"],
    "values_that_are_no_numbers": ["UPDATE game_moves SET root_values = x'0000c07f0000c07f'"],
    "values_beyond_one": ["UPDATE game_moves SET root_values = x'0000804500008045'"],
    "metadata_without_bottom": [("UPDATE games SET metadata_json = ?", (DEEP,))],
    "metadata_that_is_no_object": ["UPDATE games SET metadata_json = '[]'"],
    "source_that_rewrites_the_terminal": ["UPDATE games SET source = char(27) || '[2J'"],
    "action_beyond_32_bits": ["UPDATE game_moves SET action = 4294967296"],
    "policy_of_odd_size": ["UPDATE game_moves SET move_probs = x'000000'"],
    "policy_that_is_no_number": ["UPDATE game_moves SET move_probs = x'000000000000c07f'"],
}
