# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the forward pass of a function, and record the inputs of its reverse."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tvm import ir, relax
from tvm.relax import Binding, BlockBuilder, Expr, Var

from tvm_distir.core.rewriting import substitute
from tvm_distir.transforms.training.autodiff.rules.primfuncs import without_mark

from .reverse import is_differentiable
from .weight_regather import WeightRegather

Differentiated = tuple[bool, ...]
"""A flag per parameter of a function: whether its gradient is asked for."""


@dataclass(frozen=True)
class ForwardBackward:
    """Forward and backward pass of a function.

    Attributes
    ----------
    name : str
        The name of the function.
    forward : GlobalVar
        ``(*params) -> (y, (*saved,))``; the function itself where nothing is saved.
    backward : GlobalVar
        ``(grad, (*saved,), *needed) -> (*given,)``, without the second where nothing is saved.
    saves : bool
    needed : tuple of int
        The parameters that the backward pass reads.
    given : tuple of int
        The parameters whose gradients it returns.
    params : tuple of str
        Names of the parameters.
    differentiated : tuple of bool
    """

    name: str
    forward: ir.GlobalVar
    backward: ir.GlobalVar
    saves: bool
    needed: tuple[int, ...]
    given: tuple[int, ...]
    params: tuple[str, ...]
    differentiated: Differentiated


class PairMaker(Protocol):
    """Protocol of builders of forward and backward functions."""

    def differentiates(self, call: Any) -> bool:
        """Return whether a value is a call of a function that has a backward pass."""

    def pair(self, name: str, differentiated: Differentiated, label: str) -> ForwardBackward:
        """Return the forward and backward pass of a call, for the requested gradients."""


@dataclass
class CallGradient:
    """Reverse of a call of a private function.

    Attributes
    ----------
    pair : ForwardBackward
    args : sequence of expression
    saved : Var or None
    label : str
        Name of the call's value.
    made : Var or None
        The call of the forward pass, once it is written.
    back : Var or None
        The call of the backward pass, once it is written.
    """

    pair: ForwardBackward
    args: Sequence[Expr]
    saved: Any
    label: str
    made: Any = field(default=None)
    back: Any = field(default=None)

    def write(
        self, builder: BlockBuilder, gradient: Expr, regatherer: WeightRegather | None
    ) -> list[tuple[Any, Any]]:
        """Emit the call of the backward pass; return pairs of an argument and its gradient."""
        needed = [self.args[i] for i in self.pair.needed]
        if regatherer is not None:
            needed = [regatherer.again(arg) for arg in needed]
        first = [gradient] if self.saved is None else [gradient, self.saved]
        call = ir.Call(self.pair.backward, [*first, *needed])
        back = self.back = builder.emit(call, f"{self.label}_back")
        numbered = enumerate(self.pair.given)
        return [(self.args[i], relax.TupleGetItem(back, k)) for k, i in numbered]


class Tape:
    """Emitter of bindings in order that replaces calls of private functions by forward passes.

    Parameters
    ----------
    builder : BlockBuilder
        The builder, inside the block to write to.
    pairs : PairMaker
    live : set of Var
        Variables on the way from what gradients are asked of.

    Attributes
    ----------
    env : dict of Var to Var
        The variable that represents each variable of the model.
    bindings : list of Binding
        The emitted bindings, with the values of the model.
    calls : dict of Var to CallGradient
    """

    def __init__(self, builder: BlockBuilder, pairs: PairMaker, live: set[Var]) -> None:
        self.builder, self.pairs, self.live = builder, pairs, set(live)
        self.env: dict[Var, Expr] = {}
        self.bindings: list[Binding] = []
        self.calls: dict[Var, CallGradient] = {}

    def add(self, var: Var, value: Expr) -> Var:
        """Emit the value of a variable of the model; return the new value."""
        if isinstance(value, ir.Var):
            self.env[var] = value
            return value
        name = str(var.name)
        call = self._call(var, value)
        if call is None:
            new = self.builder.emit(without_mark(value), name)
        else:
            title = f"{name}_both" if call.pair.saves else name
            new = call.made = self.builder.emit(ir.Call(call.pair.forward, value.args[:]), title)
            if call.pair.saves:
                new = self.builder.emit(relax.TupleGetItem(call.made, 0), name)
                call.saved = self.builder.emit(relax.TupleGetItem(call.made, 1), f"{name}_saved")
            self.calls[new] = call
        if var in self.live:
            self.live.add(new)
        self.env[var] = new
        self.bindings.append(relax.VarBinding(new, value))
        return new

    def emit(self, value: Expr, name: str = "") -> Var:
        """Emit and record a value that the model does not have, such as a loss."""
        if self.pairs.differentiates(value):
            var = relax.Var(name or "value", self.builder.normalize(value).ty)
            self.live.add(var)
            return self.add(var, value)
        return self._remembered(self.builder.emit(value, name))

    def output(self, value: Expr, name: str) -> Var:
        """Emit and record such a value as an output of the block."""
        if self.pairs.differentiates(value):
            value = self.emit(value)
        return self._remembered(self.builder.emit_output(value, name))

    def _remembered(self, var: Var) -> Var:
        self.bindings.append(relax.VarBinding(var, self.builder.lookup_binding(var)))
        return var

    def replaced(self, expr: Expr) -> Expr:
        """Return an expression of the model over the emitted values."""
        return substitute(expr, self.env)

    def _call(self, var: Var, value: Expr) -> CallGradient | None:
        if var not in self.live or not self.pairs.differentiates(value):
            return None
        differentiated = differentiated_of(value, self.live)
        pair = self.pairs.pair(str(value.op.name_hint), differentiated, str(var.name))
        return CallGradient(pair, value.args[:], None, str(var.name))


def differentiated_of(call: ir.Call, live: Container[Var]) -> Differentiated:
    """Return which arguments of a call are on the way from what gradients are asked of."""
    return tuple(_on_the_way(arg, live) for arg in call.args[:])


def _on_the_way(arg: Expr, live: Container[Var]) -> bool:
    if isinstance(arg, relax.Tuple):
        return any(_on_the_way(field, live) for field in arg.fields)
    if isinstance(arg, relax.TupleGetItem):
        return _on_the_way(arg.tuple_value, live)
    return arg in live and is_differentiable(arg.ty)
