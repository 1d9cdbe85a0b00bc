"""The numbers of sync, in one place."""

from __future__ import annotations

from enum import IntEnum, StrEnum

SYNC_INTERVAL_S = 60.0
GOSSIP_INTERVAL_S = 30.0
EPHEMERAL_INTERVAL_S = 5.0
INTERVAL_S_MIN = 2.0

CONCURRENT_NODES = 3  # nodes that one request sends to at a time
NEIGHBOURS = 3
FILES_PER_TRIP = 200  # that one call of a transport carries
GAMES_MIN = 10  # fewer new games than this wait for more, unless they are old

DISK_PERCENT_MAX = 70.0
BROADCAST_BYTES_MAX = 500 << 20

STALE_S = 1800.0
CRITICAL_S = 3600.0
MANY_GAMES = 100
EPHEMERAL_FACTOR, PERSISTENT_FACTOR, LOCAL_FACTOR = 3.0, 1.5, 1.0
GAMES_WEIGHT, AGE_WEIGHT = 1.0, 0.01
FAILURE_FACTOR = 0.8
GAMES_PER_S = 10.0  # as long as nothing was measured

HISTORY_S = 7 * 24 * 3600.0
HISTORY_MAX = 1000
FAILURES_S = 24 * 3600.0

BLOCKED_ALERT_S = 600.0  # a sync that cannot go on for this long is told to a person
FAILURES_CRITICAL = 5


class SyncPriority(IntEnum):
    """How urgent it is to bring a host's data to safety."""

    BACKGROUND = 10
    LOW = 25
    NORMAL = 50
    HIGH = 75
    CRITICAL = 100

    @property
    def request_priority(self) -> str:
        """The priority of a `SyncRequest`."""
        return "low" if self <= SyncPriority.LOW else self.name.lower()


class SyncAction(StrEnum):
    """What is advised for a host."""

    SYNC_NOW = "sync_now"
    SCHEDULE = "schedule"
    SKIP = "skip"
    NONE = "none"


class SyncState(StrEnum):
    """Where one sync is in its life."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class SyncStrategy(StrEnum):
    """What one cycle of the sync daemon brings where."""

    AUTO = "auto"  # one of the next three, by what this node is
    EPHEMERAL = "ephemeral"  # this node may vanish: write through to nodes that stay
    BROADCAST = "broadcast"  # this node leads: everything to everybody
    HYBRID = "hybrid"  # what is made here to the best neighbours, what is wanted here from them
    PULL = "pull"  # everything of everybody to here
    GOSSIP = "gossip"  # what a few neighbours have and this node lacks
    PUSH = "push"  # games to the coordinator as the disk fills
    PLANNED = "planned"  # as many copies as the router plans
    FRESHNESS = "freshness"  # asks for a transfer where training data is old
