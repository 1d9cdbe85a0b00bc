"""The peer of `selfplay_speed`: connect four with pgx's rules and mctx's Gumbel search, jitted as one.

Prints one JSON line. It needs nothing of this project, so that it can run in an environment of its own:
`python -m venv peers && peers/bin/pip install pgx mctx jax`.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import mctx
import pgx

CHANNELS, BLOCKS, SIMULATIONS = 64, 4, 50


def convolution(x, weight):
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def make_weights(key):
    def normal(*shape):
        nonlocal key
        key, used = jax.random.split(key)
        fan_in = 1
        for size in shape[:-1]:
            fan_in *= size
        return jax.random.normal(used, shape) * (2 / fan_in) ** 0.5

    return {
        "stem": normal(3, 3, 2, CHANNELS),
        "blocks": [
            (normal(3, 3, CHANNELS, CHANNELS) * 0.5, normal(3, 3, CHANNELS, CHANNELS) * 0.1)
            for _ in range(BLOCKS)
        ],
        "neck": normal(1, 1, CHANNELS, 16),
        "hidden": normal(6 * 7 * 16, 64),
        "policy": normal(64, 7),
        "value": normal(64, 1) * 0.3,
    }


def judge(weights, planes):
    x = jax.nn.relu(convolution(planes, weights["stem"]))
    for first, second in weights["blocks"]:
        x = jax.nn.relu(x + convolution(jax.nn.relu(convolution(x, first)), second))
    x = jax.nn.relu(convolution(x, weights["neck"])).reshape(len(x), -1)
    x = jax.nn.relu(x @ weights["hidden"])
    return x @ weights["policy"], jnp.tanh(x @ weights["value"])[:, 0]


def make_step(env, batch):
    def recurrent(weights, _key, action, state):
        mover = state.current_player
        state = jax.vmap(env.step)(state, action)
        logits, value = judge(weights, state.observation.astype(jnp.float32))
        logits = jnp.where(
            state.legal_action_mask, logits - logits.max(-1, keepdims=True), jnp.finfo(logits.dtype).min
        )
        reward = state.rewards[jnp.arange(batch), mover]
        output = mctx.RecurrentFnOutput(
            reward=reward,
            discount=jnp.where(state.terminated, 0.0, -1.0),
            prior_logits=logits,
            value=jnp.where(state.terminated, 0.0, value),
        )
        return output, state

    @jax.jit
    def step(weights, state, key):
        logits, value = judge(weights, state.observation.astype(jnp.float32))
        search_key, reset_key = jax.random.split(key)
        found = mctx.gumbel_muzero_policy(
            params=weights,
            rng_key=search_key,
            root=mctx.RootFnOutput(prior_logits=logits, value=value, embedding=state),
            recurrent_fn=recurrent,
            num_simulations=SIMULATIONS,
            invalid_actions=~state.legal_action_mask,
        )
        state = jax.vmap(env.step)(state, found.action)
        over = state.terminated
        fresh = jax.vmap(env.init)(jax.random.split(reset_key, batch))
        state = jax.tree.map(
            lambda new, old: jnp.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old), fresh, state
        )
        return state, over.sum()

    return step


def measure(batch: int, seconds: float) -> dict[str, float]:
    env = pgx.make("connect_four")
    key = jax.random.PRNGKey(0)
    weights = make_weights(key)
    step = make_step(env, batch)
    state = jax.vmap(env.init)(jax.random.split(key, batch))
    state, _ = jax.block_until_ready(step(weights, state, key))
    begun, moves, games = time.process_time(), 0, 0
    while time.process_time() - begun < seconds:
        key, used = jax.random.split(key)
        state, over = step(weights, state, used)
        games += int(over)
        moves += batch
    spent = time.process_time() - begun
    return {
        "batch": batch,
        "cpu_s": spent,
        "simulations_per_core_s": moves * SIMULATIONS / spent,
        "positions_per_core_s": moves / spent,
        "games_per_core_s": games / spent,
    }


if __name__ == "__main__":
    runs = [measure(batch, float(sys.argv[1])) for batch in (64, 256)]
    best = max(runs, key=lambda run: run["simulations_per_core_s"])
    print(json.dumps(best | {"pgx": pgx.__version__, "jax": jax.__version__, "runs": runs}))
