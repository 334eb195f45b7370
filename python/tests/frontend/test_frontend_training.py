# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Training steps: gradients against differences and TVM's, optimizers against formulas, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tvm_distir.errors import ModelError
from tvm_distir.transform import InlinePrivateFunctions
from tvm_distir.transform.gradient import registry
from tvm_distir.transform.gradient.reverse import reverse
from tvm_distir.verification import draw_inputs

TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
nn, op = relax.op.nn, relax.op


def var(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(list(shape), dtype))


def flat(value):
    return [x for v in value for x in flat(v)] if not hasattr(value, "numpy") else [value.numpy()]


def run(mod, name, values):
    vm = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())
    return flat(vm[name](*(tvm.runtime.tensor(v) for v in values)))


def module(params, write):
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(write(builder))
        builder.emit_func_output(result)
    return builder.get()


def first(y):
    return relax.TupleGetItem(y, 0)


IMAGE = var("x", 2, 4, 3, 2)
C4 = [var(n, 4) for n in "gbmv"]
CALLS = {
    "matmul": ([var("x", 2, 3, 4), var("w", 4, 5)], lambda x, w: op.matmul(x, w)),
    "rsqrt": ([var("x", 3, 4)], lambda x: op.rsqrt(op.add(op.multiply(x, x), relax.const(1.0)))),
    "square": ([var("x", 3, 4)], op.square),
    "erf": ([var("x", 3, 4)], op.erf),
    "gelu": ([var("x", 3, 4)], nn.gelu),
    "gelu_tanh": ([var("x", 3, 4)], nn.gelu_tanh),
    "squeeze": ([var("x", 3, 1, 4)], lambda x: op.squeeze(x, [1])),
    "strided_slice": ([var("x", 3, 6)], lambda x: op.strided_slice(x, [1], [-4], [5])),
    "repeat": ([var("x", 3, 2)], lambda x: op.repeat(x, 3, 1)),
    "topk": ([var("x", 3, 6)], lambda x: first(op.topk(x, 2, 1))),
    "take": (
        [var("w", 5, 3)],
        lambda w: op.take(w, relax.const(np.array([[4, 0], [4, 1]])), axis=0),
    ),
    "layer_norm": (
        [var("x", 3, 5), var("g", 5), var("b", 5)],
        lambda x, g, b: nn.layer_norm(x, g, b, -1),
    ),
    "rms_norm": ([var("x", 3, 5), var("g", 5)], lambda x, g: nn.rms_norm(x, g, -1)),
    "batch_norm": (
        [IMAGE, *C4[:2]],
        lambda x, g, b: first(
            nn.batch_norm(x, g, b, *(relax.const(np.ones(4, "float32")),) * 2, 1, training=True)
        ),
    ),
    "group_norm": ([IMAGE, *C4[:2]], lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2, 3])),
    "instance_norm": ([IMAGE, *C4[:2]], lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3])),
    "adaptive_avg_pool2d": ([IMAGE], lambda x: nn.adaptive_avg_pool2d(x, 1)),
    "resize2d": (
        [IMAGE],
        lambda x: op.image.resize2d(
            x,
            (6, 4),
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
    ),
    "pad": ([IMAGE], lambda x: nn.pad(x, [0, 0, 1, 0, 2, 1, 0, 0], pad_value=3.0)),
    "conv1d": (
        [var("x", 2, 3, 8), var("w", 4, 3, 3)],
        lambda x, w: nn.conv1d(x, w, strides=2, padding=[1, 0], dilation=2),
    ),
    "conv1d in groups": (
        [var("x", 2, 4, 6), var("w", 6, 2, 2)],
        lambda x, w: nn.conv1d(x, w, padding=1, groups=2),
    ),
    "conv2d": (
        [var("x", 2, 3, 6, 5), var("w", 4, 3, 3, 2)],
        lambda x, w: nn.conv2d(x, w, strides=(2, 1), padding=[1, 0, 1, 2]),
    ),
    "conv2d with rows left over": (
        [var("x", 2, 3, 7, 5), var("w", 2, 3, 2, 1)],
        lambda x, w: nn.conv2d(x, w, strides=(3, 2)),
    ),
    "conv2d in groups": (
        [var("x", 3, 4, 6, 4), var("w", 6, 2, 3, 3)],
        lambda x, w: nn.conv2d(x, w, strides=(2, 1), padding=1, dilation=(1, 2), groups=2),
    ),
    "conv3d": (
        [var("x", 2, 2, 4, 3, 4), var("w", 3, 2, 2, 3, 1)],
        lambda x, w: nn.conv3d(x, w, strides=(2, 1, 3), padding=(0, 1, 0)),
    ),
    "conv1d_transpose": (
        [var("x", 2, 3, 4), var("w", 3, 2, 3)],
        lambda x, w: nn.conv1d_transpose(x, w, strides=3, padding=[1, 0], output_padding=2),
    ),
    "conv2d_transpose": (
        [var("x", 2, 3, 4, 3), var("w", 3, 2, 4, 2)],
        lambda x, w: nn.conv2d_transpose(x, w, strides=2, padding=[1, 0], dilation=(1, 2)),
    ),
    "conv2d_transpose in groups": (
        [var("x", 3, 4, 3, 3), var("w", 4, 3, 3, 2)],
        lambda x, w: nn.conv2d_transpose(x, w, strides=(2, 1), padding=[1, 0], groups=2),
    ),
    "conv3d_transpose": (
        [var("x", 2, 2, 3, 2, 2), var("w", 2, 3, 2, 1, 2)],
        lambda x, w: nn.conv3d_transpose(x, w, strides=(2, 1, 1)),
    ),
    "attention": (
        [var(n, 2, 3, 2, 4) for n in "qkv"],
        lambda q, k, v: nn.attention(q, k, v),
    ),
    "attention_bias": (
        [*(var(n, 2, 3, 2, 4) for n in "qkv"), var("b", 2, 1, 3, 3)],
        lambda q, k, v, b: nn.attention(q, k, v, b),
    ),
}


@pytest.fixture(scope="module")
def proof():
    """Per op the difference between the slope along a direction and what the gradients say."""
    rng = np.random.default_rng(0)
    functions, values = {}, {}
    for name, (params, make) in CALLS.items():
        params = [relax.Var(p.name, p.ty) for p in params]
        values[name] = [rng.standard_normal([int(n) for n in p.ty.shape]) for p in params]

        def write(builder, make=make, params=params):
            y = builder.emit(make(*params))
            weights = rng.standard_normal([int(n) for n in y.ty.shape]).astype("float32")
            loss = builder.emit(op.sum(op.multiply(y, relax.const(weights))))
            bindings = [
                relax.VarBinding(v, builder.lookup_binding(v)) for v in ordered(builder, loss)
            ]
            found = reverse(builder, bindings, loss, params)
            return relax.Tuple([loss, *found])

        functions[name] = module(params, write)["main"].with_attr("global_symbol", name)
    vm = relax.VirtualMachine(tvm.compile(tvm.IRModule(functions), TARGET), tvm.cpu())

    def call(name, given):
        return flat(vm[name](*(tvm.runtime.tensor(v.astype("float32")) for v in given)))

    found = {}
    for name, at in values.items():
        ways = [rng.standard_normal(v.shape) for v in at]
        grads = call(name, at)[1:]
        step = 1e-2
        ends = [
            call(name, [v + s * step * w for v, w in zip(at, ways, strict=True)])[0]
            for s in (1, -1, 2, -2)
        ]
        slope = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * step)
        said = sum(float((g * w).sum()) for g, w in zip(grads, ways, strict=True))
        found[name] = (float(slope), said)
    return found


def ordered(builder, last):
    """Variables that a variable depends on, first things first."""
    seen = []

    def visit(v):
        value = builder.lookup_binding(v)
        if value is None or any(v.same_as(s) for s in seen):
            return
        inner = []
        relax.analysis.post_order_visit(
            value, lambda e: inner.append(e) if isinstance(e, relax.Var) else None
        )
        for one in inner:
            visit(one)
        seen.append(v)

    visit(last)
    return seen


@pytest.mark.parametrize("name", sorted(CALLS))
def test_gradients_are_slopes(proof, name):
    slope, said = proof[name]
    assert abs(said) > 1e-2, "the direction shows nothing"
    assert math.isclose(slope, said, rel_tol=5e-3, abs_tol=5e-3)


def test_every_own_gradient_is_proved():
    proved = {f"relax.{folder}{n}" for n in CALLS for folder in ("", "nn.", "image.")}
    same_code = {"relax.flatten", "relax.nn.batch_flatten"}
    refused = {"relax.nn.dropout"}
    assert not set(registry.GRADIENTS) - proved - same_code - refused


def test_resnet_against_tvms_gradient():
    """The same weights and data through TVM's decomposition and its pass ``Gradient``."""
    mod = td.zoo.resnet(size="tiny", batch=2)
    step = td.train_step(mod, rate=1.0)
    names = [str(n) for n in step["main"].attrs["dist.param_names"]]
    values = draw_inputs(step)
    got = dict(zip(names[2:], run(step, "main", values)[1:], strict=True))

    forward = relax.utils.copy_with_new_vars(InlinePrivateFunctions()(mod)["main"])
    targets = var("targets", 2, dtype="int32")

    def write(builder):
        for binding in forward.body.blocks[0].bindings:
            builder.emit_normalized(binding)
        return nn.nll_loss(builder.emit(nn.log_softmax(forward.body.body)), targets)

    whole = module([*forward.params, targets], write)
    whole = relax.transform.DecomposeOpsForTraining("main")(whole)
    given = list(whole["main"].params)[1:-1]
    moving = [n.endswith((".norm.mean", ".norm.variance")) for n in names[2:]]
    wanted = [p for p, is_moving in zip(given, moving, strict=True) if not is_moving]
    adjoint = relax.transform.Gradient("main", require_grads=wanted)(whole)
    expected = run(adjoint, "main_adjoint", [values[0], *values[2:], values[1]])[1:]
    learned = [n for n, is_moving in zip(names[2:], moving, strict=True) if not is_moving]
    assert len(learned) > 20
    for name, grad in zip(learned, expected, strict=True):
        mine = values[names.index(name)] - got[name]
        assert np.allclose(mine, grad, rtol=1e-3, atol=1e-4 * np.abs(grad).max()), name


def linear():
    """``x @ w``."""
    x, w = var("x", 4, 3), var("w", 3, 2)
    return module([x, w], lambda _: op.matmul(x, w)), [(4, 3), (4, 2), (3, 2)]


def drawn(shapes):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s).astype("float32") for s in shapes]


def test_sgd_with_momentum_and_decay():
    mod, shapes = linear()
    step = td.train_step(mod, "mse", "sgd", rate=0.5, momentum=0.9, decay=0.1)
    x, t, w, m = drawn([*shapes, (3, 2)])
    grad = 2 * x.T @ (x @ w - t) / t.size + 0.1 * w
    moved = 0.9 * m + grad
    loss, new, kept = run(step, "main", [x, t, w, m])
    assert np.allclose(loss, np.mean((x @ w - t) ** 2), rtol=1e-5)
    assert np.allclose(kept, moved, rtol=1e-4, atol=1e-5)
    assert np.allclose(new, w - 0.5 * moved, rtol=1e-4, atol=1e-5)


def test_adam():
    """The third step, with decoupled decay."""
    mod, shapes = linear()
    step = td.train_step(mod, "mse", "adam", rate=0.1, decay=0.01)
    x, t, w, m, v = drawn([*shapes, (3, 2), (3, 2)])
    v = np.abs(v)
    grad = 2 * x.T @ (x @ w - t) / t.size
    m1, v1 = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
    move = (m1 / (1 - 0.9**3)) / (np.sqrt(v1 / (1 - 0.999**3)) + 1e-8)
    _, new, kept_m, kept_v, count = run(step, "main", [x, t, w, m, v, np.array(2)])
    assert count == 3
    assert np.allclose(kept_m, m1, rtol=1e-4, atol=1e-6)
    assert np.allclose(kept_v, v1, rtol=1e-4, atol=1e-6)
    assert np.allclose(new, w - 0.1 * move - 0.1 * 0.01 * w, rtol=1e-3, atol=1e-4)


def test_batch_norms_train_and_move_their_statistics():
    x = var("x", 6, 4)
    params = [x, *(var(n, 4) for n in ("g", "b", "mean", "variance"))]
    mod = module(params, lambda e: first(e.emit(nn.batch_norm(*params, 1, momentum=0.25))))
    step = td.train_step(mod, "mse")
    values = drawn([(6, 4)] * 2 + [(4,)] * 4)
    found = dict(
        zip(
            [str(n) for n in step["main"].attrs["dist.param_names"]][2:],
            run(step, "main", values)[1:],
            strict=True,
        )
    )
    data, mean, variance = values[0], values[4], values[5]
    assert np.allclose(found["mean"], 0.75 * mean + 0.25 * data.mean(0), atol=1e-5)
    assert np.allclose(found["variance"], 0.75 * variance + 0.25 * data.var(0), atol=1e-5)


def test_bfloat16_models_make_steps():
    """TVM's pass refuses them."""
    step = td.train_step(td.zoo.llama(size="tiny", dtype="bfloat16"), optimizer="adam")
    assert relax.analysis.check_well_formed(step)
    weights = [p for p in step["main"].params if str(p.ty.dtype) == "bfloat16"]
    assert len(weights) == 3 * 21


def test_errors():
    x, w = var("x", 4, 3), var("w", 4, 3)
    product = module([x, w], lambda e: nn.softplus(e.emit(op.multiply(x, w))))
    with pytest.raises(ModelError, match=r"DIST0350.*relax.nn.softplus.*no gradient"):
        td.train_step(product, "mse")
    mod, _ = linear()
    with pytest.raises(ModelError, match=r"DIST0351.*no loss \"mes\".*mse"):
        td.train_step(mod, "mes")
    with pytest.raises(ModelError, match=r"DIST0351.*no optimizer \"adm\".*adam"):
        td.train_step(mod, "mse", "adm")
    with pytest.raises(ModelError, match=r"DIST0351.*\"sgd\" has no option \"beta1\""):
        td.train_step(mod, "mse", beta1=0.5)
    with pytest.raises(ModelError, match=r"DIST0351.*a training step already"):
        td.train_step(td.train_step(mod, "mse"), "mse")
    whole = module([x], lambda e: op.sum(x))
    with pytest.raises(ModelError, match=r"DIST0351.*no logits"):
        td.train_step(whole)
