"""Starting and stopping daemons: who may start, who must wait, and in which order they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import psutil
import structlog

from ringrift.daemons.planning import STOPPED_BY_PERSON, Ended, Phase, Unit, unmet_needs
from ringrift.daemons.registry import Registry, levels
from ringrift.daemons.supervisor import Emit, Supervisor
from ringrift.daemons.types import DaemonType

# Starting: who may, who must wait, and the reasons of those who don't.


log = structlog.get_logger()

MEMORY_READING_S = 1.0


class StartResult(dict[DaemonType, bool]):
    """Which daemons are up, and in `reasons` why the others are not."""

    def __init__(self, results: Iterable[tuple[DaemonType, bool]], reasons: dict[DaemonType, str]) -> None:
        super().__init__(results)
        self.reasons = reasons


def system_memory_percent() -> float:
    """Return how much of this machine's memory is in use."""
    return float(psutil.virtual_memory().percent)


class Starter:
    """Turns the request for some daemons into wanted ones, and waits until each is up or cannot be."""

    def __init__(
        self, supervisor: Supervisor, registry: Registry, emit: Emit, *, memory_percent: Callable[[], float]
    ) -> None:
        self._emit = emit
        self._supervisor, self._registry = supervisor, registry
        self._memory_percent = memory_percent
        self._memory_read: tuple[float, float] = (float("-inf"), 0.0)

    def refusal(self, daemon_type: DaemonType) -> str:
        """Say why a daemon may not be started; empty when it may."""
        unit = self._supervisor.units.get(daemon_type)
        if unit is None:
            return f"{daemon_type} is not registered"
        if unit.info.unavailable_reason:
            return unit.info.unavailable_reason
        if unit.factory is None:
            return f"{daemon_type} has no factory"
        # A person has to look first: to start it by hand again and again would hide why it fails.
        if self._supervisor.ledger.failed_for_good(daemon_type):
            return f"failed for good ({unit.info.last_error}); clear it with clear_permanently_failed"
        # Two runs of one daemon at a time would do its work twice.
        if unit.leaked_runs:
            return "an earlier run ignores cancellation and may still be alive"
        return self._name_refusal(unit) or self._memory_refusal(unit)

    async def start(self, daemon_type: DaemonType, *, wait_for_deps: bool) -> str:
        """Start one daemon; return why it is not up, empty when it is.

        One that only waits for others comes up as soon as they do, whoever starts them. With *wait_for_deps*
        they are started here, and waited for.
        """
        unit = self._supervisor.units[daemon_type]
        if unit.phase is Phase.UP and unit.wanted:
            return ""
        if refusal := self._needs_refusal(unit, to_start=wait_for_deps):
            return refusal
        if wait_for_deps:
            await self._bring_up_needs(unit)
            if refusal := self._name_refusal(unit):  # another name of it was started meanwhile
                return refusal
        self._want(unit)
        self._supervisor.look([daemon_type])
        await self._wait_until_settled([daemon_type])
        return "" if unit.phase is Phase.UP or unit.info.completed else self._supervisor.why(daemon_type)

    async def start_many(self, types: Collection[DaemonType]) -> StartResult:
        """Start all of *types* that can be, level by level; daemons of one level start together."""
        reasons: dict[DaemonType, str] = {}
        ordered = [daemon_type for level in levels(self._registry, types) for daemon_type in level]
        accepted: list[DaemonType] = []
        for daemon_type in ordered:
            reason = self._profile_refusal(daemon_type, reasons)
            if reason:
                reasons[daemon_type] = reason
                self.note_refusal(daemon_type, reason)
            else:
                accepted.append(daemon_type)
                self._want(self._supervisor.units[daemon_type])
        self._supervisor.look(accepted)
        await self._wait_until_settled(accepted)
        results = [(t, self._supervisor.units[t].phase is Phase.UP) for t in ordered]
        for daemon_type, up in results:
            if not up and daemon_type not in reasons:
                reasons[daemon_type] = self._supervisor.why(daemon_type)
        self._log_the_rest(reasons)
        return StartResult(results, reasons)

    def _log_the_rest(self, reasons: dict[DaemonType, str]) -> None:
        """Faults one by one; what this version does not have only as a number: nobody waits for it."""
        units = self._supervisor.units
        faults = {t: reason for t, reason in reasons.items() if not units[t].info.unavailable_reason}
        if not_built := len(reasons) - len(faults):
            log.info("daemons.left_out", count=not_built, reason="not built yet; see `ringrift daemons`")
        for daemon_type, reason in faults.items():
            replaced = self._supervisor.other_name(units[daemon_type]) is not None
            tell = log.info if replaced else log.warning  # another daemon does it all: nothing is amiss
            tell("daemons.not_started", daemon=daemon_type.value, reason=reason)

    def note_refusal(self, daemon_type: DaemonType, reason: str) -> None:
        """Remember why a daemon was not started, unless it waits or is down for an error that says more."""
        unit = self._supervisor.units.get(daemon_type)
        if unit is None or unit.wanted or unit.ended in (Ended.CRASHED, Ended.GIVEN_UP):
            return
        if not self._supervisor.ledger.failed_for_good(daemon_type):
            unit.info.last_error = reason

    def _profile_refusal(self, daemon_type: DaemonType, refused: dict[DaemonType, str]) -> str:
        unit = self._supervisor.units[daemon_type]
        if unit.spec.deprecated_for is not None and not unit.info.unavailable_reason:
            return f"deprecated: use {unit.spec.deprecated_for}"
        if reason := self.refusal(daemon_type):
            return reason
        for need in unit.spec.depends_on:
            if need in refused and self._supervisor.other_name(self._supervisor.units[need]) is None:
                return f"needs {need}: {refused[need]}"
        return ""

    def _want(self, unit: Unit) -> None:
        unit.wanted = True
        name = unit.spec.deprecated_for or unit.daemon_type
        for alias in self._supervisor.aliases.values():
            if alias is not unit and alias.spec.deprecated_for == name:
                alias.wanted = False  # one that was stopped or given up must not come back beside it
        if unit.phase is Phase.ABSENT and unit.ended is not Ended.LEAKED:
            unit.ended, unit.restart_at_s = Ended.NEVER_RAN, None

    def _unmet(self, unit: Unit) -> list[DaemonType]:
        views = self._supervisor.views([unit.daemon_type])
        return unmet_needs(views[unit.daemon_type], views)

    def _all_needs(self, unit: Unit) -> list[DaemonType]:
        """What must be up before it, directly or not."""
        found: list[DaemonType] = []
        ahead = list(unit.needs)
        while ahead:
            need = ahead.pop()
            if need not in found and need != unit.daemon_type:
                found.append(need)
                if (needed := self._supervisor.units.get(need)) is not None:
                    ahead.extend(needed.needs)
        return found

    def _needs_refusal(self, unit: Unit, *, to_start: bool) -> str:
        """Say which need can never come up, or, if it is *to_start*, may not be started now."""
        for need in self._all_needs(unit):
            needed = self._supervisor.units.get(need)
            reason = f"{need} is not registered" if needed is None else needed.info.unavailable_reason
            if needed is not None and to_start and not self._supervisor.views([need])[need].satisfies:
                reason = self.refusal(need)
            if reason:
                return f"needs {need}: {reason}"
        return ""

    async def _bring_up_needs(self, unit: Unit) -> None:
        """Start what it needs; wait for it within the limit, unless it is given up before."""
        config, runtime, units = self._supervisor.config, self._supervisor.runtime, self._supervisor.units
        deadline_s = runtime.monotonic_s() + config.dependency_wait_timeout
        needs = [units[need] for need in self._all_needs(unit)]
        for need in needs:
            if not self._supervisor.views([need.daemon_type])[need.daemon_type].satisfies:
                self._want(need)
        self._supervisor.look([need.daemon_type for need in needs])
        while self._unmet(unit) and (left_s := deadline_s - runtime.monotonic_s()) > 0:
            if any(need.ended is Ended.GIVEN_UP for need in needs):
                return
            await self._supervisor.wait_for_change(timeout_s=min(left_s, config.dependency_poll_interval))

    async def _wait_until_settled(self, types: Collection[DaemonType]) -> None:
        """Wait until each daemon is up, or ended, or cannot start. Each start is bounded by itself."""
        while pending := self._pending(types):
            longest_s = max(self._supervisor.units[t].info.ready_timeout for t in pending)
            await self._supervisor.wait_for_change(timeout_s=longest_s)

    def _pending(self, types: Collection[DaemonType]) -> set[DaemonType]:
        units, pending = self._supervisor.units, set[DaemonType]()
        for daemon_type in types:
            unit = units[daemon_type]
            if unit.phase in (Phase.STARTING, Phase.STOPPING):
                pending.add(daemon_type)
            elif unit.phase is Phase.ABSENT and unit.ended in (Ended.NEVER_RAN, Ended.ON_PURPOSE):
                unmet = self._unmet(unit)
                if unit.wanted and not unit.view().holds and all(need in pending for need in unmet):
                    pending.add(daemon_type)
        return pending

    def _name_refusal(self, unit: Unit) -> str:
        """Say that another name of the same is in its place, what keeps that one down, and what to do."""
        if (other := self._supervisor.other_name(unit)) is None:
            return ""
        name = other.daemon_type
        down = other.why_resting(STOPPED_BY_PERSON) or self._supervisor.why(name)
        does = f"{name} does the same and is {'not up' if down else 'running'}"
        down = f" ({down})" if down else ""
        if other.spec.deprecated_for is not None:
            return f"{does}{down}; stop {name} first"
        return f"deprecated: {does}{down}; start {name} instead" if down else f"deprecated: {does}"

    def _memory_refusal(self, unit: Unit) -> str:
        # What others depend on starts also when there is little memory: without it they would all fail.
        if unit.spec.critical:
            return ""
        now_s = self._supervisor.runtime.monotonic_s()
        if now_s - self._memory_read[0] > MEMORY_READING_S:
            self._memory_read = (now_s, self._memory_percent())
        used, limit = self._memory_read[1], self._supervisor.config.memory_limit_percent
        if used < limit:
            return ""
        constraint = {"resource_type": "memory", "usage_percent": used, "threshold": limit}
        self._emit("RESOURCE_CONSTRAINT", {"node_id": self._supervisor.node_id, **constraint})
        return f"memory is {used:.0f} % used; the limit is {limit:.0f} %"


# Stopping many: dependents first, each level at once, all under one deadline.


async def stop_in_order(
    supervisor: Supervisor,
    registry: Registry,
    types: Collection[DaemonType],
    *,
    timeout_s: float,
    forced_s: float,
    ordered: bool = True,
) -> dict[DaemonType, bool]:
    """Stop *types*; return which of them are really gone. Takes at most both limits together.

    A level that does not end in its share of the time does not keep the next one waiting.
    """
    runtime = supervisor.runtime
    deadline_s = runtime.monotonic_s() + timeout_s
    # All at once and before the first ends: the planner must not restart one while others still stop.
    for daemon_type in types:
        supervisor.units[daemon_type].wanted = False
    groups = list(reversed(levels(registry, types))) if ordered else [list(types)]
    for index, group in enumerate(groups):
        left_s = max(deadline_s - runtime.monotonic_s(), 0.0)
        units = [supervisor.units[daemon_type] for daemon_type in group]
        for unit in units:
            supervisor.end(unit, "stopped", limits_s=(left_s, forced_s))
        await _wait_until_gone(units, timeout_s=left_s / (len(groups) - index))
    everything = [supervisor.units[daemon_type] for daemon_type in types]
    rest_s = max(deadline_s - runtime.monotonic_s(), 0.0) + forced_s
    await _wait_until_gone(everything, timeout_s=rest_s + 0.05)
    return {unit.daemon_type: is_gone(unit) for unit in everything}


def is_gone(unit: Unit) -> bool:
    """Return whether nothing of the daemon runs any more."""
    return unit.phase is Phase.ABSENT and not unit.leaked_runs


async def _wait_until_gone(units: Collection[Unit], *, timeout_s: float) -> None:
    runs = [unit.run for unit in units if unit.run is not None and unit.phase is Phase.STOPPING]
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            for run in runs:
                await run.over.wait()
