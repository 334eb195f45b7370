# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of single calls, compiled together, against finite differences in float64."""

from __future__ import annotations

import numpy as np
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import DeadCodeElimination

from tvm_distir.execution.rule_validation.machine import Machine
from tvm_distir.support import GenericConst
from tvm_distir.transforms.training.autodiff.reverse import reverse
from tvm_distir.transforms.training.autodiff.rules.primfuncs import backward_kernel

FLOATS = ("float16", "float32", "bfloat16", "float64")
#: By the type that a call computes in: step of the differences, and what they may be off.
ACCURACY = {"float64": (1e-5, 2e-6), "float32": (1e-3, 3e-3)}
#: Ops whose kernels compute in float32, or take nothing wider.
SINGLE = (
    "relax.nn.layer_norm relax.nn.group_norm relax.nn.instance_norm relax.nn.rms_norm "
    "relax.image.resize2d relax.image.resize3d relax.dequantize"
).split()


def is_float(ty):
    return isinstance(ty, relax.TensorType) and "float" in str(ty.dtype)


def fields_of(ty):
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def retyped(case, dtype):
    """The call of a case on fresh variables, floats of another type; the variables in order."""
    params = []

    def new(arg):
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([new(f) for f in arg.fields])
        if isinstance(arg, GenericConst) and is_float(arg.ty):
            return relax.const(arg.value.numpy().astype(dtype), dtype)
        if not isinstance(arg, relax.Var) or not isinstance(arg.ty, relax.TensorType):
            return arg
        kind = dtype if is_float(arg.ty) else str(arg.ty.dtype)
        params.append(relax.Var(f"x{len(params)}", relax.TensorType(arg.ty.shape, kind)))
        return params[-1]

    args = [new(a) for a in case.call.args]
    return ir.Call(case.call.op, args, case.call.attrs, case.call.ty_args), params


def is_differentiable(case):
    """Whether a result may be a float, and an operand is."""
    call, params = retyped(case, "float32")
    types = fields_of(relax.BlockBuilder().normalize(call).ty)
    return any(is_float(p.ty) for p in params) and any(is_float(t) for t in types)


def backward(case, dtype="float64", results=None):
    """``(operands, cotangents) -> (sum of results * cotangents, gradients of float operands)``.

    Without that sum where TVM has no kernel of the op.
    """
    call, params = retyped(case, dtype)
    builder = relax.BlockBuilder() if case.mod is None else relax.BlockBuilder(case.mod)
    whole = builder.normalize(call).ty
    chosen = [(i, t) for i, t in enumerate(fields_of(whole)) if is_float(t)]
    chosen = [(i, t) for i, t in chosen if results is None or i in results]
    weights = [relax.Var(f"g{i}", relax.TensorType(t.shape, "float64")) for i, t in chosen]
    expected = [p for p in params if is_float(p.ty)]
    bindings = []

    def emit(value, name=""):
        var = builder.emit(value, name)
        bindings.append(relax.VarBinding(var, builder.lookup_binding(var)))
        return var

    with builder.function("main", [*params, *weights]):
        with builder.dataflow():
            y = emit(call, "y")
            total = None
            for (i, t), weight in zip(chosen, weights, strict=True):
                part = emit(relax.TupleGetItem(y, i)) if isinstance(whole, relax.TupleType) else y
                part = emit(relax.op.astype(part, "float64")) if str(t.dtype) != "float64" else part
                part = emit(relax.op.multiply(part, weight))
                part = emit(relax.op.sum(part)) if len(t.shape) else part
                total = part if total is None else emit(relax.op.add(total, part))
            result = reverse(builder, bindings, total, expected)
            remaining = result if case.numpy is not None else [total, *result]
            outputs = [builder.emit_output(v) for v in remaining]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get() if case.numpy is None else DeadCodeElimination()(builder.get())


def kernels_of(mod):
    """What the main function calls, by handle."""
    handles = []
    relax.analysis.post_order_visit(
        mod["main"], lambda e: handles.append(e) if isinstance(e, ir.GlobalVar) else None
    )
    known = dict(mod.functions.items())
    return {g: known[g] if g in known else backward_kernel(g.name_hint)[1] for g in handles}


@mutator
class Renamed(PyExprMutator):
    """Calls kernels under other names."""

    def __init__(self, env):
        super().__init__()
        self.env = env

    def visit_global_var_(self, handle):
        return self.env.get(handle, handle)


class Checks:
    """Calls whose gradients are compiled together, and compared one by one."""

    def __init__(self):
        self.machine, self.cases = Machine(), {}

    def add(self, case, results=None):
        dtype = "float32" if case.op in SINGLE else "float64"
        mod = backward(case, dtype, results)
        function = mod["main"]
        env = {g: self.machine.kernel(f, g.name_hint) for g, f in kernels_of(mod).items()}
        self.machine.add(case.name, Renamed(env).visit_expr(function) if env else function)
        self.cases[case.name] = (case, function, dtype)

    def run(self, name, inputs, weights):
        case = self.cases[name][0]
        if case.numpy is None:
            return self.machine.run(name, [*inputs, *weights])
        total = (case.numpy(*inputs) * weights[0]).sum()
        return [total, *self.machine.run(name, [*inputs, *weights])]

    def operands(self, name, rng):
        """Floats off the grid that cases draw from: no ties, no kinks; and cotangents."""
        case, function, dtype = self.cases[name]
        inputs = []
        for x, param in zip(case.inputs(0), function.params, strict=False):
            if is_float(param.ty):
                x = (np.asarray(x, "float64") + rng.uniform(0.05, 0.3, x.shape)).astype(dtype)
            inputs.append(np.asarray(x))
        shapes = [[int(n) for n in p.ty.shape] for p in function.params[len(inputs) :]]
        return inputs, [np.asarray(rng.uniform(0.5, 1.5, s)) for s in shapes]

    def fault(self, name, seed=0):
        """What is wrong with the gradients of a case; None where they are right."""
        dtype = self.cases[name][2]
        step, tolerance = ACCURACY[dtype]
        inputs, weights = self.operands(name, np.random.default_rng(seed))
        _, *result = self.run(name, inputs, weights)
        floats = [i for i, x in enumerate(inputs) if str(x.dtype) == dtype]
        for i, gradient in zip(floats, result, strict=True):
            expected = np.zeros(inputs[i].shape)
            for place in np.ndindex(*inputs[i].shape):
                ends = []
                for sign in (1, -1):
                    moved = inputs[i].copy()
                    moved[place] += sign * step
                    passed = [moved if j == i else x for j, x in enumerate(inputs)]
                    ends.append((float(self.run(name, passed, weights)[0]), float(moved[place])))
                expected[place] = (ends[0][0] - ends[1][0]) / (ends[0][1] - ends[1][1])
            if gradient.shape != expected.shape:
                return f"operand {i}: {gradient.shape} for {expected.shape}"
            scale = np.abs(expected).max(initial=1.0)
            worst = np.abs(gradient - expected).max(initial=0.0) / scale
            if not worst <= tolerance:
                return f"operand {i}: off by {worst:.2g}"
        return None
