"""Is the data that a training would use new enough? Asked with a board and a number of players.

`check_freshness` only looks. `ensure_fresh_data` also asks for a sync and waits for what it brings.
"""

from __future__ import annotations

from ringrift.data.sync.freshness import FreshnessChecker, FreshnessConfig, FreshnessResult, judge_freshness
from ringrift.engine.blocking import blocking
from ringrift.process import process_scope

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
]

# The name of the documents.
TrainingFreshnessChecker = FreshnessChecker


def get_freshness_checker() -> FreshnessChecker:
    return process_scope().get(FreshnessChecker, FreshnessChecker)


async def check_freshness_async(board_type: str, num_players: int) -> FreshnessResult:
    """Look at the data of one config; `check_freshness` is for code without an event loop."""
    return await get_freshness_checker().check(f"{board_type}_{num_players}p")


check_freshness = blocking(check_freshness_async)


async def ensure_fresh_data(board_type: str, num_players: int) -> FreshnessResult:
    """Make sure that a training would find new data, as far as a sync can."""
    return await get_freshness_checker().ensure_fresh(f"{board_type}_{num_players}p")
