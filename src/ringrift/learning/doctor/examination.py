"""What is wrong with a run and what to do about it, in plain words, from what the control side knows.

`examine` is pure: it looks at the state of every config and at what surrounds them, and never at a game or a
network. Those are examined by the job `diagnose`, whose findings come in with the surroundings.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ringrift.daemons.requests import DaemonRequests
from ringrift.engine.ports import KeyValue
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import read_run_choice
from ringrift.learning.doctor import checks
from ringrift.learning.doctor.findings import ExaminationContext, Finding, Level, Observation, read_diagnoses
from ringrift.learning.facts.facts import AnyFact
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.requests import ALL, Pauses
from ringrift.runtime import Runtime
from ringrift.work.job.folder import damaged_inputs
from ringrift.work.worker.records import live_workers, running_jobs

Check = Callable[[ConfigState, ExaminationContext], Iterator[Observation]]

# Every check by its name, in the order in which a person would ask.
CONFIG_CHECKS: dict[str, Check] = {
    "hold_out": checks.hold_out,
    "calibration": checks.calibration,
    "losses": checks.losses,
    "ratio": checks.ratio,
    "canary": checks.canary,
    "duplicates": checks.duplicates,
    "cut_off": checks.cut_off,
    "draws": checks.draws,
    "refusals": checks.refusals,
    "search_budget": checks.search_budget,
    "worker_refusals": checks.worker_refusals,
    "comparisons": checks.comparisons,
    "breakers": checks.breakers,
    "starving": checks.starving,
    "paused": checks.paused,
    "training_slot": checks.training_slot,
}
RUN_CHECKS: dict[str, Callable[[ExaminationContext], Iterator[Observation]]] = {
    "run_paused": checks.run_paused,
    "stopped_daemons": checks.stopped_daemons,
    "workers": checks.workers,
    "disk": checks.disk,
    "clock": checks.clock,
    "files": checks.files,
}


def examine(states: Sequence[ConfigState], context: ExaminationContext) -> list[Finding]:
    """All findings, the gravest first; a check that finds nothing says nothing."""
    found = [Finding.of(seen, check=name) for name, check in RUN_CHECKS.items() for seen in check(context)]
    for state in states:
        for name, check in CONFIG_CHECKS.items():
            found += [Finding.of(seen, check=name, config=state.config) for seen in check(state, context)]
        newest = context.newest_diagnosis(state)
        if newest is not None:
            found += [each for each in newest.findings if each.level is not Level.FINE]
    return sorted(found, key=lambda each: -each.level.severity)


# During a run the pure checks are made once a minute; what changed is logged and told.


ROUND_S = 60.0
SOURCE = "run_doctor"

log = structlog.get_logger()


class DoctorRounds:
    """Examines a run at most once a minute and keeps the findings in between."""

    def __init__(
        self, kv: KeyValue, runtime: Runtime, *, data_dir: Path, router: UnifiedEventRouter | None = None
    ) -> None:
        self._kv, self._runtime, self._data_dir, self._router = kv, runtime, data_dir, router
        self._clock = ClockWatch(runtime)
        self._started_s = runtime.now_s()
        self._looked_s = float("-inf")
        self._findings: list[Finding] = []

    async def findings(
        self, states: Sequence[ConfigState], rules: LearningRules
    ) -> tuple[dict[str, Any], ...]:
        """The findings of the last round, as the status of the run shows them."""
        jump_s = self._clock.look()
        if self._runtime.monotonic_s() - self._looked_s >= ROUND_S:
            self._looked_s = self._runtime.monotonic_s()
            context = await look_around(
                self._kv,
                [state.config for state in states],
                rules,
                now_s=self._runtime.now_s(),
                data_dir=self._data_dir,
            )
            alive = replace(context, is_running=True, started_s=self._started_s, clock_jump_s=jump_s)
            await self._tell(examine(states, alive))
        return tuple(msgspec.to_builtins(each) for each in self._findings)

    async def _tell(self, found: list[Finding]) -> None:
        """Tell what is new and what is over; the status has all of it."""
        before = {(each.check, each.config, each.level) for each in self._findings}
        now = {(each.check, each.config, each.level) for each in found}
        for each in found:
            if (each.check, each.config, each.level) not in before:
                log.warning("doctor.finding", check=each.check, level=str(each.level), text=each.text)
                await self._alert(each)
        for check, config, level in before - now:
            log.info("doctor.finding_over", check=check, config=config, level=str(level))
        self._findings = found

    async def _alert(self, finding: Finding) -> None:
        if self._router is None or finding.level is Level.NOTICE:
            return
        payload = {
            "alert_type": f"doctor_{finding.check}",
            "severity": "error" if finding.level is Level.PROBLEM else "warning",
            "message": f"{finding.text}. {finding.advice}",
            "node_id": self._runtime.hostname,
            "details": {"config_key": finding.config, **finding.evidence},
        }
        await self._router.publish("HEALTH_ALERT", payload, SOURCE)


class ClockWatch:
    """Compares the clock on the wall with the one that only goes forward."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._apart_s = self._offset()
        self._largest_s = 0.0

    def look(self) -> float:
        """The largest jump so far, in seconds; below 0 if it went back."""
        apart_s = self._offset()
        jump_s, self._apart_s = apart_s - self._apart_s, apart_s
        if abs(jump_s) > abs(self._largest_s):
            self._largest_s = jump_s
        return self._largest_s

    def _offset(self) -> float:
        return self._runtime.wall_s() - self._runtime.boot_s()


async def look_around(
    kv: KeyValue, configs: Sequence[str], rules: LearningRules, *, now_s: float, data_dir: Path
) -> ExaminationContext:
    """What surrounds the configs now; whether a run is alive is for the caller to say."""
    pauses = await Pauses(kv).read()
    paused = {config: why for config in configs if (why := pauses.why_paused(config)) is not None}
    disk = await asyncio.to_thread(disk_usage, data_dir)
    choice = await read_run_choice(kv)
    return ExaminationContext(
        now_s=now_s,
        rules=rules,
        workers=await live_workers(kv),
        has_workers=choice is None or choice.workers > 0,
        running=await running_jobs(kv),
        paused=paused,
        run_paused=pauses.why_paused(ALL),
        stopped=await DaemonRequests(kv).stops(),
        damaged=await damaged_inputs(kv),
        disk_free_bytes=disk[0],
        disk_total_bytes=disk[1],
        diagnoses={config: await read_diagnoses(kv, config) for config in configs},
    )


def disk_usage(folder: Path) -> tuple[int | None, int]:
    """Bytes free and in all where *folder* lies or will lie; None if that cannot be told."""
    there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), None)
    if there is None:
        return None, 0
    usage = shutil.disk_usage(there)
    return usage.free, usage.total


def largest_step_back_s(facts: Sequence[AnyFact]) -> float:
    """By how much the clock went back between two facts, as a number below 0; 0 if it never did."""
    steps = (after.at_s - before.at_s for before, after in pairwise(facts))
    return min(0.0, min(steps, default=0.0))
