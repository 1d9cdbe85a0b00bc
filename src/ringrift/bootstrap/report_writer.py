"""Writes what the objects of the control process say of themselves, every few seconds and as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from ringrift.bootstrap.system_health import SYSTEM_HEALTH, get_system_health
from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.ports import KeyValue
from ringrift.engine.run_reports import REPORT_KEY, ControlHere, RunReport, reported_getters
from ringrift.errors import RingRiftError
from ringrift.health.isolation import attempt
from ringrift.process import process_scope
from ringrift.runtime import Runtime
from ringrift.status import HealthCheckResult

log = structlog.get_logger()

EVERY_S = 5.0
END_S_MAX = 5.0


class ReportWriter:
    """Asks every object of this process what other processes may want to know of it."""

    def __init__(self, kv: KeyValue, runtime: Runtime) -> None:
        self._kv, self._runtime = kv, runtime
        self._things: dict[type[Any], Any] = {}
        process_scope().put(ControlHere, ControlHere())

    async def run(self) -> None:
        """Until cancelled. A store that is away is asked again; the lease sees to one that is not ours."""
        while True:
            try:
                await self.write()
            except RingRiftError as error:
                log.warning("control.report_unwritten", error=str(error))
            await self._runtime.sleep(EVERY_S)

    async def write(self, *, ended: bool = False) -> None:
        answers = await self._answers()
        report = RunReport(at_s=self._runtime.now_s(), ended=ended, answers=answers)
        await self._kv.put(REPORT_KEY, _encoded(report))

    async def end(self) -> None:
        """The last words, when everything has stopped."""
        try:
            async with asyncio.timeout(END_S_MAX):
                await self.write(ended=True)
        except (RingRiftError, TimeoutError) as error:
            log.warning("control.report_unwritten", error=str(error))
        finally:
            process_scope().drop(ControlHere)

    async def _answers(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        # Daemons leave the scope as they end, and their last numbers are to be told as well.
        self._things |= {type(thing): thing for thing in process_scope().instances()}
        for thing in self._things.values():
            for question in reported_getters(thing):
                if question.waits:
                    await asyncio.to_thread(self._ask, found, question.name, question.ask)
                else:
                    self._ask(found, question.name, question.ask)
            await self._runtime.sleep(0)  # the loop belongs to others as well
        # It asks coordinators that ask the store.
        await asyncio.to_thread(self._ask, found, SYSTEM_HEALTH, get_system_health)
        return found

    def _ask(self, found: dict[str, Any], name: str, getter: Callable[[], Any]) -> None:
        """What fails is left out; the log says why."""
        answer = attempt(f"report of {name}", getter)
        if answer.error is None:
            found[name] = _plain(answer.value)


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, HealthCheckResult) else value


def _encoded(report: RunReport) -> bytes:
    """As much of it as a record holds; the longest answers are left out first, and are unknown then."""
    answers = {name: msgspec.Raw(_json(value)) for name, value in report.answers.items()}
    while True:
        content = _json(msgspec.structs.replace(report, answers=answers))
        if len(content) <= VALUE_BYTES_MAX:
            return content
        longest = max(answers, key=lambda name: len(answers[name]))
        log.warning("control.report_shortened", left_out=longest, size_bytes=len(answers.pop(longest)))


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)
