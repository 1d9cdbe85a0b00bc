"""How a run is, for people and programs: what `ringrift status --json` and the live page show.

The control process keeps it in the key-value port, so that any process reads it in one step, and rooms below
the loop see it without knowing the loop. `ringrift status` loads this, so it loads no engine.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ringrift.decoding import decode_as
from ringrift.engine.encoding import decode_value
from ringrift.engine.ports import KeyValue
from ringrift.engine.records import read_record, write_record
from ringrift.errors import AlreadyExists, Corrupt
from ringrift.files import make_folders, remove_file, replace_file
from ringrift.foreign_files.paths import read_regular
from ringrift.process_identity import is_alive, own_start_s

STATUS_KEY = "learning/status"
SILENT_S = 30.0  # the control process says how it is every second; after this it may be gone
EXPLAIN_PREFIX = "learning/explain/"  # and the config: what the plan says of each of its stages


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the rating curve: a champion, when it became one, and how strong it is."""

    model: str
    at_s: float
    rows: int
    rating: float
    low: float
    high: float
    # Standard error of how far the newest point of the curve is from this one. It is less than what the two
    # intervals tell, because both are fitted together; None in a status of an earlier release.
    newest_difference_error: float | None = None


class StageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A job under way."""

    kind: str
    job_id: str
    worker: str
    done: int
    total: int | None
    rate: float
    eta_s: float | None
    started_s: float
    text: str = ""


class RunDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided, and why."""

    at_s: float
    config: str
    what: str  # issue selfplay, promote, reject, roll back, block …
    reason: str


class LossPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a training run came to."""

    at_s: float
    model: str
    rows_seen: int
    policy: float | None
    value: float | None
    hold_out: float | None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What it cost so far; None where there is nothing to divide by, or no price is known.

    Counted are jobs that ended well: the time of failed and lost attempts is not in it. A GPU counts for as
    long as a job has it. Money is the price of a node for as long as the jobs would have taken the whole of
    it: two jobs that have a core each of a node's two pay half of it each.
    """

    cpu_s: float
    gpu_s: float
    money: float | None
    cpu_s_per_game: float | None
    cpu_s_per_promotion: float | None
    cpu_s_per_rating_point: float | None
    gpu_s_per_game: float | None = None
    gpu_s_per_promotion: float | None = None
    gpu_s_per_rating_point: float | None = None
    money_per_game: float | None = None
    money_per_promotion: float | None = None
    money_per_rating_point: float | None = None


class CostRow(msgspec.Struct, frozen=True):
    """What one thing cost."""

    what: str
    cpu_s: float | None
    gpu_s: float | None
    money: float | None


def cost_rows(cost: Cost) -> tuple[CostRow, ...]:
    """The whole, and what a game, a promotion and a rating point cost, in the order that people read."""
    return (
        CostRow("in all", cost.cpu_s, cost.gpu_s, cost.money),
        CostRow("a game", cost.cpu_s_per_game, cost.gpu_s_per_game, cost.money_per_game),
        CostRow("a promotion", cost.cpu_s_per_promotion, cost.gpu_s_per_promotion, cost.money_per_promotion),
        CostRow(
            "a rating point",
            cost.cpu_s_per_rating_point,
            cost.gpu_s_per_rating_point,
            cost.money_per_rating_point,
        ),
    )


class ConfigStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One config."""

    games: int  # accepted by the rules' check
    games_unchecked: int
    games_refused: int
    rows: int
    trained_rows: int  # distinct rows that the newest model's lineage was offered
    sample_steps: int  # rows seen in training, repeats included
    promotions: int
    rollbacks: int
    rejections: int
    champion: str | None
    rating: float | None
    rating_interval: tuple[float, float] | None
    stage: str  # selfplay, validate, export, train, evaluate, paused, blocked
    blocked: dict[
        str, dict[str, Any]
    ]  # stage that waits after failures or for the machine: {reason, until_s}
    share: float  # of self-play
    games_per_s: float
    curve: tuple[Curve, ...]
    losses: tuple[LossPoint, ...]
    running: tuple[StageProgress, ...]
    cost: Cost
    next: str  # what the plan waits for, in one sentence
    bucket: float = 0.0  # sample-steps that new rows have earned and training has not spent
    generator: str | None = None  # the network that plays; `champion` is the one that is published
    who_plays: str = ""  # both in words, and how far apart they are
    tuned: tuple[str, ...] = ()  # what searches for better parameters found, and what became of it
    candidates: int = 0  # models that have played for their promotion and wait for the verdict
    held_back: str = ""  # what holds its learning back most, in one sentence with its number
    paused: dict[str, Any] | None = None  # who stopped it on purpose: {reason, by, at_s}; it is no block
    rows_collected: int = 0  # of those that no training was offered: the next ones need them
    games_collected: int = 0  # of those that are unchecked: their check is not due yet
    stopped: dict[str, dict[str, Any]] = {}  # daemon that does not plan now: {why, since_s, by_person}


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker brought to all configs, and how it compared."""

    name: str
    node: str | None  # None: it does not live now
    slots: int = 0
    busy: int = 0
    jobs: int = 0  # that ended well
    failed: int = 0  # attempts since it was last started, as it says
    games: int = 0
    games_of_user_program: int = 0  # of them, which cannot be searched again
    rows: int = 0
    refused: int = 0  # games that broke the rules
    compared: int = 0  # decided comparisons of its games
    games_compared: int = 0
    moves_compared: int = 0
    recomputed: int = 0  # comparisons that it made for others
    faults: int = 0
    disputed: int = 0
    last_faults: tuple[str, ...] = ()
    set_aside: dict[str, Any] | None = None  # reason, since_s, until_s, by


class StartStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs that jobs have to start: from a worker's claim to the first game or step of the job."""

    share: float  # of all seconds that workers spent on jobs
    median_s: float  # of the last jobs


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    at_s: float
    started_s: float
    node: str
    state: str  # running, paused, stopping, stopped
    workers: int
    configs: dict[str, ConfigStatus]
    decisions: tuple[RunDecision, ...]  # newest first, bounded
    queue: dict[str, dict[str, int]]  # kind: state: items
    findings: tuple[dict[str, Any], ...] = ()  # of the doctor: check, level, text, advice
    starting: StartStatus | None = None  # None: no job has told of its start
    worker_statistics: tuple[WorkerStatus, ...] = ()  # everybody who ever brought something, by name
    paused: dict[str, Any] | None = None  # who paused the whole run: {reason, by, at_s}


def decode_run_status(value: bytes) -> RunStatus:
    """Raises `Corrupt` for a status of another version."""
    advice = "`ringrift run` writes it anew"
    return decode_value(STATUS_KEY, value, RunStatus, advice=advice, what="not a status of this version")


async def read_run_status(kv: KeyValue) -> RunStatus | None:
    """Return what the control process last said; None if no run has said anything yet."""
    entry = await kv.get(STATUS_KEY)
    return None if entry is None else decode_run_status(entry.value)


def run_state(status: RunStatus | None, now_s: float) -> str | None:
    """Running, paused or stopped; None if nobody knows: no run ever said, or one fell silent unasked."""
    if status is None:
        return None
    # A run that stopped said so last, and is silent with good reason.
    return status.state if status.state == "stopped" or now_s - status.at_s <= SILENT_S else None


# What a run does: the configs it learns and the workers it has, as its control process settled them.


CHOICE_KEY = "learning/run_choice"


class RunChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the run does, each with the reason."""

    configs: tuple[str, ...]
    workers: int
    configs_why: str = ""
    workers_why: str = ""

    def __str__(self) -> str:
        many = "worker" if self.workers == 1 else "workers"
        configs = ", ".join(self.configs)
        return f"{configs} ({self.configs_why}) with {self.workers} {many} ({self.workers_why})"


async def read_run_choice(kv: KeyValue) -> RunChoice | None:
    """What the last run on this folder did."""
    return await read_record(kv, CHOICE_KEY, RunChoice)


async def write_run_choice(kv: KeyValue, choice: RunChoice) -> None:
    await write_record(kv, CHOICE_KEY, choice)


# What a run is known by where its files are kept and deleted, too: its name, its facts, who leads.


IDENTITY_KEY = "run/identity"  # the high-water mark has it, too
FACT_PREFIX = "learning/fact/"  # and the config, and the number of the fact
CHAMPION_PREFIX = "learning/champion/"  # and the config


class Champion(msgspec.Struct, frozen=True, kw_only=True):
    """Who is champion since the change of that number."""

    config: str
    model: str | None = None
    card: str | None = None
    checkpoint: str | None = None  # to begin again from
    former_checkpoints: tuple[str, ...] = ()  # of the champions that a rollback may lead to
    change: int = 0  # promotions and roll-backs so far


async def name_run(kv: KeyValue, name: str) -> str:
    """Return what tells this run from all others, wherever it goes on; *name* if it has none yet."""
    with suppress(AlreadyExists):
        await kv.create(IDENTITY_KEY, name.encode())
    return await read_identity(kv)


async def read_identity(kv: KeyValue) -> str:
    """The name of the run; empty if it was never given one."""
    entry = await kv.get(IDENTITY_KEY)
    try:
        return "" if entry is None else entry.value.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(IDENTITY_KEY, found=f"no name of a run ({error})", advice="Restore a backup") from None


# Where the control process of a data folder can be reached.


ADDRESS_FILE = "probes.json"  # in the folder of what coordinates
ADDRESS_BYTES_MAX = 10_000


class Address(msgspec.Struct, frozen=True):
    """The probes' URL and the process that serves it. Its start tells it from a later one of its number."""

    url: str
    pid: int
    began_s: float = 0.0

    @classmethod
    def of_this_process(cls, url: str) -> Address:
        return cls(url=url, pid=os.getpid(), began_s=own_start_s())

    @property
    def is_alive(self) -> bool:
        return is_alive(self.pid, self.began_s)


def write_address(folder: Path, address: Address) -> None:
    """Tell others; replaces what an earlier process wrote."""
    make_folders(folder)
    replace_file(folder / ADDRESS_FILE, msgspec.json.encode(address), durable=False)


def read_address(folder: Path) -> Address | None:
    """Return the address of a process that lives; None if there is none."""
    try:
        content = read_regular(folder / ADDRESS_FILE, bytes_max=ADDRESS_BYTES_MAX)
        address = decode_as(content, Address)
    except (FileNotFoundError, Corrupt, msgspec.DecodeError, UnicodeDecodeError):
        return None  # one that is damaged reaches nobody either
    return address if address.is_alive else None


def forget_address(folder: Path, address: Address) -> None:
    """Take the address back, unless somebody else has written theirs."""
    if read_address(folder) == address:
        remove_file(folder / ADDRESS_FILE)
