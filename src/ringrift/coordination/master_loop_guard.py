"""At most one master loop per data folder.

The holder keeps an exclusive lock on the data folder itself for as long as it lives, so the system ends the
claim with the process, however that ends, and removing a file ends it for nobody. A folder that was moved
away, or exchanged, takes its lock with it: the holder has to look whether the path still leads there, and
what it writes goes through the open folder, never into another one that was put in its place. The PID file
only tells others who it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from ringrift.coordination.coordinator_config import get_settings
from ringrift.engine.lock_files import (
    PID_FILE,
    LockFile,
    MasterLoop,
    read_pid_file,
)
from ringrift.errors import AlreadyExists, StorageReadOnly
from ringrift.files import (
    HeldFolder,
    HeldPath,
    forget_exchanged,
    hold_folder,
    make_private_folder,
    open_private,
)
from ringrift.process import process_scope
from ringrift.process_identity import own_start_s
from ringrift.status import CoordinatorStatus, HealthCheckResult

__all__ = [
    "PID_FILE",
    "MasterLoop",
    "MasterLoopGuard",
    "ensure_master_loop_running",
    "is_master_loop_running",
    "pid_file",
    "read_master_loop",
    "require_running_master_loop",
]


def pid_file() -> Path:
    return get_settings().coordination_dir / PID_FILE


def read_master_loop(path: Path | None = None) -> MasterLoop | None:
    """Return what the file says; None if there is no file, or nothing that names a process in it."""
    return read_pid_file(path or pid_file())


def is_master_loop_running(path: Path | None = None) -> bool:
    """Whether the file names a live process."""
    found = read_master_loop(path)
    return found is not None and found.is_alive


def require_running_master_loop(path: Path | None = None) -> None:
    """Raise `RuntimeError` unless a master loop runs; RINGRIFT_SKIP_MASTER_LOOP_CHECK=1 lets it pass."""
    if get_settings().skip_master_loop_check or is_master_loop_running(path):
        return
    found = read_master_loop(path)
    stale = f"; {found.pid} in {path or pid_file()} is gone" if found else ""
    raise RuntimeError(
        f"no master loop is running{stale}. Start it, or set RINGRIFT_SKIP_MASTER_LOOP_CHECK=1"
    )


ensure_master_loop_running = require_running_master_loop


class MasterLoopGuard:
    """Claims the master loop for a `with` block. `AlreadyExists` if another process has it.

    A *path* of one's own is a PID file in a folder of one's own, and the claim is for that folder. A *shared*
    one also stands where this very process has the claim already, and then leaves it to that.
    """

    def __init__(self, path: Path | None = None, *, profile: str = "", shared: bool = False) -> None:
        self._profile, self._is_shared = profile, shared
        self._beside: MasterLoopGuard | None = None
        self.path = path or pid_file()
        self._folder = get_settings().data_dir if path is None else path.parent
        self._lock: LockFile | None = None
        self._held: HeldPath | None = None
        self._open_folder: HeldFolder | None = None
        self._locked = False

    def acquire(self) -> None:
        """Claim it and write the PID file. Calling it again changes nothing."""
        if not self.try_acquire():
            holder = read_master_loop(self.path)
            raise AlreadyExists(f"master loop (process {holder.pid if holder else 'unknown'})")

    def try_acquire(self) -> bool:
        """As `acquire`; False if another process has it."""
        if not self._locked:
            try:
                self._locked = self._stands_beside_own() or self._lock_folder()
            except OSError as error:
                raise StorageReadOnly(f"{self._folder} cannot be written: {error.strerror}") from None
        # A folder that was put in its place is another's: this process must not write its number there.
        if self._locked and not self.exchanged():
            self.show()
        return self._locked

    def _stands_beside_own(self) -> bool:
        """Whether a guard of this process has the folder, so that this one need not."""
        own = process_scope().peek(MasterLoopGuard) if self._is_shared else None
        if own is None or own is self or not own.is_held or own._folder != self._folder:
            return False
        self._beside, self._held = own, own._held
        return True

    def _lock_folder(self) -> bool:
        forget_exchanged(self._folder)  # one that an earlier run of this process had there
        make_private_folder(self._folder)
        lock = LockFile(self._folder)
        if not lock.try_lock():
            lock.close()
            return False
        self._lock, self._held = lock, HeldPath(self._folder, lock.stat())
        self._open_folder = hold_folder(self._folder, lock.descriptor)
        process_scope().put(MasterLoopGuard, self)
        return True

    def exchanged(self) -> str:
        """What became of the folder if its path leads elsewhere by now; "" if it does not."""
        return "" if self._held is None else self._held.problem()

    @property
    def folder_identity(self) -> str:
        """What tells the folder from one that is put in its place; "" if it is not opened."""
        return "" if self._held is None else self._held.identity

    def show(self) -> None:
        """See to it that the PID file names this process."""
        if self._beside is not None:
            return  # it says who has the folder
        me = MasterLoop(os.getpid(), own_start_s(), self._profile)
        # The holder asks now and then, as anybody may remove the file; one that is right stays as it is.
        if read_master_loop(self.path) == me:
            return
        try:
            make_private_folder(self.path.parent)
            self._write(f"{me.pid} {me.began_s} {me.profile}".rstrip() + "\n")
        except OSError as error:
            raise StorageReadOnly(f"{self.path} cannot be written: {error.strerror}") from None

    def _write(self, text: str) -> None:
        descriptor = open_private(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)

    def release(self) -> None:
        """Give it up, also if the file cannot be written. It stays, and is empty if it named this process."""
        if self._beside is not None:
            self._beside, self._held, self._locked = None, None, False
            return
        exchanged = self.exchanged()
        try:
            found = None if exchanged else read_master_loop(self.path)
            if found is not None and found.pid == os.getpid():
                # While the lock is still held: afterwards the file may name the next holder.
                self._write("")
        finally:
            if self._open_folder is not None and not exchanged:
                self._open_folder.let_go()  # else what is still under way must not go by path after all
            if self._lock is not None:
                self._lock.close()
            self._lock, self._held, self._open_folder, self._locked = None, None, None, False
            if process_scope().peek(MasterLoopGuard) is self:
                process_scope().drop(MasterLoopGuard)

    def health_check(self) -> HealthCheckResult:
        """Healthy while this process holds the claim and the path still leads to the folder of it."""
        if problem := self.exchanged():
            return HealthCheckResult.unhealthy(problem)
        if self._locked:
            return HealthCheckResult.ok("", path=str(self.path))
        holder = read_master_loop(self.path)
        who = f"process {holder.pid} has it" if holder is not None and holder.is_alive else "nobody has it"
        return HealthCheckResult(False, CoordinatorStatus.STOPPED, f"not held here; {who}")

    @property
    def is_held(self) -> bool:
        return self._locked

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
