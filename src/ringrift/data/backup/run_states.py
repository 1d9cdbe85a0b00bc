"""The state of a run, the database of its engine, in an archive: taken, checked, thinned, brought back.

Files alone do not say which games were counted and which model leads. With its state a run goes on elsewhere
as it would after a crash at the moment of the snapshot.

    states/<run>/<node>/<time>-<digest>/part-00000     the database, compressed, in parts of up to 1 MiB
    states/<run>/<node>/<time>-<digest>/state.json     what it is; written last, all parts were read back

Files only grow in an archive; states are thinned: all of the last hour stay, one an hour for a day, one a day
for a month, and always the newest.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.artifacts import ArtifactKind
from ringrift.data.backup.archive import STATES, ArchivedFile, ArchiveObjects, ArchivePart, decode, encode
from ringrift.data.files import check_database, prepare_database_for_transfer
from ringrift.data.manifest.store import ARTIFACTS, LOCATIONS
from ringrift.data.protection.records import TOMBSTONES, Tombstone
from ringrift.engine.encoding import decode_value, is_digest
from ringrift.engine.ports import KeyValue
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.engine.sqlite.files import check_ours
from ringrift.engine.sqlite.schema import MIGRATIONS, missing_migrations, schema_version
from ringrift.errors import Corrupt, Unavailable
from ringrift.files import create_file, make_folders, remove_file
from ringrift.health.run_status import CHAMPION_PREFIX, FACT_PREFIX

log = structlog.get_logger()

OLD_NAME = "run-memory.db"  # of snapshots that were archived as files, before states were kept apart
HOUR_S, DAY_S = 3_600.0, 86_400.0
_CARD = "state.json"
_STAMP = "%Y%m%dT%H%M%S.%fZ"
# Keys that also tell of files of other nodes and runs: a digest there is not yet one that this run needs.
_OF_ALL_NODES = (ARTIFACTS, LOCATIONS, "data/")
_ARTIFACT = re.compile(rb'"digest"\s*:\s*"([0-9a-f]{64})"')
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_MODEL = re.compile(rb'"model"\s*:\s*"([0-9a-f]{64})"')
_READ_BYTES = _PART_BYTES = 1 << 20
_LEVEL = 3  # of zlib: a third of the size at 100 MB/s
LOST_NAMED_MAX = 1_000


class RunState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One state in an archive."""

    run: str  # empty: of a version that did not tell
    node: str
    at_s: float
    digest: str  # of the database
    size: int
    parts: tuple[ArchivePart, ...]
    reason: str = ""
    schema: int = 0
    champions: dict[str, str] = {}
    facts: dict[str, int] = {}  # how many, by config
    files: int = 0  # that it names and its node has
    games: int = 0
    content: str = ""  # the same for two states between which nothing happened
    lost: tuple[str, ...] = ()  # files that it names, and that were neither at the node nor in the archive
    as_file: bool = False  # archived as an ordinary file, not compressed

    @property
    def folder(self) -> str:
        stamp = datetime.fromtimestamp(self.at_s, UTC).strftime(_STAMP)
        return f"{state_folder(self.run, self.node)}{stamp}-{self.digest[:12]}/"

    @property
    def key(self) -> str:
        return self.folder + _CARD

    def part_key(self, number: int) -> str:
        return self.parts[number].key if self.as_file else f"{self.folder}part-{number:05d}"


def state_folder(run: str, node: str) -> str:
    return f"{STATES}{quote(run, safe='')}/{quote(node, safe='')}/"


async def leading_models(kv: KeyValue) -> dict[str, str]:
    """Return the champion of each config, as a state would name it."""
    return {
        unquote(entry.key.removeprefix(CHAMPION_PREFIX)): found.group(1).decode()
        for entry in await kv.entries(CHAMPION_PREFIX)
        if (found := _MODEL.search(entry.value))
    }


# --- the snapshot -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotContents:
    """What a snapshot says of files, read from the copy and not from the database that goes on."""

    schema: int
    named: frozenset[str]  # every digest that stands anywhere in it
    of_run: frozenset[str]  # those in facts, pointers and work: in all that is not about files of every node
    needed: frozenset[str]  # files of the run: those of facts and champions, and those that its node had
    held: frozenset[str]  # those of which its node had a receipt
    known: frozenset[str]  # those that its manifest has a card of
    given_up: frozenset[str]  # those that its node deleted by decision
    receipts: Mapping[str, frozenset[str]]  # digest: the names of the nodes that had it
    champions: dict[str, str]
    facts: dict[str, int]
    content: str

    def wanted(self, others: Collection[str]) -> frozenset[str]:
        """What a restore brings, if the archive has it. *others* are the other nodes, archives among them.

        The name of a node may have changed: a receipt of a name that nobody has is one of its own.
        """
        own = {digest for digest, nodes in self.receipts.items() if not nodes <= set(others)}
        return (self.of_run | self.needed | own | (self.named - self.known)) - self._gone()

    def without(self, here: Collection[str], others: Collection[str]) -> frozenset[str]:
        """What is missing of the files of the run, where *here* are; *others* are nodes that may have it."""
        elsewhere = {
            digest
            for digest, nodes in self.receipts.items()
            if digest not in self.held and nodes & set(others)
        }
        return self.needed - self._gone() - set(here) - elsewhere

    def _gone(self) -> frozenset[str]:
        return self.given_up - self.held - set(self.champions.values())


def take_snapshot(database: Path, scratch: Path) -> Path:
    """Copy the engine's database, which may be in use, into *scratch*; checked and without sidecars."""
    return prepare_database_for_transfer(database, scratch)


def read_snapshot(path: Path, node: str) -> SnapshotContents:
    """Look into a snapshot; `Corrupt` or `SchemaTooNew` if this version cannot go on with it."""
    with translated_errors(path):
        check_ours(path)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            missing_migrations(db, path, MIGRATIONS)
            known = {key.removeprefix(ARTIFACTS) for key in _keys(db, ARTIFACTS)}
            receipts = _receipts(db)
            held = frozenset(digest for digest, nodes in receipts.items() if node in nodes)
            facts, files = _facts(db)
            champions = {}
            for key, value in _entries(db, CHAMPION_PREFIX):
                if found := _MODEL.search(value):
                    champions[unquote(key.removeprefix(CHAMPION_PREFIX))] = found.group(1).decode()
                    files.update(_digests(value))
            of_run = _of_run(db)
            return SnapshotContents(
                schema=schema_version(db),
                named=frozenset(of_run | _of_all_nodes(db)),
                of_run=frozenset(of_run),
                needed=held | files,
                held=held,
                known=frozenset(filter(is_digest, known)),
                given_up=_given_up(db, node),
                receipts=receipts,
                champions=champions,
                facts=facts,
                content=_content(db, champions),
            )


def check_snapshot(path: Path) -> None:
    """Have SQLite read all of a snapshot; `Corrupt` if anything in it is damaged."""
    found = check_database(path)
    if not found.ok:
        raise Corrupt(path, found="; ".join(found.errors[:3]), advice="Restore an earlier state with --at")


def _entries(db: sqlite3.Connection, prefix: str) -> Iterator[tuple[str, bytes]]:
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    statement = "SELECT key, value FROM kv WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key"
    for key, value in db.execute(statement, (prefix, after)):
        yield str(key), bytes(value)


def _keys(db: sqlite3.Connection, prefix: str) -> Iterator[str]:
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    statement = "SELECT key FROM kv WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key"
    return (str(row[0]) for row in db.execute(statement, (prefix, after)))


def _receipts(db: sqlite3.Connection) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for key in _keys(db, LOCATIONS):
        digest, _, node = key.removeprefix(LOCATIONS).partition("/")
        if is_digest(digest):
            found[digest] = found.get(digest, frozenset()) | {node}
    return found


def _facts(db: sqlite3.Connection) -> tuple[dict[str, int], set[str]]:
    """How many facts each config has, and the files that they tell of."""
    counts: dict[str, int] = {}
    files: set[str] = set()
    for key, value in _entries(db, FACT_PREFIX):
        config = unquote(key.removeprefix(FACT_PREFIX).rpartition("/")[0])
        counts[config] = counts.get(config, 0) + 1
        files.update(digest.decode() for digest in _ARTIFACT.findall(value))
    return counts, files


def _given_up(db: sqlite3.Connection, node: str) -> frozenset[str]:
    stones = (decode_value(key, value, Tombstone) for key, value in _entries(db, TOMBSTONES))
    return frozenset(stone.digest for stone in stones if node in stone.nodes)


def _of_run(db: sqlite3.Connection) -> set[str]:
    found: set[str] = set()
    for key, value in db.execute("SELECT key, value FROM kv WHERE value IS NOT NULL"):
        if not key.startswith(_OF_ALL_NODES):
            found |= _digests(key) | _digests(value)
    for row in db.execute("SELECT payload, result FROM work"):
        for value in row:
            found |= _digests(value)
    return found


def _of_all_nodes(db: sqlite3.Connection) -> set[str]:
    found: set[str] = set()
    for prefix in _OF_ALL_NODES:
        for key, value in _entries(db, prefix):
            found |= _digests(key) | _digests(value)
    return found


def _digests(value: str | bytes | None) -> set[str]:
    text = b"" if value is None else value.encode() if isinstance(value, str) else bytes(value)
    return {digest.decode() for digest in _DIGEST.findall(text)}


def _content(db: sqlite3.Connection, champions: dict[str, str]) -> str:
    """A hash of what a run has come to; heartbeats, leases and dates of receipts are none of it."""
    whole = hashlib.sha256(repr(sorted(champions.items())).encode())
    for prefix in (FACT_PREFIX, ARTIFACTS, LOCATIONS):
        for key in _keys(db, prefix):
            whole.update(key.encode() + b"\0")
    whole.update(str(db.execute("SELECT max(number) FROM work_end").fetchone()[0]).encode())
    return whole.hexdigest()


# --- in an archive ------------------------------------------------------------------------------------------


class StateArchive:
    """The states of one archive."""

    def __init__(self, objects: ArchiveObjects) -> None:
        self._objects = objects

    async def all(self, *, run: str = "", node: str = "") -> list[RunState]:
        """All states, or those of one run and node; the oldest first.

        One that cannot be read or has lost its description is left out, and whoever asks for all is told.
        """
        prefix = state_folder(run, node) if run and node else STATES
        found, keys = [], await self._objects.keys(prefix)
        folders = {key.rpartition("/")[0] for key in keys}
        for folder in sorted(
            folders.difference(key.rpartition("/")[0] for key in keys if key.endswith("/" + _CARD))
        ):
            if prefix == STATES:  # a run that goes on is not told again and again
                why = "its description is missing: the backup broke off, or it was lost"
                log.error("backup.state_unreadable", key=f"{folder}/{_CARD}", error=why)
        for key in keys:
            if key.endswith("/" + _CARD) and (content := await self._objects.read(key)) is not None:
                try:
                    found.append(decode(key, content, RunState))
                except Corrupt as error:
                    log.error("backup.state_unreadable", key=key, error=error.found)
        return sorted(found, key=lambda state: (state.at_s, state.digest))

    async def put(self, snapshot: Path, state: RunState, *, scratch: Path) -> RunState:
        """Store a snapshot: its parts, then, after each was read back, what it is."""
        packed = scratch / f"{snapshot.name}.zlib"
        try:
            parts = await asyncio.to_thread(_pack, snapshot, packed)
            state = replace(state, parts=parts)
            offset = 0
            for number, part in enumerate(parts):
                await self._put_part(state.part_key(number), part, packed, offset)
                offset += part.size
        finally:
            await asyncio.to_thread(packed.unlink, missing_ok=True)
        await self._objects.create(state.key, encode(state))
        return state

    async def _put_part(self, key: str, part: ArchivePart, packed: Path, offset: int) -> None:
        content = await asyncio.to_thread(_read_at, packed, offset, part.size)
        await self._objects.create(key, content)
        stored = await self._objects.read(key)
        if stored is None or hashlib.sha256(stored).hexdigest() != part.sha256:
            raise Unavailable(f"{key} was stored and reads back wrong", retry_after_s=60.0)

    async def fetch(
        self, state: RunState, target: Path, *, on_read: Callable[[int], None] | None = None
    ) -> None:
        """Write the database of a state to *target*; `Corrupt` names the part that is missing or damaged."""
        with translated_errors(target):
            make_folders(target.parent)
            try:
                with create_file(target) as file:
                    await self._unpack(state, file, on_read)
            except (Corrupt, Unavailable):
                await asyncio.to_thread(remove_file, target)
                raise

    async def _unpack(self, state: RunState, file: BinaryIO, on_read: Callable[[int], None] | None) -> None:
        unpacker, whole, written = zlib.decompressobj(), hashlib.sha256(), 0
        for number, part in enumerate(state.parts):
            key = state.part_key(number)
            content = await self._objects.read(key)
            if content is None:
                raise _damaged(key, "it is missing")
            if len(content) != part.size or hashlib.sha256(content).hexdigest() != part.sha256:
                raise _damaged(key, "its bytes are not those that were stored")
            for plain in [content] if state.as_file else _unpacked(unpacker, content, key):
                written += len(plain)
                if written > state.size:
                    raise _damaged(key, f"it holds more than the {state.size} bytes that it should")
                whole.update(plain)
                await asyncio.to_thread(file.write, plain)
            if on_read is not None:
                on_read(len(content))
        rest = b"" if state.as_file else unpacker.flush(_READ_BYTES)
        whole.update(rest)
        await asyncio.to_thread(file.write, rest)
        if written + len(rest) != state.size or whole.hexdigest() != state.digest:
            raise _damaged(state.key, "its parts do not make the database that it names")

    async def thin(self, run: str, node: str, *, now_s: float) -> int:
        """Remove the states of a node's run that are no longer kept; return how many went."""
        states = await self.all(run=run, node=node)
        kept = states_to_keep([state.at_s for state in states])
        going = [state for state in states if state.at_s not in kept]
        for state in going:
            await self._remove(state.folder)
        await self._remove_unfinished(run, node, {state.folder for state in states}, now_s=now_s)
        return len(going)

    async def _remove(self, folder: str) -> None:
        """What says that it is a state goes first: nobody meets half of one."""
        keys = await self._objects.keys(folder)
        for key in sorted(keys, key=lambda each: not each.endswith(_CARD)):
            await self._objects.remove(key)

    async def _remove_unfinished(self, run: str, node: str, whole: Collection[str], *, now_s: float) -> None:
        """What a backup that was killed left goes after a day."""
        for key in await self._objects.keys(state_folder(run, node)):
            folder = key.rpartition("/")[0] + "/"
            if folder in whole:
                continue
            stamp = folder.rstrip("/").rpartition("/")[2].partition("-")[0]
            with suppress(ValueError):
                begun = datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC)
                if begun.timestamp() < now_s - DAY_S:
                    await self._objects.remove(key)


def states_to_keep(times: Sequence[float]) -> set[float]:
    """Which of these moments stay. Ages count from the newest, whatever a clock says now."""
    newest = max(times, default=0.0)
    kept: dict[tuple[str, int], float] = {}
    for at_s in sorted(times):
        age_s = newest - at_s
        if age_s <= HOUR_S:
            kept["each", len(kept)] = at_s
        elif age_s <= DAY_S:
            kept["hour", int(at_s // HOUR_S)] = at_s
        elif age_s <= 31 * DAY_S:
            kept["day", int(at_s // DAY_S)] = at_s
    return set(kept.values())


def states_archived_as_files(cards: Iterable[ArchivedFile]) -> list[RunState]:
    """States that an earlier version put among the files."""
    return [
        RunState(
            run="",
            node=card.artifact.node,
            at_s=card.artifact.created_s,
            digest=card.artifact.digest,
            size=card.artifact.size,
            parts=card.parts,
            as_file=True,
        )
        for card in cards
        if card.artifact.kind is ArtifactKind.SNAPSHOT and card.artifact.name == OLD_NAME
    ]


def _pack(snapshot: Path, packed: Path) -> tuple[ArchivePart, ...]:
    packer = zlib.compressobj(_LEVEL)
    with translated_errors(packed), snapshot.open("rb") as source, create_file(packed) as target:
        while piece := source.read(_READ_BYTES):
            target.write(packer.compress(piece))
        target.write(packer.flush())
    size, parts = packed.stat().st_size, []
    for offset in range(0, size, _PART_BYTES):
        content = _read_at(packed, offset, min(_PART_BYTES, size - offset))
        parts.append(ArchivePart(sha256=hashlib.sha256(content).hexdigest(), size=len(content)))
    return tuple(parts)


def _unpacked(unpacker: zlib._Decompress, content: bytes, key: str) -> Iterator[bytes]:
    """Unpack some at a time, whatever the bytes claim to hold."""
    try:
        while content:
            yield unpacker.decompress(content, _READ_BYTES)
            content = unpacker.unconsumed_tail
    except zlib.error as error:
        raise _damaged(key, str(error)) from None


def _read_at(path: Path, offset: int, size: int) -> bytes:
    with translated_errors(path), path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _damaged(key: str, found: str) -> Corrupt:
    return Corrupt(
        key, found=found, advice="Restore an earlier state with --at; `ringrift data check` reads all of them"
    )
