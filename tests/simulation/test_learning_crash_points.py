"""The controller is killed before and after every write of its first cycles; the next one makes it good."""

import dataclasses

from learning_world import World

from ringrift.engine.ports import Claimant
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.testing.loop_audit import LoopAudit
from ringrift.testing.simulation import simulate

CONFIG = "square8_2p"
PROMOTIONS = 2
WRITES = {"create", "put", "update", "delete", "add", "cancel", "replace"}


class Killed(BaseException):
    """The process is gone; nothing may handle this."""


class Fuse:
    """Lets so many writes of a port through."""

    def __init__(self, at, *, after):
        self.at, self.after, self.writes = at, after, 0
        self.first_writes = set()  # of the passes: before each of them a worker has done something

    def around(self, port):
        return FusedPort(self, port)

    async def write(self, call, *args, **kwargs):
        self.writes += 1
        if self.writes == self.at and not self.after:
            raise Killed
        answer = await call(*args, **kwargs)
        if self.writes == self.at:
            raise Killed
        return answer


class FusedPort:
    def __init__(self, fuse, port):
        self._fuse, self._port = fuse, port

    def __getattr__(self, name):
        call = getattr(self._port, name)
        if name not in WRITES:
            return call

        async def write(*args, **kwargs):
            return await self._fuse.write(call, *args, **kwargs)

        return write


class EagerWorld(World):
    """Every model is far stronger than the last, so that a promotion takes few games."""

    def _train(self, order):
        artifacts, fields = super()._train(order)
        before = self.truth.strength.get(order.inputs.get("parent.safetensors"), -200.0)
        self.truth.strength[artifacts[0].digest] = before + 800.0
        return artifacts, fields


class OneLife:
    """A world without chance: the controller plans, one worker does all there is, and so on."""

    def __init__(self, fuse):
        self.world = EagerWorld(seed=7, configs=[CONFIG], faults=False)
        self.engine, self.fuse = self.world.engine(), fuse
        self.audit = LoopAudit(self.engine, CONFIG, self.world.rules, None)
        self.kills = 0

    async def live(self):
        fused = dataclasses.replace(
            self.engine, kv=self.fuse.around(self.engine.kv), queue=self.fuse.around(self.engine.queue)
        )
        try:
            await self._learn(fused)
        except Killed:
            self.kills += 1
            assert await self.audit.look() == []
            await self._learn(self.engine)
        assert await self.audit.look(recovered=True) == []

    async def _learn(self, engine):
        controller = Controller(engine, self.world.runtime, self.world.rules, announcer=Silent())
        await controller.open([CONFIG])
        while len(controller.state(CONFIG).promotions) < PROMOTIONS:
            await self.world._be_known(self.engine, "w1")
            self.fuse.first_writes.add(self.fuse.writes + 1)
            await controller.reconcile()
            await self._work()
            await self.world.runtime.sleep(1.0)

    async def _work(self):
        worker = Claimant(worker="w1", node="sim")
        while claims := await self.engine.queue.claim(worker, lease_s=1000.0):
            await self.world._carry_out(self.engine, "w1", claims[0])


def killed_at(number, *, after):
    life = OneLife(Fuse(number, after=after))
    simulate(life.live())
    return life


def test_every_game_is_exported_once():
    state = killed_at(0, after=False).audit.state
    exported = [shard for samples in state.samples.values() for shard in samples.shards]
    assert len(exported) == len(set(exported)) > 0


def test_every_write_may_be_the_last():
    straight = killed_at(0, after=False)
    assert straight.kills == 0
    promoted = straight.audit.state.promotions
    assert len(promoted) == PROMOTIONS
    writes = range(1, straight.fuse.writes + 1)
    # Before any other write there is in the store what is there after the one before it.
    before = [number for number in writes if number == 1 or number in straight.fuse.first_writes]
    assert len(before) > PROMOTIONS
    for after, numbers in ((False, before), (True, writes)):
        for number in numbers:
            assert killed_at(number, after=after).kills == 1
