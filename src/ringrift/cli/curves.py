"""Rating curves in the characters of a terminal: eight dots a character, and the interval around the line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from rich.text import Text

from ringrift.learning.run_status import Curve

DOTS_X, DOTS_Y = 2, 4
LABEL_CHARS = 6
BLOCKS = "▁▂▃▄▅▆▇█"
LINE_STYLE, BAND_STYLE, LABEL_STYLE = "bold cyan", "blue", "dim"
_BRAILLE = 0x2800
_DOT_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column within a character

Dots = set[tuple[int, int]]


def sparkline(values: Sequence[float], *, width: int) -> str:
    """The last *width* values as blocks of growing height."""
    shown = values[-width:]
    if not shown:
        return ""
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    return "".join(BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] for value in shown)


def curve_lines(curve: Sequence[Curve], *, width: int, height: int) -> list[Text]:
    """The curve with its interval in *height* lines of *width* characters, values at the left."""
    columns = width - LABEL_CHARS - 1
    if not curve or columns < 4 or height < 2:
        return []
    low, high = min(p.low for p in curve), max(p.high for p in curve)
    span = (high - low) or 1.0
    across, down = columns * DOTS_X - 1, height * DOTS_Y - 1

    def row(value: float) -> int:
        return round((high - value) / span * down)

    line = _trace(curve, across, lambda p: row(p.rating))
    band = {
        (x, y)
        for edge in (lambda p: row(p.low), lambda p: row(p.high))
        for x, y in _trace(curve, across, edge)
        if x % 2 == 0
    }
    labels = {0: high, height // 2: high - span * (height // 2) / (height - 1), height - 1: low}
    return [_line(at, columns, line, band, labels.get(at)) for at in range(height)]


def _trace(curve: Sequence[Curve], across: int, row: Callable[[Curve], int]) -> Dots:
    """The dots of the straight lines between the points."""
    first, last = curve[0].at_s, curve[-1].at_s
    span = (last - first) or 1.0
    at = [(round((p.at_s - first) / span * across), row(p)) for p in curve]
    if len(at) == 1:
        return {(x, at[0][1]) for x in range(across + 1)}
    dots: Dots = set()
    for (x0, y0), (x1, y1) in pairwise(at):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots |= {
            (round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps)) for i in range(steps + 1)
        }
    return dots


def _line(at: int, columns: int, line: Dots, band: Dots, label: float | None) -> Text:
    told = "" if label is None else f"{label:.0f}"
    text = Text.assemble((f"{told:>{LABEL_CHARS}} ", LABEL_STYLE))
    for column in range(columns):
        on_line, on_band = _character(line, column, at), _character(band, column, at)
        # Where both meet only the line is drawn; more dots would hide it.
        text.append(chr(_BRAILLE + (on_line or on_band)), style=LINE_STYLE if on_line else BAND_STYLE)
    return text


def _character(dots: Dots, column: int, line: int) -> int:
    return sum(
        _DOT_BITS[y][x]
        for y in range(DOTS_Y)
        for x in range(DOTS_X)
        if (column * DOTS_X + x, line * DOTS_Y + y) in dots
    )
