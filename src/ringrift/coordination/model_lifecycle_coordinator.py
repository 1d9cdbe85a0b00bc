"""The life of every model: from training to production, rolled back or archived.

The states are facts of the run. This coordinator tells them, keeps a short story of what was said about each
model, and lets others know when the registry changed. It decides nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ringrift.coordination.run_coordinator import ListeningCoordinator
from ringrift.engine.run_reports import reported
from ringrift.events.event import Announcement
from ringrift.learning.facts.facts import Archived
from ringrift.learning.facts.records import Model, ModelState
from ringrift.learning.facts.results import WEIGHTS_SUFFIX
from ringrift.learning.facts.state import STUDENTS, ConfigState
from ringrift.learning.job_announcements import RATING_START, blob_path
from ringrift.learning.judging.ratings import Rating, rate
from ringrift.learning.models import ChampionFiles, too_weak
from ringrift.learning.situation import RunningLoop
from ringrift.process import getter_of
from ringrift.work.coordinator import heard_by

__all__ = [
    "REGISTRY_STAGES",
    "ChampionFiles",
    "LifecycleStats",
    "ModelLifecycleCoordinator",
    "ModelRecord",
    "ModelState",
    "get_model_coordinator",
    "get_model_stats",
    "get_production_model_id",
    "reset_model_coordinator",
    "too_weak",
    "wire_model_events",
]


# The models of a run as people ask for them: a view of the state, put together when it is asked for.


# What a model is called in a registry by its state.
REGISTRY_STAGES: Mapping[ModelState, str] = {
    ModelState.TRAINING: "development",
    ModelState.EVALUATING: "development",
    ModelState.STAGING: "staging",
    ModelState.PRODUCTION: "production",
    ModelState.SUPERSEDED: "archived",
    ModelState.ROLLED_BACK: "rejected",
    ModelState.REJECTED: "rejected",
    ModelState.ARCHIVED: "archived",
}
# As wide as rating systems begin with: nothing is known of a model without games.
UNRATED_SPREAD = 350.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """One model. *model_id* is the hash of its weights; *version* counts the models of its config."""

    model_id: str
    config_key: str
    version: int
    state: ModelState
    stage: str
    model_path: str
    elo: float
    elo_uncertainty: float
    games_played: int
    losses: Mapping[str, Any]
    rows_seen: int
    parent: str | None
    children: tuple[str, ...]
    created_at: float
    state_history: tuple[tuple[float, str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleStats:
    """The models of the run, counted; None is what nobody knows, because there is no run."""

    total_models: int | None = None
    by_state: Mapping[str, int] = field(default_factory=dict)
    promotions: int | None = None
    rollbacks: int | None = None
    rejections: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def record_of(model: Model, state: ConfigState, ratings: Mapping[str, Rating]) -> ModelRecord:
    found = ratings.get(model.digest)
    return ModelRecord(
        model_id=model.digest,
        config_key=state.config,
        version=model.number,
        state=model.state,
        stage=REGISTRY_STAGES[model.state],
        model_path=blob_path(model.digest),
        elo=RATING_START if found is None else found.rating,
        elo_uncertainty=UNRATED_SPREAD if found is None else (found.high - found.low) / 2,
        games_played=0 if found is None else found.games,
        losses=dict(model.losses),
        rows_seen=model.rows_seen,
        parent=model.parent,
        children=tuple(each.digest for each in state.models.values() if each.parent == model.digest),
        created_at=model.made_s,
        state_history=tuple(model.history),
    )


def in_training(state: ConfigState) -> list[ModelRecord]:
    """The models that trainings under way will bring; each is known by its job until it has a hash."""
    found = []
    for number, job in enumerate(state.open_of("train", *STUDENTS), start=1):
        parent = job.order.inputs.get(f"parent{WEIGHTS_SUFFIX}")
        record = ModelRecord(
            model_id=job.job_id,
            config_key=state.config,
            version=len(state.models) + number,
            state=ModelState.TRAINING,
            stage=REGISTRY_STAGES[ModelState.TRAINING],
            model_path="",
            elo=RATING_START,
            elo_uncertainty=UNRATED_SPREAD,
            games_played=0,
            losses={},
            rows_seen=0,
            parent=parent,
            children=(),
            created_at=job.issued_s,
            state_history=((job.issued_s, str(ModelState.TRAINING), job.reason),),
        )
        found.append(record)
    return found


def lifecycle_stats(states: Mapping[str, ConfigState]) -> LifecycleStats:
    by_state = Counter(str(model.state) for state in states.values() for model in state.models.values())
    by_state.update(str(record.state) for state in states.values() for record in in_training(state))
    return LifecycleStats(
        total_models=by_state.total(),
        by_state=dict(by_state),
        promotions=sum(len(state.promotions) for state in states.values()),
        rollbacks=sum(state.rollbacks for state in states.values()),
        rejections=sum(state.rejections for state in states.values()),
    )


# The coordinator.


# Only the newest models are asked about; what happened to the others is in the facts.
STORIES_MAX = 500
STORY_LINES_MAX = 50
REGISTRY = "model_registry"

# What a registry calls the change that an event stands for.
_ACTIONS: Mapping[str, str] = {
    "TRAINING_COMPLETED": "registered",
    "MODEL_PROMOTED": "promoted",
    "PROMOTION_ROLLED_BACK": "rolled_back",
    "MODEL_CORRUPTED": "corrupted",
    "NAS_BEST_ARCHITECTURE": "architecture",
}
_SETTLES = frozenset({"promoted", "rolled_back"})  # after these the champion is another
_MODEL_FIELDS = ("model_id", "from_model_id")
_PATH_FIELDS = ("checkpoint_path", "model_path")
_ABOUT = ("elo", "new_elo", "severity", "reason", "error", "gate", "decision", "new_tier", "corruption_type")


class ModelLifecycleCoordinator(ListeningCoordinator):
    """Knows every model of the run, whichever process that runs in."""

    component: ClassVar[str] = "model_coordinator"
    emits: ClassVar[tuple[str, ...]] = ("MODEL_SYNC_REQUESTED", "MODEL_UPDATED", "REGISTRY_UPDATED")

    def _set_up(self) -> None:
        # What was heard of a model, newest last; what happened to it is in the facts.
        self._stories: OrderedDict[str, deque[tuple[float, str, str]]] = OrderedDict()
        # What was archived earlier was told by the process that did it.
        self._archived_reported_s = self._runtime.now_s()

    def hears(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*heard_by(self.component), *heard_by(REGISTRY))))

    # --- models -----------------------------------------------------------------------------------------

    def get_models(
        self, config_key: str | None = None, *, state: ModelState | str | None = None
    ) -> list[ModelRecord]:
        """All models, or those of one config or one state, oldest first."""
        wanted = None if state is None else ModelState(state)
        run = self._answers.run()
        return [
            record
            for config in _states(run, config_key)
            for record in self._records(config)
            if wanted in (None, record.state)
        ]

    def get_model(self, model_id: str) -> ModelRecord | None:
        """The model of that hash, or of the only one that begins so."""
        # People give the first digits; where they fit several models, none is the answer.
        found = [record for record in self.get_models() if record.model_id.startswith(model_id)]
        return found[0] if len(found) == 1 else None

    def get_model_state(self, model_id: str) -> ModelState | None:
        found = self.get_model(model_id)
        return None if found is None else found.state

    def get_state_history(self, model_id: str) -> tuple[tuple[float, str, str], ...]:
        """When it entered which state, and why."""
        found = self.get_model(model_id)
        return () if found is None else found.state_history

    def get_model_story(self, model_id: str) -> list[tuple[float, str, str]]:
        """What was said of it: time, event, and the words of it."""
        return list(self._stories.get(model_id, ()))

    def get_production_model(self, config_key: str | None = None) -> ModelRecord | None:
        """The champion of a config; without one, of the config that changed last."""
        champions = self.get_models(config_key, state=ModelState.PRODUCTION)
        return max(champions, key=lambda record: record.state_history[-1][0], default=None)

    def get_production_model_id(self, config_key: str | None = None) -> str | None:
        found = self.get_production_model(config_key)
        return None if found is None else found.model_id

    def get_stats(self) -> LifecycleStats:
        """The models of the run, counted; every count is None where there is no run."""
        return _stats(self._answers.run())

    def _states(self, config_key: str | None) -> list[ConfigState]:
        """Of the run in this process: what an event asks for is done where the loop runs."""
        return _states(self._situations.loop, config_key)

    def _records(self, state: ConfigState) -> Iterable[ModelRecord]:
        """Students are the last, and then what is in training, which has no hash yet."""
        ratings = rate(state.matches)
        made = (*state.models.values(), *state.students.values())
        return (*(record_of(model, state, ratings) for model in made), *in_training(state))

    # --- events -----------------------------------------------------------------------------------------

    async def _on_event(self, event_type: str, payload: Mapping[str, Any]) -> None:
        model = _model_of(payload) or self._champion_of(payload)
        if model:
            self._remember(model, event_type, payload)
        action, config = _ACTIONS.get(event_type), str(payload.get("config_key", ""))
        if action is None:
            return
        states = self._states(config or None)
        if not any(_is_so(action, model, state) for state in states):
            return  # somebody says so; the facts of the run do not
        champions = {state.champion for state in states}
        await self.tell(_registry_events(action, model, payload, champions))
        if action in _SETTLES:
            for state in states:
                await self._archive(state)
        await self._tell_archived()

    async def _archive(self, state: ConfigState) -> None:
        """Whenever the champion changed, put away what is far below it; the rest the plan does by itself."""
        loop, now_s = self._situations.loop, self._runtime.now_s()
        # `_states` has found the config in it.
        assert loop is not None
        for digest, reason in too_weak(state):
            await loop.write(state.config, Archived(at_s=now_s, model=digest, reason=reason))

    async def _tell_archived(self) -> None:
        """Tell what was put away since this was last told."""
        since_s = self._archived_reported_s
        new = [
            (model.history[-1][0], model.digest)
            for state in self._states(None)
            for model in state.models.values()
            if model.state is ModelState.ARCHIVED and model.history[-1][0] > since_s
        ]
        self._archived_reported_s = max((at_s for at_s, _ in new), default=since_s)
        await self.tell(
            [("REGISTRY_UPDATED", {"action": "archived", "model_id": digest}) for _, digest in new]
        )

    def _champion_of(self, payload: Mapping[str, Any]) -> str:
        """An event that names a config and no model is about its champion."""
        states = self._states(str(payload.get("config_key", "")))
        return (states[0].champion or "") if states else ""

    def _remember(self, model: str, event_type: str, payload: Mapping[str, Any]) -> None:
        story = self._stories.setdefault(model, deque(maxlen=STORY_LINES_MAX))
        self._stories.move_to_end(model)
        while len(self._stories) > STORIES_MAX:
            self._stories.popitem(last=False)
        words = ", ".join(f"{name} {payload[name]}" for name in _ABOUT if payload.get(name) is not None)
        story.append((self._runtime.now_s(), event_type, words))

    # --- what it says about itself ------------------------------------------------------------------------

    @reported
    def get_metrics(self) -> dict[str, Any]:
        """Of the run in this process: health is asked often, and must not wait for the store."""
        return {**super().get_metrics(), **_stats(self._situations.loop).to_dict()}

    def get_status(self) -> dict[str, Any]:
        return {**super().get_status(), **self.get_stats().to_dict()}


def _states(run: RunningLoop | None, config_key: str | None) -> list[ConfigState]:
    configs = [] if run is None else run.configs()
    return [run.state(config) for config in configs if run is not None and config_key in (None, config)]


def _stats(run: RunningLoop | None) -> LifecycleStats:
    if run is None:
        return LifecycleStats()
    return lifecycle_stats({state.config: state for state in _states(run, None)})


def _model_of(payload: Mapping[str, Any]) -> str:
    named = next((str(payload[name]) for name in _MODEL_FIELDS if payload.get(name)), "")
    if named:
        return named
    # Weights are stored under their hash, so a path into the store names the model as well.
    path = next((str(payload[name]) for name in _PATH_FIELDS if payload.get(name)), "")
    return path.removeprefix(blob_path(""))


def _is_so(action: str, model: str, state: ConfigState) -> bool:
    """Whether the facts of a config say what an event says of *model*; anybody may publish one."""
    match action:
        case "promoted":
            return model == state.champion
        case "rolled_back":
            return model in state.models and state.models[model].state is ModelState.ROLLED_BACK
        case "architecture":
            return True  # found by a search for a config of the run, which is no model yet
    return state.player(model) is not None


def _registry_events(
    action: str, model: str, payload: Mapping[str, Any], champions: Collection[str | None]
) -> list[Announcement]:
    """What others have to know: the registry changed, and a new champion is to be where it is needed."""
    config = str(payload.get("config_key", ""))
    events: list[Announcement] = [("REGISTRY_UPDATED", {"action": action, "model_id": model or config})]
    about = {"config_key": config, "model_id": model, "model_path": blob_path(model)}
    if action == "promoted":
        state = REGISTRY_STAGES[ModelState.PRODUCTION]
        events.append(("MODEL_UPDATED", {**about, "changes": {"stage": state}}))
        events.append(("MODEL_SYNC_REQUESTED", {**about, "priority": "high", "reason": "new champion"}))
    elif action == "rolled_back":
        restored = str(payload.get("to_model_id", ""))
        events.append(
            ("MODEL_UPDATED", {**about, "changes": {"stage": REGISTRY_STAGES[ModelState.ROLLED_BACK]}})
        )
        if restored in champions:
            back = {"config_key": config, "model_id": restored, "model_path": blob_path(restored)}
            events.append(
                ("MODEL_SYNC_REQUESTED", {**back, "priority": "high", "reason": "restored champion"})
            )
    elif action == "corrupted":
        events.append(
            ("MODEL_SYNC_REQUESTED", {**about, "priority": "high", "reason": "the local copy is damaged"})
        )
    return events


get_model_coordinator = getter_of("get_model_coordinator", ModelLifecycleCoordinator)
reset_model_coordinator = ModelLifecycleCoordinator.reset_instance
wire_model_events = ModelLifecycleCoordinator.wired


def get_production_model_id(
    board_type: str | None = None, num_players: int | None = None, *, config_key: str | None = None
) -> str | None:
    """The hash of the champion of a config, named by its key or by board and players; None if it has none."""
    if config_key is None and board_type is not None:
        config_key = board_type if num_players is None else f"{board_type}_{num_players}p"
    return get_model_coordinator().get_production_model_id(config_key)


def get_model_stats() -> LifecycleStats:
    return get_model_coordinator().get_stats()
