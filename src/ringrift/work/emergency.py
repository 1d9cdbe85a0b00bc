"""The emergency stop: nothing new starts until it is cleared.

It is on when its file lies in the data folder (a person may simply create it) or when the key-value port says
so, which reaches other machines. One that the product turned on by itself, after a job ran out of memory,
ends by itself; one that a person turned on stays until `ringrift resume --clear-emergency`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ringrift.decoding import decode_as
from ringrift.engine.arguments import check_part
from ringrift.engine.blocking import run_blocking
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.opening import shared_kv
from ringrift.engine.ports import KeyValue
from ringrift.files import make_folders, remove_file, replace_file
from ringrift.process import SingletonMixin
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings

log = structlog.get_logger()

FILE_NAME = "EMERGENCY_STOP"
KEY = "work/emergency_stop"
AUTOMATIC_S, AUTOMATIC_S_MAX = 300.0, 3600.0  # doubled each time it happens again within the memory
MEMORY_S = 6 * 3600.0
ANSWER_S = 10.0
FILE_BYTES_MAX = 65_536

_OUT_OF_MEMORY = re.compile(
    r"\bout of memory\b|\boom\b|\boom[-_ ]?kill|\bmemoryerror\b|cannot allocate memory|\bbad_alloc\b",
    re.IGNORECASE,
)


def says_out_of_memory(text: str) -> bool:
    """Whether a failure's reason says that memory ran out."""
    return _OUT_OF_MEMORY.search(text) is not None


class EmergencyNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Why everything stands still, since when, and until when (None: until a person clears it)."""

    reason: str
    since_s: float
    by: str = "a person"
    until_s: float | None = None
    times: int = 1  # how often it came by itself, in a row

    def is_on(self, now_s: float) -> bool:
        return self.until_s is None or now_s < self.until_s

    def to_dict(self) -> dict[str, Any]:
        noted: dict[str, Any] = msgspec.to_builtins(self)
        return noted


@dataclass(frozen=True, slots=True)
class EmergencyPlaces:
    """Where the stop is written down."""

    folder: Path
    kv: Callable[[], Awaitable[KeyValue]]

    @property
    def file(self) -> Path:
        return self.folder / FILE_NAME


class EmergencyStop(SingletonMixin):
    """Reads, sets and clears it. The file is the truth of this machine, the key that of all of them."""

    def __init__(self, places: EmergencyPlaces | None = None, *, runtime: Runtime | None = None) -> None:
        """Of *places*, or of this process's data folder."""
        self._places = EmergencyPlaces(get_settings().data_dir, shared_kv) if places is None else places
        check_part("places", self._places, EmergencyPlaces)
        self._runtime = runtime or system_runtime()

    async def notice(self) -> EmergencyNotice | None:
        """Return what is in force now."""
        now_s = self._runtime.now_s()
        in_file = await asyncio.to_thread(self._read_file)
        if in_file is not None and in_file.is_on(now_s):
            return in_file
        if in_file is not None:
            await asyncio.to_thread(remove_file, self._places.file)  # its time is over
        in_store = await self._read_key()
        return in_store if in_store is not None and in_store.is_on(now_s) else None

    async def turn_on(
        self, reason: str, *, by: str = "a person", for_s: float | None = None
    ) -> EmergencyNotice:
        """Stop everything; for *for_s* seconds, or until it is cleared."""
        now_s = self._runtime.now_s()
        until_s = None if for_s is None else now_s + for_s
        return await self._write(EmergencyNotice(reason=reason, since_s=now_s, by=by, until_s=until_s))

    async def after_failure(self, reason: str) -> EmergencyNotice | None:
        """Stop everything for a while if *reason* says that memory ran out; longer each time in a row."""
        if not says_out_of_memory(reason):
            return None
        now_s, former = self._runtime.now_s(), await self.notice() or await self._read_key()
        if former is not None and former.is_on(now_s):
            return former  # one flood of failures is one emergency
        again = former is not None and former.until_s is not None and now_s - former.until_s < MEMORY_S
        times = former.times + 1 if former is not None and again else 1
        for_s = min(AUTOMATIC_S_MAX, AUTOMATIC_S * 2 ** (times - 1))
        why = f"a job ran out of memory: {reason.strip()[:300]}"
        notice = EmergencyNotice(
            reason=why, since_s=now_s, by="safeguards", until_s=now_s + for_s, times=times
        )
        return await self._write(notice)

    async def clear(self) -> EmergencyNotice | None:
        """Let work start again; return what was in force."""
        found = await self.notice()
        await asyncio.to_thread(remove_file, self._places.file)
        await (await self._places.kv()).delete(KEY)
        if found is not None:
            log.warning("emergency_stop.cleared", reason=found.reason)
        return found

    async def _write(self, notice: EmergencyNotice) -> EmergencyNotice:
        value = msgspec.json.encode(notice)
        await asyncio.to_thread(_write_file, self._places.file, value)
        await (await self._places.kv()).put(KEY, value)
        log.error("emergency_stop.on", reason=notice.reason, by=notice.by, until_s=notice.until_s)
        return notice

    def _read_file(self) -> EmergencyNotice | None:
        try:
            with self._places.file.open("rb") as file:
                content = file.read(FILE_BYTES_MAX)
                made_s = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        # A person may write anything into the file; that it is there is what counts.
        said = content.decode(errors="replace").strip() or f"the file {FILE_NAME} is in the data folder"
        return _read(content) or EmergencyNotice(reason=said[:300], since_s=made_s)

    async def _read_key(self) -> EmergencyNotice | None:
        entry = await (await self._places.kv()).get(KEY)
        if entry is None:
            return None
        # A notice that cannot be read is no reason to go on.
        unreadable = EmergencyNotice(reason=f"the notice under {KEY} cannot be read", since_s=0.0)
        return _read(entry.value) or unreadable


def _read(content: bytes) -> EmergencyNotice | None:
    try:
        return decode_as(content, EmergencyNotice)
    except UNREADABLE:
        return None


def _write_file(path: Path, content: bytes) -> None:
    make_folders(path.parent)
    replace_file(path, content)


# --- of this process ----------------------------------------------------------------------------------


def get_emergency_stop() -> EmergencyStop:
    """Return the emergency stop of this process's data folder."""
    return EmergencyStop.get_instance()


def emergency_notice() -> EmergencyNotice | None:
    """Return why everything stands still; None when it does not. For code without a loop."""
    return run_blocking(get_emergency_stop().notice(), timeout_s=ANSWER_S)


def turn_on_emergency_stop(reason: str) -> EmergencyNotice:
    return run_blocking(get_emergency_stop().turn_on(reason), timeout_s=ANSWER_S)


def clear_emergency_stop() -> EmergencyNotice | None:
    """Let work start again; return what was in force."""
    return run_blocking(get_emergency_stop().clear(), timeout_s=ANSWER_S)
