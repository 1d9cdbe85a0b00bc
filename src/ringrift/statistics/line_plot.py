"""Line plots as SVG text: of losses, scores and ratings, for files that are kept and reports that are sent.

They load nothing and have no background, so that they can be read on a light page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import compress
from math import floor, isfinite, log10
from types import MappingProxyType

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]  # x, lowest, highest

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 168, 40, 48
COLORS = ("#0b62a3", "#c4471b", "#2c7a2c", "#7b3fa0", "#8a6d00", "#a3245e", "#25737d", "#555555")
TICKS_WANTED = 6
DOTS_MAX = 60  # of a line; more would hide it


def line_plot(
    title: str,
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    bands: Mapping[str, Band] = MappingProxyType({}),
    notes: Mapping[str, Sequence[str]] = MappingProxyType({}),
    x_ticks: Sequence[tuple[float, str]] | None = None,
) -> str:
    """One line per series, with a legend and its band, if any; points that are not finite are left out.

    *notes* say something of each point of a series, shown when it is pointed at. *x_ticks* are what is
    written below instead of round numbers.
    """
    kept, said = dict[str, Points](), dict[str, Sequence[str]]()
    for name, points in series.items():
        finite = [all(map(isfinite, each)) for each in points]
        kept[name], said[name] = list(compress(points, finite)), list(compress(notes.get(name, ()), finite))
    drawn = {name: [part for part in band if all(map(isfinite, part))] for name, band in bands.items()}
    everything = [point for points in kept.values() for point in points]
    everything += [(x, y) for band in drawn.values() for x, *ends in band for y in ends]
    everything = everything or [(0.0, 0.0)]
    x_low, x_high = _span([x for x, _ in everything])
    y_low, y_high = _span([y for _, y in everything])
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * inner_width

    def down(y: float) -> float:
        return TOP + (y_high - y) / (y_high - y_low) * inner_height

    parts = [
        _text(LEFT, 22, title, size=15),
        _text(LEFT + inner_width / 2, HEIGHT - 10, x_label, anchor="middle"),
    ]
    parts.append(_text(LEFT - 8, TOP - 8, y_label, anchor="end"))
    for x, written in x_ticks or [(x, f"{x:g}") for x in _ticks(x_low, x_high)]:
        parts.append(_line(across(x), TOP, across(x), TOP + inner_height))
        parts.append(_text(across(x), TOP + inner_height + 16, written, anchor="middle"))
    for y in _ticks(y_low, y_high):
        parts.append(_line(LEFT, down(y), LEFT + inner_width, down(y)))
        parts.append(_text(LEFT - 8, down(y) + 4, f"{y:g}", anchor="end"))
    for number, (name, points) in enumerate(kept.items()):
        color = COLORS[number % len(COLORS)]
        band = drawn.get(name, [])
        edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        if edge:
            outline = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in edge)
            parts.append(f'<polygon points="{outline}" fill="{color}" fill-opacity="0.14"/>')
        placed = [(across(x), down(y)) for x, y in points]
        parts += _drawn_line(placed, said[name], color)
        parts.append(_text(WIDTH - RIGHT + 14, TOP + 14 + 18 * number, name, color=color))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif"><title>{escape(title)}</title>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _drawn_line(placed: Points, notes: Sequence[str], color: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    said = notes or [""] * (len(placed) if len(placed) <= DOTS_MAX else 0)
    dots = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{color}">'
        f"{f'<title>{escape(note)}</title>' if note else ''}</circle>"
        for (x, y), note in zip(placed, said, strict=False)
    ]
    return [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>', *dots]


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        return low - 0.5, high + 0.5
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between *low* and *high*."""
    rough = (high - low) / TICKS_WANTED
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first = floor(low / step) + 1
    count = floor(high / step) - first + 1
    return [round((first + number) * step, 10) for number in range(count)]


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, color: str = "#777"
) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}"'
    return f"<text {where}>{escape(text)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#8884"/>'
