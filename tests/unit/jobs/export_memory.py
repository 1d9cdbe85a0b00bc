"""Measures, in a process of its own as a job has, how much memory an export holds: `export_memory.py FOLDER`.

Small pieces and groups, so that few games fill them and all that still grows is what is kept.
"""

import io
import json
import sys
import tracemalloc
from pathlib import Path

from jobs_samples import random_game, write_shard

from ringrift.jobs import files
from ringrift.jobs.frame import run_job
from ringrift.jobs.samples import export, npz_files
from ringrift.jobs.samples.export import EXPORT
from ringrift.jobs.shards import checking, storage

PIECES = (
    (npz_files, "_PIECE_BYTES"),
    (npz_files, "_PIECE_VALUES"),
    (npz_files, "_COPY_BYTES"),
    (files, "_CHUNK_BYTES"),
)


def peak(folder: Path, count: int) -> int:
    shard = write_shard(folder / str(count), (random_game(seed=seed) for seed in range(count))).path
    tracemalloc.start()
    code = run_job(EXPORT, ["--shards", str(shard), "--out", str(folder / f"{count}.npz")], out=io.StringIO())
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code == 0
    return used


def main() -> None:
    for module, piece in PIECES:
        setattr(module, piece, 2**12)
    for module in (checking, storage):
        module.GAMES_AT_ONCE = 4
    export.BYTES_GATHERED = 2**12
    npz_files._ROWS_AT_ONCE = 2**6
    folder = Path(sys.argv[1])
    peak(folder, 4)  # what is loaded once
    print(json.dumps([peak(folder, 64), peak(folder, 384)]))


if __name__ == "__main__":
    main()
