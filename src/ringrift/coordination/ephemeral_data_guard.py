"""The guard of nodes that may vanish: who they are, which games only they have, and bringing those to safety.

What is at risk is read off the manifest each time: a game is safe when a node that stays has verified it.
Hosts add what the manifest cannot know, that they are alive and how many games they have not sealed yet. A
node that is itself ephemeral pushes everything out when it is told to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import structlog

from ringrift.coordination.handler_base import WiredCoordinator
from ringrift.coordination.sync_base import existing_data_plane, open_data_plane
from ringrift.data.artifacts import Artifact, data_type_of, in_batches
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.manifest.catalog import Cataloger
from ringrift.data.manifest.store import CopyView, games_in
from ringrift.data.plane import DataPlane, copy_artifacts
from ringrift.data.transfer.contract import Moved, TransferFailed
from ringrift.engine.arguments import INTEGER_MAX, check_integer, check_name, check_text
from ringrift.engine.blocking import blocking, run_blocking
from ringrift.engine.encoding import is_digest
from ringrift.engine.ports import KeyValue
from ringrift.engine.records import KvRecords
from ringrift.engine.run_reports import reported_health
from ringrift.errors import ConfigError, RingRiftError
from ringrift.events.catalog.audit import ComponentWiring
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.process import getter_of, process_scope
from ringrift.status import HealthCheckResult
from ringrift.task_owner import TaskOwner

__all__ = [
    "EphemeralDataGuard",
    "EphemeralRules",
    "Evacuation",
    "HostRisk",
    "WriteThrough",
    "checkpoint_games",
    "final_push",
    "get_ephemeral_guard",
    "is_ephemeral",
    "request_evacuation",
    "reset_ephemeral_guard",
    "wire_ephemeral_events",
]


# Getting games off a node that may vanish: everything that only it has, to nodes that stay.


log = structlog.get_logger()

TARGETS_MAX = 3
BATCH_FILES = 200
BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Evacuated:
    """What was brought to safety, and what was not."""

    moved: tuple[str, ...] = ()
    games: int = 0
    left: tuple[str, ...] = ()
    games_left: int = 0
    targets: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


async def at_risk(plane: DataPlane, host: str) -> list[Artifact]:
    """What *host* has and no node that stays has; games first, then the most games a byte."""
    stones, successors = await plane.tombstones(), await plane.successors()
    manifest = await plane.view()
    receipts = manifest.receipts
    view = CopyView(nodes=plane.nodes, now_s=plane.runtime.now_s())
    risky = []
    for artifact in manifest.cards:
        held = receipts.get(artifact.digest, ())
        # What lives on in another file need not be saved.
        if artifact.digest in successors or all(receipt.node != host for receipt in held):
            continue
        if not view.of(held, stones.get(artifact.digest)).besides(host):
            risky.append(artifact)
    return sorted(risky, key=lambda each: (-each.games / max(1, each.size), each.created_s, each.digest))


async def evacuate(
    plane: DataPlane,
    host: str,
    *,
    deadline_s: float,
    priority: str = "critical",
    first: Mapping[str, int] | None = None,
) -> Evacuated:
    """Copy what is at risk on *host* to nodes that stay, until *deadline_s* of the monotonic clock.

    What one node did not take is offered to the next; only receipts count. *first* are the digests that go
    before all others, by how urgent they are.
    """
    urgent = first or {}
    # The sort is stable: equally urgent files keep the order of `at_risk`. Those not asked for come last.
    order = sorted(await at_risk(plane, host), key=lambda each: -urgent.get(each.digest, -1))
    every = {artifact.digest: artifact for artifact in order}
    left, used, errors = dict(every), list[str](), list[str]()
    for target in _targets(plane, host):
        if not left:
            break
        before = len(left)
        taken = [each for each in left.values() if target.accepts(data_type_of(each.kind))]
        # Small enough that a cut leaves most of the work done.
        for batch in in_batches(taken, files_max=BATCH_FILES, bytes_max=BATCH_BYTES):
            remaining_s = deadline_s - plane.runtime.monotonic_s()
            try:
                moved = await _copy_in_time(plane, batch, host, target.name, priority, remaining_s)
            except RingRiftError as fault:
                log.warning("evacuation.failed", host=host, target=target.name, error=str(fault))
                errors.append(f"{target.name}: {fault}")
                break
            got = moved.arrived
            left = {digest: artifact for digest, artifact in left.items() if digest not in got}
            # Only of these files: the node answers, so the next batch is offered to it as well.
            errors += sorted({f"{target.name}: {why}" for _, why in moved.failed})
        if len(left) < before:
            used.append(target.name)
    saved = [digest for digest in every if digest not in left]
    return Evacuated(
        moved=tuple(saved),
        games=games_in(every[digest] for digest in saved),
        left=tuple(left),
        games_left=games_in(left.values()),
        targets=tuple(used),
        errors=tuple(errors),
    )


async def _copy_in_time(
    plane: DataPlane, batch: list[Artifact], host: str, target: str, priority: str, remaining_s: float
) -> Moved:
    """What arrived, and why the rest did not; `TransferFailed` if nothing more can go to *target*."""
    if remaining_s <= 0:
        raise TransferFailed("no time was left")
    return await copy_artifacts(
        plane, batch, source=host, target=target, priority=priority, timeout_s=remaining_s
    )


def _targets(plane: DataPlane, host: str) -> list[DataNode]:
    """Nodes that stay: this one first, since that takes one transfer, then stores and nodes with room."""
    able = [node for node in plane.nodes.all() if node.active and not node.ephemeral and node.name != host]
    this = plane.this.name
    return sorted(able, key=lambda node: (node.name != this, node.role != "storage", node.name))[:TARGETS_MAX]


# What is remembered of hosts that may vanish: their word, games to be written through, and evacuations.


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
    """A game that should be copied out before others; *data_path* names the sealed file that holds it.

    Its name is exchanged for its digest as soon as the manifest knows a file of this name on the host.
    """

    game_id: str
    host: str
    data_path: str  # `blob:` and its digest, the digest alone, or the name of a file that is not sealed yet
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

        await self._hosts.change(host, beat, ttl_s=KEPT_S)

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
        # A file may hold several games that were asked for: the most urgent one comes last and stays.
        return {digest_of(each): each.priority for each in sorted(asked, key=lambda each: each.priority)}

    async def resolve(self, host: str, cards: Sequence[Artifact]) -> bool:
        """Have the games of *host* name their files among *cards* by digest; False if none was asked for."""
        # Of two files with one name the newer one is meant.
        named = {card.name: card.digest for card in sorted(cards, key=lambda card: card.created_s)}
        asked = [each for each in await self._games.all() if each.host == host]
        for each in asked:
            found = named.get(Path(each.data_path).name) if each.data_path else None
            if found is not None and not is_digest(digest_of(each)):
                resolved = msgspec.structs.replace(each, data_path=found)
                await self._games.put(each.game_id, resolved, ttl_s=KEPT_S)
        return bool(asked)

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
            # Many files fail for the same few reasons, and a record should stay small.
            errors=done.errors[:20],
        )
        await self.put_evacuation(finished)
        return finished

    async def evacuations(self) -> list[Evacuation]:
        return sorted(await self._evacuations.all(), key=lambda each: each.requested_s)


# The guard itself.


NAME = "ephemeral_guard"
_ANSWER_S = 30.0
# A rented host may play before it is in the config file; its name is all that is known then.
_WORDS = ("vast", "spot", "preemptible", "ephemeral", "runpod")


@dataclass(frozen=True, slots=True, kw_only=True)
class EphemeralRules:
    """When a host is given up for lost, and how long saving may take."""

    checkpoint_s: float = 60.0
    silent_s: float = 120.0
    unsynced_games: int = 50
    evacuation_s: float = 600.0
    final_push_s: float = 25.0  # a rented machine is gone about half a minute after the signal
    critical_priority: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.checkpoint_s < self.silent_s:
            raise ConfigError("a host is silent only after it missed a checkpoint: checkpoint_s < silent_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRisk:
    """What would be lost with one host."""

    host: str
    ephemeral: bool
    unsynced_games: int  # sealed there and verified nowhere that stays
    unsealed_games: int  # played, as the host last said
    silent_s: float
    needs_evacuation: bool


def is_ephemeral(host: str, nodes: DataNodes) -> bool:
    """By the config file; for a host that is not in it, by its name."""
    if host in nodes:
        return nodes[host].ephemeral
    return any(word in host.lower() for word in _WORDS)


def risk_of(
    host: str, *, ephemeral: bool, unsynced: int, note: HostNote | None, now_s: float, rules: EphemeralRules
) -> HostRisk:
    """Judge one host. A host that never reported is silent since it was first heard of, not for ever."""
    silent_s = 0.0 if note is None else max(0.0, now_s - note.heartbeat_s)
    return HostRisk(
        host=host,
        ephemeral=ephemeral,
        unsynced_games=unsynced,
        unsealed_games=0 if note is None else note.unsealed_games,
        silent_s=silent_s,
        needs_evacuation=ephemeral and unsynced >= rules.unsynced_games and silent_s >= rules.silent_s,
    )


async def first_of(plane: DataPlane, host: str) -> dict[str, int]:
    """The files of *host* that go before others, by how urgent they are; what is safe by now is done."""
    records, view = EphemeralRecords(plane.kv), await plane.view()
    held = [card for card in view.cards if any(r.node == host for r in view.receipts.get(card.digest, ()))]
    if not await records.resolve(host, held):
        return {}
    risky = {artifact.digest for artifact in await at_risk(plane, host)}
    await records.arrived(host, {card.digest for card in held} - risky)
    return await records.urgent(host)


async def final_push(plane: DataPlane, *, deadline_s: float) -> Evacuated:
    """Bring everything that only this node has to nodes that stay; the monotonic clock ends it."""
    await Cataloger(plane).catalog()
    records, host = EphemeralRecords(plane.kv), plane.this.name
    done = await evacuate(plane, host, deadline_s=deadline_s, first=await first_of(plane, host))
    await records.arrived(host, done.moved)
    return done


class EphemeralDataGuard(WiredCoordinator):
    """One per process; all state that matters is in the shared store."""

    capability: ClassVar[str] = "ephemeral_guard"
    emits: ClassVar[tuple[str, ...]] = ("HOST_OFFLINE", "GAME_SYNCED")

    def __init__(
        self,
        *,
        get_plane: Callable[[], Awaitable[DataPlane]] | None = None,
        rules: EphemeralRules | None = None,
        router: UnifiedEventRouter | None = None,
    ) -> None:
        super().__init__(NAME, router=router)
        self._get_plane = get_plane or open_data_plane
        # Noting something may make a store; looking must not.
        self._look_at_plane: Callable[[], Awaitable[DataPlane | None]] = get_plane or existing_data_plane
        self.rules = rules or EphemeralRules()
        self._tasks = TaskOwner(NAME)
        self._saving: dict[str, asyncio.Task[None]] = {}  # by host

    # --- what hosts say -------------------------------------------------------------------------------

    async def note_checkpoint(self, host: str, games_generated: int, unsealed_games: int = 0) -> HostNote:
        """A host says how far it is. What it sealed is known from the manifest."""
        if min(games_generated, unsealed_games) < 0:
            raise ConfigError(f"{host} cannot have played {games_generated} or {unsealed_games} games")
        plane = await self._get_plane()
        return await EphemeralRecords(plane.kv).checkpoint(
            host, games_generated=games_generated, unsealed_games=unsealed_games, now_s=plane.runtime.now_s()
        )

    async def note_heartbeat(self, host: str) -> None:
        plane = await self._get_plane()
        await EphemeralRecords(plane.kv).heartbeat(host, now_s=plane.runtime.now_s())

    async def risks(self) -> list[HostRisk]:
        """Every host that is ephemeral or reported, with what would be lost with it."""
        if (plane := await self._look_at_plane()) is None:
            return []
        notes = await EphemeralRecords(plane.kv).hosts()
        names = sorted({*notes, *(node.name for node in plane.nodes.all() if node.ephemeral)})
        return [
            risk_of(
                name,
                ephemeral=is_ephemeral(name, plane.nodes),
                unsynced=games_in(await at_risk(plane, name)),
                note=notes.get(name),
                now_s=plane.runtime.now_s(),
                rules=self.rules,
            )
            for name in names
        ]

    # --- saving ---------------------------------------------------------------------------------------

    async def evacuate_host(self, host: str, reason: str) -> Evacuation:
        """Bring what only *host* has to nodes that stay; the request and how it ended are written down."""
        plane = await self._get_plane()
        records = EphemeralRecords(plane.kv)
        asked = Evacuation(
            evacuation_id=plane.runtime.new_id(), host=host, reason=reason, requested_s=plane.runtime.now_s()
        )
        await records.put_evacuation(asked)
        deadline_s = plane.runtime.monotonic_s() + self.rules.evacuation_s
        done = await evacuate(plane, host, deadline_s=deadline_s, first=await first_of(plane, host))
        await records.arrived(host, done.moved)
        log.info("ephemeral.evacuated", host=host, games=done.games, games_left=done.games_left)
        await self._tell_synced(host, done)
        return await records.finish_evacuation(asked, done, now_s=plane.runtime.now_s())

    async def evacuations(self) -> list[Evacuation]:
        """What was tried so far, the newest last."""
        plane = await self._look_at_plane()
        return [] if plane is None else await EphemeralRecords(plane.kv).evacuations()

    async def leave(self) -> Evacuated:
        """This node ends: say so, and bring out what only it has."""
        plane = await self._get_plane()
        # The time runs from the signal on, so the deadline is set before anything is read.
        deadline_s = plane.runtime.monotonic_s() + self.rules.final_push_s
        pending = games_in(await at_risk(plane, plane.this.name))
        reason = f"ephemeral_termination:pending_games={pending}"
        # Before the push, so that nodes that stay can begin to fetch at the same time.
        await self.router.publish("HOST_OFFLINE", {"node_id": plane.this.name, "reason": reason}, NAME)
        done = await final_push(plane, deadline_s=deadline_s)
        log.info("ephemeral.final_push", games=done.games, games_left=done.games_left, errors=done.errors)
        await self._tell_synced(plane.this.name, done)
        return done

    async def _tell_synced(self, host: str, done: Evacuated) -> None:
        if done.moved:
            payload = {"node_id": host, "games_pushed": done.games, "target_nodes": list(done.targets)}
            paths = [f"blob:{digest}" for digest in done.moved[:100]]
            report = {**payload, "db_paths": paths, "is_ephemeral": True}
            await self.router.publish("GAME_SYNCED", report, NAME)

    # --- what it hears, and its end -------------------------------------------------------------------

    def _hears(self) -> Mapping[str, Callback]:
        return {
            "HOST_OFFLINE": self._on_offline,
            "HOST_ONLINE": self._on_alive,
            "TASK_HEARTBEAT": self._on_alive,
        }

    async def _on_offline(self, event: RouterEvent) -> None:
        host = str(event.payload["node_id"])
        plane = await self._get_plane()
        # The end of this node itself is the matter of `leave`.
        if host == plane.this.name or not is_ephemeral(host, plane.nodes):
            return
        # Several detectors may tell the same; a second evacuation would send the same files beside the first.
        if await at_risk(plane, host) and host not in self._saving:
            why = f"it went away: {event.payload.get('reason', '')}"
            task = self._tasks.create_task(self._evacuate_quietly(host, why), name=f"evacuation:{host}")
            self._saving[host] = task  # whoever told us does not wait for the transfers
            task.add_done_callback(lambda _: self._saving.pop(host, None))

    async def _evacuate_quietly(self, host: str, why: str) -> None:
        try:
            await self.evacuate_host(host, why)
        except RingRiftError as error:
            log.error("ephemeral.evacuation_failed", host=host, error=str(error))

    async def wait_for_evacuations(self) -> None:
        """Return when those that events began have ended."""
        if self._saving:
            await asyncio.wait(set(self._saving.values()), timeout=self.rules.evacuation_s)

    async def _on_alive(self, event: RouterEvent) -> None:
        plane, host = await self._get_plane(), str(event.payload["node_id"])
        if is_ephemeral(host, plane.nodes):
            await self.note_heartbeat(host)

    async def stop(self) -> None:
        """Hear nothing more; an ephemeral node brings its games out before it goes."""
        # A process that only asked the guard something does not speak for the node, and pushes nothing.
        was_wired = self.is_subscribed
        self.unwire()
        try:
            if was_wired and (await self._get_plane()).this.ephemeral:
                await self.leave()
        finally:
            await self._tasks.stop(self.rules.evacuation_s)
            self._tasks = TaskOwner(NAME)  # it may be wired again

    def wiring(self) -> ComponentWiring:
        return ComponentWiring(NAME, self.capability, self.emits, tuple(self._hears()))

    @reported_health
    def health_check(self) -> HealthCheckResult:
        if not self.is_subscribed:
            return HealthCheckResult(False, self.status, "it is not wired")
        return HealthCheckResult.ok("", evacuations_running=len(self._saving))

    # --- the documents' calls, for code without an event loop -----------------------------------------

    checkpoint = blocking(note_checkpoint)
    heartbeat = blocking(note_heartbeat)
    _risks = blocking(risks)

    def get_evacuation_candidates(self) -> list[HostRisk]:
        return [risk for risk in self._risks() if risk.needs_evacuation]

    def request_evacuation(self, host: str, reason: str = "") -> str:
        """Bring a host's games to safety; return the id of the evacuation when it has ended."""
        saving = self.evacuate_host(host, reason)
        return run_blocking(saving, timeout_s=self.rules.evacuation_s + _ANSWER_S).evacuation_id

    @blocking
    async def queue_write_through(
        self, game_id: str, host: str, data_path: str = "", priority: int = 0
    ) -> None:
        """Ask that the file with this game leaves *host* before others; done when it lies where it stays.

        *data_path* is the name or the digest of a sealed file. One that is not sealed yet is looked for again
        when the host leaves or is evacuated; until then `get_status` counts it as without a file.
        """
        for what, value in (("game_id", game_id), ("host", host)):
            check_name(what, value)
        check_text("data_path", data_path, empty=True)
        check_integer("priority", priority, low=-INTEGER_MAX)
        plane = await self._get_plane()
        await EphemeralRecords(plane.kv).queue(game_id, host, data_path, priority, plane.runtime.now_s())
        await first_of(plane, host)

    @blocking
    async def get_pending_write_throughs(self, limit: int = 100) -> list[WriteThrough]:
        """The most urgent first, the oldest of those first."""
        plane = await self._look_at_plane()
        return [] if plane is None else await EphemeralRecords(plane.kv).pending(limit)

    @blocking
    async def mark_write_through_complete(self, game_id: str) -> bool:
        return await EphemeralRecords((await self._get_plane()).kv).done(game_id)

    def get_status(self) -> dict[str, Any]:
        risks = self._risks()
        pending = self.get_pending_write_throughs()
        return {
            "ephemeral_hosts": sum(risk.ephemeral for risk in risks),
            "total_unsynced_games": sum(risk.unsynced_games for risk in risks),
            "games_at_risk_on_termination": sum(risk.unsynced_games for risk in risks if risk.ephemeral),
            "evacuation_candidates": [risk.host for risk in risks if risk.needs_evacuation],
            "pending_write_throughs": len(pending),
            "write_throughs_without_file": sum(not is_digest(digest_of(each)) for each in pending),
            "hosts": {risk.host: asdict(risk) for risk in risks},
        }


get_ephemeral_guard = getter_of("get_ephemeral_guard", EphemeralDataGuard)
reset_ephemeral_guard = EphemeralDataGuard.reset_instance


def checkpoint_games(host: str, games_generated: int, unsealed_games: int = 0) -> HostNote:
    return get_ephemeral_guard().checkpoint(host, games_generated, unsealed_games)


def request_evacuation(host: str, reason: str = "") -> str:
    return get_ephemeral_guard().request_evacuation(host, reason)


def wire_ephemeral_events(router: UnifiedEventRouter | None = None) -> EphemeralDataGuard:
    """Return the guard of this process, wired to its events; for another *router*, one of its own."""
    guard = process_scope().get(EphemeralDataGuard, lambda: EphemeralDataGuard(router=router))
    if router is not None and guard.router is not router:
        guard = EphemeralDataGuard(router=router)
    guard.wire()
    return guard
