"""Games that are searched again are found again to the last bit; any that were altered are named."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from jobs_samples import random_game, write_shard

from ringrift.jobs.frame import run_job
from ringrift.jobs.selfplay.recompute import RECOMPUTE
from ringrift.jobs.selfplay.selfplay import SELFPLAY
from ringrift.jobs.shards.records import SoftPolicies
from ringrift.jobs.shards.storage import open_shard
from ringrift.machine import machine_kind

KEY = "connect_four_2p"
ORDER = {"config": KEY, "games": 6, "simulations": 8, "seed": 3, "quick_simulations": 4, "full_share": 0.5}
ORDER |= {"opening_plies": 5}


def run(spec, **options):
    out = io.StringIO()
    argv = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert run_job(spec, argv, out=out) == 0
    return json.loads(out.getvalue().splitlines()[-1])


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The shard of an honest worker, its games, and the machine that it names."""
    folder = tmp_path_factory.mktemp("played")
    result = run(SELFPLAY, out=folder, **ORDER)
    (path,) = folder.glob("*.shard.db")
    with open_shard(path) as shard:
        games = [stored.game for stored in shard.games()]
    return path, games, result["machine"]


def recompute(tmp_path, shard, **options):
    return run(RECOMPUTE, out=tmp_path, shard=shard, **{**ORDER, "sample_games": 6, **options})


def test_what_was_played_is_found_again_to_the_last_bit(played, tmp_path):
    path, games, machine = played
    assert machine.startswith(machine_kind())  # which is all that its worker knows
    found = recompute(tmp_path, path, played_on=machine_kind(), sample_moves=10_000)
    assert (found["exact"], found["agrees"], found["first_difference"]) == (True, True, None)
    assert found["moves"] == found["identical_moves"] == sum(len(game.actions) for game in games)
    assert found["games"] == 6


def test_only_some_games_and_moves_are_searched_and_which_follows_from_the_seed(played, tmp_path):
    path, _, machine = played
    found = recompute(tmp_path, path, played_on=machine, sample_games=2, sample_moves=5)
    assert (found["games"], found["moves"], found["agrees"]) == (2, 5, True)


def test_where_distances_count_every_move_of_the_sampled_games_is_searched(played, tmp_path):
    path, games, _ = played
    found = recompute(tmp_path, path, played_on="another machine", sample_games=6, sample_moves=5)
    assert (found["exact"], found["agrees"]) == (False, True)
    assert found["moves"] == sum(len(game.actions) for game in games)


def certain_policies(game):
    """Over the same moves, all on the last of them."""
    policies, shares = game.policies, np.zeros_like(game.policies.probabilities)
    shares[policies.offsets[1:][policies.searched] - 1] = 1.0
    return replace(game, policies=replace(policies, probabilities=shares))


def other_game(game):
    """Right by the rules and under the right numbers, but not what the search chose."""
    other = random_game(KEY, 1000 + game.run_index)
    same = {name: getattr(game, name) for name in ("game_id", "seed", "run_id", "run_index")}
    return replace(other, **same)


ALTERED = {
    "policies": (certain_policies, "policy off by"),
    "values": (lambda game: replace(game, root_values=-np.sign(game.root_values) / 2), "value by"),
    "no policies": (lambda game: replace(game, policies=SoftPolicies.none(len(game.actions))), "off by 1.0"),
    "moves": (other_game, "recorded move"),
    "a seed": (lambda game: replace(game, seed=game.seed + 1), "its seed is"),
    "a number": (lambda game: replace(game, run_index=game.run_index + 100), "6 games were ordered"),
    "another order": (lambda game: replace(game, run_id="0" * 16), "parameters and the model of the order"),
}


@pytest.mark.parametrize("what", ALTERED)
@pytest.mark.parametrize("here", [True, False])
def test_what_was_altered_is_named(played, tmp_path, what, here):
    _, games, machine = played
    change, told = ALTERED[what]
    shard = write_shard(tmp_path / "altered", [change(game) for game in games], key=KEY).path
    found = recompute(tmp_path, shard, played_on=machine if here else "another machine")
    assert (found["exact"], found["agrees"]) == (here, False)
    assert told in found["first_difference"]["what"]


def test_a_weight_that_was_made_up_is_found_where_bits_are_compared(played, tmp_path):
    _, games, machine = played
    made_up = [replace(game, surprise=game.surprise + 1) for game in games]
    shard = write_shard(tmp_path / "altered", made_up, key=KEY).path
    assert recompute(tmp_path, shard, played_on=machine)["agrees"] is False
    older = [replace(game, surprise=None) for game in games]
    shard = write_shard(tmp_path / "older", older, key=KEY).path
    assert recompute(tmp_path, shard, played_on=machine)["agrees"] is True


def test_one_altered_move_is_found_where_bits_are_compared(played, tmp_path):
    _, games, machine = played
    values = games[2].root_values.copy()
    values[4] = np.nextafter(values[4], np.float32(2.0))
    altered = [*games[:2], replace(games[2], root_values=values), *games[3:]]
    shard = write_shard(tmp_path / "altered", altered, key=KEY).path
    found = recompute(tmp_path, shard, played_on=machine, sample_moves=10_000)
    assert found["agrees"] is False
    assert (found["first_difference"]["game"], found["first_difference"]["move"]) == (games[2].game_id, 4)
    assert found["moves"] - found["identical_moves"] == 1
    elsewhere = recompute(tmp_path, shard, played_on="another machine", sample_moves=10_000)
    assert elsewhere["agrees"] is True  # such a difference is what machines differ by
