"""Writes the files that derive from the catalog: `python scripts/generate_catalog.py`."""

from __future__ import annotations

from pathlib import Path

from ringrift.events.catalog.emission import EMITTERS, PREFIX, SYNC_SUFFIX, EmitterSpec
from ringrift.events.catalog.table import CATALOG, FieldSpec

# The Python files that derive from the catalog, as text.


HEADER = (
    "# Generated from the event catalog; change the catalog and run `python scripts/generate_catalog.py`.\n"
)
_TYPES = {"any": "Any", "dict": "dict[str, Any]", "list": "list[Any]"}


def enum_source() -> str:
    """`event_types.py`: the enum."""
    members = "".join(f'    {spec.name} = "{spec.value}"\n' for spec in CATALOG.values())
    return (
        f'{HEADER}"""Every event of the catalog, as an enum. A member equals its wire value."""\n\n'
        "from __future__ import annotations\n\nfrom enum import StrEnum\n\n"
        '__all__ = ["DataEventType"]\n\n\n'
        'class DataEventType(StrEnum):\n    """Every event; the value is what goes over the wire."""\n\n'
        f"{members}"
    )


def _annotation(kind: str) -> str:
    return _TYPES.get(kind, kind.replace(",", ", "))


def emitters_stub() -> str:
    """`event_emitters.pyi`: the signatures that `event_emitters.py` makes at run time."""
    functions = "".join(_emitter_stub(spec, f"{PREFIX}{name}") for name, spec in EMITTERS.items())
    return (
        f"{HEADER}# ruff: noqa: E501\n# fmt: off\n"
        "from collections.abc import Mapping\nfrom os import PathLike\nfrom typing import Any, Literal\n\n"
        "def is_critical_event(event_type: Any) -> bool: ...\n"
        "async def emit_generic_event("
        "event_type: Any, payload: Mapping[str, Any] | None = ..., source: str = ...) -> bool: ...\n"
        "async def emit_data_event("
        "event_type: Any, payload: Mapping[str, Any] | None = ..., source: str = ...) -> bool: ...\n"
        'async def emit_optimization_triggered(optimization_type: Literal["cmaes", "nas"], run_id: str, '
        "reason: str, *, source: str = ..., **fields: Any) -> bool: ...\n"
        f"{functions}"
    )


def _emitter_stub(spec: EmitterSpec, name: str) -> str:
    positional = [_argument(item) for item in spec.parameters]
    taken = {item.name for item in spec.parameters}
    keyword = [_argument(item) for item in spec.event.fields if item.name not in taken]
    arguments = ", ".join([*positional, "*", *keyword, "source: str = ...", "**fields: Any"])
    signature = f"({arguments}) -> bool: ...\n"
    return f"async def {name}{signature}def {name}{SYNC_SUFFIX}{signature}"


def _argument(item: FieldSpec) -> str:
    kind = _annotation(item.type)
    if kind == "str" and item.name.endswith("path"):
        kind = "str | PathLike[str]"
    return f"{item.name}: {kind if kind == 'Any' else f'{kind} | None'} = ..."


_CHECKOUT = Path(__file__).resolve().parents[1]
_CATALOG = _CHECKOUT / "src" / "ringrift" / "events" / "catalog"


def generated_files() -> dict[Path, str]:
    """Path to content, for every derived file."""
    return {
        _CATALOG / "event_types.py": enum_source(),
        _CATALOG.parents[1] / "coordination" / "event_emitters.pyi": emitters_stub(),
    }


def main() -> None:
    for path, text in generated_files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
