"""The `tune` job: real searches with tiny budgets, killed and gone on with."""

import io
import json
import random
import signal
import sqlite3
import subprocess
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from feedback_kit import promote, trained_model
from hypothesis import given
from hypothesis import strategies as st
from learning_story import RULES
from tuning_kit import in_world, next_order

from held_job import held_command
from ringrift.errors import ConfigError
from ringrift.games.registry import load_game
from ringrift.jobs.frame import convert_params, run_job
from ringrift.jobs.samples.export import EXPORT
from ringrift.jobs.selfplay.selfplay import SELFPLAY
from ringrift.jobs.tuning.trials import (
    BATCHES,
    DECAYS,
    RATES,
    WINDOW_MIN,
    Knobs,
    TuneParams,
    Verified,
    varied,
)
from ringrift.jobs.tuning.tune import TUNE, simulations_in_time
from ringrift.learning.judging.promotion import Pairing
from ringrift.learning.plan.orders import evaluate_order, train_order
from ringrift.learning.tuning import SEARCH_SETTINGS, tuned_rules
from ringrift.network.architecture import ModelCard
from ringrift.network.model import build
from ringrift.network.storage import save_model
from ringrift.work.job.protocol import INPUTS, OUT, read_order

CONFIG = "connect_four_2p"
WAIT_S = 110


def run(spec, *argv):
    out = io.StringIO()
    code = run_job(spec, [str(each) for each in argv], out=out)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Samples of real games, small enough to train on in a moment."""
    folder = tmp_path_factory.mktemp("tuning")
    code, lines = run(
        SELFPLAY, "--config", CONFIG, "--games", 32, "--simulations", 4, "--slots", 48, "--out", folder
    )
    assert code == 0
    shards = [each["path"] for each in lines[-1]["artifacts"] if each["artifact"] == "shard"]
    assert run(EXPORT, "--shards", *shards, "--out", folder / "x.npz")[0] == 0
    return folder / "x.npz"


def tiny(kind, samples, out, *more):
    given = ("--config", CONFIG, "--kind", kind, "--samples", samples, "--out", out, "--device", "cpu")
    return (*given, "--rows", 800, "--simulations", 4, *more)


def start_held(gate, steps, *argv):
    """A search in a process of its own that stands still after so many lines of progress."""
    gate.touch()
    command = held_command(gate, "tune", *argv, "--heartbeat-s", 1, steps=steps)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def kill_after(process, done):
    """Kill the search when it has tried so many."""
    for line in process.stdout:
        said = json.loads(line)
        if (
            said["event"] in ("progress", "heartbeat")
            and said["stage"] in ("searching", "evolving")
            and said["done"] >= done
        ):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == -signal.SIGKILL


def stop_after(lines, *argv):
    """Run the search in this process and ask it to stop after so many lines of progress."""

    def work(job, params):
        said, tell = [], job.progress

        def progress(*args, **fields):
            said.append(args)
            tell(*args, **fields)
            if len(said) >= lines:
                job.stop.request("the test")

        job.progress = progress
        return TUNE.run(job, params)

    code, told = run(replace(TUNE, run=work), *argv)
    assert (code, told[-1]["status"]) == (3, "stopped")


def test_halving_ends_bad_trials_early_and_verifies_what_it_found(tmp_path, samples):
    code, lines = run(TUNE, *tiny("halving", samples, tmp_path, "--trials", 7, "--verify-games", 8))
    result = lines[-1]
    assert (code, result["status"], result["evaluations"]) == (0, "done", 7)
    assert {line["kind"] for line in lines} == {"tune"}, "a worker takes no result of another kind"
    best = result["best_params"]
    assert RATES[0] <= best["lr"] <= RATES[1]
    assert best["batch"] in BATCHES
    assert 0 < best["samples_per_row"] <= 50
    assert result["best_score"] == max(result["scores"].values())
    assert len(result["scores"]) == 7
    with sqlite3.connect(tmp_path / "study.db") as study:
        states = {state for (state,) in study.execute("SELECT state FROM trials")}
    study.close()
    assert states == {"COMPLETE", "PRUNED"}  # some ended early
    assert result["verified"]["games"] == 8
    assert result["improved"] is (result["verified"]["low"] > 0.5)
    assert json.loads((tmp_path / "tuning.json").read_text())["best_params"] == best
    assert [each["artifact"] for each in result["artifacts"]] == ["tuning"]


def test_a_killed_halving_goes_on_with_its_trials(tmp_path, samples):
    argv = tiny("halving", samples, tmp_path, "--trials", 6, "--verify-games", 0)
    kill_after(start_held(tmp_path / "gate", 3, *argv), 2)  # one line of reading, two of trials
    code, lines = run(TUNE, *argv)
    searching = [line for line in lines if line["event"] == "progress" and line["stage"] == "searching"]
    assert code == 0
    assert min(line["done"] for line in searching) >= 2  # what was tried is not tried again
    assert lines[-1]["evaluations"] == 6
    assert lines[-1]["verified"] is None
    assert lines[-1]["improved"] is False  # nothing is better until it was shown
    assert run(TUNE, *argv)[1][-1]["best_params"] == lines[-1]["best_params"]  # done stays done


def test_a_population_that_was_stopped_ends_as_one_that_was_not(tmp_path, samples):
    more = ("--population", 4, "--generations", 3, "--verify-games", 0)
    code, lines = run(TUNE, *tiny("pbt", samples, tmp_path / "straight", *more))
    assert code == 0
    straight, stopped = lines[-1], tiny("pbt", samples, tmp_path / "stopped", *more)
    assert [each["generation"] for each in straight["generations"]] == [1, 2, 3]
    assert WINDOW_MIN <= straight["best_params"]["window"] <= 1
    assert straight["best_score"] == max(straight["scores"].values())
    stop_after(3, *stopped)  # one line of reading, two of generations
    assert json.loads((tmp_path / "stopped" / "population.json").read_text())["generation"] == 2
    resumed = run(TUNE, *stopped)[1][-1]
    for field in ("best_params", "best_score", "scores", "generations", "evaluations"):
        assert resumed[field] == straight[field]
    assert len(list((tmp_path / "stopped").glob("generation-*"))) == 1


def test_an_architecture_search_compares_sizes_in_the_same_time(tmp_path, samples):
    argv = ("--presets", "small", "medium", "--games", 8, "--verify-games", 4)
    code, lines = run(TUNE, *tiny("nas", samples, tmp_path, *argv))
    result = lines[-1]
    assert code == 0
    assert result["scores"].keys() == {"small", "medium"}
    assert result["scores"]["small"] == 0.5  # the measure of the others
    assert result["best_params"]["preset"] in ("small", "medium")
    assert {"held_loss small", "held_loss medium"} <= result["best_params"].keys()


def test_cmaes_plays_matches_of_heuristic_weights_and_a_stopped_one_goes_on(tmp_path):
    argv = ("--config", "square8_2p", "--kind", "cmaes", "--out", tmp_path, "--population", 4)
    argv = (*argv, "--generations", 2, "--games", 2, "--verify-games", 4)
    stop_after(3, *argv)
    code, lines = run(TUNE, *argv)
    result = lines[-1]
    assert (code, result["evaluations"]) == (0, 8)
    assert [each["generation"] for each in result["generations"]] == [1, 2]
    assert set(result["best_params"]) >= {"eliminated", "territory", "must_slides"}
    assert result["verified"]["games"] == 4


@pytest.fixture(scope="module")
def champion(tmp_path_factory):
    """The files of a network, by the names that an order gives them."""
    path = tmp_path_factory.mktemp("champion") / "champion.safetensors"
    net = build(load_game(CONFIG), "small", seed=1)
    save_model(net, ModelCard(config=CONFIG, architecture=net.architecture), path)
    return {each: path.with_name(each) for each in ("champion.safetensors", "champion.json")}


def test_cmaes_tunes_the_search_of_a_network_and_a_stopped_one_goes_on(tmp_path, champion):
    argv = (
        "--config",
        CONFIG,
        "--kind",
        "cmaes",
        "--model",
        champion["champion.safetensors"],
        "--device",
        "cpu",
    )
    argv = (*argv, "--out", tmp_path, "--population", 4, "--generations", 2, "--games", 2, "--simulations", 4)
    argv = (*argv, "--verify-games", 4, "--c-scale", 0.3, "--no-rescale")
    stop_after(3, *argv)
    code, lines = run(TUNE, *argv)
    result = lines[-1]
    assert (code, result["evaluations"], result["verified"]["games"]) == (0, 8, 4)
    assert result["best_params"].keys() == SEARCH_SETTINGS.keys()
    for name, (kind, low, high) in SEARCH_SETTINGS.items():
        assert isinstance(result["best_params"][name], kind)
        assert low <= result["best_params"][name] <= high


# A search as small as it can be, and what it changes in the orders that follow.
SMALL = {
    "cmaes": {"population": 4, "generations": 1, "games": 2, "verify_games": 2, "simulations": 2},
    "nas": {"rows": 200, "games": 2, "verify_games": 2, "simulations": 2},
    "pbt": {"rows": 200, "population": 4, "generations": 1, "verify_games": 2, "simulations": 2},
}


def carried_out(order, files, folder):
    """What the job says in the end of *order*, done as a worker lays it out."""
    for name in order.inputs:
        folder.joinpath(name).symlink_to(files[name])
    given = json.dumps({**order.params, "device": "cpu"})
    path = folder / "params.json"
    path.write_text(given.replace(INPUTS, str(folder)).replace(OUT, str(folder / "out")))
    code, lines = run(TUNE, "--params", path)
    assert code == 0, lines[-1]
    assert {line["kind"] for line in lines} == {"tune"}, "a worker takes no result of another kind"
    return lines[-1]


@pytest.mark.parametrize("kind", [*SMALL])
def test_a_real_search_of_the_loop_changes_the_orders_that_follow_if_its_match_is_won(
    tmp_path, samples, champion, kind
):
    found = {}

    async def scenario(world, *, improved):
        story = world.run.story
        promote(story, trained_model(story))
        before = orders(story)
        await world.coordinator.begin(kind, CONFIG, **SMALL[kind])
        claim = await world.claim()
        if not found:
            files = {"samples.npz": samples, **champion}
            found.update(carried_out(read_order(claim.payload), files, tmp_path))
            assert found["improved"] is False, "two games show nothing"
        best = dict(found["best_params"])
        if kind == "nas":
            best["preset"] = "medium"  # whichever of the two was luckier
        told = {name: found[name] for name in ("best_score", "generations", "scores", "evaluations")}
        await world.complete(claim, best_params=best, improved=improved, **told)
        after = orders(story)
        assert before["evaluate"] == after["evaluate"], "how strong a network is, is measured as before"
        stage = "selfplay" if kind == "cmaes" else "train"
        tuned = {name: value for name, value in best.items() if name in {*SEARCH_SETTINGS, *TRAINED}}
        expected = tuned if improved else {name: before[stage].get(name) for name in tuned}
        assert {name: after[stage].get(name) for name in tuned} == expected

    in_world(partial(scenario, improved=False), CONFIG)
    in_world(partial(scenario, improved=True), CONFIG)


OURS = msgspec.structs.replace(RULES, selfplay_program="ringrift")
TRAINED = ("batch", "weight_decay", "preset")  # the rate of an order falls with the steps


def orders(story):
    """The parameters of the next order of each kind, as if there were enough new games for it."""
    state, rules = story.state, tuned_rules(story.state, RULES)
    training = train_order(state, rules, [state.newest_samples], None, sample_steps=4000)
    match = evaluate_order(state, rules, state.newest_model, [Pairing("random", 4)], purpose="promotion")
    games = next_order(story, "selfplay", OURS)
    return {"selfplay": games.params, "train": training.params, "evaluate": match.params}


def test_what_cannot_work_is_said_at_once(tmp_path, samples):
    code, lines = run(TUNE, "--config", CONFIG, "--kind", "halving", "--out", tmp_path)
    assert (code, lines[-1]["error"]) == (2, "tune: halving needs --samples to train on")
    code, lines = run(TUNE, "--config", CONFIG, "--kind", "cmaes", "--out", tmp_path)
    assert code == 2
    assert "no heuristic player for connect_four_2p" in lines[-1]["error"]
    code, lines = run(TUNE, *tiny("nas", samples, tmp_path, "--presets", "small", "gigantic"))
    assert "there is no preset gigantic" in lines[-1]["error"]
    params = {"config": CONFIG, "kind": "nas", "out": "x", "samples": ["x"], "presets": ["small"]}
    with pytest.raises(ConfigError, match="two --presets"):
        convert_params("tune", TuneParams, params).check()


@given(st.floats(1e-6, 1), st.floats(1e-9, 1), st.floats(0, 2), st.integers(), st.integers(1, 7))
def test_variation_stays_within_the_bounds(lr, decay, window, seed, sizes):
    batches = list(BATCHES[:sizes])
    knobs = varied(Knobs(lr, 64, decay, window), batches, random.Random(seed))
    assert RATES[0] <= knobs.lr <= RATES[1]
    assert DECAYS[0] <= knobs.weight_decay <= DECAYS[1]
    assert WINDOW_MIN <= knobs.window <= 1.0
    assert knobs.batch in batches


def test_slower_networks_get_fewer_simulations_and_never_none():
    assert simulations_in_time(32, 1.0, 2.0) == 16
    assert simulations_in_time(32, 1.0, 1000.0) == 2
    assert not Verified(games=10, score=0.6, low=0.4, high=0.8).improved
    assert Verified(games=900, score=0.6, low=0.55, high=0.65).improved
