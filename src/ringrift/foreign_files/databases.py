"""SQLite files that somebody else wrote: their tables are compared and their rows checked before one is read.

Nothing in such a file runs: no view, trigger, generated column, expression of an index or virtual table is
let in, and after the checks only reading the known tables is allowed. Work is bounded by the size of the
file, counted in steps of SQLite's machine, so the bound does not depend on how fast this computer is.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringrift.errors import Corrupt
from ringrift.foreign_files.paths import open_regular

VALUE_BYTES_MAX = 16 << 20  # of one value or row; the longest are the facts of a merged file
STEPS_FREE, STEPS_PER_BYTE = 20_000_000, 100
ENTRIES_MAX = 64  # of the schema
COLUMNS_MAX = 100
CACHE_KIB = 1024
_STEPS_AT_ONCE = 10_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: VALUE_BYTES_MAX,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: COLUMNS_MAX,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 4,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_SETTINGS = (
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA mmap_size = 0",
    "PRAGMA temp_store = FILE",  # large files are sorted; that may take a file, but not memory
)
# What a table's declaration may say beside names, types, keys and the checks that we make ourselves.
_EXPRESSIONS = re.compile(
    r"\b(check|default|collate|generated|always|as|select|using)\b|--|/\*", re.IGNORECASE
)
_PLAIN_TYPE = re.compile(r"[A-Za-z ]{0,40}")
_ANY_NUMBER = 1e300


@dataclass(frozen=True, slots=True)
class ForeignColumn:
    """What the values of a column must be."""

    name: str
    kind: str  # text, integer, real, blob
    length_max: int = 0  # of a text or blob
    null: bool = False

    def wrong(self) -> str:
        """An SQL expression that is true where a value is not as it must be."""
        found = f"typeof(\"{self.name}\") <> '{self.kind}'"
        if self.kind in ("text", "blob"):
            found += f' OR length("{self.name}") > {self.length_max}'
        if self.kind == "text":  # its length is counted up to the first NUL, whatever comes behind
            found += f' OR instr("{self.name}", char(0))'
        if self.kind == "real":  # NaN is stored as null
            found += f' OR "{self.name}" NOT BETWEEN {-_ANY_NUMBER} AND {_ANY_NUMBER}'
        if not self.null:
            return f"({found})"
        return f'("{self.name}" IS NOT NULL AND ({found}))'


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table that a file must have."""

    columns: tuple[ForeignColumn, ...]
    checks: tuple[str, ...] = ()  # those of its declaration, word by word
    unique: str = ""  # the column that tells its rows apart, whether or not the file declares it as a key


@contextmanager
def open_foreign_database(
    path: Path, tables: Mapping[str, ForeignTable], *, advice: str, every_value: bool = True
) -> Iterator[sqlite3.Connection]:
    """Open a sealed file that must hold exactly *tables*; raises `Corrupt` with *advice* if it does not.

    Without *every_value* only SQLite's own check is made beforehand: for whoever asks for little and checks
    that. What SQLite finds wrong while the block runs is `Corrupt` too.
    """
    with _opened(path, advice) as db:
        _check_tables(db, tables)
        _check_pages(db)
        if every_value:
            _check_values(db, tables)
        db.set_authorizer(_only_reading(frozenset(tables)))
        yield db


@contextmanager
def open_foreign_records(
    path: Path, names: Sequence[str], *, advice: str
) -> Iterator[tuple[sqlite3.Connection, Mapping[str, Mapping[str, str]]]]:
    """Open a sealed file for those of its tables that are called *names*, whatever columns they have.

    Yields the connection and, for each of them that is there, its columns with their types. A view under such
    a name, or columns that are computed or have odd names, are `Corrupt`.
    """
    with _opened(path, advice) as db:
        found = {name: columns for name in names if (columns := _plain_columns(db, name))}
        _check_pages(db)
        db.set_authorizer(_only_reading(frozenset(found)))
        yield db, found


@contextmanager
def _opened(path: Path, advice: str) -> Iterator[sqlite3.Connection]:
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
    # A sealed file never changes, so SQLite need not look for a journal or take locks.
    place = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    db = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False)
    try:
        restrict(db)
        bound_work(db, size)
        db.execute("PRAGMA query_only = ON")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        yield db
    except (sqlite3.Error, UnicodeDecodeError, _Refused) as error:  # SQLite's message may quote the file
        raise Corrupt(path, found=_in_words(error), advice=advice) from None
    finally:
        db.close()


class _Refused(Exception):
    """The file is not as it must be."""


def restrict(db: sqlite3.Connection) -> None:
    """Bound what a connection takes from any file that it opens, and take nothing in it on trust."""
    for limit, value in _LIMITS.items():
        db.setlimit(limit, value)
    for setting in _SETTINGS:
        db.execute(setting)


def bound_work(db: sqlite3.Connection, size: int) -> None:
    """End statements with `sqlite3.OperationalError` after as much work as *size* bytes may take in all."""
    db.set_progress_handler(_budget(STEPS_FREE + STEPS_PER_BYTE * size), _STEPS_AT_ONCE)


def _check_tables(db: sqlite3.Connection, tables: Mapping[str, ForeignTable]) -> None:
    """Compare what a file declares with *tables*, before SQLite reads any of them."""
    entries = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchmany(ENTRIES_MAX + 1)
    if len(entries) > ENTRIES_MAX:
        raise _Refused(f"it declares more than {ENTRIES_MAX} tables and indexes")
    found: dict[str, str] = {}
    for kind, name, table, sql in entries:
        if kind == "index" and sql is None and table in tables:
            continue  # of a primary key
        if kind != "table" or name not in tables or not isinstance(sql, str):
            raise _Refused(f"it has a {kind} {name!r} that is not ours")
        found[name] = sql
    if missing := sorted(tables.keys() - found.keys()):
        raise _Refused(f"it has no table {missing[0]!r}")
    for name, table in tables.items():
        _check_declaration(name, found[name], table)
        _check_columns(db, name, table)


def _check_pages(db: sqlite3.Connection) -> None:
    """Have SQLite look at every page once: afterwards no two tables share one, and no walk is endless."""
    (counted,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if counted != "ok":
        raise _Refused(f"the database is damaged ({str(counted)[:200]})")


def _check_values(db: sqlite3.Connection, tables: Mapping[str, ForeignTable]) -> None:
    for name, table in tables.items():
        wrong = [column.wrong() for column in table.columns]
        some = f'SELECT {", ".join(wrong)} FROM "{name}" WHERE {" OR ".join(wrong)} LIMIT 1'
        if (row := db.execute(some).fetchone()) is not None:
            column = table.columns[row.index(1)]
            raise _Refused(f"{name}.{column.name} holds a value that cannot be there")
        # Without an index: the file may hold rows that its indexes leave out.
        twice = f'SELECT count(*) > count(DISTINCT "{table.unique}") FROM "{name}" NOT INDEXED'
        if table.unique and db.execute(twice).fetchone()[0]:
            raise _Refused(f"{name}.{table.unique} holds a value twice")


def _plain_columns(db: sqlite3.Connection, name: str) -> dict[str, str]:
    declared = "SELECT type, sql FROM sqlite_schema WHERE name = ?"
    entry = db.execute(declared, (name,)).fetchone()
    if entry is None:
        return {}
    if entry[0] != "table" or not str(entry[1]).upper().startswith("CREATE TABLE"):
        raise _Refused(f"{name} is no plain table")
    rows = db.execute(f'PRAGMA table_xinfo("{name}")').fetchmany(COLUMNS_MAX + 1)
    for _, column, kind, *_, hidden in rows:
        if hidden or len(rows) > COLUMNS_MAX or not column.isidentifier() or not _PLAIN_TYPE.fullmatch(kind):
            raise _Refused(f"{name} has columns that cannot be taken over, such as {column[:40]!r}")
    return {row[1]: row[2] for row in rows}


def _check_declaration(name: str, sql: str, table: ForeignTable) -> None:
    plain = " ".join(sql.split())
    for check in table.checks:
        plain = plain.replace(check, "")
    if not plain.upper().startswith("CREATE TABLE") or _EXPRESSIONS.search(plain):
        raise _Refused(f"its table {name} is declared in another way than ours")


def _check_columns(db: sqlite3.Connection, name: str, table: ForeignTable) -> None:
    found = {row[1]: row for row in db.execute(f'PRAGMA table_xinfo("{name}")').fetchmany(COLUMNS_MAX)}
    ours = {column.name for column in table.columns}
    if odd := sorted(found.keys() ^ ours):
        raise _Refused(f"its {name} and ours differ in the column {odd[0]!r}")
    for column in table.columns:
        _, _, declared, *_, hidden = found[column.name]
        if hidden or str(declared).lower() != column.kind:
            raise _Refused(f"its {name} and ours differ in the column {column.name!r}")


def _budget(steps: int) -> Callable[[], int]:
    left = steps // _STEPS_AT_ONCE

    def spent() -> int:
        nonlocal left
        left -= 1
        return int(left < 0)

    return spent


def _only_reading(tables: frozenset[str]) -> Callable[..., int]:
    def judge(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT or (action == sqlite3.SQLITE_READ and first in tables):
            return sqlite3.SQLITE_OK
        counting = action == sqlite3.SQLITE_FUNCTION and second in ("count", "sum")
        return sqlite3.SQLITE_OK if counting else sqlite3.SQLITE_DENY

    return judge


def _in_words(error: Exception) -> str:
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
        return "reading it takes more work than a file of its size may"
    return str(error) if isinstance(error, _Refused) else f"the database is damaged ({error})"
