"""A run as it could be, made up from a seed: for tests of what people see."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from ringrift.health.run_status import (
    ConfigStatus,
    Cost,
    Curve,
    LossPoint,
    RunDecision,
    RunStatus,
    StageProgress,
)

TWELVE = tuple(f"{board}_{n}p" for board in ("square8", "hex8", "square19", "hexagonal") for n in (2, 3, 4))
# two of self-play: that is what a run does most of the time
_KINDS = ("selfplay", "selfplay", "train", "evaluate", "validate", "export")
_TEXTS = {"train": "loss 2.11", "evaluate": "34 wins, 9 draws, 21 losses", "selfplay": ""}


@dataclass(frozen=True, slots=True)
class SampleRun:
    """What the made-up run is like."""

    configs: tuple[str, ...] = ("square8_2p",)
    now_s: float = 1_700_000_000.0
    minutes: float = 47.0
    promotions: int = 9
    seed: int = 7
    paused: bool = False
    findings: bool = True

    def status(self) -> RunStatus:
        rng = random.Random(self.seed)
        configs = {key: _config(rng, position, sample=self) for position, key in enumerate(self.configs)}
        return RunStatus(
            at_s=self.now_s,
            started_s=self.now_s - self.minutes * 60,
            node="workshop",
            state="paused" if self.paused else "running",
            workers=max(2, min(8, len(self.configs))),
            configs=configs,
            decisions=_decisions(self),
            queue={
                "selfplay": {"ready": 2, "claimed": 2, "done": 412},
                "train": {"ready": 0, "claimed": 1, "done": 23},
                "evaluate": {"ready": 1, "claimed": 0, "done": 77, "dead": 1},
                "validate": {"done": 103},
                "export": {"done": 24},
            },
            findings=_findings() if self.findings else (),
            paused=_pause(self) if self.paused else None,
        )


def idle_config(**fields: Any) -> ConfigStatus:
    """A config that nothing has happened to yet, but for *fields*."""
    unknown = dict.fromkeys(("cpu_s_per_game", "cpu_s_per_promotion", "cpu_s_per_rating_point"))
    cost = Cost(cpu_s=0.0, gpu_s=0.0, money=None, **unknown)
    counts = (
        "games games_unchecked games_refused rows trained_rows sample_steps promotions rollbacks rejections"
    )
    nothing: dict[str, Any] = dict.fromkeys(counts.split(), 0)
    nothing |= {"champion": None, "rating": None, "rating_interval": None, "stage": "", "blocked": {}}
    nothing |= {"share": 0.0, "games_per_s": 0.0, "curve": (), "losses": (), "running": (), "cost": cost}
    return ConfigStatus(**{**nothing, "next": "", **fields})


def idle_run(**fields: Any) -> RunStatus:
    """A run that has said nothing but *fields*."""
    nothing: dict[str, Any] = {"at_s": 0.0, "started_s": 0.0, "node": "workshop", "state": "running"}
    nothing |= {"workers": 0, "configs": {}, "decisions": (), "queue": {}}
    return RunStatus(**{**nothing, **fields})


def _pause(sample: SampleRun) -> dict[str, object]:
    return {"reason": "the machine is needed", "by": "anna", "at_s": sample.now_s - 300}


def _config(rng: random.Random, position: int, *, sample: SampleRun) -> ConfigStatus:
    promotions = max(0, sample.promotions - position % 5) if position < 10 else 0
    curve = _curve(rng, sample, promotions)
    games = 800 + 4_700 * promotions // (1 + position % 3)
    gain = curve[-1].rating if curve else None
    blocked = {"train": {"reason": "3 failures in a row: out of memory", "until_s": sample.now_s + 214}}
    return ConfigStatus(
        games=games,
        games_unchecked=64,
        games_refused=position % 3,
        rows=games * 31,
        trained_rows=games * 29,
        sample_steps=games * 121,
        promotions=promotions,
        rollbacks=1 if position == 1 else 0,
        rejections=promotions // 2 + 1,
        champion=curve[-1].model if curve else None,
        rating=gain,
        rating_interval=(curve[-1].low, curve[-1].high) if curve else None,
        stage="paused" if sample.paused else "blocked" if position == 2 else _KINDS[position % len(_KINDS)],
        paused=_pause(sample) if sample.paused else None,
        blocked=blocked if position == 2 else {},
        share=1 / len(sample.configs),
        games_per_s=round(3.4 / (1 + position), 2),
        curve=curve,
        losses=_losses(rng, sample, promotions),
        running=_running(sample, position),
        cost=_cost(sample, position, games=games, promotions=promotions, gain=gain or 0.0),
        bucket=31_400.0,
        next="training starts when 1,212 more rows are checked (2 min at this speed)",
        generator=f"{position:016x}" if curve else None,
        who_plays="model 12 is published, model 15 plays: 3 trainings newer",
        held_back="" if sample.paused else "games: training waits 62% of the time for rows",
    )


def _cost(sample: SampleRun, position: int, *, games: int, promotions: int, gain: float) -> Cost:
    """The first config has a GPU and a price."""
    cpu_s = sample.minutes * 60 * 1.9 / max(1, len(sample.configs))
    gpu_s, money = (0.0, None) if position else (cpu_s * 0.3, cpu_s / 3600 * 0.04)

    def per(spent: float | None, number: float) -> float | None:
        return None if spent is None or not number else spent / number

    return Cost(
        cpu_s=cpu_s,
        gpu_s=gpu_s,
        money=money,
        cpu_s_per_game=per(cpu_s, games),
        cpu_s_per_promotion=per(cpu_s, promotions),
        cpu_s_per_rating_point=per(cpu_s, gain),
        gpu_s_per_game=per(gpu_s, games),
        gpu_s_per_promotion=per(gpu_s, promotions),
        gpu_s_per_rating_point=per(gpu_s, gain),
        money_per_game=per(money, games),
        money_per_promotion=per(money, promotions),
        money_per_rating_point=per(money, gain),
    )


def _curve(rng: random.Random, sample: SampleRun, promotions: int) -> tuple[Curve, ...]:
    points = []
    for number in range(promotions):
        share = (number + 1) / (promotions + 0.6)
        rating = 780 * (1 - math.exp(-2.4 * share)) + rng.gauss(0, 9)
        half = 52 * (1 - 0.55 * share) + rng.random() * 6
        points.append(
            Curve(
                model=f"{rng.getrandbits(64):016x}",
                at_s=sample.now_s - sample.minutes * 60 * (1 - share),
                rows=int(190_000 * share),
                rating=rating,
                low=rating - half,
                high=rating + half,
            )
        )
    return tuple(points)


def _losses(rng: random.Random, sample: SampleRun, promotions: int) -> tuple[LossPoint, ...]:
    count = promotions * 2 + 2
    return tuple(
        LossPoint(
            at_s=sample.now_s - sample.minutes * 60 * (1 - (number + 1) / count),
            model=f"{number:016x}",
            rows_seen=30_000 * (number + 1),
            policy=1.35 + 2.1 * math.exp(-number / 5) + rng.random() * 0.05,
            value=0.48 + 0.5 * math.exp(-number / 6) + rng.random() * 0.03,
            hold_out=2.02 + 2.5 * math.exp(-number / 5) + rng.random() * 0.06,
        )
        for number in range(count)
    )


def _running(sample: SampleRun, position: int) -> tuple[StageProgress, ...]:
    if sample.paused or position > 5:
        return ()
    kinds = ("selfplay", "train") if position == 0 else (_KINDS[position],)
    return tuple(
        StageProgress(
            kind=kind,
            job_id=f"{kind}-{position}-{place}",
            worker=f"workshop/{position + place}",
            done=190 * (place + 1),
            total=512,
            rate=3.4 if kind == "selfplay" else 5_200.0,
            eta_s=94.0 + 40 * place,
            started_s=sample.now_s - 56,
            text=_TEXTS.get(kind, ""),
        )
        for place, kind in enumerate(kinds)
    )


def _decisions(sample: SampleRun) -> tuple[RunDecision, ...]:
    decisions = (
        ("promoted 9b1c44d07e21", "won 38.5 of 64 points in 32 pairs: the test says stronger (5 % error)"),
        ("train", "52,300 new rows have earned 209,200 sample-steps; one chunk is 196,608"),
        ("export", "window of 161,000 rows from 5,192 games; 44 new shards"),
        ("evaluate", "64 more games: 96 played, likelihood ratio 1.9 of 2.94"),
        ("refused 51d0c9e8aa07", "lost 37 of 64 points: the test says not stronger (5 % error)"),
        ("selfplay", "2 slots are free and training waits for 1,212 rows"),
        ("validate", "7 shards were not replayed by the rules yet"),
        ("train waits", "3 failures in a row, for 300 s: out of memory"),
        ("took back 77aa03b1c2d4", "the champion lost 40 of 64 points against the one before it"),
    )
    return tuple(
        RunDecision(
            at_s=sample.now_s - 9 - 41 * number,
            config=sample.configs[number % len(sample.configs)],
            what=what,
            reason=reason,
        )
        for number, (what, reason) in enumerate(decisions)
        if sample.configs
    )


def _findings() -> tuple[dict[str, object], ...]:
    return (
        {
            "check": "hold_out",
            "level": "notice",
            "text": "model 3 of square8_2p was trained without held-out games",
            "advice": "Set hold_out in [learning] to 0.05; with few games, wait for some hundred.",
        },
        {
            "check": "ratio",
            "level": "warning",
            "text": "Training sees every row 6.1 times; 4 is the aim.",
            "advice": "Add a worker for self-play, or lower steps_per_row in [learning.bucket].",
        },
    )
