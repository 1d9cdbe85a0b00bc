"""Reading off how the daemons are. Safe from any thread: it only looks.

The manager of a process that runs no daemons answers for the run in its data folder: what the manager of the
control process last said of itself. Where no run ever was, every daemon is known to be stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ringrift.daemons import reports
from ringrift.daemons.ledger import RestartLedger
from ringrift.daemons.loop_watchdog import LoopWatchdog
from ringrift.daemons.outbox import Outbox
from ringrift.daemons.planning import Phase
from ringrift.daemons.supervisor import Supervisor
from ringrift.daemons.types import DaemonState, DaemonType
from ringrift.daemons.unit import Unit
from ringrift.engine.opening import has_store
from ringrift.engine.run_reports import answers_here, reported, reported_health
from ringrift.errors import ConfigError
from ringrift.runtime import Runtime
from ringrift.status import CoordinatorStatus, HealthCheckResult


class DaemonReader:
    """The questions that a daemon manager answers."""

    def __init__(
        self,
        *,
        supervisor: Supervisor,
        ledger: RestartLedger,
        runtime: Runtime,
        watchdog: LoopWatchdog,
        outbox: Outbox,
    ) -> None:
        self._supervisor, self._ledger, self._runtime = supervisor, ledger, runtime
        self._outbox, self.watchdog = outbox, watchdog
        self._running, self._started_s = False, 0.0
        self._was_opened = False

    @property
    def supervisor(self) -> Supervisor:
        return self._supervisor

    def why(self, daemon_type: DaemonType) -> str:
        """Say why a daemon is not up; empty when it is."""
        if daemon_type not in self._supervisor.units:
            return f"{daemon_type} is not registered"
        return self._supervisor.why(daemon_type)

    def why_resting(self, daemon_type: DaemonType, *reasons: str) -> str:
        """Which of *reasons* keep a daemon from working now, with their causes; empty if none does."""
        unit = self._supervisor.units.get(daemon_type)
        return "" if unit is None else unit.why_resting(*reasons)

    @property
    def works_here(self) -> bool:
        """Whether this manager runs daemons, or nobody ever did in this data folder."""
        return self._was_opened or not has_store()

    def is_running(self, daemon_type: DaemonType) -> bool:
        if not answers_here(self):
            row = self.status_document()["daemons"].get(str(daemon_type), {})
            return bool(row.get("state") == DaemonState.RUNNING)
        unit = self._supervisor.units.get(daemon_type)
        return unit is not None and unit.info.state is DaemonState.RUNNING

    def get_status(self) -> reports.DaemonStatus:
        """Return all daemons, by type and as a plain document; of those nobody tells of, only the latter."""
        infos, document = reports.copies(self._units()), self.status_document()
        if not answers_here(self):
            infos = reports.as_told(infos, document["daemons"], self._runtime.now_s())
        return reports.DaemonStatus(infos, document)

    @reported
    def status_document(self) -> dict[str, Any]:
        """Return all daemons as a plain document."""
        units = self._units()
        document = reports.status_document(units, running=self._running, uptimes=self._uptimes())
        document["circuit_breaker"] = self._supervisor.breaker_status()
        document["loop"] = self.watchdog.status()
        return document

    def get_all_daemon_health(self) -> dict[DaemonType, dict[str, Any]]:
        """Return the health of every daemon."""
        found = self._health_document()
        return {t: found[t.value] for t in self._units() if t.value in found}

    @reported
    def _health_document(self) -> dict[str, Any]:
        units = self._units().items()
        return {t.value: reports.daemon_health(unit, why_down=self._supervisor.why(t)) for t, unit in units}

    def get_failed_daemons(self) -> list[tuple[DaemonType, str]]:
        """Return the daemons that stay down, with their errors."""
        if not answers_here(self):
            infos = self.get_status().items()
            return [(t, info.last_error or "") for t, info in infos if info.state in reports.DOWN_FOR_GOOD]
        units = self._units().items()
        return [
            (t, unit.info.last_error or "") for t, unit in units if unit.info.state in reports.DOWN_FOR_GOOD
        ]

    def liveness_probe(self) -> reports.ProbeReport:
        """True while every critical daemon that ought to run does; indexable either way."""
        return reports.ProbeReport("alive", self._liveness())

    @reported
    def _liveness(self) -> dict[str, Any]:
        down = [
            unit.daemon_type.value
            for unit in self._expected()
            if unit.spec.critical and reports.is_down(unit)
        ]
        values = {"alive": not down, "timestamp": self._runtime.now_s(), "uptime_seconds": self._uptime_s()}
        return {**values, "down": down}

    def readiness_probe(self, required: Iterable[DaemonType] | None = None) -> reports.ProbeReport:
        """True once everything that ought to run (or *required*) does."""
        if isinstance(required, str):
            raise ConfigError(f"required is {required!r}; it must be several daemon types, in a list")
        return reports.ProbeReport("ready", self._readiness() if required is None else self._ready(required))

    @reported
    def _readiness(self) -> dict[str, Any]:
        return self._ready([unit.daemon_type for unit in self._expected()])

    def _ready(self, required: Iterable[DaemonType]) -> dict[str, Any]:
        asked, here = list(required), answers_here(self)
        missing = [str(daemon_type) for daemon_type in asked if not self.is_running(daemon_type)]
        reason = ""
        if here and not self._running:
            reason = "the daemon manager is not started"
        elif not asked:
            reason = "there are no daemons to run"
        elif missing:
            reason = f"not running: {', '.join(missing)}"
        running = [t.value for t in self._units() if self.is_running(t)]
        failed = [daemon_type.value for daemon_type, _ in self.get_failed_daemons()]
        values = {"ready": not reason, "timestamp": self._runtime.now_s(), "reason": reason}
        counts = {"running_count": len(running), "failed_count": len(failed)}
        return {**values, **counts, "running": running, "failed": failed}

    def health_summary(self) -> dict[str, Any]:
        """Return the share of daemons that are up, with both probes."""
        return {
            **self._shares(),
            "daemons": {t.value: health for t, health in self.get_all_daemon_health().items()},
            "liveness": self.liveness_probe(),
            "readiness": self.readiness_probe(),
        }

    @reported
    def _shares(self) -> dict[str, Any]:
        wanted = self._expected()
        up = sum(1 for unit in wanted if unit.phase is Phase.UP)
        score = up / len(wanted) if wanted else 0.0
        return {
            "status": "healthy" if score >= 0.9 else "degraded" if score >= 0.5 else "unhealthy",
            "score": score,
            "running": up,
            "failed": len(self.get_failed_daemons()),
            "total": len(wanted),
            "timestamp": self._runtime.now_s(),
        }

    @reported
    def get_lifecycle_summary(self) -> dict[str, Any]:
        """Return uptimes and restarts in a few numbers."""
        restarts = sum(self._ledger.record(t).total for t in self._units())
        uptimes, uptime_s = self._uptimes(), self._uptime_s()
        return reports.lifecycle_summary(self._units(), uptimes, uptime_s=uptime_s, restarts=restarts)

    @reported_health
    def health_check(self) -> HealthCheckResult:
        """Healthy while running and fewer than a fifth of the wanted daemons are down for good."""
        wanted, failed = self._expected(), self.get_failed_daemons()
        details = {
            "running": self._running,
            "daemons_total": len(wanted),
            "daemons_running": sum(1 for unit in wanted if unit.phase is Phase.UP),
            "daemons_failed": len(failed),
            "uptime_seconds": self._uptime_s(),
            "leaked": [t.value for t, unit in self._units().items() if unit.info.leaked],
            "loop": self.watchdog.status(),
            "events_dropped": self._outbox.dropped,
        }
        if not self._running:
            return HealthCheckResult(False, CoordinatorStatus.STOPPED, "not running", details)
        if failed and len(failed) >= max(1, 0.2 * len(wanted)):
            return HealthCheckResult(
                True, CoordinatorStatus.DEGRADED, f"{len(failed)} daemons failed", details
            )
        return HealthCheckResult(True, CoordinatorStatus.RUNNING, "", details)

    def _units(self) -> dict[DaemonType, Unit]:
        """The daemons of this moment; the loop may register more while another thread reads."""
        return self._supervisor.units.copy()

    def _expected(self) -> list[Unit]:
        return [unit for unit in self._units().values() if reports.expected(unit)]

    def _uptimes(self) -> dict[DaemonType, float]:
        now_s = self._runtime.now_s()
        return {daemon_type: unit.info.uptime_at(now_s) for daemon_type, unit in self._units().items()}

    def _uptime_s(self) -> float:
        return self._runtime.monotonic_s() - self._started_s if self._running else 0.0
