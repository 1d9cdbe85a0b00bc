"""What is ordered next: whose turn it is, and what that config needs most."""

from ringrift.learning.facts.state import OpenJob
from ringrift.learning.plan.orders import ConfigPlan
from ringrift.learning.plan.plan import Capacity, Effort, choose
from ringrift.work.job.protocol import JobOrder


def wanting(*kinds):
    made = ConfigPlan()
    for kind in kinds:
        made.want(kind, JobOrder(config="a", params={}), "because")
    return made


def chosen(plans, *, served=None, slots=2, open_selfplay=0, open_other=0, held=()):
    choice = choose(
        {config: wanting(*kinds) for config, kinds in plans.items()},
        Capacity(slots, open_selfplay, open_other),
        config_served=served or {},
        config_shares=dict.fromkeys(plans, 1 / len(plans)),
        held=held,
    )
    return None if choice is None else (choice.config, choice.wanted.kind)


def test_a_config_checks_trains_and_judges_before_it_plays():
    needs = ("selfplay", "tournament", "evaluate", "train", "export")
    for last in range(len(needs), 0, -1):
        assert chosen({"a": needs[:last]}) == ("a", needs[last - 1])


def test_training_is_ordered_while_games_fill_all_slots():
    assert chosen({"a": ("selfplay", "train")}, open_selfplay=3) == ("a", "train")
    assert chosen({"a": ("selfplay",)}, open_selfplay=3) is None


def test_no_more_than_the_slots_is_ordered_beside_games():
    assert chosen({"a": ("train",)}, open_other=2) is None
    assert chosen({"a": ("validate",)}, open_other=2) == ("a", "validate")


def test_the_turn_goes_by_processor_time_whatever_it_was_spent_on():
    plans = {"small": ("selfplay",), "large": ("train", "selfplay")}
    assert chosen(plans, served={"small": 30.0, "large": 400.0}) == ("small", "selfplay")
    assert chosen(plans, served={"small": 401.0, "large": 400.0}) == ("large", "train")


def test_what_is_held_back_makes_room_for_the_rest():
    assert chosen({"a": ("evaluate", "selfplay")}, held=("evaluate",)) == ("a", "selfplay")
    assert chosen({"a": ("evaluate",)}, held=("evaluate",)) is None


def test_a_job_that_took_long_costs_its_config_the_next_turns():
    """Large boards and small ones get the same processor time, not the same number of jobs."""
    effort, spent = Effort(), {"small": 0.0, "large": 0.0}
    lengths = {"small": 5.0, "large": 100.0}
    shares = {"small": 0.5, "large": 0.5}
    for number in range(300):
        config, kind = chosen(dict.fromkeys(shares, ("selfplay",)), served=effort.turns.served(shares))
        job = OpenJob(f"j{number}", kind, JobOrder(config=config, params={}), 75, "", 0.0)
        effort.start(config, job, share=0.5)
        effort.end(config, job, lengths[config], share=0.5)
        spent[config] += lengths[config]
    assert abs(spent["small"] - spent["large"]) <= 2 * max(lengths.values())
