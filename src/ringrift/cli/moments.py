"""Moments as people write them on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ringrift.cli.durations import parse_duration
from ringrift.errors import ConfigError

_AGO = re.compile(r"(?P<time>\S+)\s+ago")


def parse_moment(text: str, *, option: str, now_s: float) -> float:
    """Seconds since 1970 of `YYYY-MM-DDTHH:MM` (local time if no zone is named), `2h ago` or `now`."""
    words = text.strip()
    if words == "now":
        return now_s
    if (ago := _AGO.fullmatch(words)) is not None:
        return now_s - parse_duration(ago["time"], option=option)
    try:
        moment = datetime.fromisoformat(words)
    except ValueError:
        raise ConfigError(
            f"{option} is {text!r}; it must be a moment such as YYYY-MM-DDTHH:MM, '2h ago' or now"
        ) from None
    return moment.astimezone(UTC).timestamp()
