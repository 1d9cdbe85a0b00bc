"""A run's status drawn for a terminal of any size; for the live view and for `ringrift status`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ringrift.cli.format import (
    NOTHING,
    UNITS,
    brief,
    clock,
    count,
    duration,
    effort,
    money,
    rate,
    rating,
    stage_title,
)
from ringrift.cli.main import load
from ringrift.coordination.coordinator_config import get_settings
from ringrift.engine.lock_files import MasterLoop
from ringrift.health.run_status import (
    Address,
    ConfigStatus,
    CostRow,
    Curve,
    LossPoint,
    RunStatus,
    StageProgress,
    cost_rows,
)

PROFILE_LEARNS = "ringrift.daemons.registry:profile_learns"  # slow to load, and rarely asked

# What a run cost so far, drawn for a terminal.


COSTS_WIDE = 110  # characters; below, a wider gap between columns would push the last one out


def draw_cost(status: RunStatus, *, width: int) -> RenderableType:
    """CPU, GPU and money for each config, without a GPU that was not used and a price that is not set."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2 if width >= COSTS_WIDE else 1))
    table.add_column("cost", no_wrap=True)
    table.add_column("", no_wrap=True)
    costs = {key: cost_rows(config.cost) for key, config in status.configs.items()}
    for row in next(iter(costs.values()), ()):
        table.add_column(row.what, justify="right", no_wrap=True)
    for key, rows in costs.items():
        for number, (unit, cells) in enumerate(_cells(rows)):
            table.add_row("" if number else key, unit, *cells)
    return table


def _cells(rows: tuple[CostRow, ...]) -> list[tuple[str, list[str]]]:
    found = [("CPU", [effort(row.cpu_s) for row in rows])]
    # The first row is the whole run: what is nothing there is nothing in the others.
    if rows[0].gpu_s:
        found.append(("GPU", [effort(row.gpu_s) for row in rows]))
    if rows[0].money is not None:
        found.append(("money", [money(row.money) for row in rows]))
    return found


# Rating curves in the characters of a terminal: eight dots a character, and the interval around the line.


DOTS_X, DOTS_Y = 2, 4  # of one Braille character
LABEL_CHARS = 6  # a rating with its sign, and room for a fifth digit
BLOCKS = "▁▂▃▄▅▆▇█"
LINE_STYLE, BAND_STYLE, LABEL_STYLE = "bold cyan", "blue", "dim"
_BRAILLE = 0x2800  # the empty pattern; the dots of a character are bits added to it
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
    span = (high - low) or 1.0  # a flat curve is drawn as a line, and not divided by zero
    across, down = columns * DOTS_X - 1, height * DOTS_Y - 1

    def row(value: float) -> int:
        return round((high - value) / span * down)

    line = _trace(curve, across, lambda p: row(p.rating))
    band = {
        (x, y)
        for edge in (lambda p: row(p.low), lambda p: row(p.high))
        for x, y in _trace(curve, across, edge)
        if x % 2 == 0  # every second dot, so that the edges look dashed beside the line
    }
    labels = {0: high, height // 2: high - span * (height // 2) / (height - 1), height - 1: low}
    return [_line(at, columns, line, band, labels.get(at)) for at in range(height)]


def _trace(curve: Sequence[Curve], across: int, row: Callable[[Curve], int]) -> Dots:
    """The dots of the straight lines between the points."""
    first, last = curve[0].at_s, curve[-1].at_s
    span = (last - first) or 1.0
    at = [(round((p.at_s - first) / span * across), row(p)) for p in curve]
    if len(at) == 1:
        return {(x, at[0][1]) for x in range(across + 1)}  # one point alone would be too small to see
    dots: Dots = set()
    for (x0, y0), (x1, y1) in pairwise(at):
        # A dot for each step of the longer side leaves no gap.
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots |= {
            (round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps)) for i in range(steps + 1)
        }
    return dots


def _line(at: int, columns: int, line: Dots, band: Dots, label: float | None) -> Text:
    written = "" if label is None else f"{label:.0f}"
    text = Text.assemble((f"{written:>{LABEL_CHARS}} ", LABEL_STYLE))
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


NARROW, WIDE, VERY_WIDE = 80, 110, 130  # characters from which on more columns fit
CURVE_LINES = 7  # enough to see a trend, few enough to leave room for decisions
SPARK_CHARS = 10
FINDINGS_MAX = 10
EXPLAINED_MAX = 2  # in the live view, where every line is one less for jobs and decisions
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
_SEVERITY = {"problem": 2, "warning": 1}
_KINDS_FIRST, _KINDS_LAST = ("staged", "promoted", "refused", "took back"), ("waits", "failed")


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
    findings = [each for each in status.findings if each.get("level") != "fine"]
    findings.sort(key=lambda each: _SEVERITY.get(str(each.get("level")), 0), reverse=True)
    lines: list[RenderableType] = [
        Text(f"doctor: {each.get('text', '')}", style=_STYLES.get(str(each.get("level")), ""))
        for each in findings[:limit]
    ]
    if len(findings) > limit:
        lines.append(Text(f"and {len(findings) - limit} more: `ringrift doctor --quick`", style="dim"))
    return lines


def _starting(status: RunStatus) -> list[RenderableType]:
    starting = status.starting
    if starting is None:
        return []
    text = f"starting jobs took {starting.share:.1%} of the workers' time; the last ones"
    return [Text(f"{text} played or learned after {starting.median_s:.1f} s (median)")]


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
    paused = {"the run": status.paused} if status.paused else {k: c.paused for k, c in status.configs.items()}
    return [
        Text(f"{name} is paused by {_by(pause, now_s)}", style=_STYLES["paused"])
        for name, pause in paused.items()
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
    """Who plays and who is published, what holds learning back, and what searches found, by config."""
    lines: list[RenderableType] = []
    for key, config in status.configs.items():
        held = f"held back by {config.held_back}" if config.held_back else ""
        parts = [config.who_plays, held, *config.tuned]
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
    # The bar takes what the texts beside it leave: they need 96 characters.
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
    # Without a total a bar would stand at 0 or 100 % and tell something wrong.
    if not job.total:
        return Text("…", style="dim")
    style, done = "cyan", "green"
    return ProgressBar(total=job.total, completed=job.done, complete_style=style, finished_style=done)


def _curve(status: RunStatus, width: int) -> RenderableType | None:
    """The curve of the config whose champion changed last."""
    curves = {key: config.curve for key, config in status.configs.items() if config.curve}
    if not curves:
        return None
    # Only one curve has room; the newest champion is what somebody waits for.
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
        kind, about = decision_kind(decision.what)
        what = Text(kind, style=_STYLES.get(kind, "bold"))
        names = [decision.config if len(status.configs) > 1 else "", about]
        about = ": ".join([" ".join(name for name in names if name), decision.reason]).removeprefix(": ")
        table.add_row(
            Text(clock(decision.at_s), style="dim"), what, Text(about, overflow="ellipsis", no_wrap=True)
        )
    if not status.decisions:
        return Group(Text("last decisions", style="bold"), Text("nothing has been decided yet", style="dim"))
    return Group(Text("last decisions", style="bold"), table)


def decision_kind(what: str) -> tuple[str, str]:
    """`promoted 3f9c…` is a deed and its object; `train waits` is one the other way round."""
    for kind in _KINDS_FIRST:
        if what.startswith(f"{kind} "):
            return kind, what.removeprefix(f"{kind} ")
    for kind in _KINDS_LAST:
        if what.endswith(f" {kind}"):
            return kind, stage_title(what.removesuffix(f" {kind}"))
    return stage_title(what), ""


def _room(status: RunStatus, height: int) -> tuple[int, int]:
    """How many jobs and decisions fit."""
    # 8: the head, the borders, and the empty lines between the parts.
    left = height - len(status.configs) - CURVE_LINES - 8 - min(EXPLAINED_MAX, len(status.configs))
    jobs = max(1, min(6, left // 2))
    return jobs, max(1, min(12, left - jobs + CURVE_LINES))


def _half(width: int) -> int:
    return width - 2 if width < WIDE else min(64, width * 2 // 5)  # wider, the curve would only be stretched


# What `ringrift status` draws for people.


FRESH_S = 15.0  # the control process tells its status every second


def show(
    status: RunStatus | None,
    loop: MasterLoop | None,
    address: Address | None,
    *,
    now_s: float,
    waiting: Mapping[str, int],
) -> None:
    """*waiting* has the facts by config of a run that has told nothing yet."""
    terminal = Console(highlight=False)
    if status is None and loop is None and waiting:
        terminal.print(_not_started(waiting))
        return
    terminal.print(summary(status, loop, address, now_s=now_s))
    if status is not None:
        terminal.print(draw_run(status, now_s=now_s, width=terminal.width))


def _not_started(waiting: Mapping[str, int]) -> Text:
    configs = ", ".join(f"{config} ({count(facts)} facts)" for config, facts in waiting.items())
    text = Text("not running", style="bold yellow")
    return text.append(
        f": the run in {get_settings().data_dir} has not been started since it was restored or rebuilt: "
        f"{configs}; `ringrift run` goes on with it",
        style="default",
    )


def summary(
    status: RunStatus | None, loop: MasterLoop | None, address: Address | None, *, now_s: float
) -> Text:
    """Whether it runs, and how old what follows is."""
    folder = get_settings().data_dir
    if loop is None:
        text = Text("not running", style="bold yellow")
        if status is None:
            return text.append(
                f": no run was ever told of in {folder}; `ringrift run` starts one", style="default"
            )
        text.append(f": last seen {duration(now_s - status.at_s)} ago in {folder}", style="default")
        return text.append("; `ringrift run` goes on where it was\n", style="default")
    # A profile without the loop tells nothing, ever: "starting" would be said of it for days.
    if (status is None or now_s - status.at_s > FRESH_S) and not load(PROFILE_LEARNS)(loop.profile):
        text = Text(f"running: process {loop.pid} with the profile {loop.profile}, which does not learn")
        old = "" if status is None else f"; what follows is {duration(now_s - status.at_s)} old"
        return text.append(f"{old}\n")
    if status is None:
        return Text(f"starting: process {loop.pid} runs and has told nothing yet")
    text = head_line(status, now_s=now_s)
    text.append(f"   process {loop.pid}" + (f"   page {address.url}" if address else ""), style="dim")
    if (age_s := now_s - status.at_s) > FRESH_S:
        text.append(f"\nthe control process has told nothing for {duration(age_s)}", style="bold red")
    return text.append("\n")
