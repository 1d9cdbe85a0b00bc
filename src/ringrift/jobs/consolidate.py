"""The `consolidate` job: merges small shards of one config into a large one.

The sources are only read. A shard that cannot be merged without losing something is left out and named; the
result lists the hashes of those that are in, so that whoever asked knows which files live on in the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
import structlog

from ringrift.errors import ConfigError, Corrupt
from ringrift.jobs.exit_codes import ExitCode
from ringrift.jobs.frame import Job, JobSpec, Outcome, run_job
from ringrift.jobs.params import Params
from ringrift.jobs.sealing import describe, sealing
from ringrift.jobs.shards.merging import ShardMerger
from ringrift.jobs.shards.reader import open_shard
from ringrift.jobs.shards.writer import SHARD_SUFFIX

log = structlog.get_logger()


class ConsolidateParams(Params, frozen=True, kw_only=True):
    """Parameters of `consolidate`."""

    config: Annotated[str, msgspec.Meta(min_length=1, description="The config of all the shards.")]
    shards: Annotated[tuple[Path, ...], msgspec.Meta(min_length=2, description="Shards to merge.")]
    out: Annotated[Path, msgspec.Meta(description="Folder of the merged shard.")]
    name: Annotated[str, msgspec.Meta(min_length=1, description="Its name, without ending.")] = "merged"

    def __post_init__(self) -> None:
        if len(set(self.shards)) != len(self.shards):
            raise ValueError("shards: one of them is named twice")
        if Path(self.name).name != self.name:
            raise ValueError(f"name: {self.name!r} is no plain file name")


def run_consolidate(job: Job, params: ConsolidateParams) -> Outcome:
    refused: list[dict[str, str]] = []
    path = params.out / f"{params.name}{SHARD_SUFFIX}"
    job.stage("merging", total=len(params.shards))
    with sealing(path) as part:
        with closing(ShardMerger(part, params.config)) as merger:
            for number, shard in enumerate(params.shards, start=1):
                job.stop_point()  # a half-merged file is worth nothing
                try:
                    merger.add(shard)
                except Corrupt as error:
                    log.warning("consolidate.shard_refused", shard=str(shard), what=str(error))
                    refused.append({"shard": str(shard), "why": str(error)})
                job.progress(number, refused=len(refused))
            if len(merger.sources) < 2:
                told = "; ".join(each["why"] for each in refused)
                raise ConfigError(f"fewer than two shards can be merged: {told}")
            job.stage("comparing", total=len(merger.sources))
            counts, sources = merger.finish(), merger.sources
        with open_shard(part) as merged:
            expected = sum(source.games - source.duplicates for source in sources)
            if merged.game_count != expected:
                told = f"{merged.game_count} of {expected} games are there"
                raise Corrupt(part, found=told, advice="Check the disk; the sources are untouched")
    job.sealed(describe(path, "shard", config=params.config, sources=len(sources), **counts))
    fields = {
        **counts,
        "sources": [source.sha256 for source in sources],
        "duplicates": sum(source.duplicates for source in sources),
        "refused": refused,
    }
    return Outcome(ExitCode.DATA_REFUSED if refused else ExitCode.DONE, fields)


CONSOLIDATE = JobSpec(
    "consolidate", "Merge small shards into a large one, every game once.", ConsolidateParams, run_consolidate
)


def main(argv: Sequence[str]) -> int:
    return run_job(CONSOLIDATE, argv)
