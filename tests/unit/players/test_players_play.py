"""Playing at a terminal, as a person or a pipe sees it."""

import io
import os
import pty
import subprocess
import sys

import pytest

from ringrift.jobs.play import main


def play(answers, *argv):
    out = io.StringIO()
    code = main(["--seed", "3", *argv], source=io.StringIO("".join(f"{line}\n" for line in answers)), out=out)
    return code, out.getvalue()


def test_a_person_plays_to_the_end():
    code, said = play(["1", "1", "1", "1"] * 12, "--config", "connect_four_2p", "--seats", "human", "random")
    assert code == 0
    assert "player 1 (you): 1" in said
    assert "player 2 (random):" in said
    assert "1 2 3 4 5 6 7" in said
    assert "Game over" in said or "Left the game." in said


def test_legal_moves_are_listed_and_filtered():
    code, said = play(["?", "? P 0,0", "quit"])
    assert code == 0
    assert "P 7,7 3" in said
    assert "192 of 192 legal moves" in said
    assert "3 of 192 legal moves" in said
    assert "M a>b: slide" in said


def test_wrong_input_is_explained_and_nothing_happens():
    _, said = play(["P 9,9 1", "", "nonsense", "quit"])
    assert "'P 9,9 1' is not a legal move here. Legal ones are such as: P" in said
    assert "Enter a move, ? for the legal moves" in said
    assert "(you)" not in said


def test_undo_goes_back_to_the_last_own_decision():
    _, said = play(
        ["undo", "4", "undo", "5", "undo", "undo", "quit"],
        "--config",
        "connect_four_2p",
        "--seats",
        "human",
        "mcts:5",
    )
    assert said.count("there is nothing of yours to take back") == 2
    assert said.count("taken back") == 2
    boards = said.split("player 1, 7 moves> ")
    assert boards[1].count("there is nothing") == 1
    assert "o" not in boards[3].split("taken back")[1].split("1 2 3")[0].split("\n\n")[-1]


def test_the_end_of_input_ends_the_game():
    code, said = play([])
    assert code == 0
    assert said.endswith("Left the game.\n")


def test_two_players_are_watched_and_a_seed_repeats_the_game():
    argv = ("--config", "square8_2p", "--seats", "heuristic", "random", "--no-boards")
    first, second = play([], *argv), play([], *argv)
    assert first == second
    assert first[1].count("player 2: hand") == 1  # one board, at the end
    assert "Game over" in first[1]


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--config", "nowhere_2p"], "no game 'nowhere'"),
        (["--seats", "human"], "2 seats, but 1 players"),
        (["--seats", "human", "champion"], "names no player"),
        (["--seed", "-1"], "must not be negative"),
    ],
)
def test_what_cannot_be_played_is_refused(argv, problem, capsys):
    code, _ = play([], *argv)
    assert code == 2
    assert problem in capsys.readouterr().err


def test_it_plays_on_a_terminal():
    """A real pseudo-terminal: the program sees a person, whose typing the terminal itself shows."""
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "ringrift.jobs.play", "--config", "connect_four_2p"]
    child = subprocess.Popen(
        [*program, "--seats", "human", "random", "--seed", "1"], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    for answer in (b"?\n", b"4\n", b"quit\n"):
        while not said.endswith(b"moves> "):
            said += os.read(ours, 4096)
        said += b"\n"
        os.write(ours, answer)
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    assert child.wait(timeout=60) == 0
    assert b"player 1 (you): 4" in said
    assert b"Left the game." in said


def test_a_reader_who_leaves_is_no_fault():
    program = (
        f"{sys.executable} -m ringrift.jobs.play --config connect_four_2p --seats random random | head -1"
    )
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {program}"], capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
