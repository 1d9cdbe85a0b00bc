"""The students of a config: networks that learn from the same samples beside the line of champions."""

from __future__ import annotations

from ringrift.learning.facts.records import Model, ModelState
from ringrift.learning.facts.state import ConfigState, has_recalled
from ringrift.learning.plan.orders import ConfigPlan, Snapshot, is_running, student_order
from ringrift.learning.plan.training_data import learned_shards, window_files

# A student of every champion, a small network after so many games.
#
# They learn from the same samples, whose targets are what the champions' searches came to, but never take a
# champion's place: they are kept, rated, and published for whoever needs a small and fast network.


DISTILLATION, SMALL_NET = "distillation", "small_net"


def plan_distillation(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Teach a student again whenever the champion is another."""
    state, size = snapshot.state, snapshot.rules.students.distillation
    if size is None or is_running(snapshot, made, DISTILLATION):
        return
    if state.champion is None:
        made.say(DISTILLATION, "there is no champion to learn from yet")
        return
    done, changed_s = state.last_done.get(DISTILLATION), _changed_s(state)
    if done is not None and done.at_s >= changed_s:
        made.say(DISTILLATION, "the student has learned from this champion")
        return
    _teach(snapshot, made, DISTILLATION, size, f"a {size} student of the champion {state.champion[:12]}")


def plan_small_net(snapshot: Snapshot, made: ConfigPlan) -> None:
    """Train a small network after every so many accepted games."""
    state, rules = snapshot.state, snapshot.rules.students
    if not rules.small_net_games or is_running(snapshot, made, SMALL_NET):
        return
    taught = [each for each in state.students.values() if each.purpose == SMALL_NET]
    wanted = rules.small_net_games * (len(taught) + 1)
    if state.games < wanted:
        made.say(SMALL_NET, f"{state.games:,} of {wanted:,} games for the next small network are there")
        return
    _teach(snapshot, made, SMALL_NET, rules.small_net, f"a {rules.small_net} network after {wanted:,} games")


def newest_student(state: ConfigState, purpose: str) -> Model | None:
    """The one in use."""
    return next(
        (
            each
            for each in reversed(state.students.values())
            if each.purpose == purpose and each.state is ModelState.PRODUCTION
        ),
        None,
    )


def _teach(snapshot: Snapshot, made: ConfigPlan, purpose: str, size: str, what: str) -> None:
    state, rules = snapshot.state, snapshot.rules
    files = window_files(state, rules)
    if not files:
        made.say(purpose, "waits for samples")
        return
    before = newest_student(state, purpose)
    is_fit = (
        before is not None
        and before.preset == size
        and not has_recalled(state, learned_shards(state, before))
    )
    parent = before if is_fit else None
    order = student_order(state, rules, files, parent, preset=size, purpose=purpose)
    made.want("train", order, f"{what}, on {sum(each.rows for each in files):,} rows")


def _changed_s(state: ConfigState) -> float:
    """When the champion got its place."""
    assert state.champion is not None
    return next(
        at_s
        for at_s, name, _ in reversed(state.models[state.champion].history)
        if name == ModelState.PRODUCTION
    )
