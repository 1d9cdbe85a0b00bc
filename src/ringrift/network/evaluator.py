"""A network as the evaluator of a search.

Positions are judged in batches of one fixed size, the last one filled up: then what the network says of a
position is the same number to the last bit, whatever stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ringrift.errors import ConfigError
from ringrift.games.compiled import cached_kernel, source_fingerprint
from ringrift.games.contract import ActionArray, Game, LegalActions, States
from ringrift.network.architecture import Preset, architecture_for, require_same
from ringrift.network.cache import EvaluationCache
from ringrift.network.model import ResidualNet
from ringrift.search.contract import Evaluation

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

FINGERPRINT = source_fingerprint(Path(__file__))
BATCH = 64
CACHE_BYTES = 64 << 20


@dataclass(slots=True)
class EvaluatorCounts:
    """What an evaluator has done so far."""

    asked: int = 0
    judged: int = 0  # by the network; the others were known or stood twice in a batch
    batches: int = 0


class NetEvaluator:
    """Judges positions of one game with one network."""

    def __init__(
        self,
        model: ResidualNet,
        game: Game,
        *,
        batch: int = BATCH,
        dtype: torch.dtype | None = None,
        cache_bytes_max: int = CACHE_BYTES,
    ) -> None:
        if batch < 1:
            raise ConfigError(f"evaluator: batch must be at least 1, not {batch}")
        a = model.architecture
        size = Preset(channels=a.channels, blocks=a.blocks, neck=a.neck, hidden=a.hidden)
        require_same("model", wanted=architecture_for(game, size), found=a)
        self.game, self.batch, self.counts = game, batch, EvaluatorCounts()
        self._dtype = best_dtype() if dtype is None else dtype
        self._engine = _engine(model, self._dtype)
        layout = game.action_layout
        self._slots = layout.slots
        self._cache = EvaluationCache(game, size_bytes_max=cache_bytes_max) if cache_bytes_max else None

    def evaluate(self, states: States, legal: LegalActions) -> Evaluation:
        self.counts.asked += len(states)
        if self._cache is None:
            evaluation = Evaluation(
                np.empty(len(legal.actions), dtype=np.float32),
                np.empty((len(states), self.game.players), dtype=np.float32),
            )
            self._judge(states, legal, np.arange(len(states)), evaluation)
            return evaluation
        looked, missing, evaluation = self._cache.look_up(states, legal)
        if len(missing):
            self._judge(states, legal, missing, evaluation)
        self._cache.fill_in(states, legal, looked, missing, evaluation)
        return evaluation

    def _judge(self, states: States, legal: LegalActions, missing: Longs, out: Evaluation) -> None:
        """Write what the network says of the *missing* states to *out*."""
        for start in range(0, len(missing), self.batch):
            part = missing[start : start + self.batch]
            rows = states[part]
            planes = np.zeros((self.batch, *self.game.observation_shape), dtype=np.float32)
            planes[: len(part)] = self.game.observe(rows)
            logits, values = self._engine(torch.from_numpy(planes))
            movers = np.asarray(self.game.to_move(rows), dtype=np.int64)
            write_evaluations(
                part,
                movers,
                legal.offsets,
                legal.actions,
                self._slots,
                (logits, values),
                (out.logits, out.values),
            )
            self.counts.batches += 1
        self.counts.judged += len(missing)


@cached_kernel(FINGERPRINT)
def write_evaluations(
    part: Longs,
    movers: Longs,
    offsets: Longs,
    actions: ActionArray,
    slots: ActionArray,
    judged: tuple[Floats, Floats],
    out: tuple[Floats, Floats],
) -> None:
    """Pick the legal actions' logits, and turn values from the player on turn to seats."""
    players = judged[1].shape[1]
    for number in range(part.shape[0]):
        state = part[number]
        for at in range(offsets[state], offsets[state + 1]):
            out[0][at] = judged[0][number, slots[actions[at]]]
        for ahead in range(players):
            out[1][state, (movers[number] + ahead) % players] = judged[1][number, ahead]


def best_dtype() -> torch.dtype:
    """bfloat16 where the processor multiplies it natively."""
    flags = Path("/proc/cpuinfo")
    if flags.exists() and "avx512_bf16" in flags.read_text(encoding="ascii", errors="replace"):
        return torch.bfloat16
    return torch.float32


class _Engine:
    def __init__(self, model: ResidualNet, dtype: torch.dtype) -> None:
        self._model = ResidualNet(model.architecture, model.mask[0, 0].numpy() > 0)
        self._model.load_state_dict(model.state_dict())
        self._model = self._model.to(dtype=dtype).eval()
        for parameter in self._model.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        self._dtype = dtype

    @torch.inference_mode()
    def __call__(self, planes: torch.Tensor) -> tuple[Floats, Floats]:
        judged = self._model(planes.to(dtype=self._dtype, memory_format=torch.channels_last))
        return judged.logits().float().numpy(), judged.values.float().numpy()


def _engine(model: ResidualNet, dtype: torch.dtype) -> _Engine:
    return _Engine(model, dtype)
