"""Merging tables of records between databases: by key, in one transaction, the same in whatever order.

A record that only one side has is added. Where both have it and differ, the newer one stays; records without
an age, or of the same age, are chosen by their content, so that every node ends up with the same. Nothing is
left out in silence: a column that one side lacks is an error.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringrift.errors import ConfigError, Corrupt, Unavailable
from ringrift.foreign_files.databases import open_foreign_records

BUSY_S = 10.0
_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTable:
    """One table of records, what makes a record the same, and how its age is known."""

    table: str
    key: tuple[str, ...]
    age: str = ""  # the column that grows when a record changes; empty: records never change

    def __post_init__(self) -> None:
        for name in (self.table, *self.key, *([self.age] if self.age else [])):
            if not name.isidentifier():
                raise ConfigError(f"{name!r} is no name of a table or column")
        if not self.key:
            raise ConfigError(f"table {self.table} needs a key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge changed."""

    added: int = 0
    replaced: int = 0
    kept: int = 0  # differed, and ours stayed

    def __add__(self, other: Merged) -> Merged:
        return Merged(
            added=self.added + other.added,
            replaced=self.replaced + other.replaced,
            kept=self.kept + other.kept,
        )

    @property
    def changed(self) -> int:
        return self.added + self.replaced


def merge_database(local: Path, snapshot: Path, tables: Sequence[RecordTable]) -> Merged:
    """Take the records of *snapshot* into *local*, all or none. Tables that *local* lacks are made."""
    total = Merged()
    names = [table.table for table in tables]
    with (
        open_foreign_records(snapshot, names, advice="Leave it; fetch it again") as (theirs, found),
        _opened(local, mode="rwc") as ours,
    ):
        ours.execute("BEGIN IMMEDIATE")
        try:
            for table in tables:
                if table.table in found:
                    total += _merge_table(ours, theirs, table, snapshot, found[table.table])
        except BaseException:
            ours.execute("ROLLBACK")
            raise
        ours.execute("COMMIT")
    return total


def count_records(path: Path, tables: Sequence[RecordTable]) -> int:
    if not path.exists():
        return 0
    with _opened(path, mode="ro") as database:
        return sum(
            database.execute(f"SELECT count(*) FROM {table.table}").fetchone()[0]
            for table in tables
            if _columns(database, table.table)
        )


@contextlib.contextmanager
def _opened(path: Path, *, mode: str) -> Iterator[sqlite3.Connection]:
    try:
        database = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.OperationalError as error:
        raise Unavailable(f"{path} cannot be opened: {error}") from None
    try:
        yield database
    except sqlite3.OperationalError as error:
        raise Unavailable(f"{path} is busy: {error}") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # its message may quote the damage
        raise Corrupt(path, found=str(error), advice="It is left as it is") from None
    finally:
        database.close()


def _columns(database: sqlite3.Connection, table: str) -> tuple[str, ...]:
    return tuple(row[1] for row in database.execute(f"PRAGMA table_info({table})"))


def _merge_table(
    ours: sqlite3.Connection,
    theirs: sqlite3.Connection,
    rules: RecordTable,
    snapshot: Path,
    columns: Mapping[str, str],
) -> Merged:
    if not _columns(ours, rules.table) and set(rules.key) <= columns.keys():
        # From the names and types alone: a declaration that somebody else wrote is not run here.
        fields = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
        ours.execute(f"CREATE TABLE {rules.table} ({fields}, PRIMARY KEY ({', '.join(rules.key)}))")
    mine = _columns(ours, rules.table)
    if differing := sorted(set(mine) ^ set(columns)):
        raise ConfigError(
            f"table {rules.table} of {snapshot.name} differs in the column {differing[0]!r}; "
            "both sides must have the same before their records are merged"
        )
    if missing := [name for name in (*rules.key, rules.age) if name and name not in columns]:
        raise ConfigError(f"table {rules.table} of {snapshot.name} has no column {missing[0]!r}")
    total = Merged()
    rows = theirs.execute(f"SELECT {', '.join(mine)} FROM {rules.table}")
    while batch := rows.fetchmany(_BATCH):
        for row in batch:
            total += _merge_row(ours, rules, mine, row)
    return total


def _merge_row(
    ours: sqlite3.Connection, rules: RecordTable, columns: tuple[str, ...], row: tuple[object, ...]
) -> Merged:
    places = [columns.index(name) for name in rules.key]
    where = " AND ".join(f"{name} IS ?" for name in rules.key)
    key = [row[place] for place in places]
    found = ours.execute(
        f"SELECT {', '.join(columns)} FROM {rules.table} WHERE {where}",
        key,
    ).fetchone()
    if found == row:
        return Merged()
    if found is not None and not _wins(rules, columns, row, found):
        return Merged(kept=1)
    if found is not None:
        ours.execute(f"DELETE FROM {rules.table} WHERE {where}", key)
    marks = ", ".join("?" * len(columns))
    ours.execute(
        f"INSERT INTO {rules.table} ({', '.join(columns)}) VALUES ({marks})",
        row,
    )
    return Merged(added=1) if found is None else Merged(replaced=1)


def _wins(
    rules: RecordTable, columns: tuple[str, ...], new: tuple[object, ...], old: tuple[object, ...]
) -> bool:
    """Newer wins; of the same age the one that any node would choose."""
    if rules.age:
        place = columns.index(rules.age)
        if (ages := (_order(new[place]), _order(old[place])))[0] != ages[1]:
            return ages[0] > ages[1]
    # By name, because two databases may have their columns in another order.
    by_name = sorted(range(len(columns)), key=columns.__getitem__)
    return [_order(new[place]) for place in by_name] > [_order(old[place]) for place in by_name]


def _order(value: object) -> tuple[int, float, str]:
    """An order over everything that SQLite holds: nothing, numbers, then the rest as text."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, float(value), repr(value))
    return (2, 0.0, repr(value))
