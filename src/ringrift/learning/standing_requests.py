"""Workers that are set aside, told to them; and what people ask for about workers, on its way to the facts.

`set_aside/<worker>` is kept by the control process for as long as the worker is to claim nothing. A request
waits under `learning/worker_request/<config>/<worker>` until the one process that writes facts, or a command
that found none running, has made it a fact. Taking it in twice changes nothing.
"""

from __future__ import annotations

import msgspec

from ringrift.decoding import decoder_of
from ringrift.engine.encoding import UNREADABLE
from ringrift.engine.ports import Entry, KeyValue
from ringrift.errors import Corrupt
from ringrift.learning.facts import WorkerResumed, WorkerSetAside
from ringrift.learning.ledger import quoted
from ringrift.learning.state import ConfigState
from ringrift.learning.worker_standing import SetAside
from ringrift.work.worker_records import SET_ASIDE, SetAsideRecord, set_aside_key

PREFIX = "learning/worker_request/"

Request = WorkerSetAside | WorkerResumed
_decode = decoder_of(Request).decode


class StandingRequests:
    """The requests about workers that are not facts yet."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def add(self, config: str, request: Request) -> None:
        """Ask for *request*; the newest of a worker counts."""
        await self._kv.put(_key(config, request.worker), msgspec.json.encode(request))

    async def waiting(self, config: str) -> list[Request]:
        """The requests for *config*, oldest first."""
        found = [read_request(entry) for entry in await self._kv.entries(f"{PREFIX}{quoted(config)}/")]
        return sorted(found, key=lambda request: request.at_s)

    async def configs(self) -> set[str]:
        """The configs for which a request waits, as they stand in keys."""
        return {entry.key.removeprefix(PREFIX).partition("/")[0] for entry in await self._kv.entries(PREFIX)}

    async def is_waiting(self, config: str, worker: str) -> bool:
        return await self._kv.get(_key(config, worker)) is not None

    async def remove(self, config: str, request: Request) -> None:
        """The request is a fact; one that was replaced since stays."""
        entry = await self._kv.get(_key(config, request.worker))
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


def _key(config: str, worker: str) -> str:
    return f"{PREFIX}{quoted(config)}/{quoted(worker)}"
