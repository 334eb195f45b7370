# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Muon and Adafactor: two steps next to torch.optim, and sharded ones next to one device."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.transforms.training.stepped_values import stepped_values
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.training.optimizers import matrix_rules

SHAPES = {"wide": (6, 8), "tall": (8, 4), "scale": (4,)}


@I.ir_module
class Net:
    """A wide matrix, a tall one and a vector; gradients have full rank."""

    @R.function
    def main(x: R.Tensor((16, 6), "float32"), wide: R.Tensor((6, 8), "float32"),
             tall: R.Tensor((8, 4), "float32"), scale: R.Tensor((4,), "float32"),
             ) -> R.Tensor((16, 4), "float32"):  # fmt: skip
        with R.dataflow():
            y = R.tanh(R.matmul(x, wide))
            out = R.multiply(R.matmul(y, tall), scale)
            R.output(out)
        return out


def of_torch(make, first, data, count):
    """The weights after some steps of torch."""
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    weights = {n: torch.tensor(v, requires_grad=True) for n, v in first.items()}
    x, wanted = torch.tensor(data["x"]), torch.tensor(data["targets"])
    optimizers = make(torch.optim, weights)
    for _ in range(count):
        out = torch.tanh(x @ weights["wide"]) @ weights["tall"] * weights["scale"]
        loss = torch.nn.functional.mse_loss(out, wanted)
        for weight in weights.values():
            weight.grad = None
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return {name: weight.detach().numpy() for name, weight in weights.items()}


@pytest.mark.parametrize("rms", [0.0, 0.2])
@pytest.mark.parametrize("exact", [True, False])
def test_muon_is_that_of_torch(rms, exact, monkeypatch):
    """In float32 both are equal; bfloat16, whose epsilon is 2^-7, rounds in another order."""
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    if exact:
        monkeypatch.setattr(matrix_rules, "ITERATED", "float32")
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    first, ours = stepped_values(td.train_step(Net, "mse", "muon", rate=0.05, rms=rms), SHAPES, 2)
    adjust = "match_rms_adamw" if rms else "original"

    def make(optim, weights):
        matrices = [weights["wide"], weights["tall"]]
        muon = optim.Muon(matrices, lr=0.05, weight_decay=0.1, adjust_lr_fn=adjust)
        return muon, optim.AdamW([weights["scale"]], lr=0.05, weight_decay=0.1)

    theirs = of_torch(make, first, ours, 2)
    for name in SHAPES:
        moved = np.abs(theirs[name] - first[name]).max()
        limit = 1e-3 if exact or name == "scale" else 0.1
        assert np.abs(ours[name] - theirs[name]).max() < limit * moved, name


def test_adafactor_is_that_of_torch():
    step = td.train_step(Net, "mse", "adafactor", rate=0.05, decay=0.1)
    first, ours = stepped_values(step, SHAPES, 3)

    def make(optim, weights):
        return (optim.Adafactor(weights.values(), lr=0.05, weight_decay=0.1),)

    theirs = of_torch(make, first, ours, 3)
    for name in SHAPES:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5)


def test_states_of_adafactor_are_rows_and_columns():
    step = td.train_step(Net, "mse", "adafactor")
    types = {str(p.name): [int(n) for n in p.ty.shape] for p in step["main"].params}
    assert types["wide.row"] == [6, 1] and types["wide.column"] == [1, 8]
    assert types["scale.v"] == [4]


@pytest.mark.parametrize("options", [{"most": 0.0}, {"power": 0.5}])
def test_options_out_of_their_range_are_refused(options):
    with pytest.raises(ModelError, match=f'DIST0351 .*"{next(iter(options))}" of the optimizer'):
        td.train_step(Net, "mse", "adafactor", **options)


def test_tables_are_updated_by_adamw():
    step = td.train_step(Net, "mse", "muon", ratio=1.5)
    states = step["main"].attrs["dist.training"]["states"]
    assert list(states["wide"]) == ["wide.momentum"] and list(states["tall"]) == [
        "tall.m",
        "tall.v",
    ]


@pytest.mark.parametrize("optimizer", ["muon", "adafactor"])
@pytest.mark.parametrize("strategy", ["data_parallel", "zero:stage=1", "fsdp", "tensor_parallel"])
def test_sharded_steps_are_equal(optimizer, strategy):
    step = td.train_step(Net, "mse", optimizer, master=True)
    axis = "tp" if strategy == "tensor_parallel" else "dp"
    plan = td.planning.make_plan(step, strategy, {axis: 2})
    tolerance = {"rtol": 2e-2, "atol": 2e-3} if optimizer == "muon" else {}
    td.verify(step, plan, **tolerance).check()
