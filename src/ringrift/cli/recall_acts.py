"""What `ringrift recall` does in a data folder: look, ask for a recall, and see it become a fact."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import msgspec

from ringrift.bootstrap.control_lease import in_control
from ringrift.cli.known_configs import configs_of, require_config
from ringrift.engine.ports import Engine, KeyValue
from ringrift.errors import ConfigError, Conflict
from ringrift.learning.facts import Recalled
from ringrift.learning.ledger import Ledger
from ringrift.learning.recall import known_workers
from ringrift.learning.recall_wishes import RecallWishes, is_news
from ringrift.learning.rules import configured_rules
from ringrift.learning.state import ConfigState
from ringrift.runtime import Runtime
from ringrift.settings import get_settings
from ringrift.work.worker_records import live_workers

TAKEN_IN_S_MAX = 15.0  # the control process plans every two seconds, or as soon as a long pass is over
LOOK_EVERY_S = 0.2
ID_DIGITS = 8
NAMES_SHOWN = 20


async def read_states(kv: KeyValue, config: str | None) -> list[ConfigState]:
    """What is known of *config*, or of all configs of the folder."""
    wanted = await configs_of(kv) if config is None else (await require_config(kv, config),)
    bucket = configured_rules(get_settings()).bucket
    return [(await Ledger.open(kv, each, bucket_rules=bucket)).state for each in wanted]


async def require_worker(kv: KeyValue, states: Sequence[ConfigState], worker: str) -> str:
    """Return *worker*; `ConfigError` that lists those there are if nobody of that name was ever here."""
    known = sorted({*known_workers(states), *(each.name for each in await live_workers(kv))})
    if worker in known:
        return worker
    told = f"there are {_listed(known)}" if known else "no worker has brought anything yet"
    raise ConfigError(f"no worker is called {worker!r}; {told}")


def require_model(states: Sequence[ConfigState], text: str) -> str:
    """The digest of the model that begins so, or has that number where there is one config."""
    models = [(state.config, model) for state in states for model in state.models.values()]
    found = {model.digest for _, model in models if model.digest.startswith(text)}
    if not found and len(states) == 1:
        found = {model.digest for _, model in models if str(model.number) == text}
    if len(found) == 1:
        return found.pop()
    known = [f"{model.digest[:12]} ({config} {model.number})" for config, model in models]
    told = f"there are {_listed(known)}" if known else "no model has been trained yet"
    what = f"{len(found)} models are" if found else "no model is"
    raise ConfigError(f"{what} called {text!r}; {told}")


def new_recall_id(recall: Recalled) -> str:
    """A short name that the same recall at the same moment gets again."""
    return f"r{hashlib.sha256(msgspec.json.encode(recall)).hexdigest()[:ID_DIGITS]}"


async def make_fact(engine: Engine, recall: Recalled, configs: Sequence[str], runtime: Runtime) -> bool:
    """Ask for *recall* and return whether it is a fact now; if not, the run takes it in when it can."""
    wishes = RecallWishes(engine.kv)

    async def take_in(kv: KeyValue, ledger: Ledger) -> None:
        asked, config = RecallWishes(kv), ledger.state.config
        for each in await asked.waiting(config):
            if is_news(ledger.state, each):
                await ledger.append(msgspec.structs.replace(each, at_s=runtime.now_s()))
            await asked.remove(config, each)

    for config in configs:
        await wishes.add(config, recall)
    return await through_the_writer(
        engine,
        configs,
        runtime,
        take_in=take_in,
        is_waiting=lambda config: wishes.is_waiting(config, recall.recall_id),
    )


async def through_the_writer(
    engine: Engine,
    configs: Sequence[str],
    runtime: Runtime,
    *,
    take_in: Callable[[KeyValue, Ledger], Awaitable[None]],
    is_waiting: Callable[[str], Awaitable[bool]],
) -> bool:
    """Let what was asked for become a fact of *configs*; return whether it is one now.

    Facts have one writer. Where a run is alive that is its control process, which is waited for; where none
    is, this one takes its place for a moment.
    """
    async with AsyncExitStack() as stack:
        try:
            mine = await stack.enter_async_context(in_control(engine, runtime))
        except Conflict:
            return await _is_taken_in(configs, runtime, is_waiting)
        bucket = configured_rules(get_settings()).bucket
        for config in configs:
            await take_in(mine.kv, await Ledger.open(mine.kv, config, bucket_rules=bucket))
    return True


async def _is_taken_in(
    configs: Sequence[str], runtime: Runtime, is_waiting: Callable[[str], Awaitable[bool]]
) -> bool:
    until_s = runtime.monotonic_s() + TAKEN_IN_S_MAX
    while runtime.monotonic_s() < until_s:
        if not any([await is_waiting(config) for config in configs]):
            return True
        await runtime.sleep(LOOK_EVERY_S)
    return False


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"
