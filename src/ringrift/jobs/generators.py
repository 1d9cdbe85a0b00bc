"""Who judges positions in self-play: a model from a file. Apart from the job, since torch takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ringrift.games.contract import Game
from ringrift.network.devices import chosen_device
from ringrift.network.evaluator import NetEvaluator
from ringrift.network.storage import load_model
from ringrift.search.contract import Evaluator


def model_generator(
    path: Path,
    game: Game,
    *,
    threads: int,
    batch: int,
    device: str,
    before_batch: Callable[[], None] | None = None,
) -> tuple[Evaluator, str]:
    """The model in *path* and its digest; raises if it was made for another game."""
    torch.set_num_threads(threads)
    net, card = load_model(path, config=game.key)
    evaluator = NetEvaluator(net, game, batch=batch, device=chosen_device(device), before_batch=before_batch)
    return evaluator, card.sha256
