# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Names of what PyTorch exports: from the metadata of nodes, where weights have lost theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_distir as td
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.models.frontends import load_weights

LAYERS, HIDDEN, WIDE = 3, 8, 12


def node(op: str, inputs: list[str], output: str, scope: str, fx: str, **attrs: Any) -> Any:
    """A node with the metadata that ``torch.onnx.export`` writes."""
    parts = scope.split(".")
    modules = ["", *(".".join(parts[: i + 1]) for i in range(len(parts)) if parts[i] != "layers")]
    created = helper.make_node(op, inputs, [output], name=f"node_{output}", **attrs)
    call = fx.split(" ")[0].lstrip("%")
    for key, value in (("name_scopes", repr([*modules, call])), ("fx_node", fx)):
        created.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return created


def exported(with_fx: bool = True) -> onnx.ModelProto:
    """Three layers of a norm and two linear ones, the first with a bias, as PyTorch exports them.

    The transposed weights of linear layers are called ``val_N``; the last two layers share one.
    """
    random = np.random.default_rng(0)
    weights: dict[str, npt.NDArray[np.float32]] = {}
    nodes = []
    x = "x"
    for i in range(LAYERS):
        scope = f"m.layers.{i}"
        lower = f"p_m_layers_{i}"
        weights[f"{scope}.LayerNorm.weight"] = random.normal(size=HIDDEN).astype("float32")
        weights[f"{scope}.mlp.up_proj.bias"] = random.normal(size=WIDE).astype("float32")
        weights[f"val_{10 * i}"] = random.normal(size=(HIDDEN, WIDE)).astype("float32")
        weights[f"val_{10 * i + 1}"] = random.normal(size=(WIDE, HIDDEN)).astype("float32")
        nodes += [
            node(
                "LayerNormalization",
                [x, f"{scope}.LayerNorm.weight"],
                f"layer_norm_{i}",
                f"{scope}.LayerNorm",
                f"%layer_norm_{i} = call_function[target=torch.ops.aten.layer_norm.default]"
                f"(args = (%x, [8], %{lower}_layernorm_weight))",
            ),
            node(
                "MatMul",
                [f"layer_norm_{i}", f"val_{10 * i}"],
                f"val_{10 * i + 5}",
                f"{scope}.mlp.up_proj",
                f"%linear_{2 * i} = call_function[target=torch.ops.aten.linear.default]"
                f"(args = (%layer_norm_{i}, %{lower}_mlp_up_proj_weight, "
                f"%{lower}_mlp_up_proj_bias))",
            ),
            node(
                "Add",
                [f"val_{10 * i + 5}", f"{scope}.mlp.up_proj.bias"],
                f"linear_{2 * i}",
                f"{scope}.mlp.up_proj",
                f"%linear_{2 * i} = call_function[target=torch.ops.aten.linear.default]"
                f"(args = (%layer_norm_{i}, %{lower}_mlp_up_proj_weight, "
                f"%{lower}_mlp_up_proj_bias))",
            ),
            node("Relu", [f"linear_{2 * i}"], f"relu_{i}", f"{scope}.mlp", f"%relu_{i} = x"),
            node(
                "MatMul",
                [f"relu_{i}", f"val_{10 * i + 1}"],
                f"linear_{2 * i + 1}",
                f"{scope}.mlp.down_proj",
                f"%linear_{2 * i + 1} = call_function[target=torch.ops.aten.linear.default]"
                f"(args = (%relu_{i}, %{lower}_mlp_down_proj_weight))",
            ),
        ]
        x = f"linear_{2 * i + 1}"
    if not with_fx:
        for each in nodes:
            del each.metadata_props[1]
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, "seq", HIDDEN])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [4, "seq", HIDDEN])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize("with_fx", [True, False])
def test_weights_have_their_names_and_shapes_again(with_fx: bool) -> None:
    model = exported(with_fx)
    mod = td.from_onnx(model, dims={"seq": 2})
    main = mod["main"]
    shapes = {
        name: tuple(int(n) for n in param.ty.shape)
        for name, param in zip(param_names(main), main.params, strict=True)
    }
    for i in range(LAYERS):
        assert shapes[f"m.layers.{i}.mlp.up_proj.weight"] == (WIDE, HIDDEN)
        assert shapes[f"m.layers.{i}.mlp.down_proj.weight"] == (HIDDEN, WIDE)
        assert shapes[f"m.layers.{i}.LayerNorm.weight"] == (HIDDEN,)
    assert not [name for name in shapes if name.startswith("val_")]
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    weights = load_weights(model)
    assert set(weights) == set(shapes) - {"x"}
    np.testing.assert_array_equal(weights["m.layers.1.mlp.up_proj.weight"], stored["val_10"].T)


def test_the_model_computes_what_it_did() -> None:
    model = exported()
    mod = td.from_onnx(model, dims={"seq": 2})
    x = np.random.default_rng(1).normal(size=(4, 2, HIDDEN)).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    (result,) = td.run(td.distribute(mod, plan), {"x": x, **load_weights(model)})
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_plans_and_explanations_speak_of_modules() -> None:
    mod = td.from_onnx(exported(), dims={"seq": 2})
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    cut = [str(rule) for rule in plan.to_dict()["rules"] if "S[" in str(rule)]
    assert len([rule for rule in cut if "proj.weight" in rule]) == 2 * LAYERS
    result = td.explain(
        mod, "m_layers_1_mlp_down_proj_linear", plan=plan, alternatives=False
    ).to_text()
    assert "main/m.layers.1.mlp.down_proj.weight" in result or "m_layers_1_mlp_down_proj" in result


def test_layers_are_found_and_named() -> None:
    mod = td.transforms.OutlineRepeatedLayers()(td.from_onnx(exported(), dims={"seq": 2}))
    layers = [fn for gv, fn in mod.functions.items() if str(gv.name_hint) == "layer"]
    assert len(layers) == 1
    assert any(str(p.name).endswith("up_proj.weight") for p in layers[0].params)


def test_other_models_keep_their_names() -> None:
    model = exported()
    for each in model.graph.node:
        del each.metadata_props[:]
    mod = td.from_onnx(model, dims={"seq": 2})
    assert "val_10" in param_names(mod["main"])
