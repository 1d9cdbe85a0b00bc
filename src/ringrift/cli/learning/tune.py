"""`ringrift tune [CONFIG]`: search for better parameters in the run, watch it, or search beside the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ringrift.cli.command import as_json, on_data_folder, plain_errors, print_json
from ringrift.cli.data_folder import ask_engine, change_engine, require_config
from ringrift.cli.format import NOTHING, clock, console, print_table
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import is_master_loop_running
from ringrift.engine.ports import Blobs, Engine
from ringrift.engine.records import read_record
from ringrift.errors import ConfigError, Conflict
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.learning.facts.ledger import known_configs, read_facts
from ringrift.learning.facts.state import ConfigState, fold
from ringrift.learning.plan.rules import LearningRules, configured_rules, rules_of
from ringrift.learning.tuning import (
    HEURISTIC,
    SEARCH,
    OptimizationRun,
    OptimizationType,
    Search,
    TuningStore,
    lacking,
    order_search,
    subject_of,
    trials,
    tune_order,
)
from ringrift.runtime import Runtime, system_runtime
from ringrift.task_owner import TaskOwner
from ringrift.work.job.folder import JobFolder, lay_out
from ringrift.work.job.protocol import JobOrder, job_argv, job_environment
from ringrift.work.job.runner import Fate, JobTask, RunningJob, judge, limits_for
from ringrift.work.worker.records import RunningRecord, running_key

# A search for better parameters in a process of its own, beside any run: laid out, run and watched here.


LOOK_S = 1.0  # a person watches
ID = "tune.here"

Tell = Callable[[str, dict[str, Any]], None]  # what the job says last, and what it found so far


async def search_here(
    order: JobOrder, folder: Path, blobs: Blobs, runtime: Runtime, tell: Tell
) -> dict[str, Any]:
    """Run *order* in *folder*, which a later call with the same order goes on in; returns its result.

    Raises `Conflict` with the job's own words if it does not end well.
    """
    place, settings = JobFolder(folder), get_settings()
    await lay_out(place, order, blobs)
    said = settings.job("tune")
    task = JobTask(
        argv=job_argv("tune", said),
        env=job_environment(
            item_id=ID,
            kind="tune",
            config=order.config,
            out=str(place.out.absolute()),
            trace={},
            also=said.env,
        ),
        folder=place.out,
        params=place.params,
        log=place.log,
        limits=limits_for("tune", order, said),
        grace_s=settings.job_grace_period,
    )
    job = RunningJob(task, runtime=runtime)
    # Beside the job, and not in a group with it: an error of the job must come out as it is.
    beside = TaskOwner("tune")
    beside.create_task(_watch(job, runtime, tell))
    try:
        end = await job.run()
    finally:
        await beside.stop(LOOK_S)
    verdict = judge(end, attempt=1)
    if verdict.fate is not Fate.COMPLETE or end.job_output.result is None:
        raise Conflict(f"the search did not end well: {verdict.error or 'it said nothing'}; see {place.log}")
    return end.job_output.result


async def _watch(job: RunningJob, runtime: Runtime, tell: Tell) -> None:
    while True:
        await runtime.sleep(LOOK_S)
        tell(job.job_output.last_line, job.job_output.extra)


KINDS = [str(kind) for kind in OptimizationType]


@click.command()
@click.argument("config", required=False, help="A config of the run; without one, the searches so far.")
@click.option(
    "--kind", type=click.Choice(KINDS), default="halving", show_default=True, help="What to search."
)
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the job `tune`.")
@click.option("--reason", default="", help="Kept with the search.")
@click.option("--here", is_flag=True, help="Search in this process's care, beside any run, changing nothing.")
@click.option("--no-wait", is_flag=True, help="Order it and return; `ringrift tune` shows how it goes.")
@as_json
@on_data_folder
def tune(
    config: str | None,
    kind: str,
    given: tuple[str, ...],
    reason: str,
    here: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Search for better parameters; what a match shows to be better is used from then on, and kept by a test.

    By cmaes of the settings of the champion's search, or, with `--set subject=heuristic` and before there is
    a champion, of the weights of the RingRift heuristic, which change nothing in the run; by halving and pbt
    of how a network is trained; by nas of its size.
    """
    with plain_errors():
        if config is None:
            _list(*ask_engine(_read_all), as_json)
            return
        search = Search(
            kind=OptimizationType(kind),
            config=config,
            reason=reason,
            params=_params(given),
            own_program=bool(get_settings().job("tune").command),
        )
        if here:
            result = change_engine(lambda engine: _search_here(engine, search, quiet=as_json))
            _show_result(config, kind, result, as_json)
            return
        run = change_engine(lambda engine: _in_the_run(engine, search, wait=not no_wait, quiet=as_json))
    _show_run(run, as_json)


async def _read_all(engine: Engine) -> tuple[list[OptimizationRun], dict[str, list[str]]]:
    """All searches, and by config what became of what they found."""
    runs = await TuningStore(engine.kv).runs()
    configs = dict.fromkeys(run.config_key for run in runs if run.improved)
    known = [config for config in configs if config in await known_configs(engine.kv)]
    states = [(await _read_state(engine, config))[0] for config in known]
    return runs, {state.config: [trial.in_words() for trial in trials(state)] for state in states}


def _params(given: tuple[str, ...]) -> dict[str, Any]:
    """Values are JSON where they are, and text otherwise."""
    params: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {each}: write NAME=VALUE, such as trials=8")
        try:
            params[name.replace("-", "_")] = parse_json(value)
        except NoDocument:
            params[name.replace("-", "_")] = value
    return params


async def _read_state(engine: Engine, config: str) -> tuple[ConfigState, LearningRules]:
    await require_config(engine.kv, config)
    facts = await read_facts(engine.kv, config)
    rules = configured_rules(get_settings())
    for fact in facts:
        rules = rules_of(fact) or rules
    return fold(config, facts, bucket_rules=rules.bucket), rules


async def _in_the_run(engine: Engine, search: Search, *, wait: bool, quiet: bool) -> OptimizationRun:
    """Order it, or find it under way, and follow it to its end."""
    store, runtime = TuningStore(engine.kv), system_runtime()
    state, rules = await _read_state(engine, search.config)
    if not is_master_loop_running():
        raise Conflict(f"nothing runs in {get_settings().data_dir}: start `ringrift run`, or add --here")
    # One search at a time: a second order of the same kind follows the one under way.
    run = await store.open_run()
    if run is None or (run.config_key, run.optimization_type) != (search.config, search.kind):
        run = await order_search(engine, runtime, search, state, rules)
    if not quiet:
        console().print(f"{run.run_id}: {run.reason}", markup=False)
    text = ""
    while wait and run.status.is_open:
        await runtime.sleep(LOOK_S)
        line = await _line(engine, run)
        if line != text and not quiet:
            console().print(f"  {line}", markup=False)
        text = line
        run = await store.get(run.run_id) or run
    return run


async def _line(engine: Engine, run: OptimizationRun) -> str:
    record = await read_record(engine.kv, running_key(run.run_id), RunningRecord)
    if record is None:
        return "waits for a worker" if run.status == "pending" else "is being taken in"
    return _with_best(record.line, record.extra)


def _with_best(line: str, extra: dict[str, Any]) -> str:
    best = extra.get("best_score")
    return f"{line}; best so far {best:.4g}" if isinstance(best, int | float) else line


async def _search_here(engine: Engine, search: Search, *, quiet: bool) -> dict[str, Any]:
    state, rules = await _read_state(engine, search.config)
    order = tune_order(search.kind, search.config, state, rules, **search.params)
    if order is None:
        raise Conflict(f"{search.config} has no {lacking(search)} yet")
    # Named by what is searched, so that the same command finds its earlier trials.
    folder = get_settings().data_dir / "tuning" / f"{search.config}-{search.kind}"
    last = [""]  # a cell that the function below may change

    def tell(line: str, extra: dict[str, Any]) -> None:
        said = _with_best(line, extra)
        if said and said != last[0] and not quiet:
            console().print(f"  {said}", markup=False)
        last[0] = said

    if not quiet:
        console().print(f"searching in {folder}; stopped, the same command goes on", markup=False)
    return await search_here(order, folder, engine.blobs, system_runtime(), tell)


def _show_run(run: OptimizationRun, as_json: bool) -> None:
    if as_json:
        print_json(run)
    elif run.status.is_open:
        console().print("It goes on; `ringrift tune` shows how.")
    elif run.error:
        console().print(f"{run.status}: {run.error}", markup=False)
    else:
        _print_finding(str(run.optimization_type), run.best_params, run.best_score, improved=run.improved)
        if run.improved:
            used = {SEARCH: "games", HEURISTIC: ""}.get(subject_of(run), "trainings")
            text = (
                f"The next {used} of {run.config_key} use it"
                if used
                else "It is an anchor, and stays as it is"
            )
            console().print(f"{text}.", markup=False)
    if run.error:
        raise click.exceptions.Exit(1)


def _show_result(config: str, kind: str, result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"config": config, **result})
        return
    found = dict(result.get("best_params", {}))
    _print_finding(kind, found, result.get("best_score"), improved=bool(result.get("improved")))
    console().print("The run was not changed; put what you like into [learning] of the config file.")


def _print_finding(kind: str, found: dict[str, Any], score: float | None, *, improved: bool) -> None:
    rows = [(name, f"{value:g}" if isinstance(value, float) else str(value)) for name, value in found.items()]
    print_table(f"The best of {kind}", ("parameter", "value"), rows)
    text = NOTHING if score is None else f"{score:.4g}"
    shown = "a match on fresh games showed that it is better" if improved else "not shown to be better"
    console().print(f"score {text}: {shown} than what is in use")


def _list(runs: list[OptimizationRun], found: dict[str, list[str]], as_json: bool) -> None:
    if as_json:
        print_json(runs)
        return
    if not runs:
        console().print("No search was ever ordered here; `ringrift tune CONFIG` orders one.")
        return
    rows = [
        (
            run.run_id,
            run.config_key,
            clock(run.started_s),
            str(run.status),
            NOTHING if run.best_score is None else f"{run.best_score:.4g}",
            "yes" if run.improved else "no",
            run.error or run.reason,
        )
        for run in runs
    ]
    print_table("Searches", ("search", "config", "began", "state", "score", "better", "why"), rows)
    for config, words in found.items():
        for each in words:
            console().print(f"{config}: {each}", markup=False)
