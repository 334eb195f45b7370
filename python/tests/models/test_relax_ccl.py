# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules with ``R.ccl`` collectives: run on two devices, they equal the module of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

import tvm_distir as td
from tvm_distir.support.errors import ModelError


@dataclass
class Divided:
    """The strategy of a parameter, as MLC-LLM's ``ShardSingleDim``."""

    dim: int
    segs: list[int] | None = None


class Mlp(nn.Module):
    """A gated layer, of which a device has a part of each of its two fused weights."""

    def __init__(self, size: int, reduction: str = "sum") -> None:
        self.up = nn.Linear(16, 64 // size, bias=False)
        self.down = nn.Linear(32 // size, 16, bias=False)
        self.up.weight.attrs["shard_strategy"] = Divided(0, [32 // size, 32 // size])
        self.down.weight.attrs["shard_strategy"] = Divided(1)
        self.size, self.reduction = size, reduction

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Return the result of the layer."""
        if self.size > 1:
            x = op.ccl_broadcast_from_worker0(x)
        gate, up = op.split(self.up(x), 2, axis=-1)
        y = self.down(op.silu(gate) * up)
        return op.ccl_allreduce(y, self.reduction) if self.size > 1 else y


def _exported(module: nn.Module, mode: str) -> Any:
    modes = {"param_mode": mode, "effect_mode": "none"}
    x = nn.spec.Tensor(["rows", 16], "float32")
    return module.export_tvm({"forward": {"x": x, "$": modes}})


@pytest.mark.parametrize("mode", ["plain", "packed"])
@pytest.mark.parametrize("rows", [1, 6])
def test_workers_equal_one_device(mode: str, rows: int) -> None:
    dist = td.from_ccl(_exported(Mlp(2), mode), 2)
    single, _ = _exported(Mlp(1), mode)
    report = td.verify(single, dist=dist, dims={"rows": rows}, entry="forward", engine="threads")
    assert report.equal
    assert {c.kind: c.count for c in report.collectives} == {"all_reduce": 1}


def test_a_missing_reduction_is_found() -> None:
    faulty = Mlp(2)
    faulty.size = 1  # hands out partial sums
    single, _ = _exported(Mlp(1), "plain")
    dist = td.from_ccl(_exported(faulty, "plain"), 2)
    report = td.verify(single, dist=dist, dims={"rows": 3}, entry="forward")
    assert not report.equal and "hold different bits" in report.replicas


def test_collectives_are_those_of_the_same_plan() -> None:
    single = td.bind_dims(td.from_nn(Mlp(1), _spec()), {"rows": 6})
    local = td.from_ccl(_exported(Mlp(2), "plain"), 2, dims={"rows": 6})
    rules = [
        {"param": "up.weight", "placement": "S[0]", "segments": [32, 32]},
        {"param": "down.weight", "placement": "S[1]"},
    ]
    plan = {"schema_version": 1, "mesh": {"tp": 2}, "rules": rules}
    ours = td.distribute(single, plan)
    reports = [td.verify(single, dist=mod, entry="forward") for mod in (local, ours)]
    assert all(report.equal for report in reports)
    assert reports[0].collectives == reports[1].collectives
    system = td.System.load("h100")
    assert all(td.simulate(td.export(mod), system).time_s > 0 for mod in (local, ours))


def _spec() -> Any:
    modes = {"param_mode": "plain", "effect_mode": "none"}
    return {"forward": {"x": nn.spec.Tensor(["rows", 16], "float32"), "$": modes}}


def test_gathers_and_scatters() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([8, 4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            part = builder.emit(relax.op.ccl.scatter_from_worker0(x, 2, 0))
            half = builder.emit(relax.op.add(part, part))
            y = builder.emit_output(relax.op.ccl.allgather(half, 2))
        builder.emit_func_output(y)
    value = np.arange(32, dtype="float32").reshape(8, 4)
    (got,) = td.run(td.from_ccl(builder.get(), 2), [value])
    np.testing.assert_array_equal(got, 2 * value)
    with pytest.raises(ModelError, match="has no form on 4 devices") as info:
        td.from_ccl(builder.get(), 4)
    assert info.value.code == "DIST0343"


def test_an_average_is_refused() -> None:
    with pytest.raises(ModelError, match="allreduce") as info:
        td.from_ccl(_exported(Mlp(2, "avg"), "plain"), 2)
    assert info.value.code == "DIST0343"
