"""The tables of a game shard and the header that marks the file as one."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

from ringrift.errors import ConfigError, Corrupt, ForeignFile, SchemaTooNew
from ringrift.foreign_files.content_kinds import GAMES_ID
from ringrift.foreign_files.databases import VALUE_BYTES_MAX, ForeignColumn, ForeignTable
from ringrift.foreign_files.paths import open_regular

SCHEMA_VERSION = 19  # versions up to 18 belong to databases of an earlier program, which kept no policies
GAME_TABLES = ("games", "game_players", "game_moves")
COPY_ADVICE = "Fetch the shard again from a place that has a verified copy"

_HEADER_BYTES = 100  # of a SQLite file, by its specification
_MAGIC = b"SQLite format 3\x00"

TABLES = """
CREATE TABLE schema_metadata (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE games (
  game_id TEXT PRIMARY KEY,
  config_key TEXT NOT NULL,
  num_players INTEGER NOT NULL,
  rng_seed INTEGER NOT NULL,
  run_id TEXT NOT NULL,
  run_index INTEGER NOT NULL,
  created_at REAL NOT NULL,
  completed_at REAL NOT NULL,
  duration_ms INTEGER NOT NULL,
  game_status TEXT NOT NULL CHECK (game_status = 'completed'),
  winner INTEGER,
  termination_reason TEXT NOT NULL,
  total_moves INTEGER NOT NULL CHECK (total_moves > 0),
  total_turns INTEGER NOT NULL,
  policy_rows INTEGER NOT NULL,
  source TEXT NOT NULL,
  engine_mode TEXT NOT NULL,
  generator_sha256 TEXT,
  search_budget INTEGER,
  schema_version INTEGER NOT NULL,
  fingerprint TEXT NOT NULL,
  metadata_json TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE game_players (
  game_id TEXT NOT NULL REFERENCES games,
  player_number INTEGER NOT NULL,
  player_type TEXT NOT NULL,
  ai_type TEXT NOT NULL,
  name TEXT NOT NULL,
  model_sha256 TEXT,
  simulations INTEGER,
  result REAL NOT NULL,
  ranking INTEGER NOT NULL,
  PRIMARY KEY (game_id, player_number)
) WITHOUT ROWID;
CREATE TABLE game_moves (
  game_id TEXT NOT NULL REFERENCES games,
  move_number INTEGER NOT NULL,
  turn_number INTEGER NOT NULL,
  player INTEGER NOT NULL,
  phase TEXT,
  move_type TEXT NOT NULL,
  action INTEGER NOT NULL,
  move_text TEXT NOT NULL,
  move_probs BLOB,
  root_values BLOB,
  PRIMARY KEY (game_id, move_number)
) WITHOUT ROWID;
"""

_ID_MAX, _WORD_MAX, _NAME_MAX, _TEXT_MAX = 200, 100, 4096, 1 << 20  # characters
POLICY_BYTES_MAX = 1 << 20
PLAYERS_MAX = 16


def _texts(length_max: int, *names: str, null: bool = False) -> tuple[ForeignColumn, ...]:
    return tuple(ForeignColumn(name, "text", length_max, null) for name in names)


def _numbers(kind: str, *names: str, null: bool = False) -> tuple[ForeignColumn, ...]:
    return tuple(ForeignColumn(name, kind, null=null) for name in names)


# The same tables, as they must be in a file that somebody else wrote; games need far less than the lengths.
TABLE_RULES = {
    "schema_metadata": ForeignTable((*_texts(_ID_MAX, "key"), *_texts(VALUE_BYTES_MAX, "value"))),
    "games": ForeignTable(
        (
            *_texts(_ID_MAX, "game_id", "config_key", "run_id"),
            *_numbers("integer", "num_players", "rng_seed", "run_index", "duration_ms", "total_moves"),
            *_numbers("integer", "total_turns", "policy_rows", "schema_version"),
            *_numbers("integer", "winner", "search_budget", null=True),
            *_numbers("real", "created_at", "completed_at"),
            *_texts(_WORD_MAX, "game_status", "termination_reason", "source", "engine_mode", "fingerprint"),
            *_texts(_WORD_MAX, "generator_sha256", null=True),
            *_texts(_TEXT_MAX, "metadata_json"),
        ),
        checks=("CHECK (game_status = 'completed')", "CHECK (total_moves > 0)"),
        unique="game_id",
    ),
    "game_players": ForeignTable(
        (
            *_texts(_ID_MAX, "game_id"),
            *_texts(_WORD_MAX, "player_type", "ai_type"),
            *_texts(_NAME_MAX, "name"),
            *_texts(_WORD_MAX, "model_sha256", null=True),
            *_numbers("integer", "player_number", "ranking"),
            *_numbers("integer", "simulations", null=True),
            *_numbers("real", "result"),
        )
    ),
    "game_moves": ForeignTable(
        (
            *_texts(_ID_MAX, "game_id"),
            *_numbers("integer", "move_number", "turn_number", "player", "action"),
            *_texts(_WORD_MAX, "phase", null=True),
            *_texts(_WORD_MAX, "move_type"),
            *_texts(_NAME_MAX, "move_text"),
            ForeignColumn("move_probs", "blob", POLICY_BYTES_MAX, null=True),
            ForeignColumn("root_values", "blob", 4 * PLAYERS_MAX, null=True),
        )
    ),
}


def create_tables(db: sqlite3.Connection) -> None:
    """Make an empty shard of *db*, all at once: whoever is killed meanwhile leaves nothing half-made."""
    db.executescript(
        f"BEGIN; PRAGMA application_id = {GAMES_ID}; PRAGMA user_version = {SCHEMA_VERSION};{TABLES}; COMMIT;"
    )


def check_header(path: Path) -> None:
    """Raise unless the file's header says that it is a shard this version can read."""
    try:
        with open_regular(path) as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(header) < _HEADER_BYTES:
        raise Corrupt(path, found=f"the file ends after {len(header)} bytes", advice=COPY_ADVICE)
    if not header.startswith(_MAGIC):
        raise ForeignFile(path, found="this is not a SQLite file", advice="Name game shards only")
    # Read from the bytes: opening a foreign file with SQLite would already run what it holds.
    version, application = struct.unpack(">60xI4xI28x", header)
    if application != GAMES_ID:
        raise ForeignFile(path, found="this SQLite file is no game shard", advice="Name game shards only")
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(path, found=f"schema version {version}", advice="Update this package to read it")
    if version < SCHEMA_VERSION:
        raise Corrupt(path, found=f"schema version {version}", advice="Write the games again")
