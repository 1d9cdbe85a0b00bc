"""A new network may begin with what fits of another config's."""

from pathlib import Path

import pytest
import torch

from ringrift.errors import ConfigError
from ringrift.games.registry import load_game
from ringrift.network.architecture import ModelCard, Preset
from ringrift.network.model import ResidualNet, build
from ringrift.network.storage import save_model, take_over

TINY = Preset(channels=8, blocks=1, neck=4, hidden=8)
WIDER = Preset(channels=16, blocks=1, neck=2, hidden=16)


def stored(folder: Path, key: str) -> tuple[Path, ResidualNet]:
    net = build(load_game(key), TINY, seed=4)
    path = folder / "net.safetensors"
    save_model(net, ModelCard(config=key, architecture=net.architecture), path)
    return path, net


def test_more_players_on_the_same_board_keep_all_but_the_ends(tmp_path: Path) -> None:
    path, old = stored(tmp_path, "square8_2p")
    new = build(load_game("square8_3p"), TINY, seed=5)
    before = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    taken = take_over(new, path)
    same = {
        name
        for name, tensor in new.state_dict().items()
        if torch.equal(tensor, old.state_dict().get(name, tensor[:0]))
    }
    assert {"blocks.0.first.weight", "policy.weight", "neck.weight", "hidden.weight"} <= same
    for name in ("stem.weight", "outcome.weight"):
        assert torch.equal(new.state_dict()[name], before[name]), "what has another shape begins anew"
    assert (taken.config, 0 < taken.parameters < taken.of) == ("square8_2p", True)


def test_another_board_keeps_the_trunk_and_its_own_shape(tmp_path: Path) -> None:
    path, old = stored(tmp_path, "square8_2p")
    new = build(load_game("hex8_2p"), TINY, seed=5)
    mask = new.mask.clone()
    take_over(new, path)
    assert torch.equal(new.state_dict()["blocks.0.first.weight"], old.state_dict()["blocks.0.first.weight"])
    assert torch.equal(new.mask, mask)
    game = load_game("hex8_2p")
    judged = new(torch.from_numpy(game.observe(game.new_states(2))).float())
    assert torch.isfinite(judged.logits()).all()


def test_another_size_is_refused(tmp_path: Path) -> None:
    path, _ = stored(tmp_path, "square8_2p")
    other = build(load_game("square8_3p"), WIDER, seed=5)
    with pytest.raises(ConfigError, match="trunk of this model of square8_2p"):
        take_over(other, path)
