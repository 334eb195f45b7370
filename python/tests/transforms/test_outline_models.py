# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""OutlineRepeatedLayers on real models, flat as they are imported; forward and training."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import ir, relax
from tvm.relax import op
from tvm.relax.training import AppendLoss
from tvm.relax.training.loss import MSELoss

import tvm_distir as td
from tests.models import gpt2_onnx
from tests.transforms.outline_harness import calls, run_main
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.planning import strategies as strategy
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions
from tvm_distir.transforms.outline.outliner import OutlineRepeatedLayers

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
SMALL = {"layers": 2, "hidden": 16, "heads": 4, "vocab": 48, "seq": 8, "batch": 4}
LLAMA = {**SMALL, "kv_heads": 2, "dtype": "float32"}
DP_TP = ("data_parallel+megatron", {"dp": 2, "tp": 2})


def onnx_gpt2_file(folder: Path) -> ir.IRModule:
    path = folder / "gpt2.onnx"
    onnx.save(gpt2_onnx.build(**SMALL), str(path))
    return td.from_onnx(str(path))


MODELS = {
    "gpt": lambda _: td.zoo.gpt(nested=0, **SMALL),
    "llama": lambda _: td.zoo.llama(nested=0, **LLAMA),
    "onnx gpt2": onnx_gpt2_file,
}


def outlined(mod: ir.IRModule) -> ir.IRModule:
    """Run the pass; well formed, round-trips, main keeps its signature and attributes."""
    out = OutlineRepeatedLayers()(mod)
    relax.analysis.well_formed(out)
    ir.assert_structural_equal(out, tvm.script.from_source(out.script(show_meta=True)))
    assert [p.name for p in out["main"].params] == [p.name for p in mod["main"].params]
    ir.assert_structural_equal(out["main"].ty, mod["main"].ty)
    ir.assert_structural_equal(out["main"].attrs, mod["main"].attrs)
    return out


def collectives(mod: ir.IRModule, plan: td.Plan) -> list[tuple[str, str, int, int]]:
    result = td.simulate(td.export(td.distribute(mod, plan)), td.System.load("dgx-a100"))
    observed = result.collectives
    return [(c.kind, c.mesh_axis, c.count, c.bytes_per_device) for c in observed]


def drawn(mod: ir.IRModule) -> list[np.ndarray]:
    draw = np.random.default_rng(11)
    inputs = []
    for param in mod["main"].params:
        shape, dtype = [int(dim) for dim in param.ty.shape], str(param.ty.dtype)
        if "int" in dtype:
            inputs.append(draw.integers(0, SMALL["vocab"], shape).astype(dtype))
        else:
            inputs.append(draw.normal(size=shape).astype(dtype))
    return inputs


@pytest.mark.parametrize("name", sorted(MODELS))
def test_transformers(name: str, tmp_path: Path) -> None:
    """Every layer is a call; distributed alike, with the same collectives."""
    mod = MODELS[name](tmp_path)
    out = outlined(mod)
    assert calls(out) == {"layer": SMALL["layers"]}
    assert "x" in [str(p.name) for p in out["layer"].params]
    assert not any("h_" in p.name or "layers_" in p.name for p in out["layer"].params)
    ir.assert_structural_equal(InlinePrivateFunctions()(out), mod)
    if name == "gpt":  # the way back is proof enough for the others
        inputs = drawn(mod)
        for want, have in zip(run_main(mod, inputs), run_main(out, inputs), strict=True):
            np.testing.assert_array_equal(want, have)
    plan = strategy.make_plan(out, *DP_TP)
    assert plan.to_dict() == strategy.make_plan(mod, *DP_TP).to_dict()
    assert td.verify(out, plan, engine="virtual").equal
    sent = collectives(out, plan)
    assert [(kind, axis, count) for kind, axis, count, _ in sent] == [
        ("all_reduce", "tp", 2 * SMALL["layers"] + 1)
    ]
    assert sent == collectives(mod, plan)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_what_is_outlined_is_the_layer_of_the_nested_model(name: str) -> None:
    """The zoo writes the same models with a function per layer."""
    make, keys = (td.zoo.gpt, SMALL) if name == "gpt" else (td.zoo.llama, LLAMA)
    layer, nested = outlined(make(nested=0, **keys))["layer"], make(**keys)["layer"]
    have, want = ({str(p.name): p.ty for p in fn.params} for fn in (layer, nested))
    if name == "llama":
        have["sin"] = have.pop("signed_sin")  # as the flat model calls the table
    assert sorted(have) == sorted(want)
    for param, ty in want.items():
        ir.assert_structural_equal(have[param], ty)
    bodies = [[b.value for b in fn.body.blocks[0].bindings] for fn in (layer, nested)]
    ops = [Counter(str(v.op.name) for v in body if isinstance(v, ir.Call)) for body in bodies]
    assert ops[0] == ops[1]


def test_what_each_device_runs_can_be_outlined_too() -> None:
    """Level 5: local tensors and collectives."""
    mod = td.zoo.gpt(nested=0, **SMALL)
    lowered = td.distribute(mod, strategy.make_plan(mod, "megatron", {"tp": 2}))
    out = outlined(lowered)
    assert calls(out) == {"layer": SMALL["layers"]}
    check_level(out, 5)
    ir.assert_structural_equal(InlinePrivateFunctions()(out), lowered)


def test_eighty_layers() -> None:
    mod = td.load_model("zoo:llama?size=70b,nested=0").mod
    assert len(mod["main"].body.blocks[0].bindings) > 3500
    assert calls(OutlineRepeatedLayers()(mod)) == {"layer": 80}


FOUND = {
    # Every block of a stage but the first, which has strides or a projection.
    "light_resnet50.onnx": [2, 3, 5, 2],
    # Stages of 4, 8 and 4 units; the first of each has a stride.
    "light_shufflenet.onnx": [3, 7, 3],
    # Convolution, bias, relu of a stage.
    "light_vgg19.onnx": [3, 3, 4],
    # Fire modules differ in their channels.
    "light_squeezenet.onnx": [],
}


@pytest.mark.parametrize("name", sorted(FOUND))
def test_bundled_onnx_models(name: str) -> None:
    mod = td.load_model(str(LIGHT / name)).mod
    out = outlined(mod)
    assert list(calls(out).values()) == FOUND[name]
    ir.assert_structural_equal(InlinePrivateFunctions()(out), mod)


def small_transformer(layers: int) -> ir.IRModule:
    """A flat transformer of which TVM has all gradients: attention, norms, a relu MLP."""
    batch, seq, hidden = 4, 4, 8
    builder = relax.BlockBuilder()
    params = [relax.Var("x", relax.TensorType((batch, seq, hidden), "float32"))]

    def weight(name: str, *shape: int) -> Any:
        params.append(relax.Var(name, relax.TensorType(shape, "float32")))
        return params[-1]

    def norm(x: Any, name: str) -> Any:
        scale, shift = weight(f"{name}_weight", hidden), weight(f"{name}_bias", hidden)
        return builder.emit(op.nn.layer_norm(x, scale, shift, axes=[-1]))

    def linear(x: Any, name: str, inputs: int, outputs: int) -> Any:
        y = builder.emit(op.matmul(x, weight(f"{name}_weight", inputs, outputs)))
        if name.endswith("k_proj"):
            return y  # softmax takes a bias of the keys away: its gradient is rounding alone
        return builder.emit(op.add(y, weight(f"{name}_bias", outputs)))

    with builder.function("main"):
        with builder.dataflow():
            x = builder.emit(op.add(params[0], weight("wpe", seq, hidden)))
            for i in range(layers):
                y = norm(x, f"h_{i}_ln_1")
                q, k, v = (linear(y, f"h_{i}_{part}_proj", hidden, hidden) for part in "qkv")
                scores = builder.emit(op.matmul(q, op.permute_dims(k, [0, 2, 1])))
                mixed = builder.emit(op.matmul(op.nn.softmax(scores), v))
                x = builder.emit(op.add(x, linear(mixed, f"h_{i}_o_proj", hidden, hidden)))
                up = linear(norm(x, f"h_{i}_ln_2"), f"h_{i}_up_proj", hidden, 4 * hidden)
                down = linear(op.nn.relu(up), f"h_{i}_down_proj", 4 * hidden, hidden)
                x = builder.emit(op.add(x, down))
            out = builder.emit_output(x)
        builder.emit_func_output(out, params)
    return builder.get()


def training_graph(layers: int) -> ir.IRModule:
    """Loss and weight gradients of the small transformer, as TVM makes them."""
    mod = small_transformer(layers)
    y = relax.Var("y", mod["main"].ret_ty)
    mod = AppendLoss("main", MSELoss("sum")(y, relax.Var("targets", y.ty)))(mod)
    mod = relax.transform.DecomposeOpsForTraining("main_loss")(mod)
    weights = list(mod["main_loss"].params)[1:-1]
    mod = relax.transform.Gradient("main_loss", require_grads=weights)(mod)
    fn = mod["main_loss_adjoint"].with_attr("global_symbol", "main")
    return relax.transform.DeadCodeElimination()(ir.IRModule({"main": fn}))


def test_training_graph() -> None:
    """Forward and backward layers, all of them; executed; distributed at the same price."""
    layers = 3
    mod = training_graph(layers)
    out = outlined(mod)
    result = calls(out)
    assert result["layer"] == result["layer_backward"] == layers
    assert len(out["layer"].body.blocks[0].bindings) > 20
    assert len(out["layer_backward"].body.blocks[0].bindings) > 40
    inputs = [0.5 * array for array in drawn(mod)]
    want = run_main(mod, inputs)
    assert all(np.any(array) and np.isfinite(array).all() for array in want)
    for w, h in zip(want, run_main(out, inputs), strict=True):
        np.testing.assert_array_equal(w, h)
    tidy = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    )
    ir.assert_structural_equal(tidy(InlinePrivateFunctions()(out)), tidy(mod))
    parts = [*((f"{p}_proj_weight", "S[1]") for p in ("q", "k", "v", "up"))]
    parts += [(f"{p}_proj_weight", "S[0]") for p in ("o", "down")]
    rules = [{"param": f"h_*_{p}", "placement": to, "stationary": True} for p, to in parts]
    plan = td.Plan.from_dict({"schema_version": 1, "mesh": {"tp": 2}, "rules": rules})
    assert td.verify(out, plan, engine="virtual").equal
    sent = collectives(out, plan)
    assert sent and sorted(sent) == sorted(collectives(mod, plan))
