# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of PrimFunc calls whose backward kernel was registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import zeros

from tvm_distir.core.ir import flat_types
from tvm_distir.core.ops import note_change
from tvm_distir.core.rewriting import leaves_of, typed, with_values
from tvm_distir.support import ModelError, nearest

from .registry import Gradients, item, register_gradient

Backward = Callable[[ir.Call, Any, Any, relax.BlockBuilder], list[Any]]
"""``(call, results, gradients of the results, builder)`` to a gradient, or None, per operand."""

_MARKED = "relax.call_tir_with_grad"
_PAIRS: dict[str, Backward] = {}
_KERNELS: dict[str, tuple[ir.GlobalVar, tirx.PrimFunc]] = {}


def backward_kernel(name: str) -> tuple[ir.GlobalVar, tirx.PrimFunc] | None:
    """Return a kernel that gradients call, by the name of its handle."""
    return _KERNELS.get(name)


@dataclass(frozen=True)
class _Kernel:
    """Backward kernel without its unread parameters, which could not be sharded."""

    handle: ir.GlobalVar
    read: tuple[int, ...]

    def call(self, operands: Sequence[Var], ty: ir.Type) -> ir.Call:
        """Call the kernel on the operands, results and gradients that it reads."""
        return relax.call_tir(self.handle, relax.Tuple([operands[i] for i in self.read]), ty)


def _kept(kernel_source: tirx.PrimFunc, name: str) -> _Kernel:
    """Register a backward kernel."""
    used = set(tirx.analysis.undefined_vars(kernel_source.body, []))
    *inputs, output = kernel_source.params
    read = tuple(i for i, param in enumerate(inputs) if param in used)
    params = [*(inputs[i] for i in read), output]
    kernel = tirx.PrimFunc(params, kernel_source.body, kernel_source.ret_type, kernel_source.attrs)
    kernel = kernel.without_attr("global_symbol")
    handle = relax.BlockBuilder().add_func(kernel, name)
    _KERNELS[str(handle.name_hint)] = handle, kernel
    return _Kernel(handle, read)


def _with_kernels(kernels: Sequence[_Kernel | None]) -> Backward:
    """Build a backward pass with a single kernel per non-constant operand."""

    def backward(call: ir.Call, results: Any, grads: Any, builder: BlockBuilder) -> list[Expr]:
        operands = [x for x, _, _ in leaves_of(call.args[1])]
        available = [*operands, *results, *grads]
        return [
            None if kernel is None else kernel.call(available, x.ty)
            for kernel, x in zip(kernels, operands, strict=True)
        ]

    return backward


def register_primfunc_gradient(
    name: str, backward: Sequence[tirx.PrimFunc | None] | Backward, override: bool = False
) -> None:
    """Register the gradient of a kernel, so that models that call it can be trained.

    Parameters
    ----------
    name : str
        The kernel's name in its module; of a ``call_tir_with_grad`` its ``te_grad_name``.
    backward : sequence of PrimFunc, or callable
        A kernel per operand: its parameters are all operands of the forward kernel, its results,
        their gradients, and then, to be written, the gradient of the operand; None for one that
        counts as constant. (One kernel for several would be cut along what they have in common
        only: where samples are cut, the gradient of data is a part, that of a weight a term.) Or
        a function ``(call, results, gradients, builder)``, of the forward call, the lists of its
        results and of their gradients, and the open block, to an expression or None per operand,
        of Relax ops.
    override : bool
        Replace what was registered for the name.

    Raises
    ------
    ModelError
        DIST0353 the name has a gradient already.

    Examples
    --------
    >>> register_primfunc_gradient("scale", [scale_by_data, scale_by_weight])
    """
    if name in _PAIRS and not override:
        remedy = "Pass override=True to replace it."
        raise ModelError(
            "DIST0353", "the kernel already has a gradient", location=name, remedy=remedy
        )
    note_change()
    if callable(backward):
        _PAIRS[name] = backward
        return
    kernels = [
        None if kernel is None else _kept(kernel, f"gradient_of_{name}_{position}")
        for position, kernel in enumerate(backward)
    ]
    _PAIRS[name] = _with_kernels(kernels)


def without_mark(value: Expr) -> Expr:
    """Return a ``call_tir`` in place of a call that names its gradient."""
    if not isinstance(value, ir.Call) or value.op != ir.Op.get(_MARKED):
        return value
    call = ir.Call(ir.Op.get("relax.call_tir"), list(value.args), None, list(value.ty_args))
    return typed(call, value.ty)


def unmarked(fn: relax.Function) -> relax.Function:
    """Return a function whose kernel calls do not name their gradients."""
    return with_values(fn, lambda _, value: without_mark(value))


def _name(call: ir.Call) -> str:
    """Return the name under which the gradient of a called kernel is looked up."""
    if str(call.op.name) == _MARKED:
        return str(call.attrs.te_grad_name)
    return str(call.args[0].name_hint)


@register_gradient("call_tir", "call_tir_with_grad")
def _kernel(y: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Return the gradients of the operands in their tuple; those without are constant."""
    name = _name(call)
    if name not in _PAIRS:
        hint = nearest(name, _PAIRS) if _PAIRS else ""
        problem = f"the kernel {name} has no gradient"
        remedy = f'Register one: register_primfunc_gradient("{name}", ...). {hint}'.strip()
        raise ModelError("DIST0350", problem, location=name, remedy=remedy)
    many = isinstance(y.ty, relax.TupleType)
    count = len(flat_types(y.ty))
    results = [builder.emit(item(y, i)) for i in range(count)] if many else [y]
    grads = [builder.emit(item(grad, i)) for i in range(count)] if many else [grad]
    operands = [x for x, _, _ in leaves_of(call.args[1])]
    parts = _PAIRS[name](call, results, grads, builder)
    gradients = [
        zeros(x.ty.shape, str(x.ty.dtype)) if part is None else part
        for x, part in zip(operands, parts, strict=True)
    ]
    return [None, relax.Tuple(gradients), *[None] * (len(call.args) - 2)]
