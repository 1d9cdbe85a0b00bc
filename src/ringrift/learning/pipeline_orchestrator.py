"""The pipeline orchestrator: where each config is between its games and its next champion.

The plan moves configs on; this follows what is told, answers for it under the documents' names, and rings
the loop's bell when something may have changed. With auto-trigger off the loop does not run, and nothing
follows by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from ringrift.errors import ConfigError
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.announcing import SOURCE as LOOP
from ringrift.learning.pipeline_records import (
    ENTERED,
    FAILED,
    IterationRecord,
    PipelineBook,
    PipelineStage,
    StageTransition,
)
from ringrift.learning.rules import LearningRules
from ringrift.learning.signals_source import get_open_run
from ringrift.runtime import Runtime
from ringrift.settings import get_settings
from ringrift.work.scheduling_bell import get_bell
from ringrift.work.scheduling_face import CoordinatorFace, heard_by
from ringrift.work.scheduling_notes import ConfigSignals

NAME = "pipeline_orchestrator"
PRESETS = ("small", "medium", "large")
STRAIN_S = 900.0  # a strain that nobody repeats is over after this time

_STRAIN = frozenset({"BACKPRESSURE_ACTIVATED", "RESOURCE_CONSTRAINT_DETECTED"})


class OperationMode(StrEnum):
    """How the pipeline works."""

    FULL = "full"
    DEGRADED = "degraded"  # something holds it back
    LOCAL = "local"  # nothing follows by itself


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller of bootstrap asked for; None leaves it to the settings."""

    auto_trigger: bool | None = None
    training_epochs: int | None = None
    training_batch_size: int | None = None
    training_model_version: str | None = None
    training_data_path: str | None = None

    def __post_init__(self) -> None:
        if self.auto_trigger is not None and not isinstance(self.auto_trigger, bool):
            raise ConfigError(f"auto_trigger is {self.auto_trigger!r}; it must be True or False")
        for name in ("training_epochs", "training_batch_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, 1 or more")
        if self.training_model_version not in (None, *PRESETS):
            raise ConfigError(
                f"training_model_version is {self.training_model_version!r}; "
                f"the networks that can be trained are {', '.join(PRESETS)}"
            )
        if self.training_data_path is not None:
            raise ConfigError(
                f"training_data_path is {str(self.training_data_path)!r}; leave it out: the loop trains on "
                "samples of games that it has replayed by the rules, and takes none from a path"
            )

    def learning(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings table `[learning]` with what was asked for.

        Epochs are passes over the data, which the train bucket counts as steps per row.
        """
        changed = dict(table)
        if self.training_batch_size is not None:
            changed["batch"] = self.training_batch_size
        if self.training_epochs is not None:
            usual = msgspec.to_builtins(LearningRules().bucket)
            asked = {**dict(table.get("bucket", {})), "steps_per_row": float(self.training_epochs)}
            changed["bucket"] = {**usual, **asked}
        if self.training_model_version is not None:
            changed["preset"] = self.training_model_version
        return changed


class DataPipelineOrchestrator(CoordinatorFace):
    """Stages, transitions and turns of the loop by config."""

    capability: ClassVar[str] = "pipeline"
    emits: ClassVar[tuple[str, ...]] = ("SYNC_REQUEST", "SYNC_TRIGGERED")

    def __init__(
        self,
        config: PipelineConfig | None = None,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(NAME, router=router, runtime=runtime)
        self.config = config or PipelineConfig()
        self.book = PipelineBook()
        self.signals = ConfigSignals()
        self._strain: tuple[float, str] | None = None

    @property
    def auto_trigger(self) -> bool:
        asked = self.config.auto_trigger
        return get_settings().auto_trigger_pipeline if asked is None else asked

    def reactions(self) -> Mapping[str, Callback]:
        """Every event is noted; some move a stage, ask for a transfer or tell a strain; all wake the loop."""
        return dict.fromkeys(heard_by(NAME), self._on_event)

    async def _on_event(self, event: RouterEvent) -> None:
        name, told = event.event_type, event.payload
        self.signals.note(event)
        config = str(told.get("config_key") or "")
        if config and name in ENTERED and told.get("success") is not False:
            self.book.enter(config, ENTERED[name], event.timestamp, told)
        elif config and name in FAILED:
            self.book.fail(config, FAILED[name], event.timestamp, str(told.get("error") or name))
        if name in _STRAIN:
            why = told.get("reason") or told.get("resource_type") or name
            self._strain = (self.runtime.now_s(), str(why))
        elif name == "BACKPRESSURE_RELEASED":
            self._strain = None
        elif name == "DATA_STALE":
            await self._ask_for_fresh_data(told)
        elif name == "ORPHAN_GAMES_DETECTED":
            wanted = {"requester": NAME, "data_type": "games", "reason": "games that nobody registered"}
            await self.tell("SYNC_REQUEST", wanted)
        if event.source != LOOP:  # what the loop told itself is no news to it
            get_bell().ring_for(event)

    async def _ask_for_fresh_data(self, told: Mapping[str, Any]) -> None:
        age = {"data_age_hours": float(told.get("data_age_hours") or 0.0)}
        await self.tell(
            "SYNC_TRIGGERED", {"config_key": told.get("config_key"), "reason": "the data is old", **age}
        )

    # --- what it shows --------------------------------------------------------------------------------

    @property
    def mode(self) -> OperationMode:
        if not self.auto_trigger:
            return OperationMode.LOCAL
        return OperationMode.FULL if self.why_degraded() is None else OperationMode.DEGRADED

    def why_degraded(self) -> str | None:
        if self._strain is None:
            return None
        since_s, why = self._strain
        return why if self.runtime.now_s() - since_s < STRAIN_S else None

    def get_current_stage(self, config_key: str) -> PipelineStage:
        """Where a config is: by the run's open work if it runs here, else by what was told last."""
        loop = get_open_run().loop
        if loop is not None and config_key in loop.configs():
            for kind, stage in _WORK:
                if loop.state(config_key).open_of(kind):
                    return stage
        return self.book.stage(config_key)

    def get_transitions(self, limit: int = 50) -> list[StageTransition]:
        """Return transitions, newest first."""
        return list(self.book.transitions)[::-1][:limit]

    def get_iterations(self, limit: int = 20) -> list[IterationRecord]:
        """Return turns of the loop that ended, newest first."""
        return list(self.book.iterations)[::-1][:limit]

    def get_stats(self) -> dict[str, Any]:
        return {
            "mode": self.mode.value,
            "auto_trigger": self.auto_trigger,
            "loop_runs": get_open_run().loop is not None,
            "degraded": self.why_degraded(),
            "stages": {config: self.get_current_stage(config).value for config in self.book.stages()},
            **self.book.stats(),
        }


_WORK = (
    ("evaluate", PipelineStage.EVALUATION),
    ("train", PipelineStage.TRAINING),
    ("export", PipelineStage.NPZ_EXPORT),
    ("validate", PipelineStage.DATA_SYNC),
)


def get_pipeline_orchestrator(config: PipelineConfig | None = None) -> DataPipelineOrchestrator:
    """Return the orchestrator of this process; another *config* than it has is a `ConfigError`."""
    if config is None:
        return DataPipelineOrchestrator.get_instance()
    return DataPipelineOrchestrator.get_instance(config)


reset_pipeline_orchestrator = DataPipelineOrchestrator.reset_instance


def wire_pipeline_events(
    pipeline_auto_trigger: bool | None = None,  # noqa: FBT001 - the name and place bootstrap gives it
    *,
    training_epochs: int | None = None,
    training_batch_size: int | None = None,
    training_model_version: str | None = None,
    training_data_path: str | None = None,
    router: UnifiedEventRouter | None = None,
) -> DataPipelineOrchestrator:
    """Return the orchestrator of this process, subscribed; for another *router*, one of its own.

    What is None stays as it is. Raises `ConfigError` for a change while the loop runs, which took over its
    configuration when it began.
    """
    asked = {
        "auto_trigger": pipeline_auto_trigger,
        "training_epochs": training_epochs,
        "training_batch_size": training_batch_size,
        "training_model_version": training_model_version,
        "training_data_path": training_data_path,
    }
    found = get_pipeline_orchestrator() if router is None else DataPipelineOrchestrator(router=router)
    changes = {name: value for name, value in asked.items() if value is not None}
    config = msgspec.structs.replace(found.config, **changes)
    if config != found.config and router is None and get_open_run().loop is not None:
        raise ConfigError(f"the loop runs; stop it before you change {', '.join(sorted(changes))}")
    found.config = config
    found.wire()
    return found


def get_pipeline_status() -> dict[str, Any]:
    return get_pipeline_orchestrator().get_status()
