"""Models: a card and weights, of any bytes; loaded, or refused before anything large is made.

An input is the card, a zero byte, and the weights. The digest is made right, as an attacker would.
"""

import hashlib
import json
import struct
import tempfile
from pathlib import Path

from tests.fuzz.mutation import mutated, mutated_json

from ringrift.errors import ArchitectureMismatch, ConfigError, Corrupt
from ringrift.games.registry import load_game
from ringrift.network.architecture import ModelCard, Preset
from ringrift.network.model import build
from ringrift.network.storage import load_model, save_model

FOLDER = Path(tempfile.mkdtemp())
FILE = FOLDER / "m.safetensors"
MEMORY_MB = 3000  # a network of the largest size that a card may name, and its file


def seeds() -> list[bytes]:
    game = load_game("connect_four_2p")
    net = build(game, Preset(channels=2, blocks=1, neck=1, hidden=2), seed=1)
    save_model(net, ModelCard(config=game.key, architecture=net.architecture), FILE)
    return [FILE.with_suffix(".json").read_bytes() + b"\0" + FILE.read_bytes()]


def mutate(data: bytes, rng) -> bytes:
    card, _, weights = data.partition(b"\0")
    if rng.random() < 0.4:
        return mutated_json(card, rng) + b"\0" + weights
    (length,) = struct.unpack_from("<Q", weights)
    header, body = weights[8 : 8 + length], weights[8 + length :]
    if rng.random() < 0.7:
        header = mutated_json(header, rng)
    else:
        body = mutated(body, [], rng, 1 << 16)
    return card + b"\0" + struct.pack("<Q", len(header)) + header + body


def run(data: bytes) -> None:
    card, _, weights = data.partition(b"\0")
    try:
        told = json.loads(card)
        told["sha256"] = hashlib.sha256(weights).hexdigest()
        card = json.dumps(told).encode()
    except (ValueError, TypeError, RecursionError):
        pass
    FILE.with_suffix(".json").write_bytes(card)
    FILE.write_bytes(weights)
    try:
        net, read = load_model(FILE)
    except (Corrupt, ConfigError, ArchitectureMismatch):
        return
    assert net.parameter_count <= read.architecture.parameter_count
