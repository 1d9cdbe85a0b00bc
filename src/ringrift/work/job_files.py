"""Files into a job's folder before it starts, and out of it into the blobs when it ended well."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ringrift.engine.limits import VALUE_BYTES_MAX
from ringrift.engine.ports import Blobs
from ringrift.errors import DigestMismatch, Unavailable
from ringrift.work.job_folders import JobFolder
from ringrift.work.job_orders import JobArtifact, JobOrder
from ringrift.work.job_talk import JobTalk

RESULT_BYTES_MAX = VALUE_BYTES_MAX // 2
# Said elsewhere.
REPEATED = ("event", "kind", "elapsed_s", "cpu_s", "gpu_s", "status", "exit_code", "artifacts")
MISSING_S = 30.0  # an input may still be on its way


async def lay_out(folder: JobFolder, order: JobOrder, blobs: Blobs) -> None:
    """Fill the folder as *order* says; `Unavailable` if an input is not here."""
    await asyncio.to_thread(folder.prepare)
    await asyncio.to_thread(folder.drop_other_inputs, order.inputs)
    for name, digest in order.inputs.items():
        source = await blobs.path(digest)
        if source is not None:
            await asyncio.to_thread(folder.link_input, name, source)
            continue
        try:
            file = await blobs.open(digest)
        except KeyError:
            raise Unavailable(f"the input {name} ({digest}) is not here", retry_after_s=MISSING_S) from None
        with file:
            await asyncio.to_thread(folder.copy_input, name, file)
    await asyncio.to_thread(folder.write_params, order)


async def take_in(
    folder: JobFolder, talk: JobTalk, blobs: Blobs
) -> tuple[tuple[JobArtifact, ...], dict[str, Any]]:
    """Put every announced artifact into the blobs; return them and the fields of the result.

    `DigestMismatch` if a file changed since it was announced. A result that the queue cannot hold becomes
    an artifact itself; its plain values stay where they are.
    """
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
        counts = msgspec.to_builtins(said.counts)
        taken.append(
            JobArtifact(name=name, kind=said.artifact, digest=digest, size_bytes=size_bytes, counts=counts)
        )
    fields = {key: value for key, value in (talk.result or {}).items() if key not in REPEATED}
    whole = msgspec.json.encode(fields)
    if len(whole) > RESULT_BYTES_MAX:
        digest = await blobs.put_bytes(whole)
        taken.append(JobArtifact(name="result.json", kind="result", digest=digest, size_bytes=len(whole)))
        fields = {k: v for k, v in fields.items() if v is None or isinstance(v, bool | int | float)}
    return tuple(taken), fields
