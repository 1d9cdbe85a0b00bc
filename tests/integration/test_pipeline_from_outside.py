"""The documents' pipeline with a user's own jobs and files: a model is promoted, and no job of ours runs.

The run is a real control process without workers, and the user's side is the example of this repository, in a
process of its own. The code that the documents print is taken from them.
"""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from loop_under_test import CONFIG, Loop, until

from ringrift.control.run import start_run
from ringrift.coordination.model_lifecycle_coordinator import get_production_model_id
from ringrift.engine.opening import open_engine
from ringrift.errors import ConfigError, Unavailable
from ringrift.learning.facts.facts import JobIssued, Promoted
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.results import OUTSIDE
from ringrift.learning.intake import refused_claims, waiting_claims
from ringrift.learning.plan.rules import learning_rules
from ringrift.learning.replay import replay
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "event_driven_pipeline"
DOCUMENT = Path(__file__).parents[1] / "data" / "documents" / "api_reference.md"
OWN = {"own_programs": ["selfplay", "validate", "export", "train", "evaluate"]}
DEADLINE_S = 120.0
# Tells again what the example told, and claims more without any file.
TELL_AGAIN = """
import asyncio, sys
from pathlib import Path
from app.coordination.event_router import get_router
sys.path.insert(0, sys.argv[1])
import my_jobs

async def tell():
    files, config = Path(sys.argv[2]), {"config_key": "connect_four_2p"}
    model = my_jobs.read_model(files / "model.safetensors")[1]
    router = get_router()
    said = [
        ("SELFPLAY_COMPLETE", {"games_generated": 600, "db_path": str(files / "games.jsonl")}),
        ("NPZ_EXPORT_COMPLETE", {"samples_exported": 1, "output_path": str(files / "samples.npz")}),
        ("TRAINING_COMPLETED", {"success": True, "model_path": str(files / "model.safetensors")}),
        ("EVALUATION_COMPLETED", {"model_id": model, "results_path": str(files / "results.json")}),
        ("EVALUATION_COMPLETED", {"model_id": model, "win_rate": 1.0, "games_played": 1000, "elo": 2900.0}),
        ("SELFPLAY_COMPLETE", {"games_generated": 1000}),
    ]
    for name, payload in said:
        await router.publish(name, {**config, **payload}, "my jobs")
    await router.stop()

asyncio.run(tell())
"""
# How many games there are by whoever is asked.
COUNT = """
import json
from app.coordination.data_pipeline_orchestrator import get_pipeline_status
from app.coordination.selfplay_orchestrator import get_selfplay_stats
played = get_selfplay_stats()
counts = [get_pipeline_status()["games_generated"], played["total_games"], played["games_by_config"]]
print(json.dumps(counts))
"""


def printed():
    text = DOCUMENT.read_text(encoding="utf8")
    after = text[text.index("### Example: Event-Driven Pipeline") :]
    return after.split("```python\n", 1)[1].split("```", 1)[0]


async def run_python(loop, *arguments):
    """In a process of its own; return what it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env=loop.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    assert process.returncode == 0, f"{err.decode()}\n{loop.last_words()}"
    return out.decode()


def busy(loop):
    """The processes that do work."""
    there = loop.processes()
    return [*there["worker"], *there["host"], *there["job"]]


class OutsideRun:
    """A run whose work nobody of ours does, and a look at its store."""

    def __init__(self, folder, **options):
        self.files = folder / "files"
        self.files.mkdir()
        self.loop = Loop(folder, tiny=False, **options)
        self.loop.variables["RINGRIFT_INTAKE_FOLDERS"] = str(self.files)

    async def __aenter__(self):
        self.settings = load_settings(self.loop.variables).settings
        self.engine = await open_engine(self.settings, SystemRuntime())
        self.loop.start()
        await until(self.is_planning, "the first plan", self.loop)
        return self

    async def __aexit__(self, *_):
        self.loop.kill_everything()
        await self.engine.close()

    async def is_planning(self):
        return bool(await self.facts())

    async def facts(self):
        return await read_facts(self.engine.kv, CONFIG)

    async def champion(self):
        return next((fact.model for fact in await self.facts() if isinstance(fact, Promoted)), None)


@pytest.fixture
async def outside(tmp_path):
    async with OutsideRun(tmp_path, learning=OWN, workers=0) as run:
        yield run


def test_the_example_has_the_printed_code_as_it_is_printed():
    assert (EXAMPLE / "printed_pipeline.py").read_text(encoding="utf8").endswith(f"\n\n{printed()}")


async def test_the_printed_pipeline_with_jobs_of_a_user_promotes_without_ours(outside):
    words = await run_python(outside.loop, str(EXAMPLE / "my_pipeline.py"), str(outside.files))
    champion = await outside.champion()
    assert words.startswith(f"{champion} is the champion of {CONFIG}: first model: stronger against")
    facts = await outside.facts()
    done = [fact for fact in facts if isinstance(fact, JobIssued) and fact.order.purpose == OUTSIDE]
    assert [fact.kind for fact in done] == ["selfplay", "export", "train", "evaluate"]
    # Games are replayed by the rules before anybody learns from them; that is ordered, and nobody is there.
    ordered = {fact.kind for fact in facts if isinstance(fact, JobIssued) and fact not in done}
    assert ordered <= {"validate"}
    assert busy(outside.loop) == []
    assert replay(CONFIG, facts, learning_rules(OWN)) == []
    files = outside.settings.data_dir / "models"
    card = json.loads((files / f"canonical_{CONFIG}.json").read_text())
    assert card["sha256"] == champion

    async def counted():
        return json.loads(await run_python(outside.loop, "-c", COUNT)) == [600, 600, {CONFIG: 600}]

    await until(counted, "the same number of games everywhere", outside.loop)
    status = json.loads(await run_python(outside.loop, "-m", "ringrift.cli", "status", "--json"))
    config = status["configs"][CONFIG]
    assert (config["games"], config["games_unchecked"]) == (600, 0)


async def test_what_is_told_again_changes_nothing_and_what_is_claimed_without_a_file_is_refused(outside):
    await run_python(outside.loop, str(EXAMPLE / "my_pipeline.py"), str(outside.files))
    facts = [fact for fact in await outside.facts() if isinstance(fact, JobIssued | Promoted)]
    await run_python(outside.loop, "-c", TELL_AGAIN, str(EXAMPLE), str(outside.files))

    async def refused():
        return len(await refused_claims(outside.engine.kv)) == 2

    await until(refused, "the refusal of both claims", outside.loop)
    reasons = {claim.event_type: claim.reason for claim in await refused_claims(outside.engine.kv)}
    assert reasons == {
        "EVALUATION_COMPLETED": "it claims results of games, and it names no file (results_path)",
        "SELFPLAY_COMPLETE": "it claims games, and it names no file (db_path)",
    }
    assert await waiting_claims(outside.engine.kv) == []
    assert [fact for fact in await outside.facts() if isinstance(fact, JobIssued | Promoted)] == facts
    status = json.loads(await run_python(outside.loop, "-m", "ringrift.cli", "status", "--json"))
    assert "2900" not in json.dumps(status["configs"])


# --- from Python alone --------------------------------------------------------------------------------------


async def test_a_run_is_started_waited_for_and_read_from_python_alone(tmp_path, monkeypatch):
    loop = Loop(tmp_path, tiny=True)
    for name, value in loop.variables.items():
        monkeypatch.setenv(name, value)
    async with start_run(CONFIG, workers=2) as run:
        path = await run.wait_for_champion(CONFIG, timeout_s=DEADLINE_S)
        card = json.loads(path.with_suffix(".json").read_text())
        models = {model.model_id: model for model in run.models(CONFIG)}
        assert models[card["sha256"]].games_played > 0
        assert models[card["sha256"]].elo_uncertainty > 0
    assert busy(loop) == []
    assert await asyncio.to_thread(get_production_model_id, config_key=CONFIG) in models
    assert path.is_file()


async def test_a_run_from_python_says_at_once_what_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(ConfigError, match="'chess_2p' is no config"):
        async with start_run("chess_2p"):
            raise AssertionError
    assert not (tmp_path / "data").exists()
    async with start_run(CONFIG, workers=0) as run:
        assert run.models(CONFIG) == []
        with pytest.raises(Unavailable, match="has no new champion"):
            await run.wait_for_champion(CONFIG, timeout_s=0.1)
    with pytest.raises(ZeroDivisionError):
        async with start_run(CONFIG, workers=0):
            _ = 1 / 0
