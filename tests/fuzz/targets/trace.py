"""Recorded games: any bytes, and real records with changed fields, agree, differ or are refused."""

import gzip
import json
import tempfile
from pathlib import Path

from tests.fuzz.mutation import mutated_json

from ringrift.errors import ConfigError, Corrupt
from ringrift.games.tool import check_trace_file

TRACES = Path(__file__).parents[2] / "data" / "ringrift_traces"
FILE = Path(tempfile.mkdtemp()) / "x.jsonl"
STEPS = 12


def seeds() -> list[bytes]:
    made = []
    for path in sorted(TRACES.glob("*.gz")):
        with gzip.open(path) as file:
            game = json.loads(file.readline())
        game["steps"] = game["steps"][:STEPS]
        game.pop("winner", None)
        made.append(json.dumps(game).encode())
    return [*made, gzip.compress(made[0], mtime=0)]


def mutate(data: bytes, rng) -> bytes:
    return mutated_json(data, rng)


def run(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        report = check_trace_file(FILE)
    except (Corrupt, ConfigError) as refusal:
        assert str(refusal)
        return
    assert report.difference is None or str(report.difference).isprintable()


run(seeds()[0])  # compiles the rules before memory is limited
