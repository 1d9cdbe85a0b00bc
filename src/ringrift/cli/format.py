"""Tables, numbers and times for people at a terminal, and times as people write them on a command line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from ringrift.errors import ConfigError

# Tables and text for people at a terminal.


GAP = 2  # between columns


def console() -> Console:
    # No highlighting of numbers and paths, no breaking of lines: output may be read by a program, too.
    return Console(highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, cut: str = "") -> None:
    """A table as wide as the terminal. With *cut*, each row is one line, and that column gives way."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    # What is too much or too little is given to the one column that may be cut.
    spare = console().width - sum(widths) - GAP * (len(columns) - 1)
    for column, width in zip(columns, widths, strict=True):
        if not cut:
            table.add_column(column, overflow="fold")  # nothing of an error or a path is lost
        elif column == cut:
            given = max(len(column), min(width, width + spare))
            table.add_column(column, no_wrap=True, overflow="ellipsis", width=given)
        else:
            table.add_column(column, no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*row)
    console().print(table)


# Numbers and times in words that a person reads at a glance.


STAGE_TITLES = {
    "selfplay": "Self-play",
    "validate": "Check",
    "export": "Export",
    "train": "Train",
    "evaluate": "Evaluate",
}
UNITS = {"selfplay": "games", "validate": "games", "evaluate": "games", "export": "rows", "train": "rows"}
DIGEST_CHARS = 10  # 40 bits: no two files of a run begin alike
NOTHING = "-"


def count(value: float) -> str:
    """12,345, and 1.2M from a million on."""
    if abs(value) < 1_000_000:
        return f"{value:,.0f}"
    return f"{value / 1e6:.1f}M" if abs(value) < 1e9 else f"{value / 1e9:.1f}G"


def rate(value: float) -> str:
    return count(value) if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """5 s, 3 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return NOTHING
    # Clocks of two processes differ a little: what has just begun has not begun in the future.
    whole = max(0, round(seconds))
    for large, small, size, names in (
        (86_400, 3_600, 86_400, ("d", "h")),
        (3_600, 60, 3_600, ("h", "min")),
        (60, 1, 60, ("min", "s")),
    ):
        if whole >= size:
            rest = whole % large // small
            return f"{whole // large} {names[0]}" + (f" {rest} {names[1]}" if rest else "")
    return f"{whole} s"


def effort(seconds: float | None) -> str:
    """A cost in one unit, exact enough for that of one game."""
    if seconds is None:
        return NOTHING
    if seconds == 0:
        return "0"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit_s, size_s, unit in ((100, 1, "s"), (6_000, 60, "min"), (360_000, 3_600, "h")):
        if seconds < limit_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def money(value: float | None) -> str:
    """Two digits that say something, for the price of one game as for that of a week."""
    if value is None:
        return NOTHING
    # digits behind the point until two of them count
    places = 2 if value == 0 or value >= 1 else min(8, 1 - math.floor(math.log10(value)))
    return f"{value:.{places}f}"


def clock(at_s: float, *, with_date: bool = False) -> str:
    form = "%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S"
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime(form)


def brief(digest: str | None) -> str:
    return digest[:DIGEST_CHARS] if digest else NOTHING


def stage_title(kind: str) -> str:
    return STAGE_TITLES.get(kind, kind)


def rating(value: float | None, interval: tuple[float, float] | None) -> str:
    """712 (685 to 739)."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if interval is None else f"{value:.0f} ({interval[0]:.0f} to {interval[1]:.0f})"


# Times as people write them on a command line.


_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd]?)")
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str, *, option: str = "--for") -> float:
    """Return the seconds of `90s`, `10m`, `2h`, `1d` or a plain number of seconds."""
    found = _DURATION.fullmatch(text.strip())
    # No time at all is more likely a slip than a wish.
    if found is None or float(found["number"]) == 0:
        raise ConfigError(f"{option} is {text!r}; it must be a time such as 90s, 10m, 2h or 1d")
    return float(found["number"]) * _UNITS_S[found["unit"]]


# Moments as people write them on a command line.


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
