#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT for 100 steps from a deployed folder with torchrun, kill it, and resume it.

Usage: scripts/checks/train_run.py [--steps 100] [--every 25] [--folder FOLDER]
Needs torch. With FOLDER, a run that was interrupted continues with what it had finished. An AdamW
step with ZeRO-3 and tensor parallelism is deployed for four devices, and with ZeRO-1 for two.
``torchrun`` serves the first folder with a checkpoint every 25 steps. Compared are

- the losses with those of one device (relative tolerance 1e-4), and with those of ``virtual``, bit
  for bit; the state in every checkpoint with that of ``virtual``, bit for bit;
- a run that is killed after half of the steps and resumed from its last checkpoint: losses and last
  state bit for bit;
- the second folder, resumed from the checkpoint of the first one in the middle: losses (relative
  tolerance 1e-4) and last state (absolute tolerance 1e-3 of the largest value) of one device, but
  for biases of keys.

Prints a line per check. Exits 1 when one fails.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import tvm_distir as td
from tvm_distir.core.plan import plain_name
from tvm_distir.execution.deployment.checkpoint_files import step_name
from tvm_distir.execution.deployment.checkpoint_reading import read_checkpoint
from tvm_distir.execution.runtime import Reference
from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.execution.runtime.program.step_state import StepState, state_of
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy

ROOT = Path(__file__).resolve().parents[2]
VOCAB, SEQ, BATCH, BATCHES = 67, 16, 8, 5
FIRST = ("zero:stage=3+megatron", {"dp": 2, "tp": 2})
SECOND = ("zero:stage=1", {"dp": 2})
KEY_BIAS = "k_proj_bias"
"""Softmax makes their gradient zero, and AdamW divides its rounding error by its own size."""
LOSS_TOLERANCE, STATE_TOLERANCE = 1e-4, 1e-3


@dataclass
class Training:
    """Losses of all steps, and the state after some of them by the names of inputs."""

    losses: list[float] = field(default_factory=list)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)


def train(run: Any, inputs: list[Any], state: StepState, data: Any, every: int) -> Training:
    """Train in this process; ``run`` maps the inputs of a step to its outputs."""
    result, values, ports = Training(), list(inputs), list(data)
    for step in range(len(next(iter(data.values())))):
        for position, name in enumerate(ports):
            values[position] = data[name][step]
        outputs = run(values)
        result.losses.append(float(outputs[0]))
        for output, position in state.inputs.items():
            values[position] = outputs[output]
        if (step + 1) % every == 0:
            result.states[step + 1] = {i: values[i] for i in state.inputs.values()}
    return result


def command(count: int, folder: Path, data: Path, out: Path, *words: Any) -> list[str]:
    """Return the command that serves a folder in a job of torchrun."""
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job += [f"--nproc-per-node={count}", "-m", "tvm_distir_command", "run", "--job", str(folder)]
    return [*job, "--steps", str(data), "-o", str(out), "--timeout-s", "120", *map(str, words)]


def environment() -> dict[str, str]:
    """Return the variables of the processes of a job."""
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def serve(*words: Any) -> list[float]:
    """Serve a folder to the end; returns the losses."""
    subprocess.run(command(*words), env=environment(), check=True, stdout=subprocess.DEVNULL)
    return [float(x) for x in np.load(words[3])["output0"]]


def serve_and_kill(step: int, remaining: Path, *words: Any) -> None:
    """Serve a folder, and kill all processes of the job when a checkpoint is complete."""
    job = subprocess.Popen(
        command(*words),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not (remaining / step_name(step)).is_dir():
        if job.poll() is not None:
            raise SystemExit(f"the job ended with {job.returncode} before step {step}")
        time.sleep(0.05)
    members = [int(x) for x in subprocess.check_output(["pgrep", "-P", str(job.pid)]).split()]
    for process in members:
        os.kill(process, signal.SIGKILL)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def saved_state(folder: Path, step: int, names: dict[int, str]) -> dict[int, Any]:
    """Return the full state of a checkpoint, by the position of the input."""
    arrays = read_checkpoint(folder / step_name(step)).arrays
    return {i: arrays[n].read(tuple((0, k) for k in arrays[n].shape)) for i, n in names.items()}


def state_error(state: dict[int, Any], expected: dict[int, Any]) -> float:
    """Return the largest difference of a state, relative to the largest value of its array."""
    errors = [
        np.abs(state[i].astype(float) - expected[i]).max() / max(np.abs(expected[i]).max(), 1e-12)
        for i in expected
        if expected[i].size
    ]
    return float(max(errors))


def loss_error(losses: list[float], expected: list[float]) -> float:
    """Return the largest relative difference of losses."""
    return float(max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)))


def once(path: Path, make: Callable[[], Any]) -> Any:
    """Return what ``make`` gives; a file holds it for the next run of this script."""
    if not path.is_file():
        path.write_bytes(pickle.dumps(make()))
    return pickle.loads(path.read_bytes())


class Checks:
    """The checks that were made, printed as they are."""

    def __init__(self) -> None:
        self.failed = 0

    def say(self, right: bool, text: str) -> None:
        """Print a check and count it if it failed."""
        self.failed += not right
        print(f"{'ok    ' if right else 'FAILED'} {text}", flush=True)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tvm-distir-train-") as scratch:
        return run(options.folder or Path(scratch), options.steps, options.every)


def run(folder: Path, steps: int, every: int) -> int:
    """Make all runs in a folder, and compare them."""
    net = td.zoo.gpt(vocab=VOCAB, layers=2, hidden=32, heads=4, seq=SEQ, batch=BATCH)
    mod = td.train_step(net, optimizer="adamw", rate=0.003)
    inputs = draw_inputs(mod, seed=1)
    dists = [td.distribute(mod, strategy.make_plan(mod, *plan)) for plan in (FIRST, SECOND)]
    entries = LoweredProgram(dists[0]).entries
    ports, state = input_ports(entries), state_of(dists[0], entries)
    for i in state.zeros:
        inputs[i] = np.zeros_like(inputs[i])
    weights = {ports[i].name: inputs[i] for i in state.inputs.values() if i not in state.zeros}
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (BATCHES, BATCH, SEQ + 1)).astype(inputs[0].dtype)
    tokens = tokens[np.arange(steps) % BATCHES]
    names = [port.name for i, port in sorted(ports.items()) if i not in state.inputs.values()]
    data = dict(zip(names, (tokens[..., :-1], tokens[..., 1:]), strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    file, half = folder / "data.npz", steps // 2 // every * every
    np.savez(file, **data)
    for name, dist in zip(("four", "two"), dists):
        if not (folder / name / "manifest.json").is_file():
            td.deploy(dist, folder / name, weights, force=True)
    remaining = {i: plain_name(ports[i].name) for i in state.inputs.values()}

    def trained(call: Callable[[list[Any]], Any]) -> Training:
        return train(call, inputs, state, data, every)

    alone = once(folder / "alone.pickle", lambda: trained(Reference(mod).run))
    program = td.load(folder / "four")
    every_input = [port.name for _, port in sorted(ports.items())]
    virtual = once(
        folder / "virtual.pickle",
        lambda: trained(lambda x: program.run(dict(zip(every_input, x)), engine="virtual")),
    )
    checks, out, saved = Checks(), folder / "y.npz", folder / "saved"
    words: tuple[Any, ...] = ("--checkpoints", saved, "--every", every)
    losses = once(folder / "y.pickle", lambda: serve(4, folder / "four", file, out, *words))
    checks.say(
        loss_error(losses, alone.losses) < LOSS_TOLERANCE,
        f"{len(losses)} steps on 4 processes: loss {losses[0]:.4f} to {losses[-1]:.4f}, "
        f"{loss_error(losses, alone.losses):.1e} from one device",
    )
    checks.say(losses == virtual.losses, f"{len(losses)} losses: the bits of virtual")
    for step in virtual.states:
        result = saved_state(saved, step, remaining)
        right = all(same_bits(result[i], virtual.states[step][i]) for i in remaining)
        count = len(list((saved / step_name(step)).glob("rank-*.safetensors")))
        checks.say(right, f"checkpoint {step}: {count} files, {len(result)} arrays of virtual")

    again = folder / "again"
    shutil.rmtree(again, ignore_errors=True)
    words = ("--checkpoints", again, "--every", every)
    serve_and_kill(half, again, 4, folder / "four", file, out, *words)
    rest = serve(4, folder / "four", file, out, *words, "--resume", again)
    last = virtual.states[max(virtual.states)]
    result = saved_state(again, max(virtual.states), remaining)
    right = rest == losses[steps - len(rest) :] and all(
        same_bits(result[i], last[i]) for i in remaining
    )
    checks.say(right, f"killed, and resumed for {len(rest)} steps: the bits of the run before")

    other, middle = folder / "other", saved / step_name(half)
    words = ("--checkpoints", other, "--every", every, "--resume", middle)
    rest = serve(2, folder / "two", file, out, *words)
    error = loss_error(rest, alone.losses[half:])
    final = alone.states[max(alone.states)]
    determined = {i: final[i] for i, name in remaining.items() if KEY_BIAS not in name}
    drift = state_error(saved_state(other, steps, remaining), determined)
    checks.say(
        error < LOSS_TOLERANCE and drift < STATE_TOLERANCE,
        f"resumed on 2 processes for {len(rest)} steps: loss {error:.1e} and state {drift:.1e} "
        "from one device",
    )
    return int(checks.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
