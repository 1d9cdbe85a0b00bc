"""`ringrift data backup`, `restore` and `check`: a run and its files to an archive, back, and read again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ringrift.cli.command import as_json, has_run, on_data_folder, plain_errors, print_json
from ringrift.cli.data.plane import WatchedTransfers, ask_plane, bars, files_text, move_with_bars, size_text
from ringrift.cli.format import clock, console, count, parse_moment
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import read_master_loop
from ringrift.data.artifacts import DATA_TYPES, kinds_of
from ringrift.data.backup.archive import MARKER, ArchiveIndex
from ringrift.data.backup.daemons import ArchiveBackup, BackupReport, the_archive
from ringrift.data.backup.restore import (
    ArchiveCheck,
    ArchiveFindings,
    RestoredRun,
    RunRestore,
    archived_states,
    choose_state,
)
from ringrift.data.backup.run_states import RunState
from ringrift.data.config import DataNode, DataNodes, read_nodes
from ringrift.data.plane import DataPlane, Transfers, assemble_transfers
from ringrift.data.protection.records import set_damaged_aside
from ringrift.data.transfer.archive import open_archive
from ringrift.engine.lock_files import LockFile
from ringrift.engine.ports import Engine
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import ConfigError, Conflict
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.files import make_private_folder
from ringrift.learning.facts.high_water import forget_mark
from ringrift.learning.facts.ledger import known_configs, read_facts
from ringrift.runtime import system_runtime

EXIT_INCOMPLETE = 1  # something was brought, and something was not
EXIT_DAMAGED = 1
SHOWN = 20

archive_name = click.argument(
    "archive", required=False, default="", metavar="[ARCHIVE]", help="A node that is an archive."
)
data_type = click.option(
    "--type", "data_type", type=click.Choice(list(DATA_TYPES)), default="all", help="Only these files."
)


def _nodes() -> DataNodes:
    settings = get_settings()
    return read_nodes(settings.node_name or system_runtime().hostname, settings.nodes)


# --- backup -------------------------------------------------------------------------------------------------


@click.command("backup")
@archive_name
@data_type
@click.option("--prepare", is_flag=True, help="Make an empty drive an archive first.")
@click.option(
    "--memory/--no-memory",
    default=True,
    show_default=True,
    help="Also the state of the run: what was counted and decided, ratings, champions.",
)
@as_json
@on_data_folder
def backup(archive: str, data_type: str, prepare: bool, memory: bool, as_json: bool) -> None:
    """Bring this node's files that an archive lacks to it, then the state of the run."""

    async def work(plane: DataPlane, _bars: Any) -> tuple[BackupReport, RunState | None]:
        to = ArchiveBackup(plane, the_archive(plane.nodes, archive))
        if prepare:
            await to.prepare()
        await to.index.objects.ready(to_write=True)
        # Counted before anything is sent: afterwards nobody could tell what was there already.
        before = set(await plane.blobs.digests()).intersection(await to.index.digests())
        report = await to.send(await to.lacking(kinds=kinds_of(data_type)))
        state, named = None, list[BackupReport]()
        # A state names files: one that the archive lacks would make the state a promise it cannot keep.
        if memory and not report.failed:
            state = await to.back_up_state("asked for", even_if_same=True, sent=named)
        return replace(sum(named, report), already=len(before)), state

    with plain_errors():
        report, state = move_with_bars(work, quiet=as_json)
    answer = None if state is None else _state_facts(state)
    _tell_report(report, "backed up to", as_json=as_json, more={"state": answer})
    if state is not None and not as_json:
        console().print(f"state of {_state_text(state)}", markup=False)
        _tell_lost(state)
    if report.failed:
        raise click.exceptions.Exit(EXIT_INCOMPLETE)


# --- restore ------------------------------------------------------------------------------------------------


@click.command("restore")
@archive_name
@click.option(
    "--digest", "digests", multiple=True, metavar="DIGEST", help="Only this file; may be given again."
)
@data_type
@click.option("--config", default="", metavar="CONFIG", help="Only files of this config.")
@click.option("--node", default="", metavar="NODE", help="The state of this node's run.")
@click.option(
    "--run", "run_id", default="", metavar="RUN", help="The state of this run, or how its id begins."
)
@click.option(
    "--at", "until", default="", metavar="TIME", help="The last state before then, such as '2h ago'."
)
@click.option(
    "--memory/--no-memory",
    default=None,
    help="With or without the state of the run; by default with it into a folder without a run.",
)
@click.option("--replace", is_flag=True, help="Put the state in place of the run that is here.")
@click.option("--incomplete", is_flag=True, help="Go on though files that the state names are missing.")
@as_json
@on_data_folder
def restore(archive: str, as_json: bool, **given: Any) -> None:
    """Bring a run back from an archive, or only files; every byte is verified before anything counts.

    Into a folder without a run comes the state of a run with all its files, and `ringrift run` goes on there.
    Where a run is, only files come; so it is with --digest, --type and --config.
    """
    selects = bool(given["digests"] or given["config"] or given["data_type"] != "all")
    chooses = bool(given["node"] or given["run_id"] or given["until"] or given["replace"])
    with plain_errors():
        if selects and (chooses or given["memory"]):
            raise ConfigError(
                "a state comes with all its files; --digest, --type and --config do not go with it"
            )
        _check_no_archive(get_settings().data_dir)
        here = has_run()
        wants_state = given["memory"]
        if wants_state is None:
            # Whoever names a node, a run or a time means its state; else only an empty folder gets one
            # unasked.
            wants_state = chooses or not (here or selects)
        state = _chosen_state(archive, given) if wants_state else None
        if state is None:
            found = move_with_bars(
                lambda plane, _: _files(plane, archive, given), quiet=as_json, may_make=True
            )
            whole = not found.failed
            _tell_report(found, "restored from", as_json=as_json, more={"state": None})
            if not as_json and not selects and given["memory"] is None:
                _tell_no_state(here=here)
        else:
            whole = _restore_run(archive, state, given, as_json=as_json)
    if not whole:
        raise click.exceptions.Exit(EXIT_INCOMPLETE)


def _check_no_archive(data_dir: Path) -> None:
    """An archive is for all nodes, and holds no secrets: a run has no place in it."""
    # Through links: a drive is often mounted under one name and given by another.
    there = data_dir.expanduser().resolve()
    for folder in (there, *there.parents):
        with translated_errors(folder):
            if (folder / MARKER).exists():
                raise ConfigError(f"{data_dir} lies in the archive {folder}; name another folder with --data")


def _tell_no_state(*, here: bool) -> None:
    if here:
        text = "There is a run here, so these are files only and no state was taken"
        console().print(f"{text}; --replace puts the archived state in place of this run.")
    else:
        console().print("The archive has no state of a run: these are files only.")


async def _files(plane: DataPlane, archive: str, given: dict[str, Any]) -> BackupReport:
    source = ArchiveBackup(plane, the_archive(plane.nodes, archive))
    archived, digests = await source.archived(), given["digests"]
    wanted = {text: [file for file in archived if file.artifact.digest.startswith(text)] for text in digests}
    for text, found in wanted.items():
        # A short digest that fits two files must not restore the one that was not meant.
        if len(found) != 1:
            raise ConfigError(f"{len(found)} files of the archive begin with {text!r}")
    chosen = [file for found in wanted.values() for file in found] if digests else archived
    kinds, config = kinds_of(given["data_type"]), given["config"]
    return await source.restore(
        [file for file in chosen if file.artifact.kind in kinds and config in ("", file.artifact.config)]
    )


def _chosen_state(archive: str, given: dict[str, Any]) -> RunState | None:
    """The state that was asked for; None if the archive has none and nobody insists."""
    settings, runtime = get_settings(), system_runtime()
    index = ArchiveIndex(open_archive(the_archive(_nodes(), archive), runtime))

    async def look() -> list[RunState]:
        await index.objects.ready(to_write=False)
        return await archived_states(index)

    states = asyncio.run(look())
    asked = given["memory"] or given["node"] or given["run_id"] or given["until"] or given["replace"]
    if not states and not asked:
        return None
    until = given["until"]
    until_s = parse_moment(until, option="--at", now_s=runtime.now_s()) if until else None
    own = settings.node_name or ""  # a machine that was given its name is asked for by it
    node = given["node"] or (own if not given["run_id"] and any(own == each.node for each in states) else "")
    return choose_state(states, run=given["run_id"], node=node, until_s=until_s)


def _restore_run(archive: str, state: RunState, given: dict[str, Any], *, as_json: bool) -> bool:
    """Bring it here and say so; whether nothing is missing, or may be."""
    settings = get_settings()
    # The live run first: its process would go on writing into a database that is moved aside.
    loop = read_master_loop()
    if loop is not None and loop.is_alive:
        raise ConfigError(
            f"process {loop.pid} runs in {settings.data_dir}; stop it with `ringrift stop` first"
        )
    # Asked under the lock, so that two restores do not both find the folder empty.
    with _alone_in(settings.data_dir):
        if has_run() and not given["replace"]:
            raise ConfigError(
                f"{settings.data_dir} has a run; name another folder with --data, or put the state in its "
                "place with --replace (its database stays, under another name)"
            )
        restored = _bring_run(archive, state, incomplete=given["incomplete"], quiet=as_json)
        forget_mark(settings.data_dir)  # it speaks of what was there before
    _tell_restored(restored, as_json=as_json)
    return given["incomplete"] or not (restored.missing or restored.report.failed)


@contextmanager
def _alone_in(data_dir: Path) -> Iterator[None]:
    """Keep other restores out, and a run from starting; `Conflict` if one is there."""
    with translated_errors(data_dir):
        make_private_folder(data_dir)
        lock = LockFile(data_dir)
    try:
        if not lock.try_lock():
            raise Conflict(f"another restore is at work here, in {data_dir}; wait until it is done")
        yield
    finally:
        lock.close()


def _bring_run(archive: str, state: RunState, *, incomplete: bool, quiet: bool) -> RestoredRun:
    settings, runtime = get_settings(), system_runtime()
    with bars(quiet=quiet) as progress:

        def transfers(plane: DataPlane) -> Transfers:
            quiet = UnifiedEventRouter(enable_cross_process_polling=False)  # there is no run to tell anything
            made = assemble_transfers(
                plane.engine,
                plane.settings,
                plane.runtime,
                nodes=plane.nodes,
                set_aside=partial(set_damaged_aside, plane),
                router=quiet,
            )
            return WatchedTransfers(made, progress)

        source = RunRestore(
            the_archive(_nodes(), archive), settings, runtime, make_transfers=transfers, check=_check_facts
        )
        return asyncio.run(source.restore(state, incomplete=incomplete))


async def _check_facts(engine: Engine) -> None:
    """Read every fact of the restored state; `Corrupt` names the first that is missing or damaged."""
    for config in await known_configs(engine.kv):
        await read_facts(engine.kv, config)


def _tell_restored(restored: RestoredRun, *, as_json: bool) -> None:
    more = {
        "state": _state_facts(restored.state),
        "missing": restored.missing,
        "moved_aside": restored.moved_aside,
    }
    _tell_report(restored.report, "restored from", as_json=as_json, more=more)
    if as_json:
        return
    out, this = console(), _nodes().this.name
    out.print(f"state of {_state_text(restored.state)}", markup=False)
    if restored.state.node != this:
        out.print(
            f"This machine goes by {this!r} and has taken over what was {restored.state.node!r}; "
            f"RINGRIFT_NODE_ID={restored.state.node} would keep the name.",
            markup=False,
        )
    if restored.moved_aside:
        out.print(f"The database that was here is now {restored.moved_aside}", markup=False)
    if not restored.missing:
        out.print("No file that it names is missing.")
    else:
        out.print(f"Missing of the files that it names: {count(len(restored.missing))}", markup=False)
    for digest in restored.missing[:SHOWN]:
        out.print(f"missing: {digest}", markup=False)
    _tell_lost(restored.state)
    out.print("`ringrift run` goes on from there.")


# --- check --------------------------------------------------------------------------------------------------


@click.command("check")
@archive_name
@click.option("--mend", is_flag=True, help="Write wrong parts anew from files of this node.")
@as_json
@on_data_folder
def check(archive: str, mend: bool, as_json: bool) -> None:
    """Read a whole archive again, every file and state; exit code 1 if anything is damaged or missing."""
    with plain_errors():
        node = the_archive(_nodes(), archive)
        findings = asyncio.run(_read_archive(node, mend=mend, quiet=as_json))
        if has_run():
            ask_plane(lambda plane: _note(plane, node, findings))
    if as_json:
        report = {**asdict(findings), "damaged": [asdict(each) for each in findings.damaged]}
        del report["sound"]  # an entry for each file, of most of the output
        print_json(report)
    else:
        _tell_findings(findings)
    if findings.left_damaged:
        raise click.exceptions.Exit(EXIT_DAMAGED)


async def _read_archive(node: DataNode, *, mend: bool, quiet: bool) -> ArchiveFindings:
    blobs = get_settings().blob_dir
    # By path and not through the engine: a check needs no run in the data folder.
    source = (lambda digest: blobs / digest[:2] / digest) if mend else None
    reader = ArchiveCheck(node.name, ArchiveIndex(open_archive(node, system_runtime())), source=source)
    with bars(quiet=quiet) as progress:
        task = progress.add_task(f"reading {node.name}", total=await reader.sizes(), files="")
        return await reader.read_all(lambda read: progress.advance(task, read))


async def _note(plane: DataPlane, node: DataNode, findings: ArchiveFindings) -> None:
    """What was read counts as read now; what is damaged counts no more."""
    now_s, known = plane.runtime.now_s(), (await plane.view()).artifacts
    for file in findings.sound:
        if file.artifact.digest in known:
            receipt = file.receipt(node.name, "data check", verified_s=now_s)
            await plane.manifest.add_receipts([receipt])
    for damage in findings.left_damaged:
        if damage.digest in known:
            await plane.manifest.drop_copy(damage.digest, node.name)


def _tell_findings(found: ArchiveFindings) -> None:
    out = console()
    out.print(
        f"{files_text(found.files)} with {count(found.games)} games and {count(found.states)} states good "
        f"({size_text(found.bytes)} read)."
    )
    for each in found.damaged[:SHOWN]:
        name = " ".join(filter(None, (each.kind or each.what, each.config, each.digest[:12])))
        if each.mended:
            out.print(f"mended: {name}: {each.why}", markup=False)
            continue
        out.print(f"damaged: {name}: {each.key}: {each.why}", markup=False)
        if each.needed_by:
            out.print(f"  needed by: {', '.join(each.needed_by)}", markup=False)
        if each.put_there_by:
            out.print(f"  put there by: {', '.join(each.put_there_by)}", markup=False)
        out.print(f"  {each.advice}", markup=False)
    if (left_out := len(found.damaged) - SHOWN) > 0:
        out.print(f"and {count(left_out)} more; --json lists all")


# --- words --------------------------------------------------------------------------------------------------


def _tell_report(found: BackupReport, verb: str, *, as_json: bool, more: dict[str, Any]) -> None:
    if as_json:
        print_json({**asdict(found), **more})
        return
    already = f"{files_text(found.already)} there already"
    console().print(
        f"{files_text(found.files)}, {count(found.games)} games, {size_text(found.bytes)} {verb} "
        f"{found.archive}; {already}",
        markup=False,
    )
    for digest, why in list(found.failed.items())[:SHOWN]:
        console().print(f"failed: {digest}: {why}", markup=False)


def _tell_lost(state: RunState) -> None:
    if state.lost:
        console().print(
            f"{files_text(len(state.lost))} that it names were lost before: they were neither at "
            f"{state.node} nor in the archive",
            markup=False,
        )


def _state_text(state: RunState) -> str:
    facts = sum(state.facts.values())
    return (
        f"run {state.run or '(not named)'} of node {state.node} at {clock(state.at_s, with_date=True)}: "
        f"{count(facts)} facts, {count(state.games)} games, {count(len(state.champions))} champions"
    )


def _state_facts(state: RunState) -> dict[str, Any]:
    return {
        "run": state.run,
        "node": state.node,
        "at_s": state.at_s,
        "digest": state.digest,
        "facts": state.facts,
        "champions": state.champions,
        "games": state.games,
        "lost": list(state.lost),
    }
