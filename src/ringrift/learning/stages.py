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
# What each daemon does for the loop, in the words of `ringrift explain` and of the documentation.
LEVERS: Mapping[str, str] = {
    SELFPLAY_COORDINATOR: "decides which config plays next and how; without it no games are ordered",
    QUEUE_POPULATOR: "keeps the queue filled with games; without it no games are ordered",
    QUALITY_MONITOR: "has the quality of games count: how hard is trained and how much is explored",
    AUTO_EXPORT: "makes samples of checked games; without it none are made",
    NPZ_COMBINATION: "lets a training read all files of the window; without it the newest file alone",
    TRAINING_TRIGGER: "orders trainings when rows have earned them; without it none",
    CASCADE_TRAINING: "begins first networks with another config's champion, where the settings say so",
    DISTILLATION: "trains students of champions, where the settings say so",
    NNUE_TRAINING: "trains small networks, where the settings say so",
    EVALUATION: "has candidates and champions play; without it no match is ordered",
    TOURNAMENT_DAEMON: "has the last champions meet",
    AUTO_PROMOTION: "moves champion and generator by the verdicts; without it both stay",
    MODEL_PERFORMANCE_WATCHDOG: "looks again at a new champion and takes it back if it loses",
    FEEDBACK_LOOP: "turns results into more or less exploration, depth and rate; without it all are neutral",
    CURRICULUM_INTEGRATION: "gives configs more or less of the machine by their progress",
    GAUNTLET_FEEDBACK: "has matches against the baselines count in exploration and in shares",
    ARCHITECTURE_FEEDBACK: "has the size of network used that a search showed to be better",
    PER_ORCHESTRATOR: "has rows drawn by surprise, where the board's rules say so; without it all rows alike",
}


class StageStop(msgspec.Struct, frozen=True, kw_only=True):
    """Why a daemon does not plan, and since when."""

    why: str
    since_s: float


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


def why_stopped(state: ConfigState, *daemons: str) -> str:
    """Which of *daemons* is stopped, by whom and since when; empty if all of them plan."""
    stops = stops_of(state)
    for daemon in daemons:
        if daemon in stops:
            stop = stops[daemon]
            since = datetime.fromtimestamp(stop.since_s, UTC)
            return f"{daemon.upper()} is stopped: {stop.why} (since {since:%Y-%m-%d %H:%M:%S} UTC)"
    return ""


def stages_note(state: ConfigState, stopped: Mapping[str, str], *, at_s: float) -> Noted | None:
    """What to note when those of *stopped* do not plan; None if that is what was noted last.

    Another reason for the same daemon is no news: since when it is stopped counts from the first.
    """
    before = stops_of(state)
    if before.keys() == stopped.keys():
        return None
    now = {
        name: before.get(name) or StageStop(why=why, since_s=at_s) for name, why in sorted(stopped.items())
    }
    begun = [name.upper() for name in before if name not in now]
    ended = [f"{name.upper()} is stopped ({stop.why})" for name, stop in now.items() if name not in before]
    text = "; ".join([*ended, *(f"{name} plans again" for name in begun)])
    details: dict[str, Any] = {"stopped": msgspec.to_builtins(now)}
    return Noted(at_s=at_s, topic=STAGES_TOPIC, text=text, details=details)
