"""What a run was asked to do, and what it does where nothing was asked.

`ringrift run` hands its options to the control process, which settles them once its engine is open, because
a run that goes on does so with the configs it had.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import psutil

from ringrift.coordination.coordinator_config import get_settings
from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError
from ringrift.health.run_status import RunChoice, read_run_choice, write_run_choice
from ringrift.learning.plan.rules import configured_rules
from ringrift.process import process_scope
from ringrift.settings import Settings
from ringrift.work.shares import check_config, known_configs

DEFAULT_CONFIGS = ("square8_2p",)
WORKERS_MAX = 1024
WORKER_MEMORY_BYTES = 1_500_000_000  # a training job with its batch and the libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What was asked; None leaves the choice to the run."""

    configs: tuple[str, ...] | None = None
    workers: int | None = None
    open_browser: bool = False
    begin_anew: bool = False  # set aside what a run left in the folder


async def settle_run_options(kv: KeyValue, asked: RunOptions) -> RunChoice:
    """Choose what was left open, remember the configs for the next start, and tell this process."""
    configs, configs_why = asked.configs, "as asked"
    if configs is None:
        before = await read_run_choice(kv)
        configs, configs_why = (
            (DEFAULT_CONFIGS, "the default") if before is None else (before.configs, "as before")
        )
    configured_rules(get_settings()).check_configs(configs)
    workers, workers_why = asked.workers, "as asked"
    if workers is None:
        workers, workers_why = default_workers()
    choice = RunChoice(configs=configs, workers=workers, configs_why=configs_why, workers_why=workers_why)
    await write_run_choice(kv, choice)
    process_scope().put(RunChoice, choice)
    return choice


def current_choice() -> RunChoice | None:
    """What the run of this process does, once it is settled."""
    return process_scope().peek(RunChoice)


def default_workers() -> tuple[int, str]:
    """One a core, as far as the memory goes."""
    cores = len(os.sched_getaffinity(0))
    room = int(psutil.virtual_memory().total // WORKER_MEMORY_BYTES)
    # A job that is killed for its memory costs more than a core that waits.
    if room < cores:
        return max(1, room), "as many as the memory holds"
    return max(1, cores), "one a core"


def parse_configs(text: str) -> tuple[str, ...]:
    """Split `a,b,c`; raises `ConfigError` for what can be no config, and says what can."""
    keys = tuple(dict.fromkeys(key.strip() for key in _split(text) if key.strip()))
    if not keys:
        raise ConfigError(f"no config is named in {text!r}; {known_configs()}")
    for key in keys:
        check_config(key)
    return keys


def parse_workers(count: int) -> int:
    if not 0 <= count <= WORKERS_MAX:
        raise ConfigError(f"--workers is {count}; it must be from 0 to {WORKERS_MAX}")
    return count


def _split(text: str) -> list[str]:
    """At the commas outside of brackets: an OpenSpiel game has its parameters in them."""
    return re.split(r",(?![^()]*\))", text)


# Whether the jobs can run at all: said before the run starts, not by its first failed job.


LIBRARIES = ("numpy", "numba", "torch", "safetensors")
OWN_KINDS = ("selfplay", "validate", "export", "train", "evaluate")


def check_learning_libraries(
    settings: Settings,
    *,
    workers: int | None = None,
    is_there: Callable[[str], bool] = lambda name: find_spec(name) is not None,
) -> None:
    """Raise `ConfigError` if a kind of job that is ours lacks what it imports; with 0 *workers* none is."""
    ours = [kind for kind in OWN_KINDS if workers != 0 and not settings.job(kind).command]
    missing = [name for name in LIBRARIES if ours and not is_there(name)]
    if missing:
        raise ConfigError(
            f"learning needs {', '.join(missing)}: pip install 'ringrift[train]', "
            f"or give {', '.join(ours)} commands of your own ([jobs.KIND] in ringrift.toml)"
        )
