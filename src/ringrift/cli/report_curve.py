"""A rating curve with its interval as a picture that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from ringrift.cli.wording import brief, clock, count, duration
from ringrift.learning.run_status import Curve

WIDTH, HEIGHT = 860, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 36, 14, 34
TICKS_Y, TICKS_X = 5, 7
_STEPS_S = (1, 5, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_STEPS = (1, 2, 2.5, 5, 10)


def curve_svg(curve: Sequence[Curve], *, title: str) -> str:
    """The curve over time; empty text if there is none."""
    if not curve:
        return ""
    low, high = min(p.low for p in curve), max(p.high for p in curve)
    room = max((high - low) * 0.06, 1.0)
    low, high = low - room, high + room
    first, span = curve[0].at_s, (curve[-1].at_s - curve[0].at_s) or 1.0
    begin = LEFT if len(curve) > 1 else (LEFT + WIDTH - RIGHT) / 2  # one alone stands in the middle

    def x(at_s: float) -> float:
        return begin + (at_s - first) / span * (WIDTH - LEFT - RIGHT)

    def y(rating: float) -> float:
        return TOP + (high - rating) / (high - low) * (HEIGHT - TOP - BOTTOM)

    above = [f"{x(p.at_s):.1f},{y(p.high):.1f}" for p in curve]
    below = [f"{x(p.at_s):.1f},{y(p.low):.1f}" for p in reversed(curve)]
    line = " ".join(f"{x(p.at_s):.1f},{y(p.rating):.1f}" for p in curve)
    grid = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#8884" />'
        f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.0f}</text>'
        for v in round_values(low, high, TICKS_Y)
    ]
    grid += [
        f'<text x="{x(first + later_s):.1f}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"{duration(later_s)}</text>"
        for later_s in round_times(span if len(curve) > 1 else 0.0)
    ]
    dots = [
        f'<line x1="{x(p.at_s):.1f}" x2="{x(p.at_s):.1f}" y1="{y(p.low):.1f}" y2="{y(p.high):.1f}" '
        f'stroke="#0b7a6b" stroke-opacity=".5" />'
        f'<circle cx="{x(p.at_s):.1f}" cy="{y(p.rating):.1f}" r="4" fill="#0b7a6b">'
        f"<title>{brief(p.model)}: {p.rating:.0f} ({p.low:.0f} to {p.high:.0f}), {count(p.rows)} rows, "
        f"{clock(p.at_s, with_date=True)}</title></circle>"
        for p in curve
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#777"><title>{escape(title)}</title>'
        f"{''.join(grid)}"
        f'<polygon points="{" ".join(above + below)}" fill="#0b7a6b" fill-opacity=".16" />'
        f'<polyline points="{line}" fill="none" stroke="#0b7a6b" stroke-width="2.5" />{"".join(dots)}</svg>'
    )


def round_times(span_s: float) -> list[float]:
    """Round times from 0 to *span_s*, a handful at most."""
    fitting = [step for step in _STEPS_S if span_s / step <= TICKS_X]
    step = fitting[0] if fitting else _STEPS_S[-1] * ceil(span_s / TICKS_X / _STEPS_S[-1])
    return [float(step * n) for n in range(floor(span_s / step) + 1)]


def round_values(low: float, high: float, about: int) -> list[float]:
    """Round numbers between *low* and *high*, about as many as asked."""
    rough = (high - low) / about
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * 0.999)
    return [step * n for n in range(ceil(low / step), floor(high / step) + 1)]
