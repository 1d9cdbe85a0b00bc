"""Files out of a job's folder into the blobs when it ended well."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.ports import Blobs
from ringrift.errors import Corrupt, DigestMismatch
from ringrift.work.job_folders import JobFolder
from ringrift.work.job_orders import JobArtifact, JobOrder
from ringrift.work.job_talk import JobTalk

RESULT_BYTES_MAX = VALUE_BYTES_MAX // 2
ARTIFACTS_BYTES_MAX = VALUE_BYTES_MAX // 4  # of what is said about them, all together
KIND_CHARS_MAX = 40
WORDS_MAX = 300
# Said elsewhere.
REPEATED = ("event", "kind", "elapsed_s", "cpu_s", "gpu_s", "status", "exit_code", "artifacts")


async def take_in(
    folder: JobFolder, talk: JobTalk, blobs: Blobs, *, asked: tuple[str, JobOrder]
) -> tuple[tuple[JobArtifact, ...], dict[str, Any]]:
    """Put every announced artifact into the blobs; return them and the fields of the result.

    *asked* is the kind and the order of the item. `Corrupt` if the job speaks of something else, or announced
    what is no file of its folder; `DigestMismatch` if a file changed since it was announced. A result that
    the queue cannot hold becomes an artifact itself; its plain values stay where they are.
    """
    _check_claims(talk, *asked)
    taken = []
    for said in talk.artifacts.values():
        name, path = await asyncio.to_thread(folder.artifact, said.path)
        digest = await blobs.put(path)
        if said.sha256 is not None and said.sha256 != digest:
            raise DigestMismatch(
                path,
                found=f"it has the digest {digest}, the job announced {said.sha256}",
                advice="Nothing may write to a sealed file",
            )
        size_bytes = await blobs.size(digest)
        assert size_bytes is not None, "it was put just now"
        taken.append(
            JobArtifact(
                name=name, kind=said.artifact, digest=digest, size_bytes=size_bytes, counts=said.counts
            )
        )
    fields = {key: value for key, value in (talk.result or {}).items() if key not in REPEATED}
    whole = msgspec.json.encode(fields)
    if len(whole) > RESULT_BYTES_MAX:
        digest = await blobs.put_bytes(whole)
        taken.append(JobArtifact(name="result.json", kind="result", digest=digest, size_bytes=len(whole)))
        fields = {k: v for k, v in fields.items() if v is None or isinstance(v, bool | int | float)}
    return tuple(taken), fields


def _check_claims(talk: JobTalk, kind: str, order: JobOrder) -> None:
    """A job answers its own order: what it says of another kind or config is not taken in."""
    result = talk.result or {}
    for name, ordered in (("kind", kind), ("config", order.config)):
        if ordered and result.get(name, ordered) != ordered:
            raise _refused("the result", f"it names the {name} {result[name]!r}; {ordered!r} was ordered")
    for said in talk.artifacts.values():
        if not said.artifact.isidentifier() or len(said.artifact) > KIND_CHARS_MAX:
            raise _refused(said.path, f"{said.artifact!r} is no kind of artifact")
    size_bytes = len(msgspec.json.encode([*talk.artifacts.values()]))
    if size_bytes > ARTIFACTS_BYTES_MAX:
        raise _refused(
            "the list of artifacts", f"it has {size_bytes} bytes; {ARTIFACTS_BYTES_MAX} are allowed"
        )


def _refused(what: str, found: str) -> Corrupt:
    return Corrupt(what[:WORDS_MAX], found=found[:WORDS_MAX], advice="Look at the log of the job")
