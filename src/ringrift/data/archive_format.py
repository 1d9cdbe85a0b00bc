"""What an archive holds: in a bucket or on a drive, the same objects under the same keys.

    ringrift-archive.json        says that this is an archive, and of which format
    parts/ab/<sha256>            bytes named by their own hash; a small file is one part
    cards/<digest>.json          one file: its card, its parts, who verified it when; written last
    nodes/<node>.json            which files a node put here; it only grows
    manifest.json                all cards at one time, so that a restore needs one read
    states/<run>/<node>/…        the states of runs, see `run_states`; the only objects that are ever removed

A file is in the archive when its card is. The card is created once, after every part was read back.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from ringrift.data.artifacts import Artifact, Receipt, check_words
from ringrift.data.transfer.contract import CHUNK_BYTES
from ringrift.decoding import decode_as
from ringrift.engine.digests import check_digest, record_hash
from ringrift.errors import ConfigError, Corrupt, SchemaTooNew

T = TypeVar("T")

FORMAT = 1
PART_BYTES = 2 * CHUNK_BYTES
CARD_BYTES_MAX = 16 << 20  # a file of some hundred gigabytes
LIST_BYTES_MAX = 512 << 20  # the manifest of a million files
MARKER = "ringrift-archive.json"
MANIFEST = "manifest.json"
CARDS = "cards/"
NODES = "nodes/"
STATES = "states/"
_JSON = ".json"
_HASH_FIELD = b',"hash":"%s"'
_HASHED = re.compile(rb'(.*),"hash":"([0-9a-f]{32})"(\})', re.DOTALL)
_OBJECT_ADVICE = "Delete the object and run `ringrift data backup` on a node that has the file"


class ArchivePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a file, in order."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        check_digest(self.sha256)  # it becomes a path
        if not 0 <= self.size <= PART_BYTES:
            raise ConfigError(f"part {self.sha256[:12]} has the size {self.size}")

    @property
    def key(self) -> str:
        return f"parts/{self.sha256[:2]}/{self.sha256}"


class ArchiveCard(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the archive."""

    artifact: Artifact
    parts: tuple[ArchivePart, ...]
    verified_s: float
    verified_by: str  # the node that read it back

    def __post_init__(self) -> None:
        check_words(self.artifact)
        if sum(part.size for part in self.parts) != self.artifact.size:
            raise ConfigError(f"the parts of {self.artifact.digest[:12]} do not add up to its size")

    @property
    def key(self) -> str:
        return card_key(self.artifact.digest)

    def receipt(self, archive: str, verifier: str, *, verified_s: float | None = None) -> Receipt:
        """The archive's receipt: it was read whole when its card was written, or at *verified_s*."""
        return Receipt(
            digest=self.artifact.digest,
            node=archive,
            size=self.artifact.size,
            verified_s=self.verified_s if verified_s is None else verified_s,
            verifier=verifier,
        )


class NodeInventory(msgspec.Struct, frozen=True, kw_only=True):
    """What one node put into the archive. A file that the node lost stays listed."""

    node: str
    at_s: float
    digests: tuple[str, ...]

    def __post_init__(self) -> None:
        for digest in self.digests:
            check_digest(digest)


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    """All cards at one time."""

    at_s: float
    cards: tuple[ArchiveCard, ...]
    nodes: dict[str, tuple[str, ...]] = {}  # which node put which files there


class ArchiveMarker(msgspec.Struct, frozen=True, kw_only=True):
    """The first object of an archive."""

    format: int = FORMAT
    about: str = "An archive of RingRift. See docs/data-ssh-and-archives.md; delete nothing by hand."


def card_key(digest: str) -> str:
    return f"{CARDS}{digest}{_JSON}"


def inventory_key(node: str) -> str:
    return f"{NODES}{node.replace('/', '_')}{_JSON}"


def bytes_max_of(key: str) -> int:
    """The most that an object of this key may have; more is not read."""
    if key.startswith("parts/"):
        return PART_BYTES
    return CARD_BYTES_MAX if key.startswith(CARDS) else LIST_BYTES_MAX


def digest_of_key(key: str) -> str:
    return key.removeprefix(CARDS).removesuffix(_JSON)


def encode(thing: msgspec.Struct) -> bytes:
    """As JSON whose last field is the hash of all before it. A part is checked by its name instead."""
    content = msgspec.json.encode(thing)
    return content[:-1] + _HASH_FIELD % record_hash(content).encode() + content[-1:]


def decode(key: str, content: bytes, kind: type[T]) -> T:
    """Raises `Corrupt`, which names the object. One without a hash is of an earlier version."""
    found = _HASHED.fullmatch(content)
    if found is not None and record_hash(found[1] + found[3]) != found[2].decode():
        raise Corrupt(key, found="its bytes are not those that were stored", advice=_OBJECT_ADVICE)
    try:
        return decode_as(content, kind)
    except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
        raise Corrupt(
            key,
            found=f"this object of the archive cannot be read ({error})",
            advice=_OBJECT_ADVICE,
        ) from None


def read_card(digest: str, content: bytes) -> ArchiveCard:
    """The card that lies under the key of *digest*; raises `Corrupt`, also if it is another file's."""
    card = decode(card_key(digest), content, ArchiveCard)
    if card.artifact.digest != digest:
        raise Corrupt(
            card_key(digest),
            found=f"it is the card of {card.artifact.digest[:12]}",
            advice=_OBJECT_ADVICE,
        )
    return card


def check_marker(place: str, content: bytes) -> None:
    """Refuse an archive that a newer version wrote."""
    found = decode(f"{place}/{MARKER}", content, ArchiveMarker)
    if found.format > FORMAT:
        raise SchemaTooNew(
            f"{place}/{MARKER}",
            found=f"the archive has format {found.format}, this version reads {FORMAT}",
            advice="Update ringrift; if no newer version wrote this archive, the file is damaged",
        )
