"""What the embedded engine keeps and for how long, and how long its callers wait at most."""

from __future__ import annotations

from dataclasses import dataclass

from ringrift.errors import ConfigError

VALUE_BYTES_MAX = 1_000_000  # one event body, payload, result or value; larger content is a blob
KEY_CHARS_MAX = 512
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Bounds of one engine. Seconds, rows and bytes as the names say."""

    event_retention_s: float = DAY_S  # longer for what a live subscription has not seen
    event_retention_rows: int = 1_000_000
    finished_retention_s: float = 7 * DAY_S  # done and cancelled work
    dead_retention_s: float = 30 * DAY_S
    work_rows_max: int = 500_000  # above it the oldest finished work leaves early
    cursor_retention_s: float = 30 * DAY_S  # reading positions that nobody moves
    tombstone_retention_s: float = DAY_S  # how long a watcher may be away and still see a deletion
    age_grace_s: float = 600.0  # after a start or a sleep: time to read before age takes anything

    @property
    def position_touch_s(self) -> float:
        """A position that is stored again without having moved is noted as live at this age."""
        return self.event_retention_s / 24

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")


def check_key(key: str) -> None:
    """Refuse a key that not every adapter can hold."""
    if not key or len(key) > KEY_CHARS_MAX or "\x00" in key:
        raise ConfigError(f"key {key[:80]!r} must have 1 to {KEY_CHARS_MAX} characters and no NUL")


def check_size(what: str, content: bytes) -> bytes:
    """Return *content* if every adapter can hold it."""
    if len(content) > VALUE_BYTES_MAX:
        raise ConfigError(
            f"{what} has {len(content)} bytes; at most {VALUE_BYTES_MAX} fit, larger content is a blob"
        )
    return content


def check_above_zero(what: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{what} is {value}; it must be above 0")
