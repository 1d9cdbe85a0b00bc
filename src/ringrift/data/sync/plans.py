"""What goes where for a request: pure functions of a picture, one per backend.

A trip carries files between this node and one other, in one direction. Fetches come first, because what they
bring may have to go on. Whatever is not planned is named with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.sync.constants import CONCURRENT_NODES, NEIGHBOURS
from ringrift.data.sync.picture import SyncPicture
from ringrift.data.sync.requests import SyncBackend, SyncRequest
from ringrift.data.sync.routing import best, neighbour_score, sources_of, target_score
from ringrift.data.transfer.archives import is_archive

_BROADCAST_NODES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """Files to send to a node, or to fetch from it."""

    node: str
    artifacts: tuple[Artifact, ...]
    fetch: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """What a request comes to."""

    fetches: tuple[Trip, ...] = ()
    sends: tuple[Trip, ...] = ()
    width: int = CONCURRENT_NODES  # nodes at a time
    refused: tuple[str, ...] = ()  # named nodes that cannot be served at all
    blocked: tuple[str, ...] = ()  # nodes that would be served and cannot be just now
    up_to_date: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader of the response should know

    @property
    def is_empty(self) -> bool:
        return not self.fetches and not self.sends


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLeft:
    """A request and what is left of it after what was confirmed in earlier attempts."""

    request: SyncRequest
    confirmed: frozenset[tuple[str, str]] = field(default_factory=frozenset)  # (node, digest)

    def open_at(self, picture: SyncPicture, node: str, artifacts: Iterable[Artifact]) -> list[Artifact]:
        """What *node* is still to be given: what it lacks, or all that it has not confirmed yet."""
        if not self.request.require_confirmation:
            return picture.view.missing_at(node, artifacts)
        return [each for each in artifacts if (node, each.digest) not in self.confirmed]


def plan_request(picture: SyncPicture, left: RequestLeft, backend: SyncBackend) -> SyncPlan:
    """Decide what *backend* would do now."""
    request, here = left.request, picture.this.name
    wanted = [each for each in picture.view.artifacts.values() if request.wants(each)]
    wanted.sort(key=lambda each: (each.created_s, each.digest))
    if request.source_node is not None and request.source_node != here:
        return _plan_from(picture, wanted, request.source_node, request)
    targets, refused, blocked = _targets(picture, request)
    shape = _SHAPES[backend]
    chosen = shape.choose(picture, request, [node for node in targets if node.name != here])
    plan = _plan_to(picture, left, wanted, chosen, shape)
    if here in request.explicit_targets:
        plan = _with_fetches(plan, _fetches(picture, picture.view.missing_at(here, wanted), picture.this))
    if not wanted and (request.explicit_targets or request.require_confirmation):
        # Nobody is asked anything then: whether such a node even answers is not known.
        refused += [f"{node.name}: {_nothing_of(request)}" for node in chosen]
    notes = list(plan.notes)
    if not chosen and here not in request.explicit_targets and not refused:
        notes.append(_why_nobody(picture, request, blocked))
    return SyncPlan(
        fetches=plan.fetches,
        sends=plan.sends,
        width=shape.width,
        refused=tuple(refused),
        blocked=tuple(blocked),
        up_to_date=plan.up_to_date,
        notes=tuple(notes),
    )


def _nothing_of(request: SyncRequest) -> str:
    kind = "files" if request.data_type == "all" else request.data_type
    of = "".join(
        (
            "" if request.board_type is None else f" of {request.board_type}",
            "" if request.num_players is None else f" for {request.num_players} players",
        )
    )
    return f"nothing was brought or confirmed: the manifest knows of no {kind}{of}"


# --- who ----------------------------------------------------------------------------------------------


def _targets(picture: SyncPicture, request: SyncRequest) -> tuple[list[DataNode], list[str], list[str]]:
    """The nodes to serve, and why others are not."""
    named = request.explicit_targets
    targets: list[DataNode] = []
    refused: list[str] = []
    blocked: list[str] = []
    for name in named or tuple(node.name for node in picture.nodes.all()):
        if name not in picture.nodes:
            refused.append(f"{name}: no node is called that")
            continue
        node = picture.nodes[name]
        if name in request.exclude_nodes or (not named and (name == picture.this.name or is_archive(node))):
            continue  # archives are served by backups, and by sync only when they are named
        unfit = "" if name == picture.this.name else picture.unfit(node, request.data_type)
        if unfit:
            refused += [f"{name}: {unfit}"] if named else []
        elif name != picture.this.name and (why := picture.blocked(node, request.data_type)):
            blocked.append(f"{name}: {why}")
        else:
            targets.append(node)
    return targets, refused, blocked


def _why_nobody(picture: SyncPicture, request: SyncRequest, blocked: Sequence[str]) -> str:
    others = picture.nodes.others()
    if not others:
        return "this is the only node; there is nowhere to bring anything"
    if blocked:
        return "no node can be given anything just now"
    why = [
        f"{node.name}: " + ("excluded" if node.name in request.exclude_nodes else unfit)
        for node in others
        if (unfit := picture.unfit(node, request.data_type)) or node.name in request.exclude_nodes
    ]
    return f"no other node takes {request.data_type}: {'; '.join(why)}"


Choose = Callable[[SyncPicture, SyncRequest, list[DataNode]], list[DataNode]]


def _all_of_them(_picture: SyncPicture, _request: SyncRequest, targets: list[DataNode]) -> list[DataNode]:
    return targets


def _by_score(picture: SyncPicture, request: SyncRequest, targets: list[DataNode]) -> list[DataNode]:
    return best(picture, targets, lambda p, node: target_score(p, node, request.data_type), len(targets))


def _safest(picture: SyncPicture, request: SyncRequest, targets: list[DataNode]) -> list[DataNode]:
    """A few nodes that stay; if there are none, whichever there are."""
    staying = [node for node in targets if not node.ephemeral] or targets
    count = len(staying) if request.explicit_targets else NEIGHBOURS
    return best(picture, staying, neighbour_score, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How a backend differs from the others."""

    choose: Choose
    width: int = CONCURRENT_NODES
    relays: bool = False  # files that others hold are fetched first and then go on
    newest_first: bool = False


_SHAPES = {
    SyncBackend.AUTO_SYNC: _Shape(choose=_all_of_them),
    SyncBackend.CLUSTER_SYNC: _Shape(choose=_by_score, width=_BROADCAST_NODES, relays=True),
    SyncBackend.ROUTER: _Shape(choose=_by_score, relays=True),
    SyncBackend.DISTRIBUTED: _Shape(choose=_all_of_them, width=1),
    SyncBackend.EPHEMERAL: _Shape(choose=_safest, newest_first=True),
}


# --- what ---------------------------------------------------------------------------------------------


def _plan_to(
    picture: SyncPicture,
    left: RequestLeft,
    wanted: Sequence[Artifact],
    targets: Sequence[DataNode],
    shape: _Shape,
) -> SyncPlan:
    view, here = picture.view, picture.this.name
    held = [each for each in wanted if view.is_at(each.digest, here)]
    absent = [each for each in wanted if not view.is_at(each.digest, here)]
    fetches: list[Trip] = []
    if shape.relays and targets:
        asked = [each for each in absent if any(left.open_at(picture, n.name, [each]) for n in targets)]
        fetches = _fetches(picture, asked, picture.this)
        held += [each for trip in fetches for each in trip.artifacts]
    held.sort(key=lambda each: (each.created_s, each.digest), reverse=shape.newest_first)
    sends, up_to_date = [], []
    for node in targets:
        fits = picture.takes if left.request.explicit_targets else picture.wants
        takes = [each for each in held if fits(node, each)]
        if files := left.open_at(picture, node.name, takes):
            sends.append(Trip(node=node.name, artifacts=tuple(files), reason="asked for"))
        else:
            up_to_date.append(node.name)
    elsewhere = len(absent) - sum(len(trip.artifacts) for trip in fetches)
    notes = (
        [f"{elsewhere} matching files are on other nodes only and did not go from here"] if elsewhere else []
    )
    return SyncPlan(
        fetches=tuple(fetches), sends=tuple(sends), up_to_date=tuple(up_to_date), notes=tuple(notes)
    )


def _plan_from(
    picture: SyncPicture, wanted: Sequence[Artifact], source: str, request: SyncRequest
) -> SyncPlan:
    """Bring to this node what *source* holds and this node lacks."""
    if source not in picture.nodes:
        return SyncPlan(refused=(f"{source}: no node is called that",))
    node = picture.nodes[source]
    if not node.active:
        return SyncPlan(refused=(f"{source}: its status is {node.status!r}",))
    there = [each for each in wanted if picture.view.is_at(each.digest, source)]
    files = picture.view.missing_at(picture.this.name, there)
    if files:
        return SyncPlan(fetches=(Trip(node=source, artifacts=tuple(files), fetch=True, reason="its data"),))
    if there:
        return SyncPlan(up_to_date=(source,), notes=(f"nothing of {source} is missing here",))
    note = f"the manifest knows of no such file on {source}"
    if request.require_confirmation:
        return SyncPlan(refused=(f"{source}: nothing was brought or confirmed: {note}",))
    return SyncPlan(up_to_date=(source,), notes=(note,))


def _fetches(picture: SyncPicture, artifacts: Iterable[Artifact], target: DataNode) -> list[Trip]:
    """Group files by the node that they are best fetched from; those that nobody holds are left out."""
    by_source: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        if sources := sources_of(picture, artifact, target):
            by_source.setdefault(sources[0].name, []).append(artifact)
    return [
        Trip(node=name, artifacts=tuple(files), fetch=True, reason="missing here")
        for name, files in by_source.items()
    ]


def _with_fetches(plan: SyncPlan, fetches: Sequence[Trip]) -> SyncPlan:
    merged = {trip.node: list(trip.artifacts) for trip in plan.fetches}
    for trip in fetches:
        known = {each.digest for each in merged.get(trip.node, [])}
        merged.setdefault(trip.node, []).extend(each for each in trip.artifacts if each.digest not in known)
    trips = [Trip(node=node, artifacts=tuple(files), fetch=True) for node, files in merged.items()]
    return SyncPlan(fetches=tuple(trips), sends=plan.sends, up_to_date=plan.up_to_date, notes=plan.notes)
