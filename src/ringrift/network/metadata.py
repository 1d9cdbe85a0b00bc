"""The card of a model: what a file of weights is, in JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ringrift.errors import ConfigError, Corrupt, ForeignFile, SchemaTooNew
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.foreign_files.paths import read_regular
from ringrift.network.architecture import Architecture

FORMAT = "ringrift.model"
VERSION = 1
CARD_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a model is and where it comes from."""

    config: str  # key of the game
    architecture: Architecture
    parent: str | None = None  # digest of the weights that training started from
    rows_seen: int = 0
    sha256: str = ""  # digest of the weights' file, written when it is saved
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION} | asdict(self)


def card_path(weights: Path) -> Path:
    """`net.safetensors` has its card in `net.json`."""
    return weights.with_suffix(".json")


def write_text(card: ModelCard) -> str:
    return json.dumps(card.to_json(), indent=2, sort_keys=True) + "\n"


def read_card(path: Path) -> ModelCard:
    """Read a card; raises `ForeignFile`, `SchemaTooNew` or `Corrupt` that says what is wrong with it."""
    record = _read_record(path)
    try:
        return ModelCard(
            config=_of_type(record, "config", str),
            architecture=Architecture.from_json(_of_type(record, "architecture", dict)),
            parent=None if record.get("parent") is None else _of_type(record, "parent", str),
            rows_seen=_of_type(record, "rows_seen", int),
            sha256=_of_type(record, "sha256", str),
            notes=_of_type(record, "notes", dict),
        )
    except ConfigError as error:
        raise Corrupt(
            path, found=str(error), advice="Take the card from where the model came from"
        ) from error


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = parse_json(read_regular(path, bytes_max=CARD_BYTES_MAX))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no card of a model") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except NoDocument as error:
        raise Corrupt(path, found=f"the card is no JSON ({error})", advice="Copy it again") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ForeignFile(path, found="this is not the card of a model", advice="Name a model's file")
    version = record.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise SchemaTooNew(
            path,
            found=f"the card has version {version!s:.40}, this program reads {VERSION}",
            advice="Update it",
        )
    return record


def _of_type(record: Mapping[str, Any], name: str, kind: type) -> Any:
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"the card's {name} is {value!r:.80}, not a {kind.__name__}")
    return value
