"""Job folders: names from any item id, parameters filled in, and no file from elsewhere."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.errors import ConfigError, Corrupt
from ringrift.work.job.folder import JobFolders, JobRecord
from ringrift.work.job.protocol import JobOrder


@pytest.fixture
def folders(tmp_path):
    return JobFolders(tmp_path / "jobs")


@pytest.fixture
def folder(folders):
    folder = folders.of("item")
    folder.prepare()
    return folder


@given(st.sets(st.text(min_size=1, max_size=300), min_size=2, max_size=5))
def test_every_item_has_a_folder_of_its_own_inside_the_root(tmp_path_factory, ids):
    folders = JobFolders(tmp_path_factory.getbasetemp() / "jobs")
    paths = {folders.of(item_id).path for item_id in ids}
    assert len(paths) == len(ids)
    for path in paths:
        assert path.parent == folders.root
        assert path.name not in (".", "..")
        assert not path.name.startswith(".")
        assert len(path.name.encode()) <= 255


def test_parameters_name_the_real_folders(folder):
    params = {
        "model": "model:{inputs}/m@64",
        "out": "{out}/x",
        "list": ["{inputs}/a", 3],
        "n": {"o": "{out}"},
    }
    folder.write_params(JobOrder(config="c", params=params))
    inputs, out = str(folder.inputs), str(folder.out)
    assert json.loads(folder.params.read_text()) == {
        "model": f"model:{inputs}/m@64",
        "out": f"{out}/x",
        "list": [f"{inputs}/a", 3],
        "n": {"o": out},
    }


def test_what_the_job_wrote_survives_another_attempt(folder, folders, tmp_path):
    source = tmp_path / "blob"
    source.write_bytes(b"content")
    (folder.out / "half.games").write_text("half")
    folder.link_input("old", source)
    again = folders.of("item")
    again.prepare()
    again.drop_other_inputs({"new": "digest"})
    again.link_input("new", source)
    assert (again.out / "half.games").read_text() == "half"
    assert [path.name for path in again.inputs.iterdir()] == ["new"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", ""])
def test_an_input_cannot_leave_the_folder(folder, tmp_path, name):
    with pytest.raises(ConfigError):
        folder.link_input(name, tmp_path)


def test_an_artifact_is_a_file_of_the_folder(folder, tmp_path):
    (folder.out / "deep").mkdir()
    (folder.out / "deep" / "a.db").write_text("x")
    (folder.inputs / "s.report.json").write_text("x")
    assert folder.artifact(str(folder.out / "deep" / "a.db"))[0] == "deep/a.db"
    assert folder.artifact("deep/a.db")[0] == "deep/a.db"
    assert folder.artifact(str(folder.inputs / "s.report.json"))[0] == "s.report.json"
    secret = tmp_path / "secret"
    secret.write_text("x")
    (folder.out / "link").symlink_to(secret)
    for said in (str(secret), "../../../secret", str(folder.out / "link"), str(folder.out), "gone"):
        with pytest.raises(Corrupt):
            folder.artifact(said)


def test_a_record_is_read_back_and_a_broken_one_is_none(folder):
    record = JobRecord(item_id="item", kind="k", config="c", worker="w", token=7)
    folder.write_record(record)
    assert folder.read_record() == record
    (folder.path / "record.json").write_text("{")
    assert folder.read_record() is None


def test_removing_twice_is_harmless(folder, folders):
    assert [each.path for each in folders.all()] == [folder.path]
    folder.remove()
    folder.remove()
    assert folders.all() == []
