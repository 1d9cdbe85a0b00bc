"""What a diagnosis looks at: the samples and games, and the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ringrift.games.contract import Game, LegalActions, State, States
from ringrift.games.ringrift.game import RingRiftGame
from ringrift.jobs.shards.records import StoredGame
from ringrift.jobs.shards.storage import open_shard
from ringrift.jobs.training.learner import Learner, LearnerConfig, ValueCalibration
from ringrift.jobs.training.rows import Numbers, RowSource, TrainingBatch, TrainingRows, make_batch, some_rows
from ringrift.network.architecture import Preset
from ringrift.network.evaluator import NetEvaluator, sample_positions
from ringrift.network.model import ResidualNet, build
from ringrift.players.search_player import SearchPlayer
from ringrift.search.contract import SearchConfig

# --- the data -----------------------------------------------------------------------------------------
#
# Are the samples and games what they should be: a hold-out apart, values that hold, games once and whole?


# What an examination says, in the form that the doctor of a run passes on.


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check; `fine` if nothing is wrong."""

    check: str
    level: Literal["fine", "notice", "warning", "problem"]
    text: str
    advice: str = ""
    config: str = ""
    evidence: dict[str, Any] = {}


COMPARED_ROWS_MAX = 20_000
HELD_ALSO_TRAINED = 0.5
CALIBRATION_WARNING, CALIBRATION_PROBLEM = 0.15, 0.30
CALIBRATION_ROWS_MIN = 200
GAMES_MIN = 50
GAMES_MAX = 5_000
DUPLICATES_WARNING, DUPLICATES_PROBLEM = 0.01, 0.10
CUT_WARNING, CUT_PROBLEM = 0.01, 0.10
DRAWS_ODD = 0.60


def check_hold_out(
    game: Game,
    source: RowSource,
    split: tuple[Numbers, Numbers],
    game_hashes: npt.NDArray[np.uint64],
    *,
    share: float,
) -> Symptom:
    """Are there held-out games, and do they share neither games nor most positions with the others?"""
    train, held = split
    about = {"check": "hold_out", "config": game.key}
    if not len(held):
        return Symptom(
            **about,
            level="problem",
            text=f"no game of {len(np.unique(game_hashes))} is held out of training (share {share:g})",
            advice="Set hold_out in [learning] to 0.05, or wait for more games.",
            evidence={"train_rows": len(train), "held_rows": 0},
        )
    both = np.intersect1d(game_hashes[train], game_hashes[held])
    late = _also_there(source, train, held)
    evidence = {
        "train_rows": len(train),
        "held_rows": len(held),
        "games_in_both": len(both),
        "positions_in_both": late,
    }
    if len(both):
        return Symptom(
            **about,
            level="problem",
            text=f"{len(both)} held-out games are also trained on",
            advice="Export the samples again; games are split as wholes.",
            evidence=evidence,
        )
    if late > HELD_ALSO_TRAINED:
        return Symptom(
            **about,
            level="warning",
            text=f"{late:.0%} of the held-out positions are trained on as well: games repeat each other",
            advice="Explore more in the first moves; such a hold-out is too hopeful.",
            evidence=evidence,
        )
    return Symptom(
        **about, level="fine", text=f"{len(held):,} rows of games apart are held out", evidence=evidence
    )


def _also_there(source: RowSource, train: Numbers, held: Numbers) -> float:
    """The share of held-out positions that are among those trained on."""
    there = {row.tobytes() for row in _states(source, train)}
    asked = [row.tobytes() for row in _states(source, held)]
    return sum(row in there for row in asked) / len(asked)


def _states(source: RowSource, rows: Numbers) -> States:
    return source.take(rows[:: max(1, len(rows) // COMPARED_ROWS_MAX)]).states


def check_calibration(game: Game, source: RowSource, held: Numbers, net: ResidualNet) -> Symptom | None:
    """Of positions called 0.6, do games end at 0.6 on average? None without enough held-out rows."""
    if len(held) < CALIBRATION_ROWS_MIN:
        return None
    judge, found = Learner(net, LearnerConfig()), ValueCalibration()
    for start in range(0, len(held), 256):
        batch = make_batch(game, source.take(held[start : start + 256]))
        found.add(judge.values(judge.net, batch)[:, 0], batch.values[:, 0])
    table: dict[str, Any] = found.as_json() or {}
    error = float(table.get("error", 0.0))
    grave = error >= CALIBRATION_PROBLEM
    return Symptom(
        check="calibration",
        level="problem" if grave else "warning" if error >= CALIBRATION_WARNING else "fine",
        config=game.key,
        text=f"values are {error:.2f} off on average on {len(held):,} held-out positions",
        advice=""
        if error < CALIBRATION_WARNING
        else "More and fresher games; look for a wrong sign or seat.",
        evidence=table,
    )


def check_games(game: Game, shards: Iterable[Path]) -> list[Symptom]:
    """Duplicates, games without an end, and draws among the games of *shards*."""
    seen: set[str] = set()
    games = twice = unfinished = drawn = 0
    for stored in _games(shards):
        games += 1
        twice += stored.fingerprint in seen
        seen.add(stored.fingerprint)
        unfinished += not _is_over(game, stored)
        drawn += stored.winner is None
        if games >= GAMES_MAX:
            break
    if games < GAMES_MIN:
        return []
    return [
        _share_symptom(
            game, "duplicates", twice, games, "are there twice", DUPLICATES_WARNING, DUPLICATES_PROBLEM
        ),
        _share_symptom(game, "cut_off", unfinished, games, "end before their end", CUT_WARNING, CUT_PROBLEM),
        _draws(game, drawn, games),
    ]


def _games(shards: Iterable[Path]) -> Iterator[StoredGame]:
    for path in shards:
        with open_shard(path) as shard:
            yield from (each for each in shard.games() if isinstance(each, StoredGame))


def _is_over(game: Game, stored: StoredGame) -> bool:
    if len(stored.game.actions) != stored.total_moves:
        return False
    state = game.new_states(1)
    for action in stored.game.actions:
        if game.terminal(state)[0]:
            return False
        game.apply(state, np.array([action], dtype=np.int32))
    return bool(game.terminal(state)[0]) or stored.game.termination == "resignation"


def _share_symptom(
    game: Game, check: str, count: int, games: int, what: str, warning: float, problem: float
) -> Symptom:
    share = count / games
    level = "problem" if share >= problem else "warning" if share >= warning else "fine"
    advice = {
        "duplicates": "Look for workers with the same seed, and shards handed in twice.",
        "cut_off": "Raise the limit of moves; look at the workers that wrote them.",
    }[check]
    return Symptom(
        check=check,
        level=level,  # type: ignore[arg-type]
        config=game.key,
        text=f"{share:.1%} of {games:,} games {what}",
        advice="" if level == "fine" else advice,
        evidence={"games": games, check: count},
    )


def _draws(game: Game, drawn: int, games: int) -> Symptom:
    share, evidence = drawn / games, {"games": games, "draws": drawn}
    text = f"{share:.1%} of {games:,} games are draws"
    if isinstance(game, RingRiftGame) and drawn:
        why = "RingRift has none: these games were cut off"
        return Symptom(
            check="draws",
            level="problem",
            config=game.key,
            text=f"{text}; {why}",
            advice="Raise the limit of moves of a game.",
            evidence=evidence,
        )
    odd = share > DRAWS_ODD
    return Symptom(
        check="draws",
        level="warning" if odd else "fine",
        config=game.key,
        text=text,
        advice="Explore more, or start from varied positions." if odd else "",
        evidence=evidence,
    )


# --- the network --------------------------------------------------------------------------------------
#
# Is the network what it should be: are symmetries consistent, can it learn, does it keep the value of
# positions that are solved exactly?


# Are symmetries consistent: do rules, observation and network mean the same by a turned board?


POSITIONS = 128
VALUE_SPREAD_WARNING = 0.35


def check_symmetries(game: Game, *, seed: int, positions: int = POSITIONS) -> Symptom:
    """Turn positions of random play every way, and compare what the rules say before and after."""
    states = sample_positions(game, positions, seed=seed)
    for symmetry in range(1, game.symmetries):
        if fault := _fault(game, states, symmetry, seed=seed):
            return Symptom(
                check="symmetries",
                level="problem",
                config=game.key,
                text=f"symmetry {symmetry} of {game.key} is wrong: {fault}",
                advice="Training turns samples by it, so every model learns wrong moves: mend the game.",
                evidence={"symmetry": symmetry},
            )
    return Symptom(
        check="symmetries",
        level="fine",
        config=game.key,
        text=f"{game.symmetries} symmetries agree on {positions} positions: moves, observation, outcome",
        evidence={"symmetries": game.symmetries, "positions": positions},
    )


def check_network_symmetry(
    game: Game, net: ResidualNet, *, seed: int, positions: int = POSITIONS
) -> Symptom | None:
    """How far the values of one position differ when the board is turned; None if it cannot be turned."""
    if game.symmetries < 2:
        return None
    states = sample_positions(game, positions, seed=seed)
    evaluator = NetEvaluator(net, game, cache_bytes_max=0)
    said = np.stack(
        [_values(game, evaluator, game.turned(states, symmetry)) for symmetry in range(game.symmetries)]
    )
    spread = float(np.mean(said.max(axis=0) - said.min(axis=0)))
    much = spread > VALUE_SPREAD_WARNING
    return Symptom(
        check="network_symmetry",
        level="warning" if much else "fine",
        config=game.key,
        text=f"the network's value of a position differs by {spread:.2f} on average over its symmetries",
        advice="More training with random symmetries (augment) brings it down." if much else "",
        evidence={"spread": round(spread, 4)},
    )


def _values(game: Game, evaluator: NetEvaluator, states: States) -> npt.NDArray[np.float32]:
    values = evaluator.evaluate(states, game.legal(states)).values
    mine: npt.NDArray[np.float32] = values[np.arange(len(states)), game.to_move(states)]
    return mine


def _fault(game: Game, states: States, symmetry: int, *, seed: int) -> str:
    """What differs between the turned positions and the positions; empty if nothing does."""
    legal, turned = game.legal(states), game.turned(states, symmetry)
    actions = game.turned_actions(states, legal, symmetry)
    there = game.legal(turned)
    if not np.array_equal(there.counts, legal.counts):
        return "another number of legal moves"
    for at in range(len(states)):
        mapped = actions[legal.offsets[at] : legal.offsets[at + 1]]
        if not np.array_equal(np.sort(mapped), np.sort(there.of(at))):
            return "the turned moves are not the legal moves of the turned position"
    planes = game.observe(states).reshape(len(states), game.observation_shape[0], -1)
    seen = game.observe(turned).reshape(planes.shape)
    if not np.allclose(planes[:, :, game.turned_grid(symmetry)], seen):
        return "the turned position looks otherwise than the turned observation"
    return _fault_after_a_move(game, states, turned, legal, actions, seed=seed, symmetry=symmetry)


def _fault_after_a_move(
    game: Game,
    states: States,
    turned: States,
    legal: LegalActions,
    turned_actions: npt.NDArray[np.int32],
    *,
    seed: int,
    symmetry: int,
) -> str:
    """Make a random move on both boards; they must still be the same but for the turn."""
    rng = np.random.default_rng(seed)
    chosen = legal.offsets[:-1] + (rng.random(len(states)) * legal.counts).astype(np.int64)
    here, there = states.copy(), turned.copy()
    game.apply(here, legal.actions[chosen])
    game.apply(there, turned_actions[chosen])
    if not np.array_equal(game.terminal(here), game.terminal(there)):
        return "the same move ends one game and not the other"
    if not np.allclose(game.results(here), game.results(there)):
        return "the same move gives another result"
    running = ~game.terminal(here)
    if running.any() and not np.array_equal(game.turned(here[running], symmetry), there[running]):
        return "the same move leads to another position"
    return ""


# Can the network learn: one batch by heart, and from some games what others are like?


OVERFIT_ROWS = 64
OVERFIT_STEPS = 300
OVERFIT_LEFT = 0.15  # of the loss at the start that may be left
RATE = 2e-3
LEARN_BATCH = 128
LEARN_STEPS = 150
LEARN_ROWS_MIN = LEARN_BATCH * LEARN_STEPS  # with fewer, rows are learned by heart, and true labels fail too
LEARN_GAIN = 0.02  # below the loss of one who knows nothing
HELD_ROWS_MAX = 4096

StopPoint = Callable[[], None]


@dataclass(frozen=True, slots=True)
class HeldLosses:
    """Losses on held-out rows, of a network and of one who knows nothing of the position."""

    policy: float  # above the entropy of the targets
    value: float
    blind_policy: float
    blind_value: float

    @property
    def gains(self) -> tuple[float, float]:
        """The share of the blind loss that is gone, for policy and value; 0 where there is none to lose."""
        return (
            1 - self.policy / self.blind_policy if self.blind_policy > 1e-6 else 0.0,
            1 - self.value / self.blind_value if self.blind_value > 1e-6 else 0.0,
        )


def check_overfit(
    game: Game, rows: TrainingRows, *, preset: str | Preset, seed: int, stop_point: StopPoint = lambda: None
) -> Symptom:
    """Train a fresh network on one batch until it knows it by heart; one that cannot will learn nothing."""
    batch = make_batch(game, some_rows(rows, _distinct(rows)[:OVERFIT_ROWS]))
    learner = Learner(build(game, preset, seed=seed), LearnerConfig(average_decay=0.0, weight_decay=0.0))
    first = left = float("inf")
    steps = 0
    for steps in range(1, OVERFIT_STEPS + 1):
        stop_point()
        policy, value, entropy = learner.step(batch, RATE).tolist()
        left = policy - entropy + value
        first = min(first, left) if steps == 1 else first
        if left < OVERFIT_LEFT * first / 2:
            break
    share = left / first if first > 1e-6 else 0.0
    evidence = {
        "rows": len(batch.weights),
        "steps": steps,
        "loss_first": round(first, 4),
        "loss": round(left, 4),
    }
    if share <= OVERFIT_LEFT:
        text = f"a fresh network learns {len(batch.weights)} positions by heart in {steps} steps"
        return Symptom(check="overfit", level="fine", config=game.key, text=text, evidence=evidence)
    return Symptom(
        check="overfit",
        level="problem",
        config=game.key,
        text=f"a fresh network cannot learn {len(batch.weights)} positions by heart: {share:.0%} of "
        f"the loss is left after {steps} steps",
        advice="The observation hides what the targets depend on, targets contradict each other, or "
        "gradients do not flow.",
        evidence=evidence,
    )


def check_labels(
    game: Game,
    source: RowSource,
    split: tuple[Numbers, Numbers],
    *,
    preset: str | Preset,
    seed: int,
    stop_point: StopPoint = lambda: None,
) -> Symptom | None:
    """Learn from some games and look at others: shuffled labels teach nothing. None with too few rows."""
    train, held = split
    if len(train) < LEARN_ROWS_MIN or len(held) < OVERFIT_ROWS:
        return None
    learner = Learner(build(game, preset, seed=seed), LearnerConfig(average_decay=0.9))
    rng = np.random.default_rng(seed)
    for _ in range(LEARN_STEPS):
        stop_point()
        rows = np.sort(rng.choice(train, LEARN_BATCH, replace=False))
        learner.step(make_batch(game, source.take(rows)), RATE)
    found = held_losses(game, source, held, learner.averaged(), train=train)
    policy, value = found.gains
    evidence = {"policy_gain": round(policy, 4), "value_gain": round(value, 4), "rows": len(held)}
    if policy >= LEARN_GAIN or value >= LEARN_GAIN:
        text = (
            f"{LEARN_STEPS} steps on some games explain others: policy by {policy:.0%}, value by {value:.0%}"
        )
        return Symptom(check="labels", level="fine", config=game.key, text=text, evidence=evidence)
    return Symptom(
        check="labels",
        level="problem",
        config=game.key,
        text="what some games teach says nothing about others: targets do not follow from positions",
        advice="Look for targets that were shuffled, shifted by a move, or given to the wrong seat.",
        evidence=evidence,
    )


def held_losses(
    game: Game, source: RowSource, held: Numbers, net: ResidualNet, *, train: Numbers
) -> HeldLosses:
    """Compare *net* on held-out rows with a uniform policy and the mean value of the training rows."""
    some = held[:: max(1, len(held) // HELD_ROWS_MAX)]
    mean = make_batch(game, source.take(train[:: max(1, len(train) // HELD_ROWS_MAX)])).values.mean(axis=0)
    judge, sums, total = Learner(net, LearnerConfig()), np.zeros(4), 0.0
    for start in range(0, len(some), 256):
        batch = make_batch(game, source.take(some[start : start + 256]))
        policy, value, entropy = judge.judge(judge.net, batch).tolist()
        weight = float(batch.weights.sum())
        blind = _weighted(np.log(batch.legal.sum(axis=1)), batch) - entropy
        blind_value = _weighted(((batch.values - mean) ** 2).mean(axis=1), batch)
        sums += weight * np.array([policy - entropy, value, blind, blind_value])
        total += weight
    return HeldLosses(*(sums / max(total, 1e-9)).tolist())


def _weighted(losses: npt.NDArray[np.floating], batch: TrainingBatch) -> float:
    return float(np.average(losses, weights=batch.weights))


def _distinct(rows: TrainingRows) -> Numbers:
    """One row for each position, in order: a position with two answers cannot be learned by heart."""
    _, first = np.unique(rows.states, axis=0, return_index=True)
    return np.sort(first).astype(np.int64)


# Positions near the end of games, solved exactly: does a model keep their value?
#
# A position's value is what the player on turn can force against all others. The positions follow from the
# game and the seed alone, so that models are compared on the same ones.


WORDS_MAX = 400_000  # of all positions that follow one
NODES_MIN, NODES_MAX = 2_000, 40_000
PLIES_BACK = 8
GAMES_AT_ONCE = 32
ROUNDS_MAX = 40
SEARCH_SIMULATIONS = 32

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SolvedPosition:
    """A position, what the player on turn can force, and which legal actions force it."""

    state: State
    value: float
    keeps: npt.NDArray[np.bool_]  # aligned with the legal actions


def solve(game: Game, state: State, *, nodes_max: int | None = None) -> SolvedPosition | None:
    """Solve one position; None if more than *nodes_max* positions can follow."""
    limit = nodes_max or max(NODES_MIN, min(NODES_MAX, WORDS_MAX // game.words))
    seat = int(game.to_move(state[None, :])[0])
    levels: list[tuple[States, npt.NDArray[np.int64]]] = []  # positions, and how many follow each
    states, nodes = state[None, :].copy(), 0
    while True:
        nodes += len(states)
        if nodes > limit:
            return None
        legal = game.legal(states)
        levels.append((states, legal.counts))
        if not len(legal.actions):
            break
        states = np.repeat(states, legal.counts, axis=0)
        game.apply(states, legal.actions, trusted=True)
    below = np.empty(0, dtype=np.float32)
    for states, counts in reversed(levels[1:]):
        below = _worth(game, states, counts, below, seat)
    if not len(below):
        return None  # the game is over
    best = float(below.max())
    return SolvedPosition(state, best, below >= best - 1e-6)


def _worth(game: Game, states: States, counts: npt.NDArray[np.int64], below: Values, seat: int) -> Values:
    """What *seat* can force in each of *states*, from what it can force in all that follow."""
    worth: Values = game.results(states)[:, seat].copy()
    running = np.flatnonzero(counts)
    if len(running):
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[running])[:-1]])
        mine = game.to_move(states[running]) == seat
        most, least = np.maximum.reduceat(below, starts), np.minimum.reduceat(below, starts)
        worth[running] = np.where(mine, most, least)
    return worth


def solved_positions(
    game: Game, count: int, *, seed: int, stop_point: Callable[[], None] = lambda: None
) -> list[SolvedPosition]:
    """Late positions of random games in which it matters what is played; fewer if few can be solved."""
    found: list[SolvedPosition] = []
    for number in range(ROUNDS_MAX):
        for history in _random_games(game, GAMES_AT_ONCE, seed=seed * ROUNDS_MAX + number):
            stop_point()
            if (solved := _hardest(game, history)) is not None:
                found.append(solved)
            if len(found) >= count:
                return found
    return found


def _hardest(game: Game, history: list[State]) -> SolvedPosition | None:
    """The earliest of the last positions that can be solved and where some action is a mistake."""
    best = None
    for state in reversed(history[-PLIES_BACK:]):
        solved = solve(game, state)
        if solved is None:
            break
        if not solved.keeps.all():
            best = solved
    return best


def _random_games(game: Game, count: int, *, seed: int) -> list[list[State]]:
    """The last positions of random games, before each of their last moves."""
    rng = np.random.default_rng(seed)
    states = game.new_states(count)
    histories: list[list[State]] = [[] for _ in range(count)]
    running = np.arange(count)
    while len(running):
        rows = states[running]
        legal = game.legal(rows)
        for at, row in zip(running, rows, strict=True):
            histories[at].append(row.copy())
            del histories[at][:-PLIES_BACK]
        draws = (rng.random(len(running)) * legal.counts).astype(np.int64)
        game.apply(rows, legal.actions[legal.offsets[:-1] + draws], trusted=True)
        states[running] = rows
        running = running[~game.terminal(rows)]
    return histories


def judge_canary(
    game: Game, net: ResidualNet, positions: list[SolvedPosition], *, seed: int
) -> dict[str, Any]:
    """The share of *positions* whose value is kept by the network's first choice and by a search with it."""
    states = np.stack([each.state for each in positions])
    legal, evaluator = game.legal(states), NetEvaluator(net, game)
    logits = evaluator.evaluate(states, legal).logits
    alone = [
        bool(each.keeps[np.argmax(logits[legal.offsets[at] : legal.offsets[at + 1]])])
        for at, each in enumerate(positions)
    ]
    player = SearchPlayer("canary", game, evaluator, SearchConfig(simulations=SEARCH_SIMULATIONS))
    chosen = player.choose(states, np.arange(len(states), dtype=np.int64) + seed)
    searched = [bool(each.keeps[legal.of(at) == chosen[at]][0]) for at, each in enumerate(positions)]
    return {
        "positions": len(positions),
        "kept": round(float(np.mean(alone)), 4),
        "kept_by_search": round(float(np.mean(searched)), 4),
        "by_chance": round(float(np.mean([each.keeps.mean() for each in positions])), 4),
        "simulations": SEARCH_SIMULATIONS,
    }
