# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs of whole training steps: taken as they are, distributed, equal to the reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.models.onnx.update_nodes import PREVIEW as DOMAIN

STATES = {"Adam": "vh", "Momentum": "v", "Adagrad": "h", "plain": "vh"}
OPTIMIZERS = [
    ("Adam", {}),
    ("Adam", {"norm_coefficient": 0.1, "norm_coefficient_post": 0.01, "alpha": 0.8, "beta": 0.9}),
    ("Momentum", {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.0, "mode": "standard"}),
    ("Momentum", {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.2, "mode": "nesterov"}),
    ("Adagrad", {"decay_factor": 0.1, "norm_coefficient": 0.05}),
    ("plain", {"alpha": 0.8, "beta": 0.9}),
]
BATCH, WIDE, HIDDEN, CLASSES = 8, 12, 16, 6


def plain_adam(weights: list[str], alpha: float, beta: float) -> list[onnx.NodeProto]:
    """Adam (Kingma and Ba, 2015) in ONNX's own operators; its counter comes back, too."""
    node, nodes = helper.make_node, []
    for name, value in (("a", alpha), ("b", beta), ("one", 1.0), ("tiny", 1e-8)):
        number = numpy_helper.from_array(np.array(value, np.float32), name)
        nodes.append(node("Constant", [], [f"k_{name}"], value=number))
    more = numpy_helper.from_array(np.array(1), "more")
    nodes.append(node("Constant", [], ["k_more"], value=more))
    nodes.append(node("Add", ["count", "k_more"], ["count_new"]))
    nodes.append(node("Cast", ["count_new"], ["t"], to=TensorProto.FLOAT))
    for kind in "ab":
        nodes.append(node("Pow", [f"k_{kind}", "t"], [f"gone_{kind}"]))
        nodes.append(node("Sub", ["k_one", f"gone_{kind}"], [f"seen_{kind}"]))
        nodes.append(node("Sub", ["k_one", f"k_{kind}"], [f"part_{kind}"]))
    for w in weights:
        nodes.append(node("Mul", [f"d_{w}", f"d_{w}"], [f"square_{w}"]))
        for state, kind, created in (("v", "a", "d"), ("h", "b", "square")):
            single, other, new = f"{state}_old_{w}", f"{state}_add_{w}", f"{state}_{w}_new"
            nodes.append(node("Mul", [f"{state}_{w}", f"k_{kind}"], [single]))
            nodes.append(node("Mul", [f"{created}_{w}", f"part_{kind}"], [other]))
            nodes.append(node("Add", [single, other], [new]))
            nodes.append(node("Div", [new, f"seen_{kind}"], [f"{state}_hat_{w}"]))
        nodes.append(node("Sqrt", [f"h_hat_{w}"], [f"root_{w}"]))
        nodes.append(node("Add", [f"root_{w}", "k_tiny"], [f"below_{w}"]))
        nodes.append(node("Div", [f"v_hat_{w}", f"below_{w}"], [f"way_{w}"]))
        nodes.append(node("Mul", ["rate", f"way_{w}"], [f"move_{w}"]))
        nodes.append(node("Sub", [w, f"move_{w}"], [f"{w}_new"]))
    return nodes


def step_of(optimizer: str, options: dict) -> onnx.ModelProto:
    """Two layers, softmax and cross entropy, gradients written out, and one optimizer's node."""
    rng = np.random.default_rng(3)
    shapes = {"w1": (WIDE, HIDDEN), "w2": (HIDDEN, CLASSES)}
    stored = {name: rng.standard_normal(shape) * 0.3 for name, shape in shapes.items()}
    for kind in STATES[optimizer]:
        stored |= {f"{kind}_{n}": np.abs(rng.standard_normal(s)) for n, s in shapes.items()}
    stored["batch"] = np.array(float(BATCH))
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "w2"], ["logits"]),
        node("LogSoftmax", ["logits"], ["logs"], axis=-1),
        node("Mul", ["logs", "y"], ["picked"]),
        node("ReduceSum", ["picked"], ["total"], keepdims=0),
        node("Neg", ["total"], ["minus"]),
        node("Div", ["minus", "batch"], ["loss"]),
        node("Softmax", ["logits"], ["p"], axis=-1),
        node("Sub", ["p", "y"], ["lost"]),
        node("Div", ["lost", "batch"], ["d_logits"]),
        node("Transpose", ["b"], ["b_t"], perm=[1, 0]),
        node("MatMul", ["b_t", "d_logits"], ["d_w2"]),
        node("Transpose", ["w2"], ["w2_t"], perm=[1, 0]),
        node("MatMul", ["d_logits", "w2_t"], ["d_b"]),
        node("Sign", ["b"], ["live"]),
        node("Mul", ["d_b", "live"], ["d_a"]),
        node("Transpose", ["x"], ["x_t"], perm=[1, 0]),
        node("MatMul", ["x_t", "d_a"], ["d_w1"]),
    ]
    names = [*shapes, "d_w1", "d_w2"]
    names += [f"{kind}_{n}" for kind in STATES[optimizer] for n in shapes]
    results = [*shapes, *(f"{kind}_{n}" for kind in STATES[optimizer] for n in shapes)]
    outputs = [f"{name}_new" for name in results]
    if optimizer == "plain":
        nodes += plain_adam([*shapes], **options)
    else:
        step = ["rate", "count", *names]
        nodes.append(node(optimizer, step, outputs, domain=DOMAIN, **options))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "step",
        [
            value("x", TensorProto.FLOAT, [BATCH, WIDE]),
            value("y", TensorProto.FLOAT, [BATCH, CLASSES]),
            value("rate", TensorProto.FLOAT, []),
            value("count", TensorProto.INT64, []),
        ],
        [
            value("loss", TensorProto.FLOAT, []),
            *(value(f"{n}_new", TensorProto.FLOAT, stored[n].shape) for n in results),
            *([value("count_new", TensorProto.INT64, [])] if optimizer == "plain" else []),
        ],
        [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in stored.items()],
    )
    domains = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def inputs_of(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    classes = rng.integers(0, CLASSES, BATCH)
    return {
        "x": rng.standard_normal((BATCH, WIDE)).astype("float32"),
        "y": np.eye(CLASSES, dtype="float32")[classes],
        "rate": np.array(0.05, "float32"),
        "count": np.array(count),
    }


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS, ids=str)
def test_a_step_is_what_the_reference_says(optimizer, options, tmp_path):
    """The first step, and a later one."""
    model = step_of(optimizer, options)
    onnx.save(model, tmp_path / "step.onnx")
    loaded = td.load_model(str(tmp_path / "step.onnx"))
    main = loaded.mod["main"]
    names = list(main.attrs["dist.param_names"])
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for count in (0, 3):
        inputs = inputs_of(count)
        expected = ReferenceEvaluator(model).run(None, inputs)
        values = [{**stored, **inputs}[str(name)] for name in names]
        result = Reference(loaded.mod).run(values)
        assert len(result) == len(expected)
        for mine, theirs in zip(result, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["data_parallel", "tensor_parallel"])
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS[::2], ids=str)
def test_a_step_is_distributed_as_it_is(optimizer, options, strategy, tmp_path):
    onnx.save(step_of(optimizer, options), tmp_path / "step.onnx")
    mod = td.load_model(str(tmp_path / "step.onnx")).mod
    plan = td.planning.make_plan(mod, strategy, {"dp" if strategy[0] == "d" else "tp": 4})
    report = td.verify(mod, plan, engine="virtual")
    assert report.equal and report.collectives


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS[1:], ids=str)
def test_states_of_a_step_are_stored_in_parts(optimizer, options, tmp_path):
    """They are known by what they are computed from: the file does not say which they are."""
    onnx.save(step_of(optimizer, options), tmp_path / "step.onnx")
    mod = td.load_model(str(tmp_path / "step.onnx")).mod
    plan = td.planning.make_plan(mod, "zero:stage=1", {"dp": 2})
    dist = td.distribute(mod, plan)
    assert td.verify(mod, plan, dist=dist).equal
    io = dist["main"].attrs["dist.io"]["inputs"]
    states = {f"{kind}_{n}" for kind in STATES[optimizer] for n in ("w1", "w2")}
    assert {str(i["name"]) for i in io if str(i["placement"]) == "S[0]"} == {"x", "y", *states}


def test_states_of_a_plain_step_are_recognised(tmp_path):
    """An average of gradients, one of their squares, and what counts; by values alone."""
    onnx.save(step_of("plain", {"alpha": 0.9, "beta": 0.999}), tmp_path / "step.onnx")
    mod = td.load_model(str(tmp_path / "step.onnx")).mod
    message = mod["main"].attrs["dist.training"]
    assert {str(k): [*map(str, v)] for k, v in message["states"].items()} == {
        "w1": ["v_w1", "h_w1"],
        "w2": ["v_w2", "h_w2"],
    }
    assert [*map(str, message["counters"])] == ["count"]
