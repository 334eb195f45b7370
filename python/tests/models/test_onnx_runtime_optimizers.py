# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers and sequences of ONNX Runtime's training graphs, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tvm_distir as td
from tests.models.runtime_graphs import MICROSOFT, graph_of, node_results, normal, run
from tvm_distir.support import ModelError

X, G = normal(4, 6), normal(4, 6)


def adam(w, g, m, v, t, a, b, eps, decay, after, rate):
    m, v = a * m + (1 - a) * g, b * v + (1 - b) * g * g
    left = (1 - a**t, 1 - b**t)
    if after:
        w = w - rate * np.sqrt(left[1]) / left[0] * m / (np.sqrt(v) + eps)
        return w - rate * decay * w, m, v
    return w - rate * (m / left[0] / (np.sqrt(v / left[1]) + eps) + decay * w), m, v


def state(*shape: int) -> list[np.ndarray]:
    return [normal(*shape), normal(*shape), normal(*shape), np.abs(normal(*shape))]


@pytest.mark.quick
@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("after", [0, 1])
def test_adam_of_one_weight(after, update):
    """The loss is scaled by 8, and the norm of its gradients, 20, is clipped at 2."""
    w, g, m, v = state(4, 3)
    operands = [
        np.array(0.1, "float32"), np.array(3), w, g, m, v, w.astype("float16"),
        np.array(8.0, "float32"), np.array(20.0, "float32"), np.array(update),
    ]  # fmt: skip
    options = {"alpha": 0.8, "beta": 0.9, "lambda": 0.1, "epsilon": 1e-3, "max_norm_clip": 2.0}
    results = node_results("AdamOptimizer", operands, 6, weight_decay_mode=after, **options)
    new, m2, v2 = adam(w, g / 10, m, v, 3, 0.8, 0.9, 1e-3, 0.1, after, 0.1)
    expected = [4, m2, v2, new] if update else [3, m, v, w]
    for mine, right in zip(results[:4], expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[5], results[3].astype("float16"))


@pytest.mark.quick
def test_lamb_of_two_weights():
    groups = [state(4, 3), [np.zeros(5, "float32"), *state(5)[1:]]]
    operands: list[Any] = [None, None, None, np.array(0.1, "float32"), np.array(2)]
    for group in groups:
        operands += [*group, None]
    node = helper.make_node(
        "LambOptimizer", ["" if x is None else f"x{i}" for i, x in enumerate(operands)],
        ["t", *(f"{n}{i}" if n else "" for i in (0, 1) for n in ("w", "g", "m", "v", ""))],
        domain=MICROSOFT, alpha=[0.8, 0.9], beta=[0.9, 0.95], epsilon=[1e-3, 1e-3],
        ratio_max=1.5, **{"lambda": [0.1, 0.1]},
    )  # fmt: skip
    values = {f"x{i}": x for i, x in enumerate(operands) if x is not None}
    outputs = ["t", "w0", "m0", "v0", "w1", "m1", "v1"]
    t, *results = run(graph_of([node], values, outputs), values)
    assert t == 3
    for i, (w, g, m, v) in enumerate(groups):
        a, b = [(0.8, 0.9), (0.9, 0.95)][i]
        _, m2, v2 = adam(w, g, m, v, 2, a, b, 1e-3, 0.1, 0, 0.1)
        move = m2 / (1 - a**2) / (np.sqrt(v2 / (1 - b**2)) + 1e-3) + 0.1 * w
        norms = np.linalg.norm(w), np.linalg.norm(move)
        ratio = min(norms[0] / norms[1], 1.5) if norms[0] else 1.0
        expected = [w - 0.1 * ratio * move, m2, v2]
        for mine, right in zip(results[3 * i : 3 * i + 3], expected, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("mode", [0, 1])
def test_adamw_of_sequences(mode, in_place):
    """Gradients are clipped as a whole before; weights may be stored, and written in place."""
    sizes, node = [(4, 3), (3,)], helper.make_node
    groups = [state(*size) for size in sizes]
    stored = {f"w{i}": group[0] for i, group in enumerate(groups)}
    values = {f"{n}{i}": x for i, group in enumerate(groups) for n, x in zip("gmv", group[1:])}
    values |= {"lr": np.array(0.1, "float32"), "step": np.array(2)}
    nodes = [node("SequenceConstruct", [f"{n}0", f"{n}1"], [f"{n}s"]) for n in "wgmv"]
    nodes.append(node("InplaceClipGradNorm", ["gs"], ["cs"], domain=MICROSOFT, max_norm=1.0))
    outputs = ["done"] if in_place else ["done", "nw", "nm", "nv"]
    nodes.append(
        node(
            "AdamWOptimizer", ["lr", "step", "ws", "cs", "ms", "vs"], outputs, domain=MICROSOFT,
            adam_mode=mode, weight_decay=0.2, epsilon=1e-3,
        )
    )  # fmt: skip
    results = ["done"]
    if not in_place:
        positions = {f"p{i}": np.array(i) for i in (0, 1)}
        for n in "wmv":
            nodes += [node("SequenceAt", [f"n{n}", f"p{i}"], [f"{n}{i}_new"]) for i in (0, 1)]
            results += [f"{n}{i}_new" for i in (0, 1)]
        stored |= positions
    done, *news = run(graph_of(nodes, values, results, stored), values)
    norm = np.sqrt(sum((group[1] ** 2).sum() for group in groups)) + 1e-6
    right = [adam(w, g / norm, m, v, 2, 0.9, 0.999, 1e-3, 0.2, mode, 0.1) for w, g, m, v in groups]
    order = [right[i][k] for k in range(3) for i in (0, 1)]
    assert done.all()
    for mine, expected in zip(news, order, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.quick
def test_sgd_of_one_weight_and_of_a_sequence():
    w, g, rate = normal(4, 3), normal(4, 3), np.array(0.5, "float32")
    new, move = node_results("SGDOptimizer", [rate, w, g], 2)
    np.testing.assert_allclose(new, w - g / 2, rtol=1e-6)
    np.testing.assert_allclose(move, -g / 2, rtol=1e-6)
    node = helper.make_node
    nodes = [
        node("SequenceConstruct", ["w"], ["ws"]),
        node("SequenceConstruct", ["g"], ["gs"]),
        node("SGDOptimizerV2", ["lr", "ws", "gs", "on"], ["done"], domain=MICROSOFT),
    ]
    for on in (True, False):
        values = {"w": w, "g": g, "lr": rate, "on": np.array(on)}
        done, new = run(graph_of(nodes, values, ["done"]), values)
        np.testing.assert_allclose(new, w - g / 2 if on else w, rtol=1e-6)
        assert done == on


@pytest.mark.quick
def test_a_sequence_from_outside_is_refused():
    node = helper.make_node("SGDOptimizerV2", ["lr", "w", "g"], ["done"], domain=MICROSOFT)
    values = {"lr": np.array(0.5, "float32"), "w": normal(2), "g": normal(2)}
    with pytest.raises(ModelError, match=r"DIST0312 .*is not constructed in the graph"):
        td.from_onnx(graph_of([node], values, ["done"]))


@pytest.mark.quick
def test_sequences_and_positions_that_do_not_fit_are_refused():
    node, x = helper.make_node, {"a": X, "b": G, "lr": np.array(0.5, "float32")}
    both = node("SequenceConstruct", ["a", "b"], ["ws"])
    nodes = [
        both,
        node("SequenceConstruct", ["b"], ["gs"]),
        node("SGDOptimizerV2", ["lr", "ws", "gs"], ["done"], domain=MICROSOFT),
    ]
    with pytest.raises(ModelError, match=r"DIST0312 .*its sequences have 2, 1 tensors"):
        td.from_onnx(graph_of(nodes, x, ["done"]))
    for position in (2, -3):
        model = graph_of([both, node("SequenceAt", ["ws", "p"], ["y"])], x, ["y"],
                         {"p": np.array(position)})  # fmt: skip
        with pytest.raises(ModelError, match=rf"DIST0312 .*position {position} is not in"):
            td.from_onnx(model)


@pytest.mark.quick
def test_what_two_nodes_write_in_place_is_refused():
    values = {"sum": X, "g": G, "h": X}
    nodes = [
        helper.make_node("InPlaceAccumulatorV2", ["sum", name], [f"y_{name}"], domain=MICROSOFT)
        for name in "gh"
    ]
    with pytest.raises(ModelError, match=r'DIST0312 y_h .*"sum" is written in place by another'):
        td.from_onnx(graph_of(nodes, values, ["y_g", "y_h"]))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("op", "count", "extra"), [("Adagrad", 2, 1), ("LambOptimizer", 5, 2), ("LambOptimizer", 5, 3)]
)
def test_operands_of_optimizers_that_no_weight_has_are_refused(op, count, extra):
    first = [None, None, None, X[0, 0], None] if op == "LambOptimizer" else [X[0, 0], np.array(1)]
    operands = [*first, X, X, X, *([X, None] if op == "LambOptimizer" else [])]
    assert len(node_results(op, operands, count)) == count
    with pytest.raises(ModelError, match=r"DIST0312 .* operands are not .* per weight"):
        node_results(op, [*operands, *[X] * extra], count)
