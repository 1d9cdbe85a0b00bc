"""What each stage of the pipeline waits for: the word of the plan, as the run keeps it in the store.

It is read from the store, so every process gets the same answer, of a live run and of a stopped one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringrift.engine.blocking import blocking
from ringrift.engine.opening import engine_on_demand
from ringrift.errors import ConfigError
from ringrift.learning.plan.orders import EXTRA_STAGES, STAGES, Explanation, read_explanations

__all__ = [
    "PIPELINE_STAGES",
    "TriggerCondition",
    "async_trigger_conditions",
    "get_trigger_condition",
    "get_trigger_conditions",
    "should_trigger",
]

PIPELINE_STAGES = (*STAGES, *EXTRA_STAGES)
# The names of the documents for the stages of the plan.
_STAGE_OF = {
    "training": "train",
    "npz_export": "export",
    "evaluation": "evaluate",
    # Games count once they are taken in and checked, which is what a sync is wanted for.
    "data_sync": "validate",
    "validation": "validate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerCondition:
    """Whether a stage goes on now, and why it does or does not. *will* is None while nobody has planned."""

    config_key: str
    stage: str
    will: bool | None
    reason: str
    until_s: float | None = None


def stage_named(name: str) -> str:
    """Return the stage of the plan that *name* means; `ConfigError` with all of them if there is none."""
    stage = _STAGE_OF.get(str(name), str(name))
    if stage not in PIPELINE_STAGES:
        raise ConfigError(f"{name!r} is no stage; there are {', '.join((*PIPELINE_STAGES, *_STAGE_OF))}")
    return stage


async def async_trigger_conditions(config_key: str) -> dict[str, TriggerCondition]:
    """Return the condition of every stage that the plan has spoken of."""
    said = await read_explanations((await engine_on_demand()).kv, config_key)
    return {each.stage: _condition(config_key, each) for each in said}


async def _trigger_condition(config_key: str, stage: str) -> TriggerCondition:
    """Return the condition of one stage."""
    stage = stage_named(stage)
    found = (await async_trigger_conditions(config_key)).get(stage)
    if found is not None:
        return found
    reason = f"the plan has said nothing of {stage} for {config_key} yet"
    return TriggerCondition(config_key=config_key, stage=stage, will=None, reason=reason)


async def _should_trigger(config_key: str, stage: str) -> bool | None:
    """Whether a stage goes on now; None while nobody has planned for it."""
    return (await _trigger_condition(config_key, stage)).will


get_trigger_conditions = blocking(async_trigger_conditions)
get_trigger_condition = blocking(_trigger_condition)
should_trigger = blocking(_should_trigger)


def _condition(config_key: str, said: Explanation) -> TriggerCondition:
    return TriggerCondition(
        config_key=config_key, stage=said.stage, will=said.will, reason=said.reason, until_s=said.until_s
    )
