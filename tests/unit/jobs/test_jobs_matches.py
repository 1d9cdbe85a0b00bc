"""Evaluation and tournaments: decided by the test, every game kept, and resumable."""

import json
from dataclasses import replace

import pytest
from jobs_samples import artifacts_of, run, stopping_after

from ringrift.games.registry import load_game
from ringrift.jobs.evaluation.evaluate import EVALUATE
from ringrift.jobs.evaluation.matches import make_entrant
from ringrift.jobs.evaluation.tournament import TOURNAMENT
from ringrift.jobs.frame import StopRequest
from ringrift.jobs.shards.storage import ShardWriter, open_shard
from ringrift.jobs.shards.validate import VALIDATE
from ringrift.network.architecture import ModelCard
from ringrift.network.model import build
from ringrift.network.storage import save_model
from ringrift.players.ringrift_heuristic import HeuristicPlayer, Weights
from ringrift.statistics.match_evidence import Evidence, SprtConfig

GAME = ("--config", "connect_four_2p")


def games_in(result):
    games = []
    for path in artifacts_of(result, "shard"):
        with open_shard(path) as shard:
            games += list(shard.games())
    return games


def evaluate(out, *more, spec=EVALUATE):
    return run(spec, *GAME, "--out", out, "--batch", 16, *more)


def test_a_clear_difference_ends_the_match_early(tmp_path):
    code, result = evaluate(tmp_path, "--candidate", "mcts:40", "--opponents", "random", "--elo1", 200)
    (match,) = result["matches"]
    assert (code, match["verdict"], match["decided_by"]) == (0, "stronger", "bound")
    assert match["games"] < 100
    assert match["llr"] >= match["upper"]


def test_a_weaker_candidate_fails(tmp_path):
    _, result = evaluate(tmp_path, "--candidate", "random", "--opponents", "mcts:40", "--elo1", 200)
    assert result["matches"][0]["verdict"] == "not_stronger"


def test_without_a_test_all_games_are_played_from_both_seats(tmp_path):
    argv = ("--candidate", "mcts:5", "--opponents", "random", "mcts:2", "--games", 12, "--test", "none")
    code, result = evaluate(tmp_path, *argv)
    assert (code, [match["games"] for match in result["matches"]]) == (0, [12, 12])
    games = games_in(result)
    assert len(games) == 24
    first_seats = [each.game.seats[0].name for each in games[:12]]
    assert first_seats.count("mcts:5") == 6
    for one, other in zip(games[0::2], games[1::2], strict=True):
        plies = one.game.metadata["opening_plies"]
        assert one.game.actions[:plies].tolist() == other.game.actions[:plies].tolist()
    assert run(VALIDATE, "--shards", *artifacts_of(result, "shard"))[0] == 0
    written = json.loads(artifacts_of(result, "evaluation")[0].read_text())
    assert written["matches"] == result["matches"]


def test_a_stopped_evaluation_continues_to_the_same_result(tmp_path):
    argv = ("--candidate", "mcts:5", "--opponents", "mcts:4", "random", "--games", 40, "--test", "none")
    _, straight = evaluate(tmp_path / "a", *argv)
    code, stopped = evaluate(tmp_path / "b", *argv, spec=stopping_after(EVALUATE, 11))
    assert code == 3
    assert stopped["matches"][0]["games"] < 40
    code, continued = evaluate(tmp_path / "b", *argv)
    assert code == 0
    assert continued["matches"] == straight["matches"]
    assert written(continued)["records"] == written(straight)["records"]
    once_each = [sorted(each.fingerprint for each in games_in(result)) for result in (continued, straight)]
    assert once_each[0] == once_each[1]


class AskedToStop(StopRequest):
    """Says so from the given time on that it is looked at."""

    def __init__(self, look):
        super().__init__()
        self._looks_left = look

    @property
    def requested(self):
        self._looks_left -= 1
        if self._looks_left <= 0:
            self.request("the test")
        return self.reason is not None


def test_an_evaluation_does_not_play_an_opening_to_its_end_before_it_stops(tmp_path):
    def work(job, params):
        job.stop = AskedToStop(5)
        return EVALUATE.run(job, params)

    argv = ("--candidate", "mcts:2", "--opponents", "random", "--games", 40, "--test", "none")
    code, stopped = evaluate(tmp_path, *argv, spec=replace(EVALUATE, run=work))
    assert (code, stopped["matches"][0]["games"]) == (3, 0)
    assert artifacts_of(stopped, "shard") == []
    code, continued = evaluate(tmp_path, *argv)
    assert (code, continued["matches"][0]["games"], len(games_in(continued))) == (0, 40, 40)


# --- a judgment in one job ------------------------------------------------------------------------------


def gates(*each):
    return ("--gates", *(json.dumps(gate) for gate in each))


CLEAR = {"opponent": "mcts:2", "elo1": 200.0}
FLOOR = {"opponent": "random", "test": "floor", "games": 64}
RATING = {"opponent": "mcts:3", "test": "none", "games": 6}


def test_a_judgment_is_one_job_and_goes_on_to_the_next_gate_only_if_one_is_passed(tmp_path):
    named = ("--opponents", "mcts:2", "random", "mcts:3")  # for programs that know no gates; here the same
    code, won = evaluate(tmp_path / "a", "--candidate", "mcts:60", *gates(CLEAR, FLOOR, RATING), *named)
    assert code == 0
    assert [each["opponent"] for each in won["matches"]] == ["mcts:2", "random", "mcts:3"]
    assert [each.get("verdict") for each in won["matches"]] == ["stronger", "passed", None]
    assert 16 <= won["matches"][1]["games"] < 64  # decided by its interval, not by the cap
    assert won["matches"][2]["games"] == 6
    assert len(written(won)["records"]) == sum(each["games"] for each in won["matches"])

    beaten = {**CLEAR, "opponent": "mcts:60"}
    _, lost = evaluate(tmp_path / "b", "--candidate", "mcts:2", *gates(beaten, FLOOR))
    assert [each["verdict"] for each in lost["matches"]] == ["not_stronger"]

    weak = {**FLOOR, "opponent": "mcts:60"}
    _, weak = evaluate(tmp_path / "c", "--candidate", "random", *gates(weak, RATING))
    assert [each["verdict"] for each in weak["matches"]] == ["failed"]


def test_out_of_time_a_judgment_says_what_it_has_and_the_next_job_goes_on(tmp_path):
    equal = {"opponent": "mcts:4", "games": 48}
    argv = ("--candidate", "mcts:4", "--seconds", 1e-9)
    _, first = evaluate(tmp_path / "a", *argv, *gates(equal, FLOOR))
    (match,) = first["matches"]
    assert (match["games"], match["verdict"], match["decided_by"]) == (16, "continue", "time")

    counts = ("games", "wins", "draws", "losses", "pairs", "places")
    found, jobs = {name: match[name] for name in counts}, 1
    while match["verdict"] == "continue":
        jobs += 1
        more = ("--seed", jobs, *gates({**equal, "prior": found}))
        match = evaluate(tmp_path / f"{jobs}", *argv, *more)[1]["matches"][0]
        assert match["games_before"] == found["games"]
        found = {
            name: [a + b for a, b in zip(found[name], match[name], strict=True)]
            if isinstance(match[name], list)
            else found[name] + match[name]
            for name in counts
        }
    assert (jobs, found["games"], sum(found["pairs"])) == (3, 48, 24)
    assert match["decided_by"] == "cap"

    # What is decided already takes no more games.
    over = gates({**equal, "prior": found})
    _, again = evaluate(tmp_path / "again", *argv, *over)
    assert (again["matches"][0]["games"], again["matches"][0]["verdict"]) == (0, match["verdict"])


def test_which_games_are_played_does_not_depend_on_how_many_go_on_at_a_time(tmp_path):
    argv = ("--candidate", "mcts:20", "--opponents", "random", "--elo1", 200)
    found = [
        written(run(EVALUATE, *GAME, "--out", tmp_path / str(batch), "--batch", batch, *argv)[1])
        for batch in (2, 7, 64)
    ]
    assert found[0]["records"] == found[1]["records"] == found[2]["records"]
    assert found[0]["run_id"] == found[2]["run_id"]


def test_three_players_are_judged_by_their_places_in_the_job_as_in_the_plan(tmp_path):
    gate = {"opponent": "random", "elo1": 400.0, "games": 60}
    argv = ("--config", "square8_3p", "--candidate", "heuristic", "--batch", 12, "--out", tmp_path)
    _, result = run(EVALUATE, *argv, *gates(gate))
    (match,) = result["matches"]
    assert match["verdict"] == "stronger"
    found = Evidence(3, games=match["games"], places=match["places"])
    assert match["llr"] == pytest.approx(found.state(SprtConfig(0.0, 400.0)).llr, abs=1e-3)
    assert match["games"] < 60


def written(result, kind="evaluation"):
    return json.loads(artifacts_of(result, kind)[0].read_text())


def test_every_pair_can_be_counted_again_from_the_records(tmp_path):
    argv = ("--candidate", "mcts:6", "--opponents", "mcts:2", "random", "--games", 20, "--test", "none")
    found = written(evaluate(tmp_path, *argv)[1])
    assert [each["player"] for each in found["entrants"]] == ["mcts:6", "mcts:2", "random"]
    assert len({each["sha256"] for each in found["entrants"]}) == 3
    for number, match in enumerate(found["matches"]):
        games = [each for each in found["records"] if each["match"] == number]
        pairs = [0] * 5
        for one, other in zip(games[0::2], games[1::2], strict=True):
            assert (one["opening"], one["seed"]) == (other["opening"], other["seed"])
            assert (one["seats"], other["seats"]) == ([0, 1], [1, 0])
            pairs[round(2 + one["results"][0] + other["results"][1])] += 1
        assert pairs == match["pairs"]
        assert sum(each["ranking"][each["seats"].index(0)] == 1 for each in games) >= match["wins"]
    ids = {each.game.game_id for each in games_in(evaluate(tmp_path, *argv)[1])}
    assert {each["game_id"] for each in found["records"]} == ids


def test_a_player_is_known_by_what_it_is_not_by_its_file(tmp_path):
    game = load_game("connect_four_2p")
    net = build(game, "small", seed=3)
    card = ModelCard(config=game.key, architecture=net.architecture)
    digests = []
    for name in ("a", "b"):
        save_model(net, card, tmp_path / f"{name}.safetensors")
        digests.append(make_entrant(f"model:{tmp_path / name}.safetensors@2", game).sha256)
    other_budget = make_entrant(f"model:{tmp_path / 'a'}.safetensors@3", game).sha256
    assert digests[0] == digests[1] != other_budget
    ringrift = load_game("square8_2p")
    kinds = [make_entrant(text, ringrift) for text in ("heuristic", "heuristic:quick", "random", "mcts:2")]
    assert len({each.sha256 for each in kinds}) == 4
    tuned = replace(kinds[0], player=HeuristicPlayer(ringrift, weights=Weights(hand=1.0)))
    assert tuned.sha256 != kinds[0].sha256


def test_other_weights_under_the_same_name_are_another_match(tmp_path):
    weights = tmp_path / "weights.json"
    argv = ("--config", "square8_2p", "--candidate", f"heuristic:{weights}", "--opponents", "random")
    runs = []
    for hand in (1.0, 2.0):
        weights.write_text(json.dumps({"hand": hand}))
        runs.append(
            run(EVALUATE, *argv, "--games", 2, "--test", "none", "--out", tmp_path / "o")[1]["run_id"]
        )
    assert runs[0] != runs[1]


@pytest.mark.parametrize(
    ("key", "rivals"),
    [("connect_four_2p", ["random", "mcts:64"]), ("square8_2p", ["random", "mcts:64", "heuristic"])],
)
def test_without_opponents_the_baselines_of_the_game_are_met(tmp_path, key, rivals):
    argv = ("--config", key, "--candidate", "random", "--games", 2, "--test", "none", "--out", tmp_path)
    code, result = run(EVALUATE, *argv)
    assert (code, [each["opponent"] for each in result["matches"]]) == (0, rivals)


def test_a_match_killed_between_two_games_of_a_pair_goes_on(tmp_path, monkeypatch):
    argv = ("--candidate", "mcts:5", "--opponents", "random", "--games", 20, "--test", "none")
    add, added = ShardWriter.add, []

    def add_or_die(self, played):
        if len(added) == 5:
            raise KeyboardInterrupt
        added.append(played.game_id)
        return add(self, played)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", add_or_die)
        with pytest.raises(KeyboardInterrupt):
            evaluate(tmp_path / "a", *argv)
    code, continued = evaluate(tmp_path / "a", *argv)
    _, straight = evaluate(tmp_path / "b", *argv)
    assert (code, continued["matches"]) == (0, straight["matches"])
    assert len({each.game.game_id for each in games_in(continued)}) == len(games_in(continued)) == 20


def test_the_same_seed_gives_the_same_games(tmp_path):
    argv = ("--candidate", "mcts:5", "--opponents", "random", "--games", 8, "--test", "none")
    one, other = evaluate(tmp_path / "a", *argv)[1], evaluate(tmp_path / "b", *argv)[1]
    assert one["matches"] == other["matches"]
    different = evaluate(tmp_path / "c", *argv, "--seed", 5)[1]
    prints = [{g.fingerprint for g in games_in(result)} for result in (one, different)]
    assert prints[0] != prints[1]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--candidate", "chess", "--opponents", "random"), "names no player"),
        (("--candidate", "model:none.safetensors@4", "--opponents", "random"), "no card"),
        (("--candidate", "random", "--opponents", "random", "--elo0", 50), "elo0"),
        (("--candidate", "random", *gates({"opponent": "random", "test": "wins"})), "test"),
        (("--candidate", "random", "--opponents", "random", *gates(CLEAR)), "either gates or opponents"),
        (("--candidate", "random", *gates({**CLEAR, "prior": {"pairs": [1, 2]}})), "counts of 2 players"),
    ],
)
def test_wrong_input_is_named(tmp_path, argv, told):
    code, result = evaluate(tmp_path, *argv)
    assert code == 2
    assert told in result["error"]


def test_every_pair_meets(tmp_path):
    argv = ("--players", "random", "mcts:3", "mcts:30", "--games", 8, "--out", tmp_path)
    code, result = run(TOURNAMENT, *GAME, *argv)
    assert code == 0
    assert [pair["players"] for pair in result["pairs"]] == [
        ["mcts:3", "random"],
        ["mcts:30", "random"],
        ["mcts:30", "mcts:3"],
    ]
    assert result["pairs"][1]["score"] > 0.8
    games = games_in(result)
    assert len(games) == 24
    assert {each.game.source for each in games} == {"tournament"}


def test_a_stopped_tournament_continues(tmp_path):
    argv = ("--players", "random", "mcts:3", "mcts:10", "--games", 12, "--batch", 4, "--out")
    _, straight = run(TOURNAMENT, *GAME, *argv, tmp_path / "a")
    assert run(stopping_after(TOURNAMENT, 8), *GAME, *argv, tmp_path / "b")[0] == 3
    code, continued = run(TOURNAMENT, *GAME, *argv, tmp_path / "b")
    assert (code, continued["pairs"]) == (0, straight["pairs"])


def test_three_players_take_every_seat(tmp_path):
    argv = ("--candidate", "heuristic", "--opponents", "random", "--games", 3, "--test", "none")
    code, result = run(EVALUATE, "--config", "square8_3p", *argv, "--out", tmp_path)
    games = games_in(result)
    assert code == 0
    assert [each.game.metadata["seats"].index(0) for each in games] == [0, 1, 2]
    records = written(result)["records"]
    assert [each["seats"] for each in records] == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert [sorted(each["ranking"]) for each in records] == [[1, 2, 3]] * 3
    assert run(VALIDATE, "--shards", *artifacts_of(result, "shard"))[0] == 0
