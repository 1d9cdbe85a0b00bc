"""A champion that learned from recalled games gives its place to the last one that did not."""

import msgspec
import pytest
from feedback_kit import promote
from hypothesis import given
from hypothesis import strategies as st
from learning_story import RULES, Story, artifact

from ringrift.learning.facts.facts import Promoted, Recalled, Rejected, RolledBack
from ringrift.learning.facts.records import ModelState
from ringrift.learning.plan.orders import Snapshot, export_order
from ringrift.learning.plan.plan import plan, training_parent
from ringrift.learning.plan.training_data import tainted_models
from ringrift.learning.plan.trust import TAINTED_REASON, recall_effect
from ringrift.learning.replay import replay

LIST = msgspec.structs.replace(RULES, recalled_models="list")


class Line(Story):
    """Champions, each trained on one shard of its own worker's."""

    def grow(self, worker):
        self.worker = worker
        digest = self.play()
        self.check()
        shards = [self.state.shards[digest]]
        job = self.issue("export", export_order(self.state, RULES, shards))
        self.end(job, artifact("samples", f"samples{self._number:04d}", rows=1000, games=10))
        return self.train()

    def crown(self, worker):
        model = self.grow(worker)
        promote(self, model)
        return model

    def recall(self, worker, *, withdrawn=False):
        self.now_s += 1.0
        self.write(
            Recalled(
                at_s=self.now_s, recall_id=worker, reason="bad memory", worker=worker, withdrawn=withdrawn
            )
        )

    def settle(self, rules=RULES):
        """Write what is decided until nothing more is; return the changes of the champion."""
        changes = []
        for _ in range(20):
            decided = plan(Snapshot(self.state, rules, self.now_s)).decided
            if not decided:
                return changes
            for fact in decided:
                self.write(fact)
            changes += [each for each in decided if isinstance(each, RolledBack | Promoted | Rejected)]
        raise AssertionError("it does not settle")


def test_the_champion_goes_back_to_the_last_one_without_recalled_games():
    line = Line()
    first, second, third = (line.crown(worker) for worker in ("good", "bad", "other"))
    line.recall("bad")
    (turned,) = line.settle()
    assert (turned.model, turned.restored, turned.reason) == (third, first, TAINTED_REASON)
    assert turned.evidence["models"] == [second]
    assert turned.evidence["recalls"] == [{"id": "bad", "reason": "bad memory"}]
    assert len(turned.evidence["shards"]) == 1
    assert line.state.champion == first
    assert training_parent(line.state, RULES).digest == first, "nothing learns on from them either"
    odd = [each.what for each in replay(line.state.config, line.facts, RULES)]
    assert f"rolledback {third[:12]}" not in odd, "the decision follows from the facts"


def test_who_would_take_the_place_is_told_before():
    line = Line()
    first, _ = line.crown("good"), line.crown("bad")
    asked = Recalled(at_s=line.now_s, recall_id="x", reason="", worker="bad")
    effect = recall_effect(line.state, asked)
    assert (effect.champion_is, effect.successor) == ("trained", first)
    everybody = msgspec.structs.replace(asked, worker=None, from_s=0.0)
    assert recall_effect(line.state, everybody).successor is None


def test_it_only_lists_them_if_that_is_set():
    line = Line()
    for worker in ("good", "bad"):
        line.crown(worker)
    champion = line.state.champion
    line.recall("bad")
    assert line.settle(LIST) == []
    assert line.state.champion == champion
    assert tainted_models(line.state) == {champion}


def test_without_an_untainted_one_the_champion_stays_and_learning_goes_on():
    line = Line()
    line.crown("bad")
    champion = line.crown("good")
    line.recall("bad")
    assert line.settle() == []
    assert line.state.champion == champion
    assert training_parent(line.state, RULES).digest == champion
    candidate = line.grow("good")
    assert line.settle() == [], "its successor is judged by its games, like any other"
    assert line.state.models[candidate].state is ModelState.EVALUATING


def test_training_goes_back_to_before_the_recalled_games_and_nobody_judges_what_came_of_them():
    line = Line()
    first, good, bad = line.crown("good"), line.grow("other"), line.grow("bad")
    later = line.grow("good")
    line.recall("bad")
    assert line.settle() == []
    assert line.state.reset.model == good
    assert "recalled" in line.state.reset.reason
    assert [line.state.models[each].state for each in (good, bad, later)] == [
        ModelState.EVALUATING,
        ModelState.ARCHIVED,
        ModelState.ARCHIVED,
    ]
    assert (line.state.champion, line.state.generator) == (first, good)
    assert training_parent(line.state, RULES).digest == good
    again = line.grow("other")
    assert line.state.models[again].parent == good
    assert line.settle() == []
    assert line.state.generator == again
    assert not line.state.restarts


def test_a_withdrawn_recall_gives_the_place_back():
    line = Line()
    line.crown("good")
    second = line.crown("bad")
    line.recall("bad")
    line.settle()
    line.recall("bad", withdrawn=True)
    (back,) = line.settle()
    assert (back.model, line.state.champion) == (second, second)


@given(
    workers=st.lists(st.sampled_from("abc"), min_size=1, max_size=6),
    recalls=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=6),
)
def test_recalls_always_settle_and_never_leave_a_tainted_champion_beside_a_clean_one(workers, recalls):
    line = Line()
    for worker in workers:
        line.crown(worker)
    for worker, withdrawn in recalls:
        line.recall(worker, withdrawn=withdrawn)
        line.settle()
        bad = tainted_models(line.state)
        if line.state.champion in bad:
            before = [change.model for change in line.state.promotions]
            usable = [m for m in before if line.state.models[m].state is not ModelState.ROLLED_BACK]
            earlier = usable[: usable.index(line.state.champion)]
            assert not [m for m in earlier if m not in bad]


@pytest.mark.parametrize("rules", [RULES, LIST])
def test_a_run_without_recalls_is_not_touched(rules):
    line = Line()
    line.crown("good")
    assert line.settle(rules) == []
