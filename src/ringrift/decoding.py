"""Values of declared types out of JSON, msgpack and plain values, in any thread.

msgspec prepares a struct type when it is first read into, and a second thread that reads into the same type
meanwhile crashes the process. So every type is prepared here, by one thread at a time, and a lint rule keeps
all others from msgspec's own calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
_Hook = Callable[[type, Any], Any]

_preparing = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}  # by type; those are as many as the program declares


@overload
def decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]: ...
def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of JSON into *kind*; with it *kind* is prepared."""
    found = _decoders.get(kind)
    if found is None:
        with _preparing:
            found = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return found


@overload
def decode_as(content: bytes | str, kind: type[T]) -> T: ...
@overload
def decode_as(content: bytes | str, kind: Any) -> Any: ...
def decode_as(content: bytes | str, kind: Any) -> Any:
    """Raises what `msgspec.json.decode` raises."""
    return decoder_of(kind).decode(content)


def unpack_as(content: bytes, kind: type[T]) -> T:
    """The same for msgpack."""
    decoder_of(kind)
    return msgspec.msgpack.decode(content, type=kind)


@overload
def convert_to(value: Any, kind: type[T], *, strict: bool = ..., dec_hook: _Hook | None = ...) -> T: ...
@overload
def convert_to(value: Any, kind: Any, *, strict: bool = ..., dec_hook: _Hook | None = ...) -> Any: ...
def convert_to(value: Any, kind: Any, *, strict: bool = True, dec_hook: _Hook | None = None) -> Any:
    """Raises what `msgspec.convert` raises."""
    decoder_of(kind)
    return msgspec.convert(value, kind, strict=strict, dec_hook=dec_hook)
