"""`ringrift job KIND …`: starts a job in a process of its own and passes everything through.

Jobs need the rules and the learner, which this process never loads. Output, signals and the exit code are
the job's own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from types import FrameType
from typing import Annotated

import typer

from ringrift.cli.terminal import plain_errors
from ringrift.errors import ConfigError

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILLED_BY = 128  # plus the number of the signal, as shells tell it


def job(
    context: typer.Context,
    kind: Annotated[str | None, typer.Argument(help="Kind of job; none lists them.")] = None,
) -> None:
    """Run a job: selfplay, validate, export, train, evaluate, tournament, tune, diagnose, play."""
    raise typer.Exit(run_job([*([kind] if kind else []), *context.args]))


def play(context: typer.Context) -> None:
    """Play against a model or a baseline at the terminal, or watch two of them."""
    raise typer.Exit(run_job(["play", *context.args]))


def run_job(arguments: list[str]) -> int:
    """Run `python -m ringrift.jobs` with *arguments*; returns its exit code."""
    with plain_errors():
        if find_spec("numba") is None:
            raise ConfigError("jobs need the rules and the learner: pip install 'ringrift[train]'")
    return run_through([sys.executable, "-m", "ringrift.jobs", *arguments])


def run_through(argv: list[str]) -> int:
    """Run *argv* on our own stdin, stdout and stderr; returns its exit code."""
    child = subprocess.Popen(argv)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else KILLED_BY - code
