"""Reading a whole archive again: every byte of every file and state, and every list.

What is damaged is told with what depends on it and what helps. Nothing is changed unless it is to be mended.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ringrift.data.archive_format import CARDS, MANIFEST, ArchiveCard, decode, digest_of_key
from ringrift.data.archive_reading import read_back
from ringrift.data.artifacts import Artifact
from ringrift.data.backup_index import ArchiveIndex
from ringrift.data.manifest_index import games_in
from ringrift.data.run_states import RunState, StateArchive, check_snapshot, read_snapshot
from ringrift.errors import Corrupt

FILES_AT_ONCE = 4
OnRead = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveDamage:
    """One thing of the archive that is damaged or missing."""

    what: str  # file, state or list
    key: str  # its object, or that of its card
    why: str
    digest: str = ""
    kind: str = ""
    config: str = ""
    games: int = 0
    put_there_by: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()
    advice: str = ""
    mended: bool = False


@dataclass(slots=True)
class ArchiveFindings:
    """What reading all of it brought to light."""

    archive: str
    files: int = 0  # that are sound
    games: int = 0  # in those that are shards
    states: int = 0  # that are sound
    bytes: int = 0  # that were read
    sound: list[ArchiveCard] = field(default_factory=list)
    damaged: list[ArchiveDamage] = field(default_factory=list)

    @property
    def left_damaged(self) -> list[ArchiveDamage]:
        return [each for each in self.damaged if not each.mended]


class ArchiveCheck:
    """One archive, read from outside: no engine is needed. With *source* wrong parts are written anew."""

    def __init__(
        self, name: str, index: ArchiveIndex, *, source: Callable[[str], Path | None] | None = None
    ) -> None:
        self._name, self._index, self._source = name, index, source
        self._needs: dict[str, list[str]] = {}  # digest: whose newest state names it

    async def sizes(self) -> int:
        """How many bytes there are to read, as far as cards and states tell."""
        cards, _ = await self._cards()
        states = await StateArchive(self._index.objects).all()
        return sum(card.artifact.size for card in cards.values()) + sum(
            part.size for state in states for part in state.parts
        )

    async def read_all(self, on_read: OnRead) -> ArchiveFindings:
        """Read everything once."""
        await self._index.objects.ready(to_write=False)
        findings = ArchiveFindings(archive=self._name)
        await self._read_states(findings, on_read)
        cards, unreadable = await self._cards()
        findings.damaged += unreadable
        put_by = await self._inventories(findings)
        await self._read_manifest(findings, cards)
        waiting = iter(sorted(cards))

        async def lane() -> None:
            for digest in waiting:
                await self._read_file(cards[digest], put_by.get(digest, ()), findings, on_read)

        async with asyncio.TaskGroup() as lanes:
            for _ in range(FILES_AT_ONCE):
                lanes.create_task(lane())
        told = {each.digest for each in findings.damaged}
        for digest in sorted((self._needs.keys() | put_by.keys()) - cards.keys() - told):
            findings.damaged.append(self._missing(digest, put_by.get(digest, ())))
        findings.games = games_in(card.artifact for card in findings.sound)
        findings.damaged.sort(key=lambda each: (not each.needed_by, each.what, each.key))
        return findings

    async def _cards(self) -> tuple[dict[str, ArchiveCard], list[ArchiveDamage]]:
        cards: dict[str, ArchiveCard] = {}
        damaged = []
        for key in await self._index.objects.keys(CARDS):
            digest, content = digest_of_key(key), await self._index.objects.read(key)
            try:
                card = None if content is None else decode(key, content, ArchiveCard)
            except Corrupt as error:
                damaged.append(self._damage(key, error.found, digest=digest))
                continue
            if card is not None and card.artifact.digest != digest:
                damaged.append(self._damage(key, "it is the card of another file", digest=digest))
            elif card is not None:
                cards[digest] = card
        return cards, damaged

    async def _read_file(
        self, card: ArchiveCard, put_by: tuple[str, ...], findings: ArchiveFindings, on_read: OnRead
    ) -> None:
        artifact, last = card.artifact, 0

        async def on_progress(done: int) -> None:
            nonlocal last
            on_read(done - last)
            findings.bytes += done - last
            last = done

        source = None if self._source is None else self._source(artifact.digest)
        read = await read_back(self._index.objects, artifact.digest, card.parts, source, on_progress)
        if read.sound:
            findings.files += 1
            findings.sound.append(card)
            if not read.mended_bytes:
                return
        why = read.why or f"{read.mended_bytes} bytes were wrong"
        damage = self._damage(
            card.key, why, digest=artifact.digest, artifact=artifact, put_by=put_by, mended=read.sound
        )
        findings.damaged.append(damage)

    async def _read_states(self, findings: ArchiveFindings, on_read: OnRead) -> None:
        archive = StateArchive(self._index.objects)
        states = await archive.all()
        newest = {(state.run, state.node): state for state in states}
        listed = {state.key for state in states}
        for key in await self._index.objects.keys("states/"):
            if key.endswith("/state.json") and key not in listed:
                findings.damaged.append(self._damage(key, "it cannot be read", what="state"))
        with tempfile.TemporaryDirectory(prefix="ringrift-check-") as folder:
            for state in states:
                place = Path(folder) / "state.db"
                try:
                    await archive.fetch(state, place, on_read=on_read)
                    await asyncio.to_thread(check_snapshot, place)
                    if newest[state.run, state.node] is state:
                        await asyncio.to_thread(self._note_needs, state, place)
                except Corrupt as error:
                    findings.damaged.append(self._damage(state.key, error.found, what="state"))
                    continue
                findings.states += 1
                findings.bytes += sum(part.size for part in state.parts)

    def _note_needs(self, state: RunState, place: Path) -> None:
        found, run = read_snapshot(place, state.node), f"run {state.run} of node {state.node}"
        leading = {model: config for config, model in found.champions.items()}
        for digest in found.without((), ()) - set(state.lost):
            role = f", the champion of {leading[digest]}" if digest in leading else ""
            self._needs.setdefault(digest, []).append(run + role)

    async def _inventories(self, findings: ArchiveFindings) -> dict[str, tuple[str, ...]]:
        put_by: dict[str, tuple[str, ...]] = {}
        for key in await self._index.objects.keys("nodes/"):
            try:
                found = await self._index.inventory(key.removeprefix("nodes/").removesuffix(".json"))
            except Corrupt as error:
                findings.damaged.append(self._damage(key, error.found, what="list"))
                continue
            for digest in () if found is None else found.digests:
                put_by[digest] = (*put_by.get(digest, ()), found.node if found else "")
        return put_by

    async def _read_manifest(self, findings: ArchiveFindings, cards: dict[str, ArchiveCard]) -> None:
        try:
            manifest = await self._index.manifest()
        except Corrupt as error:
            findings.damaged.append(self._damage(MANIFEST, error.found, what="list"))
            return
        for card in () if manifest is None else manifest.cards:
            if card.artifact.digest not in cards:
                why = "its card is missing; the manifest of the archive knows the file"
                findings.damaged.append(self._damage(card.key, why, digest=card.artifact.digest))

    def _missing(self, digest: str, put_by: tuple[str, ...]) -> ArchiveDamage:
        return self._damage(f"cards/{digest}.json", "the file is missing", digest=digest, put_by=put_by)

    def _damage(
        self,
        key: str,
        why: str,
        *,
        what: str = "file",
        digest: str = "",
        artifact: Artifact | None = None,
        put_by: tuple[str, ...] = (),
        mended: bool = False,
    ) -> ArchiveDamage:
        backup = f"`ringrift data backup {self._name}`"
        by_hand = f"remove {key} by hand if it is there, then run {backup} on a node that has the file"
        mend = f"`ringrift data check {self._name} --mend` on a node that has the file writes it anew"
        advice = {
            "file": by_hand if artifact is None else mend,
            "state": f"{backup} puts a new state there; remove this one by hand",
            "list": "remove it by hand; the next backup writes it anew",
        }[what]
        return ArchiveDamage(
            what=what,
            key=key,
            why=why,
            digest=digest,
            kind="" if artifact is None else artifact.kind.value,
            config="" if artifact is None else artifact.config,
            games=0 if artifact is None else artifact.games,
            put_there_by=put_by,
            needed_by=tuple(self._needs.get(digest, ())),
            advice="" if mended else advice,
            mended=mended,
        )
