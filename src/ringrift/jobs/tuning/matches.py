"""Matches that a search judges by."""

from __future__ import annotations

from ringrift.games.contract import Game
from ringrift.jobs.frame import Job
from ringrift.jobs.stopping import StopNow
from ringrift.jobs.tuning.params import Verified
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.model import ResidualNet
from ringrift.players.contract import Player
from ringrift.players.matches import MatchConfig, play_match
from ringrift.players.search_player import SearchPlayer
from ringrift.players.tally import Tally
from ringrift.search.contract import SearchConfig

VERIFY_SEED = 1_000_003  # games that no trial saw


def match(job: Job, game: Game, players: tuple[Player, Player], *, games: int, seed: int) -> Tally:
    """Paired games of the first against the second; leaves the job if it is asked to stop."""
    openings = max(1, games // game.players)
    config = MatchConfig(openings=openings, seed=seed)
    found = play_match(game, players, config, interrupted=lambda: job.stop.requested)
    if job.stop.requested:
        raise StopNow
    return found.tally


def verify(job: Job, game: Game, players: tuple[Player, Player], *, games: int, seed: int) -> Verified | None:
    """The finding against what is used now, or None if nobody asked for it."""
    if not games:
        return None
    job.stage("verifying", total=games)
    tally = match(job, game, players, games=games, seed=seed + VERIFY_SEED)
    low, high = tally.interval
    return Verified(games=tally.games, score=round(tally.score, 4), low=round(low, 4), high=round(high, 4))


def net_player(name: str, net: ResidualNet, game: Game, *, simulations: int) -> SearchPlayer:
    return SearchPlayer(name, game, NetEvaluator(net, game), SearchConfig(simulations=simulations))
