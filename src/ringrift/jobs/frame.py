"""The frame around every job: parameters, progress, heartbeats, signals, the result line, the exit code.

A job is a function of its parameters and a `Job`, and returns an `Outcome`. Lines on stdout: `started`,
then `progress`, `heartbeat` and `artifact` in any order, then exactly one `result`, also after an error. Only
a killed process leaves no result.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TextIO

import structlog

from ringrift.errors import ConfigError, RingRiftError, Unavailable, described
from ringrift.jobs.exit_codes import ExitCode, exit_code_of
from ringrift.jobs.params import P, params_as_json, parse_params
from ringrift.jobs.progress import PROTOCOL, Reporter
from ringrift.jobs.sealing import SealedFile, storage_errors
from ringrift.jobs.stopping import StopNow, StopRequest, stop_on_signals
from ringrift.runtime import Runtime, SystemRuntime

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, and the numbers of its result line."""

    code: ExitCode = ExitCode.DONE
    fields: Mapping[str, Any] = field(default_factory=dict)


class Job:
    """What the frame gives to a running job."""

    def __init__(self, kind: str, *, runtime: Runtime, reporter: Reporter, stop: StopRequest) -> None:
        self.kind, self.runtime, self.stop = kind, runtime, stop
        self.artifacts: list[SealedFile] = []
        self.stage, self.progress = reporter.stage, reporter.progress
        self._say = reporter.say

    def stop_point(self) -> None:
        """Leave the job here if it was asked to stop; for work that is thrown away half-way."""
        if self.stop.requested:
            raise StopNow

    def sealed(self, artifact: SealedFile) -> None:
        """Announce a sealed file; it is listed again in the result."""
        self.artifacts.append(artifact)
        self._say("artifact", artifact.as_json())


@dataclass(frozen=True, slots=True)
class JobSpec(Generic[P]):
    """One kind of job."""

    kind: str
    summary: str
    params: type[P]
    run: Callable[[Job, P], Outcome]


def run_job(
    spec: JobSpec[P], argv: Sequence[str], *, out: TextIO | None = None, runtime: Runtime | None = None
) -> int:
    """Run the job that *argv* describes and return its exit code; a fault of the program is raised."""
    runtime = runtime if runtime is not None else SystemRuntime()
    stop = StopRequest()
    log_to_stderr("info")
    try:
        params = parse_params(spec.kind, spec.summary, spec.params, argv)
        log_to_stderr(params.log_level)
    except ConfigError as error:
        out = out if out is not None else claim_stdout()
        return _refuse(Reporter(spec.kind, out=out, runtime=runtime, stop=stop, heartbeat_s=1.0), error)
    out = out if out is not None else claim_stdout()
    with (
        stop_on_signals(stop),
        Reporter(spec.kind, out=out, runtime=runtime, stop=stop, heartbeat_s=params.heartbeat_s) as reporter,
    ):
        said = {"protocol": PROTOCOL, "pid": os.getpid(), "host": runtime.hostname}
        reporter.say("started", {**said, "params": params_as_json(params)})
        job = Job(spec.kind, runtime=runtime, reporter=reporter, stop=stop)
        return _run(spec, job, params, reporter)


def _run(spec: JobSpec[P], job: Job, params: P, reporter: Reporter) -> int:
    try:
        with storage_errors("what the job writes"):
            outcome = spec.run(job, params)
    except StopNow:
        outcome = Outcome(ExitCode.STOPPED)
    except RingRiftError as error:
        return _refuse(reporter, error, job.artifacts)
    except Exception as error:
        what = {"error": described(error)}
        _say_result(reporter, ExitCode.CRASHED, what, job.artifacts)
        raise
    fields = dict(outcome.fields)
    if outcome.code is ExitCode.STOPPED:
        fields["reason"] = job.stop.reason
    _say_result(reporter, outcome.code, fields, job.artifacts)
    return int(outcome.code)


def _refuse(reporter: Reporter, error: RingRiftError, artifacts: Sequence[SealedFile] = ()) -> int:
    code = exit_code_of(error)
    log.error("job.refused", error=type(error).__name__, what=str(error), exit_code=int(code))
    fields = {"error": str(error), "error_type": type(error).__name__}
    if isinstance(error, Unavailable):
        fields["retry_after_s"] = str(error.retry_after_s)
    _say_result(reporter, code, fields, artifacts)
    return int(code)


def _say_result(
    reporter: Reporter, code: ExitCode, fields: Mapping[str, Any], artifacts: Sequence[SealedFile]
) -> None:
    said = {"status": code.status, "exit_code": int(code)}
    reporter.say("result", {**said, **fields, "artifacts": [each.as_json() for each in artifacts]})


def claim_stdout() -> TextIO:
    """Keep stdout for the protocol: whatever else a library prints goes to stderr."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    return io.TextIOWrapper(os.fdopen(own, "wb"), encoding="utf-8", write_through=True)


def log_to_stderr(level: str) -> None:
    """One JSON object a line, so that a supervisor can keep the log as it is."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"no log level {level!r}: expected debug, info, warning or error")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
