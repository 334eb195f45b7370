# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Training steps: gradients against TVM's, optimizers against formulas, errors."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tests.quick_compilation import quick_machine
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions

nn, op = relax.op.nn, relax.op


def var(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(list(shape), dtype))


def flat(value):
    return [x for v in value for x in flat(v)] if not hasattr(value, "numpy") else [value.numpy()]


def run_function(mod, name, values):
    vm = quick_machine(mod)
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


def test_resnet_against_tvms_gradient():
    """The same weights and data through TVM's decomposition and its pass ``Gradient``."""
    mod = td.zoo.resnet(size="tiny", batch=2)
    step = td.train_step(mod, rate=1.0)
    names = [str(n) for n in step["main"].attrs["dist.param_names"]]
    values = draw_inputs(step)
    got = dict(zip(names[2:], run_function(step, "main", values)[1:], strict=True))

    forward = relax.utils.copy_with_new_vars(InlinePrivateFunctions()(mod)["main"])
    targets = var("targets", 2, dtype="int32")

    def write(builder):
        for binding in forward.body.blocks[0].bindings:
            builder.emit_normalized(binding)
        return nn.nll_loss(builder.emit(nn.log_softmax(forward.body.body)), targets)

    whole = module([*forward.params, targets], write)
    whole = relax.transform.DecomposeOpsForTraining("main")(whole)
    inputs = list(whole["main"].params)[1:-1]
    moving = [n.endswith((".norm.mean", ".norm.variance")) for n in names[2:]]
    reference = [p for p, is_moving in zip(inputs, moving, strict=True) if not is_moving]
    adjoint = relax.transform.Gradient("main", require_grads=reference)(whole)
    expected = run_function(adjoint, "main_adjoint", [values[0], *values[2:], values[1]])[1:]
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
    loss, new, remaining = run_function(step, "main", [x, t, w, m])
    assert np.allclose(loss, np.mean((x @ w - t) ** 2), rtol=1e-5)
    assert np.allclose(remaining, moved, rtol=1e-4, atol=1e-5)
    assert np.allclose(new, w - 0.5 * moved, rtol=1e-4, atol=1e-5)


def test_adamw():
    """The third step, with decoupled decay."""
    mod, shapes = linear()
    step = td.train_step(mod, "mse", "adamw", rate=0.1, decay=0.01)
    x, t, w, m, v = drawn([*shapes, (3, 2), (3, 2)])
    v = np.abs(v)
    grad = 2 * x.T @ (x @ w - t) / t.size
    m1, v1 = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
    move = (m1 / (1 - 0.9**3)) / (np.sqrt(v1 / (1 - 0.999**3)) + 1e-8)
    _, new, kept_m, kept_v, count = run_function(step, "main", [x, t, w, m, v, np.array(2)])
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
    result = dict(
        zip(
            [str(n) for n in step["main"].attrs["dist.param_names"]][2:],
            run_function(step, "main", values)[1:],
            strict=True,
        )
    )
    data, mean, variance = values[0], values[4], values[5]
    assert np.allclose(result["mean"], 0.75 * mean + 0.25 * data.mean(0), atol=1e-5)
    assert np.allclose(result["variance"], 0.75 * variance + 0.25 * data.var(0), atol=1e-5)


def test_bfloat16_models_make_steps():
    """TVM's pass refuses them."""
    step = td.train_step(td.zoo.llama(size="tiny", dtype="bfloat16"), optimizer="adam")
    assert relax.analysis.check_well_formed(step)
    weights = [p for p in step["main"].params if str(p.ty.dtype) == "bfloat16"]
    assert len(weights) == 3 * 21


def test_errors():
    x, w = var("x", 4, 3), var("w", 4, 3)
    boxes = var("boxes", 2, 5)
    image = var("image", 1, 1, 4, 3)
    scaled = lambda e: op.vision.roi_align(e.emit(op.multiply(image, w)), boxes, (2, 2), 1.0)  # noqa: E731
    with pytest.raises(ModelError, match=r"DIST0350.*relax.vision.roi_align.*not known"):
        td.train_step(module([boxes, image, w], scaled), "mse")
    mod, _ = linear()
    with pytest.raises(ModelError, match=r"DIST0351.*no loss \"mes\".*mse"):
        td.train_step(mod, "mes")
    with pytest.raises(ModelError, match=r"DIST0351.*no optimizer \"adm\".*adam"):
        td.train_step(mod, "mse", "adm")
    with pytest.raises(ModelError, match=r"DIST0351.*\"sgd\" has no option \"beta1\""):
        td.train_step(mod, "mse", beta1=0.5)
    with pytest.raises(ModelError, match=r"DIST0351.*already a training step"):
        td.train_step(td.train_step(mod, "mse"), "mse")
    whole = module([x], lambda e: op.sum(x))
    with pytest.raises(ModelError, match=r"DIST0351.*not a tensor of logits"):
        td.train_step(whole)
