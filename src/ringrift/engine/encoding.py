"""How payloads and results are written down: JSON, checked before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ringrift.engine.limits import check_size
from ringrift.errors import ConfigError

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
EMPTY_JSON = b"{}"


def encode_json(what: str, value: Mapping[str, Any]) -> bytes:
    """Return *value* as JSON; `ConfigError` if it cannot be written as such or is too large."""
    if not value:
        return EMPTY_JSON
    try:
        return check_size(what, _encode(value))
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} cannot be written as JSON: {error}") from None


def decode_json(text: bytes) -> dict[str, Any]:
    return {} if text == EMPTY_JSON else _decode(text)
