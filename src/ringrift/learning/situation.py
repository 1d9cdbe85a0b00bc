"""Where coordinators and daemons look: the one state of the run, never a copy of their own.

Daemons and handlers act on the loop that runs in their process (`Situations`). Questions are answered the
same in every process (`RunAnswers`): by that loop where it runs, else from the facts in the store, folded as
the loop does and read again only when they have changed. Looking never makes a store where there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringrift.engine.blocking import blocking
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import Engine, KeyValue
from ringrift.errors import ConfigError
from ringrift.health.run_status import FACT_PREFIX, Curve, RunStatus, read_run_status
from ringrift.learning.facts.facts import RULES_TOPIC, AnyFact, JobIssued, Noted
from ringrift.learning.facts.ledger import known_configs, prefix_of, read_facts
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.facts.state import ConfigState, fold
from ringrift.learning.judging.feedback import Feedback, RatingCurves, config_view
from ringrift.learning.plan.rules import LearningRules, rules_of
from ringrift.work.shares import config_shares

CONFIGS_MAX = 1_000
ANSWER_S = 60.0  # a long history takes seconds to read


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
        self.engine: Engine | None = None  # with the token of the loop on every write


class StoredRun:
    """The run as its store tells it: what is asked of a controller, without one.

    A state that was handed out is never changed afterwards: another thread may still read it. Facts have one
    writer, and it is not this.
    """

    def __init__(self, states: dict[str, ConfigState]) -> None:
        self._states = states
        self.curves = RatingCurves()

    @property
    def rules(self) -> LearningRules:
        """The newest that the run has noted."""
        noted = [note for state in self._states.values() if (note := state.newest_note(RULES_TOPIC))]
        newest = max(noted, key=lambda note: note.at_s, default=None)
        return (None if newest is None else rules_of(newest)) or LearningRules()

    def configs(self) -> list[str]:
        return list(self._states)

    def state(self, config: str) -> ConfigState:
        if config not in self._states:
            raise ConfigError(f"{config} is not among the configs of this run: {', '.join(self._states)}")
        return self._states[config]

    def shares(self) -> dict[str, float]:
        return config_shares([config_view(state, self.curves) for state in self._states.values()])

    async def write(self, config: str, _fact: AnyFact) -> None:
        raise ConfigError(f"the loop of {config} runs in another process, and only that one writes its facts")

    async def take_in_done(self, config: str, issued: JobIssued) -> None:
        await self.write(config, issued)


class StoredRunReader:
    """Reads the store of a data folder, and keeps what it read until that changes.

    *engine* gives None where no run ever was.
    """

    def __init__(self, engine: Callable[[], Awaitable[Engine | None]]) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()  # of the one loop that blocking calls run on
        self._run: StoredRun | None = None
        self._revision = 0

    @blocking(timeout_s=ANSWER_S)
    async def read(self) -> StoredRun | None:
        """The run in the store as it is now; None if none was ever there. Waits for the store."""
        engine = await self._engine()
        if engine is None:
            return None
        async with self._turn:
            configs = await known_configs(engine.kv)
            revision, changed = await self._changed(engine.kv, configs)
            if self._run is None or changed or self._run.configs() != configs:
                known = (
                    {} if self._run is None else {name: self._run.state(name) for name in self._run.configs()}
                )
                states = {
                    config: known[config]
                    if config in known and config not in changed
                    else await _folded(engine.kv, config)
                    for config in configs
                }
                self._run = StoredRun(states)
            self._revision = revision
            return self._run

    async def _changed(self, kv: KeyValue, configs: Sequence[str]) -> tuple[int, set[str]]:
        """How far the store is, and the configs whose facts changed since it was last read."""
        revision, changed = self._revision, set[str]()
        while True:
            page = await kv.changes(FACT_PREFIX, after=revision)
            keys = [change.key for change in page.changes]
            changed |= {
                config for config in configs if any(key.startswith(prefix_of(config)) for key in keys)
            }
            revision = page.revision
            if page.complete:
                return revision, changed


async def _folded(kv: KeyValue, config: str) -> ConfigState:
    facts = await read_facts(kv, config)
    return await asyncio.to_thread(fold, config, facts, bucket_rules=BucketRules())


@dataclass(frozen=True, slots=True)
class Situation:
    """One config as the handles see it."""

    state: ConfigState
    curve: tuple[Curve, ...]
    share: float
    feedback: Feedback


class Situations:
    """Reads one loop, or the one that *run* has at the moment."""

    def __init__(self, loop: RunningLoop | None = None, *, run: OpenRun | None = None) -> None:
        self._given, self._open = loop, run or OpenRun()

    @property
    def loop(self) -> RunningLoop | None:
        """The controller, or None while no run is open in this process."""
        return self._given or self._open.loop

    @property
    def engine(self) -> Engine | None:
        """That of the run, to keep what the next process of it goes on from; None for a loop without one."""
        return self._open.engine

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


async def stored_status() -> RunStatus | None:
    """What the run in this data folder last said of itself; None if there was none. Makes no store."""
    engine = await existing_engine()
    return None if engine is None else await read_run_status(engine.kv)


class RunAnswers(Situations):
    """Answers questions about the run, whichever process it runs in. Asking may wait for the store."""

    def __init__(self, situations: Situations, stored: StoredRunReader) -> None:
        super().__init__()
        self._here, self._stored = situations, stored

    @property
    def loop(self) -> RunningLoop | None:
        return self._here.loop

    def run(self) -> RunningLoop | None:
        """The controller where it runs, what its store knows elsewhere; None if there never was a run."""
        return self._source()

    def states(self) -> list[ConfigState]:
        """What is known of each config; nothing if there never was a run."""
        run = self._source()
        return [] if run is None else [run.state(config) for config in run.configs()]

    def _source(self) -> RunningLoop | None:
        return self.loop or self._stored.read()


def _situation(loop: RunningLoop, config: str, shares: Mapping[str, float]) -> Situation:
    state = loop.state(config)
    curve = loop.curves.of(state)
    return Situation(state, curve, shares[config], loop.curves.feedback(state))
