"""`ringrift game`, as a person starts it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

TRACES = Path(__file__).parents[2] / "data" / "ringrift_traces"
GAME = "from ringrift.cli.programs import game; game(prog_name='ringrift game')"


def game(*arguments, code=0, stdin=None):
    ended = subprocess.run(
        [sys.executable, "-c", GAME, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        input=stdin,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout, ended.stderr


def test_the_command_line_loads_no_compiled_code():
    code = "import sys, ringrift.cli.programs; sys.exit(any(n in sys.modules for n in ('numba', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_perft_counts_leaves():
    out, _ = game("perft", "--config", "square8_2p", "--depth", "2", "--json")
    assert json.loads(out) == {"config": "square8_2p", "depth": 2, "leaves": 3192}
    out, _ = game("perft", "--config", "hex8_3p", "--depth", "1")
    assert "183 leaves" in out


@pytest.mark.parametrize("config", ["square8", "square8_5p", "chess_2p"])
def test_a_wrong_config_is_one_line_and_exit_code_2(config):
    out, err = game("perft", "--config", config, "--depth", "1", code=2)
    assert out == ""
    assert err.startswith(f"ringrift: '{config}'")
    assert len(err.splitlines()) == 1


def test_check_trace_passes_over_all_files_and_fails_if_one_differs(tmp_path):
    good = TRACES / "square8_2p.jsonl.gz"
    out, _ = game("check-trace", str(good))
    assert out == f"{good}: 20 games, 1538 steps agree\n"
    with gzip.open(good, "rt") as lines:
        records = [json.loads(line) for line in lines][:2]
    records[1]["steps"][4]["legal"].pop()
    bad = tmp_path / "bad.jsonl.gz"
    with gzip.open(bad, "wt") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    out, _ = game("check-trace", str(bad), str(good), code=1)
    first, second = out.splitlines()
    assert first.startswith(f"{bad}: DIFFERS in game 2, step 4: legal moves")
    assert second.endswith("agree")
    out, _ = game("check-trace", str(tmp_path / "missing"), code=2)
    assert "No such file" in out


def test_show_draws_positions_of_every_kind_of_board():
    out, _ = game("show", "--config", "square8_2p", "--moves", "P 3,4 2; M 3,4>3,6", "--legal")
    assert out.startswith("square8_2p: player 2 to decide, ring placement (decision 3)")
    assert "  4  .   .   .   o1" in out
    assert "  6  .   .   .   1:2" in out
    assert "legal: P 0,0 1" in out
    out, _ = game("show", "--config", "hex8_2p", "--random", "30", "--seed", "2")
    assert "y  -4  x   0 to   4" in out
    out, _ = game("show", "--config", "connect_four_2p", "--moves", "4;4")
    assert ". . . x . . ." in out


def test_show_reads_a_state_that_it_wrote(tmp_path):
    out, _ = game("show", "--config", "hex8_3p", "--random", "40", "--seed", "5", "--json")
    fields = json.loads(out)
    legal = fields.pop("legal")
    path = tmp_path / "state.json"
    path.write_text(json.dumps(fields))
    again, _ = game("show", "--config", "hex8_3p", "--state", str(path), "--json")
    assert json.loads(again) == {**fields, "legal": legal}
    _, err = game("show", "--config", "square8_3p", "--state", "-", stdin=json.dumps(fields), code=2)
    assert "state of hex8_3p" in err


def test_show_names_an_illegal_move():
    _, err = game("show", "--config", "square8_2p", "--moves", "M 0,0>0,1", code=2)
    assert err.startswith("ringrift: illegal action 'M 0,0>0,1'")
