"""Checks of what a run keeps: its facts against the high-water mark, and the files that its facts name.

Files are read whole, those that are needed next first, as far as a bound on the bytes goes. One that is not
here is no damage by itself: it may have been given up because other nodes have it. The champion never is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from ringrift.engine.ports import Blobs, KeyValue
from ringrift.engine.sqlite.config import SqliteConfig
from ringrift.engine.sqlite.whole_check import check_whole
from ringrift.errors import Corrupt
from ringrift.learning.doctor_findings import Finding, Level
from ringrift.learning.records import ShardState
from ringrift.learning.run_check import check_store
from ringrift.learning.state import ConfigState
from ringrift.settings import Settings

BYTES_MAX = 2 << 30
NAMED_MAX = 5
CHAMPION = "champion"


async def store_findings(kv: KeyValue, settings: Settings) -> list[Finding]:
    """Whether the database is whole, and whether the run had come further than it knows."""
    found = await check_store(kv, settings.data_dir)
    damaged = await asyncio.to_thread(check_whole, SqliteConfig.from_settings(settings))
    advice = "Restore a backup with `ringrift data restore`, or `ringrift rebuild`."
    lost = [
        Finding(check="store", level=Level.PROBLEM, text=what, advice=advice)
        for what in (*found.lost, *damaged)
    ]
    return lost + [Finding(check="store", level=Level.WARNING, text=note) for note in found.notes]


async def file_findings(
    blobs: Blobs, states: Sequence[ConfigState], *, bytes_max: int = BYTES_MAX
) -> list[Finding]:
    """Which files that the facts name are damaged or not here."""
    found, left = [], bytes_max
    for state in states:
        missing, damaged = [], []
        for what, digest in needed_files(state):
            size = await blobs.size(digest)
            if size is None:
                missing.append(f"{what} {digest}")
            elif size <= left:
                left -= size
                try:
                    await blobs.verify(digest)
                except (Corrupt, KeyError):
                    damaged.append(f"{what} {digest}")
        without_champion = any(text.startswith(CHAMPION) for text in missing)
        for texts, level, how, advice in (
            (damaged, Level.PROBLEM, "damaged", "A job that needs one sets it aside and looks for a copy."),
            (
                missing,
                Level.PROBLEM if without_champion else Level.NOTICE,
                "not here",
                "If no other node or archive has them they are lost.",
            ),
        ):
            if texts:
                named = ", ".join(texts[:NAMED_MAX]) + (", …" if len(texts) > NAMED_MAX else "")
                text = (
                    f"files that the facts of {state.config} name and that are {how} ({len(texts)}): {named}"
                )
                found.append(
                    Finding(check="files", level=level, text=text, advice=advice, config=state.config)
                )
    return found


def needed_files(state: ConfigState) -> Iterator[tuple[str, str]]:
    """What each file is, and its digest; those that are needed next come first."""
    models = sorted(state.models.values(), key=lambda model: (model.digest != state.champion, -model.number))
    for model in (*models, *state.students.values()):
        yield (CHAMPION if model.digest == state.champion else "model"), model.digest
        yield "card", model.card
    if state.newest_samples is not None:
        yield "samples", state.newest_samples.digest
    for shard in reversed(state.shards.values()):
        if shard.state is not ShardState.REFUSED:
            yield "games", shard.digest
            if shard.report is not None:
                yield "report", shard.report
