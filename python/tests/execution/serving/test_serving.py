# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A training step that is served from a folder: losses, checkpoints, other meshes, refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import tvm_distir as td
from tests.child_processes import child_environment
from tests.execution.runtime.test_runtime_mpi import needs_mpi
from tvm_distir.execution.deployment.checkpoint_files import complete_steps
from tvm_distir.execution.deployment.launch_scripts import processes_per_host
from tvm_distir.execution.runtime import Reference
from tvm_distir.execution.runtime.engines.mpi.launch import find_launcher
from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.execution.runtime.program.step_state import state_of
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import EngineError

STEPS = 12
MESHES = {"four": ("zero:stage=3+megatron", {"dp": 2, "tp": 2}), "two": ("zero:stage=1", {"dp": 2})}


def training_step(optimizer="adamw"):
    net = td.zoo.gpt(vocab=19, layers=1, hidden=16, heads=2, seq=4, batch=4)
    return td.train_step(net, optimizer=optimizer)


def serve(count, *words, expect=0, engine="torch"):
    """Run ``tvm-distir run --job`` with ``torchrun`` or ``mpiexec``; returns what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}"]
    if engine == "mpi":
        command = [*find_launcher(), "-n", str(count), sys.executable]
        words = (*words, "--engine", "mpi")
    command += ["-m", "tvm_distir_command", "run", "--job", *map(str, words)]
    environment = child_environment(OMP_NUM_THREADS="1", TVM_USE_RUNTIME_LIB="1")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    message = done.stdout + done.stderr
    assert (done.returncode == 0) == (expect == 0), message
    return message


def deploy(folder, mod, values, name):
    """Deploy the step on a mesh, with its weights."""
    plan, axes = MESHES[name]
    dist = td.distribute(mod, strategy.make_plan(mod, plan, axes))
    ports = input_ports(LoweredProgram(dist).entries)
    weights = range(2, 2 + (len(values) - 3) // 3)
    td.deploy(dist, folder / name, {ports[i].name: values[i] for i in weights})


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The folder of a step on four devices, its data, and the losses of a single device."""
    folder = tmp_path_factory.mktemp("served")
    mod = training_step()
    values = draw_inputs(mod, seed=1)
    names = [str(p.name) for p in mod["main"].params]
    weights = range(2, 2 + (len(names) - 3) // 3)
    rng = np.random.default_rng(0)
    data = {n: rng.integers(0, 19, (STEPS, 4, 4)).astype(values[0].dtype) for n in names[:2]}
    np.savez(folder / "steps.npz", **data)
    deploy(folder, mod, values, "four")
    reference, losses = Reference(mod), []
    state = [v if i in weights else np.zeros_like(v) for i, v in enumerate(values)][2:]
    for step in range(STEPS):
        loss, *state = reference.run([*(data[n][step] for n in names[:2]), *state])
        losses.append(float(loss))
    return folder, np.array(losses)


@needs_mpi
def test_losses_and_checkpoints_of_a_job_of_mpi(served):
    folder, losses = served
    remaining, out, trace = folder / "kept-mpi", folder / "y-mpi.npz", folder / "steps.json"
    words = ["--steps", folder / "steps.npz", "--timeout-s", "60", "-o", out]
    more = ["--checkpoints", remaining, "--every", "5", "--trace", trace]
    message = serve(4, folder / "four", *words, *more, engine="mpi")
    assert f"4 processes, {STEPS} steps" in message
    whole = np.load(out)["output0"]
    np.testing.assert_allclose(whole, losses, rtol=1e-4)
    assert list(complete_steps(remaining)) == [5, 10, 12]
    serve(4, folder / "four", *words, "--resume", remaining / "step-00000005", engine="mpi")
    np.testing.assert_array_equal(np.load(out)["output0"], whole[5:])
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [e for e in events if e["ph"] == "X" and e["name"] == "all_gather" and e["pid"] == 3]
    assert len(steps) % STEPS == 0
    assert steps


@needs_mpi
def test_a_restart_continues_the_run_and_loses_nothing(served):
    """What a scheduler does: the same command with ``--resume``, also after the end."""
    folder, _ = served
    mod = training_step()
    values, names = draw_inputs(mod, seed=1), [str(p.name) for p in mod["main"].params]
    if not (folder / "two").exists():
        deploy(folder, mod, values, "two")
    weights = {n: v for n, v in zip(names[2:], values[2:]) if not n.endswith((".m", ".v"))}
    weights.pop("step")
    np.savez(folder / "w.npz", **weights)
    kept, out = folder / "kept-restarts", folder / "y-restarts.npz"
    words = [folder / "two", "--inputs", folder / "w.npz", "--steps", folder / "steps.npz"]
    words += ["--timeout-s", "60", "-o", out, "--checkpoints", kept, "--every", "5"]
    serve(2, *words, engine="mpi")
    whole = np.load(out)["output0"]
    files = {p: p.read_bytes() for p in kept.rglob("*") if p.is_file()}

    message = serve(2, *words, "--resume", kept, engine="mpi")  # after the end
    assert f"all {STEPS} steps were done before" in message
    message = serve(2, *words, expect=1, engine="mpi")  # another run in its folder
    assert "DIST0160" in message and "another run" in message
    assert {p: p.read_bytes() for p in kept.rglob("*") if p.is_file()} == files
    np.testing.assert_array_equal(np.load(out)["output0"], whole)

    shutil.rmtree(kept / f"step-{STEPS:08d}")
    message = serve(2, *words, "--resume", kept, engine="mpi")  # weights are the checkpoint's
    assert "arrays of" in message and "are state; they are read from" in message
    np.testing.assert_array_equal(np.load(out)["output0"], whole[10:])
    assert {p: p.read_bytes() for p in kept.rglob("rank-*")} == {
        p: content for p, content in files.items() if p.name.startswith("rank-")
    }


@needs_mpi
def test_refusals_of_a_job_of_mpi(served, capsys):
    from tvm_distir.interface.command.app import main

    folder, _ = served
    message = serve(2, folder / "four", "--steps", folder / "steps.npz", expect=1, engine="mpi")
    assert "DIST0632 engine mpi: the job has 2 processes, the program requires 4" in message
    for words, code in (
        (["--engine", "mpi"], "DIST0633 engine mpi: no launcher"),
        (["--engine", "mpi", "--check"], "DIST0151 --check"),
        (["--engine", "mpi", "--reduce", "library"], "DIST0151 --reduce"),
        (["--engine", "threads"], "DIST0152 --engine"),
    ):
        assert main(["run", "--job", str(folder / "four"), *words]) != 0
        assert code in capsys.readouterr().err


def test_losses_equal_one_device_and_resumed_runs_go_on(served):
    pytest.importorskip("torch.distributed")
    folder, losses = served
    mod = training_step()
    deploy(folder, mod, draw_inputs(mod, seed=1), "two")
    remaining, out = folder / "kept", folder / "y.npz"
    words = ["--steps", folder / "steps.npz", "--timeout-s", "60", "-o", out]
    message = serve(4, folder / "four", *words, "--checkpoints", remaining, "--every", "5")
    assert f"4 processes, {STEPS} steps" in message
    whole = np.load(out)["output0"]
    np.testing.assert_allclose(whole, losses, rtol=1e-4)
    assert list(complete_steps(remaining)) == [5, 10, 12]
    middle = remaining / "step-00000005"
    serve(4, folder / "four", *words, "--resume", middle)
    np.testing.assert_array_equal(np.load(out)["output0"], whole[5:])
    serve(2, folder / "two", *words, "--resume", middle)
    np.testing.assert_allclose(np.load(out)["output0"], losses[5:], rtol=1e-4)


def test_a_job_of_another_size_is_refused(served):
    pytest.importorskip("torch.distributed")
    folder, _ = served
    message = serve(2, folder / "four", "--steps", folder / "steps.npz", expect=1)
    assert "DIST0632 engine torch: the job has 2 processes, the program requires 4" in message


def test_without_a_launcher(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch.distributed")
    from tvm_distir.interface.command.app import main

    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert main(["run", "--job", str(tmp_path)]) == 1
    assert "DIST0633" in capsys.readouterr().err


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_state_of_a_step(optimizer):
    mod = training_step(optimizer)
    dist = td.distribute(mod, strategy.make_plan(mod, "data_parallel", {"dp": 2}))
    entries = LoweredProgram(dist).entries
    ports, state = input_ports(entries), state_of(dist, entries)
    assert [ports[i].name for i in range(len(ports)) if i not in state.inputs.values()] == [
        "input_ids",
        "targets",
    ]
    weights = (
        sum(not name.endswith((".m", ".v", "step")) for name in (p.name for p in ports.values()))
        - 2
    )
    assert len(state.inputs) - len(state.zeros) == weights
    assert all(ports[i].name.endswith((".m", ".v", "step")) for i in state.zeros)


def test_frozen_weights_are_no_state():
    """They lie between those that are updated, some with the same shape."""
    mod = td.zoo.gpt(vocab=19, layers=2, hidden=16, heads=2, seq=4, batch=4)
    step = td.train_step(mod, optimizer="adamw", frozen=["h.0.*"])
    dist = td.distribute(step, strategy.make_plan(step, "data_parallel", {"dp": 2}))
    entries = LoweredProgram(dist).entries
    ports, state = input_ports(entries), state_of(dist, entries)
    outputs = {port.index: port for entry in entries for port in entry.outputs}
    names = {ports[i].name for i in state.inputs.values()}
    frozen = {p.name for p in ports.values() if p.name.startswith("h.0.")}
    assert frozen and not names & frozen
    assert {p.name for p in ports.values()} - names - frozen == {"input_ids", "targets"}
    assert sorted(state.inputs) == sorted(outputs)[-len(names) :]
    weights = [i for i in state.inputs.values() if i not in state.zeros]
    assert all(ports[i].name.rpartition(".")[2] in ("weight", "bias") for i in weights)


def test_inference_has_no_state():
    mod = td.zoo.gpt(vocab=19, layers=1, hidden=16, heads=2, seq=4, batch=4)
    dist = td.distribute(mod, strategy.make_plan(mod, "data_parallel", {"dp": 2}))
    assert not state_of(dist, LoweredProgram(dist).entries).inputs


def test_devices_are_divided_among_hosts():
    assert processes_per_host(8, 2) == 4
    with pytest.raises(EngineError, match=r"DIST0643 hosts: 8 devices .* among 3 hosts"):
        processes_per_host(8, 3)
