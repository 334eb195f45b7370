# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of kernels: calls of PrimFuncs whose backward part was registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.op import zeros

from ...errors import ModelError, nearest
from ...ir import flat_types
from ...ir.rewrite import leaves_of
from .registry import item, register_gradient

KERNEL_ATTR = "dist.gradient"
"""Attribute of a PrimFunc: under which name its gradient is registered, where not its own."""

Backward = Callable[[ir.Call, Any, Any, relax.BlockBuilder], list[Any]]
"""``(call, results, gradients of the results, builder)`` to a gradient, or None, per operand."""

_PAIRS: dict[str, Backward] = {}


def _is_float(ty: Any) -> bool:
    return "float" in str(ty.dtype)


def _with_kernel(kernel: tirx.PrimFunc, name: str) -> Backward:
    """A backward part that is one kernel."""

    def backward(call: ir.Call, results: Any, grads: Any, builder: relax.BlockBuilder) -> list[Any]:
        operands = list(call.args[1].fields)
        given = [*operands, *results, *grads]
        types = [x.ty for x in operands if _is_float(x.ty)]
        handle = builder.add_func(kernel.without_attr("global_symbol"), name)
        one = len(types) == 1
        found = builder.emit(relax.call_tir(handle, given, types[0] if one else types))
        parts = iter([found] if one else [item(found, i) for i in range(len(types))])
        return [next(parts) if _is_float(x.ty) else None for x in operands]

    return backward


def register_primfunc_gradient(
    name: str, backward: tirx.PrimFunc | Backward, override: bool = False
) -> None:
    """Say what the gradient of a kernel is, so that models that call it can be trained.

    Parameters
    ----------
    name : str
        The kernel's name in its module, or what its attribute ``dist.gradient`` says.
    backward : PrimFunc or callable
        A kernel: its parameters are all operands of the forward one, its results, their gradients,
        and then, to be written, a gradient of the shape of each operand of a float type. Or a
        function ``(call, results, gradients, builder)``, of the forward ``call_tir``, the lists of
        its results and of their gradients, and the open block, to one expression (or None) per
        operand.
    override : bool
        Replace what was registered for the name.

    Raises
    ------
    ModelError
        DIST0353 the name has a gradient already.

    Examples
    --------
    >>> register_primfunc_gradient("my_relu", my_relu_backward)
    """
    if name in _PAIRS and not override:
        raise ModelError(
            "DIST0353",
            "the kernel has a gradient already",
            place=name,
            remedy="Pass override=True to replace it.",
        )
    if isinstance(backward, tirx.PrimFunc):
        _PAIRS[name] = _with_kernel(backward, f"{name}_backward")
    else:
        _PAIRS[name] = backward


def _name(call: ir.Call, builder: relax.BlockBuilder) -> str:
    """Under which name the gradient of a called kernel is looked up."""
    handle = call.args[0]
    kernel = builder.get().functions.get(handle)
    said = None if kernel is None or kernel.attrs is None else kernel.attrs.get(KERNEL_ATTR)
    return str(said) if said is not None else str(handle.name_hint)


@register_gradient("call_tir", "call_tir_with_grad")
def _kernel(y: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Of the operands in their tuple; what has none counts as constant."""
    name = _name(call, builder)
    if name not in _PAIRS:
        hint = nearest(name, _PAIRS) if _PAIRS else ""
        raise ModelError(
            "DIST0350",
            f"the kernel {name} has no gradient",
            place=name,
            remedy=f'Register one: register_primfunc_gradient("{name}", ...). {hint}'.strip(),
        )
    many = isinstance(y.ty, relax.TupleType)
    count = len(flat_types(y.ty))
    results = [builder.emit(item(y, i)) for i in range(count)] if many else [y]
    grads = [builder.emit(item(grad, i)) for i in range(count)] if many else [grad]
    operands = [x for x, _, _ in leaves_of(call.args[1])]
    parts = _PAIRS[name](call, results, grads, builder)
    found = [
        zeros(x.ty.shape, str(x.ty.dtype)) if part is None else part
        for x, part in zip(operands, parts, strict=True)
    ]
    return [None, relax.Tuple(found), *[None] * (len(call.args) - 2)]
