"""Whether the store of a run is whole, asked before it starts and by the doctor; how its mark is kept; and
how what a run left is moved out of the way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from ringrift.engine.ports import KeyValue
from ringrift.engine.sqlite.faults import LOST_ADVICE, translated_errors
from ringrift.engine.sqlite.files import SIDECARS, SqliteConfig, check_form, check_whole
from ringrift.errors import Conflict, Corrupt, Unavailable
from ringrift.events.dead_letter_store import STORED
from ringrift.files import make_folder, make_folders, rename_file, sync_folder
from ringrift.health.run_status import name_run, read_identity
from ringrift.learning.facts.high_water import (
    MARKED_KEY,
    ConfigMark,
    HighWaterMark,
    behind,
    mark_path,
    read_mark,
    write_mark,
)
from ringrift.learning.facts.ledger import known_configs, read_hashes
from ringrift.runtime import Runtime
from ringrift.settings import Settings

# The hashes of all facts of all configs are compared, those of configs that the run does not learn now too,
# and what the high-water mark says of them.


CHECKED_BYTES_MAX = 64 << 20
PROBLEMS_SHOWN = 3
REMARK_S = 30.0  # without new facts

log = structlog.get_logger()


@dataclass(slots=True)
class StoreCheck:
    """What was found. Anything *lost* is a reason not to go on."""

    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hashes: dict[str, list[str]] = field(default_factory=dict)  # config: after each fact
    mark: HighWaterMark | None = None
    is_older: bool = False  # than the mark, whether or not facts are missing


async def check_store(kv: KeyValue, data_dir: Path) -> StoreCheck:
    """Compare facts and mark; raises `Corrupt` at the first fact that is not what was written."""
    found = StoreCheck()
    try:
        found.mark = await asyncio.to_thread(read_mark, data_dir)
    except Corrupt as error:
        found.notes.append(str(error))
    marks = {} if found.mark is None else found.mark.configs
    for config in sorted({*await known_configs(kv), *marks}):
        found.hashes[config] = await read_hashes(kv, config)
    if found.mark is None:
        if any(found.hashes.values()) and not found.notes:
            found.notes.append("nothing says how far the run had come; what is there is taken for all of it")
        return found
    for name in found.mark.beside:
        if not await asyncio.to_thread((data_dir / name).exists):
            found.notes.append(f"{data_dir / name} is gone, and what was in it is lost")
    identity = await read_identity(kv)
    found.lost = behind(found.mark, identity, _hashes_of(found.hashes))
    marked = await kv.get(MARKED_KEY)
    found.is_older = marked is None or marked.revision < found.mark.revision
    if found.is_older and not found.lost:
        found.notes.append("the database is older than the run was; all facts are there")
    return found


async def require_whole_store(kv: KeyValue, runtime: Runtime, *, database: Path, data_dir: Path) -> None:
    """Check before a start; `Corrupt` with the choices there are if the run had come further.

    A mark that is missing or damaged is written anew.
    """
    found = await check_store(kv, data_dir)
    if found.lost:
        raise Corrupt(database, found="; ".join(found.lost), advice=LOST_ADVICE)
    for note in found.notes:
        log.warning("run.store", found=note)
    if found.mark is None:
        await MarkWriter(kv, runtime, data_dir).keep({})


async def mark_outside_a_run(kv: KeyValue, runtime: Runtime, data_dir: Path) -> None:
    """Have the mark cover what a command changed in the store of a run that is stopped.

    A mark that the store is behind stays: it tells what is lost. So does one of a damaged store.
    """
    try:
        found = await check_store(kv, data_dir)
        if found.mark is None or found.lost or found.is_older:
            return
        configs = dict(found.mark.configs)
        for config, hashes in found.hashes.items():
            if hashes:
                games = configs[config].games if config in configs else 0
                configs[config] = ConfigMark(facts=len(hashes), last_hash=hashes[-1], games=games)
        mark = msgspec.structs.replace(
            found.mark,
            revision=await kv.put(MARKED_KEY, b""),
            written_s=runtime.now_s(),
            configs=configs,
        )
        await asyncio.to_thread(write_mark, data_dir, mark)
    except (Corrupt, Unavailable) as error:
        log.warning("run.not_marked", reason=str(error))  # what was done stands


async def require_sound_database(settings: Settings) -> None:
    """Read a database whole before a start, if that takes no longer than a moment.

    `Corrupt` if its form is damaged. Content that is not what was stored is said: whoever reads it is told
    again, and most of it is written anew anyway. In a larger database that has to do until the doctor looks.
    """
    config = SqliteConfig.from_settings(settings)
    if (await asyncio.to_thread(config.database.stat)).st_size > CHECKED_BYTES_MAX:
        return
    if damage := await asyncio.to_thread(check_form, config):
        raise Corrupt(config.database, found="; ".join(damage[:PROBLEMS_SHOWN]), advice=LOST_ADVICE)
    for problem in await asyncio.to_thread(check_whole, config):
        log.error("run.store", found=problem)


class MarkWriter:
    """Writes the mark of a run: whenever it has facts that the mark does not cover, and once in a while."""

    def __init__(
        self, kv: KeyValue, runtime: Runtime, data_dir: Path, *, beside: Sequence[Path] = ()
    ) -> None:
        self._kv, self._runtime, self._data_dir = kv, runtime, data_dir
        self._beside = beside
        self._identity = ""
        self._before: dict[str, ConfigMark] = {}
        self._written: Mapping[str, ConfigMark] = {}
        self._written_s = float("-inf")
        self._turn = asyncio.Lock()  # in the order of the calls: what is written never goes back

    async def keep(self, configs: Mapping[str, ConfigMark], *, always: bool = False) -> None:
        """Note how far *configs* are, which are stored already; durable on return. Others stay as they are.

        Nothing is written if the mark says so already and is not old, unless *always*.
        """
        async with self._turn:
            now_s = self._runtime.monotonic_s()
            if always or configs != self._written or now_s - self._written_s >= REMARK_S:
                await self._write(configs)
                self._written, self._written_s = dict(configs), now_s

    async def _write(self, configs: Mapping[str, ConfigMark]) -> None:
        if not self._identity:
            if not await asyncio.to_thread(self._data_dir.is_dir):
                return
            await self._begin()
        beside = await asyncio.to_thread(self._look_around)
        if beside is None:
            return  # an engine in memory leaves nothing behind that could be lost
        revision = await self._kv.put(MARKED_KEY, b"")
        mark = HighWaterMark(
            identity=self._identity,
            revision=revision,
            written_s=self._runtime.now_s(),
            configs={**self._before, **configs},
            beside=beside,
        )
        await asyncio.to_thread(write_mark, self._data_dir, mark)

    def _look_around(self) -> tuple[str, ...] | None:
        """Which of the files *beside* are there; None where there is no folder.

        Raises `Conflict` where another database's mark stands: overwritten, its run would be refused.
        """
        if not self._data_dir.is_dir():
            return None
        try:
            found = read_mark(self._data_dir)
        except Corrupt:
            found = None  # it is written anew
        if found is not None and found.identity != self._identity:
            raise Conflict(f"{mark_path(self._data_dir)} speaks of another database than that of this run")
        return tuple(os.path.relpath(path, self._data_dir) for path in self._beside if path.exists())

    async def _begin(self) -> None:
        """Give the database its identity, and take over what is known of the configs of earlier runs."""
        identity = await name_run(self._kv, self._runtime.new_id())
        found = await check_store(self._kv, self._data_dir)
        marked = {} if found.mark is None else found.mark.configs
        for config, hashes in found.hashes.items():
            games = marked[config].games if config in marked else 0
            if hashes:
                self._before[config] = ConfigMark(facts=len(hashes), last_hash=hashes[-1], games=games)
        self._identity = identity


def _hashes_of(hashes: Mapping[str, list[str]]) -> Callable[[str, int], str | None]:
    def hash_of(config: str, facts: int) -> str | None:
        known = hashes.get(config, [])
        return None if facts > len(known) else known[facts - 1] if facts else ""

    return hash_of


# What a run left in its folder, moved out of the way: nothing is deleted, and moving it back undoes it.


ASIDE_FOLDER = "set_aside"
_WITH_SIDECARS = ("", *SIDECARS)
# What a run makes in its data folder. Logs, secrets and whatever else is there stay.
_MADE = ("blobs", "models", "jobs", "quarantine", "transfer", "tuning", "records", "curriculum_weights.json")


def set_state_aside(settings: Settings, now_s: float) -> Path | None:
    """Move the database and the mark into a folder of their own; return it, None if there was nothing."""
    databases = [
        settings.coordinator_db.with_name(settings.coordinator_db.name + each) for each in _WITH_SIDECARS
    ]
    return _move(settings.data_dir, [*databases, mark_path(settings.data_dir)], now_s)


def set_run_aside(settings: Settings, now_s: float) -> Path | None:
    """Move everything that a run made, so that the next one begins; the caller keeps other processes out."""
    databases = [
        database.with_name(database.name + each)
        for database in (settings.coordinator_db, settings.dlq_path)
        for each in _WITH_SIDECARS
    ]
    databases.append(settings.dlq_path.with_name(settings.dlq_path.name + STORED))
    made = [settings.data_dir / name for name in _MADE]
    return _move(settings.data_dir, [*databases, mark_path(settings.data_dir), *made], now_s)


def _move(data_dir: Path, paths: Iterable[Path], now_s: float) -> Path | None:
    there = [path for path in paths if path.exists()]
    if not there:
        return None
    with translated_errors(data_dir):
        target = _fresh_folder(data_dir / ASIDE_FOLDER, now_s)
        for path in there:
            inside = path.relative_to(data_dir) if path.is_relative_to(data_dir) else Path(path.name)
            make_folders((target / inside).parent)
            rename_file(path, target / inside)
        sync_folder(target)
        sync_folder(data_dir)
    log.warning("run.set_aside", folder=str(target), entries=len(there))
    return target


def _fresh_folder(parent: Path, now_s: float) -> Path:
    with suppress(FileExistsError):
        make_folder(parent, 0o700)
    stamp, number = f"{datetime.fromtimestamp(now_s, tz=UTC):%Y%m%dT%H%M%SZ}", 1
    while True:
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            make_folder(folder, 0o700)
        except FileExistsError:
            number += 1
        else:
            return folder
