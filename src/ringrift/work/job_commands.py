"""The program that does a kind of job: ours, or the one that the user put in its place."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ringrift.setting_kinds import JobSettings
from ringrift.work.orphans import ITEM_VARIABLE

PYTHON = "{python}"  # in a command: the interpreter that runs the worker
KIND_VARIABLE = "RINGRIFT_JOB_KIND"
CONFIG_VARIABLE = "RINGRIFT_JOB_CONFIG"
OUT_VARIABLE = "RINGRIFT_JOB_OUT"
TRACE_VARIABLE = "TRACEPARENT"
# Jobs share the cores by processes; libraries that take all cores each would stand in each other's way.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def job_argv(kind: str, said: JobSettings) -> tuple[str, ...]:
    """What to start. The parameters come on stdin in either case."""
    if said.command:
        return tuple(sys.executable if word == PYTHON else word for word in said.command)
    return (sys.executable, "-m", "ringrift.jobs", kind, "--params", "-")


def job_environment(
    *, item_id: str, kind: str, config: str, out: str, trace: Mapping[str, str]
) -> dict[str, str]:
    """Our own environment, and what tells the job, and those who look for it, whose it is."""
    told = {ITEM_VARIABLE: item_id, KIND_VARIABLE: kind, CONFIG_VARIABLE: config, OUT_VARIABLE: out}
    if "traceparent" in trace:
        told[TRACE_VARIABLE] = trace["traceparent"]
    return {**ONE_THREAD, **os.environ, **told}
