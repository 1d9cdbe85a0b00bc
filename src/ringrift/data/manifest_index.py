"""The manifest as a local picture: which files exist, who holds verified copies, what is missing where."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.manifest_store import ARTIFACTS, LOCATIONS, read_entry
from ringrift.engine.ports import KeyValue


@dataclass(frozen=True, slots=True)
class ManifestView:
    """One moment of the manifest. A copy counts only with its receipt, a receipt only with its card."""

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    copies: Mapping[str, Mapping[str, Receipt]] = field(default_factory=dict)  # by digest, then by node

    def of_kinds(self, kinds: Iterable[ArtifactKind]) -> list[Artifact]:
        """Return the files of these kinds, the oldest first."""
        wanted = frozenset(kinds)
        found = (each for each in self.artifacts.values() if each.kind in wanted)
        return sorted(found, key=lambda each: (each.created_s, each.digest))

    def holders(self, digest: str) -> tuple[str, ...]:
        return tuple(self.copies.get(digest, {}))

    def is_at(self, digest: str, node: str) -> bool:
        return node in self.copies.get(digest, {})

    def held_by(self, node: str) -> list[Artifact]:
        return [each for each in self.artifacts.values() if self.is_at(each.digest, node)]

    def missing_at(self, node: str, artifacts: Iterable[Artifact]) -> list[Artifact]:
        return [each for each in artifacts if not self.is_at(each.digest, node)]

    def only_at(self, node: str, *, among: Iterable[str]) -> list[Artifact]:
        """Return what *node* holds and none of *among* does."""
        others = frozenset(among) - {node}
        return [each for each in self.held_by(node) if others.isdisjoint(self.holders(each.digest))]


def is_made_by(artifact: Artifact, node: str) -> bool:
    """Whether *node* made the file; one without a maker is everybody's."""
    return artifact.node in ("", node)


def games_in(artifacts: Iterable[Artifact]) -> int:
    """Return the games of files of games; those that a sample file or a report was made of count once."""
    return sum(each.games for each in artifacts if each.kind is ArtifactKind.GAMES)


class ManifestIndex:
    """Keeps the picture: read anew with `refresh`, or change by change while `follow` runs."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv
        self._artifacts: dict[str, Artifact] = {}
        self._copies: dict[str, dict[str, Receipt]] = {}
        self._revision = 0
        self._following = False

    @property
    def view(self) -> ManifestView:
        """The picture as it is known now; it does not change under its reader."""
        copies = {
            digest: dict(places) for digest, places in self._copies.items() if digest in self._artifacts
        }
        return ManifestView(dict(self._artifacts), copies)

    async def refresh(self) -> ManifestView:
        """Read all of it, unless every change is followed anyway."""
        if not self._following:
            await self._read_all()
        return self.view

    async def follow(self) -> None:
        """Apply changes as they come, until cancelled."""
        await self._read_all()
        self._following = True
        try:
            async with asyncio.TaskGroup() as group:
                for prefix in (ARTIFACTS, LOCATIONS):
                    group.create_task(self._apply_changes(prefix))
        finally:
            self._following = False

    async def _read_all(self) -> None:
        cards, places = await self._kv.entries(ARTIFACTS), await self._kv.entries(LOCATIONS)
        self._artifacts, self._copies = {}, {}
        for entry in (*cards, *places):
            self._apply(entry.key, entry.value)
        self._revision = max((entry.revision for entry in (*cards, *places)), default=0)

    async def _apply_changes(self, prefix: str) -> None:
        async with aclosing(self._kv.watch(prefix, after=self._revision)) as changes:
            async for change in changes:
                self._apply(change.key, change.value)

    def _apply(self, key: str, value: bytes | None) -> None:
        if key.startswith(ARTIFACTS):
            digest = key.removeprefix(ARTIFACTS)
            if value is None:
                self._artifacts.pop(digest, None)
            else:
                self._artifacts[digest] = read_entry(key, value, Artifact)
            return
        digest, _, node = key.removeprefix(LOCATIONS).partition("/")
        places = self._copies.setdefault(digest, {})
        if value is None:
            places.pop(node, None)
        else:
            places[node] = read_entry(key, value, Receipt)
        if not places:
            del self._copies[digest]
