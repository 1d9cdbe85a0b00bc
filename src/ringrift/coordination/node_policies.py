"""Which node takes which work: what each living worker says of itself in the store.

A worker claims only kinds that it was started for and items whose needs it meets; one that is set aside, or
on its way out, claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringrift.engine.blocking import blocking
from ringrift.engine.opening import shared_kv
from ringrift.work.worker.records import WorkerRecord, live_workers

__all__ = [
    "NodePolicy",
    "async_node_policies",
    "get_node_policies",
    "get_node_policy",
    "is_work_allowed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """What one node takes, by all of its living workers."""

    node_id: str
    slots: int
    free_slots: int
    allowed: frozenset[str] | None  # kinds of work; None: any
    allowed_on_gpu: frozenset[str] | None  # the same, of its workers with a GPU alone
    capabilities: frozenset[str]
    held_back: tuple[str, ...] = ()  # "worker: why" for each that claims nothing

    def allows(self, work_type: str, *, requires_gpu: bool = False) -> tuple[bool, str]:
        """Whether the node takes such work, and why not."""
        if not self.slots:
            return False, f"no worker of {self.node_id} claims work ({'; '.join(self.held_back)})"
        if self.allowed is not None and work_type not in self.allowed:
            return False, f"the workers of {self.node_id} take only {', '.join(sorted(self.allowed))}"
        if requires_gpu and "gpu" not in self.capabilities:
            return False, f"no worker of {self.node_id} has a GPU"
        if requires_gpu and self.allowed_on_gpu is not None and work_type not in self.allowed_on_gpu:
            only = ", ".join(sorted(self.allowed_on_gpu))
            return False, f"the workers of {self.node_id} with a GPU take only {only}"
        return True, "ok"


async def async_node_policies() -> dict[str, NodePolicy]:
    """Return the policy of every node on which a worker lives."""
    by_node: dict[str, list[WorkerRecord]] = {}
    for worker in await live_workers(await shared_kv()):
        by_node.setdefault(worker.node, []).append(worker)
    return {node: _policy(node, workers) for node, workers in by_node.items()}


def _policy(node: str, workers: list[WorkerRecord]) -> NodePolicy:
    claiming = [each for each in workers if not each.set_aside and not each.stopping]
    return NodePolicy(
        node_id=node,
        slots=sum(each.slots for each in claiming),
        free_slots=sum(each.free for each in claiming),
        allowed=_kinds(claiming),
        allowed_on_gpu=_kinds(each for each in claiming if "gpu" in each.capabilities),
        capabilities=frozenset(name for each in claiming for name in each.capabilities),
        held_back=tuple(
            f"{each.name}: {each.set_aside or 'is stopping'}" for each in workers if each not in claiming
        ),
    )


def _kinds(workers: Iterable[WorkerRecord]) -> frozenset[str] | None:
    kinds = [each.kinds for each in workers]
    # One worker that takes any kind of work is enough for its node.
    return None if None in kinds else frozenset(kind for each in kinds for kind in each or ())


async def _node_policy(node_id: str) -> NodePolicy | None:
    """Return the policy of one node; None if no worker of it lives."""
    return (await async_node_policies()).get(node_id)


async def _is_work_allowed(node_id: str, work_type: str, *, requires_gpu: bool = False) -> tuple[bool, str]:
    """Whether a node takes such work now, and why not."""
    policy = await _node_policy(node_id)
    if policy is None:
        return False, f"no worker lives on {node_id}"
    return policy.allows(work_type, requires_gpu=requires_gpu)


get_node_policies = blocking(async_node_policies)
get_node_policy = blocking(_node_policy)
is_work_allowed = blocking(_is_work_allowed)
