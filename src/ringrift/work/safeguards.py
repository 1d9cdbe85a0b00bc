"""The last gate before anything starts: emergency stop, breakers, rates, limits, resources, in that order."""

from __future__ import annotations

from typing import Any

from ringrift.engine.arguments import check_part
from ringrift.engine.blocking import run_blocking
from ringrift.engine.run_reports import reported
from ringrift.process import SingletonMixin
from ringrift.work.limits import SpawnVerdict
from ringrift.work.limits_checks import LOOP_ORDER, SAFEGUARD_ORDER, Check, judge
from ringrift.work.task_admission import TaskAdmission, get_task_admission
from ringrift.work.task_types import task_type_of

ANSWER_S = 10.0


class Safeguards(SingletonMixin):
    """Says whether a kind of work may start on a node. Every no has a reason and a time to ask again."""

    def __init__(self, admission: TaskAdmission | None = None) -> None:
        self._admission = get_task_admission() if admission is None else admission
        check_part("admission", self._admission, TaskAdmission)
        self.asked = 0
        self.refused: dict[str, int] = {}  # by check

    async def allow(self, kind: str, node: str = "") -> SpawnVerdict:
        """Whether work of *kind* (a job kind or a task type) may start on *node* now."""
        return await self._judge(kind, node, SAFEGUARD_ORDER)

    async def may_order(self, kind: str, node: str = "") -> SpawnVerdict:
        """Whether the loop may order work of *kind*: an emergency, a pause, a full disk hold it."""
        return await self._judge(kind, node, LOOP_ORDER)

    async def throttle(self, kind: str) -> float:
        """The part of full speed that backpressure leaves to work of *kind*."""
        question = await self._admission.question(task_type_of(kind), "", for_safeguards=True)
        return question.backpressure.throttle_factor

    async def _judge(self, kind: str, node: str, order: tuple[Check, ...]) -> SpawnVerdict:
        question = await self._admission.question(task_type_of(kind), node, for_safeguards=True)
        verdict = judge(question, self._admission.limits, order)
        self.asked += 1
        if not verdict.ok:
            self.refused[verdict.check] = self.refused.get(verdict.check, 0) + 1
        return verdict

    def started(self, kind: str, node: str = "") -> None:
        """Count a start against the rates."""
        self._admission.started(task_type_of(kind), node)

    def succeeded(self, kind: str, node: str = "") -> None:
        self._admission.succeeded(task_type_of(kind), node)

    async def failed(self, kind: str, node: str, reason: str) -> None:
        """Count a failure. One that says that memory ran out turns the emergency stop on."""
        await self._admission.failed(task_type_of(kind), node, reason)

    def check_before_spawn(self, task_type: str, node_id: str = "") -> tuple[bool, str]:
        """`allow` for code without a loop."""
        return run_blocking(self.allow(task_type, node_id), timeout_s=ANSWER_S).as_pair()

    @property
    def works_here(self) -> bool:
        return self.asked > 0

    @reported
    def get_stats(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "refused": dict(self.refused),
            "open_breakers": self._admission.open_breakers(),
        }


def get_safeguards() -> Safeguards:
    """Return the safeguards of this process."""
    return Safeguards.get_instance()


reset_safeguards = Safeguards.reset_instance


def check_before_spawn(task_type: str, node_id: str = "") -> tuple[bool, str]:
    """Whether a task may start, and why not."""
    return get_safeguards().check_before_spawn(task_type, node_id)
