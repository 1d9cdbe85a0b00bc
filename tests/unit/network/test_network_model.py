"""The network: shapes, masks, a start that knows nothing, and that it can learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from ringrift.errors import ConfigError
from ringrift.games.registry import load_game
from ringrift.network.architecture import PRESETS, Architecture, Preset, architecture_for, board_mask
from ringrift.network.evaluator import sample_positions
from ringrift.network.model import ResidualNet, build

TINY = Preset(channels=8, blocks=1, neck=4, hidden=8)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def stirred(net: ResidualNet, seed: int = 0) -> ResidualNet:
    """The net with random numbers where it starts at zero."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.3)
    return net


@pytest.mark.parametrize("key", ["connect_four_2p", "square8_2p", "hex8_3p", "square8_4p"])
def test_shapes_follow_the_game(key: str) -> None:
    game = load_game(key)
    net = stirred(build(game, TINY, seed=1))
    planes = torch.from_numpy(game.observe(sample_positions(game, 5)))
    judged = net(planes)
    layout = game.action_layout
    cells = layout.rows * layout.columns
    assert judged.logits().shape == (5, layout.planes * cells + layout.placeless)
    assert judged.logits().shape[1] > layout.slots.max()
    assert judged.values.shape == (5, game.players)
    assert judged.values.abs().max() <= 1
    if game.players == 2:
        torch.testing.assert_close(judged.values[:, 0], -judged.values[:, 1])


def test_a_new_network_knows_nothing() -> None:
    game = load_game("square8_3p")
    judged = build(game, "small", seed=3)(torch.from_numpy(game.observe(game.new_states(2))))
    assert not judged.logits().any()
    assert not judged.values.any()


def test_the_same_seed_builds_the_same_network_and_leaves_the_generator_alone() -> None:
    game = load_game("connect_four_2p")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other, third = (build(game, TINY, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.stem.weight, third.stem.weight)


def test_hex_boards_are_masked_in_every_layer() -> None:
    """What lies off the board changes nothing, and nothing arises there."""
    game = load_game("hex8_2p")
    mask = board_mask(game)
    assert mask.sum() == 61
    assert board_mask(load_game("square8_2p")).all()
    assert board_mask(load_game("connect_four_2p")).all()
    net = stirred(build(game, TINY, seed=1))
    planes = torch.from_numpy(game.observe(sample_positions(game, 3)))
    outside: list[torch.Tensor] = []
    for layer in net.residual_blocks:
        layer.register_forward_hook(lambda _m, _i, out: outside.append(out[..., ~torch.from_numpy(mask)]))
    net(planes)
    assert len(outside) == TINY.blocks
    assert all(not cells.any() for cells in outside)


def test_output_turns_with_nothing_but_the_position() -> None:
    """No layer mixes positions of a batch."""
    game = load_game("square8_2p")
    net = stirred(build(game, TINY, seed=1)).double()
    planes = torch.from_numpy(game.observe(sample_positions(game, 6))).double()
    together = net(planes).logits()
    for at in range(6):
        torch.testing.assert_close(net(planes[at : at + 1]).logits()[0], together[at])


def test_it_learns_by_heart() -> None:
    """Sixteen positions with random targets: a network that can be trained gets them right."""
    game = load_game("connect_four_2p")
    net = build(game, Preset(channels=16, blocks=2, neck=8, hidden=32), seed=1)
    planes = torch.from_numpy(game.observe(sample_positions(game, 16)))
    rng = np.random.default_rng(1)
    moves, values = (
        torch.from_numpy(rng.integers(0, 7, 16)),
        torch.from_numpy(rng.choice([-1.0, 1.0], 16)).float(),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(150):
        judged = net(planes)
        loss = functional.cross_entropy(judged.logits(), moves) + functional.mse_loss(
            judged.values[:, 0], values
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        judged = net(planes)
    distinct = len({p.tobytes() for p in planes.numpy()})
    assert (judged.logits().argmax(1) == moves).float().mean() >= (distinct - 1) / 16
    assert float((judged.values[:, 0] - values).abs().mean()) < 0.3


def test_presets_and_nonsense() -> None:
    game = load_game("square8_2p")
    sizes = [build(game, name, seed=1).parameter_count for name in PRESETS]
    assert sizes == sorted(sizes)
    assert sizes[0] < 150_000
    with pytest.raises(ConfigError, match="no preset 'huge'; there are small, medium, large"):
        architecture_for(game, "huge")
    record = architecture_for(game, "small").to_json()
    assert Architecture.from_json(record) == architecture_for(game, "small")
    with pytest.raises(ConfigError, match="channels"):
        Architecture.from_json(record | {"channels": 0})
    with pytest.raises(ConfigError, match="depth"):
        Architecture.from_json(record | {"depth": 3})
    with pytest.raises(ConfigError, match="transformer"):
        Architecture.from_json(record | {"kind": "transformer"})
