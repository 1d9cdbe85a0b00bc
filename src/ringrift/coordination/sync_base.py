"""What syncs of one's own are made of: the daemon that is woken, the transport, the data plane."""

from __future__ import annotations

from ringrift.data.plane import DataPlane, WakingDaemon, open_data_plane
from ringrift.data.transfer.contract import Pace, Transport

__all__ = ["DataPlane", "Pace", "SyncDaemonBase", "Transport", "open_data_plane"]

SyncDaemonBase = WakingDaemon
