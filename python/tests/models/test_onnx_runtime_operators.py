# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Each operator of ONNX Runtime's training graphs alone, compared with NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_distir as td
from tests.models.runtime_graphs import MICROSOFT, RNG, graph_of, node_results, normal, run, whole
from tvm_distir.models.onnx.converters import CONVERTERS
from tvm_distir.models.onnx.training_nodes import EXPANSIONS
from tvm_distir.support import ModelError


def erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf)(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def fast_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def slope(function: Any, x: np.ndarray) -> np.ndarray:
    """Differentiate an elementwise function in float64."""
    x, h = x.astype("float64"), 1e-5
    return (function(x + h) - function(x - h)) / (2 * h)


def softmax(x: np.ndarray, axis: Any) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


X, G, B = normal(4, 6), normal(4, 6), normal(6)
ELEMENTWISE = {
    "ReluGrad": ([G, X], {}, G * (X > 0)),
    "GeluGrad": ([G, X], {}, G * slope(gelu, X)),
    "FastGeluGrad": ([G, X], {}, G * slope(fast_gelu, X)),
    "QuickGeluGrad": ([G, X], {"alpha": 1.3}, G * slope(lambda x: x * sigmoid(1.3 * x), X)),
    "LeakyReluGrad": ([G, X], {"alpha": 0.2}, G * np.where(X > 0, 1, 0.2)),
    "SigmoidGrad": ([G, sigmoid(X)], {}, G * slope(sigmoid, X)),
    "TanhGrad": ([G, np.tanh(X)], {}, G * slope(np.tanh, X)),
    "BiasGeluGrad_dX": ([G, X, B], {}, G * slope(gelu, X + B)),
    "BiasFastGeluGrad_dX": ([G, X, B], {}, G * slope(fast_gelu, X + B)),
    "Gelu": ([X], {}, gelu(X)),
    "BiasGelu": ([X, B], {}, gelu(X + B)),
    "FastGelu": ([X, B], {}, fast_gelu(X + B)),
    "QuickGelu": ([X], {"alpha": 1.3}, X * sigmoid(1.3 * X)),
    "Scale": ([X, np.array(4)], {"scale_down": 1}, X / 4),
    "ScaledSum": ([X, G, G], {"scale_0": 2.0, "scale_1": 3.0, "scale_2": 0.5}, 2 * X + 3.5 * G),
    "ZeroGradient": ([X, np.array(True)], {}, X * 0),
    "InPlaceAccumulator": ([X, G, np.array(True)], {}, X + G),
    "IsFinite": ([np.array([1, np.inf, np.nan], "float32")], {}, np.array([True, False, False])),
    "All": ([np.array([True, False])], {}, np.array(False)),
    "IsAllFinite": ([X, np.array([np.inf], "float32")], {"isnan_only": 1}, np.array(True)),
    "ReduceAllL2": ([X, G], {}, np.sqrt((X**2).sum() + (G**2).sum())),
    "Trilu": ([whole(4, 4)], {"upper": 0}, None),
}


@pytest.mark.quick
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_an_elementwise_operator(op):
    operands, attributes, expected = ELEMENTWISE[op]
    if op == "Trilu":
        expected = np.tril(operands[0])
    (result,) = node_results(op, [np.asarray(x) for x in operands], **attributes)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("op", "axis", "dims"),
    [("SoftmaxGrad", 1, (1, 2)), ("SoftmaxGrad_13", 1, (1,)), ("SoftmaxGrad", -1, (2,))],
)
@pytest.mark.parametrize("log", [False, True])
def test_gradients_of_softmax(op, axis, dims, log):
    x, gradient = normal(2, 3, 4), normal(2, 3, 4)
    y = softmax(x.astype("float64"), dims)
    expected = y * (gradient - (gradient * y).sum(dims, keepdims=True))
    if log:
        expected, y = gradient - y * gradient.sum(dims, keepdims=True), np.log(y)
        op = f"Log{op}"
    (result,) = node_results(op, [gradient, y.astype("float32")], axis=axis)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("batch", ["", "A", "B"])
@pytest.mark.parametrize("sides", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_products_of_transposed_operands(sides, batch):
    a, b = whole(3, 4, 2, 5), whole(3, 4, 5, 6)
    left = np.swapaxes(a, 2, 3) if sides[0] else a
    right = np.swapaxes(b, 2, 3) if sides[1] else b
    options = {"transA": sides[0], "transB": sides[1], "alpha": 0.5}
    if batch == "A":
        left, options["transBatchA"] = np.moveaxis(left, 2, 0), 1
    if batch == "B":
        right, options["transBatchB"] = np.moveaxis(right, 2, 0), 1
    (result,) = node_results("FusedMatMul", [left.copy(), right.copy()], **options)
    np.testing.assert_array_equal(result, a @ b / 2)


@pytest.mark.quick
def test_gradients_of_lookups():
    index = np.array([[0, -1], [2, 0]])
    gradient = whole(4, 2, 2, 3)
    expected = np.zeros((4, 5, 3), "float32")
    for i, j in np.ndindex(2, 2):
        expected[:, index[i, j]] += gradient[:, i, j]
    shape = np.array(expected.shape)
    (result,) = node_results("GatherGrad", [shape, index, gradient], fixed=(0,), axis=1)
    np.testing.assert_array_equal(result, expected)

    index, gradient = np.array([[0, 2, 2], [1, 1, 0]]), whole(2, 3)
    expected = np.zeros((2, 4), "float32")
    for i, j in np.ndindex(2, 3):
        expected[i, index[i, j]] += gradient[i, j]
    operands = [gradient, np.array([2, 4]), index]
    (result,) = node_results("GatherElementsGrad", operands, fixed=(1,), axis=1)
    np.testing.assert_array_equal(result, expected)

    index, gradient = np.array([[[0], [1]], [[2], [2]]]), whole(2, 2, 3)
    expected = np.zeros((2, 4, 3), "float32")
    for i, j in np.ndindex(2, 2):
        expected[i, index[i, j, 0]] += gradient[i, j]
    operands = [np.array([2, 4, 3]), index, gradient]
    (result,) = node_results("GatherNDGrad", operands, fixed=(0,), batch_dims=1)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.quick
def test_the_gradient_of_a_slice():
    gradient, expected = whole(4, 2), np.zeros((4, 7), "float32")
    expected[:, 1:-2:2] = gradient
    operands = [np.array(v) for v in ([4, 7], [1], [-2], [-1], [2])]
    (result,) = node_results("SliceGrad", [gradient, *operands], fixed=(1, 2, 3, 4, 5))
    np.testing.assert_array_equal(result, expected)
    operands[4] = np.array([-1])
    with pytest.raises(ModelError, match=r"DIST0312 .*a step is negative"):
        node_results("SliceGrad", [gradient, *operands], fixed=(1, 2, 3, 4, 5))


@pytest.mark.quick
def test_the_gradients_of_a_quotient_have_the_shapes_of_its_operands():
    a, b, gradient = normal(4, 1, 3), normal(2, 1) + 3, normal(4, 2, 3)
    by_a, by_b = node_results("DivGrad", [gradient, a, b], 2)
    np.testing.assert_allclose(by_a, (gradient / b).sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    expected = (-gradient * a / b**2).sum((0, 2))[:, None]
    np.testing.assert_allclose(by_b, expected, rtol=1e-4, atol=1e-5)


def normed(x: np.ndarray, axes: Any, epsilon: float, centred: bool = True) -> Any:
    centre = x.mean(axes, keepdims=True) if centred else 0.0
    inverse = 1 / np.sqrt(((x - centre) ** 2).mean(axes, keepdims=True) + epsilon)
    return (x - centre) * inverse, centre, inverse


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["", "Simplified", "Invertible"])
def test_layer_norms_and_their_gradients(kind):
    """The gradient reads the statistics that the norm saves."""
    x, gradient, scale, bias = normal(5, 3, 4), normal(5, 3, 4), normal(3, 4) + 2, normal(3, 4)
    node, centred = helper.make_node, kind != "Simplified"
    forward = "SimplifiedLayerNormalization" if not centred else "LayerNormalization"
    saved = ["mean", "inverse"] if centred else ["inverse"]
    inputs = ["x", "scale", "bias"] if centred else ["x", "scale"]
    read = ["g", "x", "scale", *saved]
    if kind == "Invertible":
        read = ["g", "y", "scale", "bias", "inverse"]
    grads = ["dx", "ds", "db"] if centred else ["dx", "ds"]
    nodes = [
        node(forward, inputs, ["y", *saved], axis=1, epsilon=1e-3),
        node(f"{kind}LayerNormalizationGrad", read, grads, domain=MICROSOFT, axis=1),
    ]
    values = {"x": x, "g": gradient, "scale": scale, "bias": bias}
    if not centred:
        del values["bias"]
    results = run(graph_of(nodes, values, ["y", "inverse", *grads]), values)
    unit, _, inverse = normed(x.astype("float64"), (1, 2), 1e-3, centred)
    inner = gradient * scale
    along = (inner * unit).mean((1, 2), keepdims=True)
    expected_dx = inner - unit * along
    if centred:
        expected_dx = expected_dx - inner.mean((1, 2), keepdims=True)
    expected = [unit * scale + (bias if centred else 0), inverse, inverse * expected_dx]
    expected += [(gradient * unit).sum(0), gradient.sum(0)][: len(grads) - 1]
    for mine, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-3, atol=1e-4)


@pytest.mark.quick
def test_batch_norms_with_saved_statistics_and_their_gradients():
    x, gradient, scale, bias = normal(5, 3, 4), normal(5, 3, 4), normal(3), normal(3)
    mean, var = normal(3), np.abs(normal(3))
    nodes = [
        helper.make_node(
            "BatchNormInternal", ["x", "s", "b", "m", "v"], ["y", "rm", "rv", "sm", "si"],
            domain=MICROSOFT, momentum=0.8, epsilon=1e-3,
        ),
        helper.make_node(
            "BatchNormalizationGrad", ["g", "x", "s", "sm", "si"], ["dx", "ds", "db"],
            domain=MICROSOFT, epsilon=1e-3,
        ),
    ]  # fmt: skip
    values = {"x": x, "g": gradient, "s": scale, "b": bias, "m": mean, "v": var}
    outputs = ["y", "rm", "rv", "sm", "si", "dx", "ds", "db"]
    results = run(graph_of(nodes, values, outputs), values)
    unit, centre, inverse = normed(x.astype("float64"), (0, 2), 1e-3)
    wide = scale[:, None]
    inner = gradient * wide
    dx = inner - inner.mean((0, 2), keepdims=True)
    dx = inverse * (dx - unit * (inner * unit).mean((0, 2), keepdims=True))
    spread = x.astype("float64").var((0, 2))
    expected = [
        unit * wide + bias[:, None], 0.8 * mean + 0.2 * centre.ravel(), 0.8 * var + 0.2 * spread,
        centre.ravel(), inverse.ravel(), dx, (gradient * unit).sum((0, 2)), gradient.sum((0, 2)),
    ]  # fmt: skip
    for mine, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-3, atol=1e-4)


@pytest.mark.quick
def test_running_statistics_of_a_batch_norm_of_onnx():
    values = {"x": normal(5, 3, 4), "s": normal(3), "b": normal(3), "m": normal(3)}
    values["v"] = np.abs(normal(3))
    node = helper.make_node("BatchNormalization", [*values], ["y", "rm", "rv"], training_mode=1)
    model = graph_of([node], values, ["y", "rm", "rv"])
    expected = ReferenceEvaluator(model).run(None, values)
    for mine, right in zip(run(model, values), expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_and_its_gradient(reduction, weighted):
    """ONNX's reference says what the loss is; the gradient is differences of it."""
    logits, labels = normal(3, 4, 2), np.array([[0, 3], [1, 2], [2, 0]])
    weights = {"w": np.array([1.0, 2.0, 0.5, 3.0], "float32")} if weighted else {}
    shape = (3, 2) if reduction == "none" else ()
    values = {"x": logits, "label": labels, **weights, "g": normal(*shape)}
    nodes = [
        helper.make_node(
            "SoftmaxCrossEntropyLoss", ["x", "label", *weights], ["loss", "logs"],
            reduction=reduction, ignore_index=2,
        ),
        helper.make_node(
            "SoftmaxCrossEntropyLossGrad", ["g", "logs", "label", *weights], ["dx"],
            domain=MICROSOFT, reduction=reduction, ignore_index=2,
        ),
    ]  # fmt: skip
    model = graph_of(nodes, values, ["loss", "logs", "dx"])
    loss, logs, gradient = run(model, values)
    single = graph_of(nodes[:1], {k: v for k, v in values.items() if k != "g"}, ["loss", "logs"])
    reference = ReferenceEvaluator(single)
    given = {k: v for k, v in values.items() if k != "g"}
    expected = reference.run(None, given)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(logs, expected[1], rtol=1e-5)
    logs64 = softmax(logits.astype("float64"), 1)
    table = np.array([1.0, 2.0, 0.5, 3.0]) if weighted else np.ones(4)
    each = table[labels] * (labels != 2)
    factor = values["g"] * each / (each.sum() if reduction == "mean" else 1)
    right = (logs64 - np.eye(4)[labels].transpose(0, 2, 1)) * factor[:, None]
    np.testing.assert_allclose(gradient, right, rtol=1e-4, atol=1e-6)


@pytest.mark.quick
def test_internal_cross_entropy_reads_the_ignored_label_and_a_type():
    logits, labels, bias = normal(3, 4), np.array([0, 7, 2]), normal(3, 4)
    loss, logs = node_results(
        "SoftmaxCrossEntropyLossInternal", [logits, labels, None, np.array(7)], 2, fixed=(3,),
        output_type=TensorProto.DOUBLE,
    )  # fmt: skip
    expected = np.log(softmax(logits.astype("float64"), 1))
    np.testing.assert_allclose(loss, -(expected[0, 0] + expected[2, 2]) / 2, rtol=1e-5)
    assert loss.dtype == logs.dtype == "float64"
    (gradient,) = node_results(
        "SoftmaxCrossEntropyLossInternalGrad",
        [np.array(3, "float32"), logs.astype("float32"), labels, None, np.array(7), bias],
        fixed=(4,),
    )
    right = (np.exp(expected) - np.eye(8)[labels][:, :4]) * np.array([1, 0, 1])[:, None] * 1.5
    np.testing.assert_allclose(gradient, right + bias, rtol=1e-4, atol=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_distributions(reduction):
    logits, labels = normal(2, 3, 4), np.eye(4, dtype="float32")[RNG.integers(0, 4, (2, 3))]
    gradient = normal(2, 3) if reduction == "none" else normal()
    loss, logs = node_results("SoftmaxCrossEntropy", [logits, labels], 2, reduction=reduction)
    right = np.log(softmax(logits.astype("float64"), 2))
    each = -(right * labels).sum(-1)
    expected = {"mean": each.mean(), "sum": each.sum(), "none": each}[reduction]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    (by,) = node_results("SoftmaxCrossEntropyGrad", [gradient, logs, labels], reduction=reduction)
    factor = gradient[..., None] if reduction == "none" else gradient
    factor = factor / (6 if reduction == "mean" else 1)
    np.testing.assert_allclose(by, (np.exp(right) - labels) * factor, rtol=1e-4, atol=1e-6)


@pytest.mark.quick
def test_dropouts_with_masks_of_booleans_and_of_bits():
    x, gradient, ratio = normal(5, 9), normal(5, 9), np.array(0.25, "float32")
    mask = RNG.random((5, 9)) < 0.5
    expected = np.where(mask, gradient / 0.75, 0)
    (result,) = node_results("DropoutGrad", [gradient, mask, ratio])
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    bits = np.packbits(mask.ravel(), bitorder="little")
    words = np.r_[bits, np.zeros(-len(bits) % 4, "uint8")].view("uint32")
    (result,) = node_results("BitmaskDropoutGrad", [gradient, words, ratio])
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    operands = [x, normal(9), x, np.array(0.0, "float32"), np.array(True)]
    y, words = node_results("BitmaskBiasDropout", operands, 2, fixed=(3, 4))
    np.testing.assert_allclose(y, x + operands[1] + x, rtol=1e-6)
    np.testing.assert_array_equal(words, np.array([2**32 - 1, 2**13 - 1], "uint32"))
    operands[3] = ratio
    with pytest.raises(ModelError, match=r"DIST0312 .*it draws random numbers"):
        node_results("BiasDropout", operands, 2, fixed=(3, 4))


@pytest.mark.quick
def test_sums_splits_and_concatenations_of_training():
    x = whole(4, 6, 3)
    for axes, options, expected in [
        ([1, -1], {"keepdims": 0}, x.sum((1, 2))),
        ([], {}, x.sum(keepdims=True)),
        ([], {"noop_with_empty_axes": 1}, x),
    ]:
        (result,) = node_results(
            "ReduceSumTraining", [x, np.array(axes, "int64")], fixed=(1,), **options
        )
        np.testing.assert_array_equal(result, expected)
    parts = node_results("SplitTraining", [x, np.array([2, 4])], 2, fixed=(1,), axis=1)
    for mine, right in zip(parts, np.split(x, [2], 1), strict=True):
        np.testing.assert_array_equal(mine, right)
    joined, sizes = node_results("ConcatTraining", [x, x[:, :2].copy()], 2, axis=1)
    np.testing.assert_array_equal(joined, np.concatenate([x, x[:, :2]], 1))
    np.testing.assert_array_equal(sizes, [6, 2])


@pytest.mark.quick
def test_axes_of_broadcasting_are_known_from_shapes():
    node = helper.make_node
    a, b = whole(4, 1, 3), whole(2, 1)
    nodes = [
        node("Shape", ["a"], ["sa"]),
        node("Shape", ["b"], ["sb"]),
        node("BroadcastGradientArgs", ["sa", "sb"], ["ra", "rb"], domain=MICROSOFT),
        node("Mul", ["a", "b"], ["y"]),
        node("ReduceSumTraining", ["y", "rb"], ["wide"], domain=MICROSOFT, keepdims=1),
        node("Reshape", ["wide", "sb"], ["z"]),
        node("Identity", ["ra"], ["axes"]),
    ]
    values = {"a": a, "b": b}
    z, axes = run(graph_of(nodes, values, ["z", "axes"]), values)
    np.testing.assert_array_equal(z, (a * b).sum((0, 2)).reshape(2, 1))
    np.testing.assert_array_equal(axes, [1])


@pytest.mark.quick
def test_scaled_copies_in_half_precision():
    x, y = whole(2, 3), whole(4)
    operands = [np.array(2.0, "float32"), x, y]
    both = node_results("MixedPrecisionScale", operands, 2, to=TensorProto.FLOAT16)
    np.testing.assert_array_equal(both[0], (2 * x).astype("float16"))
    (fused,) = node_results("MixedPrecisionScale", operands, to=TensorProto.FLOAT16, fuse_outputs=1)
    np.testing.assert_array_equal(fused, np.r_[2 * x.ravel(), 2 * y].astype("float16"))


@pytest.mark.quick
@pytest.mark.parametrize("overwrite", [None, False, True])
def test_a_sum_in_place_is_a_further_result(overwrite):
    """The flag is a result of the graph alone; the sum follows it."""
    x, y = whole(3), whole(3)
    values = {"sum": x, "value": y}
    if overwrite is not None:
        values["overwrite"] = np.array([overwrite])
    node = helper.make_node("InPlaceAccumulatorV2", [*values], ["done"], domain=MICROSOFT)
    done, total = run(graph_of([node], values, ["done"]), values)
    np.testing.assert_array_equal(total, y if overwrite else x + y)
    np.testing.assert_array_equal(done, [True])


@pytest.mark.quick
def test_a_dropout_draws_where_it_is_not_known_to_be_off():
    ratio, on = np.array(0.5, "float32"), np.array(True)
    (y,) = node_results("Dropout", [X, ratio])
    np.testing.assert_array_equal(y, X)
    for fixed in ((), (2,), (1, 2)):
        with pytest.raises(ModelError, match=r"DIST0312 .*it draws random numbers"):
            node_results("Dropout", [X, ratio, on], fixed=fixed)


@pytest.mark.quick
def test_indices_of_a_pool_that_others_read_are_refused():
    x = {"x": normal(1, 1, 4, 4)}
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2])
    with pytest.raises(ModelError, match=r"DIST0312 .*no indices, which the caller reads"):
        td.from_onnx(graph_of([node], x, ["y", "i"]))
    node = helper.make_node("AveragePoolGrad", ["x"], ["y"], kernel_shape=[2, 2])
    with pytest.raises(ModelError, match=r"DIST0312 .*does not state the shape"):
        td.from_onnx(graph_of([node], x, ["y"]))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("operands", "code"),
    [
        ([G, normal(4, 5)], r"DIST0310 y0 \(GeluGrad\): the operands or attributes do not fit"),
        ([G], r"DIST0312 y0 \(GeluGrad\): operand 1 is missing"),
    ],
)
def test_nodes_that_do_not_fit_are_refused_in_a_line(operands, code, capfd):
    with pytest.raises(ModelError, match=code) as caught:
        node_results("GeluGrad", operands)
    assert "\n" not in str(caught.value)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.quick
def test_a_result_that_an_operator_does_not_have_is_refused():
    with pytest.raises(ModelError, match=r"DIST0312 y0 \(Gelu\): it has 1 results here, not 2"):
        node_results("Gelu", [X], 2)


@pytest.mark.quick
@pytest.mark.parametrize("op", ["LSTMGrad", "NcclAllReduce", "YieldOp", "PythonOpGrad"])
def test_other_operators_are_refused_by_name(op):
    with pytest.raises(ModelError, match=rf'DIST0311 .*"{op}" of domain com.microsoft'):
        node_results(op, [X])


@pytest.mark.quick
def test_the_page_lists_every_operator():
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text("utf-8")
    names = {n for n in CONVERTERS if " of one weight" not in n} | {n for _, n in EXPANSIONS}
    assert {n for n in names if f"`{n}`" not in page} <= {"MaxPool", "SequenceAt"}
