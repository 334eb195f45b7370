# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Graphs of training steps as ONNX Runtime writes them, compared with torch's gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_distir as td
from tests.models.runtime_graphs import MICROSOFT, graph_of, run, whole

torch = pytest.importorskip("torch", reason="needs the extra torch")
F = torch.nn.functional
RNG = np.random.default_rng(11)
RATE, DECAY = 0.05, 0.1


class Step:
    """Writer of the nodes of a step; operators of ONNX Runtime end in ``@``."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.stated: dict[str, tuple[int, ...]] = {}

    def __call__(self, op: str, inputs: str, outputs: str, **attributes: Any) -> None:
        name, domain = op.removesuffix("@"), MICROSOFT if op.endswith("@") else ""
        self.nodes.append(
            helper.make_node(name, inputs.split(), outputs.split(), domain=domain, **attributes)
        )

    def constant(self, name: str, value: Any, dtype: str = "int64") -> str:
        self.constants[name] = np.asarray(value, dtype)
        return name

    def loss(self, logits: str, label: str) -> None:
        """Write the mean of the cross entropy, and the gradient of the logits, ``d_LOGITS``."""
        self("SoftmaxCrossEntropyLoss", f"{logits} {label}", "loss logs")
        self.constant("one", 1.0, "float32")
        self("SoftmaxCrossEntropyLossGrad@", f"one logs {label}", f"d_{logits}", reduction="mean")

    def summed(self, x: str, output: str, axes: list[int], shape: tuple[int, ...]) -> None:
        """Write a gradient summed to a shape."""
        axes_name = self.constant(f"{output}_axes", axes)
        shape_name = self.constant(f"{output}_shape", shape)
        self("ReduceSumTraining@", f"{x} {axes_name}", f"{output}_wide", keepdims=1)
        self("Reshape", f"{output}_wide {shape_name}", output)

    def sgd(self) -> list[str]:
        for name in self.weights:
            self("SGDOptimizer@", f"rate {name} d_{name}", f"{name}_new {name}_move")
        return [f"{name}_new" for name in self.weights]

    def adamw(self) -> list[str]:
        names = list(self.weights)
        for kind in ("", "d_", "m_", "v_"):
            self("SequenceConstruct", " ".join(kind + n for n in names), f"all_{kind}")
        inputs = "rate step all_ all_d_ all_m_ all_v_"
        results = ["all_new", "all_m_new", "all_v_new"]
        self("AdamWOptimizer@", inputs, " ".join(["done", *results]), weight_decay=DECAY)
        found = []
        for sequence, kind in zip(results, ("", "m_", "v_"), strict=True):
            for position, name in enumerate(names):
                place = self.constant(f"at_{position}", position)
                self("SequenceAt", f"{sequence} {place}", f"{kind}{name}_new")
                found.append(f"{kind}{name}_new")
        return found

    def model(self, inputs: dict[str, np.ndarray], optimizer: str) -> onnx.ModelProto:
        """Return the model with an optimizer; its weights and their states are stored."""
        inputs = {**inputs, "rate": np.array(RATE, "float32")}
        stored = dict(self.weights)
        if optimizer == "adamw":
            inputs["step"] = np.array(1)
            zeros = {n: np.zeros_like(w) for n, w in self.weights.items()}
            stored |= {f"{k}_{n}": w for k in "mv" for n, w in zeros.items()}
        results = self.adamw() if optimizer == "adamw" else self.sgd()
        gradients = [f"d_{name}" for name in self.weights]
        model = graph_of(
            self.nodes,
            inputs,
            ["loss", *gradients, *results],
            {**stored, **self.constants},
            stated=self.stated,
        )
        shapes = {"loss": (), **{f"d_{n}": w.shape for n, w in self.weights.items()}}
        for output in model.graph.output:
            name = output.name.removesuffix("_new")
            shape = shapes.get(name, stored[name].shape if name in stored else ())
            output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, shape))
        return model


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.3).astype("float32")


def perceptron() -> tuple[Step, dict[str, np.ndarray], Any]:
    """Two layers with a GELU, biases, and a residual ReLU."""
    w = {"w1": weight(12, 16), "b1": weight(16), "w2": weight(16, 8), "b2": weight(8)}
    step = Step(w)
    step("MatMul", "x w1", "a")
    step("BiasGelu@", "a b1", "h")
    step("MatMul", "h w2", "c")
    step("Add", "c b2", "z")
    step("Relu", "z", "logits")
    step.loss("logits", "label")
    step("ReluGrad@", "d_logits logits", "d_z")
    step.summed("d_z", "d_b2", [0], (8,))
    step("FusedMatMul@", "h d_z", "d_w2", transA=1)
    step("FusedMatMul@", "d_z w2", "d_h", transB=1)
    step("BiasGeluGrad_dX@", "d_h a b1", "d_a")
    step.summed("d_a", "d_b1", [0], (16,))
    step("Gemm", "x d_a", "d_w1", transA=1, beta=0.0)
    inputs = {"x": weight(8, 12) * 3, "label": RNG.integers(0, 8, 8)}

    def forward(x: Any, label: Any, w: dict[str, Any]) -> Any:
        hidden = F.gelu(x @ w["w1"] + w["b1"])
        return F.cross_entropy(F.relu(hidden @ w["w2"] + w["b2"]), label)

    return step, inputs, forward


def convolutional() -> tuple[Step, dict[str, np.ndarray], Any]:
    """A strided convolution, batch norm, both kinds of pools, a grouped convolution."""
    w = {
        "k1": weight(4, 3, 3, 3), "scale": weight(4) + 1, "shift": weight(4),
        "k2": weight(8, 2, 3, 3), "c2": weight(8), "w": weight(8, 6),
    }  # fmt: skip
    step = Step(w)
    one = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    two = {"kernel_shape": [3, 3], "group": 2, "auto_pad": "SAME_UPPER"}
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    average = {"kernel_shape": [2, 2], "strides": [2, 2], "count_include_pad": 0}
    step("Conv", "x k1", "a", **one)
    step("BatchNormInternal@", "a scale shift m v", "b rm rv sm si", epsilon=1e-5)
    step("Relu", "b", "r")
    step("MaxPool", "r", "p places", **pool)
    step("Conv", "p k2 c2", "c", **two)
    step("AveragePool", "c", "q", **average)
    step("ReduceMean", "q", "flat", axes=[2, 3], keepdims=0)
    step("MatMul", "flat w", "logits")
    step.loss("logits", "label")
    step("FusedMatMul@", "flat d_logits", "d_w", transA=1)
    step("FusedMatMul@", "d_logits w", "d_flat", transB=1)
    step.constant("count", 4, "int64")
    step.constant("spatial", [2, 3])
    step("Unsqueeze", "d_flat spatial", "d_column")
    step("Scale@", "d_column count", "d_scaled", scale_down=1)
    step("Shape", "q", "q_shape")
    step("Expand", "d_scaled q_shape", "d_q")
    step("AveragePoolGrad", "d_q", "d_c", **average)
    step.stated["d_c"] = (4, 8, 4, 4)
    step("ConvGrad@", "d_c p k2", "d_p d_k2 d_c2", **two)
    step("MaxPoolGrad", "d_p places", "d_r")
    step("ReluGrad@", "d_r r", "d_b")
    step("BatchNormalizationGrad@", "d_b a scale sm si", "d_a d_scale d_shift", epsilon=1e-5)
    first = helper.make_node("ConvGrad", ["d_a", "x", "k1"], ["", "d_k1"], domain=MICROSOFT, **one)
    step.nodes.append(first)
    inputs = {"x": weight(4, 3, 16, 16) * 3, "label": RNG.integers(0, 6, 4)}
    inputs |= {"m": weight(4), "v": np.abs(weight(4))}

    def forward(x: Any, label: Any, w: dict[str, Any], m: Any, v: Any) -> Any:
        a = F.conv2d(x, w["k1"], stride=2, padding=1)
        b = F.relu(F.batch_norm(a, m.clone(), v.clone(), w["scale"], w["shift"], training=True))
        c = F.conv2d(F.max_pool2d(b, 2), w["k2"], w["c2"], padding=1, groups=2)
        return F.cross_entropy(F.avg_pool2d(c, 2).mean((2, 3)) @ w["w"], label)

    return step, inputs, forward


def transformer() -> tuple[Step, dict[str, np.ndarray], Any]:
    """Embedding, attention of two heads, layer norms, a residual FastGelu MLP, a tied head."""
    n, t, d, v = 4, 5, 8, 7
    w = {
        "table": weight(v, d), "s1": weight(d) + 1, "h1": weight(d), "qkv": weight(d, 3 * d),
        "out": weight(d, d), "s2": weight(d) + 1, "h2": weight(d), "up": weight(d, 2 * d),
        "u": weight(2 * d), "down": weight(2 * d, d),
    }  # fmt: skip
    step, norm = Step(w), {"axis": -1, "epsilon": 1e-5}
    split, heads = step.constant("split", [d, d, d]), step.constant("heads", [n, t, 2, d // 2])
    rows, flat = step.constant("rows", [n, t, d]), step.constant("flat", [n * t, v])
    step.constant("root", (d // 2) ** -0.5, "float32")
    step.constant("all", [n * t])
    step("Gather", "table tokens", "x")
    step("LayerNormalization", "x s1 h1", "y1 mean1 inv1", **norm)
    step("MatMul", "y1 qkv", "joint")
    step("Split", f"joint {split}", "q0 k0 v0", axis=2)
    for name in "qkv":
        step("Reshape", f"{name}0 {heads}", f"{name}1")
        step("Transpose", f"{name}1", name, perm=[0, 2, 1, 3])
    step("FusedMatMul@", "q k", "scores", transB=1, alpha=(d // 2) ** -0.5)
    step("Softmax", "scores", "p", axis=-1)
    step("MatMul", "p v", "o")
    step("Transpose", "o", "o1", perm=[0, 2, 1, 3])
    step("Reshape", f"o1 {rows}", "o2")
    step("MatMul", "o2 out", "attended")
    step("Add", "x attended", "x2")
    step("LayerNormalization", "x2 s2 h2", "y2 mean2 inv2", **norm)
    step("MatMul", "y2 up", "g")
    step("FastGelu@", "g u", "e")
    step("MatMul", "e down", "f")
    step("Add", "x2 f", "x3")
    step("FusedMatMul@", "x3 table", "scores3", transB=1)
    step("Reshape", f"scores3 {flat}", "logits")
    step("Reshape", "label all", "labels")
    step.loss("logits", "labels")
    step("Shape", "scores3", "scores3_shape")
    step("Reshape", "d_logits scores3_shape", "d_scores3")
    step("MatMul", "d_scores3 table", "d_x3")
    weight_gradient(step, "d_scores3", "x3", "d_head", (n * t, v), (n * t, d))
    step("FusedMatMul@", "d_x3 down", "d_e", transB=1)
    weight_gradient(step, "e", "d_x3", "d_down", (n * t, 2 * d), (n * t, d))
    step("BiasFastGeluGrad_dX@", "d_e g u", "d_g")
    step.summed("d_g", "d_u", [0, 1], (2 * d,))
    step("FusedMatMul@", "d_g up", "d_y2", transB=1)
    weight_gradient(step, "y2", "d_g", "d_up", (n * t, d), (n * t, 2 * d))
    step("LayerNormalizationGrad@", "d_y2 x2 s2 mean2 inv2", "d_n2 d_s2 d_h2", axis=-1)
    step("Sum", "d_x3 d_n2", "d_x2")
    step("FusedMatMul@", "d_x2 out", "d_o2", transB=1)
    weight_gradient(step, "o2", "d_x2", "d_out", (n * t, d), (n * t, d))
    step("Reshape", f"d_o2 {heads}", "d_o1")
    step("Transpose", "d_o1", "d_o", perm=[0, 2, 1, 3])
    step("FusedMatMul@", "d_o v", "d_p", transB=1)
    step("FusedMatMul@", "p d_o", "d_v", transA=1)
    step("SoftmaxGrad_13@", "d_p p", "d_scores", axis=-1)
    step("Mul", "d_scores root", "d_raw")
    step("MatMul", "d_raw k", "d_q")
    step("FusedMatMul@", "d_raw q", "d_k", transA=1)
    for name in "qkv":
        step("Transpose", f"d_{name}", f"d_{name}1", perm=[0, 2, 1, 3])
        step("Reshape", f"d_{name}1 {rows}", f"d_{name}0")
    step("ConcatTraining@", "d_q0 d_k0 d_v0", "d_joint lengths", axis=2)
    step("FusedMatMul@", "d_joint qkv", "d_y1", transB=1)
    weight_gradient(step, "y1", "d_joint", "d_qkv", (n * t, d), (n * t, 3 * d))
    step("LayerNormalizationGrad@", "d_y1 x s1 mean1 inv1", "d_n1 d_s1 d_h1", axis=-1)
    step("Sum", "d_x2 d_n1", "d_x")
    step("Shape", "table", "table_shape")
    step("GatherGrad@", "table_shape tokens d_x", "d_rows", axis=0)
    step("Add", "d_rows d_head", "d_table")
    inputs = {"tokens": RNG.integers(0, v, (n, t)), "label": RNG.integers(0, v, (n, t))}

    def forward(tokens: Any, label: Any, w: dict[str, Any]) -> Any:
        x = w["table"][tokens]
        joint = F.layer_norm(x, (d,), w["s1"], w["h1"]) @ w["qkv"]
        q, k, value = (a.reshape(n, t, 2, d // 2).transpose(1, 2) for a in joint.split(d, 2))
        o = F.scaled_dot_product_attention(q, k, value).transpose(1, 2).reshape(n, t, d)
        x = x + o @ w["out"]
        hidden = F.layer_norm(x, (d,), w["s2"], w["h2"]) @ w["up"] + w["u"]
        x = x + F.gelu(hidden, approximate="tanh") @ w["down"]
        return F.cross_entropy((x @ w["table"].T).reshape(-1, v), label.reshape(-1))

    return step, inputs, forward


def weight_gradient(step: Step, a: str, b: str, name: str, *shapes: tuple[int, int]) -> None:
    """Write the product of two flattened values that is the gradient of a weight."""
    flat = []
    for side, shape in zip((a, b), shapes, strict=True):
        flat.append(f"{name}_{side}")
        step("Reshape", f"{side} {step.constant(f'{flat[-1]}_shape', shape)}", flat[-1])
    step("Gemm", " ".join(flat), name, transA=1, beta=0.0)


MODELS = {"mlp": perceptron, "cnn": convolutional, "transformer": transformer}


def torch_results(step: Step, inputs: dict[str, np.ndarray], forward: Any, optimizer: str) -> Any:
    """Return torch's loss, gradients and updated weights."""
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in step.weights.items()}
    tensors = {n: torch.tensor(x) for n, x in inputs.items()}
    loss = forward(w=weights, **tensors)
    loss.backward()
    gradients = [w.grad.numpy().copy() for w in weights.values()]
    kinds = {
        "sgd": lambda w: torch.optim.SGD(w, RATE),
        "adamw": lambda w: torch.optim.AdamW(w, RATE, weight_decay=DECAY),
    }
    kinds[optimizer](list(weights.values())).step()
    return [loss.item(), *gradients, *(w.detach().numpy() for w in weights.values())]


@pytest.mark.quick
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_has_torchs_gradients_and_weights(name, optimizer):
    step, inputs, forward = MODELS[name]()
    model = step.model(inputs, optimizer)
    values = {**inputs, "rate": np.array(RATE, "float32")}
    if optimizer == "adamw":
        values["step"] = np.array(1)
    results = run(model, values)
    for mine, right in zip(
        results, torch_results(step, inputs, forward, optimizer), strict=optimizer == "sgd"
    ):
        np.testing.assert_allclose(mine, right, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("strategy", ["data_parallel:axis=dp", "tensor_parallel:axis=tp"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_distributed_and_verified(name, strategy, optimizer, tmp_path):
    step, inputs, _ = MODELS[name]()
    path = str(tmp_path / "step.onnx")
    onnx.save(step.model(inputs, optimizer), path)
    mod = td.load_model(path).mod
    noted = mod["main"].attrs["dist.training"]
    assert {str(n) for n in noted["updated"]} >= set(step.weights)
    assert {str(n) for n in noted["gradients"]} == set(step.weights)
    kind, _, axis = strategy.partition(":axis=")
    plan = td.planning.make_plan(mod, kind, {axis: 2})
    report = td.verify(mod, plan, engine="virtual")
    assert report.equal and report.collectives


@pytest.mark.quick
def test_states_of_adamw_are_recognised():
    step, inputs, _ = perceptron()
    noted = td.from_onnx(step.model(inputs, "adamw"))["main"].attrs["dist.training"]
    states = {str(k): [*map(str, v)] for k, v in noted["states"].items()}
    assert states == {n: [f"m_{n}", f"v_{n}"] for n in step.weights}


@pytest.mark.quick
def test_a_step_is_analyzed(tmp_path):
    step, inputs, _ = transformer()
    path = str(tmp_path / "step.onnx")
    onnx.save(step.model(inputs, "adamw"), path)
    analysis = td.analyze(path, mesh={"dp": 2}, strategy="data_parallel", system="h100")
    assert analysis.simulation.time_s > 0


@pytest.mark.quick
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_transposed_convolutions(groups):
    x, w = whole(2, 4, 5), whole(4, 3, 3)
    options = {"strides": [2], "pads": [1, 1], "output_padding": [1], "group": groups}
    tensors = [torch.tensor(v, requires_grad=True) for v in (x, w)]
    y = F.conv_transpose1d(*tensors, stride=2, padding=1, output_padding=1, groups=groups)
    gradient = whole(*y.shape)
    y.backward(torch.tensor(gradient))
    node = helper.make_node("ConvTransposeGrad", ["g", "x", "w"], ["dx", "dw", "db"],
                            domain=MICROSOFT, **options)  # fmt: skip
    values = {"g": gradient, "x": x, "w": w}
    results = run(graph_of([node], values, ["dx", "dw", "db"]), values)
    expected = [t.grad.numpy() for t in tensors] + [gradient.sum((0, 2))]
    for mine, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(mine, right)


@pytest.mark.quick
def test_signals_pass_and_a_mask_without_dropout_is_true():
    node, x = helper.make_node, whole(3, 4)
    off = numpy_helper.from_array(np.array(False))
    nodes = [
        node("Constant", [], ["off"], value=off),
        node("Dropout", ["x", "", "off"], ["y", "mask"]),
        node("DropoutGrad", ["y", "mask", "", "off"], ["dx"], domain=MICROSOFT),
        node("Group", ["y", "dx"], ["done"], domain=MICROSOFT),
        node("PassThrough", ["dx", "mask"], ["z", "same"], domain=MICROSOFT),
        node("TransposeMatMul", ["z", "x"], ["product"], domain=MICROSOFT, transA=1),
    ]
    done, same, product = run(graph_of(nodes, {"x": x}, ["done", "same", "product"]), {"x": x})
    assert done and same.all()
    np.testing.assert_array_equal(product, x.T @ x)
