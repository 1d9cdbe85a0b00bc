"""Recalls: what leaves, what follows, and that a withdrawal brings all of it back."""

import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_story import RULES, Story, artifact

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import WorkState
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.facts.facts import Promoted, Recalled, RolledBack
from ringrift.learning.facts.ledger import Ledger, remember_config
from ringrift.learning.facts.records import ShardState, shards_in_window
from ringrift.learning.judging.promotion import judge
from ringrift.learning.judging.ratings import rate
from ringrift.learning.models import read_champion
from ringrift.learning.plan.orders import Snapshot, export_order
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.trust import recall_effect
from ringrift.learning.requests import RecallRequests
from ringrift.testing.simulation import SimulatedRuntime, simulate

CONFIG = "square8_2p"


class ToldStory(Story):
    """Keeps its facts, and lets another worker bring games."""

    def __init__(self):
        self.facts = []
        super().__init__(CONFIG)

    def write(self, fact):
        self.facts.append(fact)
        return super().write(fact)

    def end(self, job_id, *artifacts, worker="w1", **fields):
        fields.setdefault("generator_sha256", self.state.champion)
        if worker == "w1":
            return super().end(job_id, *artifacts, **fields)
        written, self.write = self.write, lambda fact: fact  # take the fact before it is written
        try:
            fact = super().end(job_id, *artifacts, **fields)
        finally:
            self.write = written
        report = msgspec.structs.replace(fact.report, worker=worker)
        return self.write(msgspec.structs.replace(fact, report=report))

    def promote(self, model, previous=None):
        self.now_s += 1
        self.write(
            Promoted(at_s=self.now_s, model=model, previous=previous, reason="won", evidence={"llr": 3})
        )

    def recall(self, **what):
        self.now_s += 1
        withdrawn = what.pop("withdrawn", False)
        self.write(Recalled(at_s=self.now_s, recall_id="r1", reason="bad", withdrawn=withdrawn, **what))


def two_champions():
    """Two shards, two models, the second promoted over the first, both rated against random."""
    story = ToldStory()
    first_shard = story.play()
    story.check()
    story.export()
    first = story.train()
    story.evaluate(first, "random", wins=60, losses=4)
    story.promote(first)
    second_shard = story.play()
    story.check()
    story.export()
    second = story.train()
    story.evaluate(second, first, wins=50, losses=14)
    story.evaluate(second, "random", wins=62, losses=2)
    story.promote(second, first)
    return story, (first_shard, second_shard), (first, second)


def plan_of(story):
    return plan(Snapshot(story.state, RULES, story.now_s))


def test_recalled_games_leave_window_bucket_and_totals_and_come_back():
    story, (first_shard, second_shard), (first, _) = two_champions()
    before = copy.deepcopy(story.state)
    story.recall(model=first)  # it played the second shard
    state = story.state
    assert state.shards[second_shard].state is ShardState.RECALLED
    window = shards_in_window(reversed(state.shards.values()), state.rows, base=10_000)
    assert [shard.digest for shard in window] == [first_shard]
    assert state.rows == before.rows - 2000
    assert state.bucket.earned == before.bucket.earned - 2000 * 4
    story.recall(model=first, withdrawn=True)
    assert (state.rows, state.games) == (before.rows, before.games)
    assert state.bucket == before.bucket
    assert state.shards == before.shards
    assert state.matches == before.matches


def test_recalled_matches_leave_ratings_and_evidence_and_come_back():
    story, _, (first, second) = two_champions()
    evidence = judge(second, first, story.state.matches, rules=RULES.promotion).evidence
    rated = rate(story.state.matches)
    assert evidence["head_to_head"]["games"] == 64
    story.recall(worker="w1")
    assert rate(story.state.matches).keys() < rated.keys()
    assert judge(second, first, story.state.trusted_matches(), rules=RULES.promotion).games
    left = judge(second, first, story.state.trusted_matches(), rules=RULES.promotion).evidence
    assert left["head_to_head"]["games"] == 0
    story.recall(worker="w1", withdrawn=True)
    assert rate(story.state.matches) == rated


def test_models_are_listed_with_the_way_they_are_touched():
    story, (first_shard, second_shard), (first, second) = two_champions()
    everything = recall_effect(story.state, Recalled(at_s=0, recall_id="r", reason="", worker="w1"))
    assert {shard.shard for shard in everything.shards} == {first_shard, second_shard}
    assert [(model.model, model.how) for model in everything.models] == [
        (first, "trained"),
        (second, "trained"),
    ]
    assert everything.champion_is == "trained"
    assert everything.promotions == (first, second)

    by_first = recall_effect(story.state, Recalled(at_s=0, recall_id="r", reason="", model=first))
    assert [(model.model, model.how) for model in by_first.models] == [
        (first, "recalled"),
        (second, "trained"),
    ]
    assert (by_first.games, by_first.rows) == (50, 2000)

    by_second = recall_effect(story.state, Recalled(at_s=0, recall_id="r", reason="", model=second))
    assert by_second.champion_is == "recalled"
    assert not by_second.shards


def test_a_child_of_a_touched_model_descends_from_it():
    story = ToldStory()
    bad = story.play()
    story.check()
    story.export()
    first = story.train()
    until_s = story.now_s - 5
    story.play()
    story.check()
    shards = [shard for shard in story.state.shards.values() if shard.digest != bad]
    from_clean = story.issue("export", export_order(story.state, RULES, shards))
    story.end(from_clean, artifact("samples", "clean", rows=2000, games=50))
    second = story.train()
    found = recall_effect(story.state, Recalled(at_s=0, recall_id="r", reason="", until_s=until_s))
    assert [(model.model, model.how) for model in found.models] == [(first, "trained"), (second, "descends")]


def test_a_recalled_champion_is_taken_back_at_once_and_the_evidence_is_kept():
    story, _, (first, second) = two_champions()
    story.play()
    story.check()
    story.export()
    story.train()  # a candidate waits to be judged; the recall does not wait for that
    story.recall(model=second)
    (decided,) = plan_of(story).decided
    assert isinstance(decided, RolledBack)
    assert (decided.model, decided.restored) == (second, first)
    assert decided.evidence["promotion"]["evidence"] == {"llr": 3}
    assert decided.evidence["recalls"] == [{"id": "r1", "reason": "bad"}]
    story.write(decided)
    assert story.state.champion == first
    assert not any(isinstance(fact, RolledBack) for fact in plan_of(story).decided)


def test_a_withdrawn_recall_gives_the_champion_its_place_back():
    story, _, (first, second) = two_champions()
    story.recall(model=second)
    story.write(plan_of(story).decided[0])
    story.recall(model=second, withdrawn=True)
    (decided,) = plan_of(story).decided
    assert isinstance(decided, Promoted)
    assert (decided.model, decided.previous) == (second, first)
    story.write(decided)
    assert story.state.champion == second
    assert plan_of(story).decided == []


def test_a_withdrawn_recall_does_not_turn_out_a_newer_champion():
    story, _, (first, second) = two_champions()
    story.recall(model=second)
    story.write(plan_of(story).decided[0])
    story.play()
    story.check()
    story.export()
    third = story.train()
    story.promote(third, first)
    story.recall(model=second, withdrawn=True)
    assert plan_of(story).decided == []
    assert story.state.champion == third


def test_without_a_predecessor_games_go_on_without_a_network():
    story = ToldStory()
    story.play()
    story.check()
    story.export()
    first = story.train()
    story.promote(first)
    story.recall(model=first)
    for _ in range(2):
        story.write(plan_of(story).decided[0])
    assert story.state.champion is None
    assert story.state.generator is None
    selfplay = next(wanted for wanted in plan_of(story).wanted if wanted.kind == "selfplay")
    assert "model" not in selfplay.order.params


def test_nothing_is_trained_on_samples_that_hold_recalled_games():
    story, _, _ = two_champions()
    story.play(rows=4000)
    bad = story.play(rows=4000)
    story.check()
    story.export()
    assert "train" in {wanted.kind for wanted in plan_of(story).wanted}
    story.recall(from_s=story.state.shards[bad].made_s)
    made = plan_of(story)
    assert "train" not in {wanted.kind for wanted in made.wanted}
    (export,) = [wanted for wanted in made.wanted if wanted.kind == "export"]
    assert bad not in export.order.inputs.values()


def test_games_that_come_later_from_a_recalled_worker_are_recalled_too():
    story, _, _ = two_champions()
    story.recall(worker="w2")
    job = story.issue("selfplay", plan_of(story).wanted[-1].order)
    story.end(job, artifact("shard", "late", games=10, rows=400), worker="w2")
    assert story.state.shards["late"].state is ShardState.RECALLED
    assert not story.state.unchecked()


# --- the running controller -----------------------------------------------------------------------------


def with_controller(story, work):
    """Give *work* a controller over the facts of *story* in a real ledger."""
    runtime, store = SimulatedRuntime(seed=1), MemoryStore()

    async def main():
        engine = memory_engine(runtime, store)
        await remember_config(engine.kv, CONFIG)
        ledger = await Ledger.open(engine.kv, CONFIG, bucket_rules=RULES.bucket)
        for fact in story.facts:
            await ledger.append(fact)
        controller = Controller(engine, runtime, RULES, announcer=Silent())
        await controller.open([CONFIG])
        await work(engine, controller)

    simulate(main())


def test_a_wish_becomes_a_fact_once_and_the_pointer_follows():
    story, _, (first, second) = two_champions()

    async def work(engine, controller):
        recall_requests = RecallRequests(engine.kv)
        await recall_requests.add(CONFIG, Recalled(at_s=1.0, recall_id="r7", reason="bad", model=second))
        await controller.reconcile()
        state = controller.state(CONFIG)
        assert state.recalls["r7"].model == second
        assert state.champion == first
        assert (await read_champion(engine.kv, CONFIG)).model == first
        assert not await recall_requests.is_waiting(CONFIG, "r7")
        facts = state.facts
        await recall_requests.add(CONFIG, Recalled(at_s=1.0, recall_id="r7", reason="bad", model=second))
        await controller.reconcile()
        assert controller.state(CONFIG).facts == facts

    with_controller(story, work)


def test_a_training_on_recalled_games_is_ended():
    story, _, _ = two_champions()
    story.play(rows=8000)
    story.check()
    story.export()
    job = story.issue("train", next(w for w in plan_of(story).wanted if w.kind == "train").order)

    async def work(engine, controller):
        request = Recalled(at_s=1.0, recall_id="r7", reason="bad", worker="w1")
        await RecallRequests(engine.kv).add(CONFIG, request)
        await controller.reconcile()
        assert (await engine.queue.get(job)).state is WorkState.CANCELLED
        await controller.reconcile()
        assert job not in controller.state(CONFIG).open_jobs
        assert controller.state(CONFIG).failures["train"].in_a_row == 0

    with_controller(story, work)


@pytest.mark.parametrize("field", ["worker", "model", "from_s"])
def test_a_recall_that_names_nothing_of_this_config_changes_nothing(field):
    story, _, _ = two_champions()
    before = copy.deepcopy(story.state)
    story.recall(**{field: 1e12 if field == "from_s" else "nobody"})
    assert (story.state.shards, story.state.matches) == (before.shards, before.matches)


recalls = st.fixed_dictionaries(
    {},
    optional={
        "worker": st.sampled_from(["w1", "nobody"]),
        "model": st.sampled_from(["model0004", "model0010", "nobody"]),
        "from_s": st.floats(1000, 1200),
        "until_s": st.floats(1000, 1200),
    },
)


@given(st.lists(recalls, min_size=1, max_size=4))
def test_whatever_was_recalled_is_back_when_all_recalls_are_withdrawn(wanted):
    story, _, _ = two_champions()
    before = copy.deepcopy(story.state)
    for withdrawn in (False, True):
        for number, what in enumerate(wanted):
            story.now_s += 1
            story.write(
                Recalled(at_s=story.now_s, recall_id=f"r{number}", reason="", withdrawn=withdrawn, **what)
            )
            state = story.state
            left = [shard for shard in state.shards.values() if shard.state is ShardState.CHECKED]
            assert state.rows == sum(shard.rows for shard in left)
            assert state.bucket.earned == pytest.approx(4 * state.rows)
    assert (story.state.shards, story.state.matches) == (before.shards, before.matches)
    assert story.state.bucket == before.bucket
