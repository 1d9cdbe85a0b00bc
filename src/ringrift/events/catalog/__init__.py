"""The one list of events: names, wire values, aliases, payloads, severity, who sends and who hears.

The enum, the typed payloads, the emitters, normalisation, the documentation page and the wiring audit
derive from it. To change an event, change the tables beside this file and run
`python -m ringrift.events.catalog.generate`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringrift.events.catalog.spec import AliasSpec, EventSpec, FieldSpec
from ringrift.events.catalog.table import SEVERITIES, load_aliases, load_catalog, load_components

__all__ = ["ALIASES", "CATALOG", "COMPONENTS", "SEVERITIES", "AliasSpec", "EventSpec", "FieldSpec"]

CATALOG: Mapping[str, EventSpec] = load_catalog()
ALIASES: Mapping[str, AliasSpec] = load_aliases(CATALOG)
COMPONENTS: Mapping[str, str] = load_components()
