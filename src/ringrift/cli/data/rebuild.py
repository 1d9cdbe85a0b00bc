"""`ringrift rebuild`: the facts of a run made again from its sealed files, when its database is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from ringrift.cli.command import as_json, check_data_folder, has_run, on_data_folder, plain_errors, print_json
from ringrift.cli.format import console, count, print_table
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import MasterLoopGuard
from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.backup.service import archives
from ringrift.data.config import read_nodes
from ringrift.data.manifest.catalog import card_of, card_of_record
from ringrift.data.manifest.file_facts import read_facts as facts_of_file
from ringrift.data.manifest.store import ManifestStore
from ringrift.data.protection.integrity import KNOWN_KINDS
from ringrift.engine.opening import allow_new_database, close_engine, get_engine
from ringrift.engine.ports import Engine, Entry, KeyValue
from ringrift.engine.sqlite.blobs import BlobFolder
from ringrift.errors import AlreadyExists, ConfigError, Conflict, Corrupt, RingRiftError
from ringrift.files import file_sha256
from ringrift.learning.facts.facts import AnyFact
from ringrift.learning.facts.high_water import ConfigMark
from ringrift.learning.facts.ledger import Ledger, known_configs, prefix_of, remember_config, sound_facts
from ringrift.learning.facts.store_check import MarkWriter, check_store, set_state_aside
from ringrift.learning.models import ChampionPointers
from ringrift.learning.plan.rules import configured_rules
from ringrift.learning.replay import UNRECORDED, FoundShard, RebuiltConfig, rebuild, unrecorded
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings
from ringrift.work.job.protocol import SealedJob, read_job_record

VERIFIER = "rebuild"
SAY_EVERY = 500  # files; each is read whole, so a large folder takes minutes
DAMAGED_SHOWN = 20


@dataclass(slots=True)
class SealedFiles:
    """What the blobs of a folder tell."""

    files: int = 0
    jobs: list[SealedJob] = field(default_factory=list)
    shards: list[FoundShard] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # of all that are sound
    artifacts: list[Artifact] = field(default_factory=list)  # of records, and of what else tells what it is
    damaged: list[str] = field(default_factory=list)
    snapshots: int = 0  # databases that somebody sealed


@click.command("rebuild")
@as_json
@on_data_folder
def rebuild_command(as_json: bool) -> None:
    """Make the facts of a run again from its sealed files as far as they go, and say what is missing.

    Facts that are there and sound stay. The database and what spoke of it are moved to `set_aside` first.
    """
    with plain_errors():
        check_data_folder()
        settings, runtime = get_settings(), system_runtime()
        if not settings.blob_dir.is_dir():
            raise _nothing_sealed(settings)
        # Held to the end: a run that started meanwhile would write into what is being replaced.
        with _no_run(settings):
            found = _read_files(settings, quiet=as_json)
            asyncio.run(_rebuild(settings, runtime, found, quiet=as_json))


def _no_run(settings: Settings) -> MasterLoopGuard:
    guard = MasterLoopGuard()
    try:
        guard.acquire()
    except AlreadyExists:
        raise Conflict(f"a run is alive in {settings.data_dir}; stop it with `ringrift stop` first") from None
    return guard


# --- reading ------------------------------------------------------------------------------------------------


def _read_files(settings: Settings, *, quiet: bool) -> SealedFiles:
    """Read every sealed file of the folder whole; one that is damaged tells nothing."""
    folder, found = BlobFolder(settings.blob_dir, lambda: ""), SealedFiles()
    digests = folder.digests()
    if not digests:
        raise _nothing_sealed(settings)
    for number, digest in enumerate(digests, start=1):
        if not quiet and number % SAY_EVERY == 0:
            console().print(f"read {count(number)} of {count(len(digests))} files")
        _read_one(folder.place(digest), digest, found)
    return found


def _nothing_sealed(settings: Settings) -> ConfigError:
    return ConfigError(f"there are no sealed files in {settings.blob_dir}; there is nothing to rebuild from")


def _read_one(path: Path, digest: str, found: SealedFiles) -> None:
    found.files += 1
    try:
        # The name of a file is what its content must hash to: nothing of one that does not is believed.
        if file_sha256(path) != digest:
            found.damaged.append(digest)
            return
        # Its time stands in for that of the job that made it, whose record may be lost.
        stat = path.stat()
        job = read_job_record(path)
        facts = facts_of_file(path)
    except (OSError, Corrupt):
        found.damaged.append(digest)
        return
    found.sizes[digest] = stat.st_size
    if job is not None:
        found.jobs.append(job)
        found.artifacts.append(card_of_record(job, digest, stat.st_size, node=""))
        return
    if facts.kind in KNOWN_KINDS and not facts.problem:
        artifact = Artifact(
            digest=digest,
            size=stat.st_size,
            kind=facts.kind,
            name=digest[:16],
            config=facts.config,
            games=facts.games,
            rows=facts.rows,
            created_s=stat.st_mtime,
        )
        found.artifacts.append(artifact)
    if facts.kind is ArtifactKind.GAMES and facts.config and not facts.problem:
        shard = FoundShard(
            digest=digest,
            config=facts.config,
            games=facts.games,
            rows=facts.rows,
            size_bytes=stat.st_size,
            made_s=stat.st_mtime,
        )
        found.shards.append(shard)
    # Copies of databases are only counted: what is in one is older than the files beside it.
    found.snapshots += facts.kind is ArtifactKind.SNAPSHOT


async def _read_database() -> tuple[dict[str, list[AnyFact]], bool]:
    """The sound facts of the database that is there, and whether all of it can be built upon."""
    if not has_run():
        return {}, False
    try:
        engine = await get_engine()
    except Corrupt:
        return {}, False
    try:
        kept, whole = {}, True
        for config in await known_configs(engine.kv):
            entries = await engine.kv.entries(prefix_of(config))
            kept[config] = await asyncio.to_thread(sound_facts, config, entries)
            # One fact that cannot be read breaks the chain of those behind it.
            whole &= len(kept[config]) == len(entries)
        return kept, whole
    except Corrupt:  # a value is damaged, and nobody knows what else
        return await _facts_one_by_one(engine.kv), False
    finally:
        await close_engine()


async def _facts_one_by_one(kv: KeyValue) -> dict[str, list[AnyFact]]:
    """The sound facts of a database in which reading all at once fails."""
    kept: dict[str, list[AnyFact]] = {}
    try:
        configs = await known_configs(kv)
    except Corrupt:
        return kept
    for config in configs:
        entries: list[Entry] = []
        while True:
            try:
                # Facts are numbered without a gap, so the next key is known, and the first that fails is
                # the end.
                entry = await kv.get(f"{prefix_of(config)}{len(entries) + 1:010d}")
            except Corrupt:
                break
            if entry is None:
                break
            entries.append(entry)
        kept[config] = await asyncio.to_thread(sound_facts, config, entries)
    return kept


# --- making -------------------------------------------------------------------------------------------------


async def _rebuild(settings: Settings, runtime: Runtime, found: SealedFiles, *, quiet: bool) -> None:
    kept, whole = await _read_database()
    rules = configured_rules(settings)
    configs = sorted({*kept, *(job.order.config for job in found.jobs), *(s.config for s in found.shards)})
    made = [
        await asyncio.to_thread(
            rebuild, config, kept.get(config, []), found.jobs, found.shards, rules, now_s=runtime.now_s()
        )
        for config in configs
    ]
    aside: Path | None = None
    changed = not whole or any(each.made for each in made)
    if changed:
        # What was there is kept, whatever it is worth: a rebuild knows only what the files tell.
        aside = await asyncio.to_thread(set_state_aside, settings, runtime.now_s())
        await _write(settings, runtime, found, made)
    known = _archives(settings, runtime)
    if quiet:
        print_json(_document(found, made, aside, known))
        return
    _tell(found, made)
    _tell_change(aside, changed=changed)
    if known:
        text = f"An archive may know more: `ringrift data restore {known[0]} --replace`."
        console().print(text, markup=False)


async def _write(
    settings: Settings, runtime: Runtime, found: SealedFiles, made: Sequence[RebuiltConfig]
) -> None:
    """Into a new database: a half-written one is no run, since its mark comes last."""
    allow_new_database()
    engine: Engine = await get_engine()
    try:
        marks = {}
        for each in made:
            await remember_config(engine.kv, each.config)
            ledger = await Ledger.open(engine.kv, each.config, bucket_rules=each.state.bucket_rules)
            for fact in each.facts:
                await ledger.append(fact)
            state = ledger.state
            # Written now, so that readers find the champion before a run has started.
            await ChampionPointers(engine.kv).follow(state)
            marks[each.config] = ConfigMark(facts=state.facts, last_hash=ledger.last_hash, games=state.games)
        await _register(engine, found, settings.node_name or runtime.hostname, runtime.now_s())
        await MarkWriter(engine.kv, runtime, settings.data_dir).keep(marks)
        # The check that a run makes at its start: better it fails here than then.
        await check_store(engine.kv, settings.data_dir)
    finally:
        await close_engine()


async def _register(engine: Engine, found: SealedFiles, node: str, now_s: float) -> None:
    """Have the manifest know the files again; all of them were read whole a moment ago."""
    manifest, artifacts = ManifestStore(engine.kv), dict[str, Artifact]()
    for job in found.jobs:
        for each in job.report.artifacts:
            if each.digest in found.sizes:
                artifact = card_of(each, config=job.order.config, node=node, created_s=job.ended_s)
                # A job says more of its file than the file itself, and comes first.
                artifacts.setdefault(each.digest, artifact)
    for artifact in found.artifacts:
        artifacts.setdefault(artifact.digest, replace(artifact, node=node))
    await manifest.register(artifacts.values())
    receipts = [
        Receipt(digest=each, node=node, size=found.sizes[each], verified_s=now_s, verifier=VERIFIER)
        for each in artifacts
    ]
    await manifest.add_receipts(receipts)


# --- telling ------------------------------------------------------------------------------------------------


def _tell(found: SealedFiles, made: Sequence[RebuiltConfig]) -> None:
    say = console().print
    rows = [
        (
            each.config,
            count(each.kept),
            count(each.made),
            count(each.state.games),
            count(sum(shard.games for shard in each.state.unchecked())),
            str(len(each.state.models)),
            str(len(each.state.matches)),
            (each.state.champion or "none")[:12],
        )
        for each in made
    ]
    heads = ("config", "facts kept", "made again", "games", "unchecked", "models", "matches", "champion")
    print_table(f"from {count(found.files)} sealed files", heads, rows)
    for each in made:
        for sentence in unrecorded(each):
            say(f"{each.config}: {sentence}", markup=False)
    for digest in found.damaged[:DAMAGED_SHOWN]:
        say(f"damaged and not used: {digest}", markup=False)


def _tell_change(aside: Path | None, *, changed: bool) -> None:
    say = console().print
    if not changed:
        say("Everything that the files tell is in the database already; nothing was changed.")
        return
    before = "" if aside is None else f"What was there before is in {aside}. "
    say(f"{before}No file tells of: {'; '.join(UNRECORDED)}.", markup=False)
    say("`ringrift run` goes on from here.")


def _archives(settings: Settings, runtime: Runtime) -> list[str]:
    try:
        nodes = read_nodes(settings.node_name or runtime.hostname, settings.nodes)
    except RingRiftError:
        return []
    return [node.name for node in archives(nodes)]


def _document(
    found: SealedFiles, made: Sequence[RebuiltConfig], aside: Path | None, known: list[str]
) -> dict[str, Any]:
    return {
        "files": found.files,
        "damaged": found.damaged,
        "snapshots": found.snapshots,
        "set_aside": None if aside is None else str(aside),
        "archives": known,
        "untold": UNRECORDED,
        "configs": {
            each.config: {
                "kept": each.kept,
                "made": each.made,
                "jobs": each.jobs,
                "lost_jobs": each.lost,
                "games": each.state.games,
                "games_unchecked": sum(shard.games for shard in each.state.unchecked()),
                "rows": each.state.rows,
                "models": len(each.state.models),
                "matches": len(each.state.matches),
                "promotions": len(each.state.promotions),
                "champion": each.state.champion,
                "missing": list(unrecorded(each)),
            }
            for each in made
        },
    }
