"""A Bloom filter: a small summary of a set that never misses a member and sometimes sees one too many.

What it says is a hint. It may decide in which order things are sent; it never decides that one is not.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec

from ringrift.decoding import unpack_as
from ringrift.errors import ConfigError, Corrupt

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


def create_game_filter() -> BloomFilter:
    return BloomFilter.for_items(10_000, 0.01)


def create_model_filter() -> BloomFilter:
    return BloomFilter.for_items(100, 0.001)


def create_event_filter() -> BloomFilter:
    return BloomFilter.for_items(50_000, 0.001)
