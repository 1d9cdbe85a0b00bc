"""The frame around every job: parameters, progress, heartbeats, signals, the result line, the exit code.

A job is a function of its parameters and a `Job`, and returns an `Outcome`. Lines on stdout: `started`,
then `progress`, `heartbeat` and `artifact` in any order, then exactly one `result`, also after an error. Only
a killed process leaves no result.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Generic, TextIO, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import structlog

from ringrift.decoding import convert_to, decoder_of
from ringrift.errors import ConfigError, Corrupt, RingRiftError, Unavailable, described, storable_text
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.foreign_files.paths import read_regular
from ringrift.jobs.files import SealedFile, storage_errors
from ringrift.jobs.kinds import ExitCode, exit_code_of
from ringrift.machine import gpu_use
from ringrift.runtime import Runtime, SystemRuntime

# Parameters of jobs: typed, described and bounded in one place, given as JSON, as options, or both.
#
# A job declares a frozen `Params` struct. `--params FILE` (or `-` for stdin) is a JSON object with the
# fields' names; every field is also an option, which wins over the file. An unknown field or a value of the
# wrong type is an error that names the field.


PARAMS_BYTES_MAX = 16 * 2**20  # an export names thousands of shards


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every job takes."""

    heartbeat_s: Annotated[
        float, msgspec.Meta(gt=0, le=3600, description="Say something at least this often.")
    ] = 10.0
    log_level: Annotated[str, msgspec.Meta(description="Least level of the log on stderr.")] = "info"


P = TypeVar("P", bound=Params)


def parse_params(kind: str, summary: str, params: type[P], argv: Sequence[str]) -> P:
    """Read options and JSON; raises `ConfigError` for values that cannot be, and exits for `--help`."""
    # As a worker starts it; making a parser takes longer than all the rest.
    is_all_json = len(argv) == 2 and argv[0] == "--params"
    options: dict[str, Any] = {"params_json": argv[1]} if is_all_json else {}
    options = options or vars(_parser(kind, summary, params).parse_args(argv))
    source = options.pop("params_json", None)
    fields = {} if source is None else _read_json(source)
    # An option that was given wins over the file.
    fields.update({name: value for name, value in options.items() if value is not None})
    return convert_params(kind, params, fields)


def convert_params(kind: str, params: type[P], fields: dict[str, Any]) -> P:
    """Build *params* from plain values."""
    try:
        return convert_to(fields, params, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        wrong = str(error)
    missing = [f.encode_name for f in msgspec.structs.fields(params) if f.required and f.name not in fields]
    if missing:
        wrong = f"missing {', '.join('--' + name.replace('_', '-') for name in missing)}"
    raise ConfigError(f"{kind}: {wrong}")


def params_as_json(params: Params) -> dict[str, Any]:
    """Plain values that `convert_params` takes back."""
    plain: dict[str, Any] = msgspec.to_builtins(params, enc_hook=str)
    return plain


def _parser(kind: str, summary: str, params: type[Params]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"ringrift job {kind}",
        description=summary,
        epilog="Progress and the result are JSON lines on stdout. Exit codes: docs/jobs.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--params", dest="params_json", metavar="FILE", help="JSON object of parameters, - for stdin"
    )
    hints = get_type_hints(params, include_extras=True)
    for declared in msgspec.structs.fields(params):
        kind_of, meta = _unwrap(hints[declared.name])
        wanted: dict[str, Any] = {"dest": declared.name, "default": None, "help": _help(declared, meta)}
        if kind_of is bool:
            wanted["action"] = argparse.BooleanOptionalAction
        elif get_origin(kind_of) is tuple:
            wanted.update(nargs="+", metavar=declared.name.rstrip("s").upper())
            if issubclass(get_args(kind_of)[0], msgspec.Struct):
                wanted["type"] = parse_json
        else:
            wanted["metavar"] = declared.name.rpartition("_")[2].upper()
        parser.add_argument("--" + declared.name.replace("_", "-"), **wanted)
    return parser


def _help(field: msgspec.structs.FieldInfo, meta: msgspec.Meta | None) -> str:
    text = (meta.description or "") if meta is not None else ""
    if field.required:
        return f"{text} (required)".replace("%", "%%")  # argparse formats help texts with %
    default = field.default if field.default is not msgspec.NODEFAULT else None
    return (text if default in (None, ()) else f"{text} [{default}]").replace("%", "%%")


def _unwrap(hint: Any) -> tuple[Any, msgspec.Meta | None]:
    """The bare type of an annotation, without None, and its description."""
    meta = None
    while True:
        members = [member for member in get_args(hint) if member is not type(None)]
        if get_origin(hint) is Annotated:
            hint, *metas = get_args(hint)
            meta = next((each for each in metas if isinstance(each, msgspec.Meta)), meta)
        elif type(None) in get_args(hint) and len(members) == 1:
            hint = members[0]
        else:
            return hint, meta


def _read_json(source: str) -> dict[str, Any]:
    try:
        if source == "-":
            text = sys.stdin.buffer.read(PARAMS_BYTES_MAX + 1)
        else:
            text = read_regular(Path(source), bytes_max=PARAMS_BYTES_MAX)
        fields = parse_json(text)
    except OSError as error:
        raise ConfigError(f"--params {source}: {error.strerror}") from None
    except Corrupt as error:
        raise ConfigError(f"--params {source}: {error.found}") from None
    except NoDocument as error:
        raise ConfigError(f"--params {source}: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"--params {source}: expected a JSON object")
    return fields


def _decode(wanted: type, value: Any) -> Any:
    if wanted is Path and isinstance(value, str) and value:
        return Path(value)
    raise ValueError(f"expected a {wanted.__name__}")


# The request to stop: set once by a signal, looked at by the job between two steps of its work.


log = structlog.get_logger()


class StopNow(Exception):
    """Leaves a job that has nothing to seal half-way; the frame turns it into an exit code."""


class StopRequest:
    """Says whether the job should seal what it has and end."""

    def __init__(self) -> None:
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def request(self, reason: str) -> None:
        if self.reason is None:  # the first reason is the real one; more signals follow it
            self.reason = reason


@contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """SIGTERM and SIGINT request a stop; a signal never interrupts a write."""

    def asked(number: int, _frame: FrameType | None) -> None:
        stop.request(signal.Signals(number).name)

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# What a job says on stdout: one JSON object a line, never silent for longer than its heartbeat.
#
# A `heartbeat` line says that the process lives; its `idle_s` says for how long it has done nothing that it
# would report, so that a reader can tell a slow job from a stuck one. If nobody reads any more, the job is
# asked to stop instead of writing on into nothing.


PROTOCOL = 1
PROGRESS_EVERY_S = 0.5  # a line for each game would cost more than some games
_TEXT_CHARS_MAX = 100_000


def cpu_seconds() -> float:
    """Processor time of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(slots=True)
class _Stage:
    name: str
    started_s: float
    done_at_start: int
    done: int
    total: int | None


class Reporter:
    """Writes the lines of one job; may be called from several threads."""

    def __init__(
        self, kind: str, *, out: TextIO, runtime: Runtime, stop: StopRequest, heartbeat_s: float
    ) -> None:
        self._kind, self._out, self._runtime, self._stop = kind, out, runtime, stop
        self._heartbeat_s = heartbeat_s
        self._started_s = self._said_s = self._reported_s = runtime.monotonic_s()
        self._stage = _Stage("starting", self._started_s, 0, 0, None)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Reporter:
        self._beats.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beats.join()

    def say(self, event: str, fields: Mapping[str, Any]) -> None:
        """Write one line, flushed."""
        now_s = self._runtime.monotonic_s()
        line = {
            "event": event,
            "kind": self._kind,
            "elapsed_s": round(now_s - self._started_s, 3),
            "cpu_s": round(cpu_seconds(), 3),
            "gpu_s": round(gpu_use().seconds(), 3),
            **fields,
        }
        text = _in_json(line)
        with self._lock:
            self._said_s = now_s
            try:
                self._out.write(text + "\n")
                self._out.flush()
            # `ValueError` if the file was closed. A job without a reader would work for nobody.
            except (BrokenPipeError, ValueError):
                self._stop.request("nobody reads the progress any more")

    def stage(self, name: str, *, total: int | None = None, done: int = 0) -> None:
        """Begin the next part of the job; rates count from here."""
        self._stage = _Stage(name, self._runtime.monotonic_s(), done, done, total)
        self._say_progress({})

    def progress(self, done: int, *, total: int | None = None, **fields: Any) -> None:
        """Say how far the stage is; calls in quick succession are dropped, except the last of a stage."""
        stage = self._stage
        stage.done = done
        if total is not None:
            stage.total = total
        if done != stage.total and self._runtime.monotonic_s() - self._reported_s < PROGRESS_EVERY_S:
            return
        self._say_progress(fields)

    def _say_progress(self, fields: Mapping[str, Any]) -> None:
        self._reported_s = self._runtime.monotonic_s()
        self.say("progress", {**self._position(), **fields})

    def _position(self) -> dict[str, Any]:
        stage, now_s = self._stage, self._runtime.monotonic_s()
        took_s = now_s - stage.started_s
        rate = (stage.done - stage.done_at_start) / took_s if took_s > 0 else 0.0
        left = None if stage.total is None else stage.total - stage.done
        eta_s = None if left is None or rate <= 0 else round(left / rate, 1)
        return {
            "stage": stage.name,
            "done": stage.done,
            "total": stage.total,
            "rate": round(rate, 3),
            "eta_s": eta_s,
        }

    def _beat(self) -> None:
        # Four looks in a period, so that the silence is never longer than promised.
        while not self._ended.wait(self._heartbeat_s / 4):
            now_s = self._runtime.monotonic_s()
            if now_s - self._said_s >= self._heartbeat_s * 0.75:
                idle_s = round(now_s - self._reported_s, 3)
                self.say("heartbeat", {**self._position(), "idle_s": idle_s})


def _in_json(line: Mapping[str, Any]) -> str:
    """One line of JSON; a name of the operating system that is not UTF-8 gets visible escapes."""
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(_storable(line)).decode()


def _storable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {storable_text(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    plain = isinstance(value, int | float) or value is None
    return value if plain else storable_text(value, chars_max=_TEXT_CHARS_MAX)


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

    def __post_init__(self) -> None:
        decoder_of(self.params)  # prepared by whoever loads the kind, and not by each job that it forks


def run_job(
    spec: JobSpec[P], argv: Sequence[str], *, out: TextIO | None = None, runtime: Runtime | None = None
) -> int:
    """Run the job that *argv* describes and return its exit code; a fault of the program is raised."""
    runtime = runtime if runtime is not None else SystemRuntime()
    stop = StopRequest()
    log_to_stderr("info")  # until the parameters are read: what is wrong with them must be seen, too
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
    # The one place for any fault of the program: said in the protocol, then raised with its traceback.
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
    # On the level of file descriptors: libraries in C print past `sys.stdout`.
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
