"""PER_ORCHESTRATOR: the replay window of each config, as the documents' replay buffer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ringrift.coordination.run_coordinator import StageDaemon, get_situations
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.facts.records import ShardState, base_rows, growth_of, shards_in_window, window_rows
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.job_announcements import blob_path
from ringrift.learning.situation import Situations
from ringrift.runtime import Runtime

INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """What the next training is sampled from."""

    config_key: str
    rows: int
    rows_total: int
    rows_recalled: int
    shards: int
    oldest_s: float | None
    newest_s: float | None
    buffer_path: str | None  # the newest export of it


def replay_window(state: ConfigState) -> WindowView:
    base, growth = base_rows(state.config), growth_of(state.config)
    # Newest first: the window is filled from the newest rows, and its last shard is the oldest.
    shards = shards_in_window(reversed(state.shards.values()), state.rows, base=base, growth=growth)
    newest = state.newest_samples
    return WindowView(
        config_key=state.config,
        rows=window_rows(state.rows, base=base, growth=growth),
        rows_total=state.rows,
        rows_recalled=state.totals[f"rows {ShardState.RECALLED}"],
        shards=len(shards),
        oldest_s=shards[-1].made_s if shards else None,
        newest_s=shards[0].made_s if shards else None,
        buffer_path=None if newest is None else blob_path(newest.digest),
    )


class ReplayWindowDaemon(StageDaemon):
    """Keeps the view of the windows fresh. What changed them is told with the facts."""

    capability: ClassVar[str] = "replay_refresh"
    plans_as = "per_orchestrator"

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
    ) -> None:
        super().__init__("per_orchestrator", cycle_interval=INTERVAL_S, router=router, runtime=runtime)
        self._situations = situations or get_situations()
        self.windows: dict[str, WindowView] = {}

    async def _run_cycle(self) -> None:
        self.windows = {config: replay_window(each.state) for config, each in self._situations.all().items()}

    def get_status(self) -> dict[str, Any]:
        windows = {config: asdict(each) for config, each in self.windows.items()}
        return {**super().get_status(), "windows": windows}
