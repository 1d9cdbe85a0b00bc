"""A report of somebody's own job is tried before it becomes a fact: what cannot be taken in is a failure."""

import msgspec
import pytest
from learning_story import RULES, Story, artifact

from ringrift.learning.facts.facts import JobEnded
from ringrift.learning.facts.records import ShardState
from ringrift.learning.facts.results import problem_with
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.judging.promotion import Pairing
from ringrift.learning.plan.evaluation import judgment_of
from ringrift.learning.plan.orders import (
    RATING,
    Snapshot,
    evaluate_order,
    export_order,
    selfplay_order,
    train_order,
    validate_order,
)
from ringrift.learning.plan.rules import configured_rules
from ringrift.settings import load_settings
from ringrift.work.job.protocol import JobReport

GOOD_MATCH = {"opponent": "random", "games": 10, "wins": 9, "draws": 0, "losses": 1, "score": 0.9}


def report(*artifacts, status="done", cpu_s=1.0, **fields):
    return JobReport(
        status=status, worker="w", node="n", started_s=0.0, wall_s=1.0, cpu_s=cpu_s, artifacts=artifacts,
        fields=fields,
    )  # fmt: skip


def a_story_with_a_model():
    story = Story()
    story.play()
    story.check()
    story.export()
    return story, story.train()


def test_a_judge_that_knows_no_gates_is_ordered_games_against_each_opponent_and_believed():
    """As earlier versions ordered them; what the games are for is known all the same."""
    story, model = a_story_with_a_model()
    rules = configured_rules(load_settings({"RINGRIFT_JOBS": '{"evaluate": {"command": ["mine"]}}'}).settings)
    found = judgment_of(Snapshot(story.state, rules, story.now_s), story.state.models[model])
    plays = (*found.plays, Pairing("mcts:32", 40, RATING))
    order = evaluate_order(story.state, rules, story.state.models[model], plays, purpose="promotion")
    games, opponents = order.params["games"], order.params["opponents"]
    assert (order.params["test"], len(opponents), 0 < games <= 40) == ("none", 3, True)
    matches = [
        {"opponent": each, "games": games, "wins": games, "draws": 0, "losses": 0, "score": 1.0}
        for each in opponents
    ]
    job, said = opened(story, "evaluate", order), report(matches=matches)
    assert problem_with(story.state, job, said) == ""
    story.write(JobEnded(at_s=story.now_s, job_id=job.job_id, report=said))
    assert [match.purpose for match in story.state.matches] == ["promotion", "promotion", RATING]


def test_samples_for_a_trainer_of_ones_own_hold_what_a_network_sees():
    story = Story()
    story.play()
    shards = list(story.state.shards.values())
    mine = configured_rules(load_settings({"RINGRIFT_JOBS": '{"train": {"command": ["mine"]}}'}).settings)
    ours = configured_rules(load_settings({}).settings)
    assert [export_order(story.state, each, shards).params["features"] for each in (mine, ours)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("config", "opening_plies", "value_decay"),
    [("square8_2p", 10, 0.8), ("square8_4p", 10, 0.8), ("hex8_2p", 0, 0.0), ("connect_four_2p", 12, 0.0)],
)
def test_games_are_played_and_taught_as_was_found_best_for_their_board(config, opening_plies, value_decay):
    state, rules = ConfigState(config), configured_rules(load_settings({}).settings)
    assert selfplay_order(state, rules, simulations=32).params["opening_plies"] == opening_plies
    params = export_order(state, rules, []).params
    assert (params["value_decay"], params["surprise"]) == (value_decay, 0.5 if value_decay else 0.0)


@pytest.mark.parametrize(("model", "wanted"), [(None, (0.0, 0.0, 0.0)), ("m", (0.8, 0.8, 0.5))])
def test_searches_without_a_network_teach_no_values_and_do_not_surprise(model, wanted):
    story = Story()
    story.play()
    shards = [msgspec.structs.replace(each, model=model) for each in story.state.shards.values()]
    params = export_order(
        ConfigState("square8_2p"), configured_rules(load_settings({}).settings), shards
    ).params
    assert tuple(params[name] for name in ("value_mix", "value_decay", "surprise")) == wanted


def opened(story, kind, order):
    return story.state.open_jobs[story.issue(kind, order)]


def evaluation(story, model, opponents=("random",)):
    candidate = story.state.models[model]
    pairings = [Pairing(opponent, 10) for opponent in opponents]
    order = evaluate_order(story.state, RULES, candidate, pairings, purpose="promotion")
    return opened(story, "evaluate", order)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"opponent": "model:{inputs}/stranger.safetensors@32"}, "not among the inputs"),
        ({"opponent": "mcts:32"}, "not asked for"),
        ({"opponent": None}, "opponent"),
        ({"score": None}, "score"),
        ({"score": 3.0}, "score"),
        ({"games": "many"}, "games"),
        ({"wins": -1}, "wins"),
        ({"wins": 50}, "50"),
        ({"pairs": [1, 2]}, "pairs"),
        ({"players": 3, "places": [9, 1]}, "places"),
        ({"games": 0, "wins": 0, "losses": 0}, "no games were played"),
        ({"games": 1000, "wins": 999}, "10 were ordered"),
    ],
)
def test_an_odd_match_is_a_failure_with_its_reason(changes, told):
    story, model = a_story_with_a_model()
    job = evaluation(story, model)
    assert problem_with(story.state, job, report(matches=[GOOD_MATCH])) == ""
    assert told in problem_with(story.state, job, report(matches=[{**GOOD_MATCH, **changes}]))


def test_the_same_games_do_not_count_twice():
    story, model = a_story_with_a_model()
    job = evaluation(story, model)
    assert "told twice" in problem_with(story.state, job, report(matches=[GOOD_MATCH, GOOD_MATCH]))


@pytest.mark.parametrize(
    ("games", "model", "told"), [(33, None, "33 games; 32"), (10, "f" * 64, "by model ffffffffffff")]
)
def test_games_that_were_not_ordered_are_a_failure(games, model, told):
    story = Story()
    job = opened(story, "selfplay", selfplay_order(story.state, RULES, simulations=32))
    shard = artifact("shard", "one", games=games, rows=100)
    assert told in problem_with(story.state, job, report(shard, generator_sha256=model))


@pytest.mark.parametrize("fields", [{}, {"matches": None}, {"matches": []}, {"matches": [7]}, {"matches": 3}])
def test_an_evaluation_without_matches_is_a_failure(fields):
    story, model = a_story_with_a_model()
    assert problem_with(story.state, evaluation(story, model), report(**fields))


@pytest.mark.parametrize("counts", [{"rows": -5}, {"rows": "x"}, {"games": None}, {"games": 1.5}])
def test_games_with_odd_counts_are_a_failure(counts):
    story = Story()
    job = opened(story, "selfplay", selfplay_order(story.state, RULES, simulations=32))
    good = artifact("shard", "one", games=10, rows=100)
    bad = artifact("shard", "two", **{"games": 10, "rows": 100, **counts})
    assert problem_with(story.state, job, report(good)) == ""
    assert "cannot be read" in problem_with(story.state, job, report(good, bad))


def test_odd_fields_of_a_result_are_a_failure():
    story = Story()
    job = opened(story, "selfplay", selfplay_order(story.state, RULES, simulations=32))
    shard = artifact("shard", "one", games=10, rows=100)
    assert problem_with(story.state, job, report(shard, cut_off="no"))
    assert problem_with(story.state, job, report(shard, generator_sha256=["a"]))
    assert problem_with(story.state, job, report(shard, cpu_s=-1.0))


def test_what_is_refused_left_no_trace():
    story, model = a_story_with_a_model()
    job = evaluation(story, model)
    problem_with(story.state, job, report(matches=[GOOD_MATCH]))
    assert story.state.matches == []


# --- checks ----------------------------------------------------------------------------------------------


def a_check(story):
    shard = story.play()
    return shard, opened(story, "validate", validate_order(story.state, story.state.unchecked()))


def test_a_check_that_names_no_shard_is_a_failure_and_condemns_nothing():
    story = Story()
    _, job = a_check(story)
    assert "names none" in problem_with(story.state, job, report())
    strange = artifact("report", "r", shard="another", games=50, rows=2000)
    assert "names none" in problem_with(story.state, job, report(strange))


def test_a_check_that_refused_its_data_may_name_no_shard():
    story = Story()
    shard, job = a_check(story)
    assert problem_with(story.state, job, report(status="data_refused")) == ""
    story.end(job.job_id)
    assert story.state.shards[shard].state is ShardState.REFUSED


def test_more_games_refused_than_played_is_a_failure():
    story = Story()
    shard, job = a_check(story)
    bad = artifact("report", "r", shard=shard, games=10, refused=11, rows=100)
    assert "11 of 10" in problem_with(story.state, job, report(bad))


# --- the same file again ---------------------------------------------------------------------------------


def test_samples_that_are_made_again_are_the_newest():
    story = Story()
    story.play()
    story.check()
    first = story.export()
    story.play()
    story.check()
    story.export()
    order = story.state.samples[first]
    job = story.issue("export", selfplay_order(story.state, RULES, simulations=1))
    story.end(job, artifact("samples", first, rows=order.rows, games=order.games))
    assert story.state.newest_samples.digest == first


def test_a_training_that_brings_a_known_model_changed_nothing():
    story, model = a_story_with_a_model()
    samples = story.state.newest_samples
    order = train_order(story.state, RULES, [samples], story.state.newest_model, sample_steps=4000)
    job = opened(story, "train", order)
    again = report(artifact("model", model), artifact("card", "card"), steps=10)
    assert "changed nothing" in problem_with(story.state, job, again)
    other = report(artifact("model", "other"), artifact("card", "card"), steps=10)
    assert problem_with(story.state, job, other) == ""
    odd = report(artifact("model", "other"), artifact("card", "card"), steps=10, best_step="last")
    assert "best_step" in problem_with(story.state, job, odd)
