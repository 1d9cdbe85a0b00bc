"""The embedded engine does what the reference does, whatever is asked of both."""

import asyncio
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from ringrift.engine.memory import memory_engine
from ringrift.engine.ports import Claimant, Completion, NewWork
from ringrift.engine.sqlite.engine import open_sqlite
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import RingRiftError
from ringrift.testing.simulation import ManualRuntime

CAPABILITIES = st.frozensets(st.sampled_from(["gpu", "torch"]))
KINDS = st.sampled_from(["play", "train"])
NODES = st.sampled_from([None, "n1", "n2"])
KEYS = st.sampled_from(["a", "a/b", "b"])


class Twins(RuleBasedStateMachine):
    """Two engines under one clock, asked the same."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ringrift-twins-"))
        self.loop = asyncio.new_event_loop()
        self.runtime = ManualRuntime()
        config = SqliteConfig(
            database=self.folder / "c.db", blob_dir=self.folder / "blobs", upkeep_s=1e9, call_wait_s=5
        )
        self.twins = [memory_engine(self.runtime), open_sqlite(config, self.runtime)]
        self.ids = 0

    def teardown(self):
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.twins[1].close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)

    def ask(self, call):
        """Ask both; they must agree on the answer or on the error."""
        answers = []
        for engine in self.twins:
            try:
                answers.append(self.loop.run_until_complete(call(engine)))
            except RingRiftError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def pass_time(self, seconds):
        self.runtime.advance(seconds)


class QueueTwins(Twins):
    items = Bundle("items")
    claims = Bundle("claims")

    @rule(
        target=items,
        new=st.builds(
            NewWork,
            kind=KINDS,
            priority=st.integers(-1, 1),
            requires=CAPABILITIES,
            node=NODES,
            attempts_max=st.integers(1, 2),
            delay_s=st.sampled_from([0.0, 0.0, 5.0]),
            idempotency_key=st.sampled_from([None, None, "x", "y"]),
            payload=st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
        ),
        after=st.lists(items, max_size=2),
    )
    def add(self, new, after):
        self.ids += 1
        item = replace(new, id=f"item-{self.ids}", after=tuple(after))
        answer = self.ask(lambda engine: engine.queue.add([item]))
        return answer[0] if isinstance(answer, list) else item.id

    @rule(
        target=claims,
        claimant=st.builds(
            Claimant,
            worker=st.sampled_from(["w1", "w2"]),
            node=st.sampled_from(["", "n1", "n2"]),
            capabilities=CAPABILITIES,
            kinds=st.none() | st.frozensets(KINDS),
        ),
        limit=st.integers(1, 3),
    )
    def claim(self, claimant, limit):
        return tuple(self.ask(lambda engine: engine.queue.claim(claimant, lease_s=10, limit=limit)))

    @rule(claims=claims)
    def complete_one(self, claims):
        for claim in claims[:1]:
            self.ask(
                lambda engine, claim=claim: engine.queue.complete(
                    claim.id, token=claim.token, result={"by": claim.id}
                )
            )

    @rule(claims=claims)
    def complete_many(self, claims):
        done = [Completion(id=claim.id, token=claim.token) for claim in claims]
        self.ask(lambda engine: engine.queue.complete_many(done))

    @rule(claims=claims, delay_s=st.sampled_from([0.0, 4.0]), final=st.booleans())
    def fail(self, claims, delay_s, final):
        for claim in claims:
            self.ask(
                lambda engine, claim=claim: engine.queue.fail(
                    claim.id, token=claim.token, error="e", retry_after_s=delay_s, final=final
                )
            )

    @rule(claims=claims)
    def release(self, claims):
        for claim in claims:
            self.ask(lambda engine, claim=claim: engine.queue.release(claim.id, token=claim.token))

    @rule(claims=claims)
    def renew(self, claims):
        for claim in claims:
            self.ask(lambda engine, claim=claim: engine.queue.renew(claim.id, token=claim.token, lease_s=7))

    @rule(item=items)
    def cancel(self, item):
        self.ask(lambda engine: engine.queue.cancel(item, reason="r"))

    @rule(target=items, item=items, kind=KINDS)
    def replace_item(self, item, kind):
        self.ids += 1
        new = NewWork(kind=kind, id=f"item-{self.ids}")
        self.ask(lambda engine: engine.queue.replace(item, new, reason="r"))
        return new.id

    @rule(item=items)
    def revive(self, item):
        self.ask(lambda engine: engine.queue.revive(item))

    @rule(item=items)
    def get(self, item):
        self.ask(lambda engine: engine.queue.get(item))

    @invariant()
    def same_view(self):
        if hasattr(self, "twins"):
            self.ask(lambda engine: engine.queue.counts())

    @rule()
    def dead(self):
        self.ask(lambda engine: engine.queue.dead())

    @rule()
    def read_on(self):
        """Ends since the last look; those of one moment may stand in another order."""
        cursors = self.__dict__.setdefault("cursors", {})

        async def call(engine):
            seen = []
            while found := await engine.queue.ended(after=cursors.get(id(engine), 0), limit=3):
                cursors[id(engine)] = found[-1].number
                seen += [(end.item.id, end.item.state) for end in found]
            return sorted(seen)

        self.ask(call)


class KvTwins(Twins):
    """Revisions need not be the same numbers on both: they are compared by when they were given."""

    writes = Bundle("writes")

    @initialize()
    def begin_revisions(self):
        self.revisions = ([], [])

    def write(self, call):
        """Ask both to store something; return which write this was, or None if both refused alike."""
        outcomes = []
        for engine, given in zip(self.twins, self.revisions, strict=True):
            try:
                revision = self.loop.run_until_complete(call(engine, given))
                assert not given or revision > given[-1]
                given.append(revision)
                outcomes.append(len(given) - 1)
            except RingRiftError as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
        return outcomes[0] if isinstance(outcomes[0], int) else None

    @rule(target=writes, key=KEYS, value=st.binary(max_size=3), ttl_s=st.sampled_from([None, 2.0, 20.0]))
    def create(self, key, value, ttl_s):
        return self.write(lambda engine, _: engine.kv.create(key, value, ttl_s=ttl_s))

    @rule(target=writes, key=KEYS, value=st.binary(max_size=3), ttl_s=st.sampled_from([None, 2.0]))
    def put(self, key, value, ttl_s):
        return self.write(lambda engine, _: engine.kv.put(key, value, ttl_s=ttl_s))

    @rule(target=writes, key=KEYS, write=writes)
    def update(self, key, write):
        if write is None:
            return None
        return self.write(lambda engine, given: engine.kv.update(key, b"u", revision=given[write]))

    @rule(key=KEYS)
    def delete(self, key):
        self.ask(lambda engine: engine.kv.delete(key))

    @rule(prefix=st.sampled_from(["", "a", "a/"]))
    def entries(self, prefix):
        async def call(engine):
            given = self.revisions[self.twins.index(engine)]
            found = await engine.kv.entries(prefix)
            return [(entry.key, entry.value, entry.expires_s, given.index(entry.revision)) for entry in found]

        self.ask(call)


TestQueueTwins = QueueTwins.TestCase
TestQueueTwins.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestKvTwins = KvTwins.TestCase
TestKvTwins.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
