"""What is still needed on this node, and what for: nobody deletes it, however many copies there are.

Needed are: champions, what a person pinned, inputs of work that has not ended, what a transaction keeps, the
games of the last window that was exported and all that came after them, the newest sample files, models and
files of unfinished games of each config.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.plane import DataPlane
from ringrift.data.protection.promises import PINS
from ringrift.engine.encoding import check_digest
from ringrift.engine.ports import Entry, KeyValue, WorkItem, WorkQueue, WorkState
from ringrift.engine.records import read_records
from ringrift.errors import ConfigError
from ringrift.health.run_status import CHAMPION_PREFIX, Champion
from ringrift.work.job.protocol import JobOrder, read_order

_PAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """How many of the newest of each config stay, whatever else."""

    samples_kept: int = 2
    models_kept: int = 3
    unfinished_kept: int = 32  # files; what a job took over is in its own results by then
    checkpoints_kept: int = 16  # beside those of the champion and of the last ones before it
    unexported_s: float = 7 * 86_400.0  # games of a config that nobody exported for as long may go

    def __post_init__(self) -> None:
        if min(self.samples_kept, self.models_kept, self.unfinished_kept, self.checkpoints_kept) < 1:
            raise ConfigError(
                "what is kept of samples, models, unfinished games and checkpoints is at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What points at artifacts from outside the manifest."""

    pins: Mapping[str, str]
    champions: Mapping[str, str]  # digest: config
    former: Mapping[str, str]  # the same of checkpoints that a rollback could lead to
    open_inputs: Mapping[str, str]  # digest: what kind of work
    windows: Mapping[str, frozenset[str]]  # config: inputs of its last export


def copies_needed(artifact: Artifact, copies_min: int) -> int:
    """How many others must keep a file before a copy goes that nothing here needs.

    None of a file of unfinished games: those of the newest that were not played on are lost without harm, as
    others are played in their place, and those of all the others are in what came of them. Nor of an old
    checkpoint: training went on from it long ago, and would begin again from the champion's, or from weights.
    """
    return 0 if artifact.kind in (ArtifactKind.UNFINISHED, ArtifactKind.CHECKPOINT) else copies_min


async def read_champions(kv: KeyValue) -> dict[str, str]:
    """Return the models that are published, their cards and checkpoints, each with its config."""
    champions: dict[str, str] = {}
    for champion in await read_records(kv, CHAMPION_PREFIX, Champion):
        files = (champion.model, champion.card, champion.checkpoint)
        champions |= {digest: champion.config for digest in files if digest}
    return champions


async def read_former(kv: KeyValue) -> dict[str, str]:
    """Return the checkpoints of the champions before, each with its config."""
    champions = await read_records(kv, CHAMPION_PREFIX, Champion)
    return {digest: each.config for each in champions for digest in each.former_checkpoints}


async def read_needs(plane: DataPlane) -> Needs:
    """Look at pins, champions and work."""
    kv = plane.kv
    pins = {_pinned(entry): entry.value.decode() for entry in await kv.entries(PINS)}
    return Needs(
        pins=pins,
        champions=await read_champions(kv),
        former=await read_former(kv),
        open_inputs=await OpenInputs(plane.queue).refresh(),
        windows=await plane.windows.refresh(),
    )


def _pinned(entry: Entry) -> str:
    """The digest that a pin is of, a person's or that of a transaction."""
    return entry.key.removeprefix(PINS).partition("/")[0]


class OpenInputs:
    """Every input of every item that has not ended: one that is left out is one that may be deleted.

    The first look reads the whole queue, later ones what was added since. What ended meanwhile still counts,
    so this is made anew for each batch of questions.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue, self._after = queue, 0
        self._dead: dict[str, int] = {}
        self._inputs: dict[str, str] = {}  # digest: what kind of work

    async def refresh(self) -> Mapping[str, str]:
        counts = await self._queue.counts()
        dead = {kind: number for kind in counts if (number := counts[kind].get(WorkState.DEAD, 0))}
        if dead != self._dead:
            self._dead, self._after = dead, 0  # one may have been revived: it kept its old number
        while page := await self._queue.unended(after=self._after, limit=_PAGE):
            self._inputs |= await asyncio.to_thread(_inputs_of, [item for _, item in page])
            self._after = page[-1][0]
        return self._inputs


def _inputs_of(items: Iterable[WorkItem]) -> dict[str, str]:
    orders = ((item.kind, _order(item)) for item in items)
    return {digest: kind for kind, order in orders if order is not None for digest in order.inputs.values()}


def held(
    artifacts: Iterable[Artifact], needs: Needs, rules: RetentionRules, *, now_s: float
) -> dict[str, str]:
    """Return what is needed, each with the reason."""
    known = {artifact.digest: artifact for artifact in artifacts}
    reasons = _newest(known.values(), rules)
    reasons |= _window_reasons(known, needs.windows, young_s=now_s - rules.unexported_s)
    reasons |= {digest: f"input of {kind} work" for digest, kind in needs.open_inputs.items()}
    reasons |= {digest: f"a champion before of {config}" for digest, config in needs.former.items()}
    reasons |= {digest: f"the champion of {config}" for digest, config in needs.champions.items()}
    return reasons | {digest: f"pinned: {why}" for digest, why in needs.pins.items()}


async def read_held(
    plane: DataPlane, artifacts: Iterable[Artifact], rules: RetentionRules | None = None
) -> dict[str, str]:
    needs = await read_needs(plane)
    now_s = plane.runtime.now_s()
    return await asyncio.to_thread(held, artifacts, needs, rules or RetentionRules(), now_s=now_s)


async def needed_for(plane: DataPlane, digest: str, inputs: OpenInputs) -> str:
    """What must have this file right now, whatever was found before: a pin, a champion or work."""
    check_digest(digest)
    if pins := await plane.kv.entries(PINS + digest):
        return f"pinned: {pins[0].value.decode()}"
    if (config := (await read_champions(plane.kv)).get(digest)) is not None:
        return f"the champion of {config}"
    if (config := (await read_former(plane.kv)).get(digest)) is not None:
        return f"a champion before of {config}"
    kind = (await inputs.refresh()).get(digest)
    return "" if kind is None else f"input of {kind} work"


async def pin(kv: KeyValue, digest: str, why: str) -> None:
    """Keep an artifact on every node that has it until it is unpinned."""
    check_digest(digest)
    await kv.put(PINS + digest, why.encode())


async def unpin(kv: KeyValue, digest: str) -> bool:
    return await kv.delete(PINS + digest)


def _newest(artifacts: Iterable[Artifact], rules: RetentionRules) -> dict[str, str]:
    kept = {ArtifactKind.SAMPLES: rules.samples_kept, ArtifactKind.MODEL: rules.models_kept}
    kept |= {ArtifactKind.CARD: rules.models_kept, ArtifactKind.UNFINISHED: rules.unfinished_kept}
    kept |= {ArtifactKind.CHECKPOINT: rules.checkpoints_kept}
    groups: dict[tuple[ArtifactKind, str], list[Artifact]] = {}
    for artifact in artifacts:
        if artifact.kind in kept:
            groups.setdefault((artifact.kind, artifact.config), []).append(artifact)
    reasons: dict[str, str] = {}
    for (kind, config), members in groups.items():
        newest = sorted(members, key=lambda each: -each.created_s)[: kept[kind]]
        reason = f"one of the newest {kind} files of {config or 'no config'}"
        reasons |= {artifact.digest: reason for artifact in newest}
    return reasons


def _window_reasons(
    known: Mapping[str, Artifact], windows: Mapping[str, frozenset[str]], *, young_s: float
) -> dict[str, str]:
    """Windows only move forward: what is newer than the oldest of the last one may be in the next."""
    starts: dict[tuple[str, ArtifactKind], float] = {}
    for config, window in windows.items():
        for artifact in (known[digest] for digest in window if digest in known):
            at = (config, artifact.kind)
            starts[at] = min(starts.get(at, artifact.created_s), artifact.created_s)
    reasons: dict[str, str] = {}
    for digest, artifact in known.items():
        if artifact.kind not in (ArtifactKind.GAMES, ArtifactKind.SAMPLES):
            continue
        if artifact.config in windows:
            # Of a window none of whose files is known here nobody can say where it begins.
            if artifact.created_s >= starts.get((artifact.config, artifact.kind), 0.0):
                reasons[digest] = f"in the training window of {artifact.config}"
        elif artifact.kind is ArtifactKind.GAMES and artifact.created_s >= young_s:
            reasons[digest] = f"nothing of {artifact.config or 'its config'} was exported yet"
    return reasons


def _order(item: WorkItem) -> JobOrder | None:
    """None for work of others, which has no inputs that we know of."""
    try:
        return read_order(item.payload)
    except ConfigError:
        return None
