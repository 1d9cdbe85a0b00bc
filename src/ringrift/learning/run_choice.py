"""What a run does: the configs it learns and the workers it has, as its control process settled them."""

from __future__ import annotations

import msgspec

from ringrift.engine.encoding import decode_entry
from ringrift.engine.ports import KeyValue

CHOICE_KEY = "learning/run_choice"


class RunChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the run does, each with the reason."""

    configs: tuple[str, ...]
    workers: int
    configs_why: str = ""
    workers_why: str = ""

    def __str__(self) -> str:
        many = "worker" if self.workers == 1 else "workers"
        configs = ", ".join(self.configs)
        return f"{configs} ({self.configs_why}) with {self.workers} {many} ({self.workers_why})"


async def read_run_choice(kv: KeyValue) -> RunChoice | None:
    """What the last run on this folder did."""
    entry = await kv.get(CHOICE_KEY)
    return None if entry is None else decode_entry(entry, RunChoice)


async def write_run_choice(kv: KeyValue, choice: RunChoice) -> None:
    await kv.put(CHOICE_KEY, msgspec.json.encode(choice))
