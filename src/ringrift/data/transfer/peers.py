"""What is known of another node before anything is sent to it.

How each transport did there before, whether it is to be left alone and until when, and, as a hint, which
files it holds already.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import msgspec
import structlog

from ringrift.data.artifacts import Artifact
from ringrift.data.kv_records import StoreHandle, StoreParts
from ringrift.decoding import unpack_as
from ringrift.engine.blocking import blocking
from ringrift.engine.ports import Blobs, KeyValue
from ringrift.engine.records import KvRecords
from ringrift.errors import ConfigError, Corrupt
from ringrift.health.breakers import BreakerConfig, BreakerState, CircuitBreaker
from ringrift.process_identity import is_alive, own_start_s
from ringrift.status import HealthCheckResult

__all__ = ["StallConfig", "StallRecord", "SyncStallHandler"]


# Which transport to try first for a node, from how each did there before. A breaker per node and one per node
# and transport; after its pause, one call at a time finds out whether things are better. It is kept by this
# process alone: a restart begins anew.


PREFERRED = ("http", "rsync", "s3", "base64")
LAST_RESORT = frozenset({"base64"})
NODE_LIMIT = BreakerConfig(failures_max=3, cooldown_s=300.0)
TRANSPORT_LIMITS = {
    "http": BreakerConfig(failures_max=5, cooldown_s=30.0),
    "rsync": BreakerConfig(failures_max=2, cooldown_s=90.0),
    "base64": BreakerConfig(failures_max=2, cooldown_s=30.0),
}
OTHER_LIMIT = BreakerConfig(failures_max=3, cooldown_s=60.0)

FORGIVEN_AFTER_S = 600.0
SPEED_BYTES_MIN = 8 << 20  # smaller transfers measure the round trip, not the line
SPEED_SHARE_NEW = 0.3
TRACKS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Track:
    """How one transport, or a node as a whole, did lately."""

    breaker: CircuitBreaker
    failed_s: float = -math.inf
    bytes_per_s: float | None = None
    trial_until_s: float = -math.inf  # one call is finding out, at most until then

    def failures(self, now_s: float) -> int:
        return self.breaker.failures if now_s - self.failed_s < FORGIVEN_AFTER_S else 0

    def admits(self, now_s: float) -> bool:
        match self.breaker.state(now_s):
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return False
            case BreakerState.HALF_OPEN:
                return now_s >= self.trial_until_s

    def wait_s(self, now_s: float) -> float:
        """How long until it is worth asking again."""
        if self.breaker.opened_s is None:
            return 0.0
        return max(0.0, self.breaker.opened_s + self.breaker.cooldown_s - now_s, self.trial_until_s - now_s)


class TransferHealth:
    """Notes outcomes and answers with an order. Times are monotonic and come in."""

    def __init__(self) -> None:
        self._tracks: OrderedDict[tuple[str, str], Track] = OrderedDict()

    def ranked(
        self, node: str, transports: Sequence[str], *, now_s: float, avoid: Collection[str] = ()
    ) -> list[str]:
        """Return the transports to try, best first; those whose breaker is open are left out."""
        open_to_us = [name for name in transports if self.track(node, name).admits(now_s)]
        tracks = {name: self.track(node, name) for name in open_to_us}
        measured = [track.bytes_per_s for track in tracks.values() if track.bytes_per_s]
        best = max(measured, default=1.0)

        def key(name: str) -> tuple[bool, bool, int, int, int]:
            # Twice as fast counts; less is noise. What was never measured is taken to be as good as the best.
            slowness = round(math.log2(best / (tracks[name].bytes_per_s or best)))
            place = PREFERRED.index(name) if name in PREFERRED else len(PREFERRED)
            return name in avoid, name in LAST_RESORT, tracks[name].failures(now_s), slowness, place

        return sorted(open_to_us, key=key)

    def track(self, node: str, transport: str = "") -> Track:
        """Return what is known; the node as a whole without *transport*."""
        limit = TRANSPORT_LIMITS.get(transport, OTHER_LIMIT) if transport else NODE_LIMIT
        return self._tracks.get((node, transport)) or Track(CircuitBreaker(limit))

    def begins(self, node: str, transport: str = "", *, now_s: float, for_s: float) -> None:
        """Note a call; if it is a trial, nobody else tries until it ended, or *for_s* passed."""
        track = self.track(node, transport)
        if track.breaker.opened_s is not None:
            self._keep(node, transport, replace(track, trial_until_s=now_s + for_s))

    def succeeded(
        self, node: str, transport: str = "", *, bytes_moved: int = 0, seconds: float = 0.0
    ) -> None:
        track = self.track(node, transport)
        speed = track.bytes_per_s
        if bytes_moved >= SPEED_BYTES_MIN and seconds > 0:
            now = bytes_moved / seconds
            speed = now if speed is None else speed + SPEED_SHARE_NEW * (now - speed)
        self._keep(node, transport, Track(track.breaker.succeeded(), bytes_per_s=speed))

    def failed(self, node: str, transport: str = "", *, now_s: float) -> bool:
        """Count a failure; return whether the breaker opened by it."""
        track = self.track(node, transport)
        after = track.breaker.failed(now_s)
        self._keep(node, transport, Track(after, failed_s=now_s, bytes_per_s=track.bytes_per_s))
        return after.opened_s is not None and after.opened_s != track.breaker.opened_s

    def ended(self, node: str, transport: str = "") -> None:
        """Note that a call ended without an outcome: it was cancelled, or refused before it began."""
        track = self.track(node, transport)
        if track.trial_until_s > -math.inf:
            self._keep(node, transport, replace(track, trial_until_s=-math.inf))

    def forgive(self, node: str) -> None:
        """A node said that it is well again: forget what it did."""
        for key in [key for key in self._tracks if key[0] == node]:
            del self._tracks[key]

    def status(self, now_s: float) -> dict[str, dict[str, object]]:
        """Return what is known by "node" and "node/transport"."""
        return {
            f"{node}/{transport}".rstrip("/"): {
                "state": track.breaker.state(now_s).value,
                "failures": track.failures(now_s),
                "bytes_per_s": track.bytes_per_s,
                "wait_s": track.wait_s(now_s),
            }
            for (node, transport), track in self._tracks.items()
        }

    def _keep(self, node: str, transport: str, track: Track) -> None:
        self._tracks[node, transport] = track
        self._tracks.move_to_end((node, transport))
        while len(self._tracks) > TRACKS_MAX:
            self._tracks.popitem(last=False)


# Which nodes are left alone, and until when: the one place that says so, in the store of all processes.
#
# Transfers put a node here that failed several times in a row, and refuse calls to it until its time is over;
# the sync plans without it and takes another source. A person or a program may set one aside too, or end it.


STALLS, TOTALS = "data/stalls/", "data/stall_totals/"
STALL_S = 600.0
REMEMBERED_S = 86_400.0  # after its penalty: how often it stalled in a row
CLOCK_TOLERANCE_S = 5.0
_ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallConfig:
    """Seconds and counts."""

    penalty_s: float = 300.0
    failed_recoveries_max: int = 5

    def __post_init__(self) -> None:
        if self.penalty_s <= 0:
            raise ConfigError("a stall needs a penalty above 0 s")


class StallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that stood still. Times are wall clock."""

    source: str
    count: int  # in a row
    at_s: float
    until_s: float
    reason: str = ""
    # Whose transfers failed: what a process met ends with it, since it may be over for the next. Empty: a
    # person or a program set the node aside.
    by: str = ""
    pid: int = 0
    began_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the process that met it has ended."""
        return bool(self.by) and not is_alive(self.pid, self.began_s)

    def left_s(self, now_s: float) -> float:
        """For how long it is still left alone; 0 when it may be used. A clock that was set back ends it."""
        if now_s < self.at_s - CLOCK_TOLERANCE_S:
            return 0.0
        return max(0.0, self.until_s - now_s)

    def reason_now(self, now_s: float) -> str:
        """Why it is left alone, and for how long."""
        return f"{self.reason or 'it stood still'}; it is tried again in {self.left_s(now_s):.0f} s"


class StallTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened since the store was made."""

    stalls_detected: int = 0
    stalls_recovered: int = 0
    failed_recoveries: int = 0


class SyncStallHandler(StoreHandle):
    """Says which nodes are left alone. The plain calls block; inside a loop use those on `_async`."""

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        config: StallConfig | None = None,
        **parts: Unpack[StoreParts],
    ) -> None:
        super().__init__(db_path, **parts)
        self.config = config or StallConfig()
        self._stalls = KvRecords(self._kv, STALLS, StallRecord)
        self._totals = KvRecords(self._kv, TOTALS, StallTotals)

    def check_stall(self, started_at: float, timeout: float = STALL_S) -> bool:
        """Whether what began, or last moved, at *started_at* (wall clock) stands still."""
        return self._runtime.now_s() - started_at > timeout

    # --- in a loop ------------------------------------------------------------------------------------

    async def record_stall_async(
        self, source: str, reason: str = "", for_s: float | None = None, *, by: str = ""
    ) -> int:
        """Leave *source* alone for *for_s* (by default the penalty); return how often it stalled in a row.

        With *by*, because of what that process's own transfers met.
        """
        if not source:
            raise ConfigError("a stall needs the name of the node that stood still")
        lasts_s = self.config.penalty_s if for_s is None else for_s
        if lasts_s <= 0:
            raise ConfigError(f"for_s is {lasts_s:g}; a node is left alone for more than 0 s")
        now_s = self._runtime.now_s()

        def step(former: StallRecord | None) -> StallRecord:
            count = 1 if former is None else former.count + 1
            return StallRecord(
                source=source,
                count=count,
                at_s=now_s,
                until_s=now_s + lasts_s,
                reason=reason,
                by=by,
                pid=os.getpid() if by else 0,
                began_s=own_start_s() if by else None,
            )

        after = await self._stalls.change(source, step, ttl_s=lasts_s + REMEMBERED_S)
        assert after is not None
        await self._add(stalls_detected=1)
        return after.count

    async def record_recovery_async(self, source: str) -> None:
        """Something went to *source*, or came from it: it is used again."""
        if await self._stalls.delete(source):
            await self._add(stalls_recovered=1)

    async def forget_async(self, by: str) -> None:
        """The process *by* ends: what its transfers met binds nobody any more."""
        for each in await self._stalls.all():
            if each.by == by:
                await self._stalls.delete(each.source)

    async def record_failed_recovery_async(self, source: str) -> None:
        """Another way was tried instead of *source*, and failed too."""
        await self.record_stall_async(source, "another way failed too")
        await self._add(failed_recoveries=1)

    async def get_async(self, source: str) -> StallRecord | None:
        """What is remembered of *source*, left alone or not."""
        return await self._stalls.get(source)

    async def set_aside_async(self) -> dict[str, StallRecord]:
        """The nodes that are left alone now."""
        now_s = self._runtime.now_s()
        known = await self._stalls.all()
        return {each.source: each for each in known if each.left_s(now_s) > 0 and not each.is_over}

    async def reasons_async(self) -> dict[str, str]:
        """The nodes that are left alone now, each with the reason and for how long."""
        now_s = self._runtime.now_s()
        return {name: each.reason_now(now_s) for name, each in (await self.set_aside_async()).items()}

    async def stats_async(self) -> dict[str, Any]:
        totals = await self._totals.get(_ALL) or StallTotals()
        counts = {name: getattr(totals, name) for name in StallTotals.__struct_fields__}
        return {**counts, "penalized_sources": sorted(await self.set_aside_async())}

    async def _add(self, **counts: int) -> None:
        def step(former: StallTotals | None) -> StallTotals:
            totals = former or StallTotals()
            grown = {name: getattr(totals, name) + number for name, number in counts.items()}
            return msgspec.structs.replace(totals, **grown)

        await self._totals.change(_ALL, step)

    # --- without a loop -------------------------------------------------------------------------------

    record_stall = blocking(record_stall_async)
    record_recovery = blocking(record_recovery_async)
    record_failed_recovery = blocking(record_failed_recovery_async)
    get_stats = blocking(stats_async)
    _set_aside = blocking(set_aside_async)

    def get_alternative_source(
        self, exclude: str | Collection[str], all_sources: Sequence[str]
    ) -> str | None:
        """Return the first source that is not excluded and not left alone; None if there is none."""
        excluded = {exclude} if isinstance(exclude, str) else set(exclude)
        aside = self._set_aside()
        return next((each for each in all_sources if each not in excluded and each not in aside), None)

    def health_check(self) -> HealthCheckResult:
        stats = self.get_stats()
        if stats["failed_recoveries"] > self.config.failed_recoveries_max:
            return HealthCheckResult.degraded(
                f"{stats['failed_recoveries']} stalls found no way out", **stats
            )
        return HealthCheckResult.ok("", **stats)


# A Bloom filter: a small summary of a set that never misses a member and sometimes sees one too many.
#
# What it says is a hint. It may decide in which order things are sent; it never decides that one is not.


BITS_MIN, HASHES_MAX = 64, 16
BITS_MAX = 8 * 64 * 2**20


class _Wire(msgspec.Struct, frozen=True, array_like=True):
    size: int
    hashes: int
    added: int
    packed: bytes  # zlib


class BloomFilter:
    """Members in, hints out. Two filters of the same shape may be merged."""

    def __init__(self, size: int = 100_000, hash_count: int = 7) -> None:
        if not BITS_MIN <= size <= BITS_MAX or not 1 <= hash_count <= HASHES_MAX:
            raise ConfigError(
                f"a Bloom filter has {BITS_MIN} to {BITS_MAX} bits and 1 to {HASHES_MAX} hashes; "
                f"{size} and {hash_count} were asked for"
            )
        self.size, self.hash_count = size, hash_count
        self.added = 0
        self._bits = bytearray((size + 7) // 8)

    @classmethod
    def for_items(cls, expected: int, false_positive_rate: float = 0.01) -> BloomFilter:
        """Return one that errs at about that rate once *expected* members are in."""
        if expected < 1 or not 0 < false_positive_rate < 1:
            raise ConfigError(
                "a Bloom filter needs an expected count of 1 or more and a rate between 0 and 1"
            )
        size = max(BITS_MIN, math.ceil(-expected * math.log(false_positive_rate) / math.log(2) ** 2))
        hashes = min(HASHES_MAX, max(1, round(size / expected * math.log(2))))
        return cls(min(BITS_MAX, size), hashes)

    def add(self, item: str) -> None:
        for bit in self._places(item):
            self._bits[bit >> 3] |= 1 << (bit & 7)
        self.added += 1

    def add_many(self, items: Iterable[str]) -> None:
        for item in items:
            self.add(item)

    def __contains__(self, item: str) -> bool:
        return all(self._bits[bit >> 3] >> (bit & 7) & 1 for bit in self._places(item))

    def merge(self, other: BloomFilter) -> BloomFilter:
        """Return the filter of both sets; ValueError unless both have the same shape."""
        self._check_shape(other)
        both = BloomFilter(self.size, self.hash_count)
        both._bits = bytearray(a | b for a, b in zip(self._bits, other._bits, strict=True))
        both.added = self.added + other.added
        return both

    def intersection_ratio(self, other: BloomFilter) -> float:
        """Return what share of this filter's bits the other has too; ValueError for another shape."""
        self._check_shape(other)
        mine = self._set_bits()
        common = sum((a & b).bit_count() for a, b in zip(self._bits, other._bits, strict=True))
        return common / mine if mine else 0.0

    def to_bytes(self) -> bytes:
        packed = zlib.compress(bytes(self._bits), 6)
        return msgspec.msgpack.encode(_Wire(self.size, self.hash_count, self.added, packed))

    @classmethod
    def from_bytes(cls, content: bytes) -> BloomFilter:
        """Read what `to_bytes` wrote; `Corrupt` for anything else."""
        try:
            wire = unpack_as(content, _Wire)
            made = cls(wire.size, wire.hashes)
            bits = zlib.decompressobj().decompress(wire.packed, len(made._bits) + 1)
        except (msgspec.MsgspecError, zlib.error, ConfigError) as error:
            raise Corrupt("Bloom filter", found=str(error), advice="Make it again") from None
        if len(bits) != len(made._bits):
            raise Corrupt("Bloom filter", found=f"{len(bits)} bytes of bits", advice="Make it again")
        made._bits, made.added = bytearray(bits), wire.added
        return made

    @property
    def estimated_items(self) -> float:
        """How many different members are in, judged by the bits."""
        free = 1 - self._set_bits() / self.size
        return math.inf if free <= 0 else -self.size / self.hash_count * math.log(free)

    @property
    def stats(self) -> dict[str, Any]:
        filled = self._set_bits() / self.size
        return {
            "size_bits": self.size,
            "hash_count": self.hash_count,
            "items_added": self.added,
            "estimated_items": self.estimated_items,
            "fill_ratio": filled,
            "false_positive_rate": filled**self.hash_count,
        }

    def _places(self, item: str) -> Iterable[int]:
        # One good hash split in two stands for as many as are wanted.
        digest = hashlib.blake2b(item.encode(), digest_size=16).digest()
        first, second = int.from_bytes(digest[:8]), int.from_bytes(digest[8:]) | 1
        return ((first + number * second) % self.size for number in range(self.hash_count))

    def _set_bits(self) -> int:
        return sum(byte.bit_count() for byte in self._bits)

    def _check_shape(self, other: BloomFilter) -> None:
        if (self.size, self.hash_count) != (other.size, other.hash_count):
            raise ValueError("Bloom filters of different size or hash count have nothing in common")


# A hint of what each node holds: a Bloom filter of its digests that it publishes now and then.
#
# Whoever sends puts first what the receiver surely lacks. The receiver itself says what it has; a filter that
# is old, wrong or absent costs time and nothing else.


log = structlog.get_logger()

HOLDINGS = "data/holdings/"
KEPT_S = 86_400.0
DIGESTS_MAX = 500_000  # their filter fits a value of the key-value port
RATE = 0.01


class Holdings:
    """Publishes this node's filter, and reads those of others."""

    def __init__(self, kv: KeyValue, blobs: Blobs) -> None:
        self._kv, self._blobs = kv, blobs

    async def publish(self, node: str) -> BloomFilter:
        """Say what this node holds now."""
        summary = await asyncio.to_thread(_summary, await self._blobs.digests())
        await self._kv.put(HOLDINGS + node, summary.to_bytes(), ttl_s=KEPT_S)
        return summary

    async def of(self, node: str) -> BloomFilter | None:
        entry = await self._kv.get(HOLDINGS + node)
        if entry is None:
            return None
        try:
            return BloomFilter.from_bytes(entry.value)
        except Corrupt as error:
            log.warning("transfer.hint_unreadable", node=node, error=str(error))
            return None

    async def lacking_first(self, node: str, artifacts: Sequence[Artifact]) -> list[Artifact]:
        """Return all of *artifacts*, those that *node* surely lacks first."""
        hint = await self.of(node)
        return list(artifacts) if hint is None else sorted(artifacts, key=lambda card: card.digest in hint)


def _summary(digests: Sequence[str]) -> BloomFilter:
    summary = BloomFilter.for_items(max(1, min(len(digests), DIGESTS_MAX)), RATE)
    summary.add_many(digests)
    return summary
