# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fused weights: each device has its part of query, key, value, gate and up, and all is equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import ir
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

import tvm_distir as td
from tvm_distir.core.ir.segments import Segments
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.rewriting.tuple_parameters import open_tuples
from tvm_distir.execution.deployment import safetensors
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.program.io_layout import read_port
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.models.export.stablehlo import to_stablehlo
from tvm_distir.support.errors import EngineError, ModelError, PlanError

HEADS, GROUPS, SIZE, WIDTH, HIDDEN = 4, 2, 8, 32, 48
FUSED = (HEADS + 2 * GROUPS) * SIZE


class Layer(nn.Module):
    """A decoder layer with grouped queries, and biases on the fused projection."""

    def __init__(self, heads_first: bool) -> None:
        self.heads_first = heads_first
        self.qkv_proj = nn.Linear(WIDTH, FUSED, bias=True)
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.gate_up_proj = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer."""
        batch, seq, _ = x.shape
        qkv = self.qkv_proj(x)
        if self.heads_first:  # split by heads
            qkv = op.reshape(qkv, (batch, seq, HEADS + 2 * GROUPS, SIZE))
            q, k, v = op.split(qkv, [HEADS, HEADS + GROUPS], axis=2)
        else:  # split by columns
            columns = [HEADS * SIZE, (HEADS + GROUPS) * SIZE]
            parts = zip(op.split(qkv, columns, axis=2), (HEADS, GROUPS, GROUPS), strict=True)
            q, k, v = (op.reshape(part, (batch, seq, n, SIZE)) for part, n in parts)
        k, v = (op.repeat(part, HEADS // GROUPS, axis=2) for part in (k, v))
        q, k, v = (op.permute_dims(part, [0, 2, 1, 3]) for part in (q, k, v))
        weights = op.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])) * (SIZE**-0.5), -1)
        mixed = op.permute_dims(op.matmul(weights, v), [0, 2, 1, 3])
        x = x + self.o_proj(op.reshape(mixed, (batch, seq, HEADS * SIZE)))
        gate, up = op.split(self.gate_up_proj(x), 2, axis=-1)
        return x + self.down_proj(op.silu(gate) * up)


def exported(heads_first: bool = True) -> ir.IRModule:
    """Return the layer as `relax.nn` exports it with packed parameters."""
    spec = {
        "forward": {
            "x": nn.spec.Tensor([2, 3, WIDTH], "float32"),
            "$": {"param_mode": "packed", "effect_mode": "none"},
        }
    }
    return Layer(heads_first).export_tvm(spec)[0]


def collectives(mod: ir.IRModule) -> dict[str, int]:
    """Return how often each collective is in the text of a module."""
    text = mod.script()
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    return {name: n for name in names if (n := text.count(f"R.dist.{name}("))}


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_megatron_divides_fused_weights(heads_first: bool, engine: str) -> None:
    """A layer has an all-reduce behind attention and one behind the feed-forward, and is equal."""
    mod = exported(heads_first)
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    rules = {rule.name: rule for rule in plan.rules}
    sizes = (HEADS * SIZE, GROUPS * SIZE, GROUPS * SIZE)
    assert rules["qkv_proj_weight"].segments == sizes
    assert rules["qkv_proj_bias"].segments == sizes
    assert rules["gate_up_proj_weight"].segments == (HIDDEN, HIDDEN)
    assert collectives(td.distribute(mod, plan)) == {"all_reduce": 2}
    assert td.verify(mod, plan, engine=engine).equal


def test_undivided_heads_stay_replicated() -> None:
    """Four devices do not divide two key heads: the projection is replicated, with a warning."""
    mod = exported()
    with pytest.warns(UserWarning, match="the devices do not divide each of them"):
        plan = td.planning.make_plan(rename(mod), "megatron", {"tp": 4})
    (rule,) = (r for r in plan.rules if r.name.endswith("qkv_proj_weight"))
    assert rule.segments == () and rule.placement == (-1,)
    assert td.verify(rename(mod), plan).equal


def rename(mod: ir.IRModule) -> ir.IRModule:
    """Return the module with names of a layer, which warnings ask for."""
    names = [str(p.name) for p in mod["forward"].params]
    assert names == ["x", "packed_params"]
    opened = open_tuples(mod)
    titles = [str(p.name) for p in opened["forward"].params]
    titles = [t if t == "x" else f"layers.0.{t}" for t in titles]
    new = opened["forward"].with_attr("dist.param_names", titles)
    return ir.IRModule({"forward": new})


def test_segments_with_data_parallel_and_json() -> None:
    """Segments survive the composition of strategies and the JSON form of a plan."""
    mod = exported()
    plan = td.planning.make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2})
    again = Plan.from_dict(plan.to_dict())
    assert again == plan
    assert any(rule.segments for rule in again.rules)
    assert td.verify(mod, again).equal


def test_an_op_in_the_original_order() -> None:
    """A reader that needs the original order gets it, also a result of the function."""

    class Odd(nn.Module):
        """A fused projection whose result is sorted, and returned."""

        def __init__(self) -> None:
            self.gate_up_proj = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)

        def forward(self, x: Tensor) -> Any:
            """Return both."""
            fused = self.gate_up_proj(x)
            return op.sort(fused, -1), fused

    spec = {"forward": {"x": nn.spec.Tensor([2, WIDTH], "float32")}}
    mod = Odd().export_tvm(spec)[0]
    rule = {"param": "gate_up_proj.weight", "placement": "S[0]", "segments": [HIDDEN, HIDDEN]}
    plan = {"schema_version": 1, "mesh": {"tp": 2}, "rules": [rule]}
    assert td.verify(mod, plan, exact=True).equal


@pytest.mark.parametrize(
    ("segments", "placement", "code"),
    [([64, 8], "S[0]", "DIST0221"), ([48, 48], "S[1]", "DIST0221"), ([33, 63], "S[0]", "DIST0234")],
)
def test_wrong_segments_are_refused(segments: list[int], placement: str, code: str) -> None:
    """Segments that are no dim, or that devices do not divide, are refused."""
    rule = {"param": "gate_up_proj.weight", "placement": placement, "segments": segments}
    plan = {"schema_version": 1, "mesh": {"tp": 2}, "rules": [rule]}
    with pytest.raises(PlanError, match=code):
        td.distribute(exported(), plan)


def test_sources_are_the_interleaved_order() -> None:
    """The ranges of a part, joined, are the rows of the interleaved order."""
    segments = Segments(0, (8, 4, 4), 4)
    rows = np.arange(16)
    parts = [np.split(part, 4) for part in np.split(rows, [8, 12])]
    expected = np.concatenate([part[i] for i in range(4) for part in parts])
    for start, stop in ((0, 16), (4, 8), (3, 9), (15, 16)):
        pieces = [rows[a:b] for a, b in segments.sources(start, stop)]
        assert np.array_equal(np.concatenate(pieces), expected[start:stop])


def test_damaged_segments_are_refused() -> None:
    """An item of dist.io with segments of another extent is refused."""
    item = {"index": 0, "shape": [6, 2], "dtype": "float32", "placement": "S[0]"}
    assert read_port({**item, "segments": [0, 2, 4, 2]}, "main", (2,)).segments is not None
    for wrong in ([0, 2, 4, 4], [0, 2, 3, 3], [2, 1, 6], [0]):
        with pytest.raises(EngineError, match="DIST0603"):
            read_port({**item, "segments": wrong}, "main", (2,))


def test_deployed_shards_of_fused_weights(tmp_path: Path) -> None:
    """A deployed folder holds the parts of every segment, from arrays and from a file."""
    mod = exported()
    dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 2}))
    values = draw_inputs(mod, 0)
    names = [str(p["name"]) for p in dist["forward"].attrs["dist.io"]["inputs"]]
    weights = dict(zip(names, values, strict=True))
    x = weights.pop("x")
    (expected,) = td.run(dist, values)
    (reference,) = Reference(mod).run(values)
    np.testing.assert_allclose(expected, reference, rtol=1e-4, atol=1e-5)
    described = {name: (array.shape, str(array.dtype)) for name, array in weights.items()}
    safetensors.write(tmp_path / "all.safetensors", described, lambda name: weights[name])
    for number, params in enumerate((weights, tmp_path / "all.safetensors")):
        td.deploy(dist, tmp_path / f"folder{number}", params)
        (got,) = td.load(tmp_path / f"folder{number}").run([x])
        assert np.array_equal(got, expected)


def test_no_form_in_stablehlo() -> None:
    """A program whose inputs are interleaved is refused, and not written with other weights."""
    mod = exported()
    dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 2}))
    with pytest.raises(ModelError, match="DIST0380"):
        to_stablehlo(dist)
