"""Where a network computes."""

from __future__ import annotations

import torch

from ringrift.errors import ConfigError


def chosen_device(wanted: str) -> str:
    """`cpu` or `cuda` for `auto`, `cpu` or `cuda`; raises `ConfigError` if there is no such thing here."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine has no GPU that PyTorch can use")
    return wanted
