"""What syncs of one's own are made of: the daemon that is woken, the transport, the data plane."""

from __future__ import annotations

from ringrift.data.plane import DataPlane, open_data_plane
from ringrift.data.transfer.contract import Pace, Transport
from ringrift.data.waking import WakingDaemon

__all__ = ["DataPlane", "Pace", "SyncDaemonBase", "Transport", "open_data_plane"]

SyncDaemonBase = WakingDaemon
