"""The clocks of this machine, for the `Runtime` and for commands that are too quick to load one.

The wall clock may be set by anybody at any moment. What several processes reckon with (leases, delays,
expiry, ages) is counted from the start of the machine instead, which all its processes see alike: a
`ClockAnchor` says what the time was at one such moment, and every later time follows from it.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

# Goes on while the machine sleeps. Elsewhere CLOCK_MONOTONIC does that.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = "/proc/self/ns/time"
# How old the time that was last stored may be: after a restart of the machine time goes on behind it.
NOTED_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """What the time was when the machine *boot* had been up for *boot_s*."""

    boot: str
    boot_s: float
    time_s: float

    def at(self, boot_s: float) -> float:
        return self.time_s + (boot_s - self.boot_s)

    def holds(self, *, boot: str, boot_s: float, last_s: float) -> bool:
        """Whether time can still be counted from here: the machine was not started again after *last_s*."""
        return self.boot == boot and self.at(boot_s) >= last_s - NOTED_EVERY_S


def new_anchor(*, boot: str, boot_s: float, now_s: float, last_s: float | None) -> ClockAnchor:
    """Begin to count at *now_s*, or behind the last time of the machine's life before, whatever is later."""
    return ClockAnchor(boot, boot_s, now_s if last_s is None else max(now_s, last_s + 2 * NOTED_EVERY_S))


def wall_s() -> float:
    """Wall-clock seconds since the epoch; may be set forward and back."""
    return time.time()


def monotonic_s() -> float:
    """Seconds that never go back; only differences mean anything."""
    return time.monotonic()


def boot_s() -> float:
    """Seconds since the machine started, sleep included; the same in all its processes, and never set."""
    return time.clock_gettime(_BOOT_CLOCK)


def boot_id() -> str:
    """Which start of which machine this is: `boot_s` of two processes compare only if it is the same."""
    if sys.platform != "linux":
        return _boot_id_elsewhere()
    boot = _BOOT_ID.read_text(encoding="ascii").strip()
    try:
        return f"{boot} {os.readlink(_TIME_NAMESPACE)}"  # containers may have a clock of their own
    except FileNotFoundError:
        return boot


def _boot_id_elsewhere() -> str:
    asked = import_module("subprocess").run(
        ["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=10, check=False
    )
    return str(asked.stdout).strip()  # nothing: whoever compares also sees that `boot_s` went back
