"""Tuning: searches for better parameters, begun by hand or on a plateau."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from ringrift.engine.blocking import run_blocking
from ringrift.errors import Conflict
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.tuning_coordinator import OptimizationCoordinator
from ringrift.learning.tuning_runs import (
    OptimizationRun,
    OptimizationStatus,
    OptimizationType,
    tune_order,
    tuned_rules,
    why_not,
)

__all__ = [
    "OptimizationCoordinator",
    "OptimizationRun",
    "OptimizationStatus",
    "OptimizationType",
    "async_trigger",
    "get_optimization_coordinator",
    "reset_optimization_coordinator",
    "trigger_cmaes",
    "trigger_nas",
    "trigger_pbt",
    "tune_order",
    "tuned_rules",
    "why_not",
    "wire_optimization_events",
]

log = structlog.get_logger()

ANSWER_S = 30.0


def get_optimization_coordinator(**parts: Any) -> OptimizationCoordinator:
    """Return the coordinator of this process; other *parts* than it was made with are a `ConfigError`."""
    return OptimizationCoordinator.get_instance(**parts)


reset_optimization_coordinator = OptimizationCoordinator.reset_instance


def wire_optimization_events(router: UnifiedEventRouter | None = None) -> OptimizationCoordinator:
    """Return the coordinator, subscribed. With a *router* of its own it is not the one of the process."""
    made = get_optimization_coordinator() if router is None else OptimizationCoordinator(router=router)
    made.wire()
    return made


async def async_trigger(
    kind: OptimizationType | str, config_key: str | None = None, reason: str = "", **params: Any
) -> OptimizationRun | None:
    """Order a search; None, with the reason in the log, if none may begin now.

    Without a *config_key* it is for the config of the run that waits longest for a search.
    """
    try:
        return await get_optimization_coordinator().begin(kind, config_key, reason, **params)
    except Conflict as refused:
        log.warning("tuning.refused", kind=str(kind), config=config_key, why=str(refused))
        return None


def trigger_cmaes(config_key: str | None = None, reason: str = "", **params: Any) -> OptimizationRun | None:
    """Search for better weights of the heuristic player, from code that is not async."""
    return _trigger(OptimizationType.CMAES, config_key, reason, params)


def trigger_nas(config_key: str | None = None, reason: str = "", **params: Any) -> OptimizationRun | None:
    """Search for the size of the network, from code that is not async."""
    return _trigger(OptimizationType.NAS, config_key, reason, params)


def trigger_pbt(config_key: str | None = None, reason: str = "", **params: Any) -> OptimizationRun | None:
    """Search for training parameters by a population, from code that is not async."""
    return _trigger(OptimizationType.PBT, config_key, reason, params)


def _trigger(
    kind: OptimizationType, config_key: str | None, reason: str, params: dict[str, Any]
) -> OptimizationRun | None:
    work = async_trigger(kind, config_key, reason, **params)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return run_blocking(work, timeout_s=ANSWER_S)
