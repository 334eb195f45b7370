# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Weights of a checkpoint go to one file under the names of the model."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.interface.command.app import main
from tvm_distir.support.errors.tree import EngineError

pytestmark = pytest.mark.quick


def session(mesh):
    """Return a training session and a batch."""
    mod = td.train_step(td.zoo.mlp(size="tiny"), loss="mse", optimizer="adam", rate=0.01)
    dist = td.distribute(mod, td.planning.make_plan(mod, "zero:stage=3", mesh))
    names = [str(param.name) for param in mod["main"].params]
    x, targets, *weights = draw_inputs(mod, seed=0)[:8]
    return td.Session(dist, dict(zip(names[2:8], weights))), (x, targets)


def test_a_checkpoint_becomes_one_file(tmp_path, capsys):
    trained, batch = session({"dp": 4})
    trained.step(*batch)
    trained.save(tmp_path / "run")
    out = tmp_path / "w.safetensors"
    assert main(["export-weights", str(tmp_path / "run"), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"6 arrays in {out}\n"
    weights, state = td.open_weights(out), trained.state_dict()
    assert list(weights) == list(state)
    for name, array in state.items():
        assert same_bits(weights[name].read(tuple((0, n) for n in array.shape)), array)
    td.export_weights(state, tmp_path / "same.safetensors")
    assert out.read_bytes() == (tmp_path / "same.safetensors").read_bytes()


def test_other_files_are_refused(tmp_path, capsys):
    assert main(["export-weights", str(tmp_path), "-o", "w.npz"]) == 2
    assert "DIST0152" in capsys.readouterr().err
    assert main(["export-weights", str(tmp_path), "-o", str(tmp_path / "w.safetensors")]) == 1
    assert "DIST0641" in capsys.readouterr().err
    with pytest.raises(EngineError, match=r"DIST0642 .*it cannot be written"):
        td.export_weights({"w": np.ones(2)}, tmp_path / "missing" / "w.safetensors")


def test_pytorch_reads_the_names_of_its_module(tmp_path):
    torch = pytest.importorskip("torch", reason="extra torch")
    load_file = pytest.importorskip("safetensors.torch").load_file
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    x = torch.randn(8, 8)
    model = td.from_exported_program(torch.export.export(module, (x,)))
    step = td.train_step(model, loss="mse", optimizer="adamw", rate=0.01)
    dist = td.distribute(step, td.planning.make_plan(step, "zero:stage=1", {"dp": 2}))
    trained = td.Session(dist, module.state_dict())
    targets = torch.randn(8, 4)
    for _ in range(3):
        trained.step(x, targets)
    trained.save(tmp_path / "run")
    td.export_weights(tmp_path / "run", tmp_path / "w.safetensors")
    (loss,) = trained.step(x, targets)
    module.load_state_dict(load_file(tmp_path / "w.safetensors"))
    expected = torch.nn.functional.mse_loss(module(x), targets).detach()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
