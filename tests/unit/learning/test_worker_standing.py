"""Whose games are compared, who was right, and who is set aside for it."""

import msgspec
import pytest
from learning_story import RULES, Story, artifact

from ringrift.learning.doctor.checks import comparisons
from ringrift.learning.doctor.findings import ExaminationContext
from ringrift.learning.facts.facts import Recalled, WorkerResumed, WorkerSetAside
from ringrift.learning.facts.records import Comparison, ShardState, Vote
from ringrift.learning.facts.results import problem_with
from ringrift.learning.judging.feedback import RatingCurves
from ringrift.learning.plan.orders import outlook, selfplay_order
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.rules import configured_rules
from ringrift.learning.plan.trust import BY_PERSON, BY_PLAN, suspect_since, worker_for
from ringrift.learning.status_view import STARTS_SHOWN, start_status, worker_statistics
from ringrift.settings import load_settings
from ringrift.work.job.protocol import JobOrder
from ringrift.work.worker.records import WorkerRecord

ORDER = JobOrder(config="square8_2p", params={})


class Games(Story):
    """A run of several workers."""

    def play_by(self, worker, *, machine="here", program=""):
        self.worker = worker
        rules = msgspec.structs.replace(RULES, selfplay_program=program)
        job = self.issue("selfplay", selfplay_order(self.state, rules, simulations=32))
        digest = f"shard{self._number:04d}"
        self.end(job, artifact("shard", digest, games=20, rows=800), machine=machine)
        return digest

    def plan(self, **rules):
        changed = RULES if not rules else type(RULES)(**{**fields_of(RULES), **rules})
        return plan(outlook(self.state, changed, RatingCurves(), now_s=self.now_s))

    def wanted(self, **rules):
        return next((each for each in self.plan(**rules).wanted if each.kind == "recompute"), None)

    def compare(self, by, *, agrees, **rules):
        """Carry out the comparison that the plan wants."""
        wanted = self.wanted(**rules)
        job = self.issue("recompute", wanted.order)
        self.worker = by
        first = None if agrees else {"game": "g1", "move": 3, "what": "policy off by 0.5"}
        self.end(job, agrees=agrees, games=4, moves=100, first_difference=first)
        return wanted.order

    def decide(self):
        for fact in self.plan().decided:
            self.write(fact)
        return self.facts[-1]


def fields_of(rules):
    return {name: getattr(rules, name) for name in rules.__struct_fields__}


VOTES = {
    "agreed": ([("b", True)], set(), False),
    "undecided": ([("b", False)], None, False),
    "two find the player wrong": ([("b", False), ("c", False)], {"a"}, False),
    "the third finds the second wrong": ([("b", False), ("c", True)], {"b"}, False),
    "the player does not find its own games": ([("b", False), ("a", False)], {"a"}, False),
    "the player stays with it": ([("b", False), ("a", True)], None, False),
    "the other takes it back": ([("b", False), ("a", True), ("b", True)], {"b"}, False),
    "both stay with it": ([("b", False), ("a", True), ("b", False)], set(), True),
    "alone, and it finds its games": ([("a", True)], set(), False),
    "alone, and it does not": ([("a", False)], {"a"}, False),
}


@pytest.mark.parametrize("what", VOTES)
def test_who_was_right(what):
    votes, at_fault, disputed = VOTES[what]
    found = Comparison("s", "a", ORDER, [Vote(*vote, "text") for vote in votes]).judgment()
    assert (None if found is None else set(found.at_fault)) == at_fault
    assert found is None or found.is_disputed is disputed


def test_the_next_to_be_asked_is_somebody_else_then_the_player_then_the_other_again():
    comparison = Comparison("s", "a", ORDER, [Vote("b", False, "")])
    workers = [record(name) for name in "abc"]
    assert worker_for("j", comparison.not_by(), workers) == "c"
    assert worker_for("j", comparison.not_by(), workers[:2]) == "a"
    comparison.votes.append(Vote("a", True, ""))
    assert worker_for("j", comparison.not_by(), workers[:2]) == "b"
    assert worker_for("j", comparison.not_by(), [record("a", set_aside="bad"), record("c", kinds=())]) is None


def record(name, *, kinds=None, set_aside=""):
    return WorkerRecord(
        name=name, node="n", pid=1, slots=1, busy=0, kinds=kinds, capabilities=(), cpus=1, gpus=0,
        memory_mb=1, memory_free_mb=1, load=0.0, started_s=0.0, at_s=0.0, set_aside=set_aside,
    )  # fmt: skip


def test_the_first_games_of_a_worker_are_compared_and_then_a_share_of_them():
    story = Games()
    shard = story.play_by("a")
    order = story.wanted().order
    assert order.not_by == ("a",)
    assert shard in order.inputs.values()
    assert order.params["played_on"] == "here"
    assert story.wanted(recompute_share=0.0) is None
    story.compare("b", agrees=True)
    assert story.state.workers["a"].compared == 1
    for _ in range(9):
        story.play_by("a")
        assert story.wanted(recompute_share=0.1) is None
    story.play_by("a")
    assert story.wanted(recompute_share=0.1) is not None
    assert story.wanted(recompute_share=0.01) is None
    story.now_s += 3601
    assert "long ago" in story.wanted(recompute_share=0.01).reason


@pytest.mark.parametrize("said", ["", "a machine that nobody has"])
def test_the_worker_says_what_machine_it_is_and_not_its_job(said):
    story = Games()
    story.measured = "as the worker measured"
    story.play_by("a", machine=said, program="ringrift")
    assert story.wanted().order.params["played_on"] == "as the worker measured"


@pytest.mark.parametrize("machine", ["", "a machine that nobody has"])
def test_a_worker_escapes_no_comparison_by_what_it_says_of_its_machine(machine):
    story = Games()
    shard = story.play_by("a", machine=machine, program="ringrift")
    order = story.wanted().order
    assert shard in order.inputs.values()
    assert suspect_since(story.state, story.state.workers["a"]) == story.state.shards[shard].made_s


@pytest.mark.parametrize(("program", "machine"), [("user", "here"), ("user", ""), ("", "")])
def test_games_of_a_program_of_the_users_own_are_counted_and_said_to_be_never_compared(program, machine):
    story = Games()
    story.play_by("a", machine=machine, program=program)
    assert story.state.workers["a"].games == 20
    assert story.wanted() is None
    (told,) = worker_statistics([story.state], [], story.now_s)
    assert (told.games, told.games_of_user_program) == (20, 20)


def test_whose_program_plays_follows_from_the_settings_unless_they_say_it():
    mine = {"RINGRIFT_JOBS": '{"selfplay": {"command": ["my_player"]}}'}
    assert configured_rules(load_settings({}).settings).selfplay_program == "ringrift"
    assert configured_rules(load_settings(mine).settings).selfplay_program == "user"
    said = {"RINGRIFT_LEARNING": '{"selfplay_program": "user"}'}
    assert configured_rules(load_settings(said).settings).selfplay_program == "user"


def a_story_of_two_faults():
    story = Games()
    for name in ("b", "c", "a"):
        story.play_by(name)
    for _ in range(3):  # whoever's turn it is
        player = story.wanted().order.not_by[0]
        story.compare("d", agrees=True)
    assert player
    bad = [story.play_by("a"), story.play_by("a")]
    story.now_s += 4000
    while not any(isinstance(fact, WorkerSetAside) for fact in story.plan().decided):
        wanted = story.wanted()
        if wanted is None:
            bad.append(story.play_by("a"))
            continue
        is_of_a = story.state.shards[list(wanted.order.inputs.values())[-1]].worker == "a"
        story.compare("b" if "b" not in wanted.order.not_by else "c", agrees=not is_of_a)
    return story, bad


def test_a_worker_with_two_faults_is_set_aside_and_its_games_since_the_last_good_ones_are_recalled():
    story, bad = a_story_of_two_faults()
    aside = story.decide()
    assert (aside.worker, aside.by, aside.until_s) == ("a", BY_PLAN, story.now_s + 24 * 3600)
    assert "policy off by 0.5" in aside.reason
    assert story.told[-1][0] == "DATA_QUALITY_ALERT"
    recall = story.decide()
    assert isinstance(recall, Recalled)
    assert {d for d, s in story.state.shards.items() if s.state is ShardState.RECALLED} == set(bad)
    assert story.plan().decided == []
    (told,) = comparisons(story.state, ExaminationContext(now_s=story.now_s, rules=RULES))
    assert "worker a is set aside until" in told.text
    story.play_by("b")
    story.write(WorkerResumed(at_s=story.now_s, worker="a", reason="new memory"))
    assert not story.state.workers["a"].is_set_aside(story.now_s)
    story.play_by("a")
    assert "none of them was compared yet" in story.wanted().reason


def test_the_only_worker_is_not_set_aside_and_the_doctor_says_what_is_wrong():
    story = Games()
    for _ in range(2):
        story.play_by("a")
        story.compare("a", agrees=False)
    assert story.plan().decided == []
    (told,) = comparisons(story.state, ExaminationContext(now_s=story.now_s, rules=RULES))
    assert "nobody else plays" in told.text


def test_a_person_sets_aside_without_a_recall_that_was_not_asked_for():
    story = Games()
    story.play_by("a")
    story.compare("b", agrees=True)
    aside = WorkerSetAside(at_s=story.now_s, worker="a", reason="hot", until_s=story.now_s + 60, by=BY_PERSON)
    story.write(aside)
    assert story.plan().decided == []


@pytest.mark.parametrize(
    "fields",
    [
        {"agrees": True, "games": 0},
        {"agrees": "perhaps", "games": 4},
        {"agrees": True, "games": 4, "first_difference": {"what": "x"}},
        {"agrees": False, "games": 4},
        {},
    ],
)
def test_a_comparison_that_says_two_things_is_a_failure(fields):
    story = Games()
    story.play_by("a")
    job = story.state.open_jobs[story.issue("recompute", story.wanted().order)]
    report = story.facts[1].report
    bad = type(report)(status="done", worker="b", node="n", started_s=0, wall_s=1, cpu_s=1, fields=fields)
    assert problem_with(story.state, job, bad)


def test_what_starting_took_is_a_share_of_the_time_of_the_jobs_that_told_of_it():
    story, other = Story(), Story()
    story.play()  # an older version told nothing, and its ten seconds do not count
    assert start_status([story.state, other.state]) is None
    for each, story.start_s in (("early", 4.0), ("late", 1.0)):
        for _ in range(STARTS_SHOWN if each == "late" else 1):
            story.play()
    found = start_status([story.state, other.state])
    assert found.median_s == 1.0
    assert found.share == pytest.approx((4 + STARTS_SHOWN) / (10 * (STARTS_SHOWN + 1)), abs=1e-4)
