"""What a search found is used from the next order on, kept by a champion, dropped by candidates that lose."""

import msgspec
import pytest
from feedback_kit import promote, reject, roll_back, trained_model
from hypothesis import given
from hypothesis import strategies as st
from learning_story import RULES, Story, artifact
from tuning_kit import next_order, planned

from ringrift.errors import ConfigError
from ringrift.jobs.frame import convert_params
from ringrift.jobs.tuning.trials import TuneParams
from ringrift.learning.facts.facts import Noted, TrainingReset
from ringrift.learning.plan.orders import export_order, train_order
from ringrift.learning.plan.training_data import window_files
from ringrift.learning.status_view import TUNING
from ringrift.learning.tuning import (
    SEARCH_FIRST,
    SEARCH_SETTINGS,
    TOPIC,
    OptimizationRun,
    OptimizationType,
    kind_for_plateau,
    report_of_finding,
    trials,
    tune_order,
    tuned_rules,
    tuned_search,
)
from ringrift.search.contract import SearchConfig

OURS = msgspec.structs.replace(RULES, selfplay_program="ringrift")
SEARCHED = {"c_scale": 0.21, "c_visit": 25.0, "considered": 12}
FOUND = {
    "cmaes": SEARCHED,
    "halving": {"lr": 0.004},
    "pbt": {"lr": 0.004, "batch": 64},
    "nas": {"preset": "medium"},
}


def found(story, kind, best=None, **details):
    """Put in force what a search of *kind* was shown to have found."""
    params = {"subject": "search"} if kind == "cmaes" else {}
    run = OptimizationRun(
        run_id=f"tune.{kind}.{story.state.facts}", optimization_type=OptimizationType(kind), started_s=0.0,
        config_key="square8_2p", reason="", params=params, best_params=best or FOUND[kind], best_score=0.56,
    )  # fmt: skip
    text, told = report_of_finding(story.state, run, "small")
    story.now_s += 1.0
    story.write(Noted(at_s=story.now_s, topic=TOPIC, text=text, details={**told, **details}))
    story.now_s += 1.0


def learned(story, *, wins, losses, champion="", games=True):
    """A candidate by the rules in force, from games that were played now, and its match with the champion."""
    if games:
        story.play()
        story.check()
        story.export()
    state, rules = story.state, tuned_rules(story.state, RULES)
    order = train_order(state, rules, [state.newest_samples], None, sample_steps=4000)
    job = story.issue("train", order)
    model = f"candidate{state.facts}"
    story.end(job, artifact("model", model), artifact("card", f"card-{model}"), steps=10)
    story.evaluate(model, champion or state.champion, wins=wins, losses=losses)
    return model


def lost(story, *, clearly, **more):
    reject(story, learned(story, wins=0 if clearly else 20, losses=40 if clearly else 20, **more))


@pytest.fixture
def story():
    told = Story()
    promote(told, trained_model(told))
    return told


def dropped(story):
    """What the plan drops now, written as the controller does; training may be set back before."""
    if resets := [fact for fact in planned(story, RULES).decided if isinstance(fact, TrainingReset)]:
        story.write(resets[0])
    drops = [
        fact for fact in planned(story, RULES).decided if isinstance(fact, Noted) and fact.topic == TOPIC
    ]
    for fact in drops:
        story.write(fact)
    return drops[0] if drops else None


def in_force(story):
    rules = tuned_rules(story.state, RULES)
    return {"lr": rules.learning_rate, "preset": rules.preset, **tuned_search(story.state)}


# --- the search that plays ------------------------------------------------------------------------------


def test_the_next_games_are_searched_with_what_was_found_and_matches_as_before(story):
    before = next_order(story, "selfplay", OURS).params
    assert before["c_scale"] == 0.1
    assert "c_visit" not in before
    found(story, "cmaes")
    after = next_order(story, "selfplay", OURS).params
    assert {name: after[name] for name in SEARCHED} == SEARCHED
    assert {name: after[name] for name in before if name != "c_scale"} == {
        name: before[name] for name in before if name != "c_scale"
    }
    trained_model(story)
    story.play()
    candidate = next_order(story, "evaluate", OURS).params
    assert candidate["candidate"] == "model:{inputs}/candidate.safetensors@32", "one measure for all ratings"


def test_the_champion_is_tuned_against_the_settings_in_use_with_as_many_simulations_as_it_plays(story):
    story.state.models[story.state.champion].card = "card"
    order = tune_order(OptimizationType.CMAES, "square8_2p", story.state, RULES)
    params = convert_params("tune", TuneParams, {**order.params, "out": "x"})
    params.check()
    assert order.inputs == {"champion.safetensors": story.state.champion, "champion.json": "card"}
    assert (params.subject, params.simulations, params.c_scale, params.rescale) == ("search", 32, 0.1, True)
    found(story, "cmaes")
    again = tune_order(OptimizationType.CMAES, "square8_2p", story.state, RULES)
    assert {name: again.params[name] for name in SEARCHED} == SEARCHED
    assert again.params["seed"] != order.params["seed"], "other games judge another search"


def test_a_user_chooses_the_heuristic_and_a_game_without_one_needs_a_champion(story):
    order = tune_order(OptimizationType.CMAES, "square8_2p", story.state, RULES, subject="heuristic")
    assert (order.inputs, order.params["subject"]) == ({}, "heuristic")
    assert tune_order(OptimizationType.CMAES, "connect_four_2p", None, RULES) is None
    theirs = msgspec.structs.replace(RULES, selfplay_program="user")
    found = tune_order(OptimizationType.CMAES, "square8_2p", story.state, theirs)
    assert found.inputs == {}, "a program of the user's own searches as it likes"
    assert tune_order(OptimizationType.CMAES, "square8_2p", None, RULES, subject="search") is None
    given = {"config": "square8_2p", "kind": "cmaes", "out": "x"}
    for wrong in ({"subject": "search"}, {"subject": "heuristic", "model": "m.safetensors"}):
        with pytest.raises(ConfigError):
            convert_params("tune", TuneParams, {**given, **wrong}).check()


def test_training_is_searched_on_the_window_and_not_on_its_newest_file_alone(story):
    for _ in range(3):
        story.play(rows=500)
        story.check()
        digest = f"more{story.state.facts}"
        job = story.issue("export", export_order(story.state, RULES, list(story.state.shards.values())[-1:]))
        story.end(job, artifact("samples", digest, rows=500, games=20))
    window = window_files(story.state, RULES)
    assert len(window) == 4
    order = tune_order(OptimizationType.PBT, "square8_2p", story.state, RULES)
    assert [*order.inputs.values()] == [samples.digest for samples in window]
    assert order.params["samples"] == [f"{{inputs}}/{name}" for name in order.inputs]
    assert order.params["rows"] == 4 * sum(samples.rows for samples in window)


def test_the_settings_told_as_in_use_are_those_that_a_search_has_by_itself():
    defaults = SearchConfig()
    assert {name: getattr(defaults, name) for name in SEARCH_FIRST} == SEARCH_FIRST


@given(st.dictionaries(st.sampled_from([*SEARCH_SETTINGS]), st.floats() | st.integers() | st.text()))
def test_games_survive_any_finding(best):
    told = Story()
    told.write(Noted(at_s=1.0, topic=TOPIC, text="", details={"kind": "cmaes", "best_params": best}))
    SearchConfig(**tuned_search(told.state))


def test_a_plateau_searches_training_and_the_search_in_turn():
    of = {"has_samples": True, "has_champion": True}
    assert kind_for_plateau("connect_four_2p", **of) is OptimizationType.HALVING
    assert kind_for_plateau("connect_four_2p", **of, last=OptimizationType.HALVING) is OptimizationType.CMAES
    assert kind_for_plateau("connect_four_2p", **of, last=OptimizationType.CMAES) is OptimizationType.HALVING
    assert kind_for_plateau("connect_four_2p", has_samples=False) is None


# --- kept or dropped --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*FOUND])
def test_a_candidate_that_becomes_champion_keeps_what_it_was_made_with(story, kind):
    found(story, kind)
    promote(story, learned(story, wins=40, losses=0))
    used = in_force(story)
    for _ in range(12):
        lost(story, clearly=True)
    assert dropped(story) is None
    assert in_force(story) == used
    (trial,) = trials(story.state)
    assert "became champion with it" in trial.in_words()


@pytest.mark.parametrize("kind", ["cmaes", "halving", "pbt"])
def test_three_candidates_in_a_row_that_are_worse_drop_it_as_a_fact_with_its_reason(story, kind):
    before = in_force(story)
    found(story, kind)
    assert in_force(story) != before
    for number in range(3):
        assert dropped(story) is None, number
        lost(story, clearly=True)
    fact = dropped(story)
    assert "3 candidates in a row" in fact.text
    assert in_force(story) == before
    assert dropped(story) is None, "once"
    told = [payload for name, payload in story.told if name == "HYPERPARAMETER_UPDATED"]
    assert {each["param_name"]: each["old_value"] for each in told} == FOUND[kind]
    assert told[0]["reason"] == fact.details["reason"]


@pytest.mark.parametrize("kind", [*FOUND])
def test_what_proves_itself_by_no_candidate_is_dropped(story, kind):
    before = in_force(story)
    found(story, kind)
    for _ in range(9):
        lost(story, clearly=kind == "nas")  # a size begins from nothing, and may lose for a while
        assert dropped(story) is None
    lost(story, clearly=False)
    assert "none of 10 candidates" in dropped(story).text
    assert in_force(story) == before


def test_a_champion_that_is_taken_back_keeps_nothing(story):
    found(story, "pbt")
    first, model = story.state.champion, learned(story, wins=40, losses=0)
    promote(story, model)
    roll_back(story, model, first)
    for _ in range(2):
        lost(story, clearly=True)
    assert dropped(story) is not None


def test_candidates_of_games_from_before_say_nothing_of_a_search(story):
    story.play()
    story.check()
    story.export()
    found(story, "cmaes")
    for _ in range(4):
        lost(story, clearly=True, games=False)
    assert dropped(story) is None


def test_what_was_in_force_before_comes_back(story):
    found(story, "halving")
    promote(story, learned(story, wins=40, losses=0))
    kept = in_force(story)
    found(story, "pbt", {"lr": 0.009})
    for _ in range(3):
        lost(story, clearly=True)
    assert "back to lr 0.004" in dropped(story).text
    assert in_force(story) == kept


def test_of_two_findings_the_newer_goes_first_and_the_older_has_its_chance(story):
    found(story, "pbt")
    found(story, "cmaes")
    for _ in range(3):
        lost(story, clearly=True)
    assert dropped(story).details["kind"] == "cmaes"
    assert dropped(story) is None
    for _ in range(3):
        lost(story, clearly=True)
    assert dropped(story).details["kind"] == "pbt"


def test_explain_and_status_say_what_is_in_force_and_how_it_stands(story):
    found(story, "cmaes")
    lost(story, clearly=True)
    (said,) = [each for each in planned(story, RULES).explanations if each.stage == TUNING]
    assert said.will
    assert "c_scale 0.21" in said.reason
    assert "56% in a match" in said.reason
    assert "on trial; refused candidates that were made with it: 1" in said.reason


def test_a_finding_of_an_earlier_release_is_on_trial_too(story):
    note = Noted(
        at_s=story.now_s + 1.0, topic=TOPIC, text="", details={"kind": "pbt", "best_params": {"lr": 0.5}}
    )
    story.write(note)
    story.now_s += 2.0
    assert tuned_rules(story.state, RULES).learning_rate == 0.5
    for _ in range(3):
        lost(story, clearly=True)
    assert dropped(story) is not None
    assert msgspec.structs.replace(tuned_rules(story.state, RULES)) == RULES
