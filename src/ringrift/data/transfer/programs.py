"""Other programs (ssh, rsync) run to their end: heard, bounded in time and output, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ringrift.data.transfer.contract import TransferFailed
from ringrift.held_folder import make_folders, remove_file, write_file
from ringrift.runtime import Child, Command, Runtime

_PACKAGES = {"ssh": "openssh-client"}  # where the package is not called like the program
OUTPUT_BYTES_MAX = 64 << 20
COMPLAINT_CHARS_MAX = 600
_READ_BYTES = 1 << 16
_REAP_S = 10.0
_LEFTOVER_S = 86_400.0


class ProgramMissing(TransferFailed):
    """A way needs a program that is not installed; another way may do without."""

    def __init__(self, program: str, *, where: str) -> None:
        package = _PACKAGES.get(program, program)
        super().__init__(
            f"{program} is not installed on {where}; install the package {package} there", retry_after_s=300.0
        )
        self.program, self.where = program, where


class Scratch:
    """A folder for files that live as long as one call. What killed processes left goes after a day."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        self.folder, self._runtime = folder, runtime
        self._swept = False

    @asynccontextmanager
    async def file(self, content: bytes = b"") -> AsyncIterator[Path]:
        path = self.folder / self._runtime.new_id()
        await asyncio.to_thread(self._write, path, content)
        try:
            yield path
        finally:
            remove_file(path)

    def _write(self, path: Path, content: bytes) -> None:
        make_folders(self.folder)
        if not self._swept:
            self._swept = True
            self._sweep()
        write_file(path, content)

    def _sweep(self) -> None:
        for leftover in self.folder.iterdir():
            with suppress(FileNotFoundError):
                old = leftover.stat().st_mtime < self._runtime.wall_s() - _LEFTOVER_S
                if old and leftover.is_file():
                    remove_file(leftover)


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended and what it said."""

    code: int
    output: bytes
    complaint: str  # the end of its stderr


Hear = Callable[[bytes], Awaitable[None]]


class Programs:
    """Runs programs. One that says nothing for as long as it may be silent is ended."""

    def __init__(self, scratch: Scratch, runtime: Runtime) -> None:
        self.scratch, self._runtime = scratch, runtime

    async def run(
        self,
        argv: Sequence[str],
        *,
        quiet_s: float,
        stdin: Path | None = None,
        hear: Hear | None = None,
        stays: bool = False,
    ) -> ProgramEnd:
        """Run to the end; *hear* gets the output piece by piece, else it is collected within a bound.

        What the program started ends with it, unless it *stays* in the background after a good end.
        """
        async with self.scratch.file() as complaints:
            command = Command(argv=argv, env=_plain_language(), input=stdin, output=complaints, piped=True)
            try:
                child = await self._runtime.spawn(command)
            except FileNotFoundError:
                raise ProgramMissing(argv[0], where="this machine") from None
            code: int | None = None
            try:
                output = await _listen(child, argv[0], quiet_s, hear)
                async with asyncio.timeout(quiet_s):
                    code = await child.wait()
            except TimeoutError:
                raise TransferFailed(f"{argv[0]} was silent for {quiet_s:g} s and was ended") from None
            finally:
                await _end(child, kill=not (stays and code == 0))
            return ProgramEnd(code, output, await asyncio.to_thread(_tail, complaints))


async def _listen(child: Child, name: str, quiet_s: float, hear: Hear | None) -> bytes:
    kept = bytearray()
    while True:
        async with asyncio.timeout(quiet_s):
            piece = await child.read(_READ_BYTES)
        if not piece:
            return bytes(kept)
        if hear is not None:
            await hear(piece)
            continue
        kept += piece
        if len(kept) > OUTPUT_BYTES_MAX:
            raise TransferFailed(f"{name} said more than {OUTPUT_BYTES_MAX >> 20} MiB")


async def _end(child: Child, *, kill: bool) -> None:
    """Leave nothing of it: the group is killed, which is harmless if it ended by itself."""
    if kill:
        child.signal_group(signal.SIGKILL)
    child.stop_reading()
    with suppress(TimeoutError):  # a child stuck in the kernel is left to init
        async with asyncio.timeout(_REAP_S):
            await child.wait()


def _plain_language() -> dict[str, str]:
    """The environment of this process, with messages that we can read."""
    return {**os.environ, "LC_ALL": "C"}


def _tail(path: Path) -> str:
    text = path.read_text(encoding="utf8", errors="replace").strip()
    return " ".join(text[-COMPLAINT_CHARS_MAX:].split())
