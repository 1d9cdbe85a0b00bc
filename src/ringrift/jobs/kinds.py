"""What everybody may know of jobs without loading one: the kinds that there are, how one is run, and what the
exit codes mean.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum

from ringrift.errors import ConfigError, Conflict, Corrupt, RingRiftError, Unavailable

KINDS = {
    "selfplay": "play games with search and write them as sealed shards",
    "validate": "replay shards by the rules, score quality, say why games are refused",
    "export": "turn validated shards into training samples (NPZ)",
    "train": "train a network from samples, from nothing or from a parent",
    "evaluate": "play a candidate against an opponent until a sequential test decides",
    "tournament": "play every pairing of several players",
    "tune": "search for better heuristic weights, training parameters or network sizes",
    "diagnose": "examine a game, a network and their data, and say what is wrong",
    "recompute": "search recorded moves again and compare them with the record",
    "consolidate": "merge small shards into a large one, every game once",
    "play": "play a model or watch a game in the terminal",
}
# Where each kind is; imported only when one runs, since some need torch.
_MODULES = {
    "selfplay": "ringrift.jobs.selfplay.selfplay",
    "validate": "ringrift.jobs.shards.validate",
    "export": "ringrift.jobs.samples.export",
    "train": "ringrift.jobs.training.train",
    "evaluate": "ringrift.jobs.evaluation.evaluate",
    "tournament": "ringrift.jobs.evaluation.tournament",
    "tune": "ringrift.jobs.tuning.tune",
    "diagnose": "ringrift.jobs.diagnosis.diagnose",
    "recompute": "ringrift.jobs.selfplay.recompute",
    "consolidate": "ringrift.jobs.shards.consolidate",
    "play": "ringrift.jobs.play",
}
EXTRAS = {"tune": "tune,train"}  # what a kind needs beyond the learner


def job_main(kind: str) -> Callable[[Sequence[str]], int]:
    """The entry point of a kind: takes the arguments after its name, returns the exit code."""
    if kind not in KINDS:
        raise ConfigError(f"there is no job {kind!r}; there are {', '.join(KINDS)}")
    try:
        main: Callable[[Sequence[str]], int] = importlib.import_module(_MODULES[kind]).main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "ringrift":
            raise
        extra = EXTRAS.get(kind, "train")
        raise ConfigError(f"{kind} needs {error.name}: pip install 'ringrift[{extra}]'") from None
    return main


# What the exit code of a job means; whoever started the job branches on it.


class ExitCode(IntEnum):
    """Codes of `python -m ringrift.jobs`."""

    DONE = 0  # everything asked for is done and sealed
    CRASHED = 1  # a fault of the program; the traceback is on stderr
    WRONG_INPUT = 2  # parameters or paths that can never work
    STOPPED = 3  # asked to stop; what was done is sealed, the same command continues
    DATA_REFUSED = 4  # some data failed its check; the result says which and why
    UNAVAILABLE = 5  # no space, no right to write: may pass by itself

    @property
    def status(self) -> str:
        """The word for it in the result line."""
        return self.name.lower()


def exit_code_of(error: RingRiftError) -> ExitCode:
    if isinstance(error, Corrupt):
        return ExitCode.DATA_REFUSED
    if isinstance(error, Unavailable | Conflict):
        return ExitCode.UNAVAILABLE
    return ExitCode.WRONG_INPUT


# One job, by its command line.


GC_OBJECTS = 50_000  # made beyond those that went, between two looks for cycles
EXIT_INTERRUPTED = 130  # as shells report a program that Ctrl-C ended


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, KINDS))
        lines = [f"  {kind:<{width}}  {summary}" for kind, summary in KINDS.items()]
        sys.stdout.write("Jobs (`KIND --help` for the parameters of one):\n" + "\n".join(lines) + "\n")
        return ExitCode.DONE
    one_thread_per_process()
    collect_rarely()
    try:
        run = job_main(argv[0])
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.WRONG_INPUT
    return run(argv[1:])


def one_thread_per_process() -> None:
    """Read by the libraries that compute when they are loaded; jobs share the cores by processes."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def collect_rarely() -> None:
    """Jobs go through rows by the million and leave no cycles: looking for them took a seventh of a check."""
    gc.set_threshold(GC_OBJECTS, *gc.get_threshold()[1:])


def leave(code: int) -> None:
    """End at once: what a job made is on disk, and unloading libraries takes seconds on a busy machine."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
