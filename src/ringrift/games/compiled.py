"""Compilation of rules: `compiled` for inner functions, `cached_kernel` for the entry points.

Only entry points are stored on disk, so that a start loads a handful of files. Numba notices a change of
the file that holds an entry point, but not of the files that it calls into; the fingerprint over all
sources of a game closes that gap, so that old machine code is never run for new rules.
"""

from __future__ import annotations

import hashlib
import pickle  # noqa: TID251  for the name of an error of numba
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import IndexDataCacheFile

# Nobody calls these through C; the entry for it took a tenth of the time to compile.
INNER: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}

# What reading a file of machine code raises that is damaged.
_DAMAGED = (
    *(OSError, EOFError, ValueError, pickle.UnpicklingError, LookupError, AttributeError, ImportError),
    *(TypeError, ArithmeticError, MemoryError),
)
_KERNELS: list[Any] = []  # every entry point of the modules that are loaded

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile *function* for use inside other compiled functions."""
    return cast(F, njit(**INNER)(function))


def source_fingerprint(*paths: Path) -> str:
    """Digest of the Python sources in *paths*, files or folders."""
    digest = hashlib.sha256()
    for path in paths:
        for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(source.name.encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()


def cached_kernel(fingerprint: str) -> Callable[[F], F]:
    """Compile an entry point and keep its machine code on disk for as long as *fingerprint* stays."""

    def decorate(function: F) -> F:
        dispatcher: Any = njit(cache=True, nogil=True, error_model="numpy")(function)
        store = dispatcher._cache
        # In files of its own: an index of older sources may name classes that are gone, and then it
        # cannot even be read to find out that it is old.
        store._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
            cache_path=store.cache_path,
            filename_base=f"{store._impl.filename_base}-{fingerprint[:16]}",
            source_stamp=store._impl.locator.get_source_stamp(),
        )
        _KERNELS.append(dispatcher)
        return cast(F, dispatcher)

    return decorate


def load_stored_kernels() -> None:
    """Load the machine code that is on disk of all entry points here, so that children need not.

    Nothing is compiled, and nothing is run. A file that cannot be read is left to whoever needs it.
    """
    for dispatcher in _KERNELS:
        store, codegen = dispatcher._cache, dispatcher.targetctx.codegen()
        with suppress(*_DAMAGED):
            for key in store._cache_file._load_index():
                signature = key[0]
                if key == store._index_key(signature, codegen) and signature not in dispatcher.overloads:
                    dispatcher.compile(signature)
