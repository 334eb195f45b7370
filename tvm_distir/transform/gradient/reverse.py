# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of one dataflow block.

Per op the gradient is ours (:mod:`.gradients`) or the one TVM registers (``FPrimalGradient``).
Unlike TVM's pass ``Gradient`` it takes bfloat16, writes only what the wanted gradients need, and
registers nothing with TVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import tvm.relax.op._op_gradient  # noqa: F401  (registers TVM's gradients)
from tvm import ir, relax
from tvm.relax.op import add, ones, zeros

from ...errors import ModelError
from ...ir import tensor_type
from ...ir.rewrite import substitute, variables
from . import convolutions, gradients, norms  # noqa: F401 (they register theirs)
from .registry import GRADIENTS, Gradient

GRAD_SUFFIX = "_grad"
"""Ends the names of the values that are gradients."""

AGAIN_SUFFIX = "_again"
"""Ends the names of the values that are parameters, or views of them, read anew."""

_NO_GRADIENT = "relax.grad.no_grad"
_VIEWS = ("relax.astype", "relax.permute_dims", "relax.reshape")


def _differentiable(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return any(_differentiable(field) for field in ty.fields)
    tensor = tensor_type(ty)
    return tensor is not None and "float" in str(tensor.dtype)


def active(bindings: Sequence[Any], wanted: Sequence[Any]) -> set[Any]:
    """Variables of a float type that depend on the wanted ones."""
    found = set(wanted)
    for binding in bindings:
        if _differentiable(binding.var.ty) and any(v in found for v in variables(binding.value)):
            found.add(binding.var)
    return found


class Reread:
    """Lets the backward part read parameters anew (reshaped to what they are), and their views.

    Parameters
    ----------
    builder : BlockBuilder
    params : sequence of Var
    bindings : sequence of Binding
        Of the forward part.

    Attributes
    ----------
    marks : dict of Var to Var
        Of the parameters that were read anew: what they are called there.
    """

    def __init__(
        self, builder: relax.BlockBuilder, params: Sequence[Any], bindings: Sequence[Any]
    ) -> None:
        self.builder, self.params = builder, set(params)
        self.marks: dict[Any, Any] = {}
        self._again: dict[Any, Any] = {}
        self._views = self._views_of(bindings)

    def _views_of(self, bindings: Sequence[Any]) -> dict[Any, ir.Call]:
        """Values that are a reordered or cast parameter, by variable."""
        found: dict[Any, ir.Call] = {}
        for binding in bindings:
            value = binding.value
            if isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
                source = value.args[0] if len(value.args) else None
                known = source in self.params or source in found
                if known and str(value.op.name) in _VIEWS:
                    found[binding.var] = value
        return found

    def _variable(self, var: Any) -> Any:
        if var not in self.params and var not in self._views:
            return var
        if var not in self._again:
            if var in self.params:
                value: Any = relax.op.reshape(var, var.ty.shape)
            else:
                view = self._views[var]
                args = [self._variable(view.args[0]), *list(view.args)[1:]]
                value = ir.Call(view.op, args, view.attrs, list(view.ty_args))
            self._again[var] = self.builder.emit(value, f"{var.name}{AGAIN_SUFFIX}")
            if var in self.params:
                self.marks[var] = self._again[var]
        return self._again[var]

    def __call__(self, call: ir.Call) -> ir.Call:
        """Return the call with its parameters, and views of them, read anew."""
        if not any(v in self.params or v in self._views for v in variables(call)):
            return call
        env = {v: self._variable(v) for v in variables(call)}
        return cast(ir.Call, substitute(call, env))


class _Reverse:
    """Writes the gradients of one block. ``sums``: by variable, or variable and tuple field."""

    def __init__(
        self, builder: relax.BlockBuilder, live: set[Any], place: str, reread: Reread | None
    ) -> None:
        self.builder, self.live, self.place, self.reread = builder, live, place, reread
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
                if any(v in self.live for v in variables(field)):
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
        again = value if self.reread is None else self.reread(value)
        parts = self._rule(value)(var, again, gradient, self.builder)
        for arg, part in zip(value.args, parts, strict=False):
            marked = isinstance(part, ir.Call) and str(part.op.name) == _NO_GRADIENT
            if part is not None and not marked and any(v in self.live for v in variables(arg)):
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
    reread: Reread | None = None,
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
    reread : Reread, optional
        What the backward part reads anew.

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
    work = _Reverse(builder, live, place, reread)
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
