"""What a worker and a job say to each other: the order and the report of a work item, the program that is
called and what its process may know, and its lines on stdout.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil
import structlog

from ringrift.decoding import convert_to, decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import Json
from ringrift.errors import ConfigError
from ringrift.setting_kinds import JobSettings

# What a worker is asked to do, and what it answers: the payload and the result of a work item.
#
# A work item's kind is the kind of the job. Files travel as digests: the worker lays the inputs out in a
# folder of the item before it starts the job, and takes the sealed artifacts in when it ended well.


INPUTS = "{inputs}"  # in a parameter: the folder where the inputs lie
SEALED_JOB = "job"  # the kind of an artifact that says what a job was asked and brought
_SEALED_JOB_BEGINS = b'{"sealed":"job",'
_SEALED_JOB_BYTES_MAX = 1 << 20
OUT = "{out}"  # in a parameter: the folder whose files survive a retry
RINGRIFT_PROGRAM, USER_PROGRAM = "ringrift", "user"


class JobOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a work item."""

    config: str
    params: dict[str, Any]  # parameters of the job; texts may hold `{inputs}` and `{out}`
    inputs: dict[str, str] = {}  # file name: digest
    timeout_s: float | None = None  # None: from the measured durations of the kind
    memory_mb: int | None = None
    gpu: bool = False
    purpose: str = ""  # what it is for, where a kind serves several: promotion, rating, rollback
    program: str = ""  # whose program plays, of a selfplay order; empty: an older version did not say
    not_by: tuple[str, ...] = ()  # workers that should not do it; the first of them would, if need be

    def as_payload(self) -> Json:
        payload: dict[str, Any] = _with_lists(msgspec.to_builtins(self))
        return payload


class JobArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed file that is in the blobs."""

    name: str
    kind: str  # shard, samples, model, card, report, evaluation, …
    digest: str
    size_bytes: int
    counts: dict[str, Any] = {}


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a completed work item."""

    status: str  # as in the job's result line: done, data_refused
    worker: str
    node: str
    started_s: float
    wall_s: float
    cpu_s: float
    start_s: float | None = None  # from the claim to its first game or step; None: it told of none
    gpu_s: float = 0.0  # how long it had a GPU
    node_s: float | None = None  # how long it took a whole node, or would have; None: not known
    machine: str = ""  # the kind, as the worker measured it; empty: it has GPUs, or an older version
    artifacts: tuple[JobArtifact, ...] = ()
    fields: dict[str, Any] = {}  # the other fields of the job's result line

    def as_result(self) -> Json:
        result: dict[str, Any] = _with_lists(msgspec.to_builtins(self))
        return result


def _with_lists(value: Any) -> Any:
    """JSON knows lists only, and the queue refuses what it would give back as something else."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, list | tuple) else value


class SealedJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="sealed", tag="job"):
    """What was asked and what came of it, as a sealed file beside the files that came of it.

    A shard or a model alone does not say which work it belongs to; with these the facts of a run can be made
    again when its database is lost.
    """

    item_id: str
    kind: str
    order: JobOrder
    report: JobReport
    ended_s: float


def read_sealed_job(content: bytes) -> SealedJob | None:
    """None for any other file."""
    if not content.startswith(_SEALED_JOB_BEGINS):
        return None
    try:
        return decode_as(content, SealedJob)
    except UNREADABLE:
        return None


def read_job_record(path: Path) -> SealedJob | None:
    """The same from a file; of any other file only the beginning is read."""
    with path.open("rb") as file:
        begins = file.read(len(_SEALED_JOB_BEGINS))
        if begins != _SEALED_JOB_BEGINS:
            return None
        return read_sealed_job(begins + file.read(_SEALED_JOB_BYTES_MAX))


def read_order(payload: Json) -> JobOrder:
    """Raises `ConfigError` for a payload that is no order."""
    try:
        return convert_to(payload, JobOrder)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the work item is no job order: {error}") from None


def read_report(result: Json) -> JobReport:
    """Raises `ConfigError` for a result that is no report."""
    try:
        return convert_to(result, JobReport)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the result is no job report: {error}") from None


# The program that does a kind of job, ours or the user's, and what its process may know.
#
# A job gets its parameters, its files and what an interpreter and a compute library need, and nothing else:
# no setting of the product, no path or key of the engine, no key of a cloud. What a program needs beside
# that, the user names in `env` of `[jobs.KIND]`.


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
    variables = {ITEM_VARIABLE: item_id, KIND_VARIABLE: kind, CONFIG_VARIABLE: config, OUT_VARIABLE: out}
    if "traceparent" in trace:
        variables[TRACE_VARIABLE] = trace["traceparent"]
    return {**base_environment(also=also, environ=environ), **variables}


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


# What a job says on stdout, heard with bounds: where it is, what it sealed, how it ended.
#
# Only the newest position, the artifacts and the result are kept, so that a job may talk for days. A line
# that is too long or no JSON object is counted and otherwise passed over; a job that never stops talking is
# ended by whoever looks at `bytes_heard`.


LINE_BYTES_MAX = 4 * 2**20
ARTIFACTS_MAX = 10_000
DEPTH_MAX = 32  # of lists and tables in one another
INTEGER_MAX = 2**63 - 1
TEXT_CHARS_MAX = 200
BEFORE_WORK = ("", "starting", "reading")  # stages in which nothing is played or learned yet
POSITION = ("stage", "done", "total", "rate", "eta_s", "idle_s")
KNOWN = frozenset(("event", "kind", "elapsed_s", "cpu_s", "gpu_s", *POSITION))


class SaidArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed file as the job announced it."""

    path: str
    artifact: str = "file"  # its kind
    sha256: str | None = None
    counts: dict[str, Any] = {}


class JobOutput:
    """Everything worth keeping of what one job said."""

    def __init__(self, *, now_s: float) -> None:
        self.heard_s = now_s  # when the last line came
        self.moved_s = now_s  # when it last did something worth a line
        self.working_s: float | None = None  # when it began with what it was ordered for
        self.bytes_heard = self.lines_refused = 0
        self.stage, self.last_line = "", ""
        self.done: float = 0
        self.total: float | None = None
        self.rate: float = 0.0
        self.eta_s: float | None = None
        self.cpu_s = self.gpu_s = 0.0
        self.extra: dict[str, Any] = {}  # what the stage adds to its progress
        self.artifacts: dict[str, SaidArtifact] = {}
        self.result: dict[str, Any] | None = None
        self._unfinished = bytearray()
        self._too_long = False

    def hear(self, chunk: bytes, *, now_s: float) -> None:
        """Take in the next piece of the output, wherever it is cut."""
        self.bytes_heard += len(chunk)
        first, *rest = chunk.split(b"\n")
        self._keep(first)
        for piece in rest:
            self._end_line(now_s)
            self._keep(piece)

    def _keep(self, piece: bytes) -> None:
        if len(self._unfinished) + len(piece) > LINE_BYTES_MAX:
            self._too_long = True
            self._unfinished.clear()
        elif not self._too_long:
            self._unfinished += piece

    def _end_line(self, now_s: float) -> None:
        line, too_long = bytes(self._unfinished), self._too_long
        self._unfinished.clear()
        self._too_long = False
        if not too_long and not line.strip():
            return
        self.heard_s = now_s
        said = None if too_long else _decode(line)
        if said is None:
            self.lines_refused += 1
            self.last_line = line[:TEXT_CHARS_MAX].decode("utf-8", "replace")
            return
        self._take(said, now_s)

    def _take(self, said: dict[str, Any], now_s: float) -> None:
        event = str(said.get("event", ""))
        self.cpu_s = max(self.cpu_s, number(said.get("cpu_s")) or 0.0)
        self.gpu_s = max(self.gpu_s, number(said.get("gpu_s")) or 0.0)
        if event != "heartbeat":
            self.moved_s = now_s
        if event in ("progress", "heartbeat"):
            before = (self.stage, self.done)
            self._take_position(said)
            if (self.stage, self.done) != before:
                self.moved_s = now_s
            if self.working_s is None and self.stage not in BEFORE_WORK:
                self.working_s = now_s
        elif event == "artifact":
            self._take_artifact(said)
        elif event == "result":
            self.result = said
            listed = said.get("artifacts")
            for each in listed if isinstance(listed, list) else ():
                self._take_artifact(each)

    def _take_position(self, said: dict[str, Any]) -> None:
        self.stage = str(said.get("stage", self.stage))[:TEXT_CHARS_MAX]
        self.done = number(said.get("done")) or 0
        self.total = number(said.get("total"))
        self.rate = number(said.get("rate")) or 0.0
        self.eta_s = number(said.get("eta_s"))
        if said["event"] == "progress":
            self.extra = {key: value for key, value in said.items() if key not in KNOWN}
        self.last_line = _in_words(self)

    def _take_artifact(self, said: Any) -> None:
        try:
            artifact = convert_to(said, SaidArtifact)
        except msgspec.ValidationError:
            self.lines_refused += 1
            return
        if len(self.artifacts) < ARTIFACTS_MAX or artifact.path in self.artifacts:
            before = self.artifacts.get(artifact.path)
            if before is not None and not artifact.counts:
                artifact = msgspec.structs.replace(artifact, counts=before.counts)
            self.artifacts[artifact.path] = artifact
        else:
            self.lines_refused += 1


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if abs(value) <= INTEGER_MAX else None
    return value if math.isfinite(value) else None


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        said = decode_as(line, Any)
    except (msgspec.DecodeError, RecursionError):
        return None
    return said if isinstance(said, dict) and _is_plain(said) else None


def _is_plain(said: Any) -> bool:
    """Whether whoever takes it further can: not too deep, and no number beyond 64 bits."""
    level: list[Any] = [said]
    for _ in range(DEPTH_MAX):
        if any(type(each) is int and abs(each) > INTEGER_MAX for each in level):
            return False
        tables = [each.values() for each in level if isinstance(each, dict)]
        lists = [each for each in level if isinstance(each, list)]
        level = [each for inner in (*tables, *lists) for each in inner]
        if not level:
            return True
    return False


def _in_words(job_output: JobOutput) -> str:
    of = "" if job_output.total is None else f" of {job_output.total:g}"
    return f"{job_output.stage} {job_output.done:g}{of}"
