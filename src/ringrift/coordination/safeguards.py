"""What tasks of this process pass before they start: its admission, its safeguards, the emergency stop."""

from __future__ import annotations

from functools import partial

import psutil

from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.queue_monitor import get_queue_monitor
from ringrift.coordination.stability_heuristic import get_threshold_manager
from ringrift.engine.blocking import blocking, run_blocking
from ringrift.engine.opening import engine_on_demand, shared_kv
from ringrift.engine.run_reports import reported_health
from ringrift.machine import read_resources
from ringrift.process import SingletonMixin, getter_of, process_scope
from ringrift.runtime import Runtime, system_runtime
from ringrift.status import HealthCheckResult, reported_by_store
from ringrift.work.admission import AdmissionSources, SpawnGate, TaskAdmission, limits_for_machine
from ringrift.work.limits import CoordinatorState, EmergencyNotice, EmergencyPlaces, EmergencyState

ANSWER_S = 10.0


class EmergencyStop(EmergencyState, SingletonMixin):
    """The emergency stop of *places*, or of this process's data folder."""

    def __init__(self, places: EmergencyPlaces | None = None, *, runtime: Runtime | None = None) -> None:
        here = EmergencyPlaces(get_settings().data_dir, shared_kv) if places is None else places
        super().__init__(here, runtime=runtime)


get_emergency_stop = getter_of("get_emergency_stop", EmergencyStop)


@blocking(timeout_s=ANSWER_S)
async def emergency_notice() -> EmergencyNotice | None:
    """Return why everything stands still; None when it does not. For code without a loop."""
    return await get_emergency_stop().notice()


@blocking(timeout_s=ANSWER_S)
async def turn_on_emergency_stop(reason: str) -> EmergencyNotice:
    return await get_emergency_stop().turn_on(reason)


@blocking(timeout_s=ANSWER_S)
async def clear_emergency_stop() -> EmergencyNotice | None:
    """Let work start again; return what was in force."""
    return await get_emergency_stop().clear()


def get_task_admission() -> TaskAdmission:
    """Return the admission of this process."""
    return process_scope().get(TaskAdmission, _admission_here)


def _admission_here() -> TaskAdmission:
    settings = get_settings()
    limits = limits_for_machine(psutil.cpu_count() or 1, spawns_per_minute=settings.spawns_per_minute)
    sources = AdmissionSources(
        engine=engine_on_demand,
        emergency=get_emergency_stop(),
        monitor=get_queue_monitor(),
        resources=partial(read_resources, settings.data_dir),
        runtime=system_runtime(),
    )
    made = TaskAdmission(sources, limits=limits)
    # Shown among the thresholds of this process, for others to see.
    get_threshold_manager().adopt(made.memory)
    return made


class Safeguards(SpawnGate, SingletonMixin):
    """What programs may start and the loop may order, by *admission* or that of this process."""

    def __init__(self, admission: TaskAdmission | None = None) -> None:
        super().__init__(get_task_admission() if admission is None else admission)

    @blocking(timeout_s=ANSWER_S)
    async def check_before_spawn(self, task_type: str, node_id: str = "") -> tuple[bool, str]:
        """`allow` for code without a loop."""
        return (await self.allow(task_type, node_id)).as_pair()

    @reported_by_store
    def health_check(self) -> HealthCheckResult:
        """What the process that asks them says of breakers, and what stands in the store for all."""
        notice = run_blocking(self._admission.state(), timeout_s=ANSWER_S)
        if notice.state is not CoordinatorState.RUNNING:
            why = f"{notice.state.value}: {notice.reason}" if notice.reason else notice.state.value
            return HealthCheckResult.degraded(why)
        return self._breakers()

    @reported_health
    def _breakers(self) -> HealthCheckResult:
        held = self._admission.open_breakers()
        well = HealthCheckResult.ok("", asked=self.asked, open_breakers=held)
        return well.or_degraded(f"held back after failures: {', '.join(held)}" if held else "")


get_safeguards = getter_of("get_safeguards", Safeguards)
reset_safeguards = Safeguards.reset_instance


def check_before_spawn(task_type: str, node_id: str = "") -> tuple[bool, str]:
    """Whether a task may start, and why not."""
    return get_safeguards().check_before_spawn(task_type, node_id)
