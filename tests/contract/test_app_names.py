"""What each `app.*` path gives: the public names of its homes, all of them and nothing else.

`tests/data/app_names.json` pins them, so that no name gets lost while code moves. After a deliberate change
`python tests/contract/test_app_names.py` writes it again and prints what came and went.
"""

import ast
import importlib
import inspect
import json
import types
import typing
import warnings
from pathlib import Path

import pytest

from app._table import ALIASES

PINNED = Path(__file__).parents[1] / "data" / "app_names.json"
COMMAND = "python tests/contract/test_app_names.py"
EMITTERS = "app.coordination.event_emitters"  # hundreds of names, which several paths give: listed once
HOMES = sorted({home for alias in ALIASES.values() if alias.available for home in alias.built_homes()})


def imported(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(path)


def given():
    """Every path with its public names; None for a path of a capability that is not built."""
    return {path: dir(imported(path)) if alias.available else None for path, alias in sorted(ALIASES.items())}


def packed(names):
    """Without repetition: `+path` stands for all names of that path."""
    rows, homes_of_lists = {}, {}
    for path, listed in names.items():
        if listed is None:
            rows[path] = None
            continue
        known = homes_of_lists.setdefault(tuple(listed), path)
        emitted = set(names[EMITTERS])
        if known != path:
            rows[path] = [f"+{known}"]
        elif path != EMITTERS and emitted < set(listed):
            rows[path] = [f"+{EMITTERS}", *(name for name in listed if name not in emitted)]
        else:
            rows[path] = listed
    return rows


def unpacked(rows):
    def names_of(path):
        found = set()
        for name in rows[path]:
            found |= names_of(name[1:]) if name.startswith("+") else {name}
        return found

    return {path: None if listed is None else sorted(names_of(path)) for path, listed in rows.items()}


def differences(before, after):
    """One line for each path that gives less or more than it did."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        was, is_now = set(before.get(path) or ()), set(after.get(path) or ())
        if path not in after:
            lines.append(f"{path} is gone")
        if path not in before:
            lines.append(f"{path} is new")
        lines += [f"{path} lost {name}" for name in sorted(was - is_now)]
        lines += [f"{path} gained {name}" for name in sorted(is_now - was)]
    return lines


def pinned():
    return unpacked(json.loads(PINNED.read_text(encoding="utf8")))


def test_every_path_gives_the_names_that_it_gave():
    changed = differences(pinned(), given())
    assert not changed, "\n".join([*changed, f"if this is meant: {COMMAND}"])


def test_a_lost_and_a_new_name_are_told():
    before = {"app.a": ["one", "two"], "app.b": ["three"], "app.c": None}
    after = {"app.a": ["one"], "app.b": ["three", "four"], "app.d": []}
    assert differences(before, after) == [
        "app.a lost two",
        "app.b gained four",
        "app.c is gone",
        "app.d is new",
    ]


def test_packing_loses_nothing():
    names = given()
    assert unpacked(packed(names)) == names


@pytest.mark.parametrize("home", HOMES)
def test_a_home_lists_what_is_public_and_nothing_of_others(home):
    module = importlib.import_module(home)
    assert hasattr(module, "__all__"), f"{home} must say in __all__ what its paths give"
    assert len(module.__all__) == len(set(module.__all__))
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf8"))
    foreign = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and not (getattr(node, "module", None) or "").startswith("ringrift")
        for name in node.names
    }
    assert foreign & set(module.__all__) == set()


def is_foreign(value):
    if isinstance(value, types.ModuleType):
        return not value.__name__.startswith("app.")
    if inspect.isclass(value) or inspect.isfunction(value):
        return not value.__module__.startswith("ringrift.")
    return isinstance(value, typing.TypeVar | typing.ParamSpec) or value is typing.Any


@pytest.mark.parametrize("path", [path for path, alias in ALIASES.items() if alias.available])
def test_no_path_gives_what_its_homes_merely_use(path):
    module = imported(path)
    assert [name for name in module.__all__ if is_foreign(getattr(module, name))] == []


@pytest.mark.parametrize("name", ["Any", "asyncio", "dataclass", "annotations"])
def test_what_a_home_imports_cannot_be_taken_from_its_path(name):
    enums = imported("app.coordination.enums")
    assert name not in enums.__all__
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(enums, name)


def test_a_module_of_a_home_does_not_stand_before_the_path_of_the_same_name():
    found = {}
    exec("from app.coordination import master_loop_guard", found)
    assert found["master_loop_guard"].__name__ == "app.coordination.master_loop_guard"
    assert found["master_loop_guard"].is_master_loop_running() in {True, False}


def test_a_name_of_a_capability_that_is_built_by_now_is_listed():
    package = imported("app.coordination")
    assert {"get_sync_facade", "training_slot"} <= set(package.__all__)
    assert "training_lock" not in package.__all__


if __name__ == "__main__":
    names = given()
    for line in differences(pinned() if PINNED.exists() else {}, names):
        print(line)
    PINNED.write_text(json.dumps(packed(names), indent=1) + "\n", encoding="utf8")
