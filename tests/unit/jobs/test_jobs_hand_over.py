"""Self-play that yields: unfinished games are handed over, keep their names, and go on in any later job."""

import json
import random
from dataclasses import replace

import pytest
from jobs_samples import Ticking, artifacts_of, run

from ringrift.jobs.selfplay.recompute import RECOMPUTE
from ringrift.jobs.selfplay.selfplay import SELFPLAY
from ringrift.jobs.shards.storage import open_shard
from ringrift.jobs.shards.validate import VALIDATE
from ringrift.machine import machine_kind

KEY = "connect_four_2p"
FEW = ("--simulations", 4, "--slots", 4)


def yielding(looks):
    """The job, asked to stop when it has looked so often whether it should."""

    def work(job, params):
        class Asked(type(job.stop)):
            left = looks

            @property
            def requested(self):
                type(self).left -= 1
                if type(self).left < 0:
                    self.request("the test")
                return self.reason is not None

        job.stop = Asked()
        return SELFPLAY.run(job, params)

    return replace(SELFPLAY, run=work)


def turn(out, *options, key=KEY, looks=None, games=6, seed=0):
    """One job; returns its result, its finished games by id, and the file of unfinished games, if any."""
    spec = SELFPLAY if looks is None else yielding(looks)
    base = ("--config", key, *FEW, "--games", games, "--seed", seed, "--out", out, "--hand-over")
    code, result = run(spec, *base, *options)
    assert code == 0, result
    unfinished = artifacts_of(result, "unfinished")
    return result, finished(result), unfinished[0] if unfinished else None


def finished(result):
    games = {}
    for path in artifacts_of(result, "shard"):
        with open_shard(path) as shard:
            games |= {stored.game.game_id: stored for stored in shard.games()}
    return games


def noted(path):
    return {each["game_id"]: each for each in json.loads(path.read_text())["games"]} if path else {}


@pytest.mark.parametrize("key", [KEY, "hex8_3p", "square8_4p"])
def test_games_go_on_elsewhere_with_their_names_and_agree_with_the_rules(tmp_path, key):
    games = 3
    first, done, left = turn(tmp_path / "a", key=key, looks=6, games=games)
    assert (first["status"], first["unfinished"], len(done)) == ("done", games, 0)  # nothing ended yet
    assert sum(len(each["moves"]) for each in noted(left).values()) > 0
    second, more, rest = turn(tmp_path / "b", "--resume", left, "--simulations", 2, key=key, games=1, seed=7)
    assert rest is None
    assert set(noted(left)) < set(more)
    assert (len(more), second["resumed_games"], second["resumed_turns"]) == (games + 1, games, 1)
    for name, stored in more.items():
        played = stored.game
        turns = played.metadata.get("turns", [])
        assert [each["run_id"] for each in turns] == ([first["run_id"], second["run_id"]] if turns else [])
        assert bool(turns) == (name in noted(left))
        before = [each["action"] for each in noted(left).get(name, {"moves": []})["moves"]]
        assert played.actions[: len(before)].tolist() == before
        assert played.search_budget == 2
    assert run(VALIDATE, "--shards", *artifacts_of(second, "shard"))[0] == 0


@pytest.mark.parametrize("seed", range(4))
def test_no_yield_loses_a_game_or_plays_one_twice(tmp_path, seed):
    """With the same weights, games that were handed from job to job are those of one that was left alone."""
    lots = random.Random(seed)
    _, straight, _ = turn(tmp_path / "straight", games=9)
    done, begun, number, left = {}, set(), 0, None
    while left is not None or not number:
        number += 1
        resume = () if left is None else ("--resume", left)
        looks = lots.choice([0, 1, 5, 12, 20])
        before = noted(left)
        _, more, left = turn(
            tmp_path / f"{number}", *resume, looks=looks, games=9 if number == 1 else 1, seed=0
        )
        assert not more.keys() & done.keys()
        assert not more.keys() & noted(left).keys()
        assert before.keys() <= more.keys() | noted(left).keys()
        for name in before.keys() & noted(left).keys():
            was, now = before[name]["moves"], noted(left)[name]["moves"]
            assert now[: len(was)] == was
        done |= more
        begun |= more.keys() | noted(left).keys()
        assert number < 500
    assert done.keys() == begun
    for name in done.keys() & straight.keys():
        assert done[name].fingerprint == straight[name].fingerprint
    assert done.keys() & straight.keys()


def test_a_killed_job_goes_on_in_its_folder_with_what_was_handed_to_it(tmp_path):
    _, _, left = turn(tmp_path / "a", looks=6, games=4)
    options = ("--config", KEY, *FEW, "--games", 2, "--seed", 3, "--resume", left, "--hand-over")

    def killed(job, params):
        job.sealed = lambda artifact: (_ for _ in ()).throw(KeyboardInterrupt)  # when all is on disk
        return yielding(12).run(job, params)

    with pytest.raises(KeyboardInterrupt):
        run(replace(SELFPLAY, run=killed), *options, "--out", tmp_path / "b")
    code, again = run(SELFPLAY, *options, "--out", tmp_path / "b")
    assert (code, again["unfinished"], again["games"]) == (0, 0, 6)
    assert len(finished(again)) == 6
    _, straight = run(SELFPLAY, *options, "--out", tmp_path / "c")
    assert {n: s.fingerprint for n, s in finished(again).items()} == {
        n: s.fingerprint for n, s in finished(straight).items()
    }


def test_games_that_are_not_begun_are_handed_over_only_if_there_are_no_others(tmp_path):
    _, _, none = turn(tmp_path / "a", looks=0, games=4)
    assert [len(each["moves"]) for each in noted(none).values()] == [0] * 4
    _, _, left = turn(tmp_path / "b", looks=6, games=1)
    _, more, rest = turn(tmp_path / "c", "--resume", left, looks=0, games=3, seed=1)
    assert (noted(rest).keys(), more) == (noted(left).keys(), {})


def test_when_its_time_is_up_a_job_ends_well_with_what_it_has(tmp_path):
    def ticking(job, params):
        job.runtime = Ticking(job.runtime)
        return SELFPLAY.run(job, params)

    options = ("--config", KEY, *FEW, "--games", 10_000, "--seconds", 5.0, "--out", tmp_path)
    code, result = run(replace(SELFPLAY, run=ticking), *options, "--hand-over")
    assert (code, result["status"]) == (0, "done")
    assert 0 < result["games"] < 10_000
    (left,) = artifacts_of(result, "unfinished")
    about = next(each for each in result["artifacts"] if each["artifact"] == "unfinished")
    moves = sum(len(each["moves"]) for each in noted(left).values())
    assert about["counts"] == {"games": result["unfinished"], "moves": moves}
    assert result["unfinished"] == 4


# --- files of others --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    result, _, left = turn(tmp_path_factory.mktemp("handed"), looks=6, games=4)
    return result, left


def at(*path, value):
    def change(whole):
        place = whole
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


WRONG = {
    "another game": (at("config", value="square8_2p"), "'square8_2p', not of connect_four_2p"),
    "another format": (at("format", value="something"), "no file of unfinished games"),
    "a later version": (at("version", value=2), "no file of unfinished games"),
    "an unknown field": (at("more", value=1), "no file of unfinished games"),
    "games that are none": (at("games", value={}), "no file of unfinished games"),
    "a game of another name": (at("games", 0, "game_id", value="connect_four_2p-x-1"), "id of game 1"),
    "a path for a run": (at("games", 0, "run_id", value="../../evil"), "id of game 1"),
    "a large number": (at("games", 0, "run_index", value=10**9), "run_index"),
    "a seed too large": (at("games", 0, "seed", value=2**70), "seed"),
    "no turns": (at("games", 0, "turns", value=[]), "turns"),
    "turns from nowhere": (at("games", 0, "turns", 0, "from_move", value=3), "do not follow"),
    "weights that are none": (at("games", 0, "turns", 0, "model", value="latest"), "no weights"),
    "a time that is none": (at("games", 0, "started_s", value=1e300), "started_s"),
    "an illegal move": (at("games", 0, "moves", 0, "action", value=77), "not legal"),
    "a wrong seat": (at("games", 0, "moves", 0, "seat", value=1), "on turn"),
    "a wrong policy": (at("games", 0, "moves", 0, "policy", value=[1.0, 1.0]), "policy"),
    "values out of range": (at("games", 0, "moves", 0, "root_values", value=[9, 9]), "values"),
    "surprise beyond all bounds": (at("games", 0, "moves", 0, "surprise", value=1e9), "surprise"),
    "a text for a number": (at("games", 0, "moves", 0, "simulations", value="8"), "simulations"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_not_sound_is_refused_by_name(handed, tmp_path, what):
    change, told = WRONG[what]
    whole = json.loads(handed[1].read_text())
    change(whole)
    bad = tmp_path / "bad.unfinished.json"
    bad.write_text(json.dumps(whole))
    options = ("--config", KEY, *FEW, "--games", 1, "--out", tmp_path / "out", "--resume", bad)
    code, result = run(SELFPLAY, *options)
    assert code == 4
    assert str(bad) in result["error"]
    assert told in result["error"]
    assert result["artifacts"] == []


def test_a_file_that_is_damaged_missing_or_given_twice_is_refused(handed, tmp_path):
    left = handed[1]
    cut = tmp_path / "cut.json"
    cut.write_bytes(left.read_bytes()[:-40])
    options = ("--config", KEY, *FEW, "--games", 1, "--out", tmp_path / "out", "--resume")
    assert run(SELFPLAY, *options, cut)[0] == 4
    assert run(SELFPLAY, *options, tmp_path / "none.json")[0] == 2
    code, result = run(SELFPLAY, *options, left, left)
    assert code == 4
    assert "twice" in result["error"]


# --- games that are searched again ------------------------------------------------------------------------


def recomputed(tmp_path, shard, left, **changes):
    options = {
        "config": KEY, "games": 2, "seed": 5, "simulations": 4, "slots": 4, "resume": left, "shard": shard,
        "out": tmp_path, "sample_games": 10, "sample_moves": 10_000, "played_on": machine_kind(), **changes,
    }  # fmt: skip
    argv = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    code, result = run(RECOMPUTE, *argv)
    assert code == 0, result
    return result


def altered_file(left, tmp_path):
    """The same games, with another policy at the second move of the first."""
    whole = json.loads(left.read_text())
    whole["games"][0]["moves"][1]["policy"] = [1.0, *[0.0] * 6]
    path = tmp_path / "altered.unfinished.json"
    path.write_text(json.dumps(whole))
    return path


def test_only_the_moves_of_the_job_itself_are_searched_again(handed, tmp_path):
    """The first job had other parameters: its moves would not be found again."""
    left = handed[1]
    result, games, _ = turn(tmp_path / "b", "--resume", left, "--simulations", 4, games=2, seed=5)
    (shard,) = artifacts_of(result, "shard")
    found = recomputed(tmp_path, shard, left)
    handed_moves = sum(len(each["moves"]) for each in noted(left).values())
    assert (found["exact"], found["agrees"]) == (True, True)
    assert found["moves"] == sum(len(each.game.actions) for each in games.values()) - handed_moves
    other = recomputed(tmp_path, shard, left, simulations=5)
    assert other["agrees"] is False


def test_a_job_that_changes_what_it_was_handed_is_found(handed, tmp_path):
    left = handed[1]
    result, _, _ = turn(tmp_path / "b", "--resume", altered_file(left, tmp_path), games=2, seed=5)
    (shard,) = artifacts_of(result, "shard")
    found = recomputed(tmp_path, shard, left)
    assert found["agrees"] is False


def test_unfinished_games_are_searched_again_like_finished_ones(handed, tmp_path):
    """A job goes on with games of another and hands them over again, beside new ones."""
    left = handed[1]
    _, _, more = turn(tmp_path / "b", "--resume", left, games=2, seed=5, looks=4)
    found = recomputed(tmp_path, more, left)
    before = sum(len(each["moves"]) for name, each in noted(left).items() if name in noted(more))
    after = sum(len(each["moves"]) for each in noted(more).values())
    assert (found["exact"], found["agrees"], found["games"]) == (True, True, len(noted(more)))
    assert found["moves"] == found["identical_moves"] == after - before > 0
    whole = json.loads(more.read_text())
    whole["games"][0]["moves"][-1]["root_values"] = [0.5, -0.5]
    bad = tmp_path / "bad.unfinished.json"
    bad.write_text(json.dumps(whole))
    wrong = recomputed(tmp_path, bad, left)
    assert wrong["agrees"] is False
    assert "value by" in wrong["first_difference"]["what"]
    elsewhere = recomputed(tmp_path, altered_file(more, tmp_path), left, seed=5)
    assert elsewhere["agrees"] is False
