"""A NATS server: the configuration of one that is started here, and whether a given one is set up safely."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sysconfig
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from ringrift.engine.nats.link import NatsConfig, NatsLink, ServerRefused, translated, without_credentials
from ringrift.errors import ConfigError, RingRiftError, Unavailable
from ringrift.files import make_private_folder, replace_file

PROGRAM = "nats-server"
PAYLOAD_BYTES = 2 << 20  # a value of the largest size, with its headers
PAYLOAD_BYTES_MIN = 1 << 20
TOKEN_FILE, CONFIG_FILE = "token", "server.conf"
REPLICAS_WANTED = 3
CHECK_S_MAX = 60.0

_CONFIG = """\
# Written by `ringrift engine up`; every start writes it anew.
listen: "{host}:{port}"
max_payload: {payload}
authorization {{ token: "{token}" }}
jetstream {{
  store_dir: "{store}"
  # What was acknowledged outlives a power cut. Without it the server syncs every two minutes.
  sync_interval: always
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServer:
    """A server that keeps its data in a folder of its own, and how to reach it."""

    program: Path
    config: Path
    host: str
    port: int
    token: str

    @property
    def url(self) -> str:
        return f"nats://{self.token}@{self.host}:{self.port}"

    @property
    def argv(self) -> list[str]:
        return [str(self.program), "-c", str(self.config)]


def local_server(folder: Path, *, host: str, port: int) -> LocalServer:
    """Write the configuration of a server in *folder*, whose token stays the same.

    `ConfigError` if there is no server program.
    """
    beside = Path(sysconfig.get_path("scripts")) / PROGRAM
    found = beside if beside.exists() else shutil.which(PROGRAM)
    if found is None:
        raise ConfigError(f"there is no {PROGRAM} here: pip install 'ringrift[cluster]'")
    make_private_folder(folder)
    token_file, config = folder / TOKEN_FILE, folder / CONFIG_FILE
    with suppress(FileNotFoundError):
        token = token_file.read_text(encoding="ascii").strip()
        if len(token) < 32 or not token.isalnum():
            raise ConfigError(f"{token_file} holds no token; remove it, and a new one is made")
        return _written(Path(found), config, host=host, port=port, token=token)
    token = secrets.token_hex(24)
    replace_file(token_file, token.encode())
    return _written(Path(found), config, host=host, port=port, token=token)


def _written(program: Path, config: Path, *, host: str, port: int, token: str) -> LocalServer:
    store = config.with_name("store").absolute()
    text = _CONFIG.format(host=host, port=port, payload=PAYLOAD_BYTES, token=token, store=store)
    replace_file(config, text.encode())
    return LocalServer(program=program, config=config, host=host, port=port, token=token)


# Whether a given server keeps what is promised.


class ServerVerdict(StrEnum):
    """How it is with one thing."""

    GOOD = "good"
    RISK = "risk"  # works, and may lose something or let somebody in
    WRONG = "wrong"  # does not work
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ServerFinding:
    """What was found, and what to do about it."""

    what: str
    verdict: ServerVerdict
    text: str


class ServerCheck:
    """Asks one server, or the cluster behind it; what it tries out, it removes again."""

    def __init__(self, link: NatsLink, *, new_id: Callable[[], str]) -> None:
        self._link, self._new_id = link, new_id

    async def findings(self) -> list[ServerFinding]:
        asked: dict[str, Callable[[], Awaitable[ServerFinding]]] = {
            "JetStream": self._jetstream,
            "batches": self._batches,
            "replicas": self._replicas,
            "payload": self._payload,
            "access": self._access,
            "TLS": self._tls,
        }
        version = self._link.client.connected_server_version
        found = [
            ServerFinding("version", ServerVerdict.GOOD, f"{version.major}.{version.minor}.{version.patch}"),
            ServerFinding(
                "sync",
                ServerVerdict.UNKNOWN,
                "a client cannot see it; for what survives a power cut the server needs "
                "jetstream { sync_interval: always }",
            ),
        ]
        for what, ask in asked.items():
            try:
                with translated("it was tried"):
                    found.append(await ask())
            except RingRiftError as error:
                found.append(ServerFinding(what, ServerVerdict.WRONG, str(error)))
        return found

    async def _jetstream(self) -> ServerFinding:
        info = await self._link.api("INFO", {})
        used, most = info.get("storage", 0), info.get("limits", {}).get("max_storage", -1)
        if most > 0 and used > 0.8 * most:
            text = f"{used:,} of {most:,} bytes that this account may store are used"
            return ServerFinding("JetStream", ServerVerdict.RISK, text)
        return ServerFinding("JetStream", ServerVerdict.GOOD, f"on; {used:,} bytes are stored")

    async def _trying(self, *, replicas: int, use: Callable[[str], Awaitable[None]] | None = None) -> None:
        name = f"RINGRIFT_CHECK_{self._new_id().replace('-', '')}"
        config: dict[str, Any] = {
            "name": name,
            "subjects": [f"{name.lower()}.>"],
            "storage": "file",
            "num_replicas": replicas,
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "allow_direct": True,
        }
        await self._link.api(f"STREAM.CREATE.{name}", config)
        try:
            if use is not None:
                await use(name.lower())
        finally:
            await self._link.api(f"STREAM.DELETE.{name}", {})

    async def _batches(self) -> ServerFinding:
        async def use(subject: str) -> None:
            headers = {"Nats-Batch-Id": "check", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}
            await self._link.request(f"{subject}.a", b"", headers)

        await self._trying(replicas=1, use=use)
        return ServerFinding("batches", ServerVerdict.GOOD, "several messages are stored whole or not at all")

    async def _replicas(self) -> ServerFinding:
        try:
            await self._trying(replicas=REPLICAS_WANTED)
        except ServerRefused as error:
            text = f"one copy of everything ({error.text}); a lost server takes the run with it"
            return ServerFinding("replicas", ServerVerdict.RISK, text)
        return ServerFinding("replicas", ServerVerdict.GOOD, f"{REPLICAS_WANTED} copies can be kept")

    async def _payload(self) -> ServerFinding:
        most = self._link.max_payload
        if most < PAYLOAD_BYTES_MIN:
            text = f"max_payload is {most:,}; set it to at least {PAYLOAD_BYTES_MIN:,}"
            return ServerFinding("payload", ServerVerdict.WRONG, text)
        return ServerFinding("payload", ServerVerdict.GOOD, f"messages of up to {most:,} bytes")

    async def _access(self) -> ServerFinding:
        bare = replace(self._link.config, token=None, user=None, password=None, credentials=None)
        if await _lets_in(bare):
            text = "whoever reaches the server may read and write everything; set a token, users or nkeys"
            return ServerFinding("access", ServerVerdict.RISK, text)
        return ServerFinding("access", ServerVerdict.GOOD, "only with credentials")

    async def _tls(self) -> ServerFinding:
        url = self._link.client.connected_url
        if url is not None and url.scheme == "tls":
            return ServerFinding("TLS", ServerVerdict.GOOD, "the connection is encrypted")
        host = "" if url is None else url.hostname or ""
        if host in ("127.0.0.1", "::1", "localhost"):
            return ServerFinding("TLS", ServerVerdict.GOOD, "the connection does not leave this machine")
        text = "the connection is not encrypted: tokens and data can be read on the way"
        return ServerFinding("TLS", ServerVerdict.RISK, text)


async def _lets_in(config: NatsConfig) -> bool:
    """Whether somebody without credentials gets in."""
    link = NatsLink(replace(config, servers=tuple(map(without_credentials, config.servers))))
    try:
        await asyncio.to_thread(link.open)
    except Unavailable:
        return False
    finally:
        await asyncio.to_thread(link.close)
    return True


def check_server(config: NatsConfig, *, new_id: Callable[[], str]) -> list[ServerFinding]:
    """Look at the server that *config* names; blocks. `Unavailable` if it does not answer."""
    link = NatsLink(config)
    link.open()
    try:
        return link.begin(ServerCheck(link, new_id=new_id).findings()).result(CHECK_S_MAX)
    finally:
        link.close()
