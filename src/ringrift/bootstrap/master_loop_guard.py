"""At most one master loop per data folder.

The holder keeps an exclusive lock on the PID file for as long as it lives, so the system ends the claim with
the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import structlog

from ringrift.bootstrap.master_loop import pid_file, read_master_loop
from ringrift.errors import AlreadyExists, StorageReadOnly
from ringrift.private_files import make_private_folder, open_private
from ringrift.process_identity import own_start_s

log = structlog.get_logger()


class MasterLoopGuard:
    """Claims the master loop for a `with` block. `AlreadyExists` if another process has it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or pid_file()
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Claim it and write the PID file. Calling it again changes nothing."""
        if self._file is not None:
            return
        try:
            make_private_folder(self.path.parent)
            descriptor = open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            file = os.fdopen(descriptor, "a+", encoding="utf-8")
        except OSError as error:
            raise StorageReadOnly(f"{self.path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            holder = read_master_loop(self.path)
            raise AlreadyExists(f"master loop (process {holder.pid if holder else 'unknown'})") from None
        stale = read_master_loop(self.path)
        if stale is not None:
            log.info("master_loop.took_over_stale_file", pid=stale.pid)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()} {own_start_s()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give it up. The file stays and is empty: removing it could let two processes each lock one."""
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            self._file.close()
            self._file = None

    @property
    def is_held(self) -> bool:
        return self._file is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
