"""The loop of this process, and the bases of coordinators and daemons that look at it and listen."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from ringrift.coordination.event_router import get_router
from ringrift.coordination.handler_base import HandlerBase, HearingCoordinator
from ringrift.engine.opening import existing_engine
from ringrift.engine.ports import Engine
from ringrift.engine.records import KvRecords
from ringrift.engine.run_reports import reported
from ringrift.events.event import Announcement, EventSource, RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.facts.ledger import quoted
from ringrift.learning.plan.stages import LoopWaker, StageMembers
from ringrift.learning.situation import OpenRun, RunAnswers, Situation, Situations, StoredRunReader
from ringrift.process import getter_of, process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.coordinator import heard_by

# What this process has of the loop: one object of each kind.


get_loop_waker = getter_of("get_loop_waker", LoopWaker)


def get_stage_members() -> StageMembers:
    return process_scope().get(StageMembers, lambda: StageMembers(waker=get_loop_waker()))


get_open_run = getter_of("get_open_run", OpenRun)


def get_situations() -> Situations:
    """Return what reads the loop of this process."""
    return process_scope().get(Situations, lambda: Situations(run=get_open_run()))


def answers_of(situations: Situations | None = None) -> RunAnswers:
    """Answer from *situations*, or the loop of this process; where none runs, from the store."""
    stored = process_scope().get(StoredRunReader, lambda: StoredRunReader(existing_engine))
    return RunAnswers(situations or get_situations(), stored)


# A coordinator that hears the events of a component and is wired once.


class ListeningCoordinator(HearingCoordinator):
    """Subscribes to the events of its component; what it makes of one is `_on_event`."""

    component: ClassVar[str]
    emits: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
    ) -> None:
        super().__init__(self.component, router=router)
        self._runtime = runtime or system_runtime()
        self._situations = situations or get_situations()
        # Knows a run of another process, too, from the store; `_situations` is of this process alone.
        self._answers = answers_of(self._situations)
        self.events_heard: Counter[str] = Counter()
        self.events_reported: Counter[str] = Counter()
        self._set_up()

    def _set_up(self) -> None:
        """Make what it remembers from one event to the next."""

    def hears(self) -> tuple[str, ...]:
        return heard_by(self.component)

    def _hears(self) -> Mapping[str, Callback]:
        return dict.fromkeys(self.hears(), self._heard)

    # --- events ---------------------------------------------------------------------------------------------

    async def _heard(self, event: RouterEvent) -> None:
        if self._is_own(event):
            return
        self.events_heard[event.event_type] += 1
        await self._on_event(event.event_type, event.payload)

    def _is_own(self, event: RouterEvent) -> bool:
        """What it said itself comes back; what its like in another process said is news."""
        return event.source == self.name and event.origin is not EventSource.CROSS_PROCESS

    @abstractmethod
    async def _on_event(self, event_type: str, payload: Mapping[str, Any], /) -> None:
        """Do what the event asks for."""

    async def tell(self, events: list[Announcement]) -> None:
        for name, payload in events:
            self.events_reported[name] += 1
            await self.router.publish(name, payload, self.name)

    # --- what it says about itself --------------------------------------------------------------------

    @reported
    def get_metrics(self) -> dict[str, Any]:
        return {
            "events_heard": self.events_heard.total(),
            "events_told": self.events_reported.total(),
            "run_open": self._situations.loop is not None,
        }

    @reported
    def get_status(self) -> dict[str, Any]:
        events = {"heard": dict(self.events_heard), "told": dict(self.events_reported)}
        return {**self._life(), **events, **self.get_metrics()}


# Bases of daemons that look at the configs of the run in this process.


SAID = "learning/said/"
T = TypeVar("T")


class StageDaemon(HandlerBase):
    """A daemon that plans a stage of the loop, or an input of its plan, for as long as it runs."""

    plans_as: str = ""  # the name of its type; empty: it plans nothing

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        if not self.plans_as:
            await super().run(on_ready=on_ready)
            return
        joined = False

        def ready() -> None:
            nonlocal joined
            get_stage_members().join(self.plans_as)
            joined = True
            if on_ready is not None:
                on_ready()

        try:
            await super().run(on_ready=ready)
        finally:
            if joined:
                get_stage_members().leave(self.plans_as)


class SituationDaemon(StageDaemon):
    """Looks at the configs of the run, each in turn, at an interval; its name is that of its type."""

    interval_s: ClassVar[float]

    def __init__(
        self,
        *,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
        interval_s: float | None = None,
    ) -> None:
        interval = self.interval_s if interval_s is None else interval_s
        super().__init__(self.plans_as, cycle_interval=interval, router=router, runtime=runtime)
        self.router = router or get_router()
        self._situations = situations or get_situations()
        self._set_up()

    def _set_up(self) -> None:
        """Make what it remembers from one look to the next."""

    @abstractmethod
    async def _look(self, situation: Situation, /) -> None:
        """Do what is to be done about one config."""

    async def _look_at(self, config: object) -> None:
        """Look at what an event names, if that is a config of the run."""
        if (situation := self._situations.get(str(config))) is not None:
            await self._look(situation)

    async def _run_cycle(self) -> None:
        for situation in self._situations.all().values():
            await self._look(situation)

    async def tell(self, events: Iterable[Announcement]) -> None:
        for name, payload in events:
            await self.router.publish(name, payload, self.name)


class LastSaid(Generic[T]):
    """What a daemon said last of each config, *nothing* at first.

    Kept in the store of the run: a start is no change, and what changed while the daemon was away is one.
    """

    def __init__(self, situations: Situations, daemon: str, kind: type[T], nothing: T) -> None:
        self._situations, self._daemon, self._kind, self._nothing = situations, daemon, kind, nothing
        self.known: dict[str, T] = {}

    async def of(self, config: str) -> T:
        if config not in self.known:
            engine = self._situations.engine
            found = None if engine is None else await self._records(engine).get(quoted(config))
            # Somebody may have said something new while this waited.
            self.known.setdefault(config, self._nothing if found is None else found)
        return self.known[config]

    async def keep(self, config: str) -> None:
        """To be called when it is said: whoever is killed in between says it again."""
        if (engine := self._situations.engine) is not None:
            await self._records(engine).put(quoted(config), self.known[config])

    def _records(self, engine: Engine) -> KvRecords[T]:
        return KvRecords(engine.kv, f"{SAID}{self._daemon}/", self._kind)


class AskedDaemon(SituationDaemon):
    """One that others ask: in its process they find the one that runs, and anywhere what a run decided."""

    @cached_property
    def _answers(self) -> RunAnswers:
        """Of a run in another process, too, from the store; `_situations` is of this process alone."""
        return answers_of(self._situations)

    async def _on_start(self) -> None:
        process_scope().put(type(self), self)

    async def _on_stop(self) -> None:
        # Another one may have been started since; that one stays.
        if process_scope().peek(type(self)) is self:
            process_scope().drop(type(self))


class EvaluationWatcher(SituationDaemon):
    """Looks at each config now and then, and at once when it was evaluated."""

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"EVALUATION_COMPLETED": self._on_evaluation}

    async def _on_evaluation(self, event: RouterEvent) -> None:
        await self._look_at(event.payload.get("config_key"))
