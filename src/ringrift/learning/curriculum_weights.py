"""The curriculum weights as a file: a view of the shares of self-play that other programs can read.

Written at once or not at all. A reader takes nothing that is too old or not as it should be: {} means that
all configs count the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringrift.errors import ConfigError
from ringrift.held_folder import make_folders
from ringrift.private_files import replace_file
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings

FILE_NAME = "curriculum_weights.json"
AGE_S_MAX = 7_200.0
FILE_BYTES_MAX = 1_000_000
WEIGHT_DEFAULT = 1.0


def curriculum_file() -> Path:
    return get_settings().data_dir / FILE_NAME


def export_curriculum_weights(
    weights: Mapping[str, float], path: Path | None = None, *, runtime: Runtime | None = None
) -> Path:
    """Write *weights* with the time; `ConfigError` for one that is no number above 0."""
    wrong = {name: value for name, value in weights.items() if not math.isfinite(value) or value <= 0}
    if wrong:
        raise ConfigError(f"curriculum weights must be numbers above 0, not {wrong}")
    target = path or curriculum_file()
    now_s = (runtime or system_runtime()).now_s()
    content = {
        "weights": dict(weights),
        "updated_at": now_s,
        "updated_at_iso": datetime.fromtimestamp(now_s, UTC).isoformat(),
    }
    make_folders(target.parent)
    replace_file(target, (json.dumps(content, indent=1) + "\n").encode(), private=False, durable=False)
    return target


def load_curriculum_weights(
    path: Path | None = None, *, max_age_s: float = AGE_S_MAX, runtime: Runtime | None = None
) -> dict[str, float]:
    """The weights of the file; {} if there are none to be relied on."""
    try:
        text = (path or curriculum_file()).read_bytes()
        content = json.loads(text) if len(text) <= FILE_BYTES_MAX else None
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    updated_s, weights = content.get("updated_at"), content.get("weights")
    if updated_s is None or not _is_number(updated_s) or not isinstance(weights, dict):
        return {}
    if (runtime or system_runtime()).now_s() - updated_s > max_age_s:
        return {}
    return {name: float(value) for name, value in weights.items() if _is_number(value) and value > 0}


def get_curriculum_weight(
    config_key: str, path: Path | None = None, default: float = WEIGHT_DEFAULT
) -> float:
    """The weight of one config; 1.0 if nothing is known of it."""
    return load_curriculum_weights(path).get(config_key, default)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
