"""Exports under the names of the documents: what was exported of each config, and what the next waits for.

The plan exports checked games once while AUTO_EXPORT runs, and lets a training read all files of the window
while NPZ_COMBINATION does. All three daemons look at the same state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ringrift.coordination.event_router import get_router
from ringrift.coordination.run_coordinator import StageDaemon, get_loop_waker, get_situations
from ringrift.engine.run_reports import reported
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.facts.records import base_rows, growth_of, rows_missing, window_rows
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.job_announcements import blob_path
from ringrift.learning.situation import Situations
from ringrift.process import getter_of
from ringrift.runtime import Runtime
from ringrift.work.coordinator import ConfigSignals, heard_by

__all__ = [
    "AutoExportDaemon",
    "ExportState",
    "create_export_daemon",
    "export_state",
    "get_auto_export_daemon",
    "reset_auto_export_daemon",
]

# The plan orders exports, not this cycle: the interval is only how old the shown states may be.
INTERVAL_S = 30.0

# The kind of a daemon row: as whom it hears and plans.
_COMPONENTS = {"export": "auto_export", "combine": "npz_combination"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportState:
    """What is known of the exports of one config."""

    config_key: str
    games_since_last: int
    rows_since_last: int
    last_export_s: float | None
    last_games: int
    last_samples: int
    total_exports: int
    in_progress: bool
    failures_in_a_row: int
    window_rows: int
    rows_missing: int  # before the next training, and so before the next export
    output_path: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def export_state(state: ConfigState) -> ExportState:
    """Read the exports of a config off its state."""
    newest, failures = state.newest_samples, state.failures.get("export")
    rows_then = 0 if newest is None else newest.rows_generated
    # Below 0 after a recall: rows that are no longer trusted count for the last export and not for the state.
    new_rows = max(0, state.rows - rows_then)
    # The state counts games in total only: those since the last export follow from their share of rows.
    games = round(new_rows * state.games / state.rows) if state.rows else 0
    return ExportState(
        config_key=state.config,
        games_since_last=games,
        rows_since_last=new_rows,
        last_export_s=None if newest is None else newest.made_s,
        last_games=0 if newest is None else newest.games,
        last_samples=0 if newest is None else newest.rows,
        total_exports=len(state.samples),
        in_progress=bool(state.open_of("export")),
        failures_in_a_row=0 if failures is None else failures.in_a_row,
        window_rows=window_rows(state.rows, base=base_rows(state.config), growth=growth_of(state.config)),
        rows_missing=rows_missing(
            state.bucket, state.bucket_rules, rows_total=state.rows, has_model=bool(state.models)
        ),
        output_path=None if newest is None else blob_path(newest.digest),
    )


class AutoExportDaemon(StageDaemon):
    """AUTO_EXPORT (kind export) and NPZ_COMBINATION (combine)."""

    capability: ClassVar[str] = "dataset_export"

    def __init__(
        self,
        kind: str = "export",
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
    ) -> None:
        super().__init__(_COMPONENTS[kind], cycle_interval=INTERVAL_S, router=router, runtime=runtime)
        self.kind, self.plans_as = kind, _COMPONENTS[kind]
        self._situations = situations or get_situations()
        self.signals = ConfigSignals()
        self.states: dict[str, ExportState] = {}

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return dict.fromkeys(heard_by(_COMPONENTS[self.kind]), self._on_event)

    def _on_event(self, event: RouterEvent) -> None:
        """Any of them may have brought the rows that an export waits for."""
        self.signals.note(event)
        get_loop_waker().wake_for(event)

    async def _run_cycle(self) -> None:
        self.states = {config: export_state(each.state) for config, each in self._situations.all().items()}

    @reported
    def get_status(self) -> dict[str, Any]:
        open_jobs = {
            job.job_id: job.kind
            for situation in self._situations.all().values()
            for job in situation.state.open_of("export")
        }
        configs = {config: each.to_dict() for config, each in self.states.items()}
        return {**super().get_status(), "kind": self.kind, "configs": configs, "jobs": open_jobs}


# The export daemon of this process; it hears events once it is started.
get_auto_export_daemon = getter_of("get_auto_export_daemon", AutoExportDaemon)
reset_auto_export_daemon = AutoExportDaemon.reset_instance


def create_export_daemon(
    settings: Mapping[str, str] | None = None,
    router: UnifiedEventRouter | None = None,
    runtime: Runtime | None = None,
) -> AutoExportDaemon:
    """The daemon of the kind that its row of the daemon table names."""
    kind = (settings or {}).get("kind", "export")
    # The one that runs must be the one that `get_auto_export_daemon` finds; nobody asks the other kind.
    if kind == "export" and (router is None or router is get_router()):
        return get_auto_export_daemon()
    return AutoExportDaemon(kind, router=router, runtime=runtime)
