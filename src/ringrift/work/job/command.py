"""The program that does a kind of job, ours or the user's, and what its process may know.

A job gets its parameters, its files and what an interpreter and a compute library need, and nothing else: no
setting of the product, no path or key of the engine, no key of a cloud. What a program needs beside that,
the user names in `env` of `[jobs.KIND]`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import structlog

from ringrift.setting_kinds import JobSettings

# Processes of jobs whose worker was killed: found by the mark in their environment, and ended.
#
# A mark is inherited by everything a job starts, also by what left its process group, and it names the folder
# of the job. The name of the item would not do: runs of one config in two data folders order items of the
# same names, and would end each other's jobs.


log = structlog.get_logger()

OUT_VARIABLE = "RINGRIFT_JOB_OUT"
REAP_S = 5.0


def end_processes_in(out: Path) -> int:
    """Kill all that still works in the folder *out* and wait until it is gone; return how many. Blocking."""
    wanted = os.path.realpath(out)
    found = [process for process in _marked() if _works_in(process, wanted)]
    for process in found:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(found, timeout=REAP_S)
    if found:
        log.warning("worker.orphans_ended", folder=wanted, pids=[p.pid for p in found], alive=len(alive))
    return len(found)


def _marked() -> Iterator[psutil.Process]:
    """All processes that may have a mark.

    This is asked after every job, and to take the variables of all processes of a machine apart takes longer
    than to look for the name in their bytes, where the system shows them.
    """
    if sys.platform != "linux":
        yield from psutil.process_iter()
        return
    name = f"{OUT_VARIABLE}=".encode()
    for pid in psutil.pids():
        try:
            if name in Path(f"/proc/{pid}/environ").read_bytes():
                yield psutil.Process(pid)
        except (psutil.Error, OSError):  # gone, or another user's
            continue


def _works_in(process: psutil.Process, folder: str) -> bool:
    try:
        named = process.environ().get(OUT_VARIABLE)
    except (psutil.Error, OSError):  # gone, or another user's
        return False
    return named is not None and os.path.realpath(named) == folder


PYTHON = "{python}"  # in a command: the interpreter that runs the worker
KIND_VARIABLE = "RINGRIFT_JOB_KIND"
CONFIG_VARIABLE = "RINGRIFT_JOB_CONFIG"
ITEM_VARIABLE = "RINGRIFT_JOB_ITEM"
TRACE_VARIABLE = "TRACEPARENT"
OWN_VARIABLES = (ITEM_VARIABLE, KIND_VARIABLE, CONFIG_VARIABLE, OUT_VARIABLE, TRACE_VARIABLE)  # of one job
# Jobs share the cores by processes; libraries that take all cores each would stand in each other's way.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# Names, not patterns, where the prefix is one that a token of somebody could begin with.
PASSED_ON = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
        *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "NO_COLOR"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONIOENCODING"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONUNBUFFERED", "PYTHONWARNINGS"),
        *("PYTHONNOUSERSITE", "PYTHONUSERBASE", "PYTHONSAFEPATH", "PYTHONFAULTHANDLER", "PYTHONMALLOC"),
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    }
)
PASSED_ON_PREFIXES = (
    *("LC_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "NUMEXPR_", "NUMBA_", "CUDA_", "NVIDIA_", "CUBLAS_"),
)


def job_argv(kind: str, said: JobSettings) -> tuple[str, ...]:
    """What to start. The parameters come on stdin in either case."""
    if not said.command:
        return (sys.executable, "-m", "ringrift.jobs", kind, "--params", "-")
    program, *words = (sys.executable if word == PYTHON else word for word in said.command)
    # A program without a folder is looked for in PATH, as in a shell.
    return (_from_here(program) if os.sep in program else program, *map(_from_here, words))


def _from_here(word: str) -> str:
    """Jobs run in a folder of their own, so a file beside the worker needs its whole path."""
    try:
        return str(Path(word).absolute()) if Path(word).is_file() else word
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return word


def job_environment(
    *,
    item_id: str,
    kind: str,
    config: str,
    out: str,
    trace: Mapping[str, str],
    also: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What the job may see of *environ* (ours if none), and what tells it and others whose it is.

    *also* are the names that the user added to those that every job gets.
    """
    told = {ITEM_VARIABLE: item_id, KIND_VARIABLE: kind, CONFIG_VARIABLE: config, OUT_VARIABLE: out}
    if "traceparent" in trace:
        told[TRACE_VARIABLE] = trace["traceparent"]
    return {**base_environment(also=also, environ=environ), **told}


def base_environment(
    *, also: tuple[str, ...] = (), environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What all jobs may see of *environ*, whichever they are."""
    ours = os.environ if environ is None else environ
    passed = {name: value for name, value in ours.items() if is_passed_on(name) or name in also}
    if "PYTHONPATH" in passed:
        parts = passed["PYTHONPATH"].split(os.pathsep)
        passed["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in parts)
    return {**ONE_THREAD, **passed}


def is_passed_on(name: str) -> bool:
    """Whether every job gets the variable *name*."""
    return name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
