"""Ratings of a long run are fitted beside the event loop, never on it."""

import asyncio
import random
import threading

import msgspec
import pytest
from learning_story import RULES, Story

from ringrift.coordination.evaluation_daemon import look
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller, RatingRefits
from ringrift.learning.facts.facts import Noted, Promoted
from ringrift.learning.facts.ledger import Ledger
from ringrift.learning.facts.records import Match
from ringrift.learning.judging import ratings
from ringrift.learning.judging.ratings import rate
from ringrift.learning.loop import StatusWriter
from ringrift.runtime import SystemRuntime
from ringrift.settings import Settings

CONFIG = "square8_2p"
MANY = 10_000


def many_matches(champion, *, models=300, count=MANY):
    rng, found = random.Random(5), []
    names = [champion, *(f"{number:064x}" for number in range(1, models))]
    for number in range(count):
        at = number * models // count
        second = "random" if at == 0 or rng.random() < 0.1 else names[max(0, at - 1 - rng.randrange(5))]
        wins = rng.randrange(20, 45)
        found.append(
            Match(
                job_id=f"j{number}", first=names[at], second=second, simulations=32, players=2, games=64,
                wins=wins, draws=0, losses=64 - wins, pairs=None, at_s=float(number),
            )
        )  # fmt: skip
    return found


@pytest.fixture
def fits(monkeypatch):
    """The threads in which ratings were fitted."""
    threads, fit = [], ratings.fit

    def noted(*args, **kwargs):
        threads.append(threading.current_thread())
        return fit(*args, **kwargs)

    monkeypatch.setattr(ratings, "fit", noted)
    for cached in (ratings._rated, ratings._fit_group):
        cached.cache_clear()
    return threads


def a_champion():
    story = Story(CONFIG)
    story.play()
    story.check()
    story.export()
    model = story.train()
    story.evaluate(model, "random", wins=60, losses=4)
    story.write(Promoted(at_s=story.now_s, model=model, previous=None, reason="for a test"))
    return story, model


def test_nothing_is_fitted_on_the_loop_of_a_run_with_ten_thousand_matches(fits, tmp_path):
    story, champion = a_champion()
    here = threading.current_thread()

    async def main():
        runtime = SystemRuntime()
        engine = memory_engine(runtime, MemoryStore())
        ledger = await Ledger.open(engine.kv, CONFIG, bucket_rules=RULES.bucket)
        for fact in story.facts:
            await ledger.append(fact)
        fits.clear()
        controller = Controller(engine, runtime, RULES, announcer=Silent())
        await controller.open([CONFIG])
        state = controller.state(CONFIG)
        matches = many_matches(champion)
        state.matches.extend(matches)
        await controller.write(CONFIG, Noted(at_s=runtime.now_s(), topic="test", text="many matches came in"))
        assert len(fits) >= 2
        await controller.reconcile()
        settings = Settings(data_dir=tmp_path)
        writer = StatusWriter(engine, runtime, settings, controller, router=UnifiedEventRouter())
        status_view = await writer.status_view("running")
        told, _ = look(None, state, controller.curves.of(state))
        assert status_view.configs[CONFIG].rating == pytest.approx(told.ratings[champion])
        assert len(told.ratings) == 300
        await engine.close()

    asyncio.run(main())
    assert here not in fits


def test_what_is_known_is_not_fitted_again(fits):
    story, champion = a_champion()
    refits, state = RatingRefits(), story.state
    state.matches.extend(many_matches(champion, count=100, models=20))

    async def main():
        await refits.follow(state)
        made = len(fits)
        await refits.follow(state)
        assert rate(state.matches) == rate(state.trusted_matches())
        assert len(fits) == made
        state.matches.append(msgspec.structs.replace(state.matches[-1], wins=1, losses=63))
        await refits.follow(state)
        assert len(fits) == made + 1

    asyncio.run(main())


def test_results_of_a_pair_add_up_in_whichever_matches_they_came():
    _, champion = a_champion()
    whole = many_matches(champion, count=200, models=10)
    parts = []
    for match in whole:
        parts.append(msgspec.structs.replace(match, wins=match.wins, losses=0, games=match.wins))
        parts.append(msgspec.structs.replace(match, wins=0, losses=match.losses, games=match.losses))
    random.Random(1).shuffle(parts)
    assert rate(parts) == rate(whole)
