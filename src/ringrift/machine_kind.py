"""The kind of this machine, as far as the bits of a search depend on it: processor, libraries, code.

Two processes on machines of the same kind find the same bits, unless a GPU computes. A worker measures it for
the games that its jobs bring: a job that could name its own kind would choose how its games are compared.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

# what computes a search; the rest of the source may differ
PLAYING_PACKAGES = ("games", "search", "network", "players")
LIBRARIES = ("ringrift", "numpy", "numba", "torch")


# Every job asks, and hashing the sources takes longer than all the rest of it.
@functools.cache
def machine_kind() -> str:
    """Return it in words. What is installed is read once: it is that of the processes that start now."""
    info = _processor_facts()
    libraries = " ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    processor = f"{platform.machine()} {info.get('model name', '?')}"
    flags = hashlib.sha256(info.get("flags", info.get("Features", "")).encode()).hexdigest()[:12]
    compiled_for = f"compiled for {os.environ.get('NUMBA_CPU_NAME') or 'this processor'}"
    libc = " ".join(platform.libc_ver())
    parts = (processor, f"flags {flags}", libc, libraries, f"code {_code_digest()}", compiled_for)
    return "; ".join(part.strip() for part in parts)


def _code_digest() -> str:
    """Of what plays: two versions of the source may carry the same number."""
    digest, root = hashlib.sha256(), Path(__file__).parent
    for package in PLAYING_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _processor_facts() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split("\n\n")[0]
    except OSError:  # not Linux
        return {"model name": platform.processor()}
    pairs = (line.partition(":") for line in lines.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
