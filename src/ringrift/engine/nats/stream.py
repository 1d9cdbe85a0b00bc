"""A JetStream stream as a table: each subject has one newest message, and its sequence number is a revision.

Writes are single messages or batches that are stored whole or not at all, each with the conditions under
which the server stores it: the number that the newest message of a subject must have, 0 for none.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from nats.aio.msg import Msg

from ringrift.engine.nats.link import (
    STILL_ON_ITS_WAY,
    WRONG_LAST_SEQUENCE,
    NatsLink,
    ServerRefused,
    translated,
)
from ringrift.errors import Corrupt, Unavailable
from ringrift.runtime import Runtime

EXPECTED, EXPECTED_OF = "Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject"
MESSAGE_ID, TTL = "Nats-Msg-Id", "Nats-TTL"
MARKER = "Nats-Marker-Reason"  # the server's own note that a message ran out or was removed
GONE = "Ringrift-Gone"  # ours
NAME = "Ringrift-Name"  # of a subject that is too long to be one
BATCH_MAX = 1_000  # messages; the server's limit
BATCHES_AT_ONCE = 8  # of this process; the server takes 50 for a stream, of all
AGAIN_S = 0.05
PAGE_TRIES = 3
PAGE = 500
NOT_FOUND, OTHER_SETTINGS = 10037, 10058
DUPLICATE_IN_BATCH = 10201
TOKEN_CHARS_MAX = 96
_HASHED = "~"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class ConditionFailed(Exception):
    """A condition of a write does not hold: somebody else wrote first."""


class AlreadyStored(Exception):
    """One of the messages of a batch was stored before, by its id; none was stored now."""


def token_of(text: str) -> str:
    """One word of a subject for any text; of a long one its hash."""
    if _PLAIN.fullmatch(text) and len(text) <= TOKEN_CHARS_MAX:
        return text
    token = "=" + quote(text, safe="").replace("%", "=").replace(".", "=2E").replace("~", "=7E")
    return token if len(token) <= TOKEN_CHARS_MAX else hashed(text)


def hashed(text: str) -> str:
    """A word that tells one text from others, and not what it is."""
    return _HASHED + hashlib.sha256(text.encode()).hexdigest()


def spelled(text: str) -> str:
    """Any text as one word that `text_of` reads, however long; for headers."""
    return text if _PLAIN.fullmatch(text) else "=" + "".join(f"={byte:02X}" for byte in text.encode())


def text_of(token: str) -> str | None:
    """What `token_of` or `spelled` was given; None of a hash."""
    if token.startswith(_HASHED):
        return None
    return unquote(token[1:].replace("=", "%")) if token.startswith("=") else token


@dataclass(frozen=True, slots=True)
class Stored:
    """The newest message of a subject."""

    subject: str
    seq: int
    data: bytes
    headers: Mapping[str, str]

    @property
    def is_gone(self) -> bool:
        """Whether it says that there is nothing any more."""
        return GONE in self.headers or MARKER in self.headers


@dataclass(frozen=True, slots=True)
class Write:
    """One message, and the condition on it; *of* names another subject whose number is asked for."""

    subject: str
    data: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    expected: int | None = None
    of: str = ""

    def all_headers(self) -> dict[str, str]:
        found = dict(self.headers)
        if self.expected is not None:
            found[EXPECTED] = str(self.expected)
        if self.of:
            found[EXPECTED_OF] = self.of
        return found


@dataclass(frozen=True, slots=True)
class StreamPage:
    """Messages in the order of their numbers; nothing else matches up to *seq*."""

    messages: tuple[Stored, ...]
    seq: int
    complete: bool


class Stream:
    """One stream; every call is made on the loop of the link."""

    def __init__(self, link: NatsLink, name: str, *, runtime: Runtime) -> None:
        self.link, self.name, self._runtime = link, name, runtime
        self._batches = asyncio.Semaphore(BATCHES_AT_ONCE)
        self._replicas = link.config.replicas

    async def ensure(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Make the stream as *settings* say, or take the one that is there; return what the server says."""
        config = {"name": self.name, "num_replicas": self._replicas, "allow_direct": True, **settings}
        with translated(f"the stream {self.name}"):
            try:
                found = await self.link.api(f"STREAM.CREATE.{self.name}", config)
            except ServerRefused as error:
                if error.code != OTHER_SETTINGS:
                    raise
                found = await self.link.api(f"STREAM.INFO.{self.name}", {})
        self._replicas = found["config"]["num_replicas"]  # it may have been made with more
        return found

    async def state(self) -> dict[str, Any]:
        """First and last number and the like, by the server that leads the stream."""
        with translated(f"the stream {self.name}"):
            found: dict[str, Any] = (await self.link.api(f"STREAM.INFO.{self.name}", {}))["state"]
        return found

    # --- reading ------------------------------------------------------------------------------------------

    async def get(self, subject: str) -> Stored | None:
        """The newest message of *subject*, also one that says that it is gone."""
        return await self._get({"last_by_subj": subject})

    async def at(self, seq: int) -> Stored | None:
        return await self._get({"seq": seq})

    async def _get(self, asked: Mapping[str, Any]) -> Stored | None:
        with translated(f"the stream {self.name}"):
            try:
                answer = await self.link.api(f"STREAM.MSG.GET.{self.name}", asked)
            except ServerRefused as error:
                if error.code == NOT_FOUND:
                    return None
                raise
        message = answer["message"]
        return Stored(
            message["subject"],
            message["seq"],
            base64.b64decode(message.get("data", "")),
            _headers(base64.b64decode(message.get("hdrs", ""))),
        )

    async def page(self, subject: str, *, after: int, limit: int) -> StreamPage:
        """Up to *limit* messages that match *subject*, behind number *after*.

        Any server of a cluster may answer, and may lag behind; what it does not know yet, its leader tells.
        """
        content = json.dumps({"seq": after + 1, "batch": limit, "next_by_subj": subject}).encode()
        for _ in range(PAGE_TRIES):
            with translated(f"the stream {self.name}"):
                found = await self.link.replies(f"$JS.API.DIRECT.GET.{self.name}", content)
                page = _page_of(found, after)
            if page is not None:
                break
        else:
            raise Unavailable(f"the stream {self.name}: pages come with holes", retry_after_s=1.0)
        if self._replicas == 1 or not page.complete:
            return page
        messages, seq = list(page.messages), page.seq
        while len(messages) < limit:
            newer = await self._get({"seq": seq + 1, "next_by_subj": subject})
            if newer is None:
                return StreamPage(tuple(messages), seq, complete=True)
            messages.append(newer)
            seq = newer.seq
        return StreamPage(tuple(messages), seq, complete=False)

    async def matching(self, *subjects: str) -> list[Stored]:
        """All messages that match, as of one moment: what changes while they are read is read again."""
        found: dict[str, Stored] = {}
        after = dict.fromkeys(subjects, 0)
        quiet: set[str] = set()
        while len(quiet) < len(subjects):
            for subject in subjects:
                page = await self.page(subject, after=after[subject], limit=PAGE)
                if page.messages:
                    quiet.clear()  # the others may have changed while this was read
                    found |= {each.subject: each for each in page.messages}
                    after[subject] = page.seq
                if page.complete:
                    quiet.add(subject)
        return [each for each in found.values() if not each.is_gone]

    # --- writing ------------------------------------------------------------------------------------------

    async def write(self, *writes: Write) -> int:
        """Store all of *writes* or none; return the number of the last.

        Raises `ConditionFailed`, and `AlreadyStored` if a message of a batch is there already, by its id.
        """
        with translated(f"the stream {self.name}"):
            try:
                answer = await self._send(writes)
            except ServerRefused as error:
                if error.code == STILL_ON_ITS_WAY:
                    # Whoever tries again at once meets the same one.
                    await self._runtime.sleep(self._runtime.rng.uniform(0.0, AGAIN_S))
                if error.code in (WRONG_LAST_SEQUENCE, STILL_ON_ITS_WAY):
                    raise ConditionFailed from None
                if error.code == DUPLICATE_IN_BATCH:
                    raise AlreadyStored from None
                raise
        seq: int = answer["seq"]
        return seq

    async def publish(self, write: Write) -> tuple[int, bool]:
        """Store one message that has an id; return its number, and whether it was there before."""
        with translated(f"the stream {self.name}"):
            answer = await self.link.request(write.subject, write.data, write.all_headers())
        return answer["seq"], bool(answer.get("duplicate"))

    async def _send(self, writes: Sequence[Write]) -> dict[str, Any]:
        if len(writes) == 1:
            return await self.link.request(writes[0].subject, writes[0].data, writes[0].all_headers())
        assert len(writes) <= BATCH_MAX, "whoever writes more does so in several batches"
        async with self._batches:
            return await self._send_batch(writes)

    async def _send_batch(self, writes: Sequence[Write]) -> dict[str, Any]:
        batch = self._runtime.new_id()
        for number, each in enumerate(writes, 1):
            headers = each.all_headers() | {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if number == len(writes):
                headers["Nats-Batch-Commit"] = "1"
                return await self.link.request(each.subject, each.data, headers)
            await self.link.client.publish(each.subject, each.data, headers=headers)
        raise AssertionError("a batch has a last message")

    async def purge(self, *, below: int) -> int:
        """Drop the messages with a smaller number; return how many went."""
        with translated(f"the stream {self.name}"):
            answer = await self.link.api(f"STREAM.PURGE.{self.name}", {"seq": below})
        purged: int = answer["purged"]
        return purged


def _page_of(replies: Sequence[Msg], after: int) -> StreamPage | None:
    """None where a message is missing: the connection may have been another in between."""
    *messages, end = replies
    if end.headers is None or end.headers.get("Status") not in ("204", "404"):
        said = (end.headers or {}).get("Description", "no status")
        raise ServerRefused(0, f"a page was broken off: {said}")
    found = tuple(
        Stored(
            message.headers["Nats-Subject"],
            int(message.headers["Nats-Sequence"]),
            message.data,
            message.headers,
        )
        for message in messages
        if message.headers is not None
    )
    # Each tells the number of the one before it.
    before = [int(message.headers["Nats-Last-Sequence"]) for message in messages if message.headers]
    if found and (
        before != [0, *(each.seq for each in found[:-1])]
        or int(end.headers.get("Nats-Last-Sequence", "0")) != found[-1].seq
    ):
        return None
    pending = int(end.headers.get("Nats-Num-Pending", "0"))
    return StreamPage(found, max((each.seq for each in found), default=after), complete=pending == 0)


def _headers(raw: bytes) -> dict[str, str]:
    """The headers of a message as the API gives them: lines behind a first one."""
    if not raw:
        return {}
    lines = raw.decode(errors="replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def damaged(subject: str, why: object) -> Corrupt:
    return Corrupt(subject, found=f"its content is damaged ({why})", advice="Restore a backup of the stream")
