# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The gradient of every op that has a sharding rule: right, none on purpose, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.core.ops.op_coverage import op_coverage
from tests.core.ops.rule_cases.all_cases import TABLE, UNPROVED
from tests.quick_compilation import quick_machine
from tests.transforms.training import gradient_harness as h
from tests.transforms.training.gradient_cases import CASES
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.execution.rule_validation.cases import case, var
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.training.autodiff.rules.unmoved import MARKS, STEPS, UNKNOWN

op, nn = relax.op, relax.op.nn

#: Ops whose result is a float and whose operand is, that stop gradients on purpose.
STOPS = ("relax.grad.no_grad",)
#: Results that are cast are coarser than the differences that would show it: see ``TIES``.
COARSE = ("relax.astype",)
#: Ops of which the first result alone has a gradient.
FIRST = ("relax.nn.batch_norm", "relax.dist.attention")
#: What else has a rule and no gradient of its own, and why.
OTHERS = {
    "relax.call_tir": "its kernels have registered gradients, see test_gradients_kernels.py",
    "relax.call_tir_with_grad": "the same",
    "relax.multinomial_from_uniform": "it gives integers",
}
REFUSED = {f"relax.{name}" for name in UNKNOWN}
MARKED = {f"relax.{name}" for name in MARKS}


def first_cases():
    """One call of each op that the table of gradients has none of: the first with floats."""
    known = {c.op for c in CASES}
    matches = {}
    for each in TABLE:
        skipped = each.op in known or each.op in matches or each.op in (*REFUSED, *STOPS, *COARSE)
        if not skipped and h.is_differentiable(each):
            matches[each.op] = each
    return list(matches.values())


PROVED = [*CASES, *first_cases()]


@pytest.fixture(scope="module")
def checks():
    result = h.Checks()
    for each in PROVED:
        # what becomes of running statistics has no gradient
        result.add(each, (0,) if each.op in FIRST else None)
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        result.machine.compile()
    return result


@pytest.mark.parametrize("name", [c.name for c in PROVED])
def test_gradients_are_differences(checks, name):
    assert checks.fault(name) is None


def test_every_op_with_a_rule_is_accounted_for():
    """A new rule without a gradient is seen here: prove it, or say why there is none."""
    proved = {c.op for c in PROVED}
    floats = {c.op for c in TABLE if h.is_differentiable(c)}
    ruled = {row.op for row in op_coverage() if row.source in ("hand", "derived")}
    known = {c.op for c in TABLE} | set(UNPROVED)
    assert ruled == known
    left = ruled - proved - REFUSED - MARKED - set(STOPS) - set(COARSE) - set(OTHERS)
    assert sorted(left & floats) == []
    assert sorted(left - floats - {c.op for c in TABLE}) == []


def test_backward_parts_hold_nothing_unused():
    """What no gradient reads is not written, in the text or for the passes that read it."""
    for each in PROVED:
        if each.numpy is not None or each.op.removeprefix("relax.") in STEPS:
            continue
        results = (0,) if each.op in FIRST else None
        fn = h.backward(each, "float32", results)["main"]
        bindings = list(all_bindings(fn.body))
        used = {v for b in bindings for v in variables(b.value)} | set(variables(fn.body.body))
        bindings = [b for b in bindings if not isinstance(b.value, relax.Tuple)]  # it costs nothing
        assert [b.var.name for b in bindings if b.var not in used] == [], each.name


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_has_none_is_refused_by_name(name):
    calls = [c for c in TABLE if c.op == name and h.is_differentiable(c)]
    for each in calls[:1]:
        with pytest.raises(ModelError, match=rf"DIST0350.*{name}"):
            h.backward(each)


def gradients(call, *values, weight=None):
    """Gradients of the sum of a call's result, each times its weight."""
    created = h.Checks()
    created.add(case(call))
    created.machine.compile()
    (name,) = created.cases
    function = created.cases[name][1]
    shapes = [[int(n) for n in p.ty.shape] for p in function.params[len(values) :]]
    weights = [np.ones(s) if weight is None else np.asarray(weight) for s in shapes]
    arrays = [np.asarray(v, str(p.ty.dtype)) for v, p in zip(values, function.params, strict=False)]
    return [g.tolist() for g in created.run(name, arrays, weights)[1:]]


TIES = {
    "amax shares evenly": (op.max(var(4)), [[2, 1, 2, 0]], [[0.5, 0, 0.5, 0]]),
    "maximum halves": (op.maximum(var(2), var(2)), [[1, 3], [1, 2]], [[0.5, 1], [0.5, 0]]),
    "minimum halves": (op.minimum(var(2), var(2)), [[1, 3], [1, 2]], [[0.5, 0], [0.5, 1]]),
    "abs is flat at 0": (op.abs(var(3)), [[-2, 0, 3]], [[-1, 0, 1]]),
    "relu is flat at 0": (nn.relu(var(3)), [[-2, 0, 3]], [[0, 0, 1]]),
    "clip passes its bounds": (op.clip(var(4), -1, 1), [[-2, -1, 1, 2]], [[0, 1, 1, 0]]),
    "a pool takes the first": (
        nn.max_pool2d(var(1, 1, 1, 4), (1, 2), (1, 2)),
        [[[[[5, 5, 3, 3]]]]],
        [[[[[1, 0, 1, 0]]]]],
    ),
    "a dilated pool takes the first": (
        nn.max_pool2d(var(1, 1, 1, 3), (1, 2), dilation=(1, 2)),
        [[[[[5, 7, 5]]]]],
        [[[[[1, 0, 0]]]]],
    ),
    "a power of 0": (
        op.power(var(3), var(3)),
        [[0, 0, 2], [0, 2, 0]],
        [[0, 0, 0], [0, 0, np.log(2)]],
    ),
    "a product with one 0": (op.prod(var(3), 0), [[3, 0, 2]], [[0, 6, 0]]),
    "a product with two": (op.prod(var(3), 0), [[3, 0, 0]], [[0, 0, 0]]),
    "no deviation": (op.std(var(3), 0), [[2, 2, 2]], [[0, 0, 0]]),
    "a median is the lower": (op.median(var(4)), [[4, 1, 3, 2]], [[0, 0, 0, 1]]),
    "nothing passes no_grad": (op.grad.no_grad(var(2)), [[1, 2]], [[0, 0]]),
    "a cast is 1": (op.astype(var(2), "float16"), [[1, 2]], [[1, 1]]),
}


@pytest.mark.parametrize("what", TIES)
def test_conventions(what):
    call, values, reference = TIES[what]
    for result, expected in zip(gradients(call, *values), reference, strict=True):
        assert np.allclose(result, expected)


def test_sums_from_the_end_keep_small_terms():
    """Differences of sums, as TVM's gradient of a cumsum takes them, lose them to a large one."""
    result = gradients(op.cumsum(var(4), 0), np.zeros(4), weight=[1e17, 1, 1, 1])
    assert result[0][1:] == [3, 2, 1]


#: What TVM takes no operand of, of the types of half precision.
NOT_TYPED = {
    "float16": (),
    "bfloat16": ("relax.dequantize", "relax.nn.group_norm", "relax.nn.prelu"),
}


@pytest.mark.parametrize("dtype", NOT_TYPED)
def test_gradients_of_half_precision_are_typed(dtype):
    """Each has the type of its operand; none needs a wider one."""
    for each in PROVED:
        if each.op in NOT_TYPED[dtype]:
            continue
        mod = h.backward(each, dtype, (0,) if each.op in FIRST else None)
        fn = mod["main"]
        floats = [p.ty for p in fn.params if str(p.ty.dtype) == dtype]
        result = list(fn.ret_ty.fields)[-len(floats) :]
        for operand, gradient in zip(floats, result, strict=True):
            assert tvm_ffi.structural_equal(operand, gradient), each.name


def test_norms_of_half_precision_take_their_statistics_in_float32():
    """A mean of many equal halves is lost in halves."""
    rows, width = 2, 4096
    call = nn.rms_norm(var(rows, width), var(width), -1)
    mod = h.backward(case(call), "float16")
    vm = quick_machine(mod)
    rng = np.random.default_rng(0)
    x, g = rng.uniform(2, 3, (rows, width)), np.ones(width)
    w = rng.uniform(0.5, 1.5, (rows, width))
    inputs = [x.astype("float16"), g.astype("float16"), w]
    result = vm["main"](*(tvm.runtime.tensor(v) for v in inputs))[1].numpy()
    scale = 1 / np.sqrt((x**2).mean(1, keepdims=True))
    expected = scale * (w - x * scale**2 * (w * x).mean(1, keepdims=True))
    assert np.abs(result - expected).max() < 2e-3
