"""When each event of the catalog was last seen sent and received in a data folder.

One small record for all processes, so that the wiring audit can tell what is declared from what happens.
Every process adds what it saw some seconds after it began, then about once a minute and when it ends, never
with each event; a crash costs a minute. The log itself shows what was sent lately by whoever kept nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec
import structlog

from ringrift.capabilities import capability
from ringrift.engine.ports import Engine, KeyValue
from ringrift.engine.records import change_record, read_record
from ringrift.errors import RingRiftError
from ringrift.events.catalog.names import normalize_event_type
from ringrift.events.catalog.table import CATALOG, COMPONENTS, EventSpec
from ringrift.runtime import Runtime

SEEN_KEY = "events/seen"
# The first is early for the sake of programs that run for less than a minute.
KEEP_FIRST_S, KEEP_EVERY_S = 5.0, 60.0

log = structlog.get_logger()


class LastSeen(msgspec.Struct, frozen=True, array_like=True):
    """The newest time of one event; None: never in this folder."""

    sent_s: float | None = None
    received_s: float | None = None

    def merged(self, other: LastSeen) -> LastSeen:
        return LastSeen(_later(self.sent_s, other.sent_s), _later(self.received_s, other.received_s))


def _later(one: float | None, other: float | None) -> float | None:
    known = [each for each in (one, other) if each is not None]
    return max(known) if known else None


async def read_last_seen(kv: KeyValue) -> dict[str, LastSeen]:
    """By event; empty where no process has kept anything yet."""
    return await read_record(kv, SEEN_KEY, dict[str, LastSeen]) or {}


async def seen_in_folder(engine: Engine) -> dict[str, LastSeen]:
    """What processes kept, and what the log still has: one that ends within seconds keeps nothing."""
    found = await read_last_seen(engine.kv)
    for name, sent_s in (await engine.events.last_by_type()).items():
        found[name] = LastSeen(sent_s).merged(found.get(name, LastSeen()))
    return found


class SeenRecorder:
    """Adds what one router saw to the record of the folder."""

    def __init__(
        self,
        seen: Callable[[], Mapping[str, LastSeen]],
        open_kv: Callable[[], Awaitable[KeyValue]],
        runtime: Runtime,
    ) -> None:
        self._seen, self._open_kv, self._runtime = seen, open_kv, runtime
        self._due_s = runtime.monotonic_s() + KEEP_FIRST_S
        self._kept: dict[str, LastSeen] = {}
        self._problem = ""

    @property
    def is_due(self) -> bool:
        return self._runtime.monotonic_s() >= self._due_s

    async def keep(self) -> None:
        """Write down what is new. Nobody's event waits or fails because this cannot be written."""
        self._due_s = self._runtime.monotonic_s() + KEEP_EVERY_S
        seen = dict(self._seen())
        if seen == self._kept:
            return
        try:
            await self._add(await self._open_kv(), seen)
        except RingRiftError as error:
            if str(error) != self._problem:
                log.warning("events.last_seen_not_kept", error=str(error))
            self._problem = str(error)
            return
        self._kept, self._problem = seen, ""

    async def _add(self, kv: KeyValue, seen: Mapping[str, LastSeen]) -> None:
        def with_seen(stored: dict[str, LastSeen] | None) -> dict[str, LastSeen]:
            known = stored or {}
            return known | {name: each.merged(known.get(name, LastSeen())) for name, each in seen.items()}

        await change_record(kv, SEEN_KEY, dict[str, LastSeen], with_seen)


# Does every event have somebody who sends it and somebody who hears it, in what really runs?
#
# `audit` compares the live registrations with the catalog. An event may lack one side only for a reason that
# a person accepts: the component that is meant to be there belongs to a capability that is not built yet, or
# the event is internal. Whatever lacks a side without such a reason makes the report not `ok`. What is
# declared may still never happen: beside it stands when each event was last seen sent and received in a data
# folder.


INTERNAL = "internal: needs no consumer"


@dataclass(frozen=True, slots=True)
class ComponentWiring:
    """What one component declares: the events it sends and the events it subscribes to."""

    name: str
    capability: str
    emits: tuple[str, ...] = ()
    subscribes: tuple[str, ...] = ()


def _by_event(pairs: Iterable[tuple[Any, str]]) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for event, component in pairs:
        name = normalize_event_type(event)
        if component not in table.get(name, ()):
            table[name] = (*table.get(name, ()), component)
    return table


@dataclass(frozen=True, slots=True)
class Wiring:
    """Who really sends and who really hears each event, by canonical name.

    `crossing` holds the events that the live router sends to other processes; None means those of the
    catalog. `elsewhere` are the components that a default run does not start.
    """

    emitters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    subscriptions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    crossing: frozenset[str] | None = None
    elsewhere: frozenset[str] = frozenset()

    @classmethod
    def collect(
        cls,
        components: Iterable[ComponentWiring],
        *,
        subscriptions: Iterable[tuple[Any, str]] | None = None,
        crossing: Iterable[Any] | None = None,
        elsewhere: Iterable[str] = (),
    ) -> Wiring:
        """Put declarations together, in any spelling.

        *subscriptions* are (event, subscriber) pairs as the router has them; given, they replace what the
        components say of themselves.
        """
        declared = tuple(components)
        if subscriptions is None:
            subscriptions = ((event, item.name) for item in declared for event in item.subscribes)
        return cls(
            emitters=_by_event((event, item.name) for item in declared for event in item.emits),
            subscriptions=_by_event(subscriptions),
            crossing=None if crossing is None else frozenset(map(normalize_event_type, crossing)),
            elsewhere=frozenset(elsewhere),
        )


class WiringState(StrEnum):
    """How an event is wired."""

    CONNECTED = "connected"
    OTHER_PROFILE = "other profile"  # connected, but nobody who sends it runs by default
    ORPHAN = "orphan"  # sent, and nobody hears it
    DEAD_SUBSCRIPTION = "dead subscription"  # heard, and nobody sends it
    PLANNED = "planned"  # neither yet
    UNWIRED = "unwired"  # neither, although its sender is built
    UNKNOWN = "unknown"  # used, and not in the catalog


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One event, how it is wired, and why that is (or is not) acceptable."""

    name: str
    state: WiringState
    reason: str
    accepted: bool
    emitters: tuple[str, ...] = ()
    subscribers: tuple[str, ...] = ()
    seen: LastSeen = LastSeen()  # in the data folder that was asked about

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state.value,
            "reason": self.reason,
            "accepted": self.accepted,
            "emitters": list(self.emitters),
            "subscribers": list(self.subscribers),
            "last_sent_s": self.seen.sent_s,
            "last_received_s": self.seen.received_s,
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Every event of the catalog, and of the wiring."""

    events: tuple[AuditEntry, ...]
    unmapped_high_impact: tuple[AuditEntry, ...]

    @property
    def orphans(self) -> tuple[AuditEntry, ...]:
        return tuple(entry for entry in self.events if entry.state is WiringState.ORPHAN)

    @property
    def dead_subscriptions(self) -> tuple[AuditEntry, ...]:
        return tuple(entry for entry in self.events if entry.state is WiringState.DEAD_SUBSCRIPTION)

    @property
    def failures(self) -> tuple[AuditEntry, ...]:
        """The entries that no reason excuses."""
        return tuple(entry for entry in (*self.events, *self.unmapped_high_impact) if not entry.accepted)

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "events": [entry.to_dict() for entry in self.events],
            "orphans": [entry.to_dict() for entry in self.orphans],
            "dead_subscriptions": [entry.to_dict() for entry in self.dead_subscriptions],
            "unmapped_high_impact": [entry.to_dict() for entry in self.unmapped_high_impact],
        }


def audit(
    wiring: Wiring,
    catalog: Mapping[str, EventSpec] = CATALOG,
    *,
    seen: Mapping[str, LastSeen] | None = None,
) -> AuditReport:
    """Judge a wiring against the catalog; *seen* adds when each event was last sent and received."""
    used = wiring.emitters.keys() | wiring.subscriptions.keys()
    times = seen or {}
    entries = [
        replace(_judge(spec, wiring), seen=times.get(spec.name, LastSeen())) for spec in catalog.values()
    ]
    entries += [_unknown(name, wiring) for name in sorted(used - catalog.keys())]
    kept_home = [
        AuditEntry(spec.name, WiringState.UNWIRED, "has high impact and stays in its process", accepted=False)
        for spec in catalog.values()
        if spec.high_impact
        and not (spec.crosses if wiring.crossing is None else spec.name in wiring.crossing)
    ]
    return AuditReport(tuple(entries), tuple(kept_home))


def _judge(spec: EventSpec, wiring: Wiring) -> AuditEntry:
    emitters = wiring.emitters.get(spec.name, ())
    subscribers = wiring.subscriptions.get(spec.name, ())
    if emitters and subscribers:
        awake = [name for name in emitters if name not in wiring.elsewhere]
        sent = f"sent by {', '.join(awake)}" if awake else f"sent only where {' or '.join(emitters)} runs"
        reason, accepted = f"{sent}; heard by {', '.join(subscribers)}", True
        state = WiringState.CONNECTED if awake else WiringState.OTHER_PROFILE
    elif emitters:
        state = WiringState.ORPHAN
        reason, accepted = _why_unheard(spec)
    else:
        reason, accepted = _why_unsent(spec)
        unsent = WiringState.PLANNED if accepted else WiringState.UNWIRED
        state = WiringState.DEAD_SUBSCRIPTION if subscribers else unsent
    return AuditEntry(spec.name, state, reason, accepted, emitters, subscribers)


def _unknown(name: str, wiring: Wiring) -> AuditEntry:
    emitters, subscribers = wiring.emitters.get(name, ()), wiring.subscriptions.get(name, ())
    return AuditEntry(name, WiringState.UNKNOWN, "not in the catalog", False, emitters, subscribers)


def _split(components: Iterable[str]) -> tuple[list[str], list[str]]:
    """The components that are built, and the reasons of those that are not."""
    built, waiting = [], []
    for name in components:
        reason = capability(COMPONENTS[name]).reason
        if not reason:
            built.append(name)
        elif reason not in waiting:
            waiting.append(reason)
    return built, waiting


def _why_unheard(spec: EventSpec) -> tuple[str, bool]:
    """One built component that should listen is enough to make silence a fault."""
    if spec.note == INTERNAL or not spec.consumed_by:
        return INTERNAL, True
    built, waiting = _split(spec.consumed_by)
    if built:
        return f"{', '.join(built)} should hear it and does not subscribe", False
    return "; ".join(waiting), True


def _why_unsent(spec: EventSpec) -> tuple[str, bool]:
    """Each sender has its own occasion, so one that is still to come explains the silence."""
    built, waiting = _split(spec.emitted_by)
    if waiting:
        return "; ".join(waiting), True
    return f"{', '.join(built)} should send it and does not", False


def audit_entries(report: AuditReport, *, everything: bool = False) -> list[AuditEntry]:
    """What a table shows: all that is not simply connected or planned, worst first."""
    quiet = {WiringState.CONNECTED, WiringState.PLANNED}
    shown = [entry for entry in report.events if everything or entry.state not in quiet]
    shown += report.unmapped_high_impact
    shown.sort(key=lambda entry: (entry.accepted, entry.state, entry.name))
    return shown


def audit_summary(report: AuditReport) -> str:
    """Return one line: how many events, and how many of each trouble."""
    connected = sum(entry.state is WiringState.CONNECTED for entry in report.events)
    happened = sum(entry.seen.sent_s is not None for entry in report.events)
    return (
        f"{len(report.events)} events, {connected} connected, {happened} seen sent in this folder, "
        f"{len(report.orphans)} orphans, "
        f"{len(report.dead_subscriptions)} dead subscriptions, "
        f"{len(report.unmapped_high_impact)} unmapped of high impact; "
        f"{len(report.failures)} without an accepted reason"
    )
