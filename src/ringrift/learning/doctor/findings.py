"""What the doctor says, and what it looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from ringrift.daemons.requests import DaemonRequest
from ringrift.engine.ports import KeyValue
from ringrift.engine.records import read_records, write_record
from ringrift.learning.facts.ledger import quoted
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.plan.rules import LearningRules
from ringrift.work.job.folder import DamagedInput
from ringrift.work.worker.records import RunningRecord, WorkerRecord

DIAGNOSES = "learning/diagnosis/"
DIAGNOSES_MAX = 50  # of a config


class Level(StrEnum):
    """How grave a finding is."""

    FINE = "fine"
    NOTICE = "notice"  # worth knowing
    WARNING = "warning"  # costs strength or time
    PROBLEM = "problem"  # what comes out cannot be trusted, or nothing comes out

    @property
    def severity(self) -> int:
        return list(Level).index(self)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What a check sees: how grave, in a sentence, what to do, and the numbers behind it."""

    level: Level
    text: str
    advice: str = ""
    evidence: dict[str, Any] = {}


class Finding(Observation, frozen=True, kw_only=True):
    """One thing that the doctor says."""

    check: str
    config: str = ""  # empty: the whole run

    @classmethod
    def of(cls, seen: Observation, *, check: str, config: str = "") -> Finding:
        return cls(check=check, config=config, **msgspec.structs.asdict(seen))


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the job `diagnose` found about one model of a config."""

    config: str
    model: str | None
    at_s: float
    findings: tuple[Finding, ...]
    canary: dict[str, Any] | None = None  # positions, kept (share of right choices), by whom


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationContext:
    """What surrounds the configs at the time of the examination."""

    now_s: float
    rules: LearningRules
    is_running: bool = False
    started_s: float = 0.0  # of the control process
    workers: Sequence[WorkerRecord] = ()
    has_workers: bool = True  # False: the run was asked to do no job itself
    running: Sequence[RunningRecord] = ()
    paused: Mapping[str, str] = field(default_factory=dict)  # config: reason
    run_paused: str | None = None  # the reason, if the whole run is
    stopped: Mapping[str, DaemonRequest] = field(default_factory=dict)  # daemons, by people
    disk_free_bytes: int | None = None
    disk_total_bytes: int = 0
    clock_jump_s: float = 0.0  # the largest seen
    damaged: Sequence[DamagedInput] = ()  # files that have not come back
    diagnoses: Mapping[str, Sequence[Diagnosis]] = field(default_factory=dict)  # config: oldest first

    def newest_diagnosis(self, state: ConfigState) -> Diagnosis | None:
        found = self.diagnoses.get(state.config) or ()
        return found[-1] if found else None


async def read_diagnoses(kv: KeyValue, config: str) -> list[Diagnosis]:
    """The diagnoses of *config*, oldest first."""
    found = await read_records(kv, f"{DIAGNOSES}{quoted(config)}/", Diagnosis)
    return sorted(found, key=lambda each: each.at_s)


async def keep_diagnosis(kv: KeyValue, diagnosis: Diagnosis) -> None:
    """Remember *diagnosis*, the newest of its model; the oldest ones make room."""
    prefix = f"{DIAGNOSES}{quoted(diagnosis.config)}/"
    await write_record(kv, prefix + (diagnosis.model or "none"), diagnosis)
    known = await read_diagnoses(kv, diagnosis.config)
    for old in known[:-DIAGNOSES_MAX]:
        await kv.delete(prefix + (old.model or "none"))
