"""What is told of a search, as events of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ringrift.learning.signals_face import Told
from ringrift.learning.tuning_runs import OptimizationRun, OptimizationType

_KNOBS = ("lr", "batch", "weight_decay", "window", "samples_per_row", "preset")


def triggered_events(run: OptimizationRun) -> list[Told]:
    about = {**_about(run), "reason": run.reason}
    if run.optimization_type is OptimizationType.CMAES:
        sizes = {"generations": "generations", "population": "population_size"}
        given = {field: run.params[name] for name, field in sizes.items() if name in run.params}
        return [("CMAES_TRIGGERED", {**about, **given})]
    if run.optimization_type is OptimizationType.NAS:
        space = {"presets": list(run.params.get("presets", ()))}
        return [("NAS_TRIGGERED", {**about, "search_space": space})]
    return []


def started_events(run: OptimizationRun) -> list[Told]:
    if run.optimization_type is OptimizationType.NAS:
        return [("NAS_STARTED", _about(run))]
    if run.optimization_type is OptimizationType.PBT:
        return [("PBT_STARTED", {**_about(run), "population_size": int(run.params.get("population", 0))})]
    return []


def generation_events(run: OptimizationRun, generations: Iterable[Mapping[str, Any]]) -> list[Told]:
    names = {OptimizationType.NAS: "NAS_GENERATION_COMPLETE", OptimizationType.PBT: "PBT_GENERATION_COMPLETE"}
    name = names.get(run.optimization_type)
    if name is None:
        return []
    return [
        (
            name,
            {**_about(run), "generation": int(each["generation"]), "best_score": float(each["best_score"])},
        )
        for each in generations
    ]


def ended_events(run: OptimizationRun) -> list[Told]:
    """The end of a search that found something, and the parameters that change by it."""
    score = run.best_score or 0.0
    best = {"best_params": run.best_params, "best_score": score}
    told: list[Told] = []
    if run.optimization_type is OptimizationType.CMAES:
        told.append(("CMAES_COMPLETED", {**_about(run), **best, "generations": run.generations}))
    elif run.optimization_type is OptimizationType.PBT:
        told.append(("PBT_COMPLETED", {**_about(run), **best, "generations": run.generations}))
    elif run.optimization_type is OptimizationType.NAS:
        found = {"architecture": run.best_params, "score": score}
        told.append(("NAS_BEST_ARCHITECTURE", {**_about(run), **found}))
        told.append(
            ("NAS_COMPLETED", {**_about(run), "best_architecture": run.best_params, "best_score": score})
        )
    return told + _changes(run)


def _changes(run: OptimizationRun) -> list[Told]:
    """Training parameters that were shown to be better than those in use."""
    if not run.improved or run.optimization_type is OptimizationType.CMAES:
        return []
    about = {"config_key": run.config_key, "optimizer": str(run.optimization_type), "reason": run.run_id}
    return [
        (
            "HYPERPARAMETER_UPDATED",
            {**about, "param_name": name, "old_value": run.params.get(name, ""), "new_value": new},
        )
        for name, new in run.best_params.items()
        if name in _KNOBS and new != run.params.get(name)
    ]


def _about(run: OptimizationRun) -> dict[str, Any]:
    return {"config_key": run.config_key, "run_id": run.run_id}
