# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the new weights and states, with a function for repeated layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import add, multiply, where
from tvm.relax.op import sum as sum_op

from tvm_distir.core.plan import plain_name
from tvm_distir.core.rewriting import tuple_of
from tvm_distir.transforms.training.autodiff.function_table import (
    NamedFunctions,
    private_function,
    write_function,
)
from tvm_distir.transforms.training.autodiff.tape import CallGradient
from tvm_distir.transforms.training.optimizers.protocol import Optimizer, Shared, cast

from .scaling import FACTOR, FINITE

_UPDATE, _SQUARES = "_update", "_squares"


def updated_name(name: str) -> str:
    """Return the name of the value that is a new weight or state."""
    return f"{plain_name(name)}_updated"


@dataclass
class UpdatedWeight:
    """Parameter that the step updates, with its states.

    Attributes
    ----------
    name : str
    var : Var
    states : list of Var
    names : list of str
        The names of the states.
    """

    name: str
    var: Var
    states: list[Var] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Owner:
    """Call of a layer, whose weights are updated by a single call too.

    Attributes
    ----------
    name : str
        The name of the layer's function.
    label : str
        The name of the call's value.
    """

    name: str
    label: str


Rows = list[tuple[UpdatedWeight, Any, str]]
"""Weights, their gradients, and what the layer's function calls the weights."""

Groups = dict[Owner | None, Rows]
"""The rows by layer; under None those of no layer, or of a layer that is called once."""


def grouped(
    builder: BlockBuilder,
    calls: Iterable[CallGradient],
    weights: Sequence[UpdatedWeight],
    gradients: Sequence[Var],
) -> Groups:
    """Group weights by the call that computes their gradients, see :data:`Groups`."""
    differentiated = [call for call in calls if call.back is not None]
    times = Counter(call.pair.name for call in differentiated)
    owners = {
        call.back: (call, Owner(call.pair.name, call.label))
        for call in differentiated
        if times[call.pair.name] > 1
    }
    layers: Groups = {}
    for weight, gradient in zip(weights, gradients, strict=True):
        producer = builder.lookup_binding(gradient)
        back = producer.tuple_value if isinstance(producer, relax.TupleGetItem) else None
        if back in owners:
            call, owner = owners[back]
            label = call.pair.params[call.pair.given[int(producer.index)]]
            layers.setdefault(owner, []).append((weight, gradient, label))
        else:
            layers.setdefault(None, []).append((weight, gradient, weight.name))
    return layers


class Updates:
    """Writer of the updates of weights.

    Parameters
    ----------
    builder : BlockBuilder
        The builder, inside the block of ``main``.
    optimizer : Optimizer
    functions : NamedFunctions
        Gets the functions of the layers.
    written : dict, optional
        The functions made so far; further functions are added.
    """

    def __init__(
        self,
        builder: BlockBuilder,
        optimizer: Optimizer,
        functions: NamedFunctions,
        written: dict[Any, ir.GlobalVar] | None = None,
    ) -> None:
        self.builder, self.optimizer, self.functions = builder, optimizer, functions
        self._functions = {} if written is None else written

    def squares(self, groups: Groups) -> Var:
        """Emit the sum of the squares of all gradients, float32 ()."""
        total: Any = None
        for owner, rows in groups.items():
            gradients = [gradient for _, gradient, _ in rows]
            if owner is None:
                part = _squares(self.builder, gradients)
            else:
                part = self._squares_of(owner, gradients)
            total = part if total is None else self.builder.emit(add(total, part))
        return total

    def write(self, groups: Groups, shared: Shared) -> dict[str, Expr]:
        """Return the new weights and states by name.

        The ops of an update of a weight of no layer are adjacent, so that they can be one kernel.
        """
        result: dict[str, Expr] = {}
        for owner, rows in groups.items():
            if owner is None:
                result.update(self._updated(self.builder, self.builder.emit_output, rows, shared))
            else:
                result.update(self._layer(owner, rows, shared))
        return result

    def _updated(
        self, builder: BlockBuilder, emit: Callable[[Expr, str], Var], rows: Rows, shared: Shared
    ) -> list[tuple[str, Var]]:
        """Write the updates of weights; return the emitted new weights and states, with names."""
        result = []
        for weight, gradient, _ in rows:
            new = self._new_values(builder, weight, gradient, shared)
            for name, value in zip([weight.name, *weight.names], new, strict=True):
                is_bound = isinstance(value, ir.Var)
                result.append((name, value if is_bound else emit(value, updated_name(name))))
        return result

    def _new_values(
        self, builder: BlockBuilder, weight: UpdatedWeight, gradient: Expr, shared: Shared
    ) -> list[Expr]:
        var, optimizer = weight.var, self.optimizer
        if FACTOR in shared or optimizer.wide:
            gradient = cast(builder, gradient, "float32")
        if FACTOR in shared:
            gradient = builder.emit(multiply(gradient, shared[FACTOR]))
        if not optimizer.wide:
            gradient = cast(builder, gradient, str(var.ty.dtype))
        new, states = optimizer.update(builder, var, gradient, weight.states, shared)
        if FINITE not in shared:
            return [new, *states]
        old = [var, *weight.states]
        new_values = [new if isinstance(new, ir.Var) else builder.emit(new), *states]
        return [where(shared[FINITE], n, o) for n, o in zip(new_values, old, strict=True)]

    def _squares_of(self, owner: Owner, gradients: list[Var]) -> Var:
        """Emit the call that sums the squares of a layer's gradients."""
        key = (_SQUARES, owner.name, *(str(gradient.ty) for gradient in gradients))
        if key not in self._functions:
            params = [relax.Var(f"grad{i}", g.ty) for i, g in enumerate(gradients)]
            bindings, total = write_function(params, lambda builder: _squares(builder, params))
            title = owner.name + _SQUARES
            function = private_function(title, params, bindings, total)
            self._functions[key] = self.functions.add(title, function)
        call = ir.Call(self._functions[key], gradients)
        return self.builder.emit(call, f"{owner.label}{_SQUARES}")

    def _layer(self, owner: Owner, rows: Rows, shared: Shared) -> Mapping[str, Expr]:
        """Emit the call that updates the weights of a layer."""
        args = _operands(rows, shared)
        labels = [label for _, _, label in rows]
        key = (_UPDATE, owner.name, *labels, *shared, *(str(arg.ty) for arg in args))
        if key not in self._functions:
            self._functions[key] = self._function(owner.name, rows, shared)
        new = self.builder.emit(ir.Call(self._functions[key], args), f"{owner.label}{_UPDATE}")
        names = [name for weight, _, _ in rows for name in (weight.name, *weight.names)]
        return {name: relax.TupleGetItem(new, k) for k, name in enumerate(names)}

    def _function(self, name: str, rows: Rows, shared: Shared) -> ir.GlobalVar:
        """Write ``(*weights, *gradients, *states, *shared) -> (*new weights and states,)``."""
        inner: Rows = []
        for weight, gradient, label in rows:
            names = [f"{label}_{n.removeprefix(f'{weight.name}.')}" for n in weight.names]
            pairs = zip(names, weight.states, strict=True)
            states = [relax.Var(title, state.ty) for title, state in pairs]
            param = UpdatedWeight(label, relax.Var(label, weight.var.ty), states, names)
            inner.append((param, relax.Var(f"{label}_grad", gradient.ty), label))
        of_all = {title: relax.Var(title, value.ty) for title, value in shared.items()}
        params = _operands(inner, of_all)

        def write(builder: BlockBuilder) -> list[Var]:
            return [new for _, new in self._updated(builder, builder.emit, inner, of_all)]

        bindings, new = write_function(params, write)
        title = name + _UPDATE
        return self.functions.add(title, private_function(title, params, bindings, tuple_of(new)))


def _operands(rows: Rows, shared: Shared) -> list[Any]:
    """Return what an update of weights reads: ``(*weights, *gradients, *states, *shared)``."""
    return [
        *(weight.var for weight, _, _ in rows),
        *(gradient for _, gradient, _ in rows),
        *(state for weight, _, _ in rows for state in weight.states),
        *shared.values(),
    ]


def _squares(builder: BlockBuilder, gradients: Sequence[Var]) -> Var:
    """Emit the sum of the squares of some tensors, float32 ()."""
    total: Any = None
    for gradient in gradients:
        wide = cast(builder, gradient, "float32")
        part = builder.emit(sum_op(builder.emit(multiply(wide, wide))))
        total = part if total is None else builder.emit(add(total, part))
    return total
