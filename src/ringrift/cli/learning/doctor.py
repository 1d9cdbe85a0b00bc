"""`ringrift doctor [RUN]`: what is wrong with a run, before it starts and while it lives, and what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.text import Text

from ringrift.cli.command import (
    PATH,
    as_json,
    check_data_folder,
    has_run,
    on_data_folder,
    plain_errors,
    print_json,
    use_data_folder,
)
from ringrift.cli.data_folder import ask_engine, configs_of, require_config
from ringrift.cli.format import console
from ringrift.control.run_options import DEFAULT_CONFIGS, check_learning_libraries, parse_configs
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import is_master_loop_running
from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import Blobs, Engine
from ringrift.errors import ConfigError, Corrupt
from ringrift.health.run_status import read_run_status
from ringrift.learning.doctor.checks import file_findings, store_findings
from ringrift.learning.doctor.examination import (
    CONFIG_CHECKS,
    RUN_CHECKS,
    disk_usage,
    examine,
    largest_step_back_s,
    look_around,
)
from ringrift.learning.doctor.findings import Diagnosis, ExaminationContext, Finding, Level, keep_diagnosis
from ringrift.learning.facts.high_water import check_not_lost
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.records import ShardState
from ringrift.learning.facts.state import ConfigState, fold
from ringrift.learning.plan.rules import LearningRules, configured_rules, rules_of
from ringrift.learning.status_view import bottleneck, idle_slots
from ringrift.runtime import system_runtime
from ringrift.settings import Settings

# Runs the job `diagnose` on what a run has: the files are laid out, the job is a process of its own.


SHARDS_EXAMINED = 5  # the newest; older games were examined when they were new
DIAGNOSE_S_MAX = 1800.0  # a large network on a busy machine without a GPU
ERROR_CHARS = 400  # the end of a traceback, where the reason stands


async def diagnose(blobs: Blobs | None, state: ConfigState, rules: LearningRules) -> Diagnosis | Finding:
    """Examine the champion of *state*, or its newest model, on its newest samples and games.

    Returns a finding instead of a diagnosis where the job could not be run to its end.
    """
    # Looked for, not imported: this process must stay without the learner.
    if find_spec("torch") is None or find_spec("numba") is None:
        text = "the learner is not installed here: games and networks were not examined"
        advice = "pip install 'ringrift[train]'"
        return Finding(check="diagnose", level=Level.NOTICE, config=state.config, text=text, advice=advice)
    with tempfile.TemporaryDirectory(prefix="ringrift-doctor-") as folder:
        params = await _lay_out(Path(folder), blobs, state, rules)
        try:
            return await asyncio.to_thread(_run, Path(folder), params)
        except Corrupt as error:
            return Finding(
                check="diagnose",
                level=Level.PROBLEM,
                config=state.config,
                text=f"games and networks of {state.config} could not be examined: {error.found}",
                advice="`ringrift job diagnose` shows the whole error.",
            )


async def _lay_out(
    folder: Path, blobs: Blobs | None, state: ConfigState, rules: LearningRules
) -> dict[str, Any]:
    """Link the files of the run into *folder*; what is not in the store any more is left out."""
    params: dict[str, Any] = {
        "config": state.config,
        "out": str(folder / "diagnosis.json"),
        "preset": rules.preset,
        "hold_out": rules.hold_out,
        "log_level": "error",
    }
    if blobs is None:
        return params
    model = state.models.get(state.champion or "") or state.newest_model
    if model is not None:
        weights = await _link(blobs, model.digest, folder / "model.safetensors")
        if weights and await _link(blobs, model.card, folder / "model.json"):
            params["model"] = weights
    samples = state.newest_samples
    if samples is not None and (path := await _link(blobs, samples.digest, folder / "samples.npz")):
        params["samples"] = [path]
    checked = (each for each in reversed(state.shards.values()) if each.state is ShardState.CHECKED)
    shards = [
        await _link(blobs, shard.digest, folder / f"{number}.shard.db")
        for number, shard in enumerate(islice(checked, SHARDS_EXAMINED))
    ]
    params["shards"] = [path for path in shards if path]
    return params


async def _link(blobs: Blobs, digest: str, place: Path) -> str:
    """Where *digest* lies under the name that jobs expect; empty if it is gone."""
    found = await blobs.path(digest)
    if found is None:
        return ""
    # A link and no copy: files may be large.
    await asyncio.to_thread(place.symlink_to, found.absolute())
    return str(place)


def _run(folder: Path, params: dict[str, Any]) -> Diagnosis:
    # Through stdin, because a command line is bounded and seen by other users.
    command = [sys.executable, "-m", "ringrift.jobs", "diagnose", "--params", "-"]
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(params),
            capture_output=True,
            timeout=DIAGNOSE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Corrupt("diagnose", found="it took too long", advice="Run the job alone") from None
    if done.returncode:
        raise Corrupt("diagnose", found=_last_words(done), advice="Run the job alone")
    return decode_as((folder / "diagnosis.json").read_bytes(), Diagnosis)


def _last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stdout.splitlines()
    try:
        error = decode_as(lines[-1], dict[str, Any]).get("error") if lines else None
    except UNREADABLE:
        error = None
    return str(error or done.stderr.decode(errors="replace")[-ERROR_CHARS:] or f"exit code {done.returncode}")


EXIT_PROBLEM = 1
DEFAULT_FOLDER = Settings().data_dir  # without the environment: what nobody named
STYLES = {Level.FINE: "green", Level.NOTICE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@click.command()
@click.argument("run", type=PATH, required=False, help="Data folder of a run; the usual one if none.")
@click.option("--config", help="Only this config.")
@click.option("--quick", is_flag=True, help="Leave games and networks alone.")
@as_json
@on_data_folder
def doctor(run: Path | None, config: str | None, quick: bool, as_json: bool) -> None:
    """Examine a run and say in plain words what is wrong and what to do; exit code 1 if anything is grave."""
    with plain_errors():
        use_data_folder(run)
        _check_named_folder()
        wanted = DEFAULT_CONFIGS if config is None else parse_configs(config)
        if not has_run():
            check_not_lost(get_settings())
        if not as_json:
            _announce(wanted, quick=quick)
        held_back: dict[str, str] = {}
        if has_run():
            findings, held_back = ask_engine(lambda engine: _examine_run(engine, config, quick=quick))
        else:
            findings = asyncio.run(_examine_folder(wanted[0], quick=quick))
        findings = [*_examine_installation(), *findings]
    grave = any(each.level is Level.PROBLEM for each in findings)
    if as_json:
        report = {"run": str(get_settings().data_dir), "problem": grave, "findings": findings}
        print_json({**report, "held_back": held_back})
    else:
        _show_held_back(held_back)
        _show(findings, about="" if has_run() else "the machine; there is no run here that could be examined")
    if grave:
        raise click.exceptions.Exit(EXIT_PROBLEM)


def _check_named_folder() -> None:
    """A folder that somebody named and that is not there is a mistake, not a run in good health."""
    check_data_folder()
    folder = get_settings().data_dir
    if not folder.exists() and folder != DEFAULT_FOLDER:
        raise ConfigError(f"there is no folder {folder}, so there is no run to examine")


def _examine_installation() -> list[Finding]:
    """Whether a run could do its jobs at all."""
    try:
        check_learning_libraries(get_settings())
    except ConfigError as error:
        return [Finding(check="installation", level=Level.PROBLEM, text=str(error))]
    return []


def _announce(wanted: Sequence[str], *, quick: bool) -> None:
    """Say first what takes long, and what cannot be examined at all."""
    if not has_run():
        folder = get_settings().data_dir
        console().print(f"There is no run in {folder} yet: this is about the machine and {wanted[0]}.")
    if not quick:
        console().print("Examining games and networks; this takes a minute or two a config…\n")


async def _examine_run(
    engine: Engine, config: str | None, *, quick: bool
) -> tuple[list[Finding], dict[str, str]]:
    """The findings, and what holds the learning of each config back."""
    kv, settings = engine.kv, get_settings()
    wanted = await configs_of(kv) if config is None else (await require_config(kv, config),)
    rules, states, jump_s = configured_rules(settings), [], 0.0
    for each in wanted:
        facts = await read_facts(kv, each)
        for fact in facts:
            # The rules in force are those of the last fact that changed them, not those of the settings
            # alone.
            rules = rules_of(fact) or rules
        states.append(fold(each, facts, bucket_rules=rules.bucket))
        jump_s = min(jump_s, largest_step_back_s(facts))
    # Store and files first: what they say explains much of what the other checks find.
    failed = [*await store_findings(kv, settings), *await file_findings(engine.blobs, states)]
    failed += [] if quick else await _diagnose(engine, states, rules)
    now_s = system_runtime().now_s()
    context = await look_around(kv, wanted, rules, now_s=now_s, data_dir=settings.data_dir)
    alive = is_master_loop_running()
    context = replace(context, is_running=alive, started_s=await _started_s(engine), clock_jump_s=jump_s)
    # With one config named the work of the others is not known, nor is what nobody used.
    all_known = alive and config is None
    idle = idle_slots(states, context.workers, context.running, now_s=now_s) if all_known else None
    held_back = {
        # Of a run that is stopped, what held it back when it was.
        state.config: bottleneck(state, rules, now_s=now_s if alive else state.last_s, idle=idle).text
        for state in states
    }
    return _with_what_is_fine([*failed, *examine(states, context)], context), held_back


async def _diagnose(engine: Engine, states: Sequence[ConfigState], rules: LearningRules) -> list[Finding]:
    """Examine games and networks of each config; returns why where that was not possible."""
    failed = []
    for state in states:
        found = await diagnose(engine.blobs, state, rules)
        if isinstance(found, Diagnosis):
            await keep_diagnosis(engine.kv, found)
        else:
            failed.append(found)
    return failed


async def _examine_folder(config: str, *, quick: bool) -> list[Finding]:
    """Before a run: whether the machine has room, and whether game and network are sound."""
    settings = get_settings()
    rules = configured_rules(settings)
    state = ConfigState(config, rules.bucket)
    found = [] if quick else [await diagnose(None, state, rules)]
    failed = [each for each in found if isinstance(each, Finding)]
    free, total = await asyncio.to_thread(disk_usage, settings.data_dir)
    context = ExaminationContext(
        now_s=system_runtime().now_s(),
        rules=rules,
        disk_free_bytes=free,
        disk_total_bytes=total,
        diagnoses={config: [each for each in found if isinstance(each, Diagnosis)]},
    )
    return _with_what_is_fine([*failed, *examine([state], context)], context)


async def _started_s(engine: Engine) -> float:
    status = await read_run_status(engine.kv)
    return 0.0 if status is None else status.started_s


def _with_what_is_fine(findings: list[Finding], context: ExaminationContext) -> list[Finding]:
    """Add what the job looked at and found in order."""
    # `examine` speaks of what is wrong; that something was looked at and is fine is worth a line, too.
    newest = [of[-1] for of in context.diagnoses.values() if of]
    return findings + [each for one in newest for each in one.findings if each.level is Level.FINE]


def _show_held_back(held_back: Mapping[str, str]) -> None:
    for config, text in held_back.items():
        console().print(Text(f"Learning of {config} is held back by {_sentence(text)}", style="bold"))


def _show(findings: Sequence[Finding], *, about: str) -> None:
    say = console().print
    for each in findings:
        say(Text.assemble((f"{each.level:<8}", STYLES[each.level]), " ", _sentence(each.text)))
        if each.advice:
            say(Text(f"         {each.advice}", style="dim"))
    if all(each.level is Level.FINE for each in findings):
        what = f" with {about}" if about else ""
        say(Text(f"\nNothing wrong was found{what}.", style="green"))
    # So that nobody takes silence for a check that was not made.
    silent = {*RUN_CHECKS, *CONFIG_CHECKS} - {each.check for each in findings}
    if silent:
        say(Text(f"\nNothing to say of: {', '.join(sorted(silent)).replace('_', ' ')}", style="dim"))


def _sentence(text: str) -> str:
    """With a full stop; the first letter stays, because it may be that of a name."""
    return text if text.endswith(".") else f"{text}."
