"""What people ask of a run: pauses, recalls, and what becomes of workers.

Any process may write a request. The loop looks at the pauses each time it plans; the others are taken in by
the one process that writes facts. Taking one in twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ringrift.decoding import decoder_of
from ringrift.engine.encoding import UNREADABLE, decode_entry
from ringrift.engine.ports import Entry, KeyValue
from ringrift.engine.work_rules import ALL_WORK, HOLDS, held_groups, hold_key
from ringrift.errors import Corrupt
from ringrift.learning.facts.facts import Recalled, WorkerResumed, WorkerSetAside
from ringrift.learning.facts.ledger import quoted
from ringrift.learning.facts.records import SetAside
from ringrift.learning.facts.state import ConfigState
from ringrift.work.worker.records import SET_ASIDE, SetAsideRecord, set_aside_key

# Pauses: what people stopped on purpose, one config or the whole run, until they let it go on.
#
# A pause is a hold of the work queue, so that no worker of any process claims what it holds.


ALL = ALL_WORK


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Who paused it, when and why."""

    reason: str = ""
    by: str = ""
    at_s: float = 0.0

    @property
    def why(self) -> str:
        return self.reason or f"by {self.by or 'a user'}"


class Pauses:
    """The pauses of single configs, and of all (`*`)."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def set(self, config: str, pause: Pause) -> None:
        """From the moment this returns nothing of *config* is claimed."""
        await self._kv.put(hold_key(config), msgspec.json.encode(pause))

    async def get(self, config: str) -> Pause | None:
        entry = await self._kv.get(hold_key(config))
        return None if entry is None else decode_entry(entry, Pause)

    async def end(self, configs: Iterable[str]) -> list[str]:
        """Let *configs* go on; return those that were paused."""
        return [config for config in configs if await self._kv.delete(hold_key(config))]

    async def end_all(self) -> list[str]:
        """Let everything go on, also what is no longer in the run; return what was paused."""
        return await self.end(sorted(held_groups(entry.key for entry in await self._kv.entries(HOLDS))))

    async def read(self) -> ReadPauses:
        """All pauses as they are now."""
        return ReadPauses(await self._kv.entries(HOLDS))


class ReadPauses:
    """The pauses as they were at one moment."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = {entry.key: entry for entry in entries}

    def of(self, config: str) -> Pause | None:
        """The pause that holds *config*: that of the whole run before its own."""
        for place in (ALL, config):
            if (entry := self._entries.get(hold_key(place))) is not None:
                return decode_entry(entry, Pause)
        return None

    def why_paused(self, config: str) -> str | None:
        """The reason, or None if the config may work."""
        pause = self.of(config)
        return None if pause is None else pause.why


# A recall waits under `learning/recall_wish/<config>/<id>` until the control process, or a command that found
# none running, has made it a fact.


RECALL_PREFIX = "learning/recall_wish/"


def asked_about(prefix: str, entries: Iterable[Entry]) -> set[str]:
    """The configs for which a request under *prefix* waits, as they stand in keys."""
    keys = (entry.key for entry in entries if entry.key.startswith(prefix))
    return {key.removeprefix(prefix).partition("/")[0] for key in keys}


class RecallRequests:
    """The recalls, and withdrawals of recalls, that are not facts yet."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def add(self, config: str, recall: Recalled) -> None:
        """Ask for *recall*; the newest request of an id counts."""
        await self._kv.put(_recall_key(config, recall.recall_id), msgspec.json.encode(recall))

    async def waiting(self, config: str) -> list[Recalled]:
        """The requests for *config*, oldest first."""
        entries = await self._kv.entries(f"{RECALL_PREFIX}{quoted(config)}/")
        found = [decode_entry(entry, Recalled) for entry in entries]
        return sorted(found, key=lambda recall: recall.at_s)

    async def is_waiting(self, config: str, recall_id: str) -> bool:
        return await self._kv.get(_recall_key(config, recall_id)) is not None

    async def remove(self, config: str, recall: Recalled) -> None:
        """The request is a fact; one that was replaced since stays."""
        key = _recall_key(config, recall.recall_id)
        entry = await self._kv.get(key)
        if entry is not None and entry.value == msgspec.json.encode(recall):
            await self._kv.delete(key, revision=entry.revision)


def is_news(state: ConfigState, recall: Recalled) -> bool:
    """Whether *recall* would change what the facts say."""
    known = state.recalls.get(recall.recall_id)
    if known is None:
        return not recall.withdrawn
    return msgspec.structs.replace(known, at_s=recall.at_s) != recall


def _recall_key(config: str, recall_id: str) -> str:
    return f"{RECALL_PREFIX}{quoted(config)}/{quoted(recall_id)}"


# Workers that are set aside, told to them; and what people ask for about workers.
#
# `set_aside/<worker>` is kept by the control process for as long as the worker is to claim nothing. A request
# waits under `learning/worker_request/<config>/<worker>` until the one process that writes facts, or a
# command that found none running, has made it a fact.


WORKER_PREFIX = "learning/worker_request/"

Request = WorkerSetAside | WorkerResumed
_decode = decoder_of(Request).decode


class StandingRequests:
    """The requests about workers that are not facts yet."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def add(self, config: str, request: Request) -> None:
        """Ask for *request*; the newest of a worker counts."""
        await self._kv.put(_worker_key(config, request.worker), msgspec.json.encode(request))

    async def waiting(self, config: str) -> list[Request]:
        """The requests for *config*, oldest first."""
        found = [read_request(entry) for entry in await self._kv.entries(f"{WORKER_PREFIX}{quoted(config)}/")]
        return sorted(found, key=lambda request: request.at_s)

    async def is_waiting(self, config: str, worker: str) -> bool:
        return await self._kv.get(_worker_key(config, worker)) is not None

    async def remove(self, config: str, request: Request) -> None:
        """The request is a fact; one that was replaced since stays."""
        entry = await self._kv.get(_worker_key(config, request.worker))
        if entry is not None and entry.value == msgspec.json.encode(request):
            await self._kv.delete(entry.key, revision=entry.revision)


def read_request(entry: Entry) -> Request:
    """What is stored of a request; `Corrupt` with the key for anything else."""
    try:
        request: Request = _decode(entry.value)
    except UNREADABLE as error:
        raise Corrupt(entry.key, found=f"no request ({error})", advice="Delete the key") from None
    return request


def changes_standing(state: ConfigState, request: Request, now_s: float) -> bool:
    """Whether *request* would change what the facts say."""
    standing = state.workers.get(request.worker)
    is_aside = standing is not None and standing.is_set_aside(now_s)
    return is_aside == isinstance(request, WorkerResumed)


async def tell_set_aside(kv: KeyValue, aside: dict[str, SetAside]) -> None:
    """Make the records that workers look at be *aside*, no more and no less."""
    told = {entry.key: entry.value for entry in await kv.entries(SET_ASIDE)}
    wanted = {
        set_aside_key(name): msgspec.json.encode(
            SetAsideRecord(worker=name, reason=why.reason, since_s=why.since_s, until_s=why.until_s)
        )
        for name, why in aside.items()
    }
    for key, value in wanted.items():
        if told.get(key) != value:
            await kv.put(key, value)
    for key in told.keys() - wanted.keys():
        await kv.delete(key)


def _worker_key(config: str, worker: str) -> str:
    return f"{WORKER_PREFIX}{quoted(config)}/{quoted(worker)}"
