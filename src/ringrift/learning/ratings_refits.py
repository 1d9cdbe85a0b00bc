"""Fits ratings beside the event loop, as soon as there is something new to fit.

`rate` is asked for in the middle of decisions, which cannot wait. Thousands of matches take it tenths of a
second, so they are fitted in a thread when they come in; whoever asks afterwards finds the answer there.
"""

from __future__ import annotations

import asyncio

from ringrift.learning.ratings import rate
from ringrift.learning.state import ConfigState


class RatingRefits:
    """Follows the matches of several configs."""

    def __init__(self) -> None:
        self._fitted: dict[str, tuple[int, ...]] = {}

    async def follow(self, state: ConfigState) -> None:
        """Returns when the ratings of *state* are fitted; at once if there is nothing new."""
        withdrawn = sum(recall.withdrawn for recall in state.recalls.values())
        mark = (len(state.matches), len(state.recalls), withdrawn)
        if mark != self._fitted.get(state.config):
            await asyncio.to_thread(rate, state.trusted_matches())
            self._fitted[state.config] = mark
