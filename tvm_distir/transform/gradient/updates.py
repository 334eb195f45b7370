# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""New weights and states: those of a layer, whose gradients one call makes, by one function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax

from ...plan import plain_name
from .functions import Functions, private_function, tuple_of, written
from .optimizers import Optimizer
from .tape import CallGradient

UPDATED_SUFFIX = "_updated"
"""Ends the names of the values that are new weights and states."""

_UPDATE = "_update"


@dataclass
class Weight:
    """A parameter that the step updates, and its states.

    Attributes
    ----------
    name : str
    var : Var
    states : list of Var
    names : list of str
        Of the states.
    """

    name: str
    var: Any
    states: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


class Updates:
    """Writes the updates of weights.

    Parameters
    ----------
    builder : BlockBuilder
        Inside the block of ``main``.
    optimizer : Optimizer
    functions : Functions
        Gets the functions of the layers.
    calls : iterable of CallGradient
        What made gradients.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        optimizer: Optimizer,
        functions: Functions,
        calls: Iterable[CallGradient],
    ) -> None:
        self.builder, self.optimizer, self.functions = builder, optimizer, functions
        self.backs = {call.back: call for call in calls if call.back is not None}
        self._made: dict[Any, ir.GlobalVar] = {}

    def write(
        self, weights: Sequence[Weight], gradients: Sequence[Any], shared: tuple[Any, ...]
    ) -> dict[str, Any]:
        """Return the new weights and states by name, not emitted yet."""
        found: dict[str, Any] = {}
        layers: dict[Any, list[tuple[Weight, Any, int]]] = {}
        for weight, gradient in zip(weights, gradients, strict=True):
            made = self.builder.lookup_binding(gradient)
            back = made.tuple_value if isinstance(made, relax.TupleGetItem) else None
            if back in self.backs:
                layers.setdefault(back, []).append((weight, gradient, int(made.index)))
            else:
                new = self._updated(self.builder, weight, gradient, shared)
                found.update(zip([weight.name, *weight.names], new, strict=True))
        for back, rows in layers.items():
            found.update(self._layer(self.backs[back], rows, shared))
        return found

    def _updated(
        self, builder: relax.BlockBuilder, weight: Weight, gradient: Any, shared: tuple[Any, ...]
    ) -> list[Any]:
        new, states = self.optimizer.update(builder, weight.var, gradient, weight.states, shared)
        return [new, *states]

    def _layer(
        self, call: CallGradient, rows: list[tuple[Weight, Any, int]], shared: tuple[Any, ...]
    ) -> Mapping[str, Any]:
        """Emit the call that updates the weights of a layer."""
        weights = [weight for weight, _, _ in rows]
        args = [
            *(weight.var for weight in weights),
            *(gradient for _, gradient, _ in rows),
            *(state for weight in weights for state in weight.states),
            *shared,
        ]
        labels = [call.pair.params[call.pair.given[index]] for _, _, index in rows]
        key = (call.pair.name, *labels, *(str(arg.ty) for arg in args))
        if key not in self._made:
            self._made[key] = self._function(call.pair.name, labels, weights, args)
        new = self.builder.emit(ir.Call(self._made[key], args), f"{call.label}{_UPDATE}")
        names = [name for weight in weights for name in (weight.name, *weight.names)]
        return {name: relax.TupleGetItem(new, k) for k, name in enumerate(names)}

    def _function(
        self, name: str, labels: list[str], weights: list[Weight], args: list[Any]
    ) -> ir.GlobalVar:
        """Write ``(*weights, *gradients, *states, *shared) -> (*new weights and states,)``."""
        slots = [
            (label, state.removeprefix(f"{weight.name}."))
            for label, weight in zip(labels, weights, strict=True)
            for state in weight.names
        ]
        wishes = [*labels, *(f"{label}_grad" for label in labels)]
        wishes += [f"{label}_{slot}" for label, slot in slots]
        wishes += [f"shared{i}" for i in range(len(args) - len(wishes))]
        params = [relax.Var(wish, arg.ty) for wish, arg in zip(wishes, args, strict=True)]
        count = len(weights)
        own, gradients, rest = params[:count], params[count : 2 * count], params[2 * count :]
        states, shared = rest[: len(slots)], tuple(rest[len(slots) :])
        each = len(slots) // count

        def write(builder: relax.BlockBuilder) -> list[Any]:
            made = []
            for i, (label, var, gradient) in enumerate(zip(labels, own, gradients, strict=True)):
                weight = Weight(label, var, states[i * each : (i + 1) * each])
                titles = [label, *(f"{label}_{slot}" for of, slot in slots if of == label)]
                new = self._updated(builder, weight, gradient, shared)
                made += [
                    value
                    if isinstance(value, ir.Var)
                    else builder.emit(value, plain_name(title) + UPDATED_SUFFIX)
                    for title, value in zip(titles, new, strict=True)
                ]
            return made

        bindings, new = written(params, write)
        title = name + _UPDATE
        return self.functions.add(title, private_function(title, params, bindings, tuple_of(new)))
