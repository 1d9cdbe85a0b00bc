"""What is remembered of hosts that may vanish: their word, games to be written through, and evacuations."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from ringrift.data.evacuation import Evacuated
from ringrift.data.kv_records import KvRecords
from ringrift.engine.ports import KeyValue

HOSTS, GAMES, EVACUATIONS = "data/ephemeral/hosts/", "data/ephemeral/games/", "data/ephemeral/evacuations/"
KEPT_S = 7 * 86_400.0


class HostNote(msgspec.Struct, frozen=True, kw_only=True):
    """The last word of a host."""

    host: str
    games_generated: int = 0
    unsealed_games: int = 0
    checkpoint_s: float = 0.0
    heartbeat_s: float = 0.0


class WriteThrough(msgspec.Struct, frozen=True, kw_only=True):
    """A game that should be copied out before others; *data_path* names the sealed file that holds it."""

    game_id: str
    host: str
    data_path: str  # `blob:` and its digest, or the digest alone
    priority: int
    created_s: float


def digest_of(game: WriteThrough) -> str:
    return game.data_path.removeprefix("blob:")


class EvacuationState(StrEnum):
    """How far an evacuation is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # not everything could be saved


class Evacuation(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to save what a host has."""

    evacuation_id: str
    host: str
    reason: str
    requested_s: float
    state: EvacuationState = EvacuationState.RUNNING
    completed_s: float | None = None
    games_saved: int = 0
    games_left: int = 0
    errors: tuple[str, ...] = ()


class EphemeralRecords:
    """Those records in the key-value port."""

    def __init__(self, kv: KeyValue) -> None:
        self._hosts = KvRecords(kv, HOSTS, HostNote)
        self._games = KvRecords(kv, GAMES, WriteThrough)
        self._evacuations = KvRecords(kv, EVACUATIONS, Evacuation)

    async def checkpoint(
        self, host: str, *, games_generated: int, unsealed_games: int, now_s: float
    ) -> HostNote:
        note = HostNote(
            host=host,
            games_generated=games_generated,
            unsealed_games=unsealed_games,
            checkpoint_s=now_s,
            heartbeat_s=now_s,
        )
        await self._hosts.put(host, note, ttl_s=KEPT_S)
        return note

    async def heartbeat(self, host: str, *, now_s: float) -> None:
        def beat(note: HostNote | None) -> HostNote:
            return msgspec.structs.replace(note or HostNote(host=host), heartbeat_s=now_s)

        await self._hosts.change(host, beat)

    async def hosts(self) -> dict[str, HostNote]:
        return {note.host: note for note in await self._hosts.all()}

    async def queue(self, game_id: str, host: str, data_path: str, priority: int, now_s: float) -> None:
        wanted = WriteThrough(
            game_id=game_id, host=host, data_path=data_path, priority=priority, created_s=now_s
        )
        await self._games.put(game_id, wanted, ttl_s=KEPT_S)

    async def pending(self, limit: int) -> list[WriteThrough]:
        found = sorted(await self._games.all(), key=lambda each: (-each.priority, each.created_s))
        return found[:limit]

    async def urgent(self, host: str) -> dict[str, int]:
        """The files of *host* that go first: digest, and how urgent."""
        asked = [each for each in await self._games.all() if each.host == host]
        return {digest_of(each): each.priority for each in sorted(asked, key=lambda each: each.priority)}

    async def arrived(self, host: str, digests: Collection[str]) -> None:
        """Those of the games of *host* that lie in these files are copied out."""
        for each in await self._games.all():
            if each.host == host and digest_of(each) in digests:
                await self._games.delete(each.game_id)

    async def done(self, game_id: str) -> bool:
        return await self._games.delete(game_id)

    async def put_evacuation(self, evacuation: Evacuation) -> None:
        await self._evacuations.put(evacuation.evacuation_id, evacuation, ttl_s=KEPT_S)

    async def finish_evacuation(self, asked: Evacuation, done: Evacuated, *, now_s: float) -> Evacuation:
        finished = msgspec.structs.replace(
            asked,
            state=EvacuationState.FAILED if done.left else EvacuationState.DONE,
            completed_s=now_s,
            games_saved=done.games,
            games_left=done.games_left,
            errors=done.errors[:20],
        )
        await self.put_evacuation(finished)
        return finished

    async def evacuations(self) -> list[Evacuation]:
        return sorted(await self._evacuations.all(), key=lambda each: each.requested_s)
