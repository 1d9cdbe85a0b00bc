"""Is the data that a training would use new enough? Asked with a board and a number of players.

`check_freshness` only looks. `ensure_fresh_data` also asks for a sync and waits for what it brings.
"""

from __future__ import annotations

from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_base import open_data_plane
from ringrift.data.plane import DataPlane, OpenPlane
from ringrift.data.sync.freshness import FreshnessCheck, FreshnessConfig, FreshnessResult, judge_freshness
from ringrift.engine.blocking import blocking
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import getter_of, reset_of

__all__ = [
    "FreshnessChecker",
    "FreshnessConfig",
    "FreshnessResult",
    "TrainingFreshnessChecker",
    "check_freshness",
    "check_freshness_async",
    "ensure_fresh_data",
    "get_freshness_checker",
    "judge_freshness",
    "reset_freshness_checker",
]


class FreshnessChecker(FreshnessCheck):
    """Looks at what this node holds, because that is what it would train on."""

    def __init__(
        self,
        plane: DataPlane | OpenPlane | None = None,
        *,
        config: FreshnessConfig | None = None,
        router: UnifiedEventRouter | None = None,
    ) -> None:
        super().__init__(plane or open_data_plane, router=router or get_router(), config=config)


# The name of the documents.
TrainingFreshnessChecker = FreshnessChecker


get_freshness_checker = getter_of("get_freshness_checker", FreshnessChecker)
reset_freshness_checker = reset_of("reset_freshness_checker", FreshnessChecker)


async def check_freshness_async(board_type: str, num_players: int) -> FreshnessResult:
    """Look at the data of one config; `check_freshness` is for code without an event loop."""
    return await get_freshness_checker().check(f"{board_type}_{num_players}p")


check_freshness = blocking(check_freshness_async)


async def ensure_fresh_data(board_type: str, num_players: int) -> FreshnessResult:
    """Make sure that a training would find new data, as far as a sync can."""
    return await get_freshness_checker().ensure_fresh(f"{board_type}_{num_players}p")
