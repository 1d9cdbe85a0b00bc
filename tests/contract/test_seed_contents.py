"""A module of the documents gives what their inventory says it holds, and is no mirror of another.

`tests/data/documents/contents.csv` says for each module what it holds and the names that give it. Modules of
moving data have tests of their own; those of capabilities that are not built refuse with the reason.
"""

import csv
import importlib
import warnings
from pathlib import Path

import pytest

from app._table import ALIASES

DOCUMENTS = Path(__file__).parents[1] / "data" / "documents"
MOVING_DATA = ("ringrift.data.", "ringrift.resources.")

# Files of `ringrift.coordination` that are no module of the documents, and what they are.
WITHOUT_A_PATH = {
    "event_buses": "the buses behind stage_events and data_events",
    "initializer": "how coordination_bootstrap starts coordinators",
    "per_orchestrator": "a daemon type",
    "progress_watchdog": "a daemon type",
    "run_coordinator": "what coordinators of a run share",
    "stale_fallback": "a daemon type",
    "wiring_audit": "what coordination_bootstrap and the audit ask",
}


def rows(name):
    with (DOCUMENTS / name).open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


CONTENTS = rows("contents.csv")


def imported(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        path = f"app.coordination.{module}"
        return importlib.import_module(path if path in ALIASES else f"app.distributed.{module}")


@pytest.mark.parametrize("row", CONTENTS, ids=lambda row: row["module"])
def test_a_module_gives_what_it_is_said_to_hold(row):
    module = imported(row["module"])
    listed = dir(module)
    assert [name for name in row["names"].split() if name not in listed and not hasattr(module, name)] == []


def test_no_module_is_a_mirror_of_another():
    held = {row["module"]: frozenset(row["names"].split()) for row in CONTENTS}
    assert [name for name, names in held.items() if list(held.values()).count(names) > 1] == []


def test_every_present_module_of_the_documents_is_in_the_list():
    listed = {row["module"] for row in CONTENTS}
    missing = []
    for path, alias in ALIASES.items():
        module = path.removeprefix("app.coordination.")
        if "." in module or not alias.available or alias.deprecated or module in ("deprecated", "cluster"):
            continue
        moves_data = all(
            home.startswith((*MOVING_DATA, "ringrift.coordination.sync")) for home in alias.built_homes()
        )
        if module not in listed and not moves_data:
            missing.append(module)
    assert missing == [], "say what it holds in contents.csv"


def test_every_path_with_a_file_of_its_own_gives_its_names():
    folder = Path(importlib.import_module("ringrift.coordination").__file__).parent
    for file in sorted(folder.glob("*.py")):
        if file.stem == "__init__" or file.stem in WITHOUT_A_PATH:
            continue
        own = importlib.import_module(f"ringrift.coordination.{file.stem}")
        module, public = imported(file.stem), getattr(own, "__all__", ())
        assert [name for name in public if getattr(module, name) is not getattr(own, name)] == []


def test_only_files_on_the_short_list_have_no_path_of_the_documents():
    folder = Path(importlib.import_module("ringrift.coordination").__file__).parent
    there = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    without = {name for name in there if not any(path.endswith(f".{name}") for path in ALIASES)}
    assert without == set(WITHOUT_A_PATH)
