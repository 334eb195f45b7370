# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch, JAX and ONNX that merge batch and positions, sharded along both.

Logits, ``(batch * positions, classes)`` there, are the largest values: no collective has them.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tvm_distir as td

BATCH, POSITIONS, WIDTH, CLASSES = 4, 8, 4, 96
ROWS, FEATURES = (8, 32), 8
"""Batch and positions of gradients, and what a layer maps to as much: it is smaller than tokens."""
GRADIENTS = 4 * (FEATURES * FEATURES + FEATURES)
"""Bytes of the gradients of a layer and its bias."""
OPTIONS = "data_parallel+context_parallel", {"dp": 2, "cp": 2}


def drawn(classes=CLASSES, shape=(BATCH, POSITIONS)):
    rng = np.random.default_rng(0)
    tokens, labels = rng.integers(0, classes, (2, *shape))
    labels[1, 3] = -100
    return tokens, labels


def run(mod, inputs):
    """Distribute a model; return the results and the bytes of all collectives."""
    local = td.distribute(mod, td.planning.make_plan(mod, *OPTIONS))
    program = td.export(local)
    ops = [op for _, op in program.executed(program.entries[0].function)]
    sizes = [op.payload_bytes for op in ops if op.kind == "collective"]
    return td.run(local, inputs, engine="virtual"), sizes


def losses_of_torch(torch):
    F = torch.nn.functional

    def flat(logits, labels):
        return logits.view(-1, CLASSES), labels.view(-1)

    def masked(logits, labels):
        each = F.cross_entropy(*flat(logits, labels), reduction="none")
        mask = (labels.view(-1) > 3).float()
        return (each * mask).sum() / mask.sum()

    def weighted(logits, labels):
        weight = torch.arange(1.0, CLASSES + 1)
        return F.cross_entropy(*flat(logits, labels), weight=weight)

    def summed(logits, labels):
        return F.cross_entropy(*flat(logits.float(), labels), reduction="sum") / 17

    return {
        "view": lambda logits, labels: F.cross_entropy(*flat(logits, labels)),
        "smooth": lambda logits, labels: F.cross_entropy(
            *flat(logits, labels), label_smoothing=0.1
        ),
        "masked": masked, "weighted": weighted, "summed": summed,
        "next": lambda logits, labels: F.cross_entropy(
            *flat(logits, F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous())
        ),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["view", "smooth", "masked", "weighted", "summed", "next"])
def test_losses_of_torch_stay_with_their_rows(kind):
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    loss = losses_of_torch(torch)[kind]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(CLASSES, WIDTH)
            self.head = torch.nn.Linear(WIDTH, CLASSES)

        def forward(self, tokens, labels):
            return loss(self.head(self.embed(tokens).tanh()), labels)

    torch.manual_seed(0)
    model, inputs = Model(), drawn()
    args = tuple(map(torch.tensor, inputs))
    program = torch.export.export(model, args)
    if kind == "view":  # products merge batch and positions too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own functions
            program = program.run_decompositions()
    weights = [w.detach().numpy() for w in model.parameters()]
    (result,), sizes = run(td.from_exported_program(program), [*inputs, *weights])
    np.testing.assert_allclose(result, model(*args).detach().numpy(), rtol=1e-5)
    # Labels that move to the position before are numbers per row.
    assert sum(sizes) <= (16 * BATCH * POSITIONS if kind == "next" else 64)


def test_gradients_of_torch_stay_with_their_rows():
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    from torch.export.experimental import _export_forward_backward

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(FEATURES, FEATURES)

        def forward(self, x, labels):
            logits = self.head(x)
            return (torch.nn.functional.cross_entropy(logits.view(-1, FEATURES), labels.view(-1)),)

    torch.manual_seed(0)
    model, (_, labels) = Model(), drawn(FEATURES, ROWS)
    x = torch.randn(*ROWS, FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _export_forward_backward(torch.export.export(model, (x, torch.tensor(labels))))
    weights = [w.detach().numpy() for w in model.parameters()]
    results, sizes = run(td.from_exported_program(program), [x.numpy(), labels, *weights])
    loss = model(x, torch.tensor(labels))[0]
    loss.backward()
    for ours, theirs in zip(
        results, [loss.detach(), *(w.grad for w in model.parameters())], strict=True
    ):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-6)
    assert sum(sizes) <= 2 * GRADIENTS + 64  # reduced along both axes


def test_gradients_of_jax_stay_with_their_rows():
    """JAX merges the dims over which a product sums; a loss of all dims merges none."""
    jax = pytest.importorskip("jax", reason="the extra jax is not installed")
    import jax.numpy as jnp

    def loss(layer, x, labels):
        log_probs = jax.nn.log_softmax(x @ layer["weight"])
        return -jnp.where(jax.nn.one_hot(labels, FEATURES) > 0, log_probs, 0).sum()

    step = jax.value_and_grad(loss)
    rng, (_, labels) = np.random.default_rng(0), drawn(FEATURES, ROWS)
    x = rng.standard_normal((*ROWS, FEATURES)).astype("float32")
    weight = rng.standard_normal((FEATURES, FEATURES)).astype("float32")
    args = {"weight": weight}, x, labels.astype("int32")
    mod = td.from_jax(step, *args)
    assert [*mod["main"].attrs["dist.param_names"]] == ["x", "labels", "layer.weight"]
    (total, gradient), sizes = run(mod, [*args[1:], weight])
    expected, gradients = step(*args)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, gradients["weight"], rtol=1e-4, atol=1e-4)
    assert sum(sizes) <= 2 * GRADIENTS + 64


def test_losses_of_onnx_stay_with_their_rows():
    onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(0)
    values = {
        "head": rng.standard_normal((WIDTH, CLASSES)).astype("float32"),
        "rows": np.array([-1, CLASSES]), "row": np.array([-1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "head"], ["logits"]),
        helper.make_node("Reshape", ["logits", "rows"], ["flat"]),
        helper.make_node("Reshape", ["labels", "row"], ["flat_labels"]),
        helper.make_node(
            "SoftmaxCrossEntropyLoss", ["flat", "flat_labels"], ["loss"], ignore_index=-100
        ),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [BATCH, POSITIONS, WIDTH]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [BATCH, POSITIONS]),
    ]
    outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
    weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "model", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    x = rng.standard_normal((BATCH, POSITIONS, WIDTH)).astype("float32")
    labels = drawn()[1]
    (result,), sizes = run(td.from_onnx(model), [x, labels, values["head"]])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "labels": labels})
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert sum(sizes) <= 64
