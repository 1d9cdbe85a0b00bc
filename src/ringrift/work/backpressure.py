"""Backpressure: one ordered level for how full things are, and who slows down because of it.

The home of the capability; each part is in a file of its own.
"""

from __future__ import annotations

from ringrift.work.backpressure_daemons import QueueMonitorDaemon, WorkQueueMonitorDaemon
from ringrift.work.backpressure_levels import BackpressureLevel, QueueLimits, level_of, next_level
from ringrift.work.backpressure_monitor import (
    QueueMonitor,
    QueueStatus,
    check_backpressure,
    check_backpressure_async,
    get_queue_monitor,
    get_throttle_factor,
    reset_queue_monitor,
    should_stop_production,
    should_throttle_production,
)
from ringrift.work.backpressure_signal import BackpressureSignal
from ringrift.work.queue_depths import QUEUE_LIMITS, QueueType

__all__ = [
    "QUEUE_LIMITS",
    "BackpressureLevel",
    "BackpressureSignal",
    "QueueLimits",
    "QueueMonitor",
    "QueueMonitorDaemon",
    "QueueStatus",
    "QueueType",
    "WorkQueueMonitorDaemon",
    "check_backpressure",
    "check_backpressure_async",
    "get_backpressure_signal",
    "get_queue_monitor",
    "get_throttle_factor",
    "level_of",
    "next_level",
    "reset_queue_monitor",
    "should_stop_production",
    "should_throttle_production",
]


async def get_backpressure_signal() -> BackpressureSignal:
    """The pressure on this machine, measured in the last ten seconds."""
    return await get_queue_monitor().signal()
