"""Whether the jobs can run at all: said before the run starts, not by its first failed job."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from ringrift.errors import ConfigError
from ringrift.settings import Settings

LIBRARIES = ("numpy", "numba", "torch", "safetensors")
OWN_KINDS = ("selfplay", "validate", "export", "train", "evaluate")


def check_learning_libraries(
    settings: Settings, *, is_there: Callable[[str], bool] = lambda name: find_spec(name) is not None
) -> None:
    """Raise `ConfigError` if a kind of job that is ours lacks what it imports."""
    ours = [kind for kind in OWN_KINDS if not settings.job(kind).command]
    missing = [name for name in LIBRARIES if ours and not is_there(name)]
    if missing:
        raise ConfigError(
            f"learning needs {', '.join(missing)}: pip install 'ringrift[train]', "
            f"or give {', '.join(ours)} commands of your own ([jobs.KIND] in ringrift.toml)"
        )
