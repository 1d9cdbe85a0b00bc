"""Feedback: from results to what is done differently, and the faces that tell of it."""

from ringrift.learning.curriculum import (
    CurriculumIntegration,
    CurriculumIntegrationDaemon,
    export_curriculum_weights,
    get_curriculum_integration,
    get_curriculum_weight,
    load_curriculum_weights,
    reset_curriculum_integration,
    wire_curriculum_events,
)
from ringrift.learning.feedback_architecture import ArchitectureFeedback, architecture_weights
from ringrift.learning.feedback_gauntlet import GauntletFeedbackController
from ringrift.learning.feedback_loop import FeedbackLoopController, get_feedback_loop_controller
from ringrift.learning.feedback_rules import (
    NEUTRAL,
    Feedback,
    Momentum,
    TrainingIntensity,
    feedback,
    momentum_of,
)
from ringrift.learning.signals import FeedbackSignal, FeedbackSignals, SignalType, get_feedback_signals

__all__ = [
    "NEUTRAL",
    "ArchitectureFeedback",
    "CurriculumIntegration",
    "CurriculumIntegrationDaemon",
    "Feedback",
    "FeedbackLoopController",
    "FeedbackSignal",
    "FeedbackSignals",
    "GauntletFeedbackController",
    "Momentum",
    "SignalType",
    "TrainingIntensity",
    "architecture_weights",
    "export_curriculum_weights",
    "feedback",
    "get_curriculum_integration",
    "get_curriculum_weight",
    "get_feedback_loop_controller",
    "get_feedback_signals",
    "load_curriculum_weights",
    "momentum_of",
    "reset_curriculum_integration",
    "wire_curriculum_events",
]
