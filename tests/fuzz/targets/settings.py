"""The config file and the environment: read into settings, or refused with a short reason."""

import os
import tempfile
from pathlib import Path

from ringrift.errors import ConfigError
from ringrift.settings import Settings, load_settings

MESSAGE_MAX = 3_000
FOLDER = Path(tempfile.mkdtemp(prefix="ringrift-fuzz-settings-"))
VARIABLES = (
    "RINGRIFT_LEARNING",
    "RINGRIFT_NODES",
    "RINGRIFT_SYNC",
    "RINGRIFT_JOBS",
    "RINGRIFT_PRICES",
    "RINGRIFT_DATA_DIR",
    "RINGRIFT_HEALTH_PORT",
    "RINGRIFT_JOB_LEASE",
    "RINGRIFT_NODE_ID",
    "RINGRIFT_HEALTH_HOST",
)


def seeds() -> list[bytes]:
    return [
        b'Fhealth_port = 9000\njob_lease = 30\n[jobs.train]\ncommand = ["python", "t.py"]\ncpus = [0, 1]\n',
        b"F[learning]\nsimulations = 32\n[learning.bucket]\nchunk_steps = 10000\n",
        b'F[learning.promotion]\nmode = "sprt"\nelo1 = 35\n',
        b'F[nodes.one]\nssh_host = "10.0.0.1"\nssh_port = 22\ndata_port = 8766\nreceives = ["games"]\n',
        b'F[sync]\ninterval_s = 60\n[sync.s3]\nbucket = "b"\n',
        b'0{"simulations": 8, "rating_opponents": ["random", "mcts:32"]}',
        b'1{"one": {"ssh_host": "h", "nfs": "x"}}',
        b'2{"strategy": "auto"}',
        b'3{"train": {"nice": 3, "timeout_s": 9}}',
        b'4{"one": 1.5}',
        b"5/tmp/data",
        b"68790",
        b"730",
        b"8node-1",
        b"9127.0.0.1",
    ]


def run(data: bytes) -> None:
    """The first byte says where the rest stands: in a file, or in one of the variables."""
    where, text = data[:1], data[1:]
    try:
        if where == b"F":
            file = FOLDER / "ringrift.toml"
            file.write_bytes(text)
            loaded = load_settings({}, config_file=file)
        else:
            variable = VARIABLES[where[0] % len(VARIABLES) if where else 0]
            loaded = load_settings({variable: os.fsdecode(text)}, config_file=_empty())
    except ConfigError as error:
        assert len(str(error)) < MESSAGE_MAX, "the reason is longer than anybody reads"
    else:
        assert isinstance(loaded.settings, Settings)


def _empty() -> Path:
    file = FOLDER / "empty.toml"
    if not file.exists():
        file.touch()
    return file
