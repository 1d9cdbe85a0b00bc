"""Where the faces of feedback and quality look: the one state of the run, never a copy of their own.

Daemons and handlers act on the loop that runs in their process (`Situations`). Questions are answered the
same in every process (`RunAnswers`): by that loop where it runs, else from the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ringrift.learning.facts import AnyFact, JobIssued, Noted
from ringrift.learning.feedback_rules import Feedback
from ringrift.learning.rules import LearningRules
from ringrift.learning.run_status import Curve
from ringrift.learning.state import ConfigState
from ringrift.learning.stored_run import get_stored_run_reader
from ringrift.learning.trends_curves import RatingCurves
from ringrift.process import process_scope

CONFIGS_MAX = 1_000


class RunningLoop(Protocol):
    """What is asked of the controller."""

    @property
    def rules(self) -> LearningRules: ...

    @property
    def curves(self) -> RatingCurves: ...

    def configs(self) -> list[str]: ...

    def state(self, config: str) -> ConfigState: ...

    def shares(self) -> dict[str, float]: ...

    async def write(self, config: str, fact: AnyFact) -> None: ...

    async def take_in_done(self, config: str, issued: JobIssued) -> None: ...


class OpenRun:
    """The loop that runs in this process, if one does. Whoever runs it says so here."""

    def __init__(self) -> None:
        self.loop: RunningLoop | None = None


def get_open_run() -> OpenRun:
    return process_scope().get(OpenRun, OpenRun)


@dataclass(frozen=True, slots=True)
class Situation:
    """One config as the faces see it."""

    state: ConfigState
    curve: tuple[Curve, ...]
    share: float
    feedback: Feedback


class Situations:
    """Reads the loop of this process."""

    def __init__(self, loop: RunningLoop | None = None) -> None:
        self._given = loop

    @property
    def loop(self) -> RunningLoop | None:
        """The controller, or None while no run is open in this process."""
        return self._given or get_open_run().loop

    def _source(self) -> RunningLoop | None:
        return self.loop

    def all(self) -> Mapping[str, Situation]:
        loop = self._source()
        if loop is None:
            return {}
        shares = loop.shares()
        return {config: _situation(loop, config, shares) for config in loop.configs()[:CONFIGS_MAX]}

    def get(self, config: str) -> Situation | None:
        loop = self._source()
        if loop is None or config not in loop.configs():
            return None
        return _situation(loop, config, loop.shares())

    async def note(self, config: str, topic: str, text: str, **details: object) -> bool:
        """Write a finding into the facts of *config*, so that plans see it; False if no run is open."""
        loop = self.loop
        if loop is None or config not in loop.configs():
            return False
        at_s = loop.state(config).last_s
        await loop.write(config, Noted(at_s=at_s, topic=topic, text=text, details=details))
        return True


class RunAnswers(Situations):
    """Answers questions about the run, whichever process it runs in. Asking may wait for the store."""

    def __init__(self, situations: Situations | None = None) -> None:
        super().__init__()
        self._here = situations or get_situations()

    @property
    def loop(self) -> RunningLoop | None:
        return self._here.loop

    def run(self) -> RunningLoop | None:
        """The controller where it runs, what its store knows elsewhere; None if there never was a run."""
        return self._source()

    def _source(self) -> RunningLoop | None:
        return self.loop or get_stored_run_reader().read()


def _situation(loop: RunningLoop, config: str, shares: Mapping[str, float]) -> Situation:
    state = loop.state(config)
    curve = loop.curves.of(state)
    return Situation(state, curve, shares[config], loop.curves.feedback(state))


def get_situations() -> Situations:
    return process_scope().get(Situations, Situations)
