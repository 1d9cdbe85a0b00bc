"""Search of many games at once.

Each game has a slot. A wave takes the next leaves of all games that are being searched, lets the game apply
the actions, asks the evaluator once, and hands the values back up the trees. Games need not march in step:
each ends its search when its own budget is spent, and may be advanced and begun again while others go on.

What a search finds depends on the game's position, its seed and its ply, and on no other game.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringrift.errors import ConfigError
from ringrift.games.contract import ActionArray, Game, LegalActions, States, check_batch
from ringrift.search.contract import SURPRISE_MAX, Evaluation, Evaluator, Numbers, SearchConfig, SearchResult
from ringrift.search.core import kernels
from ringrift.search.core.kernels import Findings, Judgment, Leaves
from ringrift.search.core.rooting import (
    BUDGET,
    DONE,
    EXPLORE,
    PLY,
    ROOT_NUMBERS,
    SEED,
    Roots,
)
from ringrift.search.core.tree import (
    EDGES,
    NODES,
    NONE,
    ROOT,
    UNKNOWN,
    Selection,
    make_tree,
    with_room,
)

IntArray = npt.NDArray[np.int32]
EDGES_AT_START = 256  # for each game; doubled as needed


class BatchSearch:
    """Trees for a fixed number of slots."""

    def __init__(self, game: Game, evaluator: Evaluator, config: SearchConfig, *, slots: int) -> None:
        if slots < 1:
            raise ConfigError(f"search: slots must be at least 1, not {slots}")
        self.game, self.evaluator, self.config, self.slots = game, evaluator, config, slots
        self.evaluated = 0  # positions given to the evaluator so far
        self._settings = _settings(config)
        self._tree = make_tree(
            slots,
            nodes=config.simulations + 1,
            edges=EDGES_AT_START,
            words=game.words,
            players=game.players,
        )
        self._roots = _make_roots(slots)
        self._leaves = _make_leaves(0, game.words)
        self._planted = np.zeros(slots, dtype=bool)
        self._searching = np.zeros(slots, dtype=bool)

    def restart(self, slots: Numbers, states: States, seeds: Numbers, plies: Numbers | None = None) -> None:
        """Put games into *slots*; *plies* are the decisions made so far, which number the random draws."""
        slots = self._checked(slots)
        check_batch(self.game, states)
        if not len(slots) == len(states) == len(seeds):
            raise ConfigError(f"search: {len(slots)} slots, {len(states)} states, {len(seeds)} seeds")
        kernels.plant_roots(self._tree, slots, states)
        self._roots.numbers[slots, SEED] = seeds
        self._roots.numbers[slots, PLY] = 0 if plies is None else plies
        self._planted[slots] = True
        self._searching[slots] = False

    def states(self, slots: Numbers) -> States:
        """The positions at the roots."""
        rows: States = self._tree.states[self._checked(slots), ROOT]
        return rows

    def begin(
        self,
        slots: Numbers,
        *,
        simulations: npt.ArrayLike | None = None,
        temperatures: npt.ArrayLike = 1.0,
        explore: npt.ArrayLike = True,
    ) -> None:
        """Begin a search in *slots*, each with its own budget if *simulations* is given."""
        slots = self._checked(slots)
        if not self._planted[slots].all():
            raise ConfigError("search: a slot has no game; restart it first")
        budget = np.broadcast_to(
            np.asarray(self.config.simulations if simulations is None else simulations), slots.shape
        )
        if len(budget) and budget.min() < 1:
            raise ConfigError(f"search: simulations must be at least 1, not {budget.min()}")
        self._roots.numbers[slots, BUDGET], self._roots.numbers[slots, DONE] = budget, 0
        self._roots.temperatures[slots], self._roots.numbers[slots, EXPLORE] = temperatures, explore
        self._expand_roots(slots)
        self._make_room(slots)
        kernels.begin_games(self._tree, self._roots, slots, self._settings)
        self._searching[slots] = self._tree.node[slots, ROOT, EDGES] > 0

    def wave(self) -> Numbers:
        """Make the next simulations of all games being searched; returns the slots that are done by it."""
        slots = np.flatnonzero(self._searching)
        if not len(slots):
            return slots
        found = kernels.gather_leaves(self._tree, self._roots, slots, self._settings, self._leaves)
        if found:
            leaves = self._leaves
            states = leaves.states[:found]
            # the actions were legal when their node was added
            self.game.apply(states, leaves.actions[:found], trusted=True)
            self._judge(leaves, states)
        done: Numbers = slots[self._roots.numbers[slots, DONE] >= self._roots.numbers[slots, BUDGET]]
        self._searching[done] = False
        return done

    def results(self, slots: Numbers) -> SearchResult:
        """What the finished searches of *slots* found."""
        slots = self._checked(slots)
        if self._searching[slots].any() or (self._tree.node[slots, ROOT, EDGES] == UNKNOWN).any():
            raise ConfigError("search: a slot's search is not finished")
        offsets = kernels.root_offsets(self._tree, slots)
        out = Findings(
            offsets=offsets,
            actions=np.empty(offsets[-1], dtype=np.int32),
            policy=np.empty(offsets[-1], dtype=np.float32),
            visits=np.empty(offsets[-1], dtype=np.int32),
            values=np.empty((len(slots), self.game.players), dtype=np.float32),
            surprise=np.zeros(len(slots), dtype=np.float32),
        )
        chosen = kernels.finish_games(self._tree, self._roots, slots, self._settings, out)
        return SearchResult(
            actions=chosen,
            legal=LegalActions(offsets, out.actions),
            policy=out.policy,
            visits=out.visits,
            root_values=out.values,
            simulations=self._roots.numbers[slots, DONE].astype(np.int32),
            surprise=np.minimum(out.surprise, np.float32(SURPRISE_MAX)),
        )

    def search(
        self,
        slots: Numbers | None = None,
        *,
        simulations: npt.ArrayLike | None = None,
        temperatures: npt.ArrayLike = 1.0,
        explore: npt.ArrayLike = True,
    ) -> SearchResult:
        """Search *slots*, or all, from begin to end."""
        slots = np.arange(self.slots) if slots is None else slots
        self.begin(slots, simulations=simulations, temperatures=temperatures, explore=explore)
        while self._searching[slots].any():
            self.wave()
        return self.results(slots)

    def advance(self, slots: Numbers, actions: ActionArray) -> None:
        """Play one action per slot; the branch below it is kept if the config says so."""
        slots = self._checked(slots)
        states = self.states(slots)
        self.game.apply(states, actions)
        lost = np.ones(len(slots), dtype=bool)
        if self.config.tree_reuse:
            lost = kernels.advance_roots(self._tree, slots, np.asarray(actions, dtype=np.int32))
        kernels.plant_roots(self._tree, slots[lost], states[lost])
        self._roots.numbers[slots, PLY] += 1
        self._searching[slots] = False

    def _checked(self, slots: Numbers) -> Numbers:
        slots = np.asarray(slots, dtype=np.int64)
        if len(slots) and (slots.min() < 0 or slots.max() >= self.slots):
            raise ConfigError(f"search: slots are 0 to {self.slots - 1}")
        return slots

    def _expand_roots(self, slots: Numbers) -> None:
        fresh = slots[self._tree.node[slots, ROOT, EDGES] == UNKNOWN]
        if len(fresh):
            roots = np.full(len(fresh), ROOT, dtype=np.int32)
            states = self._tree.states[fresh, ROOT]
            self._judge(Leaves(fresh.astype(np.int32), roots, roots, states), states)

    def _judge(self, leaves: Leaves, states: States) -> None:
        """Fill in the nodes of the first leaves: by the rules if the game is over, else by the evaluator."""
        count, legal = len(states), self.game.legal(states)
        running = legal.counts > 0
        if running.all():
            evaluation = self._evaluate(states, legal)
            logits, values = evaluation.logits, evaluation.values
        else:
            logits, values = np.empty(0, dtype=np.float32), self.game.results(states)
            if running.any():
                # Finished games have no actions, so the flat list of the others is the same.
                offsets = np.append(legal.offsets[:-1][running], legal.offsets[-1])
                evaluation = self._evaluate(states[running], LegalActions(offsets, legal.actions))
                logits, values[running] = evaluation.logits, evaluation.values
        movers = np.asarray(self.game.to_move(states), dtype=np.int64)
        edges = kernels.edges_needed(self._tree, count, leaves, legal.offsets)
        self._tree = with_room(self._tree, edges=edges)
        found = Judgment(movers, legal.offsets, legal.actions, logits, values)
        kernels.add_nodes(self._tree, count, leaves, found, self._settings)

    def _evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        self.evaluated += len(states)
        evaluation = self.evaluator.evaluate(states, legal)
        # A single NaN would spread through the tree and end in the training data.
        if not (np.isfinite(evaluation.logits).all() and np.isfinite(evaluation.values).all()):
            raise ConfigError(
                f"search: the evaluator {type(self.evaluator).__name__} gave numbers not finite"
            )
        return evaluation

    def _make_room(self, slots: Numbers) -> None:
        """Room for the nodes of the coming search, its leaves and the notes about root edges."""
        tree, roots = self._tree, self._roots
        if not len(slots):
            return
        nodes = int((tree.used[slots, NODES] + roots.numbers[slots, BUDGET]).max())
        self._tree = with_room(tree, nodes=nodes)
        widest = int(tree.node[slots, ROOT, EDGES].max())
        if widest > roots.noise.shape[1]:
            self._roots = _with_width(roots, widest)
        per_game = self._settings.considered if self._settings.gumbel else self._settings.leaves
        leaves = self.slots * min(per_game, int(roots.numbers[:, BUDGET].max()))
        if leaves > len(self._leaves.games):
            self._leaves = _make_leaves(leaves, self.game.words)


def search_positions(
    game: Game,
    evaluator: Evaluator,
    config: SearchConfig,
    states: States,
    seeds: Numbers,
    *,
    temperatures: npt.ArrayLike = 0.0,
    explore: bool = False,
) -> SearchResult:
    """Search each position once, from nothing; by default for the best play, without noise."""
    search = BatchSearch(game, evaluator, config, slots=len(states))
    slots = np.arange(len(states))
    search.restart(slots, states, seeds)
    return search.search(slots, temperatures=temperatures, explore=explore)


def _settings(config: SearchConfig) -> Selection:
    return Selection(
        gumbel=config.root == "gumbel",
        considered=int(config.considered),
        c_visit=float(config.c_visit),
        c_scale=float(config.c_scale),
        rescale=bool(config.rescale),
        c_puct=float(config.c_puct),
        fpu_reduction=float(config.fpu_reduction),
        noise_weight=float(config.noise_weight),
        noise_alpha=float(config.noise_alpha or 0.0),
        leaves=int(config.leaves),
        prove=bool(config.prove and config.root == "gumbel"),  # only Gumbel's selection knows proofs
    )


def _make_roots(slots: int) -> Roots:
    return Roots(
        numbers=np.zeros((slots, ROOT_NUMBERS), dtype=np.int64),
        temperatures=np.zeros(slots, dtype=np.float64),
        places=np.zeros((slots, 0, 2), dtype=np.int32),
        noise=np.zeros((slots, 0), dtype=np.float64),
    )


def _with_width(roots: Roots, width: int) -> Roots:
    """The same notes with room for *width* root edges per game; those of running searches are kept."""
    added = ((0, 0), (0, width - roots.noise.shape[1]))
    return roots._replace(places=np.pad(roots.places, (*added, (0, 0))), noise=np.pad(roots.noise, added))


def _make_leaves(count: int, words: int) -> Leaves:
    def ints(value: int) -> IntArray:
        return np.full(count, value, dtype=np.int32)

    return Leaves(ints(NONE), ints(NONE), ints(NONE), np.zeros((count, words), dtype=np.int64))
