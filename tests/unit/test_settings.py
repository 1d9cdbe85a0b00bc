import ast
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.capabilities import capability
from ringrift.data.config import AutoSyncConfig, DataNode
from ringrift.errors import ConfigError
from ringrift.learning.plan.rules import LearningRules, learning_rules
from ringrift.settings import JobSettings, Settings, Source, load_settings
from source_tree import modules, parsed, text_of

DOCUMENTED = {
    "RINGRIFT_EVENT_HANDLER_TIMEOUT": ("event_handler_timeout", 600.0),
    "RINGRIFT_EVENT_VALIDATION_STRICT": ("event_validation_strict", False),
    "RINGRIFT_P2P_STARTUP_GRACE_PERIOD": ("p2p_startup_grace_period", 120.0),
    "RINGRIFT_ALLOW_PENDING_GATE": ("allow_pending_gate", False),
    "RINGRIFT_SWIM_ENABLED": ("swim_enabled", False),
    "RINGRIFT_RAFT_ENABLED": ("raft_enabled", False),
    "RINGRIFT_JOB_GRACE_PERIOD": ("job_grace_period", 60.0),
    "RINGRIFT_COORDINATOR_DB": ("coordinator_db", Path("data/coordination/coordinator.db")),
    "RINGRIFT_DLQ_PATH": ("dlq_path", Path("data/coordination/dead_letter_queue.db")),
    "RINGRIFT_TRACE_DEBUG": ("trace_debug", False),
    "COORDINATOR_AUTO_TRIGGER_PIPELINE": ("auto_trigger_pipeline", False),
}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("variable", DOCUMENTED)
def test_documented_variables_have_their_documented_defaults(variable):
    key, default = DOCUMENTED[variable]
    loaded = load_settings({})
    assert getattr(loaded.settings, key) == default
    (origin,) = [o for o in loaded.origins if o.variable == variable]
    assert origin.source in {Source.DEFAULT, Source.DERIVED}


def test_environment_wins_over_file_and_file_over_default(tmp_path):
    (tmp_path / "ringrift.toml").write_text("health_port = 9000\njob_grace_period = 5\n")
    loaded = load_settings({"RINGRIFT_HEALTH_PORT": "9100"})
    assert loaded.settings.health_port == 9100
    assert loaded.settings.job_grace_period == 5.0
    sources = {o.key: o.source for o in loaded.origins}
    assert sources["health_port"] is Source.ENVIRONMENT
    assert sources["job_grace_period"] is Source.FILE
    assert sources["trace_debug"] is Source.DEFAULT


def test_paths_follow_the_data_folder_unless_named():
    settings = load_settings({"RINGRIFT_DATA_DIR": "elsewhere"}).settings
    assert settings.coordinator_db == Path("elsewhere/coordination/coordinator.db")
    assert settings.blob_dir == Path("elsewhere/blobs")
    named = load_settings({"RINGRIFT_DATA_DIR": "elsewhere", "RINGRIFT_DLQ_PATH": "x.db"}).settings
    assert named.dlq_path == Path("x.db")


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("RINGRIFT_EVENT_HANDLER_TIMEOUT", "soon", "number of seconds"),
        ("RINGRIFT_EVENT_HANDLER_TIMEOUT", "0", "above 0"),
        ("RINGRIFT_EVENT_HANDLER_TIMEOUT", "nan", "number of seconds"),
        ("RINGRIFT_SWIM_ENABLED", "maybe", "true or false"),
        ("RINGRIFT_HEALTH_PORT", "70000", "port number"),
        ("RINGRIFT_PROCESS_NAME", "a b", "letters"),
        ("RINGRIFT_DATA_DIR", "", "file path"),
        ("RINGRIFT_EVENT_RETENTION_ROWS", "1.5", "whole number"),
        ("RINGRIFT_EVENT_RETENTION_ROWS", "1e3", "whole number"),
        ("RINGRIFT_HEALTH_PORT", "1.5", "port number"),
        ("RINGRIFT_HEALTH_PORT", "-1", "port number"),
        ("RINGRIFT_HEALTH_PORT", "\u0661", "port number"),
        ("RINGRIFT_JOB_LEASE", "1e-9", "from 1 to 86400"),
        ("RINGRIFT_JOB_LEASE", "inf", "from 1 to 86400"),
        ("RINGRIFT_NODE_ID", "-oProxyCommand=x", "the first a letter or digit"),
        ("RINGRIFT_HEALTH_HOST", "-x", "host name"),
        ("RINGRIFT_DATA_DIR", "a\udcff", "UTF-8"),
        ("RINGRIFT_DATA_DIR", "a\nb", "control characters"),
    ],
)
def test_a_wrong_value_names_variable_value_and_what_is_allowed(variable, value, allowed):
    with pytest.raises(ConfigError) as caught:
        load_settings({variable: value})
    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("health_prot = 1", "unknown setting 'health_prot'"),
        ("health_port = 'x", "not valid TOML"),
        ("health_port = 'x'", "health_port in"),
        ("swim_enabled = 3", "true or false"),
        ("[jobs.train]\ncomand = ['x']", r"\[jobs.train\] has no 'comand'"),
        ("[jobs.train]\ncommand = 'python x.py'", r"command of \[jobs.train\]"),
        ("[jobs.train]\nmemory_mb = 0", r"memory_mb of \[jobs.train\]"),
        ("[jobs.train]\nenv = ['RINGRIFT_DATA_SECRET']", r"env of \[jobs.train\]"),
        ("[jobs.train]\nenv = ['²']", 'letters a to z, digits and "_"'),
        ("[jobs.train]\nenv = ['a²']", r"env of \[jobs.train\]"),
        ("[jobs.train]\nenv = ['A·']", r"env of \[jobs.train\]"),
        ("[jobs.train]\nenv = ['1A']", r"env of \[jobs.train\]"),
        ("[jobs.train]\nenv = ['A=B']", r"env of \[jobs.train\]"),
        ("jobs = 3", "a table per kind of job"),
        ("[jobs]\ntrain = 3", "a table per kind of job"),
        ("[jobs.trian]\nnice = 3", "there is no job 'trian'; there are selfplay"),
        ("[jobs.trian]\ncommand = ['x']", "there is no job 'trian'.*did you mean train"),
        ("[jobs.training]\ncommand = ['x']", "there is no job 'training'"),
        ("[jobs.mine]\ncommand = ['x']", "there is no job 'mine'"),
        ("[prices]\n'a b' = 1", "a table of names of nodes with the price of an hour"),
        ("[prices]\na = -1", "a table of names of nodes"),
        ("[prices]\na = true", "a table of names of nodes"),
        ("intake_folders = ['games']", "a list of full paths of folders"),
        ("http_names = 'a b'", "a list of names"),
        ("http_events = ['LEADER_ELECTED']", "never comes by HTTP"),
        ("http_events = ['NOPE']", "no such event"),
        ("[jobs.train]\ncpus = '12'", r"cpus of \[jobs.train\] is '12'; it must be a list of numbers"),
        ("[jobs.train]\ncpus = [1.5]", r"cpus of \[jobs.train\]"),
        ("[jobs.train]\nnice = 1.5", r"nice of \[jobs.train\]"),
        ("[jobs.train]\ntimeout_s = nan", "numbers must be finite"),
        ("health_port = 1.5", "port number"),
        ("health_port = true", "port number"),
        ("node_name = 5", "letters, digits"),
        ("data_dir = 'x'\njob_lease = 0.000000001", "from 1 to 86400"),
        ("a = " + "[" * 3_000 + "]" * 3_000, "too deep|unknown setting"),
        ("[learning]\nsimulatoins = 3", "unknown setting 'simulatoins'"),
        ("[learning]\nsimulations = 0", "simulations"),
        ("[learning]\nlearning_rate = inf", "numbers must be finite"),
        ("[learning]\nrating_opponents = ['mcts:0']", "names 'mcts:0'; there are random"),
        ("[learning]\nrating_opponents = ['stockfish']", "names 'stockfish'; there are random"),
        ("[learning.promotion]\nfloor_2p = 1.5", "share from 0 to 1"),
        ("[nodes]\na = 3", r"each node is a table, \[nodes.a\]"),
        ("[nodes.a]\nssh_port = -1", "ssh_port"),
        ("[nodes.a]\ndata_port = 65536", "data_port"),
        ("[nodes.a]\nstatus = 'retierd'", "status"),
        ("[nodes.a]\nssh_host = '-oProxyCommand=x'", "ssh_host"),
        ("[nodes.a]\nssh_user = '-l'", "ssh_user"),
        ('[nodes.a]\nroot_path = "a\\nb"', "control characters"),
        ("[nodes.-a]\nssh_port = 22", "nodes.-a"),
        ("[sync]\ninterval_s = 0", "interval_s"),
        ("[sync]\nexcluded_hosts = ['nobody']", "no node of the config file"),
    ],
)
def test_a_wrong_config_file_is_refused(tmp_path, content, complaint):
    (tmp_path / "ringrift.toml").write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        load_settings({})


def test_a_kind_of_job_has_a_table_of_its_own(tmp_path):
    (tmp_path / "ringrift.toml").write_text(
        "[jobs.train]\ncommand = ['python', 'my_trainer.py']\nmemory_mb = 4000\nnice = 0\ncpus = [0, 2]\n"
    )
    settings = load_settings({}).settings
    train = settings.job("train")
    assert (train.command, train.memory_mb, train.nice) == (("python", "my_trainer.py"), 4000, 0)
    assert train.cpus == (0, 2)
    assert settings.job("export") == JobSettings(kind="export")
    assert (
        load_settings({"RINGRIFT_JOBS": '{"train": {"timeout_s": 9}}'}).settings.job("train").timeout_s == 9
    )


def test_a_named_config_file_must_exist(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_settings({"RINGRIFT_CONFIG": str(tmp_path / "gone.toml")})


def test_a_misspelled_variable_is_pointed_out():
    assert load_settings({"RINGRIFT_HELTH_PORT": "1"}).unknown_variables == ("RINGRIFT_HELTH_PORT",)


@given(st.text(max_size=20))
def test_any_text_gives_a_value_or_a_clear_error(text):
    for variable in ("RINGRIFT_HEALTH_PORT", "RINGRIFT_SWIM_ENABLED", "RINGRIFT_JOB_GRACE_PERIOD"):
        try:
            load_settings({variable: text})
        except ConfigError as error:
            assert variable in str(error)


def test_a_secret_is_shown_nowhere(tmp_path):
    loaded = load_settings({"RINGRIFT_DATA_SECRET": "correct horse battery"})
    assert loaded.settings.data_secret.text == "correct horse battery"
    assert "horse" not in f"{loaded} {loaded.settings.data_secret}"
    with pytest.raises(ConfigError, match="at least 16") as refused:
        load_settings({"RINGRIFT_DATA_SECRET": "short horse"})
    assert "horse" not in str(refused.value)


@pytest.mark.parametrize(
    "variable", ["RINGRIFT_LEARNING", "RINGRIFT_NODES", "RINGRIFT_SYNC", "RINGRIFT_JOBS"]
)
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "3", "nul", '{"a": NaN}', '{"a": 1e999}'])
def test_a_table_in_the_environment_that_cannot_be_one_is_refused(variable, text):
    with pytest.raises(ConfigError) as caught:
        load_settings({variable: text})
    assert len(str(caught.value)) < 600


def test_a_player_that_a_game_does_not_have_is_refused_before_the_run(tmp_path):
    rules = learning_rules({"rating_opponents": ["random", "heuristic:quick"]})
    rules.check_configs(["square8_2p", "hexagonal_4p"])
    with pytest.raises(ConfigError, match="connect_four_2p has no such player"):
        rules.check_configs(["square8_2p", "connect_four_2p"])


# --- settings that nothing follows --------------------------------------------------------------------------

CLUSTER = "comes with the cluster"


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("RINGRIFT_SWIM_ENABLED", "true", CLUSTER),
        ("RINGRIFT_RAFT_ENABLED", "1", CLUSTER),
        ("RINGRIFT_P2P_STARTUP_GRACE_PERIOD", "60", CLUSTER),
        ("RINGRIFT_P2P_STARTUP_GRACE_PERIOD", "120", CLUSTER),
        ("RINGRIFT_SWIM_PORT", "7947", CLUSTER),
        ("RINGRIFT_RAFT_BIND_PORT", "4321", CLUSTER),
        ("RINGRIFT_ALLOW_PENDING_GATE", "true", "before it was replayed by the rules"),
    ],
)
def test_a_setting_that_nothing_could_follow_is_refused_with_the_reason(variable, value, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        load_settings({variable: value})
    assert variable in str(caught.value)
    assert "left out" in str(caught.value)


def test_such_a_setting_is_refused_in_the_config_file_too(tmp_path):
    (tmp_path / "ringrift.toml").write_text("raft_enabled = true")
    with pytest.raises(ConfigError, match=f"raft_enabled in .* must be false or left out: .*{CLUSTER}"):
        load_settings({})


def test_what_is_so_anyway_may_be_said():
    loaded = load_settings({"RINGRIFT_SWIM_ENABLED": "false", "RINGRIFT_ALLOW_PENDING_GATE": "no"})
    assert not loaded.settings.swim_enabled
    (origin,) = [each for each in loaded.origins if each.key == "swim_enabled"]
    assert CLUSTER in origin.about


def test_a_setting_is_refused_only_while_what_it_needs_is_not_built():
    refusals = [item.metadata["refusal"] for item in fields(Settings) if item.metadata["refusal"]]
    assert refusals
    built = [each.needs for each in refusals if each.needs and capability(each.needs).built]
    assert built == [], "these settings can be followed by now: read them"


def attributes(tree):
    """Every attribute that is read, with what it is read of; checks of a class in itself do not count."""
    checks = [node for node in ast.walk(tree) if getattr(node, "name", "") == "__post_init__"]
    ignored = {id(node) for check in checks for node in ast.walk(check)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in ignored:
            yield node.attr, node.value


def test_product_code_reads_every_setting_that_is_not_refused():
    """By the names of attributes of what is called settings, and of `Settings` itself through its methods."""
    reads, own = set(), None
    for path in modules():
        text = text_of(path)
        if path.name == "settings.py":
            own = parsed(text)
        elif "ettings" in text:
            found = attributes(parsed(text))
            reads |= {name for name, of in found if re.search(r"settings(\(\))?$", ast.unparse(of).lower())}
    (settings,) = [node for node in ast.walk(own) if getattr(node, "name", "") == "Settings"]
    for method in settings.body:
        if isinstance(method, ast.FunctionDef) and method.name in reads:
            reads |= {name for name, _ in attributes(method)}
    followed = {item.name for item in fields(Settings) if item.metadata["refusal"] is None}
    assert sorted(followed - reads) == []


def rule_classes(kind, found):
    """The class of a table of the config file, and those of the tables inside it."""
    found.add(kind)
    for hint in get_type_hints(kind).values():
        for inner in (hint, *get_args(hint)):
            is_table = is_dataclass(inner) or (inspect.isclass(inner) and issubclass(inner, msgspec.Struct))
            if is_table and inner not in found:
                rule_classes(inner, found)
    return found


def test_product_code_reads_every_entry_of_a_table():
    reads = {name for path in modules() for name, _ in attributes(parsed(text_of(path)))}
    tables = set()
    for table in (LearningRules, AutoSyncConfig, DataNode, JobSettings):
        rule_classes(table, tables)
    unread = {
        f"{kind.__name__}.{name}"
        for kind in tables
        for name in ([item.name for item in fields(kind)] if is_dataclass(kind) else kind.__struct_fields__)
        if name not in reads
    }
    assert sorted(unread) == []
