# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Differentiate a dataflow block in reverse mode.

The gradients of ops are those of :mod:`.call_gradients`.
Unlike TVM's pass ``Gradient`` it takes bfloat16, writes only what the wanted gradients need, and
registers nothing with TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tvm import ir, relax
from tvm.relax import Binding, BlockBuilder, Expr, Var
from tvm.relax.op import add, astype, ones, zeros

from tvm_distir.core.ir import tensor_type
from tvm_distir.core.rewriting import variables
from tvm_distir.transforms.training.autodiff.rules.transposes import before_transposing

from .call_gradients import gradient_rule
from .weight_regather import WeightRegather

GRAD_SUFFIX = "_grad"
"""Ends the names of the values that are gradients."""

_NO_GRADIENT = "relax.grad.no_grad"


def is_differentiable(ty: ir.Type) -> bool:
    """Return whether a type has a gradient: a float tensor, or a tuple with such a field."""
    if isinstance(ty, relax.TupleType):
        return any(is_differentiable(field) for field in ty.fields)
    return is_float(ty)


def is_float(ty: ir.Type) -> bool:
    """Return whether a type is a tensor of floats."""
    tensor = tensor_type(ty)
    return tensor is not None and "float" in str(tensor.dtype)


def active(bindings: Sequence[Binding], targets: Sequence[Var]) -> set[Var]:
    """Return the float variables that depend on the given ones."""
    result = set(targets)
    for binding in bindings:
        if is_differentiable(binding.var.ty) and any(v in result for v in variables(binding.value)):
            result.add(binding.var)
    return result


class Backward(Protocol):
    """Reverse of a call of a private function."""

    def write(
        self, builder: BlockBuilder, gradient: Any, regatherer: WeightRegather | None
    ) -> list[tuple[Any, Any]]:
        """Emit the reverse; return pairs of an argument and its gradient."""


class Reverse:
    """Writer of the gradients of a block.

    A gradient may be wider than its value where that is none of the block's own, a parameter.

    Parameters
    ----------
    builder : BlockBuilder
        The builder, inside the block.
    live : set of Var
        Variables on the way, see :func:`active`.
    location : str
        Name of the function, for messages.
    regatherer : WeightRegather, optional
        The rewriter that lets the backward pass read parameters again.
    calls : mapping of Var to Backward, optional
        Calls of private functions, by the variables of their values.

    Attributes
    ----------
    sums : dict
        Gradients so far, by variable, or variable and tuple field.
    """

    def __init__(
        self,
        builder: BlockBuilder,
        live: set[Var],
        location: str,
        regatherer: WeightRegather | None = None,
        calls: Mapping[Any, Backward] | None = None,
    ) -> None:
        self.builder, self.live = builder, live
        self.location, self.regatherer = location, regatherer
        self.calls = calls or {}
        self._bound: set[Var] = set()
        self.sums: dict[Any, Any] = {}

    def run(self, bindings: Sequence[Binding]) -> None:
        """Propagate gradients through bindings in reverse order."""
        self._bound = {binding.var for binding in bindings}
        for binding in reversed(bindings):
            self.back(binding.var, binding.value)

    def total(self, var: Var) -> Var:
        """Return the gradient of a variable, or zeros if it does not affect the loss."""
        gradient = self.of(var)
        return self._zeros(var.ty) if gradient is None else gradient

    def rounded(self, var: Var) -> Var:
        """Return the gradient of a variable in its type, or zeros if the loss ignores it."""
        total, tensor = self.total(var), tensor_type(var.ty)
        if tensor is None or str(total.ty.dtype) == str(tensor.dtype):
            return total
        return self.builder.emit(astype(total, str(tensor.dtype)))

    def _zeros(self, ty: ir.Type) -> Var:
        if isinstance(ty, relax.TupleType):
            return self.builder.emit(relax.Tuple([self._zeros(field) for field in ty.fields]))
        return self.builder.emit(zeros(ty.shape, str(ty.dtype)))

    def _accumulate(self, key: Any, gradient: Expr, name: str) -> None:
        cached = self.sums.get(key)
        total = gradient if cached is None else self._sum(cached, gradient)
        if not isinstance(total, ir.Var):
            total = self.builder.emit(total, name + GRAD_SUFFIX)
        self.sums[key] = total

    def _sum(self, first: Expr, other: Expr) -> Expr:
        """Return the sum of two gradients in the wider of their types."""
        terms = [self.builder.normalize(term) for term in (first, other)]
        if len({str(term.ty.dtype) for term in terms}) > 1:
            terms = [self.builder.normalize(self._in(term, "float32")) for term in terms]
        return add(*terms)

    def _in(self, gradient: Expr, dtype: str) -> Expr:
        """Cast a gradient to a type."""
        gradient = self.builder.normalize(gradient)
        return gradient if str(gradient.ty.dtype) == dtype else astype(gradient, dtype)

    def give(self, target: Expr, gradient: Expr) -> None:
        """Accumulate a gradient of an operand."""
        target, gradient = before_transposing(self.builder, target, gradient)
        if isinstance(target, relax.Tuple):
            for i, field in enumerate(target.fields):
                if any(v in self.live for v in variables(field)):
                    self.give(field, _item(gradient, i))
        elif isinstance(target, relax.TupleGetItem):
            if isinstance(target.tuple_value, relax.Tuple):  # written out, which is normal form
                self.give(target.tuple_value.fields[int(target.index)], gradient)
            elif target.tuple_value in self.live:
                key = (target.tuple_value, int(target.index))
                field = tensor_type(target.tuple_value.ty.fields[key[1]])
                if field is not None:
                    gradient = self._in(gradient, str(field.dtype))
                self._accumulate(key, gradient, str(target.tuple_value.name))
        elif target in self.live:
            if isinstance(target.ty, relax.TupleType):
                for i, field in enumerate(target.ty.fields):
                    if is_differentiable(field):
                        self._accumulate((target, i), _item(gradient, i), str(target.name))
            else:
                if target in self._bound:
                    gradient = self._in(gradient, str(target.ty.dtype))
                self._accumulate(target, gradient, str(target.name))

    def of(self, var: Var) -> Any:
        """Return the gradient of a variable so far, or None if there is none."""
        if not isinstance(var.ty, relax.TupleType):
            return self.sums.get(var)
        cached = [self.sums.get((var, i)) for i in range(len(var.ty.fields))]
        if all(k is None for k in cached):
            return None
        pairs = zip(cached, var.ty.fields, strict=True)
        fields = [self._zeros(t) if k is None else k for k, t in pairs]
        return self.builder.emit(relax.Tuple(fields), str(var.name) + GRAD_SUFFIX)

    def back(self, var: Var, value: Expr) -> None:
        """Propagate the gradient of a binding to its operands."""
        gradient = self.of(var) if var in self.live else None
        if gradient is None:
            return
        if var in self.calls:
            for arg, part in self.calls[var].write(self.builder, gradient, self.regatherer):
                self.give(arg, part)
            return
        if not isinstance(value, ir.Call):
            self.give(value, gradient)
            return
        reread_call = value if self.regatherer is None else self.regatherer.again(value)
        parts = gradient_rule(value, self.location)(var, reread_call, gradient, self.builder)
        for arg, part in zip(value.args, parts, strict=False):
            marked = isinstance(part, ir.Call) and str(part.op.name) == _NO_GRADIENT
            if part is not None and not marked and any(v in self.live for v in variables(arg)):
                self.give(arg, part)


def _item(gradient: Expr, index: int) -> Expr:
    if isinstance(gradient, relax.Tuple):
        return gradient.fields[index]
    return relax.TupleGetItem(gradient, index)


def reverse(
    builder: BlockBuilder,
    bindings: Sequence[Binding],
    loss: Expr,
    targets: Sequence[Var],
    regatherer: WeightRegather | None = None,
    calls: Mapping[Any, Backward] | None = None,
    seed: Any = None,
) -> list[Any]:
    """Write the gradients of a scalar into an open dataflow block.

    Parameters
    ----------
    builder : BlockBuilder
        The builder, inside the block that holds the bindings already.
    bindings : sequence of Binding
        The bindings that lead to the loss, in order and in normal form.
    loss : Var
        A scalar of them.
    targets : sequence of Var
        Tensors of a float type.
    regatherer : WeightRegather, optional
        The rewriter that lets the backward pass read parameters again.
    calls : mapping of Var to Backward, optional
        Calls of private functions, by the variables of their values.
    seed : expression, optional
        The gradient of the scalar to begin with, of its type; None: the number 1.

    Returns
    -------
    gradients : list of Var
        The gradient of each wanted variable, of its type; zeros where the loss does not depend on
        it.

    Raises
    ------
    ModelError
        DIST0350 an op on the way has no gradient.
    """
    work = Reverse(builder, active(bindings, targets), "main", regatherer, calls)
    if loss in work.live:
        work.give(loss, ones((), str(loss.ty.dtype)) if seed is None else seed)
    work.run(bindings)
    return [work.rounded(var) for var in targets]
