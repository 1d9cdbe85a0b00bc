"""A fast run whose machine is lost at a random moment: every process is killed and its data folder is gone.

It comes back from its archive by `ringrift data restore`, and goes on. What it had is read from the lost
folder, which the product never sees again, and compared with what came back.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field

from loop_under_test import CONFIG, Loop, tiny_games, until

from ringrift.engine.opening import open_engine
from ringrift.learning.facts.facts import JobEnded, Promoted, RolledBack
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.state import fold
from ringrift.learning.models import read_champion
from ringrift.learning.plan.rules import learning_rules
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.testing.loop_audit import LoopAudit, damaged_blobs

NODE = "one"
RESTORE_S = 120.0


@dataclass
class LostMachine:
    """*archive* is the entry of a node; *states* reads every `state.json` without the product's help."""

    loop: Loop
    archive: dict
    states: callable
    seed: int = 1
    problems: list = field(default_factory=list)
    rounds: list = field(default_factory=list)  # what each loss cost
    _known: int = 0  # states of the archive when the machine was last restored

    def __post_init__(self):
        self._lots = random.Random(self.seed)
        nodes = {NODE: {}, "archive": self.archive}
        self.loop.variables |= {"RINGRIFT_NODES": json.dumps(nodes), "RINGRIFT_NODE_ID": NODE}

    async def lose_and_restore(self, *, states=2, wait_s=3.0):
        """Let it learn until there are some new states, lose it at a random moment, bring it back."""
        if not self.loop.is_up:
            self.loop.start()
        enough = self._known + states
        await until(lambda: self._has_states(enough), f"{states} new states", self.loop)
        await asyncio.sleep(self._lots.uniform(0.0, wait_s))
        self.loop.kill_everything()
        await self.loop.all_gone()
        lost = self.loop.folder / f"lost-{len(self.rounds)}"
        self.loop.data.rename(lost)
        before, newest = await read_run(lost), self.states()[-1]
        begun_s = time.monotonic()
        restored = await asyncio.to_thread(self._restore)
        restore_s = time.monotonic() - begun_s
        after = await read_run(self.loop.data)
        self._compare(before, after, newest, restored)
        self._known = len(self.states())
        self.rounds.append(
            {
                "facts": after.facts,
                "facts_lost": before.facts - after.facts,
                "games": len(after.games),
                "games_lost": len(before.games - after.games),
                "promotions": after.promotions,
                "promotions_lost": before.promotions - after.promotions,
                "restore_s": round(restore_s, 1),
            }
        )
        self.loop.start()
        await until(lambda: self._goes_on(after.facts), "the next result", self.loop)

    async def finish(self):
        """Stop it in peace; the audit of the whole run must find nothing."""
        if await self.loop.end():
            self.problems.append("the last stop failed")
        await self.loop.all_gone()
        rules = learning_rules(self.loop.learning)
        async with opened(self.loop.data) as engine:
            audit = LoopAudit(engine, CONFIG, rules, tiny_games)
            self.problems += await audit.look(recovered=True)
        self.problems += [f"damaged blob {name}" for name in damaged_blobs(self.loop.data / "blobs")]
        return self.problems

    async def _has_states(self, number):
        return len(self.states()) >= number and any(each.get("champions") for each in self.states())

    async def _goes_on(self, facts):
        async with opened(self.loop.data) as engine:
            new = (await read_facts(engine.kv, CONFIG))[facts:]
        return any(isinstance(fact, JobEnded) and fact.report is not None for fact in new)

    def _restore(self):
        command = [sys.executable, "-m", "ringrift.cli", "data", "restore", "archive", "--json"]
        done = subprocess.run(
            command,
            env={**os.environ, **self.loop.variables},
            cwd=self.loop.folder,
            capture_output=True,
            timeout=RESTORE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode() + self.loop.last_words()
        return json.loads(done.stdout)

    def _compare(self, before, after, newest, restored):
        def same(what, found, wanted):
            if found != wanted:
                self.problems.append(f"round {len(self.rounds)}: {what}: {found!r} instead of {wanted!r}")

        same("state", restored["state"]["digest"], newest["digest"])
        same("facts", after.facts, newest.get("facts", {}).get(CONFIG, 0))
        same("the facts themselves", after.raw, before.raw[: after.facts])
        same("champion of the archive", after.champion, newest.get("champions", {}).get(CONFIG))
        # The pointer may be one change behind the facts, as after any crash.
        same("champion", after.champion in (*after.champions[-2:], None), True)
        same("games", after.games, before.games_of(after.shards))
        same("missing", restored["missing"], [])
        same("failed", restored["failed"], {})


@dataclass
class RunRead:
    """A run as its folder tells it."""

    raw: list  # facts, as they are stored
    champion: str | None
    champions: list  # in order; one that came back by a roll-back is there again
    promotions: int
    shards: dict  # digest: ids of its games

    @property
    def facts(self):
        return len(self.raw)

    @property
    def games(self):
        return {game for games in self.shards.values() for game in games}

    def games_of(self, shards):
        return {game for digest in shards for game in self.shards[digest]}


class opened:  # noqa: N801 - a context manager
    """The engine of a folder that nothing runs on, or that somebody else runs on."""

    def __init__(self, data):
        self._settings = load_settings({"RINGRIFT_DATA_DIR": str(data)}).settings

    async def __aenter__(self):
        self._engine = await open_engine(self._settings, SystemRuntime())
        return self._engine

    async def __aexit__(self, *_):
        await self._engine.close()


async def read_run(data):
    """Read facts, champion, and the games of every shard that the facts name."""
    async with opened(data) as engine:
        facts = await read_facts(engine.kv, CONFIG)
        state = fold(CONFIG, facts, bucket_rules=learning_rules({}).bucket)
        pointer = await read_champion(engine.kv, CONFIG)
        shards = {}
        for digest in state.shards:
            path = await engine.blobs.path(digest)
            assert path is not None, f"{digest} is missing in {data}"
            shards[digest] = frozenset(tiny_games(path))
    promoted = [fact for fact in facts if isinstance(fact, Promoted)]
    changes = [fact for fact in facts if isinstance(fact, Promoted | RolledBack)]
    champions = [fact.model if isinstance(fact, Promoted) else fact.restored for fact in changes]
    return RunRead(facts, None if pointer is None else pointer.model, champions, len(promoted), shards)


def states_of_a_drive(drive):
    """Every state of an archive on a drive, the oldest first."""
    found = [json.loads(path.read_bytes()) for path in drive.glob("states/*/*/*/state.json")]
    return sorted(found, key=lambda state: state["at_s"])


def prepare_drive(drive):
    drive.mkdir()
    (drive / "ringrift-archive.json").write_text('{"format": 1}')
    return {"drive_path": str(drive)}
