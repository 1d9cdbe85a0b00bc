"""Parameters and findings of the `tune` job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ringrift.errors import ConfigError
from ringrift.jobs.params import Params

SAMPLES_NEEDED = ("halving", "pbt", "nas")


class TuneParams(Params, frozen=True, kw_only=True):
    """Parameters of `tune`."""

    config: Annotated[str, msgspec.Meta(description="Game and players, such as square8_2p.")]
    kind: Annotated[
        Literal["cmaes", "halving", "pbt", "nas"],
        msgspec.Meta(description="Heuristic weights, training parameters (two ways), or network size."),
    ]
    out: Annotated[Path, msgspec.Meta(description="Folder of the search; the same folder goes on with it.")]
    samples: Annotated[tuple[Path, ...], msgspec.Meta(description="NPZ files; not for cmaes.")] = ()
    trials: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Sets to try by halving.")] = 16
    population: Annotated[int, msgspec.Meta(ge=4, le=256, description="Sets of a generation.")] = 8
    generations: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Generations.")] = 6
    games: Annotated[int, msgspec.Meta(ge=2, description="Games that judge one set of weights.")] = 64
    verify_games: Annotated[
        int, msgspec.Meta(ge=0, description="Games of the best against what is used now; 0: none.")
    ] = 200
    simulations: Annotated[int, msgspec.Meta(ge=2, description="Of networks in matches.")] = 16
    rows: Annotated[int, msgspec.Meta(ge=0, description="Rows that one training sees; 0: 4 times all.")] = 0
    preset: Annotated[str, msgspec.Meta(description="Size of the network, but for nas.")] = "small"
    presets: Annotated[tuple[str, ...], msgspec.Meta(description="Sizes that nas compares.")] = (
        "small",
        "medium",
    )
    spread: Annotated[
        float, msgspec.Meta(gt=0, le=1, description="First spread of weights, as a share of them.")
    ] = 0.15
    quick: Annotated[bool, msgspec.Meta(description="Judge weights by the quick heuristic.")] = True
    hold_out: Annotated[float, msgspec.Meta(gt=0, le=0.5, description="Share of games held out.")] = 0.1
    lr: Annotated[float, msgspec.Meta(gt=0, description="Learning rate in use.")] = 2e-3
    batch: Annotated[int, msgspec.Meta(ge=1, description="Batch in use.")] = 256
    weight_decay: Annotated[float, msgspec.Meta(ge=0, description="Weight decay in use.")] = 1e-4
    seed: Annotated[int, msgspec.Meta(ge=0, description="Seed of everything.")] = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], msgspec.Meta(description="Where to compute.")] = "auto"
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Threads on a CPU.")] = 1

    def check(self) -> None:
        """Raise `ConfigError` for what only the fields together can tell."""
        if self.kind in SAMPLES_NEEDED and not self.samples:
            raise ConfigError(f"tune: {self.kind} needs --samples to train on")
        if self.kind == "nas" and len(set(self.presets)) < 2:
            raise ConfigError("tune: nas needs two --presets to compare")


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A match of what was found against what is used now, with games that the search never saw."""

    games: int
    score: float
    low: float
    high: float

    @property
    def improved(self) -> bool:
        """Whether the whole interval lies on the better side."""
        return self.low > 0.5


class TuningFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What a search came to."""

    best_params: dict[str, Any]
    best_score: float  # higher is better
    evaluations: int
    generations: tuple[dict[str, Any], ...] = ()  # generation, best_score
    scores: dict[str, float] = {}  # of each candidate, where they have names
    verified: Verified | None = None

    @property
    def improved(self) -> bool:
        return self.verified is not None and self.verified.improved
