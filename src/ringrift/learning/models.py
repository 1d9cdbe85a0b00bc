"""The models that a run keeps: which are archived, the pointer to each champion, and its files for other
programs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import structlog

from ringrift.engine.ports import Blobs, KeyValue
from ringrift.engine.records import change_record, read_record
from ringrift.errors import Conflict, Corrupt, DigestMismatch
from ringrift.files import (
    create_file,
    file_sha256,
    link_file,
    link_symbolically,
    make_folders,
    remove_file,
    rename_file,
    sync_folder,
)
from ringrift.health.run_status import CHAMPION_PREFIX, Champion
from ringrift.learning.facts.records import Model, ModelState
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging.ratings import Rating, rate

# Which models are kept for their history only. Archiving deletes nothing: artifacts stay in the blobs.


UNUSED_S_MAX = 7 * 24 * 3600.0
WEAK_RATING, WEAK_GAMES_MIN = 1400.0, 100
FORMER_CHAMPIONS_KEPT = 5  # a rollback may need them
CHECKPOINTS_COUNTED_ON = 12  # of the newest models; nodes keep 16, and those of champions

_LOST = frozenset({ModelState.REJECTED, ModelState.ROLLED_BACK})


def not_needed(state: ConfigState, now_s: float) -> list[tuple[str, str]]:
    """The models that nothing needs any more, with the reason; the plan puts them away."""
    found: list[tuple[str, str]] = []
    kept: set[str] | None = None
    for model in state.models.values():
        if model.state is ModelState.SUPERSEDED:
            reason = "superseded, and more champions back than a rollback goes"
        elif model.state in _LOST and now_s - last_change_s(model) > UNUSED_S_MAX:
            reason = "not in use for seven days"
        else:
            continue
        kept = _still_needed(state) if kept is None else kept
        if model.digest not in kept:
            found.append((model.digest, reason))
    return found


def too_weak(state: ConfigState, *, ratings: Mapping[str, Rating] | None = None) -> list[tuple[str, str]]:
    """Lost models far below the champion, with the reason. *ratings* saves computing them again."""
    if state.champion is None:
        return []
    games, kept = _games(state), _still_needed(state)
    weak = [
        model
        for model in state.models.values()
        if model.state in _LOST and games[model.digest] >= WEAK_GAMES_MIN
    ]
    if not weak:
        return []
    known = rate(state.trusted_matches()) if ratings is None else ratings
    return list(_weak(weak, state.champion, known, kept).items())


def kept_checkpoint(state: ConfigState, model: Model) -> str:
    """The checkpoint to train on from *model* with; empty if there is none any more, or it was not found."""
    if not model.checkpoint or model.checkpoint in state.bad_checkpoints:
        return ""
    newest = islice(reversed(state.models.values()), CHECKPOINTS_COUNTED_ON)
    is_kept = any(each is model for each in newest) or model.digest in last_champions(state)
    return model.checkpoint if is_kept else ""


def last_change_s(model: Model) -> float:
    return model.history[-1][0] if model.history else model.made_s


def _still_needed(state: ConfigState) -> set[str]:
    """The newest model is the parent of the next; the last champions are where a rollback leads."""
    newest = state.newest_model
    return {*last_champions(state), *(() if newest is None else (newest.digest,))}


def last_champions(state: ConfigState) -> list[str]:
    """The champion, then those before it, as many as a rollback may need."""
    former = [change.model for change in reversed(state.promotions) if change.model != state.champion]
    champion = [] if state.champion is None else [state.champion]
    return champion + list(dict.fromkeys(former))[:FORMER_CHAMPIONS_KEPT]


def _games(state: ConfigState) -> Counter[str]:
    games: Counter[str] = Counter()
    for match in state.trusted_matches():
        games[match.first] += match.games
        games[match.second] += match.games
    return games


def _weak(
    models: list[Model], champion: str, ratings: Mapping[str, Rating], kept: set[str]
) -> dict[str, str]:
    """Below the bar, once the champion is above it: until then the bar says nothing of the model."""
    best = ratings.get(champion)
    if best is None or best.rating < WEAK_RATING:
        return {}
    return {
        model.digest: f"rated {found.rating:.0f} after {found.games} games"
        for model in models
        if (found := ratings.get(model.digest)) is not None
        and found.rating < WEAK_RATING
        and model.digest not in kept
    }


# The champion of each config as a pointer in the key-value port, swapped by compare-and-swap.
#
# The facts say who is champion; the pointer is what others follow. It carries the number of the change, so an
# older change can never overwrite a newer one.


class ChampionPointers:
    """Keeps the pointers in step with the facts."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def follow(self, state: ConfigState) -> None:
        """Swap the pointer if the champion changed. Raises `Conflict` if another process is ahead."""
        change = len(state.promotions) + state.rollbacks
        if not change:
            return
        model = None if state.champion is None else state.models[state.champion]
        wanted = Champion(
            config=state.config,
            model=state.champion,
            card=None if model is None else model.card,
            checkpoint=None if model is None else model.checkpoint or None,
            former_checkpoints=tuple(
                kept
                for digest in last_champions(state)
                if digest != state.champion and (kept := state.models[digest].checkpoint)
            ),
            change=change,
        )

        def swapped(present: Champion | None) -> Champion | None:
            if present is None:
                return wanted
            # An earlier version wrote less of the same change.
            if present.change > change or (present.change == change and present.model != wanted.model):
                raise Conflict(f"the champion of {state.config} was changed by another process")
            return None if present == wanted else wanted

        await change_record(self._kv, champion_key(state.config), Champion, swapped)


async def read_champion(kv: KeyValue, config: str) -> Champion | None:
    return await read_record(kv, champion_key(config), Champion)


def champion_key(config: str) -> str:
    return CHAMPION_PREFIX + quote(config, safe="")


# The champions as files that people and other programs can open.
#
# `models/canonical_<config>.safetensors` with its card beside it, and the link
# `models/ringrift_best_<config>.safetensors`, are written from the blobs whenever the champion changed. They
# are a view: nothing in the product reads them, and a file that was damaged or removed is written again. The
# champion before stays beside them as `.previous`. Students lie there as `distillation_<config>` and
# `small_net_<config>`.


log = structlog.get_logger()

MODELS_FOLDER = "models"  # in the data folder
SUFFIX, CARD_SUFFIX = ".safetensors", ".json"
PREVIOUS, PART = ".previous", ".part"
_CHUNK_BYTES = 1 << 20


def installed_champion(data_dir: Path, config: str, model: str) -> Path | None:
    """Where *model* lies as the champion of *config*; None while its files are not whole. Blocks."""
    path = data_dir / MODELS_FOLDER / f"canonical_{_plain(config)}{SUFFIX}"
    card = path.with_suffix(CARD_SUFFIX)
    # The card comes last and names its weights: until then it is that of the champion before.
    is_whole = _holds({path: model}) and card.is_file() and model in card.read_text(encoding="utf8")
    return path if is_whole else None


class ChampionFiles:
    """Keeps the files of one folder in step with the champions."""

    def __init__(self, folder: Path, blobs: Blobs) -> None:
        self.folder, self._blobs = folder, blobs

    def path_of(self, config: str) -> Path:
        return self.folder / f"canonical_{_plain(config)}{SUFFIX}"

    def link_of(self, config: str) -> Path:
        return self.folder / f"ringrift_best_{_plain(config)}{SUFFIX}"

    async def publish(self, state: ConfigState) -> bool:
        """Write the champion's files if they are not there yet; True if something was written.

        Each file is replaced at once. The weights come first and the card, which names their hash, last: a
        crash between leaves a pair that says of itself that it is not whole, and the next call mends it.
        Raises `Corrupt` if the blob is missing or damaged.
        """
        if state.champion is None:
            return False
        path = self.path_of(state.config)
        written = await self._publish(state, state.models[state.champion], path)
        await asyncio.to_thread(_link, self.link_of(state.config), path)
        for student in state.students.values():
            if student.state is ModelState.PRODUCTION:
                named = f"{student.purpose}_{_plain(state.config)}{SUFFIX}"
                written |= await self._publish(state, student, self.folder / named)
        return written

    async def _publish(self, state: ConfigState, model: Model, path: Path) -> bool:
        card_path = path.with_suffix(CARD_SUFFIX)
        wanted = {path: model.digest, card_path: model.card}
        if await asyncio.to_thread(_holds, wanted):
            return False
        sources = {place: (digest, await self._open(digest)) for place, digest in wanted.items()}
        await asyncio.to_thread(self._write, sources)
        log.info("models.published", config=state.config, model=model.digest, path=str(path))
        return True

    async def _open(self, digest: str) -> BinaryIO:
        try:
            return await self._blobs.open(digest)
        except KeyError:
            advice = "Restore it from a backup or roll the promotion back"
            raise Corrupt(f"blob {digest}", found="it is not there", advice=advice) from None

    def _write(self, sources: dict[Path, tuple[str, BinaryIO]]) -> None:
        make_folders(self.folder)
        parts = {path: path.with_name(path.name + PART) for path in sources}
        try:
            for path, (digest, source) in sources.items():
                with source:
                    _copy(source, parts[path], digest)
            for path, part in parts.items():
                _keep_previous(path)
                rename_file(part, path)
            sync_folder(self.folder)
        finally:
            for part in parts.values():
                remove_file(part)


def _plain(config: str) -> str:
    """The config as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "_-" else "-" for c in config)


def _holds(wanted: dict[Path, str]) -> bool:
    return all(path.is_file() and file_sha256(path) == digest for path, digest in wanted.items())


def _copy(source: BinaryIO, target: Path, digest: str) -> None:
    found = hashlib.sha256()
    with create_file(target) as file:
        while chunk := source.read(_CHUNK_BYTES):
            found.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if found.hexdigest() != digest:
        advice = "Restore it from a backup or roll the promotion back"
        raise DigestMismatch(f"blob {digest}", found="the content has another hash", advice=advice)


def _keep_previous(path: Path) -> None:
    if path.is_file():
        kept = path.with_name(path.name + PREVIOUS)
        part = kept.with_name(kept.name + PART)
        remove_file(part)
        link_file(path, part)
        rename_file(part, kept)


def _link(link: Path, target: Path) -> None:
    """Point *link* and its card's link at *target*; a card is found beside the weights under their name."""
    for suffix in (SUFFIX, CARD_SUFFIX):
        name, wanted = link.with_suffix(suffix), target.with_suffix(suffix).name
        if name.is_symlink() and os.readlink(name) == wanted:
            continue
        part = name.with_name(name.name + PART)
        remove_file(part)
        link_symbolically(part, wanted)
        rename_file(part, name)
