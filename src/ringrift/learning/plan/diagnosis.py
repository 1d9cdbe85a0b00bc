"""When games and networks of a config are examined, and what becomes of the findings.

A new champion is examined by the job `diagnose`, at most every so often. What it finds is kept where the
doctor looks, so that `ringrift doctor`, the status and the live page show it.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from ringrift.decoding import convert_to
from ringrift.engine.ports import KeyValue
from ringrift.learning.doctor.findings import Diagnosis, keep_diagnosis
from ringrift.learning.facts.records import ShardState
from ringrift.learning.facts.results import WEIGHTS_SUFFIX
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.plan.orders import model_files, shard_name
from ringrift.learning.plan.snapshot import ConfigPlan, Snapshot, is_running
from ringrift.work.job.orders import INPUTS, OUT, JobOrder, JobReport

STAGE = "diagnose"
SHARDS_EXAMINED = 5


def plan_diagnosis(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Examine the champion if it is another than last time, and the last time is long enough ago."""
    state, rules = snapshot.state, snapshot.rules
    if not rules.diagnose_every_s or state.champion is None or is_running(snapshot, made, STAGE):
        return
    last = state.last_done.get(STAGE)
    if last is not None and last.order.inputs.get(f"model{WEIGHTS_SUFFIX}") == state.champion:
        made.say(STAGE, "the champion is examined")
        return
    due_s = rules.diagnose_every_s + (state.first_s if last is None else last.at_s)
    if snapshot.now_s < due_s:
        made.say(STAGE, "the champion is examined later", until_s=due_s)
        return
    made.want(STAGE, diagnose_order(snapshot), "examine the new champion, its samples and its newest games")


def diagnose_order(snapshot: Snapshot) -> JobOrder:
    state, rules = snapshot.state, snapshot.rules
    assert state.champion is not None
    inputs = model_files("model", state.models[state.champion])
    params: dict[str, Any] = {
        "config": state.config,
        "out": f"{OUT}/diagnosis.json",
        "model": f"{INPUTS}/model{WEIGHTS_SUFFIX}",
        "preset": rules.preset,
        "hold_out": rules.hold_out,
    }
    samples = state.newest_samples
    if samples is not None:
        inputs["samples.npz"] = samples.digest
        params["samples"] = [f"{INPUTS}/samples.npz"]
    checked = (each for each in reversed(state.shards.values()) if each.state is ShardState.CHECKED)
    shards = {shard_name(each): each.digest for each in islice(checked, SHARDS_EXAMINED)}
    params["shards"] = [f"{INPUTS}/{name}" for name in shards]
    return JobOrder(config=state.config, params=params, inputs={**inputs, **shards})


async def keep_reported(kv: KeyValue, state: ConfigState, report: JobReport) -> str:
    """Keep what a job found; returns why its report is none, or nothing. Safe to repeat."""
    try:
        found = convert_to(report.fields, Diagnosis, strict=False)
    except msgspec.ValidationError as error:
        return f"the diagnosis cannot be read: {error}"
    if found.config != state.config:
        return f"the diagnosis is of {found.config}"
    await keep_diagnosis(kv, found)
    return ""
