"""Names of blobs: SHA-256 in lower-case hex."""

from __future__ import annotations

import re
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


def mismatch(place: Path | str, digest: str, found: str) -> Corrupt:
    """The error for content that is not what its name says."""
    return Corrupt(
        place,
        found=f"the content has digest {found}, not {digest}",
        advice="Fetch it again from a place that has a verified copy",
    )
