"""All that a resume needs of a learner, as one sealed file of tensors with its facts in the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ringrift.errors import Corrupt
from ringrift.foreign_files.documents import parse_json
from ringrift.jobs.sealing import sealing
from ringrift.jobs.training.learner import Learner

FACTS = "facts"
_OPTIMISER = ("step", "exp_avg", "exp_avg_sq")
_ADVICE = "Remove it to start this training anew"


def learner_tensors(learner: Learner) -> dict[str, Tensor]:
    """Weights, averaged weights and the optimiser's moments, by name."""
    tensors = {f"net.{name}": value for name, value in learner.net.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in learner.average.items()}
    state = learner.optimiser.state_dict()["state"]
    for number, moments in state.items():
        tensors |= {f"optimiser.{number}.{name}": moments[name] for name in _OPTIMISER}
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def restore_learner(learner: Learner, tensors: Mapping[str, Tensor], *, steps: int) -> None:
    """Put a learner of the same architecture where the tensors were taken.

    Raises `RuntimeError`, `KeyError` or `ValueError` if they are another's.
    """
    learner.net.load_state_dict(_under("net.", tensors))
    average = _under("average.", tensors)
    for name, mean in learner.average.items():
        if average[name].shape != mean.shape:  # copying would repeat what is too short
            raise ValueError(f"the average of {name} has the shape {tuple(average[name].shape)}")
        mean.copy_(average[name])
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _under("optimiser.", tensors).items():
        number, _, which = name.partition(".")
        moments.setdefault(int(number), {})[which] = value
    state = learner.optimiser.state_dict()
    learner.optimiser.load_state_dict({**state, "state": moments})
    # The fused step walks weights and moments side by side in memory, so they must lie there alike.
    for weights, kept in learner.optimiser.state.items():
        for name in ("exp_avg", "exp_avg_sq"):
            if kept[name].shape != weights.shape:  # copying would repeat what is too short
                raise ValueError(
                    f"{name} has the shape {tuple(kept[name].shape)}, not {tuple(weights.shape)}"
                )
            kept[name] = torch.empty_like(weights).copy_(kept[name])
    learner.steps = steps


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replace the checkpoint at *path* at once."""
    content = save(dict(tensors), metadata={FACTS: json.dumps(facts)})
    with sealing(path) as part:
        part.write_bytes(content)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a checkpoint; raises `Corrupt` if it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = parse_json(file.metadata()[FACTS])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, KeyError, TypeError, ValueError) as fault:
        raise Corrupt(path, found=f"no checkpoint ({fault})", advice=_ADVICE) from fault
    if not isinstance(facts, dict):
        raise Corrupt(path, found="no checkpoint (its facts are no object)", advice=_ADVICE)
    return tensors, facts


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
