"""Every error this package raises.

RingRiftError
├── ConfigError              wrong input; never retried
│   ├── NotBuilt             the capability exists in the plan, not in this version
│   ├── IllegalAction        the rules of the game do not allow the action
│   ├── ArchitectureMismatch    the model's layers are not the ones asked for
│   ├── GameMismatch         the model was made for another game
│   ├── UnknownEventTypeError   no event of that name (also a ValueError)
│   ├── PayloadError         the payload does not fit its event (also a ValueError)
│   └── CausalChainTooLong   handlers publish each other's events without end
├── Conflict                 somebody else got there first; the caller re-reads
│   ├── AlreadyExists        a key or item of that name is there
│   ├── RevisionMismatch     the value changed since it was read
│   └── LeaseLost            a newer fencing token exists
│       └── ControlLost      another process controls the run by now, or its folder was exchanged
├── Unavailable              may pass; `retry_after_s` says when
│   ├── StorageFull          no space left for the write
│   └── StorageReadOnly      the folder or file cannot be written
└── Corrupt                  data failed its check; stop, never repair in silence
    ├── ForeignFile          the file is not ours
    ├── DigestMismatch       the content is not what its card or name says
    └── SchemaTooNew         written by a newer version

Errors carry facts as fields. Adapters map foreign exceptions at the edge.
"""

from __future__ import annotations

from pathlib import Path

_ERROR_CHARS_MAX = 100_000
_CUT = " ... "


def storable_text(value: object, *, chars_max: int = 10_000) -> str:
    """Return the text of an error, a path or whatever came from outside as every store and terminal takes it.

    The operating system's names need not be UTF-8; Python then carries halves of surrogate pairs that can be
    neither stored nor printed. They, and NUL, become visible escapes. What is too long loses its middle.
    """
    text = value if isinstance(value, str) else _text_of(value)
    if not text.isascii():
        text = text.encode(errors="backslashreplace").decode()
    text = text.replace("\x00", "\\x00")
    if len(text) <= chars_max:
        return text
    kept = max(chars_max - len(_CUT), 0)
    return f"{text[: kept - kept // 2]}{_CUT}{text[len(text) - kept // 2 :]}"[:chars_max]


def described(error: BaseException) -> str:
    """Return an error of somebody else's code in one text that can be stored: its type and its words."""
    return f"{type(error).__name__}: {storable_text(error)}"


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - an error that cannot tell itself must not hide that there is one
        return f"({type(value).__name__}, whose text raises {type(error).__name__})"


class RingRiftError(Exception):
    """Base of all errors of this package; its text can be stored and printed whatever it tells of."""

    def __str__(self) -> str:
        return storable_text(super().__str__(), chars_max=_ERROR_CHARS_MAX)


class ConfigError(RingRiftError):
    """Wrong input; a retry cannot help."""


class NotBuilt(ConfigError):
    """A capability of the plan that this version does not contain."""

    def __init__(self, capability: str, *, planned_with: str) -> None:
        super().__init__(f"capability not built yet: {capability} (comes with {planned_with})")
        self.capability, self.planned_with = capability, planned_with


class UnknownEventTypeError(ConfigError, ValueError):
    """The catalog has no event of this name."""

    def __init__(self, event_type: str, *, suggestions: tuple[str, ...] = ()) -> None:
        hint = f" Did you mean {', '.join(suggestions)}?" if suggestions else ""
        super().__init__(f"Unknown event type {event_type!r}.{hint}")
        self.event_type, self.suggestions = event_type, list(suggestions)


class PayloadError(ConfigError, ValueError):
    """The payload lacks a field of its event, or has one of the wrong type."""

    def __init__(self, event_type: str, *, problems: tuple[str, ...]) -> None:
        super().__init__(f"{event_type}: {'; '.join(problems)}")
        self.event_type, self.problems = event_type, problems


class CausalChainTooLong(ConfigError):
    """An event is published inside so many nested handlers that they must be going in circles."""

    def __init__(self, event_type: str, *, depth: int) -> None:
        super().__init__(
            f"{event_type} is {depth} events deep in one causal chain; do handlers go in circles?"
        )
        self.event_type, self.depth = event_type, depth


class IllegalAction(ConfigError):
    """The rules do not allow the action; nothing was changed."""

    def __init__(self, action: str, *, why: str) -> None:
        super().__init__(f"illegal action {action}: {why}")
        self.action, self.why = action, why


class ArchitectureMismatch(ConfigError):
    """The model's layers are not the ones asked for."""

    def __init__(self, model: str, *, field: str, wanted: object, found: object) -> None:
        super().__init__(f"{model}: architecture differs in {field}: wanted {wanted}, found {found}")
        self.model, self.field, self.wanted, self.found = model, field, wanted, found


class GameMismatch(ConfigError):
    """The model was made for another game."""

    def __init__(self, model: str, *, wanted: str, found: str) -> None:
        super().__init__(f"{model}: the model is for {found}, not for {wanted}")
        self.model, self.wanted, self.found = model, wanted, found


class Conflict(RingRiftError):
    """Somebody else got there first; read again and decide again."""


class AlreadyExists(Conflict):
    """A key or item of this name exists."""

    def __init__(self, name: str, *, revision: int | None = None) -> None:
        super().__init__(f"{name!r} exists already")
        self.name, self.revision = name, revision


class RevisionMismatch(Conflict):
    """The value changed since it was read."""

    def __init__(self, key: str, *, expected: int, current: int | None) -> None:
        found = "it is gone" if current is None else f"it is {current}"
        super().__init__(f"{key!r}: expected revision {expected}, {found}")
        self.key, self.expected, self.current = key, expected, current


class LeaseLost(Conflict):
    """A newer fencing token exists, or the lease ran out."""

    def __init__(self, name: str, *, token: int, reason: str) -> None:
        super().__init__(f"lease on {name!r} under token {token} is lost: {reason}")
        self.name, self.token, self.reason = name, token, reason


class ControlLost(LeaseLost):
    """Another process controls the run, or its place is another one; whatever this one writes is refused."""

    def __init__(self, *, token: int, reason: str) -> None:
        super().__init__("control", token=token, reason=reason)


class Unavailable(RingRiftError):
    """May pass by itself."""

    def __init__(self, what: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(f"{what}; try again in {round(retry_after_s, 1):g} s")
        self.what, self.retry_after_s = what, retry_after_s


class StorageFull(Unavailable):
    """No space left for the write; nothing was changed."""


# An `Unavailable`, although it rarely passes: what is to be written is still right, and a retry harmless.
class StorageReadOnly(Unavailable):
    """The folder or file cannot be written; nothing was changed. It passes only if a person sees to it."""

    def __str__(self) -> str:
        return self.what


class Corrupt(RingRiftError):
    """Data failed its check."""

    def __init__(self, path: Path | str, *, found: str, advice: str) -> None:
        super().__init__(f"{path}: {found}. {advice}")
        self.path, self.found, self.advice = Path(path), found, advice


class ForeignFile(Corrupt):
    """The file belongs to another program."""


class DigestMismatch(Corrupt):
    """The content is not what its card or name says."""


class SchemaTooNew(Corrupt):
    """A newer version of this package wrote the file."""
