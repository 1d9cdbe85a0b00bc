"""Runs the job `diagnose` on what a run has: the files are laid out, the job is a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import Blobs
from ringrift.errors import Corrupt
from ringrift.learning.doctor_findings import Diagnosis, Finding, Level
from ringrift.learning.records import ShardState
from ringrift.learning.rules import LearningRules
from ringrift.learning.state import ConfigState

SHARDS_EXAMINED = 5
DIAGNOSE_S_MAX = 1800.0
ERROR_CHARS = 400


async def diagnose(blobs: Blobs | None, state: ConfigState, rules: LearningRules) -> Diagnosis | Finding:
    """Examine the champion of *state*, or its newest model, on its newest samples and games.

    Returns a finding instead of a diagnosis where the job could not be run to its end.
    """
    if find_spec("torch") is None or find_spec("numba") is None:
        text = "the learner is not installed here: games and networks were not examined"
        advice = "pip install 'ringrift[train]'"
        return Finding(check="diagnose", level=Level.NOTICE, config=state.config, text=text, advice=advice)
    with tempfile.TemporaryDirectory(prefix="ringrift-doctor-") as folder:
        params = await _lay_out(Path(folder), blobs, state, rules)
        try:
            return await asyncio.to_thread(_run, Path(folder), params)
        except Corrupt as error:
            return Finding(
                check="diagnose",
                level=Level.PROBLEM,
                config=state.config,
                text=f"games and networks of {state.config} could not be examined: {error.found}",
                advice="`ringrift job diagnose` shows the whole error.",
            )


async def _lay_out(
    folder: Path, blobs: Blobs | None, state: ConfigState, rules: LearningRules
) -> dict[str, Any]:
    """Link the files of the run into *folder*; what is not in the store any more is left out."""
    params: dict[str, Any] = {
        "config": state.config,
        "out": str(folder / "diagnosis.json"),
        "preset": rules.preset,
        "hold_out": rules.hold_out,
        "log_level": "error",
    }
    if blobs is None:
        return params
    model = state.models.get(state.champion or "") or state.newest_model
    if model is not None:
        weights = await _link(blobs, model.digest, folder / "model.safetensors")
        if weights and await _link(blobs, model.card, folder / "model.json"):
            params["model"] = weights
    samples = state.newest_samples
    if samples is not None and (path := await _link(blobs, samples.digest, folder / "samples.npz")):
        params["samples"] = [path]
    checked = (each for each in reversed(state.shards.values()) if each.state is ShardState.CHECKED)
    shards = [
        await _link(blobs, shard.digest, folder / f"{number}.shard.db")
        for number, shard in enumerate(islice(checked, SHARDS_EXAMINED))
    ]
    params["shards"] = [path for path in shards if path]
    return params


async def _link(blobs: Blobs, digest: str, place: Path) -> str:
    """Where *digest* lies under the name that jobs expect; empty if it is gone."""
    found = await blobs.path(digest)
    if found is None:
        return ""
    await asyncio.to_thread(place.symlink_to, found.absolute())
    return str(place)


def _run(folder: Path, params: dict[str, Any]) -> Diagnosis:
    command = [sys.executable, "-m", "ringrift.jobs", "diagnose", "--params", "-"]
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(params),
            capture_output=True,
            timeout=DIAGNOSE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Corrupt("diagnose", found="it took too long", advice="Run the job alone") from None
    if done.returncode:
        raise Corrupt("diagnose", found=_last_words(done), advice="Run the job alone")
    return decode_as((folder / "diagnosis.json").read_bytes(), Diagnosis)


def _last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stdout.splitlines()
    try:
        told = decode_as(lines[-1], dict[str, Any]).get("error") if lines else None
    except UNREADABLE:
        told = None
    return str(told or done.stderr.decode(errors="replace")[-ERROR_CHARS:] or f"exit code {done.returncode}")
