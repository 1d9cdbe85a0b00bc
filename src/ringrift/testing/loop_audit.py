"""What must hold of a run whatever was killed: checked from outside, on the facts, the queue and the blobs.

Everything is counted again from the reports of the jobs and from the files themselves, by other ways than the
loop counts. What a kill may leave half-done (orders of the last pass that are not in the queue yet, an end
that is not noted, a pointer one change behind) must be made good once the loop has turned again: that is what
`recovered` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ringrift.engine.encoding import is_digest
from ringrift.engine.leases import LEASE_PREFIX
from ringrift.engine.ports import Engine, WorkItem, WorkState
from ringrift.files import file_sha256
from ringrift.learning.controller import ORDERS_AT_ONCE
from ringrift.learning.facts.facts import AnyFact, Blocked, JobEnded, JobIssued, Promoted, RolledBack
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.models import read_champion
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.replay import replay
from ringrift.work.job.protocol import JobReport, read_report

TIME_SLACK_S = 5.0  # processes read the clock at different moments
EVENTS_READ = 100_000
ITEMS_READ = 1_000
LEASE_S_MAX = 90.0  # of a training's slot, the longest there is

ReadGames = Callable[[Path], Iterable[str]]


@dataclass(slots=True)
class LoopAudit:
    """Audits one config again and again; what was there once must stay."""

    engine: Engine
    config: str
    rules: LearningRules
    read_games: ReadGames | None  # the ids of the games in a shard; None: files are only told about
    problems: list[str] = field(default_factory=list)
    facts: list[AnyFact] = field(default_factory=list)
    games: dict[str, str] = field(default_factory=dict)  # id of a game: digest of its shard
    # What was half-done when last looked at: completed and not yet a fact, a fact and not yet in the queue.
    unnoted: set[str] = field(default_factory=set)
    unqueued: set[str] = field(default_factory=set)
    _changes: int = 0  # of the champion, when last looked at
    _known: list[AnyFact] = field(default_factory=list)
    _state: ConfigState = field(init=False)
    _whole: set[str] = field(default_factory=set)  # digests of blobs that were read and agreed

    def __post_init__(self) -> None:
        self._state = ConfigState(self.config, self.rules.bucket)

    @property
    def state(self) -> ConfigState:
        return self._state

    async def look(self, *, recovered: bool = False) -> list[str]:
        """Audit now; return what is wrong. *recovered*: the loop has turned since the last look.

        Then all decisions are made again, too.
        """
        self.problems = []
        facts = await read_facts(self.engine.kv, self.config)  # raises `Corrupt` for a gap
        # A fact is written once and for all: what was seen is a beginning of what is there.
        if facts[: len(self._known)] != self._known:
            self._wrong("facts changed or vanished")
        for fact in facts[len(self.facts) :]:
            if isinstance(fact, Promoted):
                self._check_promotion(fact)  # against the state before it
            self._state.apply(fact)
        self.facts = self._known = facts
        if recovered:
            for each in replay(self.config, facts, self.rules):
                self._wrong(f"fact {each.number} ({each.what}) does not follow from those before: {each.why}")
        self._check_jobs()
        await self._check_queue(recovered=recovered)
        if self.read_games is not None:
            await self._check_files(self.read_games)
            claimed = sum(shard.games + shard.refused for shard in self._state.shards.values())
            self._same("games", len(self.games), claimed)
        self._check_counts()
        await self._check_champion(recovered=recovered)
        return self.problems

    def expect(self, facts: list[AnyFact]) -> None:
        """These were seen before, by somebody else."""
        self._known = facts

    def _wrong(self, what: str) -> None:
        self.problems.append(what)

    # --- decisions ----------------------------------------------------------------------------------------

    def _check_promotion(self, fact: Promoted) -> None:
        """Asked before *fact* is taken in."""
        if not fact.evidence:
            self._wrong(f"{fact.model[:12]} was promoted without evidence")
        if fact.previous != self._state.champion or fact.model == self._state.champion:
            self._wrong(f"{fact.model[:12]} was promoted twice, or over a champion that was none")

    # --- jobs ---------------------------------------------------------------------------------------------

    def _check_jobs(self) -> None:
        issued = Counter(fact.job_id for fact in self.facts if isinstance(fact, JobIssued))
        ended = Counter(fact.job_id for fact in self.facts if isinstance(fact, JobEnded))
        for job, times in (issued + ended).items():
            if issued[job] != 1 or ended[job] > 1:
                self._wrong(f"{job} was issued {issued[job]} and ended {times - issued[job]} times")

    async def _check_queue(self, *, recovered: bool) -> None:
        """The queue and the facts tell the same, and nothing is in the queue that no fact ordered."""
        ended = {fact.job_id: fact for fact in self.facts if isinstance(fact, JobEnded)}
        issued = {fact.job_id: fact for fact in self.facts if isinstance(fact, JobIssued)}
        items = await _all_items(self.engine)
        unnoted: set[str] = set()
        for job, fact in issued.items():
            # ended items are removed after some days, and a kill may come before an order is queued
            if (item := items.get(job)) is None:
                continue
            if item.payload != fact.order.as_payload():
                self._wrong(f"{job} in the queue is not what was ordered")
            if self._end_is_missing(item, ended.get(job)):
                unnoted.add(job)
        kinds = {
            fact.kind for fact in issued.values()
        }  # other work, such as joining shards, is not the loop's
        if strange := sorted(job for job, item in items.items() if item.kind in kinds and job not in issued):
            self._wrong(f"in the queue, and by no fact ordered: {strange}")
        # A fact comes before its order, never after: only this way round may something be missing.
        unqueued = issued.keys() - items.keys() - ended.keys()
        self._check_unqueued(unqueued)
        # One look alone proves nothing, as work goes on; what is open in two looks was forgotten.
        if recovered and (forgotten := unnoted & self.unnoted):
            self._wrong(f"completed and never noted: {sorted(forgotten)}")
        if recovered and (forgotten := unqueued & self.unqueued):
            self._wrong(f"issued and never put into the queue: {sorted(forgotten)}")
        self.unnoted, self.unqueued = unnoted, unqueued

    def _check_unqueued(self, unqueued: Collection[str]) -> None:
        """What is not in the queue was ordered in the pass that a kill ended: it did nothing more after it.

        Orders go into the queue in their order, and between two orders of one pass nothing is written but
        that a kind of work is held.
        """
        numbers = [
            n for n, fact in enumerate(self.facts) if isinstance(fact, JobIssued) and fact.job_id in unqueued
        ]
        for fact in self.facts[numbers[0] :] if numbers else ():
            if not isinstance(fact, Blocked) and (
                not isinstance(fact, JobIssued) or fact.job_id not in unqueued
            ):
                self._wrong(f"{sorted(unqueued)} are not in the queue, and {fact} is newer")
                return
        if len(unqueued) > ORDERS_AT_ONCE:
            self._wrong(f"{len(unqueued)} orders are not in the queue; one pass makes {ORDERS_AT_ONCE}")

    def _end_is_missing(self, item: WorkItem, end: JobEnded | None) -> bool:
        """Compare an item of the queue with its fact; whether it is done and no fact says so."""
        if item.state is not WorkState.DONE:
            if end is not None and end.report is not None:
                self._wrong(f"{item.id} counts as done and is {item.state} in the queue")
            return False
        if end is None:
            return True
        if end.report != read_report(item.result or {}):
            self._wrong(f"{item.id} was acknowledged with another report than was noted ({end.error})")
        return False

    # --- files --------------------------------------------------------------------------------------------

    async def _check_files(self, read_games: ReadGames) -> None:
        for fact, report in self._reports():
            for artifact in report.artifacts:
                if artifact.digest in self._whole:  # files never change: reading each once is enough
                    continue
                path = await self.engine.blobs.path(artifact.digest)
                if path is None or file_sha256(path) != artifact.digest:
                    self._wrong(f"{artifact.name} of {fact.job_id} is missing or damaged")
                    continue
                self._whole.add(artifact.digest)
                if artifact.kind == "shard" and fact.kind == "selfplay":
                    self._take_games(fact.job_id, artifact.digest, read_games(path))

    def _take_games(self, job_id: str, digest: str, games: Iterable[str]) -> None:
        for game in games:
            if game in self.games:
                self._wrong(f"the game {game} of {job_id} was handed in twice")
            self.games[game] = digest

    # --- counts -------------------------------------------------------------------------------------------

    def _check_counts(self) -> None:
        state, reports = self._state, list(self._reports())
        checks = [
            a for fact, r in reports if fact.kind == "validate" for a in r.artifacts if a.kind == "report"
        ]
        self._same("checked shards", len(checks), len({str(each.counts["shard"]) for each in checks}))
        rows = sum(int(each.counts["rows"]) for each in checks)
        self._same("rows", rows, state.rows)
        self._same("earned sample-steps", rows * self.rules.bucket.steps_per_row, state.bucket.earned)
        trainings = [
            int(report.fields["steps"]) * int(fact.order.params["batch"])
            for fact, report in reports
            if fact.kind == "train" and not fact.order.purpose  # those of students are paid for by nobody
        ]
        self._same("models", len(trainings), len(state.models))
        self._same("spent sample-steps", sum(trainings), state.bucket.spent)
        exported = Counter(shard for samples in state.samples.values() for shard in samples.shards)
        # After a recall the same games are exported again without the bad ones.
        if not state.recalls and (again := [digest[:12] for digest, times in exported.items() if times > 1]):
            self._wrong(f"games that were exported twice: {again}")
        matches = sum(len(r.fields["matches"]) for fact, r in reports if fact.kind == "evaluate")
        matches += sum(len(r.fields["pairs"]) for fact, r in reports if fact.kind == "tournament")
        self._same("matches", matches, len(state.matches))

    def _same(self, what: str, counted: float, reported: float) -> None:
        if abs(counted - reported) > 1e-6:  # some are sums of shares
            self._wrong(f"{what}: {counted} by the reports, {reported} by the state")

    async def _check_champion(self, *, recovered: bool) -> None:
        """The pointer follows the facts; a crash may leave it one change behind until the next start."""
        pointer = await read_champion(self.engine.kv, self.config)
        changes = sum(isinstance(fact, Promoted | RolledBack) for fact in self.facts)
        at = 0 if pointer is None else pointer.change
        if at not in (changes, changes - 1) or (recovered and at < self._changes):
            self._wrong(f"the champion's pointer is at change {at} of {changes}")
        elif pointer is not None and at == changes and pointer.model != self._state.champion:
            self._wrong("the champion's pointer names another model than the facts")
        self._changes = changes

    def _reports(self) -> Iterable[tuple[JobIssued, JobReport]]:
        orders = {fact.job_id: fact for fact in self.facts if isinstance(fact, JobIssued)}
        for fact in self.facts:
            if isinstance(fact, JobEnded) and fact.report is not None:
                yield orders[fact.job_id], fact.report


async def _all_items(engine: Engine) -> dict[str, WorkItem]:
    """Everything that is in the queue, read item by item; its counts are another account of the same."""
    items: dict[str, WorkItem] = {}
    number = 0
    while unended := await engine.queue.unended(after=number, limit=ITEMS_READ):
        items |= {item.id: item for _, item in unended}
        number = unended[-1][0]
    number = 0
    while ended := await engine.queue.ended(after=number, limit=ITEMS_READ):
        items |= {end.item.id: end.item for end in ended}
        number = ended[-1].number
    return items


async def wrong_times(
    engine: Engine, config: str, *, began_s: float, now_s: float, lease_s: float
) -> list[str]:
    """What is dated outside the run's own life, out of order, or held for longer than its lease."""
    first_s, last_s, problems = began_s - TIME_SLACK_S, now_s + TIME_SLACK_S, []
    facts = await read_facts(engine.kv, config)
    records = await engine.events.read(after=0, limit=EVENTS_READ)
    stamped = [("fact", [fact.at_s for fact in facts]), ("event", [each.appended_s for each in records])]
    for what, stamps in stamped:
        if stamps != sorted(stamps):
            problems.append(f"a {what} is dated before the one it follows")
        if stamps and not first_s <= stamps[0] <= stamps[-1] <= last_s:
            problems.append(f"a {what} is dated outside of the run: {stamps[0]} to {stamps[-1]}")
    if (first := (await engine.events.bounds()).first) != 1:
        problems.append(f"the events before {first} are gone, and none is old")
    for item in await engine.queue.claimed():
        if (item.lease_until_s or 0.0) > last_s + lease_s:
            problems.append(f"{item.id} is held until {item.lease_until_s}, with a lease of {lease_s} s")
    for entry in await engine.kv.entries(LEASE_PREFIX):
        if entry.expires_s is None or entry.expires_s > last_s + LEASE_S_MAX:
            problems.append(f"{entry.key} is held until {entry.expires_s}")
    return problems


def damaged_blobs(folder: Path) -> list[str]:
    """Files that can be seen under the name of a digest and have another one."""
    seen = (path for path in folder.rglob("*") if path.is_file() and ".incoming" not in path.parts)
    return [path.name for path in seen if is_digest(path.name) and file_sha256(path) != path.name]
