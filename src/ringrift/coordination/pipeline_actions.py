"""Asking for a stage of the pipeline by hand, behind the breaker that failures of the stage open.

The loop orders all work, by its plan; no call orders a second time beside it. Asking wakes the loop, if it
runs in this process (elsewhere it looks again within seconds by itself), and answers with what the plan says
of the stage: that it goes on, or what it waits for. A stage that failed too often in a row is blocked for a
while by the facts; that is the breaker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringrift.coordination.pipeline_triggers import async_trigger_conditions, stage_named
from ringrift.coordination.run_coordinator import get_loop_waker
from ringrift.engine.blocking import blocking
from ringrift.engine.opening import shared_kv
from ringrift.health.run_status import read_run_status

__all__ = [
    "ActionResult",
    "StageBreaker",
    "async_trigger_stage",
    "get_stage_breakers",
    "trigger_data_sync",
    "trigger_evaluation",
    "trigger_npz_export",
    "trigger_selfplay",
    "trigger_stage",
    "trigger_training",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """What became of a request. *accepted* is None while no plan has been made for the config."""

    stage: str
    config_key: str
    accepted: bool | None
    reason: str
    breaker_open: bool = False
    until_s: float | None = None  # when it is worth to ask again, if that is known

    def __bool__(self) -> bool:
        return self.accepted is True


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBreaker:
    """A stage that is held back after failures in a row."""

    stage: str
    reason: str
    until_s: float | None


async def async_trigger_stage(stage: str, config_key: str) -> ActionResult:
    """Have the loop look again, and say what the plan makes of the stage."""
    stage = stage_named(stage)
    # The answer below is of the last plan; the one that this brings about may already differ.
    get_loop_waker().wake("asked for")
    # Asked first: failures explain a blocked stage better than what it would wait for next.
    breaker = (await _stage_breakers(config_key)).get(stage)
    if breaker is not None:
        return ActionResult(
            stage=stage,
            config_key=config_key,
            accepted=False,
            reason=f"blocked after failures: {breaker.reason}",
            breaker_open=True,
            until_s=breaker.until_s,
        )
    said = (await async_trigger_conditions(config_key)).get(stage)
    if said is None:
        reason = f"the plan has said nothing of {stage} for {config_key} yet; is a run of it open?"
        return ActionResult(stage=stage, config_key=config_key, accepted=None, reason=reason)
    return ActionResult(
        stage=stage, config_key=config_key, accepted=said.will, reason=said.reason, until_s=said.until_s
    )


async def _stage_breakers(config_key: str) -> dict[str, StageBreaker]:
    """Return the open breakers of a config, by stage."""
    run = await read_run_status(await shared_kv())
    status = None if run is None else run.configs.get(config_key)
    blocked: Mapping[str, Mapping[str, Any]] = {} if status is None else status.blocked
    return {
        stage: StageBreaker(stage=stage, reason=str(block.get("reason", "")), until_s=block.get("until_s"))
        for stage, block in blocked.items()
    }


trigger_stage = blocking(async_trigger_stage)
get_stage_breakers = blocking(_stage_breakers)


def trigger_selfplay(config_key: str) -> ActionResult:
    return trigger_stage("selfplay", config_key)


def trigger_data_sync(config_key: str) -> ActionResult:
    """Ask that new games are taken in and checked."""
    return trigger_stage("validate", config_key)


def trigger_npz_export(config_key: str) -> ActionResult:
    return trigger_stage("export", config_key)


def trigger_training(config_key: str) -> ActionResult:
    return trigger_stage("train", config_key)


def trigger_evaluation(config_key: str) -> ActionResult:
    return trigger_stage("evaluate", config_key)
