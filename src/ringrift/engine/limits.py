"""What the engine keeps and for how long, how long its callers wait at most, and what fits into a call."""

from __future__ import annotations

from dataclasses import dataclass

from ringrift.errors import ConfigError

DAY_S = 86_400.0

VALUE_BYTES_MAX = 1_000_000  # one event body, payload, result or value; larger content is a blob
TRACE_BYTES_MAX = 10_000
JSON_DEPTH_MAX = 64
CALL_BYTES_MAX = 64_000_000
CALL_ITEMS_MAX = 100_000
BLOB_CALL_BYTES_MAX = 2**30  # given in memory; a file may be larger
CLAIM_ITEMS_MAX = 10_000
ROWS_MAX = 1_000_000  # what one call returns

KEY_CHARS_MAX = 512  # keys, ids, kinds, nodes, workers, capabilities
EVENT_TYPE_CHARS_MAX = 200
ERROR_CHARS_MAX = 100_000
NAMES_MAX = 1_000  # requirements, capabilities, kinds, dependencies of one item or claimant

LEASE_S_MIN = 0.001
LEASE_S_MAX = 30 * DAY_S
WAIT_S_MAX = DAY_S
DELAY_S_MAX = 366 * DAY_S
TTL_S_MIN, TTL_S_MAX = 1e-6, 3_660 * DAY_S
BLOB_WAIT_S = 3_600.0  # one call on blobs; reading or copying a large file takes its time


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Bounds of one engine. Seconds, rows and bytes as the names say."""

    event_retention_s: float = DAY_S  # longer for what a live subscription has not seen
    event_retention_rows: int = 1_000_000  # up to twice as many while a live subscription has not seen them
    subscription_life_s: float = 3_600.0  # a position not stored for so long holds up no publisher
    finished_retention_s: float = 7 * DAY_S  # done and cancelled work
    dead_retention_s: float = 30 * DAY_S
    work_rows_max: int = 500_000  # above it the oldest finished work leaves early
    cursor_retention_s: float = 30 * DAY_S  # reading positions that nobody moves
    tombstone_retention_s: float = DAY_S  # how long a watcher may be away and still see a deletion
    age_grace_s: float = 600.0  # after a start or a sleep: time to read before age takes anything

    @property
    def position_touch_s(self) -> float:
        """A position that is stored again without having moved is noted as live at this age."""
        return min(self.event_retention_s / 24, self.subscription_life_s / 12)

    @property
    def event_rows_max(self) -> int:
        """With so many events that live subscriptions have yet to see, no further one is taken."""
        return 2 * self.event_retention_rows

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0 and finite")
