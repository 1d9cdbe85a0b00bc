"""Models and sample files to where they are needed, with confirmation by receipts.

MODEL_DISTRIBUTION, MODEL_SYNC and NPZ_DISTRIBUTION are this daemon with different kinds. What should be where
follows from the champions, the newest sample files and open requests; an event only makes it look at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Unpack

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.artifacts import Artifact, ArtifactKind, data_type_of
from ringrift.data.config import DataNode, DataNodes
from ringrift.data.files import FileMissing, FileUnreadable, compute_file_checksum
from ringrift.data.kv_records import for_each
from ringrift.data.manifest.file_facts import FileFacts, read_facts
from ringrift.data.manifest.store import DiskStates, ManifestView
from ringrift.data.plane import DaemonParts, DataPlane, Failures, WakingDaemon, daemon_factory, try_to_copy
from ringrift.data.protection.retention import read_champions
from ringrift.engine.encoding import is_digest
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError, Corrupt
from ringrift.events.event import RouterEvent
from ringrift.events.subscriptions import Callback
from ringrift.foreign_files.paths import check_name, open_offered
from ringrift.runtime import back_off_s

# Files that an event names by their path: taken in only from folders that the settings name, once each.
#
# An event may come from anybody who can publish one, so a path in it must not become a read of any file of
# this machine. What lies in `RINGRIFT_INTAKE_FOLDERS` is read, checked and sealed under its hash; the same
# file offered again, under whatever name, is the same artifact and changes nothing.


log = structlog.get_logger()

VERIFIER = "intake"


async def take_offered(
    plane: DataPlane, path: Path | str, *, kind: ArtifactKind, config: str = ""
) -> Artifact:
    """Seal and register the file at *path*; return its card, which is the one there was if it is known.

    `ConfigError` for a path outside of the folders that the settings name, of which nothing is read;
    `Corrupt` for a file that is not of *kind*; `FileMissing` or `FileUnreadable`.
    """
    if config:
        check_name("config", config)
    given, folders = Path(path), plane.settings.intake_folders
    async with _opened(given, folders) as file:
        # Through the descriptor: whatever the path leads to by now, this is the file that was looked at.
        inside = Path(f"/proc/self/fd/{file.fileno()}")
        was_here, digest = await _sealed(plane, inside)
        facts = await asyncio.to_thread(read_facts, await plane.blobs.path(digest) or inside)
    if facts.problem or facts.kind is not kind:
        if not was_here:
            await plane.blobs.delete(digest)
        found = facts.problem or f"this is {_what(facts)}, not {kind.value}"
        raise Corrupt(given, found=found, advice="Name a sealed file of that kind")
    return await _registered(plane, given.name, digest, facts, config=config)


@asynccontextmanager
async def _opened(path: Path, folders: tuple[Path, ...]) -> AsyncIterator[BinaryIO]:
    with ExitStack() as held:
        try:
            file, _ = await asyncio.to_thread(held.enter_context, open_offered(path, folders))
        except FileNotFoundError as error:
            raise FileMissing(path, error) from error
        except OSError as error:
            raise FileUnreadable(path, error) from error
        yield file


async def _sealed(plane: DataPlane, inside: Path) -> tuple[bool, str]:
    """Put the content into the store; return whether it was there before, and its digest."""
    read = await asyncio.to_thread(compute_file_checksum, inside)
    before = await plane.blobs.has(read)
    digest = await plane.blobs.put(inside)
    return before and digest == read, digest


def _what(facts: FileFacts) -> str:
    return "no file of a run" if facts.kind is ArtifactKind.OTHER else facts.kind.value


async def _registered(plane: DataPlane, name: str, digest: str, facts: FileFacts, *, config: str) -> Artifact:
    if (known := await plane.manifest.artifact(digest)) is not None:
        return known
    card = Artifact(
        digest=digest,
        size=await plane.blobs.size(digest) or 0,
        kind=facts.kind,
        name=name,
        config=facts.config or config,
        node=plane.this.name,
        games=facts.games,
        rows=facts.rows,
        created_s=plane.runtime.now_s(),
    )
    await plane.manifest.register([card])
    await plane.note_copy(digest, VERIFIER)
    log.info("intake.taken", name=name, digest=digest, kind=facts.kind.value, config=card.config)
    return card


__all__ = [
    "DistributionDaemon",
    "DistributionRules",
    "ModelRequest",
    "UnifiedDistributionDaemon",
    "create_distribution_daemon",
    "digest_in",
]


# Which files should be on which nodes, and what is still missing where: a pure function of what is known.


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionRules:
    """When a distribution counts as done, and how hard to try."""

    nodes_promotion: int = 10
    nodes_evaluation: int = 1
    timeout_s: float = 300.0  # after which what is missing is told
    tries: int = 3
    retry_s: float = 30.0
    retry_growth: float = 1.5
    rest_s: float = 600.0  # after the last try
    transfer_timeout_s: float = 300.0
    parallel: int = 4

    def __post_init__(self) -> None:
        if min(self.nodes_promotion, self.nodes_evaluation, self.tries, self.parallel) < 1:
            raise ConfigError("node counts, tries and parallel must be at least 1")

    @property
    def alarm_after(self) -> int:
        return self.tries

    def wait_s(self, failures: int) -> float:
        """How long to leave a node alone after this many failures in a row."""
        if failures >= self.tries:
            return self.rest_s
        return back_off_s(failures, first_s=self.retry_s, longest_s=math.inf, growth=self.retry_growth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Files that belong together and should be on nodes."""

    digests: tuple[str, ...]  # the first gives the want its name
    config: str
    required: int  # on so many nodes it counts as distributed
    reason: str
    since_s: float
    priority: str = "high"
    target: str = ""  # one node only
    training_only: bool = False

    @property
    def name(self) -> str:
        return self.digests[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionState:
    """What is known at one moment."""

    view: ManifestView  # without copies that were given up
    nodes: DataNodes
    away: frozenset[str] = frozenset()  # left alone, by what transfers met
    disk_percent: Mapping[str, float] = field(default_factory=dict)
    resting: frozenset[tuple[str, str]] = frozenset()  # (want, node) that failed a short time ago

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        return self.view.artifacts

    def confirmed(self, digest: str) -> frozenset[str]:
        """The nodes that verified it and did not give it up since."""
        return frozenset(self.view.copies.get(digest, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDelivery:
    """Files that one node still lacks."""

    want: Want
    source: str
    target: str
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far one want is."""

    want: Want
    confirmed: tuple[str, ...]  # nodes that have all of it
    missing: tuple[str, ...]
    required: int  # no more than there are nodes
    deliveries: tuple[NodeDelivery, ...] = ()
    unknown: tuple[str, ...] = ()  # files that no node has

    @property
    def done(self) -> bool:
        return len(self.confirmed) >= self.required


def plan(wants: Iterable[Want], state: DistributionState) -> list[Standing]:
    """Say for each want who has it and who is to get it."""
    return [_standing(want, state) for want in wants]


def wants_of_champions(
    champions: Mapping[str, tuple[str, ...]], state: DistributionState, rules: DistributionRules
) -> list[Want]:
    """Champions belong on every node that plays."""
    return [
        Want(
            digests=digests,
            config=config,
            required=rules.nodes_promotion,
            reason=f"the champion of {config}",
            since_s=max(
                (state.artifacts[digest].created_s for digest in digests if digest in state.artifacts),
                default=0.0,
            ),
        )
        for config, digests in champions.items()
    ]


def wants_of_samples(state: DistributionState, rules: DistributionRules) -> list[Want]:
    """The newest sample file of each config belongs on the nodes that train."""
    newest: dict[str, Artifact] = {}
    for artifact in state.artifacts.values():
        if artifact.kind is ArtifactKind.SAMPLES:
            known = newest.get(artifact.config)
            if known is None or artifact.created_s > known.created_s:
                newest[artifact.config] = artifact
    return [
        Want(
            digests=(artifact.digest,),
            config=config,
            required=rules.nodes_evaluation,
            reason=f"the newest samples of {config}",
            since_s=artifact.created_s,
            priority="normal",
            training_only=True,
        )
        for config, artifact in newest.items()
    ]


def with_card(model: Artifact, artifacts: Iterable[Artifact]) -> tuple[str, ...]:
    """A model and its card: made by the same job, so of the same config, node and time."""
    cards = [
        each.digest
        for each in artifacts
        if each.kind is ArtifactKind.CARD
        and (each.config, each.node, each.created_s) == (model.config, model.node, model.created_s)
    ]
    return (model.digest, *cards[:1])


def _standing(want: Want, state: DistributionState) -> Standing:
    known = [state.artifacts[digest] for digest in want.digests if digest in state.artifacts]
    has = [state.confirmed(digest) for digest in want.digests]
    complete = frozenset.intersection(*has)
    unknown = tuple(digest for digest, holders in zip(want.digests, has, strict=True) if not holders)
    asked = [node for node in state.nodes.all() if _is_asked(node, want, known)]
    # Whoever sees the disk of one that has it, has it too.
    missing = [node for node in asked if complete.isdisjoint(state.nodes.sharing(node.name))]
    deliveries = [
        delivery
        for node in missing
        if not unknown and _can_take(node, state) and (want.name, node.name) not in state.resting
        if (delivery := _delivery(want, node, known, state)) is not None
    ]
    return Standing(
        want=want,
        confirmed=tuple(sorted(complete)),
        missing=tuple(node.name for node in missing),
        required=min(want.required, max(1, len({node.name for node in asked} | complete))),
        deliveries=tuple(deliveries),
        unknown=unknown,
    )


def _is_asked(node: DataNode, want: Want, known: Sequence[Artifact]) -> bool:
    if want.target:
        return node.name == want.target and node.active
    if node.is_archive:
        return False  # it keeps files and uses none
    if want.training_only and not node.training:
        return False
    return all(node.accepts(data_type_of(artifact.kind)) for artifact in known)


def _can_take(node: DataNode, state: DistributionState) -> bool:
    full = state.disk_percent.get(node.name, 0.0) >= node.disk_max_percent
    return node.name not in state.away and not full


def _delivery(
    want: Want, node: DataNode, known: Sequence[Artifact], state: DistributionState
) -> NodeDelivery | None:
    lacking = tuple(each for each in known if node.name not in state.confirmed(each.digest))
    holders = frozenset.intersection(*(state.confirmed(each.digest) for each in lacking)) - state.away
    usable = sorted(name for name in holders if name in state.nodes and state.nodes[name].active)
    if not usable:
        return None
    this = state.nodes.this.name
    source = this if this in usable else usable[0]
    return NodeDelivery(want=want, source=source, target=node.name, artifacts=lacking)


# The daemon, which brings what the plan says to where it is missing.


INTERVAL_S = 15.0
PREFETCH_SHARE = 0.8  # of a training
REQUESTS = "data/wishes/"
REQUEST_S = 86_400.0  # a request that could not be met in a day is dropped, and said to be
_BLOB = "blob:"
_REMEMBERED_MAX = 1_000


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asked for a model to be on nodes."""

    digest: str
    config: str
    required: int
    reason: str
    at_s: float
    target: str = ""
    priority: str = "high"


class DistributionDaemon(WakingDaemon):
    """Brings files to nodes until they confirm."""

    capability: ClassVar[str] = "artifact_distribution"
    emits: ClassVar[tuple[str, ...]] = (
        "MODEL_DISTRIBUTION_STARTED",
        "MODEL_DISTRIBUTION_COMPLETE",
        "MODEL_DISTRIBUTION_FAILED",
        "DISTRIBUTION_INCOMPLETE",
    )
    woken_by: ClassVar[tuple[str, ...]] = (
        "MODEL_PROMOTED",
        "NPZ_EXPORT_COMPLETE",
        "REGISTRY_UPDATED",
        "P2P_MODEL_SYNCED",
    )

    def __init__(
        self,
        kinds: Iterable[str] = ("models", "npz"),
        *,
        rules: DistributionRules | None = None,
        **parts: Unpack[DaemonParts],
    ) -> None:
        super().__init__("model_distribution", interval_s=INTERVAL_S, **parts)
        self.rules, self.kinds = rules or DistributionRules(), frozenset(kinds)
        self.standings: dict[str, Standing] = {}
        self._failures: Failures[tuple[str, str]] = Failures(self.rules)  # (want, node)
        self._prefetched = ""  # the training that this was last done for
        self._reported: dict[tuple[str, str], float] = {}  # (want, what): when; also when a want began

    # --- what it hears --------------------------------------------------------------------------------

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        requests = dict.fromkeys(
            ("MODEL_UPDATED", "MODEL_SYNC_REQUESTED", "MODEL_EVALUATION_BLOCKED", "TRAINING_COMPLETED"),
            self._on_model_request,
        )
        return {
            **super()._get_event_subscriptions(),
            **requests,
            "TRAINING_PROGRESS": self._on_progress,
            "MODEL_CORRUPTED": self._on_corrupted,
            "MODEL_DISTRIBUTION_FAILED": self._on_failed,
            "HOST_ONLINE": self._on_online,
        }

    def _on_online(self, event: RouterEvent) -> None:
        """A node may be back: one try tells."""
        node = str(event.payload["node_id"])
        self._failures.succeeded([(each.want.name, node) for each in self.standings.values()])
        self.wake()

    async def _on_model_request(self, event: RouterEvent) -> None:
        """A model should be on nodes: remember it, so that a restart does not forget it."""
        payload = event.payload
        if "models" not in self.kinds:
            return
        digest = digest_in(payload) or await self._taken_in(event)
        if digest is None:
            return
        plane = await self._opened()
        request = ModelRequest(
            digest=digest,
            config=str(payload.get("config_key") or ""),
            required=int(payload.get("required_nodes") or self.rules.nodes_evaluation),
            reason=str(payload.get("reason") or event.event_type.lower()),
            at_s=plane.runtime.now_s(),
            target=str(payload.get("target_node") or ""),
            priority=str(payload.get("priority") or "high"),
        )
        changed = await self._requests(plane).change(
            f"{digest}/{request.target}",
            lambda found: (
                None
                if found is not None and replace(found, at_s=request.at_s) == request
                else request  # the same request said again changes nothing
            ),
            ttl_s=REQUEST_S,
        )
        if changed is not None:
            self.wake()

    async def _taken_in(self, event: RouterEvent) -> str | None:
        """The digest of a model that an event names by its path; None if it is refused, which is told."""
        path = str(event.payload.get("model_path") or "")
        if "/" not in path:
            return None  # a name, and no file
        plane, config = await self._opened(), str(event.payload.get("config_key") or "")
        try:
            return (await take_offered(plane, path, kind=ArtifactKind.MODEL, config=config)).digest
        except (ConfigError, Corrupt, FileUnreadable) as error:
            log.warning("distribution.model_refused", event_type=event.event_type, error=str(error))
            await plane.decisions.record("distribution", "refused", str(error), event=event.event_type)
            return None

    def _on_progress(self, event: RouterEvent) -> None:
        """A training is nearly over: the champion, which its model will meet, should be everywhere."""
        done, total = event.payload.get("epoch"), event.payload.get("total_epochs")
        job = str(event.payload.get("job_id"))
        if done and total and done >= PREFETCH_SHARE * total and job != self._prefetched:
            self._prefetched = job
            self._failures.keep_only(())  # nodes that failed before are tried once more
            self.wake()

    async def _on_corrupted(self, event: RouterEvent) -> None:
        """A node found its copy damaged: it does not have it any more, so it gets it again."""
        digest, node = digest_in(event.payload), event.payload.get("node_id")
        if digest is None or not node:
            return
        plane = await self._opened()
        await plane.manifest.drop_copy(digest, str(node))
        self.wake()

    def _on_failed(self, event: RouterEvent) -> None:
        """Another process gave up on nodes; those that we know of have their own time to rest."""
        log.info("distribution.failure_heard", error=event.payload.get("error"), source=event.source)

    # --- what it does ---------------------------------------------------------------------------------

    async def _run_cycle(self) -> None:
        plane = await self._opened()
        state = await self._read_state(plane)
        standings = plan(await self._wants(plane, state), state)
        await self._deliver(plane, standings)
        standings = plan([each.want for each in standings], await self._read_state(plane))
        self.standings = {each.want.name: each for each in standings}
        for standing in standings:
            await self._tell(plane, standing)
        self._forget(standings)

    def _requests(self, plane: DataPlane) -> KvRecords[ModelRequest]:
        return KvRecords(plane.kv, REQUESTS, ModelRequest)

    async def _read_state(self, plane: DataPlane) -> DistributionState:
        manifest = await plane.view()
        return DistributionState(
            view=manifest.without(await plane.tombstones(), plane.nodes),
            nodes=plane.nodes,
            # Not what somebody says of a node: trying it is how one finds out.
            away=frozenset(await plane.stalls.set_aside_async()) - {plane.this.name},
            disk_percent=await DiskStates(plane.kv).used_percent(),
            resting=self._failures.resting(self._runtime.monotonic_s()),
        )

    async def _wants(self, plane: DataPlane, state: DistributionState) -> list[Want]:
        wants: list[Want] = []
        if "models" in self.kinds:
            champions: dict[str, tuple[str, ...]] = {}
            for digest, config in (await read_champions(plane.kv)).items():
                champions[config] = (*champions.get(config, ()), digest)
            wants += wants_of_champions(champions, state, self.rules)
            wants += [_want(request, state) for request in await self._requests(plane).all()]
        if "npz" in self.kinds:
            wants += wants_of_samples(state, self.rules)
        return list({want.name + want.target: want for want in reversed(wants)}.values())

    async def _deliver(self, plane: DataPlane, standings: list[Standing]) -> None:
        due = [delivery for standing in standings for delivery in standing.deliveries]
        for standing in standings:
            if standing.deliveries:
                await self._tell_started(standing)
        await for_each(due, lambda delivery: self._deliver_one(plane, delivery), at_once=self.rules.parallel)

    async def _deliver_one(self, plane: DataPlane, delivery: NodeDelivery) -> None:
        errors = await try_to_copy(
            plane,
            delivery.artifacts,
            source=delivery.source,
            target=delivery.target,
            priority=delivery.want.priority,
            timeout_s=self.rules.transfer_timeout_s,
        )
        key = (delivery.want.name, delivery.target)
        if not errors:
            self._failures.succeeded([key])
            return
        error = "; ".join(dict.fromkeys(errors.values()))
        failures = self._failures.failed(key, error, now_s=self._runtime.monotonic_s())
        log.warning("distribution.failed", node=delivery.target, error=error, failures=failures)

    # --- what it tells --------------------------------------------------------------------------------

    async def _tell_started(self, standing: Standing) -> None:
        if self._is_first(standing, "started"):
            payload = {"total_models": len(standing.want.digests), "target_nodes": list(standing.missing)}
            await self._publish("MODEL_DISTRIBUTION_STARTED", standing, payload)

    async def _tell(self, plane: DataPlane, standing: Standing) -> None:
        want = standing.want
        begun_s = self._reported.get((want.name, "started"))
        waited_s = self._runtime.monotonic_s() - begun_s if begun_s is not None else 0.0
        if not standing.missing or standing.done:
            await self._requests(plane).delete(f"{want.name}/{want.target}")
        if standing.done and begun_s is not None and self._is_first(standing, "complete"):
            payload = {
                "models_distributed": len(want.digests),
                "target_nodes": list(standing.confirmed),
                "nodes_synced": len(standing.confirmed),
                "duration_seconds": waited_s,
            }
            await self._publish("MODEL_DISTRIBUTION_COMPLETE", standing, payload)
        alarming = self._failures.alarming()
        given_up = {
            node: alarming[want.name, node] for node in standing.missing if (want.name, node) in alarming
        }
        if given_up and self._is_first(standing, "failed"):
            error = "; ".join(f"{node}: {why}" for node, why in given_up.items())
            await self._publish(
                "MODEL_DISTRIBUTION_FAILED", standing, {"error": error, "failed_nodes": list(given_up)}
            )
        if not standing.done and waited_s > self.rules.timeout_s and self._is_first(standing, "incomplete"):
            payload = {
                "model_path": _BLOB + want.name,
                "required_nodes": standing.required,
                "actual_nodes": len(standing.confirmed),
                "timeout_seconds": self.rules.timeout_s,
            }
            await self.router.publish("DISTRIBUTION_INCOMPLETE", payload, self.name)

    def _is_first(self, standing: Standing, what: str) -> bool:
        key = (standing.want.name, what)
        if key in self._reported:
            return False
        self._reported[key] = self._runtime.monotonic_s()
        return True

    async def _publish(self, event: str, standing: Standing, payload: Mapping[str, Any]) -> None:
        about = {"model_id": standing.want.name, "config_key": standing.want.config or None}
        await self.router.publish(event, {**about, **payload}, self.name)

    def _forget(self, standings: list[Standing]) -> None:
        """Keep notes of present wants only, and of not too many."""
        present = {each.want.name for each in standings}
        self._failures.keep_only({(each.want.name, node) for each in standings for node in each.missing})
        for key in [key for key in self._reported if key[0] not in present][:_REMEMBERED_MAX]:
            del self._reported[key]

    def get_status(self) -> dict[str, Any]:
        wants = {
            name: {
                "reason": each.want.reason,
                "confirmed": list(each.confirmed),
                "missing": list(each.missing),
                "required": each.required,
            }
            for name, each in self.standings.items()
        }
        return {**super().get_status(), "kinds": sorted(self.kinds), "wants": wants}


UnifiedDistributionDaemon = DistributionDaemon


def digest_in(payload: Mapping[str, Any]) -> str | None:
    """The digest that an event means: its path is `blob:` and the digest, or its id is one."""
    for text in (
        str(payload.get("model_path") or "").removeprefix(_BLOB),
        str(payload.get("model_id") or ""),
    ):
        if is_digest(text):
            return text
    return None


def _want(request: ModelRequest, state: DistributionState) -> Want:
    model = state.artifacts.get(request.digest)
    digests = (request.digest,) if model is None else with_card(model, state.artifacts.values())
    return Want(
        digests=digests,
        config=request.config,
        required=request.required,
        reason=request.reason,
        since_s=request.at_s,
        priority=request.priority,
        target=request.target,
    )


def _daemon_for(settings: Mapping[str, str]) -> Callable[..., DistributionDaemon]:
    """The daemon for the kinds that its row of the daemon table names, joined by a plus sign."""
    return partial(DistributionDaemon, settings.get("kinds", "models+npz").split("+"))


create_distribution_daemon = daemon_factory(_daemon_for)
