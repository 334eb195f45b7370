# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the FLOPs of products that a model needs, whatever its plan and its recomputation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tvm import ir, relax

from tvm_distir.core.ir import flat_types, handle, is_private, relax_functions
from tvm_distir.core.ir.attributes import REPEAT_ATTR, param_names, training_notes
from tvm_distir.core.ops import TENSOR_CLASSES, is_packed_call, work_of
from tvm_distir.core.plan import Pipeline
from tvm_distir.core.rewriting import all_bindings, canonical
from tvm_distir.support import Steps, memoized_steps, unrolled


class ProductFlops(NamedTuple):
    """FLOPs of matrix products, convolutions and attention.

    Attributes
    ----------
    forward : int
        Those of the functions as they are.
    backward : int
        Those of their backward pass, which computes a product of the same size for each
        differentiable operand. Attention as one kernel counts twice its forward pass: what its
        backward kernel computes again is recomputation.
    """

    forward: int
    backward: int


class StepFlops(NamedTuple):
    """FLOPs of the products of a step over all devices and micro-batches.

    Attributes
    ----------
    model : int
        Those that the model needs, without recomputation.
    recomputed : int
        Those that the backward pass computes again; 0 where nothing is recomputed.
    """

    model: int
    recomputed: int


def step_flops(forward: ir.IRModule, step: ir.IRModule) -> StepFlops:
    """Count the FLOPs of the products of a step, before it is distributed.

    Parameters
    ----------
    forward : IRModule
        The model, with the samples of a micro-batch.
    step : IRModule
        ``forward`` itself, or its training step.

    Notes
    -----
    Model FLOPs and hardware FLOPs differ by recomputation, as in Chowdhery et al., *PaLM* (2022),
    appendix B, and Korthikanti et al. (2022), section 6: element-wise work is left out.
    """
    pipeline = Pipeline.of(step)
    notes = [training_notes(fn, "updated") for _, fn in relax_functions(step)]
    trained = {str(name) for note in notes for name in note}
    if pipeline is not None:
        trained.update(pipeline.outputs)
    if step is forward or not trained:
        return StepFlops(product_flops(step).forward, 0)
    count = 1 if pipeline is None else pipeline.schedule.micro_batches
    model = count * sum(product_flops(forward, trained))
    recomputes = any(
        policy != "none"
        for _, fn in relax_functions(step)
        for policy in training_notes(fn, "recompute").values()
    )
    return StepFlops(model, max(0, product_flops(step).forward - model) if recomputes else 0)


def product_flops(mod: ir.IRModule, trained: Collection[str] = ()) -> ProductFlops:
    """Count the FLOPs of the products of a module's public functions, on full tensors.

    Parameters
    ----------
    mod : IRModule
        A module before it is distributed. A function that a step repeats counts as often, and a
        stage's function once for each stage that shares it. Both branches of an ``If`` count.
    trained : collection of str
        Names of the parameters that have a gradient.
    """
    mod, pipeline = canonical(mod), Pipeline.of(mod)
    stages = Counter(stage.function for stage in pipeline.stages) if pipeline else None
    counter = _Counter(mod)
    total = ProductFlops(0, 0)
    for gv, fn in relax_functions(mod):
        name = str(gv.name_hint)
        times = int(not is_private(fn)) if stages is None else stages[name]
        if times:
            flops = counter.of(name, tuple(param in trained for param in param_names(fn)))
            total = _sum(total, flops, times)
    return total


def _sum(total: ProductFlops, flops: ProductFlops, times: int = 1) -> ProductFlops:
    return ProductFlops(*(a + times * b for a, b in zip(total, flops, strict=True)))


_NONE = ProductFlops(0, 0)


class _Counter:
    """Counter of the functions of a module, once for each set of differentiable parameters."""

    def __init__(self, mod: ir.IRModule) -> None:
        self._mod = mod
        self._functions = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}

    def of(self, name: str, trained: tuple[bool, ...]) -> ProductFlops:
        """Count the products of a function, of which some parameters are differentiable."""
        return unrolled(self._of(name, trained))

    @memoized_steps
    def _of(self, name: str, trained: tuple[bool, ...]) -> Steps[ProductFlops]:
        fn = self._functions[name]
        differentiable = {handle(param) for param, yes in zip(fn.params, trained) if yes}

        def depends(expr: Any) -> bool:
            if isinstance(expr, relax.Var):
                return handle(expr) in differentiable
            if isinstance(expr, relax.TupleGetItem):
                return depends(expr.tuple_value)
            if isinstance(expr, relax.Tuple):
                return any(map(depends, expr.fields))
            if isinstance(expr, relax.If):
                return depends(expr.true_branch.body) or depends(expr.false_branch.body)
            return isinstance(expr, ir.Call) and any(map(depends, expr.args))

        total = _NONE
        for binding in all_bindings(fn.body):
            if isinstance(binding.value, ir.Call):
                total = _sum(total, (yield from self._call(binding.value, depends)))
            if depends(binding.value) and _is_float(binding.var):
                differentiable.add(handle(binding.var))
        times = int(fn.attrs[REPEAT_ATTR]) if fn.attrs and REPEAT_ATTR in fn.attrs else 1
        return _sum(_NONE, total, times)

    def _call(self, call: Any, depends: Callable[[Any], bool]) -> Steps[ProductFlops]:
        if isinstance(call.op, ir.GlobalVar):
            name = str(call.op.name_hint)
            if name not in self._functions:
                return _NONE
            called: ProductFlops = yield self._of(name, tuple(map(depends, call.args)))
            return called
        if not isinstance(call.op, ir.Op) or is_packed_call(call):
            return _NONE
        work = work_of(call, self._mod)
        if work.kernel_class not in TENSOR_CLASSES:
            return _NONE
        operands = [
            field
            for arg in call.args
            for field in (arg.fields if isinstance(arg, relax.Tuple) else (arg,))
        ]
        count = min(2, sum(map(depends, operands)))
        if work.kernel_class == "attention" and count:
            count = 2
        return ProductFlops(work.flops, count * work.flops)


def _is_float(var: relax.Var) -> bool:
    return any(
        str(getattr(ty, "dtype", "")).startswith(("float", "bfloat")) for ty in flat_types(var.ty)
    )
