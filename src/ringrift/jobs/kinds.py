"""The kinds of jobs there are; a kind's module is imported only when it runs, since some need torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from ringrift.errors import ConfigError

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
EXTRAS = {"tune": "tune,train"}  # what a kind needs beyond the learner


def job_main(kind: str) -> Callable[[Sequence[str]], int]:
    """The entry point of a kind: takes the arguments after its name, returns the exit code."""
    if kind not in KINDS:
        raise ConfigError(f"there is no job {kind!r}; there are {', '.join(KINDS)}")
    try:
        main: Callable[[Sequence[str]], int] = importlib.import_module(f"ringrift.jobs.{kind}").main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "ringrift":
            raise
        extra = EXTRAS.get(kind, "train")
        raise ConfigError(f"{kind} needs {error.name}: pip install 'ringrift[{extra}]'") from None
    return main
