"""Who plans what of the loop's work: each stage of the plan and each of its inputs has its daemon.

While a daemon is stopped, what it plans is left out, and the plan says so with its name, the reason and
since when. Which daemons are stopped is noted among the facts of a config (`STAGES_TOPIC`); without a note
all of them plan, as in the facts of versions that knew no stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from ringrift.decoding import convert_to
from ringrift.errors import Corrupt
from ringrift.learning.facts import STAGES_TOPIC, Noted
from ringrift.learning.state import ConfigState
from ringrift.work.stages import StopReason

SELFPLAY_COORDINATOR = "selfplay_coordinator"
QUEUE_POPULATOR = "queue_populator"
QUALITY_MONITOR = "quality_monitor"
AUTO_EXPORT = "auto_export"
NPZ_COMBINATION = "npz_combination"
TRAINING_TRIGGER = "training_trigger"
CASCADE_TRAINING = "cascade_training"
DISTILLATION = "distillation"
NNUE_TRAINING = "nnue_training"
EVALUATION = "evaluation"
TOURNAMENT_DAEMON = "tournament_daemon"
AUTO_PROMOTION = "auto_promotion"
MODEL_PERFORMANCE_WATCHDOG = "model_performance_watchdog"
FEEDBACK_LOOP = "feedback_loop"
CURRICULUM_INTEGRATION = "curriculum_integration"
GAUNTLET_FEEDBACK = "gauntlet_feedback"
ARCHITECTURE_FEEDBACK = "architecture_feedback"
PER_ORCHESTRATOR = "per_orchestrator"
STALE_FALLBACK = "stale_fallback"

# Stage: the daemons without any one of which it is not planned. Judging is no such stage: whatever was played
# is decided on, also while no more is ordered.
PLANNED_BY: Mapping[str, tuple[str, ...]] = {
    "selfplay": (SELFPLAY_COORDINATOR, QUEUE_POPULATOR),
    "export": (AUTO_EXPORT,),
    "train": (TRAINING_TRIGGER,),
    "tournament": (TOURNAMENT_DAEMON,),
    "distillation": (DISTILLATION,),
    "small_net": (NNUE_TRAINING,),
}
# Without any one of these learning stands still, or what it brings is not published.
NEEDED = (
    SELFPLAY_COORDINATOR,
    QUEUE_POPULATOR,
    AUTO_EXPORT,
    TRAINING_TRIGGER,
    EVALUATION,
    AUTO_PROMOTION,
)
# All of them; what each does stands in its row of the daemon table.
LEVERS = frozenset(
    {
        SELFPLAY_COORDINATOR,
        QUEUE_POPULATOR,
        QUALITY_MONITOR,
        AUTO_EXPORT,
        NPZ_COMBINATION,
        TRAINING_TRIGGER,
        CASCADE_TRAINING,
        DISTILLATION,
        NNUE_TRAINING,
        EVALUATION,
        TOURNAMENT_DAEMON,
        AUTO_PROMOTION,
        MODEL_PERFORMANCE_WATCHDOG,
        FEEDBACK_LOOP,
        CURRICULUM_INTEGRATION,
        GAUNTLET_FEEDBACK,
        ARCHITECTURE_FEEDBACK,
        PER_ORCHESTRATOR,
        STALE_FALLBACK,
    }
)


class StageStop(msgspec.Struct, frozen=True, kw_only=True):
    """Why a daemon does not plan, and since when."""

    daemon: str
    why: str
    since_s: float
    by_person: bool = False  # somebody stopped it on purpose, so it is no fault

    @property
    def reason(self) -> str:
        since = datetime.fromtimestamp(self.since_s, UTC)
        return f"{self.daemon.upper()} is stopped: {self.why} (since {since:%Y-%m-%d %H:%M:%S} UTC)"


Stops = Mapping[str, StageStop]
NO_STOPS: Stops = {}


def stops_of(state: ConfigState) -> Stops:
    """The daemons that do not plan for this config now."""
    note = state.newest_note(STAGES_TOPIC)
    if note is None:
        return NO_STOPS
    try:
        return convert_to(note.details["stopped"], dict[str, StageStop])
    except (KeyError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the stages noted at {note.at_s:.0f}", found=str(error), advice="Use the version that wrote them"
        ) from None


def is_stopped(state: ConfigState, daemon: str) -> bool:
    return daemon in stops_of(state)


def stop_of(state: ConfigState, *daemons: str) -> StageStop | None:
    """The first of *daemons* that does not plan; None if all of them do."""
    stops = stops_of(state)
    return next((stops[daemon] for daemon in daemons if daemon in stops), None)


def stages_note(state: ConfigState, stopped: Mapping[str, StopReason], *, at_s: float) -> Noted | None:
    """What to note when those of *stopped* do not plan; None if that is what was noted last.

    Since when a daemon is stopped counts from the first reason on.
    """
    before = stops_of(state)
    now = {
        name: StageStop(
            daemon=name,
            why=why.text,
            by_person=why.by_person,
            since_s=before[name].since_s if name in before else at_s,
        )
        for name, why in sorted(stopped.items())
    }
    if now == before:
        return None
    begun = [name.upper() for name in before if name not in now]
    ended = [
        f"{name.upper()} is stopped: {stop.why}" for name, stop in now.items() if stop != before.get(name)
    ]
    text = "; ".join([*ended, *(f"{name} plans again" for name in begun)])
    details: dict[str, Any] = {"stopped": msgspec.to_builtins(now)}
    return Noted(at_s=at_s, topic=STAGES_TOPIC, text=text, details=details)
