"""The recorded games, checked with both engines, and records that were tampered with."""

import copy
import gzip
import json
from pathlib import Path

import pytest

from ringrift.errors import Corrupt
from ringrift.games.ringrift.boards import board_for
from ringrift.games.ringrift.reference import ReferenceGame, reference_to_json
from ringrift.games.tool import OVER_FIELDS, STATE_FIELDS, check_trace_file, check_trace_files

TRACES = Path(__file__).parents[2] / "data" / "ringrift_traces"
CONFIGS = ["square8_2p", "square8_3p", "hex8_2p", "hex8_4p"]


def records(config):
    with gzip.open(TRACES / f"{config}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_compiled_rules_agree_with_every_recorded_game(config):
    report = check_trace_file(TRACES / f"{config}.jsonl.gz")
    assert report.difference is None
    assert report.games == 20
    assert report.steps > 1500


def shown(text):
    """A recorded move without the option of a recovery."""
    return " ".join(text.split()[:3]) if text.startswith("R ") else text


def same(game, recorded):
    ours = reference_to_json(game)
    return all(ours[field] == recorded[field] for field in (OVER_FIELDS if game.winner else STATE_FIELDS))


def completions(game):
    """Every way to make the decisions that complete a recovery."""
    if game.debt not in ("recovery", "recovery_line"):
        yield game
        return
    for move in game.legal():
        after = copy.deepcopy(game)
        after.apply(move)
        yield from completions(after)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_reference_engine_agrees_with_every_recorded_game(config):
    for record in records(config):
        game = ReferenceGame(board_for(record["board"], record["n"]))
        for step in record["steps"]:
            ours, recorded = set(game.legal_texts()), {shown(text) for text in step["legal"]}
            one_listed = step["ph"] == "forced_elimination" and len(recorded) == 1
            assert recorded <= ours if one_listed else recorded == ours
            game.apply_text(shown(step["mv"]))
            game = next(found for found in completions(game) if same(found, step["fp"]))
        assert game.winner == record["winner"]


@pytest.fixture
def altered(tmp_path):
    """Write the first recorded game of a config after a change to it."""

    def write(change, config="square8_2p"):
        record = records(config)[0]
        change(record)
        path = tmp_path / "altered.jsonl"
        path.write_text(json.dumps(record) + "\n")
        return path

    return write


def drop_legal(record):
    record["steps"][7]["legal"] = record["steps"][7]["legal"][1:]


def add_legal(record):
    record["steps"][7]["legal"].append("M 9,9>9,8")


def move_marker(record):
    record["steps"][11]["fp"]["markers"] = {"0,0": 2}


def change_count(record):
    record["steps"][12]["fp"]["players"][0][1] += 1


def wrong_player(record):
    record["steps"][5]["p"] = 3 - record["steps"][5]["p"]


def illegal_move(record):
    record["steps"][3]["mv"] = "SC"


def wrong_winner(record):
    record["winner"] = 3 - record["winner"]


def wrong_start(record):
    record["init"]["players"][1][0] = 17


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        (drop_legal, "step 7", "only the rules allow"),
        (add_legal, "step 7", "only the record allows M 9,9>9,8"),
        (move_marker, "step 11", "markers at"),
        (change_count, "step 12", "players: the record says"),
        (wrong_player, "step 5", "the record has player"),
        (illegal_move, "step 3", "'SC' is not legal"),
        (wrong_winner, "step", "winner: the record says"),
    ],
)
def test_the_first_difference_is_named(altered, change, where, what):
    report = check_trace_file(altered(change))
    assert report.difference is not None
    assert f"game 1, {where}" in str(report.difference)
    assert what in str(report.difference)


def test_an_impossible_start_is_refused(altered):
    ((_, fault),) = check_trace_files([altered(wrong_start)])
    assert "rings are gone" in str(fault)


def test_a_record_need_not_repeat_the_winner_beside_its_last_state(altered):
    def only_what_the_format_names(record):
        for name in ("seed", "winner", "status"):
            del record[name]

    assert check_trace_file(altered(only_what_the_format_names)).difference is None


def test_a_stuck_step_ends_the_record(altered):
    def stuck(record):
        record["steps"][9:] = [{"stuck": True}]
        record["winner"] = None

    report = check_trace_file(altered(stuck))
    assert report.difference is None
    assert report.steps == 9


def test_order_of_cells_and_option_of_a_recovery_do_not_matter(altered):
    def shuffle(record):
        for step in record["steps"]:
            step["legal"] = [
                f"T {'|'.join(reversed(text[2:].split('|')))}" if text.startswith("T ") else text
                for text in step["legal"]
            ]

    assert check_trace_file(altered(shuffle, "square8_3p")).difference is None


@pytest.mark.parametrize(
    "content", [b"", b"no json\n", b"{}\n", b"\x1f\x8b\x00broken", b'{"board": "square8"}\n']
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(Corrupt):
        check_trace_file(path)
