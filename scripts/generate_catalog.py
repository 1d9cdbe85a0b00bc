"""Writes the files that derive from the catalog: `python scripts/generate_catalog.py`."""

from __future__ import annotations

from pathlib import Path

from ringrift.capabilities import capability
from ringrift.events.catalog.emission import EMITTERS, PREFIX, SYNC_SUFFIX, EmitterSpec
from ringrift.events.catalog.table import ALIASES, CATALOG, COMPONENTS, EventSpec, FieldSpec

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


def payloads_source() -> str:
    """`payloads.py`: one TypedDict per event."""
    classes = "".join(_payload_class(spec) for spec in CATALOG.values())
    return (
        f'{HEADER}"""The payload of every event, for type checkers. Further fields are always allowed."""\n\n'
        f"from __future__ import annotations\n\nfrom typing import Any, NotRequired, TypedDict\n{classes}"
    )


def _payload_class(spec: EventSpec) -> str:
    name = "PayloadOf" + "".join(part.capitalize() for part in spec.name.split("_"))
    lines = "".join(f"    {item.name}: {_payload_type(item)}\n" for item in spec.fields)
    return f'\n\nclass {name}(TypedDict):\n    """{spec.name}."""\n\n{lines}'


def _annotation(kind: str) -> str:
    return _TYPES.get(kind, kind.replace(",", ", "))


def _payload_type(item: FieldSpec) -> str:
    kind = _annotation(item.type)
    return kind if item.required else f"NotRequired[{kind} | None]"


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


# The documentation page of all events, as text.


_INTRODUCTION = """\
<!--
Generated from the event catalog; change the catalog and run `python scripts/generate_catalog.py`.
-->
# Events

Every event of the catalog. Names are accepted in any case, as wire value or as one of the other names; the
canonical name is delivered. A field with `?` may be left out. Field names after "also" are accepted and
delivered under the canonical name beside them; `board_type` with `num_players` gives `config_key`. An event
that *crosses processes* reaches every process on the same engine. A component in *italics* comes with a part
that is not built yet.

{count} events in {categories} categories: {index}.
"""


def events_page() -> str:
    """`docs/events.md`."""
    by_category: dict[str, list[EventSpec]] = {}
    for spec in CATALOG.values():
        by_category.setdefault(spec.category, []).append(spec)
    categories = sorted(by_category)
    index = ", ".join(f"[{name}](#{name})" for name in categories)
    page = [_INTRODUCTION.format(count=len(CATALOG), categories=len(categories), index=index)]
    for name in categories:
        page.append(f"## {name}\n")
        page += [_entry(spec) for spec in by_category[name]]
    return "\n".join(page)


def _entry(spec: EventSpec) -> str:
    marks = [f"`{spec.value}`", spec.severity]
    marks.append("crosses processes" if spec.crosses else "stays in its process")
    marks += ["high impact"] if spec.high_impact else []
    marks += ["emitter retries"] if spec.retried else []
    lines = [f"### {spec.name}\n", f"{' · '.join(marks)}\n", f"- fields: {_fields(spec)}"]
    if others := sorted(alias.alias for alias in ALIASES.values() if alias.canonical == spec.name):
        lines.append(f"- other names: {', '.join(f'`{name}`' for name in others)}")
    if failures := sorted(alias.alias for alias in ALIASES.values() if alias.when_failed == spec.name):
        lines.append(f"- also a failed {', '.join(f'`{name}`' for name in failures)}")
    when = f" ({spec.emitted_when})" if spec.emitted_when else ""
    lines.append(f"- sent by {_components(spec.emitted_by)}{when}")
    lines.append(f"- heard by {_components(spec.consumed_by)}")
    lines += [f"- {spec.note}"] if spec.note else []
    return "\n".join(lines) + "\n"


def _fields(spec: EventSpec) -> str:
    texts = []
    for item in spec.fields:
        accepted = [alias for alias, name in spec.field_aliases.items() if name == item.name]
        also = f" (also {', '.join(accepted)})" if accepted else ""
        texts.append(f"`{item.name}{'' if item.required else '?'}: {item.type}`{also}")
    return ", ".join(texts)


def _components(names: tuple[str, ...]) -> str:
    shown = (name if capability(COMPONENTS[name]).built else f"*{name}*" for name in names)
    return ", ".join(shown) or "nobody; internal"


_CHECKOUT = Path(__file__).resolve().parents[1]
_CATALOG = _CHECKOUT / "src" / "ringrift" / "events" / "catalog"


def generated_files() -> dict[Path, str]:
    """Path to content, for every derived file."""
    return {
        _CATALOG / "event_types.py": enum_source(),
        _CATALOG / "payloads.py": payloads_source(),
        _CATALOG.parents[1] / "coordination" / "event_emitters.pyi": emitters_stub(),
        _CHECKOUT / "docs" / "events.md": events_page(),
    }


def main() -> None:
    for path, text in generated_files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
