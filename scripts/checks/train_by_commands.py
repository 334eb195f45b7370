#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT of PyTorch by public commands only, and take its weights back to PyTorch.

Usage: scripts/checks/train_by_commands.py [--steps 40] [--every 10] [--folder FOLDER]
Needs torch and safetensors. The steps are those of a user:

- ``deploy --train --rate-input`` for two processes with ZeRO-1, and again for four with ZeRO-3;
- ``torchrun`` of ``run --job`` with ``--losses`` and ``--rate cosine:...``, killed with SIGKILL
  after a checkpoint; the losses of all steps that were done are in the file;
- ``--resume`` on four processes to the end;
- ``deploy`` of the model without ``--train``, and ``run --job --resume``: its loss;
- ``export-weights``, and ``load_state_dict`` in PyTorch: its loss is the same (relative 1e-5);
- a training loop of PyTorch, with AdamW and the same rates: losses (relative 1e-4).

Prints a line per check. Exits 1 when one fails.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from safetensors.torch import load_file

import tvm_distir as td

ROOT = Path(__file__).resolve().parents[2]
VOCAB, SEQ, BATCH, WIDTH, HEADS, LAYERS = 67, 16, 8, 32, 4, 2
PEAK, WARMUP, DECAY = 0.003, 5, 0.01
EXPORT_TOLERANCE, LOSS_TOLERANCE = 1e-5, 1e-4


class Block(torch.nn.Module):
    """A layer with attention and a multi-layer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states (B, S, D)."""
        normed, shape = self.ln_1(x), (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (f(normed).reshape(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(torch.nn.functional.gelu(self.up(self.ln_2(x))))


class Gpt(torch.nn.Module):
    """A GPT from token ids (B, S) to logits (B, S, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Embedding(SEQ, WIDTH)
        self.h = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.wte(tokens) + self.wpe(torch.arange(SEQ))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def cross_entropy(logits: torch.Tensor, targets: Any) -> torch.Tensor:
    """Return the mean loss of logits (B, S, V)."""
    classes = torch.as_tensor(targets).long().flatten()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), classes)


def torch_losses(
    model: Gpt, data: dict[str, Any], schedule: td.RateSchedule, steps: int
) -> list[float]:
    """Train in PyTorch; returns the losses."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), weight_decay=DECAY), []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = schedule(step + 1)
        loss = cross_entropy(model(torch.tensor(data["tokens"][step])), data["targets"][step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def environment() -> dict[str, str]:
    """Return the variables of the commands."""
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def command(*words: Any) -> None:
    """Run ``tvm-distir`` to its end."""
    line = [sys.executable, "-m", "tvm_distir_command", *map(str, words)]
    subprocess.run(line, env=environment(), check=True, stdout=subprocess.DEVNULL)


def job(processes: int, *words: Any) -> list[str]:
    """Return the command of a job of torchrun."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += [f"--nproc-per-node={processes}", "-m", "tvm_distir_command", "run", "--job"]
    return [*start, *map(str, words), "--timeout-s", "120"]


def killed_after(line: list[str], checkpoint: Path) -> None:
    """Start a job, and kill all its processes some steps after a checkpoint is complete."""
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(line, env=environment(), start_new_session=True, **silent)
    while not checkpoint.is_dir():
        if process.poll() is not None:
            raise SystemExit(f"the job ended with {process.returncode} before {checkpoint.name}")
        time.sleep(0.02)
    ranks = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()
    for rank in map(int, ranks):
        os.kill(rank, signal.SIGKILL)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_losses(path: Path) -> list[float]:
    """Return the losses of a file, whose steps follow each other."""
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if [int(row["step"]) for row in rows] != list(range(1, len(rows) + 1)):
        raise SystemExit(f"{path} lacks steps")
    return [float(row["output0"]) for row in rows]


def run(folder: Path, steps: int, every: int) -> int:
    """Make the run in a folder; returns the number of checks that failed."""
    torch.manual_seed(0)
    model, rng = Gpt(), np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (5, BATCH, SEQ + 1))[np.arange(steps) % 5]
    data = {"tokens": tokens[..., :-1], "targets": tokens[..., 1:].astype("int32")}
    np.savez(folder / "data.npz", **data)
    np.savez(folder / "x.npz", tokens=data["tokens"][0])
    torch.export.save(
        torch.export.export(model, (torch.tensor(data["tokens"][0]),)), folder / "gpt.pt2"
    )
    pt2, kept, losses = folder / "gpt.pt2", folder / "kept", folder / "losses.csv"
    rate = f"cosine:peak={PEAK},warmup={WARMUP},steps={steps}"
    train = ["--train", "--optimizer", f"adamw:decay={DECAY}", "--rate-input", "--strategy"]
    command("deploy", pt2, *train, "zero:stage=1", "--mesh", "dp=2", "-o", folder / "two")
    command("deploy", pt2, *train, "zero:stage=3", "--mesh", "dp=4", "-o", folder / "four")
    options = ["--steps", folder / "data.npz", "--checkpoints", kept, "--every", every]
    options += ["--losses", losses, "--rate", rate]
    checks = []

    def check(right: bool, text: str) -> None:
        checks.append(right)
        print(f"{'ok    ' if right else 'FAILED'} {text}", flush=True)

    half = steps // 2 // every * every
    killed_after(job(2, folder / "two", *options), kept / f"step-{half:08d}")
    before = read_losses(losses)
    check(len(before) >= half, f"killed after {half} steps: {len(before)} losses are in the file")
    resumed = job(4, folder / "four", *options, "--resume", kept)
    subprocess.run(resumed, env=environment(), check=True, stdout=subprocess.DEVNULL)
    after = read_losses(losses)
    check(after[:half] == before[:half] and len(after) == steps, f"resumed on 4: {len(after)}")

    command("deploy", pt2, "--strategy", "data_parallel", "--mesh", "dp=2", "-o", folder / "model")
    words = [folder / "model", "--resume", kept, "--inputs", folder / "x.npz"]
    subprocess.run(
        job(2, *words, "-o", folder / "y.npz"), env=environment(), check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    logits = torch.tensor(np.load(folder / "y.npz")["output0"])
    evaluated = cross_entropy(logits, data["targets"][0]).item()
    expected = torch_losses(model, data, td.RateSchedule.read(rate), steps)
    error = max(abs(a - b) / b for a, b in zip(after, expected, strict=True))
    check(error < LOSS_TOLERANCE, f"loss {after[0]:.4f} to {after[-1]:.4f}: {error:.1e} of PyTorch")
    command("export-weights", kept, "-o", folder / "trained.safetensors")
    other = Gpt()
    other.load_state_dict(load_file(folder / "trained.safetensors"))
    with torch.no_grad():
        loaded = cross_entropy(other(torch.tensor(data["tokens"][0])), data["targets"][0]).item()
    error = abs(evaluated - loaded) / loaded
    check(error < EXPORT_TOLERANCE, f"loss {loaded:.6f} in PyTorch, evaluated: {error:.1e} of it")
    return checks.count(False)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tvm-distir-train-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        return int(run(folder, options.steps, options.every) > 0)


if __name__ == "__main__":
    sys.exit(main())
