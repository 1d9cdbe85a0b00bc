"""The data server: gives this node's sealed files to other nodes, and takes theirs, over signed HTTP.

It runs in a process of its own, so that hashing and copying never hold up the control process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from ringrift.data.nodes import read_nodes
from ringrift.data.promises import Holder, open_holder
from ringrift.data.secret import data_secret
from ringrift.data.server_answers import Answers
from ringrift.data.server_buffers import Buffers
from ringrift.data.server_http import DataHttpServer
from ringrift.data.transfer.receiving import Intake, open_intake
from ringrift.data.transfer.signing import OnceOnly, Signer
from ringrift.engine.sqlite.faults import told_in_our_words
from ringrift.errors import Unavailable
from ringrift.held_folder import make_folders, remove_file
from ringrift.private_files import replace_file
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, get_settings
from ringrift.tls import CertificateFiles, own_files

log = structlog.get_logger()

ADDRESS_FILE = "data_server.json"
_UPKEEP_S = 60.0
_STOP_S = 5.0


class ServerAddress(msgspec.Struct, frozen=True):
    """Where the data server of a data folder listens."""

    host: str
    port: int
    pid: int


class DataServer:
    """Serves one blob folder until it is cancelled."""

    def __init__(
        self,
        intake: Intake,
        holder: Holder,
        *,
        secret: bytes,
        address: tuple[str, int],
        address_file: Path,
        runtime: Runtime,
        tls: CertificateFiles | None = None,
    ) -> None:
        self._tls = tls
        self._intake, self._holder, self._secret, self._address = intake, holder, secret, address
        self._address_file, self._runtime = address_file, runtime
        self.port = 0

    async def run(self, *, on_ready: Callable[[], None] | None = None) -> None:
        """Listen, look after the folder, and end cleanly when cancelled."""
        server = await asyncio.to_thread(self._listen)
        thread = threading.Thread(target=server.serve_forever, name="ringrift-data-server", daemon=True)
        thread.start()
        log.info("data_server.listening", host=self._address[0], port=self.port, node=self._intake.node)
        try:
            if on_ready is not None:
                on_ready()
            while True:
                await asyncio.to_thread(self._look_after_the_folder)
                await self._runtime.sleep(_UPKEEP_S)
        finally:
            await asyncio.shield(asyncio.to_thread(self._end, server, thread))

    def _listen(self) -> DataHttpServer:
        host, port = self._address
        try:
            server = DataHttpServer(
                self._address,
                answers=Answers(self._intake, Buffers(), self._holder),
                signer=Signer(self._secret),
                once_only=OnceOnly(now_s=self._runtime.now_s, monotonic_s=self._runtime.monotonic_s),
                monotonic_s=self._runtime.monotonic_s,
                tls=None if self._tls is None else self._tls.context(),
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise Unavailable(f"cannot listen on {host}:{port}: {why}", retry_after_s=30.0) from error
        self.port = int(server.server_address[1])
        self._say_where(ServerAddress(host, self.port, os.getpid()))
        return server

    def _say_where(self, address: ServerAddress) -> None:
        with told_in_our_words(self._address_file):
            make_folders(self._address_file.parent)
            replace_file(self._address_file, msgspec.json.encode(address), durable=False)

    def _look_after_the_folder(self) -> None:
        """Let go of what nobody continues, remove old leftovers and the lists of files that are gone."""
        self._intake.let_go_of_idle()
        self._intake.folder.sweep(self._runtime.now_s())
        self._intake.cards.sweep()
        for digest in self._intake.index.known():
            if not self._intake.folder.place(digest).exists():
                self._intake.index.forget(digest)

    def _end(self, server: DataHttpServer, thread: threading.Thread) -> None:
        server.shutdown()
        server.server_close()
        server.hang_up()
        thread.join(_STOP_S)
        self._intake.close()
        self._intake.index.close()
        self._holder.promises.close()
        remove_file(self._address_file)


def create_data_server() -> DataServer:
    """Make the data server of this process's settings."""
    return data_server(get_settings(), system_runtime())


def data_server(settings: Settings, runtime: Runtime) -> DataServer:
    this = read_nodes(settings.node_name or runtime.hostname, settings.nodes).this
    return DataServer(
        open_intake(settings, runtime, node=this.name),
        open_holder(settings, runtime, node=this),
        secret=data_secret(settings),
        address=(settings.data_host, this.data_port or settings.data_port),
        address_file=settings.data_dir / ADDRESS_FILE,
        runtime=runtime,
        tls=own_files(settings, runtime) if settings.data_tls else None,
    )
