"""What a training begins with: files of samples, how old their games are, what to use instead of the newest,
and the checkpoint that it goes on from when training went astray.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from statistics import median

import msgspec

from ringrift.learning.facts.facts import (
    FRESHNESS_TOPIC,
    MISSING_TOPIC,
    QUALITY_MONITOR,
    SYNC_FAILED_TOPIC,
    Noted,
    Recalled,
    TrainingReset,
)
from ringrift.learning.facts.records import (
    Model,
    ModelState,
    Samples,
    Shard,
    ShardState,
    base_rows,
    growth_of,
    refuse_shard,
    shards_in_window,
    window_rows,
)
from ringrift.learning.facts.state import CLOCK_TOLERANCE_S, DIVERGED, ConfigState, has_recalled
from ringrift.learning.judging import promotion
from ringrift.learning.plan.rules import LearningRules
from ringrift.learning.plan.stages import STALE_FALLBACK, is_stopped, stop_of
from ringrift.work.limits import FRESH_HOURS_MAX, GAMES_MIN, why_stale

# Which files of samples a training reads, and which checked games are in none of them yet.
#
# Every checked game is exported once: an export makes a file of the games that came since the last one, and a
# training reads as many of the newest files as fill the window. A file that holds recalled games is read by
# nobody any more; its other games are exported again. So are, once, those of a file that a training refused.


FILES_MAX = 64  # an order is one value of the store, and names each file
SHARDS_MAX = 500  # of one export, for the same reason
UNFIT_EXPORTS_MAX = 2  # files with the same games that trainings refuse; then they are left alone


def rows_in_window(state: ConfigState, rules: LearningRules) -> int:
    """How many of the newest rows are learned from."""
    base = rules.window_base or base_rows(state.config)
    growth = growth_of(state.config)
    return window_rows(state.rows, base=base, growth=growth, share=rules.window_share)


def window_files(state: ConfigState, rules: LearningRules) -> list[Samples]:
    """The newest files that fill the window, the newest last; the first may reach over its edge."""
    wanted, rows = rows_in_window(state, rules), 0
    missing = missing_files(state)
    taken: list[Samples] = []
    held: set[str] = set()
    for samples in reversed(state.samples.values()):
        if rows >= wanted or len(taken) == FILES_MAX:
            break
        # Older versions wrote the whole window into each file, so two of theirs hold the same games.
        if not held.isdisjoint(samples.shards) or not _is_readable(state, samples, missing):
            continue
        taken.append(samples)
        held.update(samples.shards)
        rows += samples.rows
    return taken[::-1]


def unsampled_shards(state: ConfigState, rules: LearningRules) -> list[Shard]:
    """Checked games of the window that no usable file holds, newest first."""
    base, growth = rules.window_base or base_rows(state.config), growth_of(state.config)
    shards = shards_in_window(
        fit_shards(state), state.rows, base=base, growth=growth, share=rules.window_share
    )
    missing = missing_files(state)
    return [shard for shard in shards if not _is_sampled(state, shard, missing)]


def next_export(state: ConfigState, rules: LearningRules) -> list[Shard]:
    """What the next file is made of: games that were all played with, or all without a network.

    What the search says of a position is worth learning only where a network guided it.
    """
    left = unsampled_shards(state, rules)
    bare = [shard for shard in left if shard.model is None]
    return (bare or left)[:SHARDS_MAX]


def fit_shards(state: ConfigState) -> Iterator[Shard]:
    """What may be learned from, newest first."""
    by_score, missing = not is_stopped(state, QUALITY_MONITOR), missing_files(state)
    return (
        shard
        for shard in reversed(state.shards.values())
        if shard.state is ShardState.CHECKED
        and shard.rows > 0
        and shard.digest not in missing
        and refuse_shard(shard, by_score=by_score) is None
    )


def refused_lately(state: ConfigState) -> str:
    """What earns no training of the newest checked games, and why; empty if they are fit to learn from."""
    by_score, rows, why = not is_stopped(state, QUALITY_MONITOR), 0, ""
    for shard in islice(reversed(state.shards.values()), SHARDS_MAX):
        if shard.state is not ShardState.CHECKED:
            continue
        refused = refuse_shard(shard, by_score=by_score)
        if refused is None:
            break
        rows, why = rows + shard.rows, why or refused
    return f"the newest {rows:,} rows earn nothing: {why}" if rows else ""


def _is_sampled(state: ConfigState, shard: Shard, missing: Collection[str]) -> bool:
    if state.unfit_exports[shard.digest] >= UNFIT_EXPORTS_MAX:
        return True  # whoever exports it makes what no training takes: another file would be refused, too
    samples = state.samples.get(state.sampled.get(shard.digest, ""))
    return samples is not None and _is_readable(state, samples, missing)


def _is_readable(state: ConfigState, samples: Samples, missing: Collection[str]) -> bool:
    unfit = samples.digest in state.unfit_samples or samples.digest in missing
    return not unfit and not has_recalled(state, samples.shards)


# How old the newest games of a config are, from when they were made: copying a file does not renew it.


FILES_SEEN = 200


class FreshnessView(msgspec.Struct, frozen=True, kw_only=True):
    """The age of what would be trained on."""

    age_s: float | None  # of the newest checked games; None: there are none
    games: int  # made within the limit
    is_fresh: bool
    reason: str


def freshness_of(state: ConfigState, *, now_s: float, games_min: int = GAMES_MIN) -> FreshnessView:
    """Judge the newest checked games; each file counts once."""
    hours_max = FRESH_HOURS_MAX
    newest = list(islice(_learned_from(state), FILES_SEEN))
    if not newest:
        return FreshnessView(age_s=None, games=0, is_fresh=False, reason="no game is checked yet")
    # A clock that was set back makes nothing younger than new.
    age_s = max(0.0, now_s - max(made_s for made_s, _ in newest))
    games = sum(count for made_s, count in newest if now_s - made_s <= hours_max * 3600)
    fresh = not why_stale(age_s, games, hours_max=hours_max, games_min=games_min)
    text = f"{games} games of the last {hours_max:g} hours, the newest {age_s / 3600:.1f} hours old"
    return FreshnessView(age_s=age_s, games=games, is_fresh=fresh, reason=text)


def _learned_from(state: ConfigState) -> Iterator[tuple[float, int]]:
    """When files that can be learned from were made, and their games; the newest first.

    Samples that somebody brought are of games that the run does not know.
    """
    for shard in reversed(state.shards.values()):
        if shard.state is ShardState.CHECKED:
            yield shard.made_s, shard.games
    for samples in reversed(state.samples.values()):
        if not samples.shards:
            yield samples.made_s, samples.games


# What to go on with when the newest model or data is missing, damaged or old: the last good one.
#
# Going on with something older is better than standing still, and worse than the newest: every step back says
# what is missing, and is taken back as soon as the newest is there again. A training whose games are old
# waits for newer ones, played here or brought by a sync; while STALE_FALLBACK runs, for 15 minutes at most.


TIERS_S = (900.0, 1800.0, 2700.0)
TIERS_FAILURES = (2, 4, 6)
_UNFIT = frozenset({ModelState.ROLLED_BACK, ModelState.REJECTED})


@dataclass(frozen=True, slots=True)
class Fallback:
    """What is used instead of what, and why; *use* is None when nothing good is left."""

    wanted: str | None
    use: str | None
    reason: str

    @property
    def needed(self) -> bool:
        return self.use != self.wanted


def good_model(state: ConfigState, missing: Collection[str] = ()) -> Fallback:
    """The champion, or the newest earlier one that is there and was neither taken back nor recalled."""
    champion = state.champion
    if champion is None:
        return Fallback(None, None, "there is no champion yet")
    if _is_good(state.models[champion], state, missing):
        return Fallback(champion, champion, "the champion is there")
    why = f"the champion {champion[:12]} is {'missing' if champion in missing else 'not to be trusted'}"
    for change in reversed(state.promotions):
        for digest in (change.model, change.previous):
            if digest is not None and digest != champion and _is_good(state.models[digest], state, missing):
                return Fallback(champion, digest, f"{why}; {digest[:12]} was champion before it")
    return Fallback(champion, None, f"{why}; games are played without a network until it is back")


def good_samples(state: ConfigState, missing: Collection[str] = ()) -> Fallback:
    """The newest samples, or the newest older ones that are there and hold no recalled shard."""
    newest = state.newest_samples
    if newest is None:
        return Fallback(None, None, "nothing was exported yet")
    if _are_good(newest, state, missing):
        return Fallback(newest.digest, newest.digest, "the newest samples are there")
    why = f"the samples {newest.digest[:12]} are {'missing' if newest.digest in missing else 'recalled'}"
    for samples in reversed(state.samples.values()):
        if _are_good(samples, state, missing):
            text = f"{why}; older ones with {samples.rows:,} rows are used"
            return Fallback(newest.digest, samples.digest, text)
    return Fallback(newest.digest, None, f"{why}; the window has to be exported again")


def fallback_tier(*, failures: int, waited_s: float) -> int:
    """How far to step back, 0 to 3: by failures in a row or by how long the newest is waited for."""
    by_failures = sum(failures >= limit for limit in TIERS_FAILURES)
    by_time = sum(waited_s >= limit for limit in TIERS_S)
    return max(by_failures, by_time)


@dataclass(frozen=True, slots=True)
class DataWait:
    """A training waits for newer games; None: until they are there."""

    reason: str
    until_s: float | None


def data_wait(state: ConfigState, *, now_s: float) -> DataWait | None:
    """Why a training waits for newer games; None if they are fresh, or were waited for long enough.

    Of a config that has few games, all of them have to be fresh: none is held up for having few.
    """
    found = freshness_of(state, now_s=now_s, games_min=min(GAMES_MIN, state.games))
    if found.is_fresh:
        return None
    why = f"waits for newer games, played or brought by a sync: {found.reason}"
    if (stopped := stop_of(state, STALE_FALLBACK)) is not None:
        return DataWait(f"{why}; it would go on without them, but {stopped.reason}", None)
    since_s = stale_since_s(state)
    if since_s is None or now_s < since_s - CLOCK_TOLERANCE_S:
        since_s = now_s
    failed = failed_syncs(state)
    if fallback_tier(failures=failed, waited_s=now_s - since_s) > 0:
        return None
    text = f"{why}; after {TIERS_S[0] / 60:.0f} minutes it goes on with what is there"
    if failed:
        text += f", or when {TIERS_FAILURES[0]} syncs have failed: {failed} sync for them failed"
    return DataWait(text, since_s + TIERS_S[0])


def stale_since_s(state: ConfigState) -> float | None:
    """Since when a training has waited for newer games, as was noted; None if none does."""
    note = state.newest_note(FRESHNESS_TOPIC)
    return note.at_s if note is not None and note.details.get("stale") is True else None


def failed_syncs(state: ConfigState) -> int:
    """How many syncs failed since a training waits for newer games; 0 if none waits."""
    note, since_s = state.newest_note(SYNC_FAILED_TOPIC), stale_since_s(state)
    if note is None or since_s is None or note.details.get("since_s") != since_s:
        return 0  # it was about an earlier wait
    failures = note.details.get("failures")
    return failures if isinstance(failures, int) else 0


def missing_files(state: ConfigState) -> frozenset[str]:
    """Digests that the facts name and the blobs lacked when STALE_FALLBACK last looked.

    While it is stopped nobody looks, so that what it said may be long wrong: then nothing counts as missing.
    """
    note = state.newest_note(MISSING_TOPIC)
    found = None if note is None else note.details.get("missing")
    if not found or is_stopped(state, STALE_FALLBACK):
        return frozenset()
    return frozenset(found)


def freshness_note(state: ConfigState, *, is_due: bool, now_s: float) -> Noted | None:
    """What to note when a training, if one *is_due*, begins or ends to wait; None if that was noted."""
    since_s = stale_since_s(state)
    if since_s is None and not is_due:
        return None  # nobody asks
    found = freshness_of(state, now_s=now_s, games_min=min(GAMES_MIN, state.games))
    if found.is_fresh == (since_s is None):
        return None
    text = f"the games are {'fresh again' if found.is_fresh else 'old'}: {found.reason}"
    details = {"stale": not found.is_fresh, "age_s": found.age_s, "games": found.games}
    return Noted(at_s=now_s, topic=FRESHNESS_TOPIC, text=text, details=details)


def _is_good(model: Model, state: ConfigState, missing: Collection[str]) -> bool:
    recalled = any(each.model == model.digest and not each.withdrawn for each in state.recalls.values())
    return model.digest not in missing and model.state not in _UNFIT and not recalled


def _are_good(samples: Samples, state: ConfigState, missing: Collection[str]) -> bool:
    recalled = state.trust_before_recall.keys() & set(samples.shards)
    return not recalled and samples.digest not in missing and samples.digest not in state.unfit_samples


# Which models nothing may build on: those that are recalled, learned from recalled games, or go on from one.


def active_recalls(state: ConfigState) -> list[Recalled]:
    return [recall for recall in state.recalls.values() if not recall.withdrawn]


def is_recalled_model(state: ConfigState, digest: str) -> bool:
    return any(takes_back(recall, digest) for recall in active_recalls(state))


def takes_back(recall: Recalled, model: str) -> bool:
    """Whether *recall* is about *model* itself, not only about its games of a worker or a time."""
    return (
        recall.model == model and recall.worker is None and recall.from_s is None and recall.until_s is None
    )


def tainted_models(state: ConfigState) -> frozenset[str]:
    """Models that are recalled, learned from recalled games, or go on from such a model."""
    if not state.trust_before_recall and not active_recalls(state):
        return frozenset()
    found: set[str] = set()
    recalled = {each.digest for each in state.samples.values() if has_recalled(state, each.shards)}
    for model in state.models.values():  # parents come before their children
        if (
            model.parent in found
            or not recalled.isdisjoint(model.sample_files)
            or is_recalled_model(state, model.digest)
        ):
            found.add(model.digest)
    return frozenset(found)


def distrusted_models(state: ConfigState, rules: LearningRules) -> frozenset[str]:
    """Models that nothing may build on.

    Tainted ones count as long as the champion is none of them: if it is, there is nobody better.
    """
    tainted = tainted_models(state)
    if takes_back_tainted(rules) and state.champion not in tainted:
        return tainted
    return frozenset(digest for digest in tainted if is_recalled_model(state, digest))


def takes_back_tainted(rules: LearningRules) -> bool:
    """Whether models that learned from recalled games are given up; if not, they are only listed."""
    return rules.recalled_models == "take_back"


def lineage(state: ConfigState, digest: str) -> list[Model]:
    """A model and those that it goes on from, newest first."""
    return list(ancestors(state, digest))


def ancestors(state: ConfigState, digest: str) -> Iterator[Model]:
    """A model, its parent, the parent of that, and so on."""
    seen: set[str] = set()
    found = state.models.get(digest)
    while found is not None and found.digest not in seen:
        yield found
        seen.add(found.digest)
        found = state.models.get(found.parent or "")


def learned_shards(state: ConfigState, model: Model) -> list[str]:
    """The games that one training saw, as files; what its parents saw is theirs."""
    files = (state.samples[digest] for digest in model.sample_files if digest in state.samples)
    return list(dict.fromkeys(shard for samples in files for shard in samples.shards))


# When training goes back to an earlier checkpoint: after a recall, a loss that jumped, or lost matches.
#
# Training never waits for a verdict, so it can go on for a while from weights that turn out to be bad. What
# shows that is looked at before anything is ordered; going back is a fact with its reason, and what was
# trained in between is given up.


LOSSES_SEEN = 8
LOSSES_NEEDED = 6
# What a network has yet to learn changes by up to a half when games by a stronger one come.
BAND_SHARE, BAND_DEVIATIONS = 0.75, 6.0


def decided_reset(state: ConfigState, rules: LearningRules, *, now_s: float) -> TrainingReset | None:
    """Begin again from an earlier model, if the newest shows that it is no place to go on from."""
    newest = state.newest_model
    if newest is None or state.restarts:
        return None
    distrusted = distrusted_models(state, rules)
    if newest.digest in distrusted:
        reason, found = "the newest model learned from recalled games", _last_clean(state, distrusted)
    else:
        reason, found = _astray(state, rules), state.models.get(state.champion or "")
    if not reason or found is None or found is newest or found.digest in distrusted:
        return None
    evidence = {"from": newest.digest, "losses": _losses(_recent(state, newest))}
    return TrainingReset(
        at_s=now_s,
        model=found.digest,
        reason=f"{reason}; on from model {found.number}",
        evidence=evidence,
    )


def _last_clean(state: ConfigState, distrusted: frozenset[str]) -> Model | None:
    """The newest model that none of the recalled games is in."""
    return next(
        (
            model
            for model in reversed(state.models.values())
            if model.digest not in distrusted and model.state is not ModelState.ROLLED_BACK
        ),
        None,
    )


def _astray(state: ConfigState, rules: LearningRules) -> str:
    """What is wrong with the newest model; empty if nothing is."""
    newest = state.newest_model
    assert newest is not None
    if newest.state is ModelState.ROLLED_BACK:
        return f"model {newest.number} was taken back"
    failures = state.failures.get("train")
    reset_s = 0.0 if state.reset is None else state.reset.at_s
    if (
        failures is not None
        and failures.in_a_row
        and failures.last_s > reset_s
        and DIVERGED in failures.error
    ):
        return f"training could not go on: {failures.error}"
    if said := _out_of_band(_recent(state, newest)):
        return said
    worse = _worse_in_a_row(state)
    if worse >= rules.recover_after:
        return f"{worse} candidates in a row were shown to be worse than the champion"
    return ""


def _recent(state: ConfigState, model: Model) -> list[Model]:
    """It and those that it went on from, as many as are compared."""
    return list(islice(ancestors(state, model.digest), LOSSES_SEEN + 1))


def _out_of_band(line: list[Model]) -> str:
    """Whether the newest loss lies far above those of the trainings before it."""
    losses = _losses(line)
    if not losses or len(losses) < LOSSES_NEEDED + 1:
        return ""
    newest, before = losses[0], losses[1:]
    middle = median(before)
    deviation = median(abs(loss - middle) for loss in before)
    limit = middle + max(BAND_SHARE * middle, BAND_DEVIATIONS * deviation)
    if isfinite(newest) and newest <= limit:
        return ""
    return f"the loss of model {line[0].number} is {newest:.3f}, and trainings before it had {middle:.3f}"


def _losses(line: list[Model]) -> list[float]:
    """Policy and value together, newest first, of the models that have them.

    Without the entropy of the targets, which nobody can learn away and which changes with who plays.
    """
    found = [loss for model in line if (loss := model.losses.get("train"))]
    return [each["policy"] - each.get("entropy", 0.0) + each["value"] for each in found]


def _worse_in_a_row(state: ConfigState) -> int:
    """How many of the models judged last lost clearly, since training was set back."""
    since_s = 0.0 if state.reset is None else state.reset.at_s
    matches = state.trusted_matches()
    judged = {match.first for match in matches if match.purpose == promotion.PROMOTION}
    newest = (model for model in reversed(state.models.values()) if model.digest in judged)
    count = 0
    for model in newest:
        if model.made_s <= since_s or model.state is ModelState.PRODUCTION:
            break
        if not promotion.lost_clearly(model.digest, matches):
            if model.state in (ModelState.EVALUATING, ModelState.STAGING):
                continue  # it is being judged
            break
        count += 1
    return count
