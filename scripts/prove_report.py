"""What runs of the whole loop came to: `report.json`, `report.md`, and a plot of strength for each config."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ringrift.jobs.files import seal_json
from ringrift.statistics.line_plot import line_plot

PLAYING_AND_TRAINING = ("self-play", "training")
NOTHING = "-"
Row = Sequence[str]


def write_report(out: Path, runs: Sequence[dict[str, Any]]) -> None:
    strength = strengths(runs)
    seal_json(out / "report.json", {"strength": strength, "runs": list(runs)})
    configs = sorted({config for run in runs for config in run["configs"]})
    parts = [f"{len(runs)} runs, {', '.join(sorted({run['machine'] for run in runs}))}.\n"]
    for config in configs:
        ours = [each for each in strength if each["config"] == config]
        if ours:
            parts += [f"\n## {config}: strength\n", strength_table(ours)]
            (out / f"{config}.svg").write_text(strength_plot(config, ours), encoding="utf8")
    parts += ["\n## Runs\n", run_table(runs), "\n## Configs of the runs\n", config_table(runs)]
    (out / "report.md").write_text("".join(parts), encoding="utf8")


def strengths(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each mark, opponent and role."""
    results = (each for run in runs for each in run["results"])
    return over_seeds(results, by=("config", "role", "against", "simulations", "cpu_s"))


def over_seeds(results: Iterable[dict[str, Any]], *, by: Sequence[str]) -> list[dict[str, Any]]:
    """Mean and range of the scores over the seeds, for each combination of the fields *by*."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for each in results:
        groups.setdefault(tuple(each[name] for name in by), []).append(each["score"])
    return [
        {
            **dict(zip(by, group, strict=True)),
            "seeds": len(scores),
            "mean": round(sum(scores) / len(scores), 4),
            "low": min(scores),
            "high": max(scores),
        }
        for group, scores in sorted(groups.items())
    ]


def strength_table(strength: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            f"{each['cpu_s']:,}",
            each["role"],
            f"{each['against']} ({each['simulations']} simulations)",
            f"{each['mean']:.1%} ({each['low']:.1%} to {each['high']:.1%})",
            str(each["seeds"]),
        )
        for each in sorted(strength, key=lambda each: (each["cpu_s"], each["role"], each["against"]))
    ]
    return table(("processor s", "who", "against", "mean (range)", "seeds"), rows)


def strength_plot(config: str, strength: Sequence[dict[str, Any]]) -> str:
    series: dict[str, list[tuple[float, float]]] = {}
    bands: dict[str, list[tuple[float, float, float]]] = {}
    for each in sorted(strength, key=lambda each: each["cpu_s"]):
        name = f"{each['role']}, {each['against']}"
        series.setdefault(name, []).append((each["cpu_s"], 100 * each["mean"]))
        bands.setdefault(name, []).append((each["cpu_s"], 100 * each["low"], 100 * each["high"]))
    return line_plot(
        f"{config}: the whole loop, mean and range of the seeds",
        series,
        x_label="processor seconds of all processes",
        y_label="%",
        bands=bands,
    )


def run_table(runs: Sequence[dict[str, Any]]) -> str:
    """Where the processor time went."""
    names = list(dict.fromkeys(part for run in runs for part in run["end"]["split"]))
    rows = []
    for run in runs:
        end = run["end"]
        split = end["split"]
        beside = sum(used for part, used in split.items() if part not in (*PLAYING_AND_TRAINING, "judging"))
        rows.append(
            (
                "all" if len(run["configs"]) > 1 else run["configs"][0],
                str(run["seed"]),
                f"{end['s']:,.0f}",
                f"{end['cpu_s']:,.0f}",
                *(share(split.get(part, 0.0), end["cpu_s"]) for part in names),
                share(beside, end["cpu_s"]),
                "" if run["whole"] else "cut off",
            )
        )
    columns = ("config", "seed", "s", "processor s", *names, "not playing, training or judging", "")
    return table(columns, rows)


def config_table(runs: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            config,
            str(run["seed"]),
            *(f"{found[name]:,}" for name in ("games", "rows", "trainings", "verdicts", "promotions")),
            percent(found["steps_share"]),
            percent(found["untrained_rows_share"]),
            seconds(found["first_promotion_s"]),
            seconds(found["idle_s_max"]),
            f"{NOTHING if found['start_s'] is None else found['start_s']} ({percent(found['start_share'])})",
            ", ".join(f"{kind} {wait_s:.1f}" for kind, wait_s in found["wait_s"].items()),
            f"{found['champion_number'] or NOTHING} / {found['generator_number'] or NOTHING}",
        )
        for run in runs
        for config, found in run["end"]["configs"].items()
    ]
    columns = (
        *("config", "seed", "games", "rows", "trainings", "verdicts", "promotions"),
        *("steps / 4 rows", "rows never trained on", "first promotion", "longest without a job"),
        "start, median s (share)",
        "wait for a worker, median s",
        "champion / generator",
    )
    return table(columns, rows)


def table(columns: Row, rows: Sequence[Row]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else NOTHING


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f} s"
