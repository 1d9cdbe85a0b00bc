"""What follows from a crash: the ledger decides, the breaker may delay, the world is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from ringrift.daemons.breaker import CascadeBreaker, Tripped
from ringrift.daemons.ledger import RestartLedger
from ringrift.daemons.planning import Ended
from ringrift.daemons.restarts import CRASH_LOOP_WINDOW_S, RestartVerdict
from ringrift.daemons.running import RunOutcome
from ringrift.daemons.types import DaemonManagerConfig, DaemonState, RestartTier
from ringrift.daemons.unit import Run, Unit
from ringrift.runtime import Runtime

log = structlog.get_logger()

SetState = Callable[[Unit, DaemonState, str], None]
Tell = Callable[[str, Unit | None, Mapping[str, Any]], None]


class CrashDesk:
    """The only code that schedules a restart."""

    def __init__(
        self,
        runtime: Runtime,
        config: DaemonManagerConfig,
        ledger: RestartLedger,
        breaker: CascadeBreaker,
        tell: Tell,
    ) -> None:
        self._runtime, self._config, self._ledger, self._tell = runtime, config, ledger, tell
        self.breaker = breaker

    def handle(self, unit: Unit, run: Run, outcome: RunOutcome, *, set_state: SetState) -> None:
        """Decide about the run that just crashed."""
        now_s, info = self._runtime.monotonic_s(), unit.info
        info.last_error, info.last_failure_time = outcome.error, self._runtime.now_s()
        # A loop that ends cancels everything on it: never answered at once, however long the run was.
        ran_s = 0.0 if outcome.cancelled else now_s - run.began_s
        log.warning(
            "daemons.crashed", daemon=unit.daemon_type.value, error=outcome.error, ran_s=round(ran_s, 3)
        )
        if outcome.import_failed:
            info.import_error = outcome.error
            self._give_up(unit, DaemonState.IMPORT_FAILED, outcome.error, set_state)
        elif not (info.auto_restart and self._config.auto_restart_failed):
            self._give_up(unit, DaemonState.FAILED, "restarts are off", set_state)
        else:
            verdict = self._ledger.crashed(unit.daemon_type, unit.policy, ran_s=ran_s, error=outcome.error)
            self._apply(unit, verdict, now_s=now_s, set_state=set_state)

    def _apply(self, unit: Unit, verdict: RestartVerdict, *, now_s: float, set_state: SetState) -> None:
        record = self._ledger.record(unit.daemon_type)
        unit.info.restart_count, unit.tier = record.restarts_in_a_row, verdict.tier
        if verdict.crash_loop:
            self._tell("DAEMON_CRASH_LOOP_DETECTED", unit, self._crash_loop(unit))
        if verdict.restart_after_s is None:
            self._give_up(unit, DaemonState.FAILED, verdict.reason, set_state)
            log.error("daemons.given_up", daemon=unit.daemon_type.value, reason=verdict.reason)
            payload = {"restart_count": record.total, "requires_intervention": True}
            self._tell("DAEMON_PERMANENTLY_FAILED", unit, {**payload, "reason": verdict.reason})
            return
        unit.ended, unit.restart_at_s = Ended.CRASHED, now_s + verdict.restart_after_s
        for tripped in self.breaker.record(unit.spec.category, now_s=now_s):
            self._tell("HEALTH_ALERT", None, _breaker_alert(tripped, now_s=now_s))
        degraded = verdict.tier is RestartTier.DEGRADED
        set_state(unit, DaemonState.DEGRADED if degraded else DaemonState.RESTARTING, verdict.reason)

    def _give_up(self, unit: Unit, state: DaemonState, reason: str, set_state: SetState) -> None:
        unit.ended, unit.restart_at_s = Ended.GIVEN_UP, None
        set_state(unit, state, reason)

    def _crash_loop(self, unit: Unit) -> dict[str, Any]:
        record = self._ledger.record(unit.daemon_type)
        return {
            "restart_count": record.within(CRASH_LOOP_WINDOW_S, now_s=self._runtime.now_s()),
            "window_minutes": int(CRASH_LOOP_WINDOW_S // 60),
            "max_restarts": unit.policy.max_restarts,
        }


def _breaker_alert(tripped: Tripped, *, now_s: float) -> dict[str, Any]:
    scope = "global" if tripped.category is None else tripped.category.value
    return {
        "alert_type": "global_breaker_tripped" if tripped.category is None else "category_breaker_tripped",
        "severity": "error",
        "message": f"{tripped.restarts} {scope} restarts; new ones wait {tripped.until_s - now_s:.0f} s",
        "details": {"category": scope, "restarts": tripped.restarts},
    }
