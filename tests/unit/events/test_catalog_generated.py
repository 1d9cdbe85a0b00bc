"""What derives from the catalog is in step with it."""

import ast
import sys
from pathlib import Path

import pytest

from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.catalog.table import CATALOG

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from generate_catalog import generated_files


@pytest.mark.parametrize(
    ("path", "text"), generated_files().items(), ids=lambda item: getattr(item, "name", "")
)
def test_generated_file_is_up_to_date(path, text):
    assert path.read_text(encoding="utf-8") == text, "run `python scripts/generate_catalog.py`"


def test_the_enum_is_the_catalog():
    assert {member.name: member.value for member in DataEventType} == {
        spec.name: spec.value for spec in CATALOG.values()
    }
    assert DataEventType("sync_completed") is DataEventType.DATA_SYNC_COMPLETED


def test_the_stub_is_python():
    stub = next(text for path, text in generated_files().items() if path.suffix == ".pyi")
    names = [node.name for node in ast.walk(ast.parse(stub)) if isinstance(node, ast.AsyncFunctionDef)]
    assert len(names) == len(set(names))
    assert {f"emit_{name.lower()}" for name in CATALOG} <= set(names)
