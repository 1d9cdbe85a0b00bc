"""The data plane of one node: what all its parts share, and how it reaches the other nodes.

The plane holds the node's store, the manifest, the table of nodes and the transfers. Around it stand what it
is made of (every transport, the ways to ask other nodes what they hold) and what everybody does with it: copy
files between nodes, and run a daemon in cycles.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

from ringrift.data.artifacts import Artifact, Receipt
from ringrift.data.backup.archive import ArchivedFile, ArchiveObjects, card_key, decode, read_back
from ringrift.data.config import DataNode, DataNodes, read_nodes
from ringrift.data.kv_records import DecisionLog
from ringrift.data.manifest.store import ManifestIndex, ManifestStore, ManifestView
from ringrift.data.protection.promise_store import FileLook, PromiseStore
from ringrift.data.protection.promises import (
    Holder,
    KeepAnswer,
    KeepRequest,
    KeptFile,
    Released,
    ReleaseRequest,
    open_holder,
)
from ringrift.data.protection.records import (
    Successor,
    Tombstone,
    mirror_successors,
    mirror_tombstones,
    set_damaged_aside,
)
from ringrift.data.sync.mutex import SyncLocks
from ringrift.data.transfer.archive import archive_transports, open_archive
from ringrift.data.transfer.contract import (
    READ_BYTES_PER_S,
    Moved,
    MoveOptions,
    Terms,
    TransferFailed,
)
from ringrift.data.transfer.http.client import HttpTransport
from ringrift.data.transfer.http.wire import File, data_secret
from ringrift.data.transfer.peers import SyncStallHandler
from ringrift.data.transfer.receiving import Landing, open_intake
from ringrift.data.transfer.service import SetAside, TransferService
from ringrift.data.transfer.ssh import Programs, Scratch, Ssh, SshStores
from ringrift.data.transfer.ssh_transports import Base64Transport, RsyncTransport
from ringrift.engine.ports import Blobs, EndedWork, Engine, KeyValue, WorkQueue
from ringrift.errors import ConfigError, Corrupt, RingRiftError, Unavailable
from ringrift.events.event import RouterEvent
from ringrift.events.handlers import CycleHandler
from ringrift.events.subscriptions import Callback
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.runtime import Runtime, first_of
from ringrift.settings import Settings
from ringrift.work.job.protocol import read_order

# Which games each config was last exported from: read from the ends of work, each of them once.


WINDOW_KINDS = ("export", "train")  # the job that reads the games that are learned from
_PAGE = 1_000


class ExportWindows:
    """The inputs of the last export of each config, games, and those of its last training, samples."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue, self._number = queue, 0
        self._inputs: dict[str, dict[str, frozenset[str]]] = {}  # config: by kind of work

    async def refresh(self) -> Mapping[str, frozenset[str]]:
        """Return the windows as they are now; only ends that are new are read."""
        while page := await self._queue.ended(after=self._number, limit=_PAGE):
            for end in page:
                if end.number > self._number:  # another task may have been faster
                    self._take(end)
        return {config: frozenset().union(*inputs.values()) for config, inputs in self._inputs.items()}

    def _take(self, end: EndedWork) -> None:
        self._number = end.number
        if end.item.kind not in WINDOW_KINDS:
            return
        try:
            order = read_order(end.item.payload)
        except ConfigError:
            return  # work of another make: its inputs are not known
        self._inputs.setdefault(order.config, {})[end.item.kind] = frozenset(order.inputs.values())


# Asking other nodes which files they hold, and to keep them: over HTTP or ssh, or by a look at an archive.
#
# Whoever cannot be asked has no copy, as far as a deletion is concerned: there is no answer from memory here.


ASK_S = 15.0  # for an answer, and the time to read the files on top of it
ASK_S_MAX = 300.0  # by all ways together: what others promised meanwhile must not run out
ARCHIVE_READ_AGE_S_MAX = 30 * 86_400.0  # an archive whose file was read longer ago is read back


A = TypeVar("A")


class HolderWay(Protocol):
    """One way to ask: what brings files by HTTP or ssh asks about them, too."""

    def reaches(self, node: DataNode) -> bool: ...

    async def keep(self, node: DataNode, request: KeepRequest, *, timeout_s: float) -> KeepAnswer: ...

    async def release(self, node: DataNode, request: ReleaseRequest, *, timeout_s: float) -> Released: ...


class ArchiveHolders:
    """Looks at an archive itself. It cannot promise, and need not: nothing deletes there, it only grows."""

    def __init__(self, promises: PromiseStore, runtime: Runtime) -> None:
        self._promises, self._runtime = promises, runtime
        self._opened: dict[DataNode, ArchiveObjects] = {}

    def reaches(self, node: DataNode) -> bool:
        return node.is_archive

    async def keep(self, node: DataNode, request: KeepRequest, *, timeout_s: float) -> KeepAnswer:
        objects = self._opened.get(node)
        if objects is None:
            objects = self._opened[node] = open_archive(node, self._runtime)
        async with asyncio.timeout(timeout_s):
            await objects.ready(to_write=False)
            files = [await self._look(objects, node, file, read=request.keep_s > 0) for file in request.files]
        return KeepAnswer(node=node.name, store=objects.place, keep_s=request.keep_s, files=tuple(files))

    async def release(self, node: DataNode, request: ReleaseRequest, *, timeout_s: float) -> Released:  # noqa: ARG002
        return Released(files=0)

    async def _look(self, objects: ArchiveObjects, node: DataNode, file: File, *, read: bool) -> KeptFile:
        content = await objects.read(card_key(file.digest))
        if content is None:
            return KeptFile(digest=file.digest, refusal="it does not have it", missing=True)
        try:
            card = decode(card_key(file.digest), content, ArchivedFile)
            sound = card.artifact.digest == file.digest and sum(part.size for part in card.parts) == file.size
            if not sound:
                return KeptFile(digest=file.digest, refusal="its card there is of another file", damaged=True)
            for part in card.parts:
                if await objects.size(part.key) != part.size:
                    return KeptFile(digest=file.digest, refusal=f"it lost {part.key}", damaged=True)
            age_s = await self._read_age_s(objects, node, card, read=read)
        except Corrupt as error:
            return KeptFile(digest=file.digest, refusal=f"its file is damaged: {error.found}", damaged=True)
        return KeptFile(digest=file.digest, size=file.size, read_age_s=age_s)

    async def _read_age_s(
        self, objects: ArchiveObjects, node: DataNode, card: ArchivedFile, *, read: bool
    ) -> float | None:
        """Since when its bytes were last read by this node; now, if that was long ago and *read* is given."""
        key, now_s = f"{node.name}/{card.artifact.digest}", self._runtime.now_s()
        known = (await asyncio.to_thread(self._promises.last_reads, [key])).get(key)
        if known is not None and known.sound and 0 <= now_s - known.read_s <= ARCHIVE_READ_AGE_S_MAX:
            return now_s - known.read_s
        if not read:
            return None
        found = await read_back(objects, card.artifact.digest, card.parts, None)
        look = FileLook(card.artifact.size, 0)
        await asyncio.to_thread(self._promises.note_read, key, look, sound=found.sound)
        if not found.sound:
            raise Corrupt(key, found=found.why, advice="Back the file up anew")
        return 0.0


class NodeHolders:
    """Asks each node by the first way that gets through."""

    def __init__(self, ways: Sequence[HolderWay], *, ssh_stores: SshStores | None = None) -> None:
        self._ways, self._ssh_stores = tuple(ways), ssh_stores

    async def keep(self, node: DataNode, request: KeepRequest) -> KeepAnswer:
        """Raises `Unavailable` if nobody answers, or somebody else than was asked."""
        reading_s = sum(file.size for file in request.files) / READ_BYTES_PER_S if request.keep_s > 0 else 0.0

        async def ask(way: HolderWay, timeout_s: float) -> KeepAnswer:
            return await way.keep(node, request, timeout_s=timeout_s)

        return _checked(await self._by_ways(node, ask, ASK_S + reading_s, ASK_S_MAX), node, request)

    async def release(self, node: DataNode, request: ReleaseRequest) -> Released:
        """Raises `Unavailable` if nobody answers."""

        async def ask(way: HolderWay, timeout_s: float) -> Released:
            return await way.release(node, request, timeout_s=timeout_s)

        return await self._by_ways(node, ask, ASK_S, ASK_S)

    async def _by_ways(
        self, node: DataNode, ask: Callable[[HolderWay, float], Awaitable[A]], each_s: float, all_s: float
    ) -> A:
        """Ask by one way after the other, *each_s* by each and no longer than *all_s* by all."""
        ways, whys, now_s = (
            [way for way in self._ways if way.reaches(node)],
            [],
            asyncio.get_running_loop().time,
        )
        end_s, share_s = now_s() + all_s, min(ASK_S, all_s / max(1, len(ways)))
        for number, way in enumerate(ways, start=1):
            left_s = end_s - now_s() - share_s * (len(ways) - number)  # the other ways get some, too
            timeout_s = min(each_s, left_s)
            try:
                async with asyncio.timeout(timeout_s):
                    return await ask(way, timeout_s)
            except TimeoutError:
                whys.append(f"no answer in {timeout_s:.0f} s")
            except RingRiftError as error:
                whys.append(str(error))
        raise Unavailable("; ".join(whys) or "its entry names no way to ask it", retry_after_s=5.0)

    async def close(self) -> None:
        if self._ssh_stores is not None:
            await self._ssh_stores.ssh.close()


def _checked(answer: KeepAnswer, node: DataNode, request: KeepRequest) -> KeepAnswer:
    """The answer, if it is to what was asked, by who was asked."""
    if answer.node != node.name:
        raise Unavailable(f"{answer.node!r} answers under the address of {node.name}")
    if {file.digest for file in answer.files} != {file.digest for file in request.files}:
        raise Unavailable(f"{node.name} answers about other files")
    return answer


# The transfers of a node that runs: every transport there is, on the node's own blob folder.


def _ssh_stores(settings: Settings, runtime: Runtime, *, this: str) -> tuple[Programs, SshStores]:
    programs = Programs(Scratch(settings.data_dir / "transfer", runtime), runtime)
    ssh = Ssh(programs, runtime, control_dir=programs.scratch.folder / "ssh")
    return programs, SshStores(ssh, programs.scratch, this=this)


def assemble_holders(
    settings: Settings, runtime: Runtime, *, nodes: DataNodes, promises: PromiseStore
) -> NodeHolders:
    """Put together what asks other nodes about their files."""
    this = nodes.this.name
    _, stores = _ssh_stores(settings, runtime, this=this)
    intake = open_intake(settings, runtime, node=this)
    http = HttpTransport(intake, secret=data_secret(settings), runtime=runtime)
    ways = (http, stores, ArchiveHolders(promises, runtime))
    return NodeHolders(ways, ssh_stores=stores)


def assemble_transfers(
    engine: Engine,
    settings: Settings,
    runtime: Runtime,
    *,
    nodes: DataNodes,
    set_aside: SetAside,
    router: UnifiedEventRouter,
) -> TransferService:
    """Put the transports together. Nothing is connected before the first file goes."""
    this = nodes.this.name
    intake = open_intake(settings, runtime, node=this)

    def landing(verifier: str) -> Landing:
        return Landing(intake, verifier=verifier, now_s=runtime.now_s)

    programs, stores = _ssh_stores(settings, runtime, this=this)
    transports = (
        HttpTransport(intake, secret=data_secret(settings), runtime=runtime),
        RsyncTransport(stores, programs, landing("rsync")),
        Base64Transport(stores, landing("base64")),
        *archive_transports(landing("archive"), runtime),
    )
    service = TransferService(
        transports, nodes, engine.blobs, engine.kv, runtime, set_aside=set_aside, router=router
    )
    service.closes(stores.ssh.close)
    return service


# What all parts of the data plane share on one node: its store, the manifest, the nodes, the transfers.


class Transfers(Protocol):
    """Moves sealed files by whatever way works, and writes the receipts into the manifest.

    Both calls raise `TransferFailed` if the node cannot be reached in any way; the result names single files
    that failed.
    """

    async def send(
        self, node: DataNode, artifacts: Sequence[Artifact], **how: Unpack[MoveOptions]
    ) -> Moved: ...

    async def fetch(
        self, node: DataNode, artifacts: Sequence[Artifact], **how: Unpack[MoveOptions]
    ) -> Moved: ...

    async def close(self) -> None:
        """End the connections that are kept between calls, within seconds."""
        ...


class Holders(Protocol):
    """Asks other nodes about the files that they hold, now. No answer is `Unavailable`."""

    async def keep(self, node: DataNode, request: KeepRequest) -> KeepAnswer: ...

    async def release(self, node: DataNode, request: ReleaseRequest) -> Released: ...

    async def close(self) -> None: ...


class DataPlane:
    """One node's data plane on an open engine.

    *make_transfers* and *make_holders* get the plane that they are made for; *holder* answers for the files
    of this node.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        runtime: Runtime,
        *,
        nodes: DataNodes | None = None,
        blobs: Blobs | None = None,
        make_transfers: Callable[[DataPlane], Transfers] | None = None,
        make_holders: Callable[[DataPlane], Holders] | None = None,
        holder: Holder | None = None,
    ) -> None:
        self.engine, self.settings, self.runtime = engine, settings, runtime
        self.nodes = nodes or read_nodes(settings.node_name or runtime.hostname, settings.nodes)
        self.kv: KeyValue = engine.kv
        self.queue: WorkQueue = engine.queue
        self.blobs: Blobs = engine.blobs if blobs is None else blobs
        self.manifest = ManifestStore(engine.kv)
        self.decisions = DecisionLog(engine.kv, runtime, node=self.nodes.this.name)
        self._index = ManifestIndex(engine.kv, runtime)
        self._tombstones = mirror_tombstones(engine.kv, runtime)
        self._successors = mirror_successors(engine.kv, runtime)
        self.windows = ExportWindows(engine.queue)
        self.stalls = SyncStallHandler(kv=engine.kv, runtime=runtime)
        self.mutex = SyncLocks(kv=engine.kv, runtime=runtime, max_global=settings.max_syncs_cluster)
        self.holder = holder or open_holder(settings, runtime, node=self.nodes.this)
        self.promises = self.holder.promises
        self._make_transfers, self._make_holders = make_transfers, make_holders
        self._transfers: Transfers | None = None
        self._holders: Holders | None = None

    @property
    def this(self) -> DataNode:
        """The node that this process runs on."""
        return self.nodes.this

    async def view(self) -> ManifestView:
        """Return the manifest as it is now. All who look share one view and read only what changed."""
        return await self._index.refresh()

    async def note_copy(self, digest: str, verifier: str, *, verified_s: float | None = None) -> None:
        """Note that *verifier* read the whole of a file of this node and found it right: now, or then."""
        size, now_s = await self.blobs.size(digest) or 0, self.runtime.now_s()
        receipt = Receipt(
            digest=digest,
            node=self.this.name,
            size=size,
            verified_s=now_s if verified_s is None else verified_s,
            verifier=verifier,
        )
        await self.manifest.add_receipts([receipt])

    async def tombstones(self) -> Mapping[str, Tombstone]:
        """Every copy that was given up, by the digest of the file."""
        return await self._tombstones.refresh()

    async def successors(self) -> Mapping[str, Successor]:
        """Files that live on in others, by their digest."""
        return await self._successors.refresh()

    @property
    def transfers(self) -> Transfers:
        if self._transfers is None:
            if self._make_transfers is None:
                raise Unavailable("this data plane has no way to move files")
            self._transfers = self._make_transfers(self)
        return self._transfers

    @property
    def holders(self) -> Holders:
        """Whoever asks other nodes what they hold."""
        if self._holders is None:
            if self._make_holders is None:
                raise Unavailable("this data plane has no way to ask other nodes")
            self._holders = self._make_holders(self)
        return self._holders

    async def close(self) -> None:
        """Let go of what transfers keep between calls. The engine is not the plane's to close."""
        if self._transfers is not None:
            await self._transfers.close()
        if self._holders is not None:
            await self._holders.close()
        self.promises.close()


OpenPlane = Callable[[], Awaitable[DataPlane]]  # as late as it is needed: it may wait for the engine


def assemble_plane(
    engine: Engine, settings: Settings, runtime: Runtime, *, router: UnifiedEventRouter
) -> DataPlane:
    """Put together the data plane of a node that runs."""

    def transfers_of(plane: DataPlane) -> Transfers:
        set_aside = partial(set_damaged_aside, plane)
        return assemble_transfers(
            engine, settings, runtime, nodes=plane.nodes, set_aside=set_aside, router=router
        )

    def holders_of(plane: DataPlane) -> Holders:
        return assemble_holders(settings, runtime, nodes=plane.nodes, promises=plane.promises)

    plane = DataPlane(engine, settings, runtime, make_transfers=transfers_of, make_holders=holders_of)
    plane.mutex.router = router
    return plane


# Copying artifacts from one node to another, wherever this process runs.


COPY_S = 300.0


async def copy_artifacts(
    plane: DataPlane,
    artifacts: Sequence[Artifact],
    *,
    source: str,
    target: str,
    priority: str = "normal",
    timeout_s: float = COPY_S,
) -> Moved:
    """Bring *artifacts* from *source* to *target*; what failed is named in the result.

    Nodes talk to this one only, so between two others the files pass through here and stay as copies.
    `TransferFailed` if a node cannot be reached, or the whole takes longer than *timeout_s*.
    """
    terms, this, transfers = Terms(timeout_s=timeout_s), plane.this.name, plane.transfers
    try:
        async with asyncio.timeout(timeout_s):
            if source == this:
                return await transfers.send(plane.nodes[target], artifacts, priority=priority, terms=terms)
            fetched = await transfers.fetch(plane.nodes[source], artifacts, priority=priority, terms=terms)
            if target == this:
                return fetched
            here = fetched.arrived
            sent = await transfers.send(
                plane.nodes[target],
                [artifact for artifact in artifacts if artifact.digest in here],
                priority=priority,
                terms=terms,
            )
    except TimeoutError:
        raise TransferFailed(f"{source} to {target} took more than {timeout_s:g} s") from None
    # What came to here is no receipt of the target.
    return Moved(failed=fetched.failed, bytes_sent=fetched.bytes_sent) + sent


async def try_to_copy(
    plane: DataPlane,
    artifacts: Sequence[Artifact],
    *,
    source: str,
    target: str,
    priority: str = "normal",
    timeout_s: float = COPY_S,
) -> dict[str, str]:
    """As `copy_artifacts`; return what is not there, each with the reason, whatever went wrong."""
    try:
        moved = await copy_artifacts(
            plane, artifacts, source=source, target=target, priority=priority, timeout_s=timeout_s
        )
    except RingRiftError as fault:
        return {each.digest: str(fault) for each in artifacts}
    return moved.missing(each.digest for each in artifacts)


# Daemons that work in cycles and can be woken for the next one.
#
# A handler of an event only wakes: whoever published does not wait for a transfer, and a burst of events
# costs one cycle.


GATHER_S = 0.2  # events that come together are answered together
WOKEN_EVERY_S = 10.0  # and a stream of them by one cycle in so long: each reads much of what the plane knows


class DaemonParts(TypedDict, total=False):
    """What a daemon of the data plane is given; what it lacks it cannot do."""

    plane: DataPlane | OpenPlane | None
    router: UnifiedEventRouter | None
    runtime: Runtime | None


class WakingDaemon(CycleHandler):
    """Looks at the data plane now and then, and soon after it was woken."""

    woken_every_s: ClassVar[float] = WOKEN_EVERY_S
    woken_by: ClassVar[tuple[str, ...]] = ()  # events that say nothing but that a look is worth it

    def __init__(
        self,
        name: str,
        *,
        interval_s: float,
        plane: DataPlane | OpenPlane | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(name, cycle_interval=interval_s, router=router, runtime=runtime)
        self._plane: DataPlane | None = None if callable(plane) else plane
        self._open_plane: OpenPlane | None = plane if callable(plane) else None
        self._woken = asyncio.Event()
        self._began_s = -math.inf  # the cycle before

    def _get_event_subscriptions(self) -> Mapping[Any, Callback]:
        return dict.fromkeys(self.woken_by, self.wake)

    def wake(self, _event: RouterEvent | None = None) -> None:
        """Have the next cycle begin at once, or as soon after the last as one may."""
        self._woken.set()

    @property
    def router(self) -> UnifiedEventRouter:
        return self._hears_through()

    async def _opened(self) -> DataPlane:
        """The data plane that it works on, opened by the first who needs it."""
        if self._plane is None:
            if self._open_plane is None:
                raise ConfigError(f"{self.name} was made without a data plane, so it has nothing to work on")
            self._plane = await self._open_plane()
        return self._plane

    async def _rest(self) -> None:
        await first_of(self._runtime.sleep(self._cycle_interval), self._woken.wait())
        if self._woken.is_set():
            left_s = self._began_s + self.woken_every_s - self._runtime.monotonic_s()
            await self._runtime.sleep(max(GATHER_S, left_s))
            self._woken.clear()
        self._began_s = self._runtime.monotonic_s()


W = TypeVar("W", bound=WakingDaemon)


def daemon_factory(choose: Callable[[Mapping[str, str]], Callable[..., W]]) -> Callable[..., W]:
    """What a row of the daemon table names: makes the daemon that *choose* finds by the row's settings."""

    # The parameters are looked up by their names: whoever runs the daemons hands over what is named here.
    def create(
        settings: Mapping[str, str] | None = None,
        plane: OpenPlane | None = None,
        router: UnifiedEventRouter | None = None,
        runtime: Runtime | None = None,
    ) -> W:
        return choose(settings or {})(plane=plane, router=router, runtime=runtime)

    return create


class RetryRules(Protocol):
    """When to try again what failed."""

    @property
    def alarm_after(self) -> int:
        """After so many failures in a row a person should know."""
        ...

    def wait_s(self, failures: int) -> float: ...


class _Failure(NamedTuple):
    times: int
    next_s: float
    why: str


K = TypeVar("K", bound=Hashable)


class Failures(Generic[K]):
    """What failed and when it is tried again, by the monotonic clock. Bounded by what is open."""

    def __init__(self, rules: RetryRules) -> None:
        self.rules = rules
        self._open: dict[K, _Failure] = {}

    def failed(self, what: K, why: str, *, now_s: float) -> int:
        """Return how often it failed in a row."""
        count = self._open[what].times + 1 if what in self._open else 1
        self._open[what] = _Failure(count, now_s + self.rules.wait_s(count), why)
        return count

    def succeeded(self, done: Iterable[K]) -> None:
        for what in done:
            self._open.pop(what, None)

    def keep_only(self, asked: Collection[K]) -> None:
        """Forget what is no longer asked for."""
        self._open = {what: failure for what, failure in self._open.items() if what in asked}

    def resting(self, now_s: float) -> frozenset[K]:
        return frozenset(what for what, failure in self._open.items() if failure.next_s > now_s)

    def alarming(self) -> dict[K, str]:
        """What failed so often that a person should know."""
        least = self.rules.alarm_after
        return {what: failure.why for what, failure in self._open.items() if failure.times >= least}

    def __len__(self) -> int:
        return len(self._open)
