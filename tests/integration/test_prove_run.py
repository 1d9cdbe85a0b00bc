"""How the whole loop is measured: the processor time of all processes, and what is made of it."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ringrift.cli.command import use_data_folder
from ringrift.files import file_sha256
from ringrift.jobs.files import read_json, seal_json

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from measured_run import Keeper, ProcessTimes, longest_idle_s
from prove_run import kept_path

SCRIPTS = Path(__file__).parents[2] / "scripts"
EARLIER = Path(__file__).parents[1] / "data" / "earlier_run_folder.tar.xz"

# Burns some processor time as a child, as a grandchild that is waited for, and as an orphan that outlives its
# parent; every process says what it used itself.
FAMILY = """
import os, subprocess, sys, time
def burn(seconds):
    while time.process_time() < seconds:
        pass
    print(time.process_time(), flush=True)
if len(sys.argv) > 1:
    burn(float(sys.argv[1]))
else:
    subprocess.run([sys.executable, __file__, "0.4"], check=True)
    subprocess.Popen(["sh", "-c", f"{sys.executable} {__file__} 0.8 & exit 0"]).wait()
    burn(0.4)
"""
# In a process of its own, since it adopts orphans for the rest of its life.
WATCHER = """
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from measured_run import ProcessTimes, all_processes, descendants
times = ProcessTimes()
run = subprocess.Popen([sys.executable, sys.argv[2]], stdout=subprocess.PIPE, text=True)
times.run_pid = run.pid
looks = []
while True:
    looks.append(times.look())
    if run.poll() is not None and not descendants(os.getpid(), all_processes()):
        break
    time.sleep(0.02)
print(looks[-1], max(looks) == looks[-1], sum(map(float, run.stdout.read().split())))
"""


def test_orphans_and_grandchildren_count_and_nothing_counts_twice(tmp_path):
    family, watcher = tmp_path / "family.py", tmp_path / "watcher.py"
    family.write_text(FAMILY)
    watcher.write_text(WATCHER)
    ran = subprocess.run(
        [sys.executable, str(watcher), str(SCRIPTS), str(family)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    total, never_falls, said = ran.stdout.split()
    assert never_falls == "True"
    # What they say of themselves leaves out how long their interpreters and the shell took to end.
    assert float(said) <= float(total) + 0.02
    assert float(total) < float(said) + 0.8


def test_the_longest_time_without_a_job():
    busy = [(10, 20), (5, 8), (12, 14), (27, 30)]
    assert longest_idle_s(busy, since_s=0, until_s=30) == 7
    assert longest_idle_s(busy, since_s=0, until_s=45) == 15
    assert longest_idle_s([], since_s=0, until_s=9) == 9


def test_a_report_has_the_strength_of_all_seeds_and_also_runs_that_were_cut_off(tmp_path):
    told = {
        "games": 10,
        "rows": 200,
        "trainings": 2,
        "verdicts": 1,
        "promotions": 1,
        "steps_share": 0.9,
        "untrained_rows_share": 0.1,
        "first_promotion_s": 61.0,
        "idle_s_max": 3.0,
        "wait_s": {"train": 1.5},
        "start_s": 0.9,
        "start_share": 0.02,
        "champion_number": 1,
        "generator_number": None,
    }
    split = {"self-play": 60.0, "training": 25.0, "judging": 11.0, "export": 4.0}
    for seed, name, score in ((1, "end.json", 0.9), (2, "latest.json", 0.8)):
        folder = tmp_path / "connect_four_2p" / f"seed{seed}"
        kept = folder / "kept" / "connect_four_2p" / "champion"
        kept.mkdir(parents=True)
        about = {"configs": ["connect_four_2p"], "seed": seed, "machine": "2 cores", "marks": [100]}
        seal_json(folder / "about.json", about)
        noted = {"s": 60, "cpu_s": 100.0, "split": split, "configs": {"connect_four_2p": told}}
        seal_json(folder / name, noted)
        match = {"seed": seed, "cpu_s": 100, "against": "mcts", "simulations": 100, "score": score}
        seal_json(kept / "results.json", [match])
    subprocess.run(
        [sys.executable, str(SCRIPTS / "prove_run.py"), "report", "--out", str(tmp_path)],
        capture_output=True,
        timeout=120,
        check=True,
    )
    [found] = read_json(tmp_path / "report.json")["strength"]
    assert (found["mean"], found["low"], found["high"], found["seeds"]) == (0.85, 0.8, 0.9, 2)
    text = (tmp_path / "report.md").read_text()
    assert "85.0% (80.0% to 90.0%)" in text
    assert "cut off" in text
    assert "0.9 (2.0%)" in text
    assert "| 4.0% |" in text
    assert (tmp_path / "connect_four_2p.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "report.json").read_text())["runs"][0]["whole"]


def test_what_is_published_is_kept_as_it_is_with_what_the_facts_say(tmp_path):
    folder = tmp_path / "connect_four_2p" / "seed1"
    folder.mkdir(parents=True)
    with tarfile.open(EARLIER) as packed:
        packed.extractall(folder, filter="data")
    use_data_folder(folder / "data")
    times = ProcessTimes(adopts=False)
    times.total_s = 705.0
    keeper = Keeper(folder, ["connect_four_2p"], kept_path, began_s=0.0)
    assert keeper.keep_mark(705.0, times)
    told = read_json(folder / "mark-000705.json")
    kept = folder / "kept" / "connect_four_2p" / "champion"
    assert told["kept"]["connect_four_2p"]["champion"] == file_sha256(kept / "seed1" / "000705.safetensors")
    numbers = told["configs"]["connect_four_2p"]
    assert numbers["promotions"] >= 1
    assert numbers["rows"] > 0
    assert sum(numbers["cpu_s"].values()) == pytest.approx(705.0 - told["split"]["under way or lost"], abs=1)
