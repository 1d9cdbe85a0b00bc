"""A run's status drawn for a terminal of any size; for the live view and for `ringrift status`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ringrift.cli.cost_picture import draw_cost
from ringrift.cli.curves import curve_lines, sparkline
from ringrift.cli.wording import (
    NOTHING,
    UNITS,
    brief,
    clock,
    count,
    duration,
    rate,
    rating,
    stage_title,
)
from ringrift.learning.run_status import ConfigStatus, LossPoint, RunStatus, StageProgress

NARROW, WIDE, VERY_WIDE = 80, 110, 130
CURVE_LINES = 7
SPARK_CHARS = 10
FINDINGS_MAX = 10
EXPLAINED_MAX = 2
_STYLES = {
    "promoted": "green",
    "running": "green",
    "refused": "yellow",
    "paused": "blue",  # on purpose: neither a warning nor a fault
    "warning": "yellow",
    "took back": "red",
    "waits": "red",
    "failed": "red",
    "blocked": "red",
    "problem": "red",
}
_GRAVITY = {"problem": 2, "warning": 1}
_DEEDS_FIRST, _DEEDS_LAST = ("staged", "promoted", "refused", "took back"), ("waits", "failed")


def draw_run(status: RunStatus, *, now_s: float, width: int, height: int | None = None) -> RenderableType:
    """Everything in about *height* lines; without a height, everything there is."""
    jobs_max, decisions_max = (100, 20) if height is None else _room(status, height)
    parts: list[RenderableType] = [_configs(status, width), *_pauses(status, now_s), *_blocks(status, now_s)]
    parts += _explained(status, None if height is None else EXPLAINED_MAX)
    running = [(key, job) for key, config in status.configs.items() for job in config.running]
    if running:
        parts += [Text(), _jobs(running[:jobs_max], width)]
        if len(running) > jobs_max:
            parts.append(Text(f"and {len(running) - jobs_max} more jobs", style="dim"))
    curve, decisions = _curve(status, _half(width)), _decisions(status, decisions_max)
    if curve is not None and width >= WIDE:
        side_by_side = Table.grid(padding=(0, 3), expand=True)
        side_by_side.add_column(width=_half(width))
        side_by_side.add_column(ratio=1)
        side_by_side.add_row(curve, decisions)
        parts += [Text(), side_by_side]
    else:
        parts += [Text(), *([curve, Text()] if curve is not None else []), decisions]
    if height is None and status.configs:
        parts += [Text(), draw_cost(status, width=width), *_starting(status)]
    return Group(*parts, *_findings(status, 3 if height is not None else FINDINGS_MAX))


def _findings(status: RunStatus, limit: int) -> list[RenderableType]:
    """The gravest first."""
    told = [each for each in status.findings if each.get("level") != "fine"]
    told.sort(key=lambda each: _GRAVITY.get(str(each.get("level")), 0), reverse=True)
    lines: list[RenderableType] = [
        Text(f"doctor: {each.get('text', '')}", style=_STYLES.get(str(each.get("level")), ""))
        for each in told[:limit]
    ]
    if len(told) > limit:
        lines.append(Text(f"and {len(told) - limit} more: `ringrift doctor --quick`", style="dim"))
    return lines


def _starting(status: RunStatus) -> list[RenderableType]:
    starting = status.starting
    if starting is None:
        return []
    told = f"starting jobs took {starting.share:.1%} of the workers' time; the last ones"
    return [Text(f"{told} played or learned after {starting.median_s:.1f} s (median)")]


def head_line(status: RunStatus, *, now_s: float) -> Text:
    """One line: state, place, time, workers, speed."""
    speed = sum(config.games_per_s for config in status.configs.values())
    workers = "1 worker" if status.workers == 1 else f"{status.workers} workers"
    return Text.assemble(
        (status.state, f"bold {_STYLES.get(status.state, '')}"),
        f" on {status.node} for {duration(now_s - status.started_s)}   {workers}   {rate(speed)} games/s",
    )


def _configs(status: RunStatus, width: int) -> RenderableType:
    if not status.configs:
        return Text("no configs yet", style="dim")
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2 if width >= VERY_WIDE else 1))
    table.add_column("config", no_wrap=True)
    table.add_column("stage", no_wrap=True)
    numbers = ("games", "games/s", "rating", "promoted") if width >= NARROW else ("games", "rating")
    for name in (*numbers, *(("rows", "loss") if wide else ())):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("curve", no_wrap=True)
        table.add_column("champion", no_wrap=True)
    for key, config in status.configs.items():
        table.add_row(*_config_row(key, config, numbers, wide=wide))
    return table


def _config_row(key: str, config: ConfigStatus, numbers: Sequence[str], *, wide: bool) -> list[str | Text]:
    narrow = len(numbers) < 4
    values = {
        "games": count(config.games),
        "games/s": rate(config.games_per_s),
        "rating": rating(config.rating, None if narrow else config.rating_interval),
        "promoted": str(config.promotions),
    }
    stage = Text(stage_title(config.stage), style=_STYLES.get(config.stage, ""))
    row: list[str | Text] = [key, stage, *(values[name] for name in numbers)]
    if wide:
        row += [
            count(config.rows),
            loss_text(config.losses),
            Text(sparkline([p.rating for p in config.curve], width=SPARK_CHARS), style="cyan"),
            brief(config.champion),
        ]
    return row


def loss_text(losses: Sequence[LossPoint]) -> str:
    """The newest loss on games that were not trained on, or else on those that were."""
    if not losses:
        return NOTHING
    newest = losses[-1]
    value = newest.hold_out if newest.hold_out is not None else newest.policy
    return NOTHING if value is None else f"{value:.3f}"


def _pauses(status: RunStatus, now_s: float) -> list[RenderableType]:
    """Who paused what, and why; the pause of the whole run is told once."""
    told = {"the run": status.paused} if status.paused else {k: c.paused for k, c in status.configs.items()}
    return [
        Text(f"{name} is paused by {_by(pause, now_s)}", style=_STYLES["paused"])
        for name, pause in told.items()
        if pause
    ]


def _by(pause: dict[str, object], now_s: float) -> str:
    by, at_s, reason = pause.get("by") or "a user", pause.get("at_s"), pause.get("reason")
    since = f", for {duration(now_s - at_s)} now" if isinstance(at_s, int | float) else ""
    return f"{by}{since}{f': {reason}' if reason else ''}"


def _blocks(status: RunStatus, now_s: float) -> list[RenderableType]:
    """Stages that wait for the same reason are told in one line."""
    lines: list[RenderableType] = []
    for key, config in status.configs.items():
        stages: dict[str, list[str]] = {}
        for stage, block in config.blocked.items():
            stages.setdefault(f"{block.get('reason', '')}{_until(block, now_s)}", []).append(
                stage_title(stage)
            )
        lines += [
            Text(f"{key}: {', '.join(names)} {'waits' if len(names) == 1 else 'wait'}: {reason}", style="red")
            for reason, names in stages.items()
        ]
    return lines


def _explained(status: RunStatus, limit: int | None) -> list[RenderableType]:
    """Who plays and who is published, and what holds learning back, in a line for each config."""
    lines: list[RenderableType] = []
    for key, config in status.configs.items():
        parts = [config.who_plays, f"held back by {config.held_back}" if config.held_back else ""]
        if any(parts):
            lines.append(Text.assemble((f"{key}: ", "dim"), "; ".join(part for part in parts if part)))
    return lines[:limit]


def _until(block: dict[str, object], now_s: float) -> str:
    until_s = block.get("until_s")
    return f" (for {duration(until_s - now_s)})" if isinstance(until_s, int | float) else ""


def _jobs(running: Sequence[tuple[str, StageProgress]], width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(width=max(8, min(24, width - 96)))
    table.add_column(no_wrap=True, justify="right")
    if width >= NARROW:
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, style="dim")
    for key, job in running:
        unit = UNITS.get(job.kind, "")
        of_total = count(job.done) if job.total is None else f"{count(job.done)}/{count(job.total)}"
        bar = _bar(job)
        row: list[RenderableType] = [stage_title(job.kind), key, bar, f"{of_total} {unit}"]
        if width >= NARROW:
            left = "" if job.eta_s is None else f"{duration(job.eta_s)} left"
            text = job.text if width >= VERY_WIDE else ""
            row += [f"{rate(job.rate)}/s", "  ".join(each for each in (left, text) if each)]
        table.add_row(*row)
    return table


def _bar(job: StageProgress) -> RenderableType:
    if not job.total:
        return Text("…", style="dim")
    style, done = "cyan", "green"
    return ProgressBar(total=job.total, completed=job.done, complete_style=style, finished_style=done)


def _curve(status: RunStatus, width: int) -> RenderableType | None:
    """The curve of the config whose champion changed last."""
    curves = {key: config.curve for key, config in status.configs.items() if config.curve}
    if not curves:
        return None
    key = max(curves, key=lambda name: curves[name][-1].at_s)
    config = status.configs[key]
    title = Text.assemble(
        ("rating of ", "bold"), (key, "bold"), f"  {rating(config.rating, config.rating_interval)}"
    )
    return Group(title, *curve_lines(config.curve, width=width, height=CURVE_LINES))


def _decisions(status: RunStatus, limit: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for place in range(3):
        table.add_column(no_wrap=place < 2)
    for decision in status.decisions[:limit]:
        deed, about = deed_of(decision.what)
        what = Text(deed, style=_STYLES.get(deed, "bold"))
        names = [decision.config if len(status.configs) > 1 else "", about]
        about = ": ".join([" ".join(name for name in names if name), decision.reason]).removeprefix(": ")
        table.add_row(
            Text(clock(decision.at_s), style="dim"), what, Text(about, overflow="ellipsis", no_wrap=True)
        )
    if not status.decisions:
        return Group(Text("last decisions", style="bold"), Text("nothing has been decided yet", style="dim"))
    return Group(Text("last decisions", style="bold"), table)


def deed_of(what: str) -> tuple[str, str]:
    """`promoted 3f9c…` is a deed and its object; `train waits` is one the other way round."""
    for deed in _DEEDS_FIRST:
        if what.startswith(f"{deed} "):
            return deed, what.removeprefix(f"{deed} ")
    for deed in _DEEDS_LAST:
        if what.endswith(f" {deed}"):
            return deed, stage_title(what.removesuffix(f" {deed}"))
    return stage_title(what), ""


def _room(status: RunStatus, height: int) -> tuple[int, int]:
    """How many jobs and decisions fit."""
    left = height - len(status.configs) - CURVE_LINES - 8 - min(EXPLAINED_MAX, len(status.configs))
    jobs = max(1, min(6, left // 2))
    return jobs, max(1, min(12, left - jobs + CURVE_LINES))


def _half(width: int) -> int:
    return width - 2 if width < WIDE else min(64, width * 2 // 5)
