"""What is wrong with a run and what to do about it, in plain words, from what the control side knows.

`examine` is pure: it looks at the state of every config and at what surrounds them, and never at a game or a
network. Those are examined by the job `diagnose`, whose findings come in with the surroundings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ringrift.learning import doctor_data, doctor_learning, doctor_running
from ringrift.learning.doctor_findings import Ailment, Finding, Level, Ward
from ringrift.learning.state import ConfigState

Check = Callable[[ConfigState, Ward], Iterator[Ailment]]

# Every check by its name, in the order in which a person would ask.
CONFIG_CHECKS: dict[str, Check] = {
    "hold_out": doctor_learning.hold_out,
    "calibration": doctor_learning.calibration,
    "losses": doctor_learning.losses,
    "ratio": doctor_learning.ratio,
    "canary": doctor_learning.canary,
    "duplicates": doctor_data.duplicates,
    "cut_off": doctor_data.cut_off,
    "draws": doctor_data.draws,
    "refusals": doctor_data.refusals,
    "search_budget": doctor_data.search_budget,
    "worker_refusals": doctor_data.worker_refusals,
    "comparisons": doctor_data.comparisons,
    "breakers": doctor_running.breakers,
    "starving": doctor_running.starving,
    "paused": doctor_running.paused,
    "training_slot": doctor_running.training_slot,
}
RUN_CHECKS: dict[str, Callable[[Ward], Iterator[Ailment]]] = {
    "run_paused": doctor_running.run_paused,
    "workers": doctor_running.workers,
    "disk": doctor_running.disk,
    "clock": doctor_running.clock,
    "files": doctor_running.files,
}


def examine(states: Sequence[ConfigState], ward: Ward) -> list[Finding]:
    """All findings, the gravest first; a check that finds nothing says nothing."""
    found = [Finding.of(seen, check=name) for name, check in RUN_CHECKS.items() for seen in check(ward)]
    for state in states:
        for name, check in CONFIG_CHECKS.items():
            found += [Finding.of(seen, check=name, config=state.config) for seen in check(state, ward)]
        newest = ward.newest_diagnosis(state)
        if newest is not None:
            found += [each for each in newest.findings if each.level is not Level.FINE]
    return sorted(found, key=lambda each: -each.level.gravity)
