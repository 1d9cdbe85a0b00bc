"""A process's seat at the log: the log itself, and the identity its reading positions are kept under."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ringrift.engine.instances import take_instance_slot
from ringrift.engine.opening import get_engine
from ringrift.engine.ports import EventLog, KeyValue
from ringrift.events.delivery_notes import DeliveryNotes
from ringrift.settings import Settings

_FOLDER = "instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who reads: held by one process at a time, and taken again after its restart."""

    instance: str
    notes: DeliveryNotes | None = None
    release: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSeat:
    """How to come by the log, and (only for those who subscribe) by an identity."""

    open_log: Callable[[], Awaitable[EventLog]]
    claim: Callable[[], Awaitable[Identity]]
    open_kv: Callable[[], Awaitable[KeyValue]] | None = None  # where it is kept when events were last seen


def process_seat(settings: Settings) -> LogSeat:
    """The seat of this process at its own engine; nothing is opened or written before it is used."""

    async def open_log() -> EventLog:
        return (await get_engine()).events

    async def claim() -> Identity:
        return await asyncio.to_thread(_claim, settings)

    async def open_kv() -> KeyValue:
        return (await get_engine()).kv

    return LogSeat(open_log=open_log, claim=claim, open_kv=open_kv)


def _claim(settings: Settings) -> Identity:
    slot = take_instance_slot(settings, sys.argv)
    notes = DeliveryNotes(settings.coordination_dir / _FOLDER, slot.name.replace(":", "."))
    return Identity(instance=slot.name, notes=notes, release=slot.close)
