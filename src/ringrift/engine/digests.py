"""Names of blobs (SHA-256 in lower-case hex), and short hashes by which a damaged record is told."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from ringrift.engine.arguments import shown
from ringrift.errors import ConfigError, Corrupt

_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_digest(digest: str) -> None:
    """Refuse anything that is not a digest, such as a path that leads elsewhere."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ConfigError(f"a digest is {shown(digest)}; it must be SHA-256 in 64 lower-case hex digits")


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def record_hash(content: bytes) -> str:
    """The hash that is kept beside a record; it shows damage, not who wrote it."""
    return blake2b(content, digest_size=16).hexdigest()


def row_hash(values: Iterable[object]) -> str:
    """As `record_hash`, of a row of a database."""
    return record_hash(repr(tuple(values)).encode(errors="surrogatepass"))


def mismatch(place: Path | str, digest: str, found: str) -> Corrupt:
    """The error for content that is not what its name says."""
    return Corrupt(
        place,
        found=f"the content has digest {found}, not {digest}",
        advice="Fetch it again from a place that has a verified copy",
    )
