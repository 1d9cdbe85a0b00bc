"""Sample files that are whole, and every way in which one may not be."""

from __future__ import annotations

import hashlib
import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.data.manifest.file_facts import check_dataset, quick_npz_check, validate_npz_structure


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_a_whole_file(tmp_path):
    rows = {"features": np.zeros((7, 4, 3, 3), np.float32), "values": np.zeros(7, np.float32)}
    found = validate_npz_structure(write(tmp_path / "a.npz", **rows, policy_indices=np.zeros(3, np.int32)))
    assert found
    assert (found.sample_count, found.array_shapes["features"]) == (7, (7, 4, 3, 3))
    assert found.array_dtypes["values"] == "<f4"
    assert found.warnings == ()
    assert quick_npz_check(tmp_path / "a.npz") == (True, None)


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"values": np.zeros(3)}, "the array features or states is missing"),
        ({"features": np.zeros((4, 2)), "values": np.zeros(3)}, "differ in their number of rows"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, arrays, error):
    ok, message = quick_npz_check(write(tmp_path / "a.npz", **arrays))
    assert not ok
    assert error in message


def test_a_stitched_file_that_claims_billions_of_rows_is_refused_without_loading_it(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (22_000_000_000,)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("values.npy", header.getvalue())
        archive.writestr("features.npy", header.getvalue())
    found = validate_npz_structure(tmp_path / "a.npz")
    assert not found
    assert any("22000000000" in error for error in found.errors)


def test_missing_empty_and_cut_files(tmp_path):
    assert "is no file" in quick_npz_check(tmp_path / "none.npz")[1]
    (tmp_path / "empty.npz").write_bytes(b"")
    assert not quick_npz_check(tmp_path / "empty.npz")[0]
    whole = write(tmp_path / "a.npz", features=np.zeros((50, 9)), values=np.zeros(50)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert not quick_npz_check(tmp_path / "cut.npz")[0]


@given(st.binary(max_size=200) | st.sampled_from([b"5", b"{}", b"\x93NUMPY", b"{'shape': 5, 'descr': 1}"]))
def test_any_bytes_get_an_answer(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("values.npy", data)
        archive.writestr("features.npy", b"\x93NUMPY\x01\x00" + len(data).to_bytes(2, "little") + data)
    assert not validate_npz_structure(path).valid


# --- read to the end --------------------------------------------------------------------------------------


def exported(path, **changed):
    """A file with checksums, as an export writes it; *changed* arrays differ from what was summed."""
    arrays = {"features": np.ones((7, 4), np.float32), "values": np.linspace(-1, 1, 7, dtype=np.float32)}
    sums = {name: hashlib.sha256(each.tobytes()).hexdigest() for name, each in arrays.items()}
    return write(path, **{**arrays, **changed}, checksums=np.array(json.dumps(sums)))


def test_a_whole_export_passes_and_changed_content_does_not(tmp_path):
    assert check_dataset(exported(tmp_path / "a.npz"))
    found = check_dataset(exported(tmp_path / "b.npz", values=np.zeros(7, np.float32)))
    assert found.errors == ("the content of values is not what was exported",)
    assert validate_npz_structure(tmp_path / "b.npz"), "headers alone cannot tell"


def test_every_flipped_byte_of_an_array_is_found(tmp_path):
    whole = exported(tmp_path / "a.npz").read_bytes()
    start = whole.index(np.ones(4, np.float32).tobytes())
    for place in range(start, start + 16):
        broken = bytearray(whole)
        broken[place] ^= 0x40
        (tmp_path / "b.npz").write_bytes(broken)
        assert not check_dataset(tmp_path / "b.npz")


def test_a_header_that_claims_another_size_is_found(tmp_path):
    header = io.BytesIO()
    claimed = {"descr": "<f4", "fortran_order": False, "shape": (7, 2)}
    np.lib.format.write_array_header_1_0(header, claimed)
    with zipfile.ZipFile(exported(tmp_path / "a.npz"), "a") as archive:
        archive.writestr("weights.npy", header.getvalue() + bytes(28))
    assert check_dataset(tmp_path / "a.npz").errors == (
        "the array weights is unreadable: it holds 28 bytes, its header claims 56",
    )


def test_memory_does_not_grow_with_the_file(tmp_path):
    many = {"features": np.zeros((40_000, 200), np.float32), "values": np.zeros(40_000, np.float32)}
    write(tmp_path / "a.npz", **many)
    tracemalloc.start()
    assert check_dataset(tmp_path / "a.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
