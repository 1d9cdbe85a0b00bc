"""The clocks of this machine, for the `Runtime` and for commands that are too quick to load one."""

from __future__ import annotations

import time


def now_s() -> float:
    """Wall-clock seconds since the epoch; may jump."""
    return time.time()


def monotonic_s() -> float:
    """Seconds that never go back; only differences mean anything."""
    return time.monotonic()
