"""The rules of the loop: the numbers that it goes by, with the reason where one is not obvious, and how they
are noted among the facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ringrift.decoding import convert_to, decode_as
from ringrift.errors import ConfigError, Corrupt
from ringrift.learning.facts.facts import RULES_TOPIC, AnyFact, Noted
from ringrift.learning.facts.records import RINGRIFT_BOARDS, BucketRules
from ringrift.learning.facts.state import ConfigState, plan_version
from ringrift.learning.judging.promotion import PromotionRules
from ringrift.settings import Settings
from ringrift.work.job.protocol import RINGRIFT_PROGRAM, USER_PROGRAM
from ringrift.work.shares import board_and_players

YEAR_S = 31_536_000
Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=YEAR_S)]
SecondsOrZero = Annotated[float, Meta(ge=0, le=YEAR_S)]
Size = Literal["small", "medium", "large"]
# As `ringrift.players.specs` reads them, which the control process does not load: it needs compiled games.
_OPPONENT = re.compile(r"random|heuristic(:quick)?|mcts:[1-9][0-9]{0,6}")
OPPONENTS = "random, heuristic, heuristic:quick, mcts:SIMULATIONS"


class PlayRules(msgspec.Struct, frozen=True, kw_only=True):
    """How games to learn from are searched and played."""

    c_scale: float = 0.1  # weight of values in the policies that are learned
    rescale: bool = True  # whether values that are alike are stretched first
    quick_simulations: int = 0  # of moves that teach no policy; 0: all moves do
    full_share: float = 0.25  # of the moves that do
    opening_plies: int = 0  # the most random moves at the beginning of half of the games


class TargetRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is learned from the games, as parameters of `export`."""

    value_decay: float = 0.0  # share of the searches of later moves in what searches say of a position
    surprise: float = 0.0  # share of how often a row is drawn that goes by its surprise


# What learned fastest where it was measured, as `docs/learning.md` shows; other boards do as before.
PLAY_BY_BOARD = {
    "connect_four": PlayRules(
        c_scale=0.3, rescale=False, quick_simulations=8, full_share=0.4, opening_plies=12
    ),
    "square8": PlayRules(opening_plies=10),
}
TARGETS_BY_BOARD = {"square8": TargetRules(value_decay=0.8, surprise=0.5)}


def play_rules(config: str) -> PlayRules:
    return PLAY_BY_BOARD.get(board_and_players(config)[0], PlayRules())


def target_rules(config: str) -> TargetRules:
    return TARGETS_BY_BOARD.get(board_and_players(config)[0], TargetRules())


class StudentRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Networks that are trained beside the line of champions. The table `[learning.students]`."""

    distillation: Size | None = None  # size of a student of every new champion; None: no students
    small_net_games: Annotated[int, Meta(ge=0)] = 0  # a small network after every so many games; 0: none
    small_net: Size = "small"


class CascadeRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose champion the first network of a config begins with. The table `[learning.cascade]`."""

    enabled: bool = False
    rating: float = 1500.0  # of that champion, at least
    wait_s: SecondsOrZero = 1800.0  # for it, at most, from the first fact of the config on
    sources: dict[str, str] = {}  # config: whom it follows; else the same board with a player less


class LearningRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a config is played, trained and judged. The table `[learning]` of the config file."""

    # Runs with different seeds play, train and judge differently, as runs that are compared should.
    seed: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    preset: Size = "small"
    simulations: Positive = 32
    # "progress": few simulations at first, more with games and rating, as the RingRift documents have it.
    search_budget: Literal["fixed", "progress"] = "fixed"
    evaluation_simulations: Positive = 32
    selfplay_job_s: Seconds = 20.0  # short enough that games take over new weights, and effort follows need
    selfplay_games_first: Positive = 32  # while nothing is measured
    selfplay_slots: Positive = 64
    # Who plays: the newest network that is not shown to be worse, the newest that a quick match showed not to
    # be worse, or the champion.
    generator: Literal["newest", "checked", "champion"] = "newest"
    training_job_s: Seconds = 20.0  # a training goes on in pieces, so that no other work waits for long
    recover_after: Annotated[int, Meta(ge=1, le=100)] = 3  # candidates in a row that are shown to be worse
    batch: Positive = 256
    learning_rate: Annotated[float, Meta(gt=0, le=10)] = 2e-3
    learning_rate_steps: Positive = 1_000  # after so many steps the rate falls with the root of the steps
    weight_decay: Annotated[float, Meta(ge=0, le=10)] | None = None  # None: what the job does by itself
    average_decay: Annotated[float, Meta(ge=0, lt=1)] = 0.995  # memory of the averaged weights, a step
    value_mix: Annotated[float, Meta(ge=0, le=1)] = 0.8
    hold_out: Annotated[float, Meta(ge=0, le=0.5)] = 0.05
    window_base: Annotated[int, Meta(ge=0)] = 0  # rows; 0: by the board
    window_share: Annotated[float, Meta(gt=0, le=1)] = 1.0  # of the window that is trained on, newest first
    bucket: BucketRules = BucketRules(chunk_steps=8_192, cap_steps=1_600_000, rows_first_min=2_000)
    # Of the processor time of a config, for candidates, second looks, ratings and tournaments.
    judging_share: Annotated[float, Meta(gt=0, le=1)] = 0.15
    evaluation_job_s: Seconds = 20.0  # after so long a judgment begins no more games; another job goes on
    evaluation_games: Positive = 64  # of one job that somebody asked for
    rating_games: Positive = 40
    rating_opponents: tuple[str, ...] = ("random", "mcts:32")
    # The most one-sided match crosses the bound of the test after 68 games: one second look is enough for it.
    promotion: PromotionRules = PromotionRules(chunk_games=80)
    job_attempts: Positive = 3
    retry_s: Seconds = 10.0  # after the first failure of a stage; doubles with each
    breaker_failures: Positive = 5
    breaker_s: Seconds = 300.0
    adaptive_steps: bool = False  # whether feedback also moves what a row earns
    follow_backpressure: bool = False  # whether fewer games are ordered while rows pile up
    students: StudentRules = StudentRules()
    cascade: CascadeRules = CascadeRules()
    recalled_models: Literal["take_back", "list"] = "take_back"
    # Of the files of games that each worker brings, some games of so many are searched again by another.
    recompute_share: Annotated[float, Meta(ge=0, le=1)] = 0.01  # 0: none
    recompute_every_s: Seconds = 3600.0  # and at least one of each worker so often
    # Whose program plays: what RingRift's own brings is searched again whatever its result says. Empty in the
    # rules that older versions noted; in the settings it stands for what `[jobs.selfplay]` says.
    selfplay_program: Literal["", "ringrift", "user"] = ""
    # Kinds that programs of the user's do, here or elsewhere: their orders also hold what earlier versions
    # ordered. In the settings those with a command in `[jobs.KIND]` are added.
    own_programs: tuple[str, ...] = ()
    set_aside_s: Seconds = 24 * 3600.0  # for how long a worker whose games fail gets no work
    set_aside_games: Literal["recall", "propose"] = "recall"  # those since its last good comparison
    diagnose_every_s: SecondsOrZero = 1800.0  # between two examinations, each of a new champion; 0: none
    tournament_every_s: SecondsOrZero = 4 * 3600.0  # 0: none
    tournament_champions: Annotated[int, Meta(ge=2, le=16)] = 5
    tournament_games: Positive = 16  # of each pair

    def __post_init__(self) -> None:
        for opponent in self.rating_opponents:
            if not _OPPONENT.fullmatch(opponent):
                raise ConfigError(f"rating_opponents names {opponent!r}; there are {OPPONENTS}")

    def check_configs(self, configs: Sequence[str]) -> None:
        """Raises `ConfigError` for an opponent that one of *configs* does not have."""
        for config in configs:
            board, _ = board_and_players(config)
            if board in RINGRIFT_BOARDS:
                continue
            if names := [each for each in self.rating_opponents if each.startswith("heuristic")]:
                raise ConfigError(
                    f"rating_opponents of [learning] names {names[0]!r}, but {config} has no such player; "
                    "it can be rated against random and mcts:SIMULATIONS"
                )


def configured_rules(settings: Settings) -> LearningRules:
    """The rules of a run with *settings*; raises `ConfigError` that names what is wrong."""
    rules = learning_rules(settings.learning or {})
    commands = {job.kind for job in settings.jobs if job.command}
    program = USER_PROGRAM if "selfplay" in commands else RINGRIFT_PROGRAM
    return msgspec.structs.replace(
        rules,
        selfplay_program=rules.selfplay_program or program,
        own_programs=tuple(sorted(commands.union(rules.own_programs))),
    )


def learning_rules(table: Mapping[str, Any]) -> LearningRules:
    """Read the table; raises `ConfigError` that names what is wrong."""
    _refuse_unknown(table, LearningRules, "learning")
    try:
        return convert_to(table, LearningRules)
    except msgspec.ValidationError as error:
        raise ConfigError(f"[learning] in the config file: {error}") from None


def _refuse_unknown(table: Mapping[str, Any], rules: type[msgspec.Struct], name: str) -> None:
    """Name a setting that there is none of, and those there are, in *table* and the tables in it."""
    known: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(rules)}
    for key, value in table.items():
        if key not in known:
            there_are = ", ".join(sorted(known))
            raise ConfigError(f"[{name}] has the unknown setting {key!r}; it may have: {there_are}")
        kind = known[key]
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            _refuse_unknown(value, kind, f"{name}.{key}")


# The rules of a run are noted among the facts, so that its decisions can be made again by them.


CHANGES_SHOWN = 5
# What follows from the same facts and rules. Decisions of another version of the plan are not made again.
PLAN_VERSION = 15


def rules_of(fact: AnyFact) -> LearningRules | None:
    """The rules that *fact* puts in force; None if it is about something else."""
    if not isinstance(fact, Noted) or fact.topic != RULES_TOPIC:
        return None
    try:
        return convert_to(fact.details["rules"], LearningRules)
    except (KeyError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the rules noted at {fact.at_s:.0f}", found=str(error), advice="Use the version that wrote them"
        ) from None


def plan_version_of(fact: AnyFact) -> int | None:
    """Which version of the plan decides from *fact* on; None if it is about something else."""
    if not isinstance(fact, Noted) or fact.topic != RULES_TOPIC:
        return None
    return plan_version(fact)


def decided_by_other_plans(facts: Sequence[AnyFact]) -> int:
    """How many of the first facts another version of the plan decided; those without rules are of any."""
    versions = ((number, plan_version_of(fact)) for number, fact in enumerate(facts))
    noted = [(number, version) for number, version in versions if version is not None]
    if not noted or noted[-1][1] == PLAN_VERSION:
        ours = [number for number, version in noted if version == PLAN_VERSION]
        others = [number for number, version in noted if version != PLAN_VERSION]
        return 0 if not others else min(number for number in ours if number > others[-1])
    return len(facts)


def rules_note(state: ConfigState, rules: LearningRules, *, at_s: float) -> Noted | None:
    """What to note of *rules*; None if they are the ones noted last."""
    noted = state.newest_note(RULES_TOPIC)
    now = decode_as(msgspec.json.encode(rules), dict[str, Any])
    before = None if noted is None else noted.details.get("rules")
    if before == now and noted is not None and plan_version_of(noted) == PLAN_VERSION:
        return None
    text = "as the run began" if before is None else _changes(before, now) or "another version of the plan"
    details = {"rules": now, "plan": PLAN_VERSION, "version": metadata.version("ringrift")}
    return Noted(at_s=at_s, topic=RULES_TOPIC, text=text, details=details)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    changed = [
        f"{name} is {now.get(name)}, was {before.get(name)}"
        for name in now
        if now.get(name) != before.get(name)
    ]
    more = len(changed) - CHANGES_SHOWN
    return "; ".join(changed[:CHANGES_SHOWN]) + (f"; and {more} more" if more > 0 else "")
