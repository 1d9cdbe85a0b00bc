"""Payload rules: what is accepted, what is completed, and what is refused in words a person can use."""

import enum

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringrift.capabilities import CAPABILITIES
from ringrift.events.catalog.table import CATALOG, COMPONENTS, EventSpec, FieldSpec

EXAMPLES = {
    "str": "text",
    "int": 3,
    "float": 0.5,
    "bool": True,
    "list": ["a"],
    "dict": {"a": 1.0},
    "any": object(),
}


def full_payload(spec: EventSpec) -> dict:
    return {item.name: EXAMPLES[item.container] for item in spec.fields}


def make_spec(*fields: FieldSpec) -> EventSpec:
    return EventSpec(
        name="THING_HAPPENED",
        value="thing_happened",
        category="thing",
        severity="info",
        crosses=True,
        high_impact=False,
        retried=False,
        fields=fields,
        emitted_by=(),
        emitted_when="",
        consumed_by=(),
        note="",
        field_aliases={},
    )


def every_field() -> list[tuple[EventSpec, FieldSpec]]:
    return [(spec, item) for spec in CATALOG.values() for item in spec.fields]


def test_a_whole_payload_is_accepted_and_left_alone():
    for spec in CATALOG.values():
        payload = full_payload(spec)
        assert spec.problems(payload) == (), spec.name
        assert spec.canonical_payload(payload) is payload, spec.name
        assert spec.problems({**payload, "something_else": object()}) == (), spec.name


def test_every_missing_field_is_named():
    for spec, item in every_field():
        payload = full_payload(spec)
        del payload[item.name]
        problems = spec.problems(payload)
        assert bool(problems) == item.required, (spec.name, item.name)
        assert all(problem.startswith(f"{item.name} is missing") for problem in problems), spec.name


def test_none_is_fine_for_an_optional_field_only():
    for spec, item in every_field():
        problems = spec.problems({**full_payload(spec), item.name: None})
        assert bool(problems) == (item.required and item.type != "any"), (spec.name, item.name)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("str", ["x", enum.StrEnum("E", "A").A], [1, b"x", True]),
        ("int", [1, enum.IntEnum("I", "A").A], ["1", 1.0, True]),
        ("float", [1, 1.5], ["1.5", False]),
        ("bool", [True], [1, "true"]),
        ("list[str]", [["a"], ("a",)], ["a", {"a": 1}]),
        ("dict", [{}], [[], "{}"]),
        ("any", [1, "x", None, []], []),
    ],
)
def test_types(kind, good, bad):
    spec = make_spec(FieldSpec("field", kind, required=True))
    assert all(spec.problems({"field": value}) == () for value in good)
    for value in bad:
        (problem,) = spec.problems({"field": value})
        assert kind in problem
        assert type(value).__name__ in problem


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no reason
@given(
    st.dictionaries(
        st.sampled_from(["config_key", "job_id", "success", "model_path", "epochs", "train_loss", "other"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text())),
    )
)
def test_the_quick_check_and_the_explanation_agree(payload):
    spec = CATALOG["TRAINING_COMPLETED"]
    required = [item.name for item in spec.fields if item.required]
    explained = (*spec.missing(payload, required), *spec.wrong_types(payload))
    assert tuple(spec.problems(payload)) == explained


@pytest.mark.parametrize(
    ("event", "given", "expected"),
    [
        ("TRAINING_COMPLETED", {"config": "hex8_2p"}, {"config_key": "hex8_2p"}),
        ("TRAINING_COMPLETED", {"board_type": "hex8", "num_players": 2}, {"config_key": "hex8_2p"}),
        ("TRAINING_COMPLETED", {"checkpoint_path": "m.pth"}, {"model_path": "m.pth"}),
        (
            "TRAINING_COMPLETED",
            {"duration": 3.0, "samples": 5},
            {"duration_seconds": 3.0, "samples_trained": 5},
        ),
        ("HOST_ONLINE", {"host": "n1"}, {"node_id": "n1"}),
        ("NEW_GAMES_AVAILABLE", {"hostname": "n1"}, {"node_id": "n1"}),
        ("SELFPLAY_COMPLETE", {"games_played": 4}, {"games_generated": 4}),
        ("SELFPLAY_COMPLETE", {"games_count": 4}, {"games_generated": 4}),
        ("EVALUATION_COMPLETED", {"games": 4, "new_elo": 1500.0}, {"games_played": 4, "elo": 1500.0}),
        ("ELO_UPDATED", {"elo": 1500.0, "previous_elo": 1400.0}, {"new_elo": 1500.0, "old_elo": 1400.0}),
        ("ELO_UPDATED", {"elo_change": 10.0}, {"elo_delta": 10.0}),
        ("TASK_ABANDONED", {"work_id": "t1"}, {"task_id": "t1"}),
        ("WORK_FAILED", {"task_id": "t1"}, {"work_id": "t1"}),
        ("DAEMON_STARTED", {"daemon_type": "auto_sync"}, {"daemon_name": "auto_sync"}),
        ("DATABASE_CREATED", {"database_path": "g.db"}, {"db_path": "g.db"}),
        ("CURRICULUM_REBALANCED", {"new_weights": {"a": 1.0}}, {"weights": {"a": 1.0}}),
        ("TRAINING_EARLY_STOPPED", {"loss": 0.1}, {"final_loss": 0.1}),
    ],
)
def test_other_field_names_are_delivered_under_the_canonical_one(event, given, expected):
    delivered = CATALOG[event].canonical_payload(given)
    assert delivered == {**given, **expected}
    assert set(given) & set(expected) == set()


def test_field_aliases_stay_in_their_scope():
    checkpoint = {"config_key": "a", "checkpoint_path": "c", "epoch": 1}
    assert CATALOG["CHECKPOINT_SAVED"].canonical_payload(checkpoint) is checkpoint
    opponent = {"games": 5}
    assert CATALOG["OPPONENT_MASTERED"].canonical_payload(opponent) is opponent
    played = {"games_played": 7}
    assert "games_generated" not in CATALOG["EVALUATION_COMPLETED"].canonical_payload(played)


def test_the_canonical_field_wins_and_an_empty_one_is_filled():
    spec = CATALOG["TRAINING_COMPLETED"]
    assert spec.canonical_payload({"config": "a", "config_key": "b"})["config_key"] == "b"
    assert spec.canonical_payload({"config": "a", "config_key": None})["config_key"] == "a"
    assert "config_key" not in spec.canonical_payload({"config": None, "board_type": "hex8"})


def test_every_component_belongs_to_a_capability():
    named = {name for spec in CATALOG.values() for name in (*spec.emitted_by, *spec.consumed_by)}
    assert named == set(COMPONENTS)
    assert set(COMPONENTS.values()) <= set(CAPABILITIES)


def test_every_event_has_somebody_who_is_to_send_it():
    assert [spec.name for spec in CATALOG.values() if not spec.emitted_by] == []
