"""Sample files: any bytes, and sound files with changed members, get an answer from every check."""

import hashlib
import io
import json
import os
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from tests.fuzz.mutation import mutated, mutated_json

from ringrift.data.manifest.file_facts import check_dataset, quick_npz_check
from ringrift.errors import ConfigError, Corrupt
from ringrift.games.registry import load_game
from ringrift.jobs.samples.npz_files import SampleWriter, check_samples, row_columns
from ringrift.jobs.training.rows import SampleFile, make_batch

GAME = load_game("connect_four_2p")
FOLDER = Path(tempfile.mkdtemp())
FILE = FOLDER / "x.npz"
ROWS = 3


def seeds() -> list[bytes]:
    states = GAME.new_states(ROWS)
    for row in range(ROWS):
        for column in range(row):
            GAME.apply(states[row : row + 1], np.array([column], dtype=np.int32))
    legal = GAME.legal(states)
    columns = {
        name: np.zeros((ROWS, *shape), dtype=dtype) for name, (dtype, shape) in row_columns(GAME).items()
    }
    columns |= {"states": states, "seats": GAME.to_move(states).astype(np.int8)}
    columns["policy_counts"] = legal.counts.astype(np.int32)
    columns["policy_indices"] = legal.actions
    columns["policy_values"] = np.full(len(legal.actions), 1 / 7, dtype=np.float32)
    made = []
    for compress in (False, True):
        with SampleWriter(FILE, GAME, rows=ROWS, compress=compress) as writer:
            writer.add(columns)
            writer.finish({"config_key": GAME.key, "policy_size": 7})
        made.append(FILE.read_bytes())
    return made


def mutate(data: bytes, rng) -> bytes:
    """Change one member, and often the checksums to match: an attacker can count too."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()[:64]}
    except (ValueError, OSError, RuntimeError, zipfile.BadZipFile, EOFError, struct.error):
        return mutated(data, [], rng, 1 << 20)
    if not members:
        return data
    name = rng.choice(list(members))
    content = members[name]
    body = 10 + int.from_bytes(content[8:10], "little") if len(content) > 10 else 0
    if name == "checksums.npy" and rng.random() < 0.5:
        text = content[body:].decode("utf-32-le", "replace")
        changed = mutated_json(text.encode("utf8", "replace"), rng).decode("utf8", "replace")[:5000]
        members[name] = _array(np.array(changed.encode("utf8", "replace").decode("utf8")))
    elif rng.random() < 0.3:
        members[name] = mutated(content[:body], [], rng, 20_000) + content[body:]
    else:
        members[name] = (
            content[:body] + mutated(content[body:], [], rng, 20_000)[: max(1, len(content) - body)]
        )
    if rng.random() < 0.1:
        members.pop(rng.choice(list(members)))
    if rng.random() < 0.7 and "checksums.npy" in members:
        members["checksums.npy"] = _sums(members)
    return _zipped(members, rng)


def _array(value) -> bytes:
    file = io.BytesIO()
    np.save(file, value)
    return file.getvalue()


def _sums(members: dict[str, bytes]) -> bytes:
    sums = {}
    for name, content in members.items():
        body = 10 + int.from_bytes(content[8:10], "little") if len(content) > 10 else 0
        sums[name.removesuffix(".npy")] = hashlib.sha256(content[body:]).hexdigest()
    return _array(np.array(json.dumps(sums)))


def _zipped(members: dict[str, bytes], rng) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def run(data: bytes) -> None:
    FILE.write_bytes(data)
    whole, said = quick_npz_check(FILE)
    assert (said is None) if whole else isinstance(said, str)
    assert whole or not check_dataset(FILE)
    assert check_samples(FILE).file_size == len(data)
    scratch = FOLDER / "scratch"
    try:
        file = SampleFile(FILE, GAME, scratch)
        rows = file.take(np.arange(len(file)))
        make_batch(GAME, rows, np.ones(len(file), dtype=np.int64))
    except (Corrupt, ConfigError):
        pass
    finally:
        for path in scratch.glob("*") if scratch.exists() else ():
            os.unlink(path)
        if scratch.exists():
            scratch.rmdir()


run(seeds()[0])  # compiles the rules before memory is limited
