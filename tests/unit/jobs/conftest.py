"""Shards of random games."""

import pytest
from jobs_samples import random_game, write_shard


@pytest.fixture
def shard(tmp_path):
    return write_shard(tmp_path, [random_game(seed=seed) for seed in range(8)]).path
