"""The documentation page of all events, as text."""

from __future__ import annotations

from ringrift.capabilities import capability
from ringrift.events.catalog import ALIASES, CATALOG, COMPONENTS, EventSpec

_INTRODUCTION = """\
<!--
Generated from the event catalog; change the catalog and run `python -m ringrift.events.catalog.generate`.
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
