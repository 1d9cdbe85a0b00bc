"""Ordering a search for better parameters: a record of it, and a work item that any worker may take.

The process of the run and the command line order in the same way. Whoever orders, the coordinator of the run
follows the search and writes what it showed into the facts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from ringrift.engine.ports import Engine, NewWork
from ringrift.errors import Conflict
from ringrift.learning.rules import LearningRules
from ringrift.learning.state import ConfigState
from ringrift.learning.tuning_runs import OptimizationRun, OptimizationType, tune_order, why_not
from ringrift.learning.tuning_store import TuningStore
from ringrift.runtime import Runtime

NAME_DIGITS = 10
PRIORITY = 80  # above self-play, which always waits in line, and below all else that the loop needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What somebody wants to be searched."""

    kind: OptimizationType
    config: str
    reason: str = ""
    automatic: bool = False
    run_id: str | None = None
    params: dict[str, Any] = field(default_factory=dict)  # of the job, instead of its own defaults


async def order_search(
    engine: Engine, runtime: Runtime, search: Search, state: ConfigState | None, rules: LearningRules
) -> OptimizationRun:
    """Raises `Conflict` that says why none may begin now."""
    store, now_s = TuningStore(engine.kv), runtime.now_s()
    if why := why_not(await store.runs(), now_s, automatic=search.automatic):
        raise Conflict(why)
    order = tune_order(search.kind, search.config, state, rules, **search.params)
    if order is None:
        raise Conflict(f"{search.config} has no samples to train on yet")
    run = OptimizationRun(
        run_id=search.run_id or _new_name(search.kind, runtime),
        optimization_type=search.kind,
        config_key=search.config,
        reason=search.reason or "asked for",
        started_s=now_s,
        automatic=search.automatic,
        params=dict(order.params),
    )
    await store.begin(run)
    item = NewWork(
        id=run.run_id,
        kind="tune",
        payload=order.as_payload(),
        priority=PRIORITY,
        group=order.config,
        idempotency_key=run.run_id,
    )
    await engine.queue.add([item])
    return run


def _new_name(kind: OptimizationType, runtime: Runtime) -> str:
    """Short enough to be typed, and never one that was given before: an item of that name would be over."""
    digest = hashlib.sha256(runtime.new_id().encode()).hexdigest()
    return f"tune.{kind}.{digest[:NAME_DIGITS]}"
