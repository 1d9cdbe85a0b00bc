"""What people want of single daemons: a request in the store that the run's manager carries out.

The newest request for a daemon counts, and lasts: a stop holds the daemon down, also over restarts of the
run, until somebody starts it, and a start brings it up with every run until somebody stops it. Whoever asks
sees in the same record when it was carried out, or why it could not be. The verbs of a manager in any other
process than that of the run are such requests, as `ringrift daemons` makes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Protocol

import msgspec
import structlog

from ringrift.daemons.planning import STOPPED_BY_PERSON, Phase, Unit
from ringrift.daemons.registry import Registry, product_registry
from ringrift.daemons.supervisor import Supervisor
from ringrift.daemons.types import DaemonManagerConfig, DaemonType
from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import Entry, KeyValue
from ringrift.engine.records import read_record, read_records
from ringrift.errors import ConfigError, Corrupt, RevisionMismatch, RingRiftError
from ringrift.runtime import Runtime

log = structlog.get_logger()

REQUESTS = "daemons/request/"
NEAR = 3
ENDS_WITHIN_S = 15.0  # beyond what the manager gives a daemon to stop
AGAIN_S = 5.0
ANSWER_S_MAX = 60.0  # a daemon that does not end is given up before
LOOK_EVERY_S = 0.2

# What it means to do without those that the machine lives by.
MEANS: Mapping[str, str] = {
    "data_pipeline": "the loop stands still: nothing is decided, ordered or taken in",
    "selfplay_coordinator": "no new games are ordered",
    "event_router": "events of other processes wait until it or cross_process_poller reads them again",
    "health_server": "there is no page, no probe and no metric; the commands go through the store and work",
    "daemon_watchdog": "nobody looks whether the supervisor itself works",
    "queue_monitor": "nobody notices that queues are too full",
}


class DaemonVerb(StrEnum):
    """What may be asked for."""

    STOP = "stop"
    START = "start"
    RESTART = "restart"


class DaemonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants of one daemon: `daemons/request/<name>`."""

    daemon: str
    want: DaemonVerb
    reason: str = ""
    by: str = ""
    at_s: float = 0.0
    with_needs: bool = False  # a start also brings up what the daemon needs
    done_s: float | None = None  # when a run took it up; None: none has yet
    problem: str = ""  # why the run could not do it
    refused: bool = False  # and it changes nothing

    @property
    def holds_down(self) -> bool:
        return self.want is DaemonVerb.STOP and not self.refused

    @property
    def cause(self) -> str:
        """Who wanted it, and why, as far as they said."""
        return ", ".join(each for each in (self.by, self.reason) if each)


class DaemonRequests:
    """The requests in the store."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def ask(self, request: DaemonRequest) -> DaemonRequest:
        """Store *request* in the place of an older one; return what stands now.

        A stop of what is stopped changes nothing but the reason, if one is given, and who gave it.
        """
        entry = await self._kv.get(REQUESTS + request.daemon)
        before = None if entry is None else _read(entry)
        stands = request if before is None else _kept(before, request)
        if stands != before:
            await self._kv.put(REQUESTS + request.daemon, msgspec.json.encode(stands))
        return stands

    async def answer(self, request: DaemonRequest, runtime: Runtime) -> DaemonRequest:
        """Ask a live run and wait for its answer; the request as it was when the run says nothing in time."""
        request = await self.ask(request)
        until_s = runtime.monotonic_s() + ANSWER_S_MAX
        while runtime.monotonic_s() < until_s:
            found = await self.get(request.daemon)
            # A later request of somebody else took its place: theirs is what is answered now.
            if found is None or found.at_s != request.at_s or found.done_s is not None:
                return request if found is None else found
            await runtime.sleep(LOOK_EVERY_S)
        return request

    async def get(self, daemon: str) -> DaemonRequest | None:
        return await read_record(self._kv, REQUESTS + daemon, DaemonRequest)

    async def all(self) -> dict[str, DaemonRequest]:
        """All of them, by daemon."""
        found = await read_records(self._kv, REQUESTS, DaemonRequest)
        return {request.daemon: request for request in found}

    async def stops(self) -> dict[str, DaemonRequest]:
        """Those that hold a daemon of the product down; what cannot be read holds nothing down.

        One of an alias holds nothing down before a run has found the alias, and not its original, at work.
        """
        aliases = {spec.daemon_type.value: spec.deprecated_for is not None for spec in product_registry()}
        read = [_read(entry) for entry in await self._kv.entries(REQUESTS)]
        held = [each for each in read if each and each.holds_down and each.daemon in aliases]
        return {each.daemon: each for each in held if each.done_s is not None or not aliases[each.daemon]}


def _kept(before: DaemonRequest, request: DaemonRequest) -> DaemonRequest:
    if not (before.holds_down and request.holds_down):
        return request
    if before.done_s is not None and not (before.problem or request.reason):
        return before
    said = request if request.reason else before
    return msgspec.structs.replace(before, reason=said.reason, by=said.by, done_s=None, problem="")


def require_daemon(name: str, known: Registry | None = None) -> str:
    """The name of a daemon as it is stored; `ConfigError` with the nearest names if there is none."""
    rows = product_registry() if known is None else known
    names = [spec.daemon_type.value for spec in rows]
    plain = name.strip().lower().replace("-", "_")
    if plain in names:
        return plain
    near = get_close_matches(plain, names, n=NEAR, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`ringrift daemons` lists them"
    raise ConfigError(f"no daemon is called {name!r:.100}; {hint}")


def what_it_means(name: str, down: Collection[str] = ()) -> str:
    """What a run without the daemon *name* lacks, in words; those that are *down* as well do not go on."""
    rows = product_registry()
    spec = rows[DaemonType(name)]
    meanings = [MEANS[name]] if name in MEANS else []
    counting = [row for row in rows if spec.daemon_type in row.depends_on and row.deprecated_for is None]
    able = {row.daemon_type.value for row in counting if not row.unavailable_reason}
    needed_by = sorted(able.difference(down))
    if needed_by:
        some, more = ", ".join(needed_by[:5]), len(needed_by) - 5
        go_on = "count on it and go on" if len(needed_by) > 1 else "counts on it and goes on"
        meanings.append(f"{some}{f' and {more} more' if more > 0 else ''} {go_on} without it")
    return "; ".join([*meanings, f"nobody does what it does: {spec.about}"])


class _DaemonVerbs(Protocol):
    """What carrying requests out takes of a manager, whose own verbs are requests elsewhere."""

    config: DaemonManagerConfig

    @property
    def supervisor(self) -> Supervisor: ...
    async def start(self, daemon_type: DaemonType, wait_for_deps: bool = ...) -> bool: ...  # noqa: FBT001 - documented signature
    def clear_permanently_failed(self, daemon_type: DaemonType) -> None: ...
    def why(self, daemon_type: DaemonType) -> str: ...


class RequestCarrier:
    """Carries requests out in the process of the manager, and writes down that it did.

    *report* tells other processes how the daemons are. Whoever is answered finds the daemon as he asked for
    it, and not as it was some seconds ago. Where the daemons outlive the leading, *leads* says whether a
    request is still for them.
    """

    def __init__(
        self,
        kv: KeyValue,
        manager: _DaemonVerbs,
        runtime: Runtime,
        *,
        report: Callable[[], Awaitable[None]] | None = None,
        leads: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._kv, self._manager, self._runtime, self._report = kv, manager, runtime, report
        self._leads = leads
        self._seen = 0  # the revision up to which requests are carried out

    async def before_start(self) -> None:
        """Hold down what is to stay down, before anything is started."""
        page = await self._kv.changes(REQUESTS, after=0)
        self._seen = page.revision
        for entry in await self._kv.entries(REQUESTS):
            request = _read(entry)
            if (
                request is not None
                and request.holds_down
                and (unit := self._unit(request.daemon)) is not None
            ):
                _hold(unit, request)
                await self._note(request, entry.revision)

    async def run(self) -> None:
        """Start what was asked for before this run, then carry out what is asked for.

        Until cancelled, or until a request comes that is for another process.
        """
        begun = False
        while True:
            try:
                if not begun:
                    await self._start_asked_for()
                    begun = True
                async for change in self._kv.watch(REQUESTS, after=self._seen):
                    if self._leads is not None and not await self._leads():
                        return
                    if change.value is not None:
                        await self._take(Entry(key=change.key, value=change.value, revision=change.revision))
                    self._seen = change.revision
            except RingRiftError as error:  # the store is away, or not ours any more; the lease sees to that
                log.warning("daemons.requests_unread", error=str(error))
                await self._runtime.sleep(AGAIN_S)

    async def _start_asked_for(self) -> None:
        read = [(entry, _read(entry)) for entry in await self._kv.entries(REQUESTS)]
        # In the order of asking: else the next run starts the alias that this one refused.
        for entry, request in sorted(read, key=lambda each: each[1].at_s if each[1] else 0.0):
            # A stop that stands is carried out by now, unless its daemon's work is done under another name.
            unit = None if request is None else self._unit(request.daemon)
            stands = unit is not None and STOPPED_BY_PERSON in unit.holds and not self._other_name(unit)
            if request is not None and not request.refused and not stands:
                await self._carry_out(request, entry.revision)

    async def _take(self, entry: Entry) -> None:
        request = _read(entry)
        if request is not None and request.done_s is None:
            await self._carry_out(request, entry.revision)

    async def _carry_out(self, request: DaemonRequest, revision: int) -> None:
        unit = self._unit(request.daemon)
        if unit is None:
            await self._note(request, revision, problem=f"this run has no daemon {request.daemon}")
            return
        if request.want is DaemonVerb.STOP and (other := self._other_name(unit)):
            unit.holds.pop(STOPPED_BY_PERSON, None)
            problem = f"it does not run; {other} does the same, so `ringrift daemons stop {other}` stops that"
            await self._note(request, revision, problem=problem, refused=True)
            return
        daemon, first = unit.daemon_type, request.done_s is None
        problem = ""
        if first:
            log.info("daemons.requested", daemon=request.daemon, want=str(request.want), by=request.by)
        if request.want is DaemonVerb.STOP or (request.want is DaemonVerb.RESTART and first):
            problem = await self._stop(unit, request)
        if request.want is not DaemonVerb.STOP and not problem:
            unit.holds.pop(STOPPED_BY_PERSON, None)
            self._manager.clear_permanently_failed(daemon)
            if not await self._manager.start(daemon, request.with_needs):
                problem = unit.info.last_error or self._manager.why(daemon) or "it did not start"
        if first and self._report is not None:
            await self._report()
        await self._note(request, revision, problem=problem)

    async def _stop(self, unit: Unit, request: DaemonRequest) -> str:
        """Hold it down and wait for its end; return why it is still there."""
        supervisor, config = self._manager.supervisor, self._manager.config
        _hold(unit, request)
        supervisor.look([unit.daemon_type])
        until_s = (
            self._runtime.monotonic_s() + config.shutdown_timeout + config.force_kill_timeout + ENDS_WITHIN_S
        )
        while unit.phase is not Phase.ABSENT and (left_s := until_s - self._runtime.monotonic_s()) > 0:
            await supervisor.wait_for_change(timeout_s=left_s)
        if unit.phase is Phase.ABSENT and not unit.leaked_runs:
            return ""
        return unit.info.last_error or "it has not ended"

    def _other_name(self, unit: Unit) -> str:
        """Under which other name its work is done, so that a stop of it would stop nothing; empty if none."""
        other = None if unit.wanted else self._manager.supervisor.other_name(unit)
        return "" if other is None else other.daemon_type.value

    async def _note(
        self, request: DaemonRequest, revision: int, *, problem: str = "", refused: bool = False
    ) -> None:
        """Write down when it was carried out; one that was replaced meanwhile is left alone."""
        if request.done_s is not None and problem == request.problem:
            return
        if problem:
            log.warning("daemons.request_failed", daemon=request.daemon, problem=problem)
        now_s = self._runtime.now_s()
        done = msgspec.structs.replace(request, done_s=now_s, problem=problem, refused=refused)
        try:
            await self._kv.update(REQUESTS + request.daemon, msgspec.json.encode(done), revision=revision)
        except RevisionMismatch:
            return

    def _unit(self, name: str) -> Unit | None:
        units = self._manager.supervisor.units
        return next((unit for daemon, unit in units.items() if daemon.value == name), None)


def _hold(unit: Unit, request: DaemonRequest) -> None:
    unit.holds[STOPPED_BY_PERSON] = None
    unit.causes[STOPPED_BY_PERSON] = request.cause


def _read(entry: Entry) -> DaemonRequest | None:
    """None, and a line in the log, for what is no request: it must not keep the others from being read."""
    try:
        return decode_entry(entry, DaemonRequest)
    except Corrupt as error:
        log.error("daemons.request_unreadable", error=str(error))
        return None
