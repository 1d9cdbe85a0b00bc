"""Sample files that an attacker wrote are refused with the reason; a check always gives an answer."""

import hashlib
import io
import json
import os
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "jobs"))
from jobs_samples import random_game, run, write_shard

from ringrift.data.manifest.file_facts import check_dataset, quick_npz_check
from ringrift.games.registry import load_game
from ringrift.jobs.kinds import ExitCode
from ringrift.jobs.samples.export import EXPORT
from ringrift.jobs.samples.npz_files import check_samples, quick_check

GAME = "square8_2p"
MEMORY_BYTES = 1 << 30


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    shard = write_shard(folder, [random_game(GAME, seed) for seed in range(2)], key=GAME).path
    assert run(EXPORT, "--shards", shard, "--out", folder / "x.npz")[0] == 0
    return folder / "x.npz"


def arrays_of(path):
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def summed(arrays):
    """The arrays with checksums that agree: an attacker can count too."""
    listed = {name: array for name, array in arrays.items() if array.shape}
    sums = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in listed.items()}
    return {**arrays, "checksums": np.array(json.dumps(sums))}


def npy(dtype="<f4", shape="(3,)", body=b"\0" * 12, fortran="False"):
    header = f"{{'descr': '{dtype}', 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def zipped(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


GOOD = [("values.npy", npy()), ("features.npy", npy())]


def overlapping():
    """Two entries of the directory for the same bytes."""
    content = bytearray(zipped(GOOD))
    second = content.rfind(b"PK\x01\x02")
    content[second + 42 : second + 46] = bytes(4)
    return bytes(content)


def many_entries():
    return zipped([(f"a{number}.npy", b"") for number in range(20_000)])


def claimed_directory():
    content = bytearray(zipped(GOOD))
    content[-22 + 12 : -22 + 16] = struct.pack("<L", 1 << 31)
    return bytes(content)


FILES = {
    "nothing": (b"", ""),
    "no_zip": (b"PK\x05\x06" + b"x" * 100, "no zip file"),
    "many_entries": (many_entries, "20000 entries"),
    "claimed_directory": (claimed_directory, "claims"),
    "comment": (zipped(GOOD)[:-2] + b"\x05\x00hello", "comment"),
    "twice": (zipped([*GOOD, ("valuez.npy", npy())]).replace(b"valuez", b"values"), "twice"),
    "path": (zipped([("../values.npy", npy())]), "no name of an array"),
    "overlapping": (overlapping, "shares bytes"),
    "bomb": (
        lambda: zipped([("values.npy", npy(shape="(3221225472,)", body=b"")), ("z.npy", bytes(3 << 20))]),
        "cannot be",
    ),
    "packed_oddly": (lambda: zipped(GOOD, zipfile.ZIP_BZIP2), "packed or locked"),
    "object": (zipped([("values.npy", npy("|O"))]), "unpickling"),
    "code": (zipped([("values.npy", npy(shape="(__import__('os').getpid(),)"))]), "header"),
    "negative": (zipped([("values.npy", npy(shape="(-3,)"))]), "header"),
    "deep": (zipped([("values.npy", npy(shape="(" * 3000 + ")" * 3000))]), "header"),
    "long_header": (
        zipped([("values.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 100)]),
        "header claims",
    ),
    "billions": (zipped([("values.npy", npy(shape="(999999999, 999999999)"))]), "claims"),
    "columns_first": (zipped([("values.npy", npy(shape="(3, 1)", fortran="True"))]), "before rows"),
    "odd_type": (zipped([("values.npy", npy("<f3"))]), "type"),
}


@pytest.mark.parametrize("name", FILES)
def test_any_file_gets_an_answer(tmp_path, name):
    content, why = FILES[name]
    path = tmp_path / "x.npz"
    path.write_bytes(content() if callable(content) else content)
    for check in (quick_npz_check, quick_check):
        ok, said = check(path)
        assert not ok
        assert why in said
    assert not check_dataset(path)
    assert not check_samples(path).valid


def test_a_pipe_a_folder_and_an_unreadable_path_get_an_answer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "a" / "b", Path("nul\0name"), Path("x" * 5000)):
        assert not quick_npz_check(path)[0]
        assert not quick_check(path)[0]


def test_unpacking_is_bounded_by_the_size_of_the_file(tmp_path):
    path = tmp_path / "x.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("values.npy", "w") as member,
    ):
        member.write(npy(shape="(200000000,)", body=b""))
        for _ in range(200):
            member.write(bytes(4_000_000))
    assert path.stat().st_size < 4 << 20
    assert "would unpack to" in quick_check(path)[1]


CHANGES = {
    "seat_100": (lambda a: a["seats"].__setitem__(0, 100), "seats"),
    "seat_of_the_other": (lambda a: a.update(seats=1 - a["seats"]), "another player is on turn"),
    "phase_off_the_table": (lambda a: a["states"].__setitem__((1, 1), -(10**9)), "no position of square8_2p"),
    "cell_off_the_board": (lambda a: a["states"].__setitem__((1, 2), 10**12), "no position"),
    "stack_of_31": (lambda a: a["states"].__setitem__((1, 60), 9 | 31 << 4 | 31 << 9), "no position"),
    "action_beyond": (lambda a: a["policy_indices"].__setitem__(0, 2**31 - 1), "not the legal actions"),
    "action_not_legal": (
        lambda a: a["policy_indices"].__setitem__(0, a["policy_indices"][1]),
        "not the legal",
    ),
    "weights_of_nan": (lambda a: a["sample_weights"].__setitem__(0, np.nan), "finite"),
    "other_type": (lambda a: a.update(seats=a["seats"].astype(np.int64)), "expected int8"),
    "values_of_5": (lambda a: a["values_mp"].__setitem__((0, 0), 5), "expected -1 to 1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_rows_that_the_rules_do_not_know_are_refused(sound, tmp_path, name):
    change, why = CHANGES[name]
    arrays = arrays_of(sound)
    change(arrays)
    np.savez(tmp_path / "x.npz", **summed(arrays))
    found = check_samples(tmp_path / "x.npz", game=load_game(GAME))
    assert any(why in error for error in found.errors), found.errors


def without_checksums(arrays):
    return {name: array for name, array in arrays.items() if name != "checksums"}


def with_seat_100(arrays):
    arrays["seats"][0] = 100
    return summed(arrays)


@pytest.mark.parametrize(
    ("change", "why"), [(without_checksums, "no checksum"), (with_seat_100, "seats: from 0 to 100")]
)
def test_training_refuses_what_it_cannot_trust_and_says_why(sound, tmp_path, change, why):
    np.savez(tmp_path / "x.npz", **change(arrays_of(sound)))
    command = [sys.executable, "-m", "ringrift.jobs", "train", "--config", GAME]
    command += ["--samples", str(tmp_path / "x.npz"), "--out", str(tmp_path / "m.safetensors")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == ExitCode.DATA_REFUSED, ended.stderr
    assert why in json.loads(ended.stdout.splitlines()[-1])["error"]
    assert not (tmp_path / "m.safetensors").exists()


def test_all_of_them_in_little_memory(tmp_path):
    for name, (content, _) in FILES.items():
        (tmp_path / f"{name}.npz").write_bytes(content() if callable(content) else content)
    code = (
        "import sys; from pathlib import Path; from ringrift.data.manifest.file_facts import check_dataset\n"
        "print([bool(check_dataset(path)) for path in sorted(Path(sys.argv[1]).glob('*.npz'))])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )
    assert ended.stdout.strip() == str([False] * len(FILES)), ended.stderr
