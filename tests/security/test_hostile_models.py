"""Models, cards and traces that an attacker wrote are refused before anything is built of them."""

import gzip
import hashlib
import json
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ringrift.errors import ArchitectureMismatch, ConfigError, Corrupt
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.games.registry import load_game
from ringrift.games.tool import check_trace_file
from ringrift.network.architecture import ModelCard, Preset, read_card
from ringrift.network.model import build
from ringrift.network.storage import load_model, save_model

TRACES = Path(__file__).parents[1] / "data" / "ringrift_traces"
MEMORY_BYTES = 6 << 30  # of addresses, which torch takes before it does anything


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    game = load_game("connect_four_2p")
    net = build(game, Preset(channels=4, blocks=1, neck=2, hidden=8), seed=1)
    save_model(net, ModelCard(config=game.key, architecture=net.architecture), path)
    return path


def written(sound, folder, *, weights=None, **fields):
    """A copy with other weights and other fields in its card; the digest is right."""
    content = sound.read_bytes() if weights is None else weights
    card = json.loads(sound.with_suffix(".json").read_text())
    architecture = {**card["architecture"], **fields.pop("architecture", {})}
    card |= {"sha256": hashlib.sha256(content).hexdigest(), **fields, "architecture": architecture}
    (folder / "m.safetensors").write_bytes(content)
    (folder / "m.json").write_text(json.dumps(card))
    return folder / "m.safetensors"


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ({"channels": 10**9}, "channels must be a whole number, 1 to 1024"),
        ({"blocks": 10**6}, "blocks"),
        ({"rows": 10**5}, "rows"),
        ({"hidden": 8192, "placeless": 65_536}, "parameters"),
        ({"players": True}, "players"),
        ({"neck": 1.5}, "neck"),
        ({"kind": "pickle"}, "no architecture"),
        ({"extra": 1}, "fields are wrong"),
    ],
)
def test_a_card_of_an_absurd_network_is_refused(sound, tmp_path, architecture, why):
    with pytest.raises(Corrupt, match=why):
        load_model(written(sound, tmp_path, architecture=architecture))


def test_all_layers_of_a_real_network_are_foreseen(sound):
    net, card = load_model(sound)
    shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    assert card.architecture.tensor_shapes == shapes


def header_of(content):
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def renamed(header):
    header["stem.extra"] = header.pop("stem.bias")


def retyped(header):
    header["stem.bias"]["dtype"] = "F64"


def reshaped(header):
    header["stem.bias"]["shape"] = [2**40]


def moved(header):
    header["stem.bias"]["data_offsets"] = [0, 2**62]


@pytest.mark.parametrize("change", [renamed, retyped, reshaped, moved])
def test_tensors_that_the_architecture_does_not_have_are_refused(sound, tmp_path, change):
    header, body = header_of(sound.read_bytes())
    change(header)
    with pytest.raises((ArchitectureMismatch, Corrupt)):
        load_model(written(sound, tmp_path, weights=with_header(header, body)))


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        struct.pack("<Q", 2**63) + b"{}",
        with_header(b"[" * 10_000, b""),
        with_header(b'{"a": {}, "a": {}}', b""),
        with_header({"a": None}, b""),
    ],
    ids=["empty", "endless", "deep", "twice", "no-tensors"],
)
def test_headers_that_are_none_are_refused(sound, tmp_path, weights):
    with pytest.raises(Corrupt, match="no safetensors file"):
        load_model(written(sound, tmp_path, weights=weights))


@pytest.mark.parametrize(
    "text", [b"[" * 200_000, b'{"a": NaN}', b"\xff", b'{"a": 1' + b"0" * 9999 + b"}", b" " * (2 << 20)]
)
def test_a_card_that_is_no_document_is_refused(tmp_path, text):
    (tmp_path / "m.json").write_bytes(text)
    with pytest.raises((Corrupt, ConfigError)):
        read_card(tmp_path / "m.json")


def test_weights_larger_than_the_network_are_not_read(sound, tmp_path):
    path = written(sound, tmp_path)
    with path.open("r+b") as file:
        file.truncate(20 << 30)  # takes no disk
    code = "import sys; from pathlib import Path; from ringrift.network.storage import load_model\n"
    code += "load_model(Path(sys.argv[1]))"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True, text=True, timeout=240, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )  # fmt: skip
    assert "are the most that are read" in ended.stderr
    assert "MemoryError" not in ended.stderr


# --- documents and traces ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 65 + b"]" * 65, "byte 64: deeper than 64 levels"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' is there twice"),
        (b"[1, NaN]", "NaN is no number"),
        (b"[1e999]", "1e999 is too large"),
        (b'["a", \n "\xff"]', "byte 9 is no UTF-8"),
        (b'{"a": 1,\n "b" 2}', "line 2, column 6"),
        (b"9" * 5000, "digits"),
    ],
)
def test_json_is_refused_with_the_place(text, why):
    with pytest.raises(NoDocument, match=why):
        parse_json(text)


def test_brackets_in_texts_are_no_depth():
    assert parse_json(json.dumps({"a": "[" * 1000 + '"' + "{" * 1000, "b": [[1]]}))["b"] == [[1]]


def trace(folder, *lines, packed=False):
    content = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path = folder / "x.jsonl"
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def first_game():
    with gzip.open(TRACES / "square8_2p.jsonl.gz") as file:
        return json.loads(file.readline())


def test_a_packed_trace_without_end_is_refused(tmp_path):
    path = trace(tmp_path, b" " * (100 << 20), packed=True)
    with pytest.raises(Corrupt, match="a line has no end"):
        check_trace_file(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 10**9), ("n", -1), ("n", "2"), ("n", None), ("board", "../x"), ("board", {}), ("init", []),
        ("init", {}), ("steps", 7), ("steps", [[]]), ("steps", [{"p": 1}]), ("winner", {"a": 1}),
    ],
)  # fmt: skip
def test_a_game_that_is_none_is_refused_or_differs(tmp_path, field, value):
    try:
        assert check_trace_file(trace(tmp_path, {**first_game(), field: value})).difference is not None
    except (Corrupt, ConfigError) as refusal:
        assert str(refusal)


def test_a_damaged_packed_trace_and_control_characters(tmp_path):
    content = bytearray((TRACES / "square8_2p.jsonl.gz").read_bytes())
    content[5000:5100] = bytes(100)
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(Corrupt):
        check_trace_file(tmp_path / "x.gz")
    game = first_game()
    game["steps"][0]["mv"] = "\x1b[2J" * 1000
    found = check_trace_file(trace(tmp_path, game)).difference
    assert "\x1b" not in str(found)
    assert len(str(found)) < 1000
