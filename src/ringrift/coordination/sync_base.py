"""What syncs of one's own are made of: the daemon that is woken, the transport, the data plane."""

from __future__ import annotations

from ringrift.data.plane import DataPlane, WakingDaemon, open_data_plane
from ringrift.data.sync.cluster_view import NodeReportCollector
from ringrift.data.transfer.contract import Pace, Transport
from ringrift.process import process_scope

__all__ = ["DataPlane", "Pace", "SyncDaemonBase", "Transport", "open_data_plane"]

# The name of the documents.
SyncDaemonBase = WakingDaemon


def get_node_reports() -> NodeReportCollector:
    """What events told of nodes in this process: one collector for all who sync."""
    return process_scope().get(NodeReportCollector, NodeReportCollector)
