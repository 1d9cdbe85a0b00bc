"""Players with a network, named by texts."""

import subprocess
import sys

import numpy as np
import pytest

from ringrift.errors import ConfigError, RingRiftError
from ringrift.games.registry import load_game
from ringrift.network.architecture import ModelCard
from ringrift.network.model import build
from ringrift.network.storage import save_model
from ringrift.players.matches import MatchConfig, play_match
from ringrift.players.specs import parse_player


@pytest.fixture(scope="module")
def game():
    return load_game("connect_four_2p")


@pytest.fixture(scope="module")
def model(game, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "net@home.safetensors"
    net = build(game, "small", seed=3)
    save_model(net, ModelCard(config=game.key, architecture=net.architecture), path)
    return path


def test_a_stored_model_plays(game, model):
    player = parse_player(f"model:{model}@8", game)
    assert player.name == f"model:{model}@8"
    match = play_match(game, [player, parse_player("random", game)], MatchConfig(openings=3, seed=2))
    assert match.tally.games == 6


def test_search_finds_a_win_in_one_even_with_an_untrained_net(game):
    player = parse_player("untrained:small@64", game)
    states = game.new_states(1)
    for move in (0, 1, 0, 1, 0, 1):
        game.apply(states, np.array([move]))
    assert player.choose(states, np.array([5])).tolist() == [0]


def test_a_choice_depends_on_the_game_and_its_seed_alone(game):
    player = parse_player("untrained:small@16", game)
    states, seeds = game.new_states(5), np.arange(5)
    game.apply(states, np.array([0, 1, 2, 3, 4]))
    together = player.choose(states, seeds).tolist()
    assert together == [int(player.choose(states[at : at + 1], seeds[at : at + 1])[0]) for at in range(5)]


def test_a_model_of_another_game_is_refused(model):
    with pytest.raises(RingRiftError, match="connect_four_2p"):
        parse_player(f"model:{model}@8", load_game("square8_2p"))


@pytest.mark.parametrize("text", ["model:nowhere.safetensors@8", "untrained:giant@8", "untrained:small@0"])
def test_what_is_not_there_is_refused(game, text):
    with pytest.raises(ConfigError):
        parse_player(text, game)


def test_baselines_do_not_import_torch():
    program = "import sys, ringrift.players.specs, ringrift.jobs.play; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
