"""Bases of daemons that look at the configs of the run in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ringrift.events.routed_event import RouterEvent
from ringrift.events.router import get_router
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.signals_source import Situation, Situations, get_situations
from ringrift.process import process_scope
from ringrift.runtime import Runtime
from ringrift.work.stages import StageDaemon


class SituationDaemon(StageDaemon):
    """Looks at the configs of the run."""

    def __init__(
        self,
        name: str,
        *,
        interval_s: float,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
        situations: Situations | None = None,
    ) -> None:
        super().__init__(name, cycle_interval=interval_s, router=router, runtime=runtime)
        self.router = router or get_router()
        self._situations = situations or get_situations()


class AskedDaemon(SituationDaemon):
    """One that others in its process ask: the one that runs is the one they find."""

    async def _on_start(self) -> None:
        process_scope().put(type(self), self)

    async def _on_stop(self) -> None:
        if process_scope().peek(type(self)) is self:
            process_scope().drop(type(self))


class EvaluationWatcher(SituationDaemon):
    """Looks at each config now and then, and at once when it was evaluated; what for is `_look`."""

    @abstractmethod
    async def _look(self, situation: Situation) -> None: ...

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return {"EVALUATION_COMPLETED": self._on_evaluation}

    async def _on_evaluation(self, event: RouterEvent) -> None:
        situation = self._situations.get(str(event.payload.get("config_key")))
        if situation is not None:
            await self._look(situation)

    async def _run_cycle(self) -> None:
        for situation in self._situations.all().values():
            await self._look(situation)
