"""Times as people write them on a command line."""

from __future__ import annotations

import re

from ringrift.errors import ConfigError

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd]?)")
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str, *, option: str = "--for") -> float:
    """Return the seconds of `90s`, `10m`, `2h`, `1d` or a plain number of seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found["number"]) == 0:
        raise ConfigError(f"{option} is {text!r}; it must be a time such as 90s, 10m, 2h or 1d")
    return float(found["number"]) * _UNITS_S[found["unit"]]
