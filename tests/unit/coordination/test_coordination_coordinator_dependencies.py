"""The table of coordinators and the walk over it, with failures put in."""

import asyncio
import sys
import types
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.coordination.coordinator_dependencies import (
    COORDINATOR_REGISTRY,
    CoordinatorSpec,
    InitOutcome,
    InitPattern,
    InitResult,
    get_dependencies,
    get_dependents,
    get_initialization_order,
    order,
    read_registry,
    verdict,
)
from ringrift.coordination.initializer import BootstrapOptions, Initializer, shut_down, shut_down_async
from ringrift.errors import ConfigError, Unavailable
from ringrift.runtime import system_runtime
from ringrift.testing.simulation import ManualRuntime

LAYERS = {
    0: "event_coordinator dead_letter_queue",
    1: "task_coordinator global_task_coordinator resource_coordinator cache_orchestrator",
    2: "health_manager error_coordinator recovery_manager model_coordinator",
    3: "sync_coordinator training_coordinator",
    4: "transfer_verifier ephemeral_guard queue_populator",
    5: "selfplay_orchestrator selfplay_scheduler",
    6: "pipeline_orchestrator multi_provider job_scheduler",
    7: "auto_export_daemon evaluation_daemon model_distribution_daemon idle_resource_daemon "
    "quality_monitor_daemon orphan_detection_daemon training_activity curriculum_integration",
    8: "metrics_orchestrator optimization_coordinator",
    9: "leadership_coordinator",
}
PATTERNS = {
    InitPattern.SKIP: {"recovery_manager"},
    InitPattern.DELEGATE: {"error_coordinator"},
    InitPattern.GET: {
        "event_coordinator",
        "dead_letter_queue",
        "selfplay_scheduler",
        "auto_export_daemon",
        "evaluation_daemon",
        "training_activity",
    },
    InitPattern.IMPORT: {
        "model_distribution_daemon",
        "idle_resource_daemon",
        "quality_monitor_daemon",
        "orphan_detection_daemon",
    },
}


def test_all_documented_coordinators_stand_in_their_layers_and_patterns():
    found = {layer: set() for layer in LAYERS}
    for spec in COORDINATOR_REGISTRY.values():
        found[spec.layer].add(spec.name)
    assert found == {layer: set(names.split()) for layer, names in LAYERS.items()}
    for pattern, names in PATTERNS.items():
        assert {s.name for s in COORDINATOR_REGISTRY.values() if s.pattern is pattern} == names
    assert len(COORDINATOR_REGISTRY) == 27 + 2 + 2


def test_the_quick_starts_short_names_all_lead_into_the_table():
    short = {spec.short_name for spec in COORDINATOR_REGISTRY.values() if spec.short_name}
    assert short == {
        "dead_letter_queue",
        "task_lifecycle",
        "resources",
        "cache",
        "selfplay",
        "pipeline",
        "optimization",
        "metrics",
        "event_coordinator",
    }


def test_order_keeps_layers_and_puts_needs_first():
    names = get_initialization_order()
    assert [COORDINATOR_REGISTRY[name].layer for name in names] == sorted(
        spec.layer for spec in COORDINATOR_REGISTRY.values()
    )
    for name in names:
        for need in COORDINATOR_REGISTRY[name].depends_on:
            assert names.index(need) < names.index(name)
    assert names[-1] == "leadership_coordinator"
    assert get_dependencies("optimization_coordinator") == [
        "task_coordinator",
        "resource_coordinator",
        "cache_orchestrator",
        "selfplay_orchestrator",
        "pipeline_orchestrator",
        "metrics_orchestrator",
    ]
    assert "pipeline_orchestrator" in get_dependents("task_coordinator")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depends_on": ("nobody",)}, "nobody, which is not in the registry"),
        ({"depends_on": ("b",)}, "need each other: a, b"),
    ],
)
def test_a_wrong_graph_is_refused_by_name(change, message):
    a = CoordinatorSpec(name="a", layer=1, pattern=InitPattern.SKIP, capability="bootstrap")
    registry = {"a": replace(a, **change), "b": replace(a, name="b", depends_on=("a",))}
    with pytest.raises(ConfigError, match=message):
        order(registry)


def test_a_wrong_row_is_refused_by_name():
    head = "layer,name,pattern,capability,entry_point,depends_on,switch,short_name,arguments,ready,about\n"
    with pytest.raises(ConfigError, match=r"'odd'.*no capability is called 'magic'"):
        read_registry(head + "1,odd,wire,magic,,,,,,,\n")
    with pytest.raises(ConfigError, match="two rows"):
        read_registry(head + 2 * "1,twin,wire,bootstrap,,,,,,,\n")


# --- the walk ------------------------------------------------------------------------------------------


class World:
    """Coordinators c0..cn whose behavior a test chooses; notes every start and end."""

    def __init__(self):
        self.started, self.ended, self.events = [], [], []
        self.module = types.ModuleType("made_up_coordinators")
        sys.modules[self.module.__name__] = self.module

    def spec(self, index, *, needs=(), behave=None, closing=None):
        name = f"c{index}"

        def wire():
            if behave is not None:
                behave()
            self.started.append(name)
            return types.SimpleNamespace(shutdown=closing or (lambda: self.ended.append(name)))

        setattr(self.module, name, wire)
        return CoordinatorSpec(
            name=name,
            layer=1,
            pattern=InitPattern.WIRE,
            capability="bootstrap",
            entry_point=f"{self.module.__name__}:{name}",
            depends_on=tuple(f"c{need}" for need in needs),
        )

    def initializer(self, specs, **more):
        return Initializer(
            {spec.name: spec for spec in specs},
            publish=lambda event, payload: self.events.append((event, payload["coordinator_name"])),
            **more,
        )


def fail():
    raise ValueError("broken on purpose")


@st.composite
def graphs(draw):
    size = draw(st.integers(1, 12))
    needs = [draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(size)]
    return needs, draw(st.sets(st.integers(0, size - 1)))


@given(graph=graphs(), inside_loop=st.booleans())
@settings(deadline=None)
def test_exactly_the_transitive_dependents_of_failures_are_skipped_and_shutdown_is_the_reverse(
    graph, inside_loop
):
    needs, failing = graph
    world = World()
    specs = [
        world.spec(i, needs=sorted(need), behave=fail if i in failing else None)
        for i, need in enumerate(needs)
    ]
    walk = world.initializer(specs)
    if inside_loop:
        asyncio.run(walk.initialize_async(BootstrapOptions()))
    else:
        walk.initialize(BootstrapOptions())

    skipped = set()
    for i, need in enumerate(needs):
        if need & (skipped | failing):
            skipped.add(i)
    failed = failing - skipped
    outcomes = {int(name[1:]): result.outcome for name, result in walk.results.items()}
    assert {i for i, outcome in outcomes.items() if outcome is InitOutcome.SKIPPED} == skipped
    assert {i for i, outcome in outcomes.items() if outcome is InitOutcome.FAILED} == failed
    assert set(world.started) == {f"c{i}" for i in range(len(needs)) if i not in skipped | failed}
    for i in skipped:
        assert "Dependencies not satisfied" in walk.results[f"c{i}"].error

    endings = shut_down(walk, timeout_s=5.0, runtime=system_runtime())
    assert world.ended == world.started[::-1]
    assert [ending.name for ending in endings] == world.started[::-1]
    assert not walk.initialized
    assert walk.shutdown_requested


def test_each_coordinator_is_told_about():
    world = World()
    walk = world.initializer([world.spec(0), world.spec(1, behave=fail), world.spec(2, needs=[1])])
    walk.initialize(BootstrapOptions())
    assert world.events == [
        ("COORDINATOR_HEALTHY", "c0"),
        ("COORDINATOR_UNHEALTHY", "c1"),
        ("COORDINATOR_INIT_FAILED", "c1"),
        ("COORDINATOR_UNHEALTHY", "c2"),
        ("COORDINATOR_INIT_FAILED", "c2"),
    ]
    assert walk.errors == [
        "c1: ValueError: broken on purpose",
        "c2: Dependencies not satisfied: ['c1']",
    ]
    shut_down(walk, timeout_s=1.0, runtime=system_runtime())
    assert world.events[-1] == ("COORDINATOR_SHUTDOWN", "c0")


def test_what_comes_up_in_a_later_call_is_no_longer_an_error():
    world, broken = World(), [True]

    def behave():
        if broken[0]:
            fail()

    walk = world.initializer([world.spec(0, behave=behave), world.spec(1, needs=[0])])
    for _ in range(2):
        walk.initialize(BootstrapOptions(enable={"enable_c0": True}))
        assert walk.errors == [
            "c0: ValueError: broken on purpose",
            "c1: Dependencies not satisfied: ['c0']",
        ]
    broken[0] = False
    walk.initialize(BootstrapOptions(enable={"enable_c0": True}))
    assert walk.errors == []


def test_only_what_may_pass_is_tried_again_and_with_doubling_waits():
    world, tries = World(), {"passing": 0, "broken": 0}

    class Waits(ManualRuntime):
        async def sleep(self, seconds):
            waited.append(seconds)

    def passing():
        tries["passing"] += 1
        if tries["passing"] < 3:
            raise Unavailable("engine away")

    def broken():
        tries["broken"] += 1
        fail()

    waited = []
    specs = [world.spec(0, behave=passing), world.spec(1, behave=broken)]
    walk = world.initializer(specs, runtime=Waits())
    walk.initialize(BootstrapOptions(tries_max=3, retry_delay_s=0.5))
    assert waited == [0.5, 1.0]
    assert walk.results["c0"].initialized
    assert tries == {"passing": 3, "broken": 1}


async def test_inside_a_running_loop_the_blocking_call_never_waits():
    world = World()

    def away():
        raise Unavailable("engine away")

    walk = world.initializer([world.spec(0, behave=away)])
    before = asyncio.get_running_loop().time()
    walk.initialize(BootstrapOptions(retry_delay_s=60.0))
    assert asyncio.get_running_loop().time() - before < 3.9  # not twice
    assert "after 3 tries" in walk.results["c0"].error


def test_an_asynchronous_entry_point_is_refused_and_leaves_nothing_behind():
    world = World()
    spec = world.spec(0)

    async def wire():
        raise AssertionError("never runs")

    world.module.c0 = wire
    walk = world.initializer([spec])
    walk.initialize(BootstrapOptions())
    assert "is async" in walk.results["c0"].error


async def test_a_hanging_shutdown_costs_the_shared_deadline_once_and_the_rest_is_ended():
    world = World()

    async def hang():
        await asyncio.Event().wait()

    async def raise_at_end():
        raise OSError("no such device")

    specs = [world.spec(0), world.spec(1, closing=hang), world.spec(2, closing=raise_at_end), world.spec(3)]
    walk = world.initializer(specs)
    await walk.initialize_async(BootstrapOptions())
    before = asyncio.get_running_loop().time()
    endings = await shut_down_async(walk, timeout_s=2.0, runtime=system_runtime())
    assert asyncio.get_running_loop().time() - before < 3.9  # not twice
    assert {ending.name: bool(ending.error) for ending in endings} == {
        "c3": False,
        "c2": True,
        "c1": True,
        "c0": False,
    }
    assert world.ended == ["c3", "c0"]


async def test_a_blocking_shutdown_inside_a_loop_says_what_it_cannot_end():
    world = World()

    async def later():
        raise AssertionError("never runs")

    walk = world.initializer([world.spec(0), world.spec(1, closing=later)])
    walk.initialize(BootstrapOptions())
    endings = {e.name: e.error for e in shut_down(walk, timeout_s=1.0, runtime=system_runtime())}
    assert "await shutdown_all_coordinators()" in endings["c1"]
    assert world.ended == ["c0"]


def test_what_needs_something_that_this_version_lacks_comes_up_without_it():
    missing = InitResult(InitOutcome.NOT_BUILT, error="comes later")
    spec = replace(COORDINATOR_REGISTRY["health_manager"], depends_on=("cache_orchestrator",))
    assert verdict(spec, {"cache_orchestrator": missing}, enabled=True) is None
    failed = {"cache_orchestrator": InitResult(InitOutcome.FAILED, error="broken")}
    assert verdict(spec, failed, enabled=True).outcome is InitOutcome.SKIPPED
