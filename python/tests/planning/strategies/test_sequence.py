# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sequence parallel for any model: what other strategies leave whole is cut along the sequence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tvm import ir, relax

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.core.ir.attributes.keys import INPUTS_ATTR
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import MeshError, PlanError

SMALL = {"size": "tiny", "hidden": 16, "heads": 4, "vocab": 64, "batch": 2, "seq": 32}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {**SMALL, "positions": 64},
    "llama": {**SMALL, "kv_heads": 4, "ffn": 32},
    "bert": {**SMALL, "positions": 64},
}


def model(name: str, layers: int = 1, train: bool = False, **options: Any) -> ir.IRModule:
    mod = td.zoo.build(name, {**MODELS[name], "layers": layers, **options})
    return td.train_step(mod, optimizer="sgd", rate=1.0) if train else mod


def of_a_layer(name: str, text: str, train: bool = False) -> Counter[str]:
    """Collectives of activations that one more layer adds, by kind."""
    matches = []
    for layers in (2, 3):
        mod = model(name, layers, train)
        dist = td.distribute(mod, strategy.make_plan(mod, text, {"tp": 2}))
        program = td.export(dist)
        count: Counter[str] = Counter()
        for function, op in program.executed(program.entries[0].function):
            if op.kind == "collective" and len(function.values[op.outputs[0]].shape) > 2:
                count[op.collective] += 1
        matches.append(count)
    matches[1].subtract(matches[0])
    return +matches[1]


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_it_finds_what_megatrons_names_say(name: str) -> None:
    """Two gathers and two scatters forward, as many back, and the first two gathers again."""
    for train, times in ((False, 1), (True, 3)):
        result = of_a_layer(name, "megatron+sequence", train)
        assert result == {"all_gather": 2 * times, "reduce_scatter": 4 if train else 2}
        assert result == of_a_layer(name, "megatron:sequence=1", train)


def test_on_a_model_whose_norms_come_last() -> None:
    """BERT's residual stream is a norm's result: its all-reduces become gathers and scatters."""
    assert of_a_layer("bert", "megatron") == {"all_reduce": 2}
    assert of_a_layer("bert", "megatron+sequence") == {"all_gather": 2, "reduce_scatter": 2}


def test_alone_it_gathers_keys_and_values() -> None:
    assert of_a_layer("gpt", "sequence") == {"all_gather": 2}


def rows(norm: bool = True) -> ir.IRModule:
    """Two layers with a norm between, or one layer, on rows."""
    builder = relax.BlockBuilder()
    shapes = {"x": (12, 8), "scale": (8,), "w": (8, 8)}
    x, scale, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    with builder.function("main", [x, scale, w], attrs={INPUTS_ATTR: ["x"]}):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, w))
            if norm:
                y = builder.emit(relax.op.nn.rms_norm(y, scale, -1))
                y = builder.emit(relax.op.matmul(y, w))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def test_rows_of_any_model() -> None:
    """Rows that nothing mixes: no collective at all."""
    mod = rows()
    plan = strategy.make_plan(mod, "sequence:axis=sp,dim=0", {"sp": 4})
    report = td.verify(mod, plan, engine="virtual")
    assert report.equal
    assert report.collectives == ()


@pytest.mark.parametrize(
    ("text", "mesh", "name", "train"),
    nightly_but(
        [
            ("megatron+sequence", {"tp": 2}, "gpt", True),
            ("megatron+sequence", {"tp": 2}, "bert", False),
            ("data_parallel+megatron+sequence", {"dp": 2, "tp": 2}, "llama", True),
            ("tensor_parallel+sequence", {"tp": 2}, "llama", False),
            ("fsdp+megatron+sequence", {"dp": 2, "tp": 2}, "gpt", True),
            ("data_parallel+sequence", {"tp": 4, "dp": 2}, "gpt", False),
            ("context_parallel+megatron+sequence", {"tp": 2, "cp": 2}, "gpt", False),
        ],
        {1, 2, 3, 4, 6},
    ),
)
def test_results_equal_one_device(text: str, mesh: dict[str, int], name: str, train: bool) -> None:
    mod = model(name, train=train, seq=16)
    assert td.verify(mod, strategy.make_plan(mod, text, mesh), engine="virtual").equal


def test_on_threads_with_an_uneven_sequence() -> None:
    mod = model("llama", seq=15)
    plan = strategy.make_plan(mod, "megatron+sequence", {"tp": 2})
    assert td.verify(mod, plan, engine="threads").equal


def test_a_constant_may_be_a_term_of_a_sum() -> None:
    """A bias in the module, added to terms before they are summed, is kept by one device."""
    op, shapes = relax.op, {"x": (2, 8, 64), "w": (64, 64), "v": (64, 2)}
    x, w, v = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, v], attrs={INPUTS_ATTR: ["x"]}):
        with builder.dataflow():
            y = builder.emit(op.add(op.matmul(x, w), relax.const(1.0, "float32")))
            out = builder.emit_output(op.matmul(y, v))
        builder.emit_func_output(out)
    mod = builder.get()
    rules = [{"param": "w", "placement": "S[0]"}, {"param": "v", "placement": "R"}]
    others = {"schema_version": 1, "mesh": {"tp": 4}, "rules": rules}
    dist = td.transforms.PropagateSharding()(
        td.transforms.AnnotateSharding(td.Plan.from_dict(others))(mod)
    )
    assert "R.dist.partial(R.dist.const(" in dist.script()
    plan = strategy.sequence(mod, {"tp": 4}, others=td.Plan.from_dict(others))
    assert [rule.name for rule in plan.rules if rule.kind == "value"] == ["gv"]


@pytest.mark.parametrize(
    ("text", "mesh", "error", "message"),
    [
        ("sequence", {"dp": 2}, MeshError, "DIST0206"),
        ("sequence:dim=3", {"tp": 2}, PlanError, "DIST0233.*no data input has a dim 3"),
        ("sequence:dim=1", {"tp": 2}, PlanError, r"DIST0233.*sequence:dim="),
    ],
)
def test_errors(text: str, mesh: dict[str, int], error: type[Exception], message: str) -> None:
    mod = rows(norm=False) if "dim=1" in text else model("gpt")
    with pytest.raises(error, match=message):
        strategy.make_plan(mod, text, mesh)
