"""The manifest: which files exist, who holds verified copies of them, and which of those copies count.

It lies in the key-value port, one key per artifact and one per copy; a process reads it
through a local mirror.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog
from msgspec.structs import replace

from ringrift.data.artifacts import Artifact, ArtifactKind, Receipt
from ringrift.data.config import DataNodes
from ringrift.data.kv_records import KvMirror, for_each
from ringrift.data.protection.records import Tombstone
from ringrift.engine.encoding import check_digest, decode_value
from ringrift.engine.ports import Change, EventLog, KeyValue, LogRecord
from ringrift.engine.records import KvRecords, delete_at
from ringrift.errors import ConfigError, Corrupt, Unavailable
from ringrift.events.event import RouterEvent, decode_body
from ringrift.runtime import Runtime

# What exists and where verified copies are: one key per artifact, one per copy.


ARTIFACTS, LOCATIONS = "artifacts/", "locations/"
ADVICE = "Delete the key; `ringrift data verify` registers the file again"


class ManifestStore:
    """The manifest as it is kept. It knows only what receivers said: a copy is a receipt."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv
        self._cards = KvRecords(kv, ARTIFACTS, Artifact, advice=ADVICE)
        self._receipts = KvRecords(kv, LOCATIONS, Receipt, advice=ADVICE)

    async def register(self, artifacts: Iterable[Artifact]) -> int:
        """Note artifacts; return how many were new. The bytes go first, this comes last."""
        return len(await self.register_new(artifacts))

    async def register_new(self, artifacts: Iterable[Artifact]) -> set[str]:
        """The same; return the digests of those that were new."""
        new: set[str] = set()

        async def create(artifact: Artifact) -> None:
            if await self._cards.create(checked(artifact.digest), artifact):
                new.add(artifact.digest)

        await for_each(artifacts, create)
        return new

    async def artifact(self, digest: str) -> Artifact | None:
        return await self._cards.get(checked(digest))

    async def artifacts(self) -> list[Artifact]:
        return await self._cards.all()

    async def forget(self, digest: str) -> bool:
        """Drop the card of an artifact that has no copy any more."""
        return await self._cards.delete(checked(digest))

    async def add_receipts(self, receipts: Sequence[Receipt]) -> None:
        async def put(receipt: Receipt) -> None:
            await self._receipts.put(_place(receipt.digest, receipt.node), receipt)

        await for_each(receipts, put)

    async def drop_copy(self, digest: str, node: str) -> bool:
        """A node no longer has the file, or it was found bad there."""
        return await self._receipts.delete(_place(digest, node))

    async def drop_copy_read_before(self, time_s: float, digest: str, node: str) -> bool:
        """The same, as of *time_s*: a receipt from later is of a copy that came since."""
        entry = await self._kv.get(self._receipts.key(_place(digest, node)))
        if entry is None or self._receipts.read(entry).verified_s >= time_s:
            return False
        return await delete_at(self._kv, entry.key, entry.revision)  # unless it was just renewed

    async def copies(self, digest: str) -> list[Receipt]:
        return await self._receipts.all(_place(digest, ""))

    async def copy_at(self, digest: str, node: str) -> Receipt | None:
        return await self._receipts.get(_place(digest, node))

    async def receipts(self) -> list[Receipt]:
        return await self._receipts.all()


def checked(digest: str) -> str:
    check_digest(digest)
    return digest


def _place(digest: str, node: str) -> str:
    return f"{checked(digest)}/{node}"


# The manifest as a local mirror: which files exist, who holds verified copies, what is missing where.


class ReceiptsByDigest(Mapping[str, tuple[Receipt, ...]]):
    """The receipts of each file, made when they are asked for."""

    def __init__(self, copies: Mapping[str, Mapping[str, Receipt]]) -> None:
        self._copies = copies

    def __getitem__(self, digest: str) -> tuple[Receipt, ...]:
        return tuple(self._copies[digest].values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._copies)

    def __len__(self) -> int:
        return len(self._copies)


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

    @property
    def cards(self) -> list[Artifact]:
        return list(self.artifacts.values())

    @property
    def receipts(self) -> ReceiptsByDigest:
        """Every receipt, also of files without a card."""
        return ReceiptsByDigest(self.copies)

    def receipts_at(self, node: str) -> dict[str, Receipt]:
        """The receipts of one node, by digest."""
        return {digest: places[node] for digest, places in self.copies.items() if node in places}

    def holders(self, digest: str) -> tuple[str, ...]:
        return tuple(self.copies.get(digest, ())) if digest in self.artifacts else ()

    def is_at(self, digest: str, node: str) -> bool:
        return digest in self.artifacts and node in self.copies.get(digest, ())

    def held_by(self, node: str) -> list[Artifact]:
        return [each for each in self.artifacts.values() if self.is_at(each.digest, node)]

    def missing_at(self, node: str, artifacts: Iterable[Artifact]) -> list[Artifact]:
        return [each for each in artifacts if not self.is_at(each.digest, node)]

    def without(self, given_up: Mapping[str, Tombstone], nodes: DataNodes) -> ManifestView:
        """The same without copies that their nodes have decided to give up: receipts may outlive the copy."""
        copies = dict(self.copies)
        for digest in given_up.keys() & copies.keys():
            copies[digest] = {
                node: each
                for node, each in copies[digest].items()
                if not is_given_up(each, given_up[digest], nodes)
            }
        return ManifestView(self.artifacts, copies)

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


class ManifestIndex(KvMirror[ManifestView]):
    """Keeps the view between looks, which cost what changed and not what is there."""

    def __init__(self, kv: KeyValue, runtime: Runtime) -> None:
        super().__init__(kv, runtime, (ARTIFACTS, LOCATIONS), _ManifestMirror)


class _ManifestMirror:
    """All cards and receipts, in little memory: names and digests that repeat are kept once."""

    def __init__(self) -> None:
        self._artifacts: dict[str, Artifact] = {}
        self._copies: dict[str, Mapping[str, Receipt]] = {}  # the inner ones are replaced, never changed
        self._strings: dict[str, str] = {}
        self._view: ManifestView | None = None

    def view(self) -> ManifestView:
        if self._view is None:
            self._view = ManifestView(dict(self._artifacts), dict(self._copies))
        return self._view

    def apply(self, change: Change) -> None:
        self._view = None
        if change.key.startswith(ARTIFACTS):
            self._apply_card(change, change.key.removeprefix(ARTIFACTS))
        else:
            self._apply_receipt(change, *change.key.removeprefix(LOCATIONS).split("/", 1))

    def _apply_card(self, change: Change, digest: str) -> None:
        if change.value is None:
            self._artifacts.pop(digest, None)
            return
        card = decode_value(change.key, change.value, Artifact, advice=ADVICE)
        self._artifacts[card.digest] = replace(
            card, config=self._once(card.config), node=self._once(card.node)
        )

    def _apply_receipt(self, change: Change, digest: str, node: str) -> None:
        places = {name: each for name, each in self._copies.get(digest, {}).items() if name != node}
        if change.value is not None:
            receipt = decode_value(change.key, change.value, Receipt, advice=ADVICE)
            card = self._artifacts.get(digest)
            name, verifier = self._once(node), self._once(receipt.verifier)
            digest = digest if card is None else card.digest
            places[name] = replace(receipt, digest=digest, node=name, verifier=verifier)
        if places:
            self._copies[digest] = places
        else:
            self._copies.pop(digest, None)

    def _once(self, text: str) -> str:
        return self._strings.setdefault(text, text)


# Which receipts count as copies, and why the others do not. Whoever deletes or repairs asks here, so that
# nothing is deleted because of a copy that nobody would repair from. A copy counts if a node that stays read
# all of it not too long ago and has not given it up since.


DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRules:
    """When a receipt is too old, or from too far in the future, to count."""

    receipt_age_s_max: float = 30 * DAY_S  # scrubbing renews receipts well before
    clock_skew_s_max: float = DAY_S

    def __post_init__(self) -> None:
        if self.receipt_age_s_max <= 0 or self.clock_skew_s_max <= 0:
            raise ConfigError("receipt_age_s_max and clock_skew_s_max must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The copies of one artifact."""

    counted: tuple[Receipt, ...] = ()
    discounted: tuple[tuple[Receipt, str], ...] = ()  # with the reason
    shares: Mapping[str, str] = field(default_factory=dict)  # node: the disk it shares with others

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(receipt.node for receipt in self.counted)

    @property
    def sources(self) -> tuple[str, ...]:
        """Nodes to get it from: those that count first, then those that may have it still."""
        return self.nodes + tuple(receipt.node for receipt, why in self.discounted if why != GIVEN_UP)

    def besides(self, node: str) -> int:
        """How many copies count if *node* is gone."""
        return sum(receipt.node != node for receipt in self.counted)

    def if_deleted_by(self, node: str) -> tuple[str, ...]:
        """Whose copies count if *node* deletes its file; those who share its disk lose it too."""
        share = self.shares.get(node)
        return tuple(
            name for name in self.nodes if name != node and (share is None or self.shares.get(name) != share)
        )


def is_given_up(receipt: Receipt, tombstone: Tombstone | None, nodes: DataNodes) -> bool:
    """Whether the copy was deleted since, by its node or by one that shares its disk."""
    return tombstone is not None and any(
        tombstone.covers(receipt, given_up_by=name) for name in nodes.sharing(receipt.node)
    )


GIVEN_UP = "it was deleted there"
AWAY = "the node does not answer"
EPHEMERAL = "the node may vanish at any moment"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """What is needed to judge receipts: the nodes, who is away, and the time."""

    nodes: DataNodes
    now_s: float
    away: frozenset[str] = frozenset()
    away_since: Mapping[str, float] = field(default_factory=dict)  # what was read there later counts
    rules: CopyRules = field(default_factory=CopyRules)

    def of(self, receipts: Iterable[Receipt], tombstone: Tombstone | None = None) -> Copies:
        """Judge the receipts of one artifact."""
        counted: list[Receipt] = []
        discounted: list[tuple[Receipt, str]] = []
        shares: dict[str, str] = {}  # a share is one copy, however many nodes see it
        for receipt in sorted(receipts, key=lambda each: each.node):
            why = self._discount(receipt, tombstone) or self._shared(receipt, shares)
            if why:
                discounted.append((receipt, why))
            else:
                counted.append(receipt)
        return Copies(counted=tuple(counted), discounted=tuple(discounted), shares=self.nodes.shares)

    def _discount(self, receipt: Receipt, tombstone: Tombstone | None) -> str:
        if is_given_up(receipt, tombstone, self.nodes):
            return GIVEN_UP
        if receipt.node not in self.nodes:
            return "the config file has no node of that name"
        node = self.nodes[receipt.node]
        if not node.active:
            return f"the node is {node.status}"
        # Whoever runs this is there, whatever others say of it.
        is_read_since = receipt.verified_s > self.away_since.get(node.name, -math.inf)
        if node is not self.nodes.this and (node.name in self.away or not is_read_since):
            return AWAY
        if node.ephemeral:
            return EPHEMERAL
        age_s = self.now_s - receipt.verified_s
        if age_s > self.rules.receipt_age_s_max:
            return f"it was last read {age_s / DAY_S:.0f} days ago"
        if age_s < -self.rules.clock_skew_s_max:
            return "it was read in the future: a clock is wrong"
        return ""

    def _shared(self, receipt: Receipt, shares: dict[str, str]) -> str:
        share = self.nodes[receipt.node].nfs
        if not share:
            return ""
        first = shares.setdefault(share, receipt.node)
        return "" if first == receipt.node else f"it is the same file as {first}'s"


# Nodes that were said to be away. A copy on one of them does not count until it is heard of again.


log = structlog.get_logger()

OFFLINE, ONLINE = "HOST_OFFLINE", "HOST_ONLINE"
_PAGE = 1_000
AWAY_S = 6 * 3600.0  # then it is asked again: an unheard return must not block repairs for good


class AwayNodes:
    """Hears of nodes that go and come."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since: dict[str, float] = {}

    def on_offline(self, event: RouterEvent) -> None:
        self._since[str(event.payload["node_id"])] = self._runtime.monotonic_s()

    def on_online(self, event: RouterEvent) -> None:
        self._since.pop(str(event.payload["node_id"]), None)

    def now(self) -> frozenset[str]:
        oldest_s = self._runtime.monotonic_s() - AWAY_S
        return frozenset(name for name, since_s in self._since.items() if since_s > oldest_s)


class _Away(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    since_s: float


class AwayLog:
    """Since when nodes are away, for whoever deletes: a node that died never tells that it is back.

    Read from the event log, each event once. The log forgets after a day, so it is also kept in the
    key-value store: until the node is said to be back, or for *for_s*.
    """

    def __init__(self, events: EventLog, kv: KeyValue, runtime: Runtime, *, for_s: float) -> None:
        self._events, self._runtime, self._for_s = events, runtime, for_s
        self._records = KvRecords(kv, "data/away/", _Away)
        self._after: int | None = None
        self._since: dict[str, float] = {}  # by the wall clock

    async def refresh(self) -> Mapping[str, float]:
        """Return who is away as of now, each with the time at which that was told."""
        if self._after is None:
            self._since = {each.node: each.since_s for each in await self._records.all()}
            self._after = await self._events.seq_at(since_s=self._runtime.now_s() - self._for_s)
        kept, last = dict(self._since), (await self._events.bounds()).last
        while page := await self._events.read(after=self._after, limit=_PAGE, types=(OFFLINE, ONLINE)):
            for record in page:
                self._hear(record)
            self._after = page[-1].seq
        self._after = max(self._after, last)
        await self._keep(kept)
        return dict(self._since)

    async def _keep(self, kept: Mapping[str, float]) -> None:
        try:
            for node in kept.keys() - self._since.keys():
                await self._records.delete(node)
            for node, since_s in self._since.items():
                if kept.get(node) != since_s:
                    await self._records.put(node, _Away(node=node, since_s=since_s), ttl_s=self._for_s)
        except Unavailable as error:
            log.warning("data.away_not_kept", error=str(error))  # the next who looks keeps it

    def _hear(self, record: LogRecord) -> None:
        try:
            payload = decode_body(record).get("payload") or {}
        except Corrupt:
            return  # whoever handles events tells of it
        node = str(payload.get("node_id") or payload.get("host") or "")
        if record.type == OFFLINE and node:
            self._since[node] = record.appended_s
        else:
            self._since.pop(node, None)


# How full each node's disk is, as the nodes say themselves.


PREFIX = "data/disks/"
KEPT_S = 3_600.0  # what a node has not said for an hour is not known


class DiskState(msgspec.Struct, frozen=True, kw_only=True):
    """One node's disk."""

    node: str
    used_percent: float
    free_bytes: int
    total_bytes: int
    level: str
    writes_blocked: bool
    at_s: float


class DiskStates:
    """The disks of all nodes."""

    def __init__(self, kv: KeyValue) -> None:
        self._records = KvRecords(kv, PREFIX, DiskState)

    async def tell(self, state: DiskState) -> None:
        await self._records.put(state.node, state, ttl_s=KEPT_S)

    async def of(self, node: str) -> DiskState | None:
        return await self._records.get(node)

    async def used_percent(self) -> dict[str, float]:
        return {state.node: state.used_percent for state in await self._records.all()}

    async def all(self) -> dict[str, DiskState]:
        return {state.node: state for state in await self._records.all()}
