"""What was earned, noted and believed stays what it was, whatever changes later."""

import msgspec
from learning_story import RULES, Story

from ringrift.learning.facts.facts import Noted, Recalled
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.facts.state import NOTES_MAX, fold
from ringrift.learning.plan.rules import rules_note
from ringrift.learning.tuning import tuned_rules


class RecordedStory(Story):
    """May change its rules."""

    def go_by(self, **bucket):
        rules = msgspec.structs.replace(RULES, bucket=msgspec.structs.replace(RULES.bucket, **bucket))
        self.write(rules_note(self.state, rules, at_s=self.now_s))

    def learn(self, rows):
        self.play(rows=rows)
        self.check()


def test_rows_keep_what_they_earned_when_the_price_changes():
    story = RecordedStory()
    story.go_by(steps_per_row=4.0)
    story.learn(rows=1000)
    story.go_by(steps_per_row=1.0)
    story.learn(rows=500)
    assert story.state.bucket.earned == 4000 + 500
    for rules in (BucketRules(steps_per_row=1.0), BucketRules(steps_per_row=9.0)):
        again = fold(story.state.config, story.facts, bucket_rules=rules)
        assert again.bucket == story.state.bucket
        assert again.bucket_rules.steps_per_row == 1.0


def test_a_recall_takes_back_what_its_rows_earned_and_a_withdrawal_gives_back_the_same():
    story = RecordedStory()
    story.go_by(steps_per_row=4.0)
    story.learn(rows=1000)
    story.go_by(steps_per_row=1.0)
    before = story.state.bucket
    recall = Recalled(at_s=story.now_s, recall_id="r", reason="bad", worker="w1")
    story.write(recall)
    assert story.state.bucket.earned == 0
    story.write(msgspec.structs.replace(recall, withdrawn=True))
    assert story.state.bucket == before


def test_facts_from_before_the_first_noted_rules_go_by_these():
    story = RecordedStory()
    story.learn(rows=1000)
    story.go_by(steps_per_row=2.0)
    again = fold(story.state.config, story.facts, bucket_rules=BucketRules(steps_per_row=9.0))
    assert again.bucket.earned == 2000


def chatter(story):
    for number in range(NOTES_MAX + 1):
        story.write(Noted(at_s=story.now_s, topic="chatter", text=str(number)))


def test_rules_and_findings_are_remembered_however_much_is_noted_after_them():
    story = RecordedStory()
    story.go_by(steps_per_row=4.0)
    found = {"kind": "halving", "best_params": {"lr": 0.5}}
    story.write(Noted(at_s=story.now_s, topic="tuned", text="better", details=found))
    story.write(Noted(at_s=story.now_s, topic="tuned", text="heuristic", details={"kind": "cmaes"}))
    chatter(story)
    assert rules_note(story.state, RULES, at_s=story.now_s) is None
    assert tuned_rules(story.state, RULES).learning_rate == 0.5


def test_the_newest_of_several_searches_counts():
    story = RecordedStory()
    for kind, rate in (("halving", 0.5), ("pbt", 0.25), ("halving", 0.125)):
        found = {"kind": kind, "best_params": {"lr": rate}}
        story.write(Noted(at_s=story.now_s, topic="tuned", text="better", details=found))
        assert tuned_rules(story.state, RULES).learning_rate == rate
