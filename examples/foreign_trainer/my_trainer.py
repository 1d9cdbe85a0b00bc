"""A trainer of one's own in the place of `ringrift job train`: plain SGD in plain PyTorch.

It keeps the contract of jobs and nothing else of ours: JSON parameters on stdin, JSON lines on stdout, logs
on stderr, sealed files, exit codes. SIGTERM writes a checkpoint, and the same command goes on from there. The
network and the way to store it are ringrift's, so that self-play and evaluation can load what comes out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ringrift.games.registry import load_game
from ringrift.network.architecture import ModelCard, card_path
from ringrift.network.model import build
from ringrift.network.storage import load_model, save_model

DONE, WRONG_INPUT, STOPPED = 0, 2, 3
SAY_EVERY = 20


def say(event: str, **fields: Any) -> None:
    """One JSON object a line, and flushed: whoever reads is waiting for it."""
    sys.stdout.write(json.dumps({"event": event, "kind": "train", **fields}) + "\n")
    sys.stdout.flush()


class MyTraining:
    """One run: the network, its optimizer, and how many steps it has made."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params, self.game = params, load_game(params["config"])
        self.parent = None
        if params.get("parent"):
            self.net, self.parent = load_model(Path(params["parent"]), config=self.game.key)
        else:
            self.net = build(self.game, params.get("preset", "small"), seed=params.get("seed", 0))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=params.get("lr", 0.02), momentum=0.9)
        self.steps, self.batch = params.get("steps", 100), params.get("batch", 64)
        self.step, self.loss = 0, float("nan")
        self.out = Path(params["out"])
        self.checkpoint = self.out.with_suffix(".my-checkpoint")
        self.stop: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _frame: self.stop.append(number))

    def read_samples(self) -> None:
        """Several files, the newest last: each game is in one of them. Their arrays: docs/formats.md."""
        read = [self._read(path) for path in self.params["samples"]]
        self.planes, self.values, self.policies = (torch.cat(parts) for parts in zip(*read, strict=True))

    def _read(self, path: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with np.load(path, allow_pickle=False) as file:
            planes, values = torch.from_numpy(file["features"]), torch.from_numpy(file["values"])
            offsets, actions, shares = (
                file[name] for name in ("policy_offsets", "policy_indices", "policy_values")
            )
        policies = torch.zeros(len(values), self.net(planes[:1]).logits().shape[1])
        rows = np.repeat(np.arange(len(values)), np.diff(offsets))
        policies[rows, self.game.action_layout.slots[actions]] = torch.from_numpy(shares)
        return planes, values, policies

    def resume(self) -> None:
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint, weights_only=True)
            self.net.load_state_dict(saved["net"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step = saved["step"]

    def learn(self) -> None:
        while self.step < self.steps and not self.stop:
            rows = torch.from_numpy(
                np.random.default_rng(self.step).integers(len(self.values), size=self.batch)
            )
            judged = self.net(self.planes[rows])
            loss = functional.cross_entropy(judged.logits(), self.policies[rows])
            loss = loss + functional.mse_loss(judged.values[:, 0], self.values[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step, self.loss = self.step + 1, round(float(loss.detach()), 4)
            if self.step % SAY_EVERY == 0 or self.step == self.steps:
                say("progress", stage="training", done=self.step, total=self.steps, loss=self.loss)

    def pause(self) -> int:
        """Keep what a later run needs: whole, or not there."""
        part = self.checkpoint.with_suffix(".part")
        saved = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(saved, part)
        part.replace(self.checkpoint)
        say("result", status="stopped", exit_code=STOPPED, steps=self.step)
        return STOPPED

    def finish(self) -> int:
        before = self.parent.rows_seen if self.parent else 0
        card = ModelCard(
            config=self.game.key,
            architecture=self.net.architecture,
            parent=self.parent.sha256 if self.parent else None,
            rows_seen=before + self.steps * self.batch,
            notes={"trainer": "my_trainer.py"},
        )
        card = save_model(self.net, card, self.out)  # written under another name, synced and renamed
        self.checkpoint.unlink(missing_ok=True)
        seen = {"rows_seen": card.rows_seen}
        artifacts = [
            {"path": str(self.out), "artifact": "model", "sha256": card.sha256, "counts": seen},
            {"path": str(card_path(self.out)), "artifact": "card"},
        ]
        told = {"steps": self.steps, "rows_seen": card.rows_seen, "loss": self.loss}
        say("result", status="done", exit_code=DONE, artifacts=artifacts, **told)
        return DONE


def main() -> int:
    params = json.load(sys.stdin)
    missing = [name for name in ("config", "samples", "out") if name not in params]
    if missing:
        say("result", status="wrong_input", exit_code=WRONG_INPUT, error=f"missing {', '.join(missing)}")
        return WRONG_INPUT
    training = MyTraining(params)
    say("started", protocol=1, pid=os.getpid(), params=params)
    training.read_samples()
    training.resume()
    training.learn()
    return training.finish() if training.step >= training.steps else training.pause()


if __name__ == "__main__":
    sys.exit(main())
