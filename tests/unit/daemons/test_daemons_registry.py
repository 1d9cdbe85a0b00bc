"""The registry's 89 rows, their graph, their profiles, and types of the user's own."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
from daemons_kit import own_type, rows
from hypothesis import given
from hypothesis import strategies as st

from ringrift.capabilities import CAPABILITIES
from ringrift.coordination.daemon_runners import get_runner
from ringrift.daemons.child_process import ProcessDaemon
from ringrift.daemons.registry import (
    PROFILES,
    DaemonSpec,
    DependencyValidationError,
    Registry,
    check_registry_health,
    describe_profiles,
    find_cycle,
    get_daemon_startup_position,
    levels,
    product_registry,
    profile_types,
    validate_daemon_dependencies,
    validate_dependency_graph,
    validate_registry,
    validate_registry_or_raise,
    validate_startup_order_consistency,
    validate_startup_order_or_raise,
)
from ringrift.daemons.types import (
    CRITICAL_DAEMONS,
    DAEMON_STARTUP_ORDER,
    DaemonInfo,
    DaemonState,
    DaemonType,
    mark_daemon_ready,
)
from ringrift.errors import ConfigError
from ringrift.status import CoordinatorStatus

A, B, C = own_type("GRAPH_A"), own_type("GRAPH_B"), own_type("GRAPH_C")


def test_there_are_89_types_and_exactly_8_states() -> None:
    assert len(DaemonType) == 89
    assert all(member.value == member.name.lower() for member in DaemonType)
    assert {state.value for state in DaemonState} == {
        "stopped",
        "starting",
        "running",
        "stopping",
        "failed",
        "restarting",
        "import_failed",
        "degraded",
    }


def test_every_type_has_one_sound_row() -> None:
    registry = product_registry()
    assert {spec.daemon_type for spec in registry} == set(DaemonType)
    assert validate_registry(registry) == []
    validate_registry_or_raise(registry)
    validate_startup_order_or_raise(registry)
    assert find_cycle(registry, list(DaemonType)) == []
    assert check_registry_health(registry).status is CoordinatorStatus.RUNNING


def test_every_capability_with_a_daemon_is_in_the_plan_and_faces_differ_by_their_settings() -> None:
    registry = product_registry()
    assert {spec.capability for spec in registry} <= set(CAPABILITIES)
    assert len({spec.capability for spec in registry}) == 37
    assert registry[DaemonType.EPHEMERAL_SYNC].settings == {"strategy": "ephemeral"}
    assert registry[DaemonType.EPHEMERAL_SYNC].capability == "game_sync"


def test_what_is_not_built_says_so_and_what_is_built_can_be_loaded() -> None:
    for spec in product_registry():
        built = CAPABILITIES[spec.capability].built
        assert bool(spec.entry_point) == built
        assert spec.unavailable_reason == ("" if built else CAPABILITIES[spec.capability].reason)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_contains_what_its_daemons_need_in_order(profile: str) -> None:
    registry = product_registry()
    types = profile_types(registry, profile)
    assert len(types) == len(set(types))
    validate_dependency_graph(registry, types)
    for index, daemon_type in enumerate(types):
        assert set(registry[daemon_type].depends_on) <= set(types[:index])


def test_the_profiles_hold_what_their_names_promise() -> None:
    profiles = describe_profiles()
    assert profiles["minimal"] == [DaemonType.EVENT_ROUTER]
    assert set(profiles["full"]) == set(DaemonType)
    assert DaemonType.AUTO_SYNC in profiles["ephemeral"]
    assert set(profiles["coordinator"]) >= CRITICAL_DAEMONS
    with pytest.raises(ValueError, match="minimal"):
        profile_types(product_registry(), "other")


def test_startup_positions_follow_the_documented_order() -> None:
    assert set(DAEMON_STARTUP_ORDER) <= set(DaemonType)
    assert get_daemon_startup_position(DaemonType.EVENT_ROUTER) == 0
    assert get_daemon_startup_position(DaemonType.OWC_IMPORT) == -1
    assert validate_startup_order_consistency() == (True, [])


def test_wrong_rows_are_named() -> None:
    registry = product_registry()
    registry.add(replace(registry[DaemonType.AUTO_SYNC], depends_on=(A, DaemonType.AUTO_SYNC)))
    registry.add(replace(registry[DaemonType.ELO_SYNC], capability="magic"))
    registry.add(replace(registry[DaemonType.EVENT_ROUTER], entry_point="", profiles=frozenset({"odd"})))
    found = "; ".join(validate_registry(registry))
    assert "auto_sync depends on graph_a, which has no row" in found
    assert "auto_sync depends on itself" in found
    assert "'magic'" in found
    assert "event_router has no entry point" in found
    assert "'odd'" in found
    with pytest.raises(ValueError, match="magic"):
        validate_registry_or_raise(registry)
    assert check_registry_health(registry).status is CoordinatorStatus.ERROR


def test_the_missing_dependencies_of_one_daemon() -> None:
    assert validate_daemon_dependencies(DaemonType.DLQ_RETRY, []) == (False, [DaemonType.EVENT_ROUTER])
    assert validate_daemon_dependencies(DaemonType.DLQ_RETRY, [DaemonType.EVENT_ROUTER]) == (True, [])


@pytest.mark.parametrize(
    ("needs", "types", "text"),
    [
        ({A: (A,)}, [A], "depends on itself"),
        ({A: (C,)}, [A], "not registered"),
        ({A: (B,), B: ()}, [A], "neither listed nor running"),
        ({A: (B,), B: (A,)}, [A, B], "graph_a -> graph_b -> graph_a"),
    ],
)
def test_a_graph_that_cannot_start_is_refused_with_its_reason(
    needs: dict[DaemonType, tuple[DaemonType, ...]], types: list[DaemonType], text: str
) -> None:
    registry = rows(*(DaemonSpec(daemon_type=t, depends_on=n) for t, n in needs.items()))
    with pytest.raises(DependencyValidationError, match=text):
        validate_dependency_graph(registry, types)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_levels_respect_every_dependency_of_any_acyclic_graph(edges: list[tuple[int, int]]) -> None:
    types = [own_type(f"LEVEL_{index}") for index in range(12)]
    needs: dict[DaemonType, set[DaemonType]] = {t: set() for t in types}
    for one, other in edges:
        if one != other:
            needs[types[max(one, other)]].add(types[min(one, other)])
    registry = Registry(DaemonSpec(daemon_type=t, depends_on=tuple(n)) for t, n in needs.items())
    grouped = levels(registry, types)
    place = {t: index for index, group in enumerate(grouped) for t in group}
    assert sorted(place) == sorted(types)
    assert all(place[need] < place[t] for t in types for need in needs[t])
    assert find_cycle(registry, types) == []


def test_a_type_of_ones_own_behaves_like_a_member() -> None:
    mine = DaemonType.register("MY_OWN_DAEMON")
    assert DaemonType.register("MY_OWN_DAEMON") is mine
    assert DaemonType.MY_OWN_DAEMON is mine  # type: ignore[attr-defined]
    assert DaemonType("my_own_daemon") is mine
    assert (mine.name, mine.value, str(mine)) == ("MY_OWN_DAEMON", "my_own_daemon", "my_own_daemon")
    assert copy.deepcopy(mine) is mine
    assert pickle.loads(pickle.dumps(mine)) is mine
    assert mine not in list(DaemonType)
    assert DaemonInfo(daemon_type=mine).state is DaemonState.STOPPED


@pytest.mark.parametrize("name", ["AUTO_SYNC", "lower", "TWO WORDS", "", "1ST"])
def test_a_name_that_is_taken_or_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        DaemonType.register(name)


@pytest.mark.parametrize("command", ["my-program --serve", [], ["sleep", 5], None])
def test_a_command_that_cannot_be_run_is_refused_when_its_daemon_is_made(command: Any) -> None:
    with pytest.raises(ConfigError, match="command"):
        ProcessDaemon(command)


@pytest.mark.parametrize("entry_point", ["my_module", ":factory", "my_module:", None])
def test_an_entry_point_that_names_no_factory_is_refused_when_its_daemon_is_made(entry_point: Any) -> None:
    with pytest.raises(ConfigError, match="entry point"):
        ProcessDaemon.for_entry_point(entry_point)


@pytest.mark.parametrize("daemon", ["nonsense", None, DaemonType.IDLE_RESOURCE])
def test_a_runner_of_what_cannot_run_is_refused(daemon: Any) -> None:
    with pytest.raises(ConfigError, match=r"no daemon type|cannot run"):
        get_runner(daemon)


def test_marking_a_daemon_ready_without_a_manager_does_nothing() -> None:
    assert mark_daemon_ready(DaemonType.AUTO_SYNC) is False
