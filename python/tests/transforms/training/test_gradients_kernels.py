# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of kernels: registered pairs of PrimFuncs, and writers of Relax."""

from __future__ import annotations

import pytest
from tvm import relax, te, tirx
from tvm.relax.op.base import call_tir_with_grad

import tvm_distir as td
from tests.transforms.training import gradient_harness as h
from tvm_distir.execution.rule_validation.cases import Case, var
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms.training.autodiff.rules import primfuncs
from tvm_distir.transforms.training.autodiff.rules.primfuncs import register_primfunc_gradient

op = relax.op
ROWS = 32


def made(dtype, shapes, compute):
    """A kernel of operands of some shapes."""
    operands = [te.placeholder(shape, dtype, f"p{i}") for i, shape in enumerate(shapes)]
    results = compute(*operands)
    return te.create_prim_func([*operands, *results]).without_attr("global_symbol")


def scaled(dtype):
    """``x^2 s``, a scale per column, and its backward parts."""
    two = tirx.const(2.0, dtype)
    forward = made(
        dtype,
        [(ROWS, 6), (6,)],
        lambda x, s: [te.compute((ROWS, 6), lambda i, j: x[i, j] * x[i, j] * s[j], "y")],
    )
    shapes = [(ROWS, 6), (6,), (ROWS, 6), (ROWS, 6)]

    def by_x(x, s, y, dy):
        return [te.compute((ROWS, 6), lambda i, j: two * x[i, j] * s[j] * dy[i, j], "dx")]

    def by_scale(x, s, y, dy):
        part = te.reduce_axis((0, ROWS), "rows")
        of = lambda j: te.sum(x[part, j] * x[part, j] * dy[part, j], part)  # noqa: E731
        return [te.compute((6,), of, "ds")]

    return forward, [made(dtype, shapes, by_x), made(dtype, shapes, by_scale)]


FORWARD, BACKWARD = scaled("float64")


def kernel_case(name):
    """A call of a kernel under a name of a module."""
    builder = relax.BlockBuilder()
    handle = builder.add_func(FORWARD, name)
    operands = relax.Tuple([var(ROWS, 6, dtype="float64"), var(6, dtype="float64")])
    call = relax.call_tir(handle, operands, relax.TensorType([ROWS, 6], "float64"))
    return Case(name, call, mod=builder.get())


def written(call, results, grads, _):
    """Of ``x^2 s``, in Relax; nothing is said of the scale."""
    x, s = call.args[1].fields
    return [op.multiply(grads[0], op.multiply(op.add(x, x), s)), None]


def model(marked, private):
    """``kernel(x @ w, s)``, the kernel named by a mark or not, in a function of its own or not."""
    builder = relax.BlockBuilder()
    kernel = builder.add_func(scaled("float32")[0], "any" if marked else "scaled")
    ty = relax.TensorType([ROWS, 6], "float32")

    def called(h, s):
        if marked:
            return call_tir_with_grad(kernel, relax.Tuple([h, s]), ty, te_grad_name="scaled")
        return relax.call_tir(kernel, relax.Tuple([h, s]), ty)

    shapes = {"x": [ROWS, 8], "w": [8, 6], "s": [6], "h": [ROWS, 6]}
    x, w, s, h = (relax.Var(n, relax.TensorType(k, "float32")) for n, k in shapes.items())
    layer = None
    if private:
        t = relax.Var("t", s.ty)
        with builder.function("layer", [h, t], private=True):
            with builder.dataflow():
                y = builder.emit_output(builder.emit(op.tanh(builder.emit(called(h, t)))))
            layer = builder.emit_func_output(y)
    with builder.function("main", [x, w, s]):
        with builder.dataflow():
            y = builder.emit(op.matmul(x, w))
            y = builder.emit_output(relax.Call(layer, [y, s]) if private else called(y, s))
        builder.emit_func_output(y)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("num_input", 1)
    return mod


@pytest.fixture(autouse=True)
def _own_pairs(monkeypatch):
    for name in ("_PAIRS", "_KERNELS"):
        monkeypatch.setattr(primfuncs, name, {})


def fault(single):
    checks = h.Checks()
    checks.add(single)
    checks.machine.compile()
    return checks.fault(single.name)


def test_a_kernel_is_differentiated_by_its_pair():
    register_primfunc_gradient("scaled", BACKWARD)
    assert fault(kernel_case("scaled")) is None


def test_a_writer_of_relax():
    register_primfunc_gradient("scaled", written)
    message = fault(kernel_case("scaled"))
    assert message is not None and message.startswith("operand 1"), "the scale counts as constant"


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_models_with_kernels_train_over_devices(marked, private):
    """The rules of both kernels are derived; a mark that names the gradient is one of TVM's."""
    register_primfunc_gradient("scaled", scaled("float32")[1])
    step = td.train_step(model(marked, private), "mse", rate=1.0)
    assert relax.analysis.check_well_formed(step)
    plan = make_plan(step, "data_parallel", {"dp": 2})
    dist = td.distribute(step, plan)
    assert td.verify(step, plan, dist=dist).equal
    assert "all_gather" not in str(dist)


def test_errors():
    register_primfunc_gradient("scaled", written)
    with pytest.raises(ModelError, match=r"DIST0353 scaled: .*override"):
        register_primfunc_gradient("scaled", BACKWARD)
    register_primfunc_gradient("scaled", BACKWARD, override=True)
    with pytest.raises(ModelError, match=r'DIST0350 scale: .*no gradient.*"scaled"'):
        h.backward(kernel_case("scale"))
