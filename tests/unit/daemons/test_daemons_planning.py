"""The planner: invariants over random histories of crashes, stops and changes of leadership."""

from __future__ import annotations

from dataclasses import replace

from daemons_kit import own_type
from hypothesis import given, settings
from hypothesis import strategies as st

from ringrift.daemons.planning import NOT_LEADER, Action, DaemonView, Do, Ended, Phase, plan, why_not_up
from ringrift.daemons.types import DaemonType

A, B, C = own_type("PLAN_A"), own_type("PLAN_B"), own_type("PLAN_C")
NEEDS = {A: (), B: (A,), C: (A, B)}

STEPS = st.tuples(
    st.sampled_from(
        [
            "want",
            "stop",
            "ready",
            "crash",
            "give_up",
            "complete",
            "gone",
            "hold",
            "release",
            "pause",
            "unpause",
        ]
    ),
    st.sampled_from([A, B, C]),
    st.floats(0, 30),
)


def fresh() -> dict[DaemonType, DaemonView]:
    return {t: DaemonView(daemon_type=t, needs=NEEDS[t]) for t in NEEDS}


class World:
    """Applies the planner's actions the way a shell would, and checks every one of them."""

    def __init__(self) -> None:
        self.views = fresh()
        self.now_s = 0.0

    def change(self, step: str, t: DaemonType) -> None:
        view = self.views[t]
        running = view.phase in (Phase.STARTING, Phase.UP)
        changes: dict[str, dict[str, object]] = {
            "want": {"wanted": True} | ({"ended": Ended.NEVER_RAN} if view.phase is Phase.ABSENT else {}),
            "stop": {"wanted": False},
            "hold": {"holds": frozenset({NOT_LEADER})},
            "release": {"holds": frozenset()},
            "pause": {"pauses": frozenset({"backpressure"})},
            "unpause": {"pauses": frozenset()},
        }
        if view.phase is Phase.STARTING:
            changes["ready"] = {"phase": Phase.UP, "paused": False}
        if running:
            down = {"phase": Phase.ABSENT, "paused": False}
            changes["crash"] = {**down, "ended": Ended.CRASHED, "restart_at_s": self.now_s + 5}
            changes["give_up"] = {**down, "ended": Ended.GIVEN_UP, "restart_at_s": None}
            changes["complete"] = {**down, "ended": Ended.COMPLETED}
        if view.phase is Phase.STOPPING:
            changes["gone"] = {"phase": Phase.ABSENT, "ended": Ended.ON_PURPOSE, "paused": False}
        self.views[t] = replace(view, **changes.get(step, {}))  # type: ignore[arg-type]

    def settle(self) -> None:
        for _ in range(20):
            decided = plan(self.views, now_s=self.now_s)
            if not decided.actions:
                break
            for action in decided.actions:
                self.apply(action)
        else:
            raise AssertionError("the planner never rests")
        self.check_rest()

    def apply(self, action: Action) -> None:
        view = self.views[action.daemon_type]
        assert action.reason
        if action.do is Do.START:
            assert view.wanted
            assert not view.holds
            assert view.phase is Phase.ABSENT
            assert view.ended not in (Ended.COMPLETED, Ended.GIVEN_UP, Ended.LEAKED)
            if view.ended is Ended.CRASHED:
                assert view.restart_at_s is not None
                assert view.restart_at_s <= self.now_s
            assert all(self.views[need].satisfies for need in view.needs)
            self.views[action.daemon_type] = replace(view, phase=Phase.STARTING)
        elif action.do is Do.STOP:
            assert not view.should_run
            self.views[action.daemon_type] = replace(view, phase=Phase.STOPPING)
        else:
            self.views[action.daemon_type] = replace(view, paused=action.do is Do.PAUSE)

    def check_rest(self) -> None:
        for view in self.views.values():
            if view.phase in (Phase.STARTING, Phase.UP):
                assert view.should_run
            if view.phase is Phase.UP:
                assert view.paused == bool(view.pauses)
            if view.phase is not Phase.UP:
                assert why_not_up(view, self.views, now_s=self.now_s)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=60))
def test_nothing_runs_that_should_not_and_nothing_starts_before_its_time(
    steps: list[tuple[str, DaemonType, float]],
) -> None:
    world = World()
    for step, daemon_type, seconds in steps:
        world.now_s += seconds
        world.change(step, daemon_type)
        world.settle()


@given(st.lists(STEPS, max_size=40))
def test_a_daemon_that_was_stopped_on_purpose_is_never_started(
    steps: list[tuple[str, DaemonType, float]],
) -> None:
    world = World()
    world.views[B] = replace(world.views[B], wanted=False, ended=Ended.ON_PURPOSE)
    for step, daemon_type, seconds in steps:
        world.now_s += seconds
        if (step, daemon_type) != ("want", B):
            world.change(step, daemon_type)
        world.settle()
        assert world.views[B].phase is Phase.ABSENT


@given(st.lists(STEPS, max_size=40))
def test_whatever_happened_a_wanted_daemon_comes_up_once_nothing_is_in_its_way(
    steps: list[tuple[str, DaemonType, float]],
) -> None:
    world = World()
    for step, daemon_type, seconds in steps:
        world.now_s += seconds
        world.change(step, daemon_type)
        world.settle()
    for daemon_type in (A, B, C):
        world.change("gone", daemon_type)
        world.change("release", daemon_type)
        world.change("want", daemon_type)
    for _ in range(5):
        world.now_s += 10
        world.settle()
        for daemon_type in (A, B, C):
            world.change("ready", daemon_type)
    assert {view.phase for view in world.views.values()} == {Phase.UP}


def test_the_plan_says_when_to_look_again() -> None:
    views = fresh()
    views[A] = replace(views[A], wanted=True, ended=Ended.CRASHED, restart_at_s=7.0, last_error="broken")
    assert plan(views, now_s=1.0).wake_at_s == 7.0
    assert why_not_up(views[A], views, now_s=1.0) == "restarts in 6.0 s after: broken"
    assert [action.do for action in plan(views, now_s=7.0).actions] == [Do.START]
