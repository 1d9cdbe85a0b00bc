"""Where a network computes."""

from __future__ import annotations

import torch

from ringrift.errors import ConfigError
from ringrift.network.gpu_use import gpu_use


def chosen_device(wanted: str) -> str:
    """`cpu` or `cuda` for `auto`, `cpu` or `cuda`; raises `ConfigError` if there is no such thing here.

    A GPU counts as used from here on.
    """
    there = wanted != "cpu" and torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ConfigError("--device cuda: this machine has no GPU that PyTorch can use")
    if there:
        gpu_use().begin()
    return "cuda" if there else "cpu"
