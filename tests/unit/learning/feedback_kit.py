"""A run whose facts a test writes, and a router that remembers what was told."""

from __future__ import annotations

from collections import Counter

from learning_story import RULES, Story, artifact

from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.facts.facts import Promoted, Rejected, RolledBack
from ringrift.learning.judging.feedback import RatingCurves
from ringrift.learning.plan.orders import validate_order
from ringrift.learning.situation import Situations
from ringrift.work.shares import ConfigView, config_shares


class Run:
    """Stands where the controller stands: configs, their states, shares, and facts that are written."""

    def __init__(self, *configs: str) -> None:
        self.stories = {config: Story(config) for config in configs or ("square8_2p",)}
        self.fixed_shares: dict[str, float] = {}
        self.rules, self.curves = RULES, RatingCurves()

    def configs(self):
        return list(self.stories)

    def state(self, config):
        return self.stories[config].state

    def shares(self):
        return self.fixed_shares or config_shares([ConfigView(config=config) for config in self.stories])

    async def write(self, config, fact):
        self.stories[config].write(fact)

    @property
    def story(self) -> Story:
        return next(iter(self.stories.values()))

    @property
    def situations(self) -> Situations:
        return Situations(self)


class Ear:
    """Hears everything on a router of its own."""

    def __init__(self) -> None:
        self.router = UnifiedEventRouter(enable_cross_process_polling=False)
        self.events: list[tuple[str, dict]] = []
        self.router.subscribe(
            None, lambda event: self.events.append((event.event_type, event.payload)), "ear"
        )

    def take(self) -> dict[str, dict]:
        """What was told since the last call; the last payload of each event."""
        told, self.events = dict(self.events), []
        return told

    def counts(self) -> Counter[str]:
        return Counter(name for name, _ in self.events)


def checked_shard(story: Story, *, games=100, quality=0.75, refused=0, reasons=None, worker="w1") -> str:
    """Play a shard and check it with the given outcome."""
    digest = story.play(games=games, rows=games * 20)
    job = story.issue("validate", validate_order(story.state, story.state.unchecked()))
    counts = {"shard": digest, "games": games, "refused": refused, "rows": (games - refused) * 20}
    report = artifact("report", f"report-{digest}", **counts, quality=quality, reasons=reasons or {})
    story.end(job, report)
    story.state.shards[digest].worker = worker
    return digest


def trained_model(story: Story, *, loss=1.0) -> str:
    if not story.state.samples:
        checked_shard(story)
        story.export()
    return story.train(loss=loss)


def promote(story: Story, model: str) -> None:
    story.now_s += 600.0
    story.write(
        Promoted(at_s=story.now_s, model=model, previous=story.state.champion, reason="stronger", evidence={})
    )


def reject(story: Story, model: str) -> None:
    story.now_s += 600.0
    story.write(Rejected(at_s=story.now_s, model=model, gate="sprt", reason="not stronger", evidence={}))


def roll_back(story: Story, model: str, restored: str) -> None:
    story.now_s += 600.0
    story.write(RolledBack(at_s=story.now_s, model=model, restored=restored, reason="weaker", evidence={}))
