"""Models on disk: what was saved comes back, and anything else is refused by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from ringrift.errors import (
    ArchitectureMismatch,
    ConfigError,
    Corrupt,
    DigestMismatch,
    ForeignFile,
    GameMismatch,
    SchemaTooNew,
)
from ringrift.games.registry import load_game
from ringrift.network.architecture import ModelCard, Preset, architecture_for, card_path
from ringrift.network.model import ResidualNet, build
from ringrift.network.storage import load_model, save_model

TINY = Preset(channels=8, blocks=1, neck=4, hidden=8)


def stored(folder: Path, key: str = "hex8_2p") -> tuple[Path, ResidualNet, ModelCard]:
    net = build(load_game(key), TINY, seed=4)
    card = ModelCard(
        config=key, architecture=net.architecture, parent="ab" * 32, rows_seen=12, notes={"run": 3}
    )
    path = folder / "models" / "net.safetensors"
    return path, net, save_model(net, card, path)


def rewrite_card(path: Path, **changes: object) -> None:
    record = json.loads(card_path(path).read_text())
    card_path(path).write_text(json.dumps(record | changes))


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    path, net, card = stored(tmp_path)
    found, read = load_model(path, config="hex8_2p", architecture=net.architecture)
    assert read == card
    assert (read.parent, read.rows_seen, read.notes) == ("ab" * 32, 12, {"run": 3})
    assert all(
        torch.equal(a, b) for a, b in zip(net.state_dict().values(), found.state_dict().values(), strict=True)
    )
    assert found.masked
    assert sorted(file.name for file in path.parent.iterdir()) == ["net.json", "net.safetensors"]


def test_the_same_weights_have_the_same_digest(tmp_path: Path) -> None:
    assert stored(tmp_path / "a")[2].sha256 == stored(tmp_path / "b")[2].sha256


def test_another_game_is_named(tmp_path: Path) -> None:
    path, _, _ = stored(tmp_path)
    with pytest.raises(GameMismatch, match="is for hex8_2p, not for square8_2p"):
        load_model(path, config="square8_2p")


def test_another_architecture_names_the_field(tmp_path: Path) -> None:
    path, net, _ = stored(tmp_path)
    wanted = architecture_for(load_game("hex8_2p"), Preset(channels=8, blocks=2, neck=4, hidden=8))
    with pytest.raises(ArchitectureMismatch, match="blocks: wanted 2, found 1"):
        load_model(path, architecture=wanted)
    with pytest.raises(ArchitectureMismatch, match="blocks"):
        save_model(net, ModelCard(config="hex8_2p", architecture=wanted), path)


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    path, _, _ = stored(tmp_path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DigestMismatch, match="the card says"):
        load_model(path)


def test_weights_that_do_not_fit_their_card_are_refused(tmp_path: Path) -> None:
    path, net, card = stored(tmp_path)
    record = net.architecture.to_json() | {"hidden": 16}
    rewrite_card(path, architecture=record)
    with pytest.raises(ArchitectureMismatch, match=r"tensor hidden\.bias"):
        load_model(path)
    tensors = load(path.read_bytes())
    tensors["stem.bias"][0] = float("nan")
    save_model(net, card, path)
    net.load_state_dict(tensors)
    save_model(net, card, path)
    with pytest.raises(Corrupt, match=r"stem.bias holds numbers not finite"):
        load_model(path)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path, _, card = stored(tmp_path)
    rewrite_card(path, version=99)
    with pytest.raises(SchemaTooNew, match="version 99"):
        load_model(path)
    rewrite_card(path, version=1, format="other")
    with pytest.raises(ForeignFile):
        load_model(path)
    card_path(path).write_text("{")
    with pytest.raises(Corrupt, match="no JSON"):
        load_model(path)
    card_path(path).unlink()
    with pytest.raises(ConfigError, match="no card"):
        load_model(path)
    with pytest.raises(ConfigError, match=r"ends in .safetensors"):
        save_model(build(load_game("hex8_2p"), TINY, seed=1), card, tmp_path / "net.pt")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    path, net, _ = stored(tmp_path)
    torch.save(net.state_dict(), path)
    rewrite_card(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(Corrupt, match="no safetensors file"):
        load_model(path)


def test_a_failed_write_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, card = stored(tmp_path)
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_model(build(load_game("hex8_2p"), TINY, seed=9), card, path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert load_model(path)[1] == card
    assert sorted(file.name for file in path.parent.iterdir()) == ["net.json", "net.safetensors"]
