"""Whatever an operation raises is one of our errors when it leaves the thread that runs operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import ConfigError, RingRiftError, storable_text

log = structlog.get_logger()


@contextmanager
def contained(path: Path, *, passing: type[Exception] = RingRiftError) -> Iterator[None]:
    """Raise anything at all as one of our errors, so that no operation can harm the thread that runs it.

    What is neither the disk's nor SQLite's fault is a value that slipped through the checks, or a defect: a
    retry cannot help.
    """
    try:
        with told_in_our_words(path):
            yield
    except (RingRiftError, passing):
        raise
    except BaseException as error:
        what = f"{type(error).__name__}: {storable_text(error, chars_max=500)}"
        # The stack goes with the error to whoever asked; to write it out here would hold up the others.
        log.error("engine.operation.failed", path=str(path), error=what)
        raise ConfigError(f"{path}: the engine cannot do this: {what}") from error
