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
from typing import Any

import click

from ringrift.cli.answers import plain_errors
from ringrift.errors import ConfigError

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Everything behind the kind belongs to the job, also --help.
PASS_ALL_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
KILLED_BY = 128  # plus the number of the signal, as shells tell it


@click.command(context_settings=PASS_ALL_ON)
@click.argument("kind", required=False, help="Kind of job; none lists them.")
@click.pass_context
def job(context: click.Context, kind: str | None) -> None:
    """Run a job: selfplay, validate, export, train, evaluate, tournament, tune, diagnose, play."""
    raise click.exceptions.Exit(run_job([*([kind] if kind else []), *context.args]))


@click.command(context_settings=PASS_ALL_ON)
@click.pass_context
def play(context: click.Context) -> None:
    """Play against a model or a baseline at the terminal, or watch two of them."""
    raise click.exceptions.Exit(run_job(["play", *context.args]))


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
