"""Files from one node to another over TLS with a pinned key, beside the same without TLS; on loopback.

Rounds alternate in order; the figures are medians, seconds and the processor time of both processes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmark import command
from data_transfer import MB, Ours, Source

FULL = (256 << 20, 1000, 5)  # bytes of the large file, small files, rounds
QUICK = (64 << 20, 100, 1)


def run(quick: bool) -> dict[str, Any]:
    large_bytes, small_count, rounds = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source = Source(Path(folder), large_bytes=large_bytes, small_count=small_count)
        rows: list[list[Any]] = []
        ways = {name: Ours(Path(folder), source, stack, tls=name == "TLS") for name in ("plain", "TLS")}
        for what, files in (("large", [source.large]), ("small", source.small)):
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for number in range(rounds):
                for name, way in list(ways.items())[:: 1 if number % 2 else -1]:
                    way.forget()
                    before_s = way.cpu_s()
                    found[name].append((way.send(files), way.cpu_s() - before_s))
            size = sum(source.place(digest).stat().st_size for digest in files)
            for name, each in found.items():
                wall_s, cpu_s = (statistics.median(values) for values in zip(*each, strict=True))
                rows.append([what, name, wall_s, size / MB / wall_s, cpu_s])
    return {"rows": rows, "met": True}


def table(result: dict[str, Any]) -> str:
    """One line for each way."""
    return "\n".join(
        f"{what}, {name}: {wall_s:.2f} s ({speed:.0f} MB/s), processor {cpu_s:.2f} s"
        for what, name, wall_s, speed, cpu_s in result["rows"]
    )


if __name__ == "__main__":
    sys.exit(command(run, table, __doc__))
