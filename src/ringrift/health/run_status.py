"""What the run says of itself, as far as watchers and schedulers need it.

The control process keeps its status in the key-value port. This reads the fields that matter here and
ignores the rest, so that rooms below the loop can see it without knowing the loop.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import KeyValue
from ringrift.errors import Corrupt

RUN_STATUS_KEY = "learning/status"  # as the loop spells it, which `ringrift status` loads without the engine
SILENT_S = 30.0  # the control process says how it is every second; after this it may be gone


class RatingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """How strong a champion is, and when it became one."""

    at_s: float
    rating: float


class CostSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What a config cost so far."""

    cpu_s: float = 0.0


class ConfigSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One config, as its run shows it."""

    games: int = 0
    games_unchecked: int = 0
    rows: int = 0
    sample_steps: int = 0
    promotions: int = 0
    champion: str | None = None
    rating: float | None = None
    rating_interval: tuple[float, float] | None = None
    stage: str = ""
    blocked: dict[str, dict[str, Any]] = {}
    share: float = 0.0
    games_per_s: float = 0.0
    curve: tuple[RatingPoint, ...] = ()
    cost: CostSeen = CostSeen()
    next: str = ""

    @property
    def rating_error(self) -> float | None:
        """Half of the interval."""
        if self.rating_interval is None:
            return None
        low, high = self.rating_interval
        return (high - low) / 2


class RunSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    at_s: float
    state: str = "running"
    workers: int = 0
    configs: dict[str, ConfigSeen] = {}
    queue: dict[str, dict[str, int]] = {}


async def read_run(kv: KeyValue) -> RunSeen | None:
    """Return what the control process last said; None if no run has said anything yet."""
    entry = await kv.get(RUN_STATUS_KEY)
    if entry is None:
        return None
    try:
        return decode_as(entry.value, RunSeen)
    except UNREADABLE as error:
        raise Corrupt(
            RUN_STATUS_KEY, found=f"this is no status ({error})", advice="Restart the run"
        ) from None


async def seen_run() -> RunSeen | None:
    """Return what the run in this data folder last said; None if there was none. Makes no store."""
    engine = await existing_engine()
    return None if engine is None else await read_run(engine.kv)


def run_state(seen: RunSeen | None, now_s: float) -> str | None:
    """Running, paused or stopped; None if nobody knows: no run ever said, or one fell silent unasked."""
    if seen is None:
        return None
    # A run that stopped said so last, and is silent with good reason.
    return seen.state if seen.state == "stopped" or now_s - seen.at_s <= SILENT_S else None
