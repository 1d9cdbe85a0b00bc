"""The configs of a data folder, and an answer for one that is not among them."""

from __future__ import annotations

from difflib import get_close_matches

from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError
from ringrift.learning.ledger import known_configs as configs_with_facts
from ringrift.learning.run_choice import read_run_choice


async def configs_of(kv: KeyValue) -> tuple[str, ...]:
    """Those that were ever learned here, and those that a run was asked for."""
    chosen = await read_run_choice(kv)
    asked = () if chosen is None else chosen.configs
    return tuple(dict.fromkeys((*asked, *await configs_with_facts(kv))))


async def require_config(kv: KeyValue, config: str) -> str:
    """Return *config*; `ConfigError` that lists those there are if it is none of this folder."""
    known = await configs_of(kv)
    if config in known:
        return config
    if not known:
        raise ConfigError(f"{config!r} is not learned here; this folder has no configs yet")
    near = get_close_matches(config, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{config!r} is not learned here; there are {', '.join(known)}{hint}")
