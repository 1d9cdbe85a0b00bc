"""Parameters of jobs: typed, described and bounded in one place, given as JSON, as options, or both.

A job declares a frozen `Params` struct. `--params FILE` (or `-` for stdin) is a JSON object with the fields'
names; every field is also an option, which wins over the file. An unknown field or a value of the wrong
type is an error that names the field.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ringrift.decoding import convert_to
from ringrift.errors import ConfigError, Corrupt
from ringrift.foreign_files.documents import NoDocument, parse_json
from ringrift.foreign_files.paths import read_regular

PARAMS_BYTES_MAX = 16 * 2**20


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every job takes."""

    heartbeat_s: Annotated[
        float, msgspec.Meta(gt=0, le=3600, description="Say something at least this often.")
    ] = 10.0
    log_level: Annotated[str, msgspec.Meta(description="Least level of the log on stderr.")] = "info"


P = TypeVar("P", bound=Params)


def parse_params(kind: str, summary: str, params: type[P], argv: Sequence[str]) -> P:
    """Read options and JSON; raises `ConfigError` for values that cannot be, and exits for `--help`."""
    # As a worker starts it; making a parser takes longer than all the rest.
    is_all_json = len(argv) == 2 and argv[0] == "--params"
    options: dict[str, Any] = {"params_json": argv[1]} if is_all_json else {}
    options = options or vars(_parser(kind, summary, params).parse_args(argv))
    source = options.pop("params_json", None)
    fields = {} if source is None else _read_json(source)
    fields.update({name: value for name, value in options.items() if value is not None})
    return convert_params(kind, params, fields)


def convert_params(kind: str, params: type[P], fields: dict[str, Any]) -> P:
    """Build *params* from plain values."""
    missing = [f.encode_name for f in msgspec.structs.fields(params) if f.required and f.name not in fields]
    if missing:
        raise ConfigError(f"{kind}: missing {', '.join('--' + name.replace('_', '-') for name in missing)}")
    try:
        return convert_to(fields, params, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{kind}: {error}") from None


def params_as_json(params: Params) -> dict[str, Any]:
    """Plain values that `convert_params` takes back."""
    plain: dict[str, Any] = msgspec.to_builtins(params, enc_hook=str)
    return plain


def _parser(kind: str, summary: str, params: type[Params]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"ringrift job {kind}",
        description=summary,
        epilog="Progress and the result are JSON lines on stdout. Exit codes: docs/jobs.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--params", dest="params_json", metavar="FILE", help="JSON object of parameters, - for stdin"
    )
    hints = get_type_hints(params, include_extras=True)
    for field in msgspec.structs.fields(params):
        kind_of, meta = _unwrap(hints[field.name])
        wanted: dict[str, Any] = {"dest": field.name, "default": None, "help": _help(field, meta)}
        if kind_of is bool:
            wanted["action"] = argparse.BooleanOptionalAction
        elif get_origin(kind_of) is tuple:
            wanted.update(nargs="+", metavar=field.name.rstrip("s").upper())
            if issubclass(get_args(kind_of)[0], msgspec.Struct):
                wanted["type"] = parse_json
        else:
            wanted["metavar"] = field.name.rpartition("_")[2].upper()
        parser.add_argument("--" + field.name.replace("_", "-"), **wanted)
    return parser


def _help(field: msgspec.structs.FieldInfo, meta: msgspec.Meta | None) -> str:
    text = (meta.description or "") if meta is not None else ""
    if field.required:
        return f"{text} (required)".replace("%", "%%")
    default = field.default if field.default is not msgspec.NODEFAULT else None
    return (text if default in (None, ()) else f"{text} [{default}]").replace("%", "%%")


def _unwrap(hint: Any) -> tuple[Any, msgspec.Meta | None]:
    """The bare type of an annotation, without None, and its description."""
    meta = None
    while True:
        members = [member for member in get_args(hint) if member is not type(None)]
        if get_origin(hint) is Annotated:
            hint, *metas = get_args(hint)
            meta = next((each for each in metas if isinstance(each, msgspec.Meta)), meta)
        elif type(None) in get_args(hint) and len(members) == 1:
            hint = members[0]
        else:
            return hint, meta


def _read_json(source: str) -> dict[str, Any]:
    try:
        if source == "-":
            text = sys.stdin.buffer.read(PARAMS_BYTES_MAX + 1)
        else:
            text = read_regular(Path(source), bytes_max=PARAMS_BYTES_MAX)
        fields = parse_json(text)
    except OSError as error:
        raise ConfigError(f"--params {source}: {error.strerror}") from None
    except Corrupt as error:
        raise ConfigError(f"--params {source}: {error.found}") from None
    except NoDocument as error:
        raise ConfigError(f"--params {source}: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"--params {source}: expected a JSON object")
    return fields


def _decode(wanted: type, value: Any) -> Any:
    if wanted is Path and isinstance(value, str) and value:
        return Path(value)
    raise ValueError(f"expected a {wanted.__name__}")
