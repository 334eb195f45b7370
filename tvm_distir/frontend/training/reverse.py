# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of one dataflow block.

Per op the gradient is ours (:mod:`.gradients`) or the one TVM registers (``FPrimalGradient``).
Unlike TVM's pass ``Gradient`` it takes bfloat16, writes only what the wanted gradients need, and
registers nothing with TVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm.relax.op._op_gradient  # noqa: F401  (registers TVM's gradients)
from tvm import ir, relax
from tvm.relax.op import add, ones, zeros

from ...errors import ModelError
from ...ir import tensor_type
from .gradients import GRADIENTS, Gradient

GRAD_SUFFIX = "_grad"
"""Ends the names of the values that are gradients."""

_NO_GRADIENT = "relax.grad.no_grad"


def _variables(expr: Any) -> Iterator[Any]:
    """Variables that an expression in normal form reads."""
    if isinstance(expr, ir.Var):
        yield expr
    elif isinstance(expr, ir.Call):
        for arg in expr.args:
            yield from _variables(arg)
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from _variables(field)
    elif isinstance(expr, relax.TupleGetItem):
        yield from _variables(expr.tuple_value)


def _differentiable(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return any(_differentiable(field) for field in ty.fields)
    tensor = tensor_type(ty)
    return tensor is not None and "float" in str(tensor.dtype)


def active(bindings: Sequence[Any], wanted: Sequence[Any]) -> set[Any]:
    """Variables of a float type that depend on the wanted ones."""
    found = set(wanted)
    for binding in bindings:
        if _differentiable(binding.var.ty) and any(v in found for v in _variables(binding.value)):
            found.add(binding.var)
    return found


class _Reverse:
    """Writes the gradients of one block. ``sums``: by variable, or variable and tuple field."""

    def __init__(self, builder: relax.BlockBuilder, live: set[Any], place: str) -> None:
        self.builder, self.live, self.place = builder, live, place
        self.sums: dict[Any, Any] = {}

    def _accumulate(self, key: Any, gradient: Any, name: str) -> None:
        known = self.sums.get(key)
        total = gradient if known is None else add(known, gradient)
        if not isinstance(total, ir.Var):
            total = self.builder.emit(total, name + GRAD_SUFFIX)
        self.sums[key] = total

    def give(self, target: Any, gradient: Any) -> None:
        """Add a gradient to those of an operand."""
        if isinstance(target, relax.Tuple):
            for i, field in enumerate(target.fields):
                if any(v in self.live for v in _variables(field)):
                    self.give(field, _item(gradient, i))
        elif isinstance(target, relax.TupleGetItem):
            if target.tuple_value in self.live:
                key = (target.tuple_value, int(target.index))
                self._accumulate(key, gradient, str(target.tuple_value.name))
        elif target in self.live:
            if isinstance(target.ty, relax.TupleType):
                for i, field in enumerate(target.ty.fields):
                    if _differentiable(field):
                        self._accumulate((target, i), _item(gradient, i), str(target.name))
            else:
                self._accumulate(target, gradient, str(target.name))

    def of(self, var: Any) -> Any:
        """Gradient of a variable so far; None when nothing that counts depends on it."""
        if not isinstance(var.ty, relax.TupleType):
            return self.sums.get(var)
        known = [self.sums.get((var, i)) for i in range(len(var.ty.fields))]
        if all(k is None for k in known):
            return None
        fields = [
            k if k is not None else self.builder.emit(zeros(t.shape, str(t.dtype)))
            for k, t in zip(known, var.ty.fields, strict=True)
        ]
        return self.builder.emit(relax.Tuple(fields), str(var.name) + GRAD_SUFFIX)

    def back(self, var: Any, value: Any) -> None:
        """Hand the gradient of a binding on to what it reads."""
        gradient = self.of(var) if var in self.live else None
        if gradient is None:
            return
        if not isinstance(value, ir.Call):
            self.give(value, gradient)
            return
        parts = self._rule(value)(var, value, gradient, self.builder)
        for arg, part in zip(value.args, parts, strict=False):
            marked = isinstance(part, ir.Call) and str(part.op.name) == _NO_GRADIENT
            if part is not None and not marked and any(v in self.live for v in _variables(arg)):
                self.give(arg, part)

    def _rule(self, call: ir.Call) -> Gradient:
        if not isinstance(call.op, ir.Op):
            raise ModelError(
                "DIST0350",
                f"a call of {getattr(call.op, 'name_hint', call.op)} cannot be differentiated",
                place=self.place,
                remedy="Inline private functions; kernels need a gradient of their own.",
            )
        name = str(call.op.name)
        found = GRADIENTS.get(name) or call.op.get_attr("FPrimalGradient")
        if found is None:
            raise ModelError(
                "DIST0350",
                "the op has no gradient",
                place=f"{self.place} ({name})",
                remedy=f'Register one: tvm.relax.op.base.register_gradient("{name}", fn).',
            )
        return found


def _item(gradient: Any, index: int) -> Any:
    if isinstance(gradient, relax.Tuple):
        return gradient.fields[index]
    return relax.TupleGetItem(gradient, index)


def reverse(
    builder: relax.BlockBuilder,
    bindings: Sequence[Any],
    loss: Any,
    wanted: Sequence[Any],
    place: str = "main",
) -> list[Any]:
    """Write the gradients of a scalar into an open dataflow block.

    Parameters
    ----------
    builder : BlockBuilder
        Inside the block that holds the bindings already.
    bindings : sequence of Binding
        All that leads to the loss, in order and in normal form.
    loss : Var
        A scalar of them.
    wanted : sequence of Var
        Tensors of a float type.
    place : str
        Name of the function, for messages.

    Returns
    -------
    gradients : list of Var
        One for each wanted variable, of its type; zeros where the loss does not depend on it.

    Raises
    ------
    ModelError
        DIST0350 an op on the way has no gradient.
    """
    live = active(bindings, wanted)
    work = _Reverse(builder, live, place)
    if loss in live:
        work.give(loss, ones((), str(loss.ty.dtype)))
    for binding in reversed(bindings):
        work.back(binding.var, binding.value)
    found = []
    for var in wanted:
        gradient = work.of(var)
        if gradient is None:
            gradient = builder.emit(zeros(var.ty.shape, str(var.ty.dtype)))
        found.append(gradient)
    return found
