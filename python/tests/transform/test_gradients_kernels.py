# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of kernels: registered pairs of PrimFuncs, and writers of Relax."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tvm import relax, te

from tvm_distir.errors import ModelError
from tvm_distir.ops.validate import Case, var
from tvm_distir.transform import register_primfunc_gradient
from tvm_distir.transform.gradient import primfuncs

sys.path.insert(0, str(Path(__file__).parent))
import gradient_harness as h

op = relax.op
F = "float64"


def made(shapes, compute):
    """A kernel of operands of some shapes."""
    operands = [te.placeholder(shape, F, f"p{i}") for i, shape in enumerate(shapes)]
    results = compute(*operands)
    return te.create_prim_func([*operands, *results])


ROWS = te.reduce_axis((0, 4), "rows")
#: ``x^2 s``, a scale per column.
SCALED = made(
    [(4, 3), (3,)], lambda x, s: [te.compute((4, 3), lambda i, j: x[i, j] * x[i, j] * s[j], "y")]
)
SCALED_BACKWARD = made(
    [(4, 3), (3,), (4, 3), (4, 3)],
    lambda x, s, y, dy: [
        te.compute((4, 3), lambda i, j: 2.0 * x[i, j] * s[j] * dy[i, j], "dx"),
        te.compute((3,), lambda j: te.sum(y[ROWS, j] / s[j] * dy[ROWS, j], ROWS), "ds"),
    ],
)


def kernel_case(kernel, name):
    """A call of a kernel under a name of a module."""
    builder = relax.BlockBuilder()
    handle = builder.add_func(kernel, name)
    operands = relax.Tuple([var(4, 3, dtype=F), var(3, dtype=F)])
    call = relax.call_tir(handle, operands, relax.TensorType([4, 3], F))
    return Case(name, call, mod=builder.get())


def written(call, results, grads, _):
    """Of ``x^2 s``, in Relax; nothing is said of the scale."""
    x, s = call.args[1].fields
    return [op.multiply(grads[0], op.multiply(op.add(x, x), s)), None]


@pytest.fixture(autouse=True)
def _own_pairs(monkeypatch):
    monkeypatch.setattr(primfuncs, "_PAIRS", {})


def fault(one):
    checks = h.Checks()
    checks.add(one)
    checks.machine.compile()
    return checks.fault(one.name)


def test_a_kernel_is_differentiated_by_its_pair():
    register_primfunc_gradient("scaled", SCALED_BACKWARD)
    assert fault(kernel_case(SCALED, "scaled")) is None


def test_an_attribute_names_the_pair():
    """Kernels are renamed where names meet."""
    register_primfunc_gradient("scaled", SCALED_BACKWARD)
    assert fault(kernel_case(SCALED.with_attr("dist.gradient", "scaled"), "fused_2")) is None


def test_a_writer_of_relax():
    register_primfunc_gradient("scaled", written)
    said = fault(kernel_case(SCALED, "scaled"))
    assert said is not None and said.startswith("operand 1"), "the scale counts as constant"


def test_errors():
    register_primfunc_gradient("scaled", written)
    with pytest.raises(ModelError, match=r"DIST0353 scaled: .*override"):
        register_primfunc_gradient("scaled", SCALED_BACKWARD)
    register_primfunc_gradient("scaled", SCALED_BACKWARD, override=True)
    with pytest.raises(ModelError, match=r'DIST0350 scale: .*no gradient.*"scaled"'):
        h.backward(kernel_case(SCALED, "scale"))
