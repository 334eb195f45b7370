# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split a backward pass in two: gradients of activations first, those of weights later.

``layer_backward(grad, saved, w) -> (x's gradient, w's gradient)`` becomes
``layer_backward_inputs(grad, saved, w) -> (x's gradient, (crossing...))`` and
``layer_backward_weights(crossing) -> (w's gradient,)``; so do the functions that it calls.
(Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.rewriting import (
    all_bindings,
    field_of,
    substitute,
    tuple_of,
    typed,
    variables,
)
from tvm_distir.support import memoized

from .function_table import NamedFunctions, private_function

INPUTS_SUFFIX, WEIGHTS_SUFFIX = "_inputs", "_weights"


@dataclass(frozen=True)
class SplitBackward:
    """Both parts of a split function.

    Attributes
    ----------
    inputs : GlobalVar
        ``(*params) -> (*first results, (*crossing,))``.
    weights : GlobalVar
        ``((*crossing,)) -> (*other results,)``.
    first, later : tuple of int
        The numbers of the function's results that the first and the second part return.
    """

    inputs: ir.GlobalVar
    weights: ir.GlobalVar
    first: tuple[int, ...]
    later: tuple[int, ...]


class Splitter:
    """Splitter of functions that return tuples, applied once per set of first results.

    Parameters
    ----------
    functions : NamedFunctions
        Gets the halves.
    """

    def __init__(self, functions: NamedFunctions) -> None:
        self.functions = functions

    def split(self, gv: ir.GlobalVar, first: Iterable[int]) -> SplitBackward:
        """Return both parts of a function.

        Where no result is asked for first, the first half makes what calls in it hand to each
        other.
        """
        return self._split(str(gv.name_hint), tuple(sorted(first)))

    @memoized
    def _split(self, name: str, first: tuple[int, ...]) -> SplitBackward:
        fn = relax.utils.copy_with_new_vars(self.functions.of[name])
        fields = _fields(fn)
        bindings = list(all_bindings(fn.body))
        roots = [fields[i] for i in first]
        if not first:
            roots = [arg for b in bindings if self._is_call(b.value) for arg in b.value.args]
        needed = self._needed(bindings, roots)
        later = tuple(i for i in range(len(fields)) if i not in first)
        work = _Writer(self, set(fn.params), needed)
        for binding in bindings:
            work.add(binding)
        gradients = [substitute(fields[i], work.env) for i in later]
        crossing = work.crossing(gradients)
        first_gradients = [substitute(fields[i], work.env) for i in first]
        inputs = private_function(
            name, list(fn.params), work.first, tuple_of([*first_gradients, tuple_of(crossing)])
        )
        argument = relax.Var("crossing", relax.TupleType([v.ty for v in crossing]))
        fresh = {v: relax.Var(str(v.name), v.ty) for v in crossing}
        opened = [relax.VarBinding(fresh[v], field_of(argument, k)) for k, v in enumerate(crossing)]
        rest = [relax.VarBinding(b.var, substitute(b.value, fresh)) for b in work.later]
        results = tuple_of([substitute(v, fresh) for v in gradients])
        weights = private_function(name, [argument], [*opened, *rest], results)
        return SplitBackward(
            self.functions.add(name + INPUTS_SUFFIX, inputs),
            self.functions.add(name + WEIGHTS_SUFFIX, weights),
            first,
            later,
        )

    def _is_call(self, value: Expr) -> bool:
        """Return whether a value is a call of a private function that returns a tuple."""
        fn = self.functions.called_by(value)
        return fn is not None and isinstance(fn.ret_ty, relax.TupleType)

    def _needed(
        self, bindings: Sequence[Binding], roots: Sequence[Var]
    ) -> dict[Any, set[int] | None]:
        """Return the fields per variable that the roots depend on, or None for all fields."""
        needed: dict[Var, set[int] | None] = {v: None for root in roots for v in variables(root)}
        for binding in reversed(bindings):
            if binding.var not in needed:
                continue
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, ir.Var):
                known = needed.setdefault(value.tuple_value, set())
                if known is not None:
                    known.add(int(value.index))
                continue
            needed.update(dict.fromkeys(variables(value)))
        return needed


class _Writer:
    """Writer that assigns each binding to one of the parts."""

    def __init__(
        self, splitter: Splitter, params: set[Var], needed: dict[Any, set[int] | None]
    ) -> None:
        self.splitter, self.params, self.needed = splitter, params, needed
        self.env: dict[Var, Expr] = {}
        self.first: list[Binding] = []
        self.later: list[Binding] = []
        self._halves: dict[Var, tuple[SplitBackward, Var, Var]] = {}

    def add(self, binding: Binding) -> None:
        """Add the next binding."""
        var, value = binding.var, binding.value
        result = value.tuple_value if isinstance(value, relax.TupleGetItem) else None
        if result in self._halves:
            self._field(var, result, int(value.index))
            return
        value = substitute(value, self.env)
        read = self.needed.get(var)
        if read is not None and self.splitter._is_call(value) and len(read) < len(var.ty.fields):
            self._call(var, value, read)
        else:  # a field of what is given is at hand in either half
            is_early = var in self.needed or result in self.params
            self._bind(self.first if is_early else self.later, var, value)

    def _bind(self, half: list[Binding], var: Var, value: Expr) -> None:
        self.env[var] = relax.Var(str(var.name), var.ty)
        half.append(relax.VarBinding(self.env[var], value))

    def _call(self, var: Var, value: Expr, needed_fields: set[int]) -> None:
        split_backward = self.splitter.split(value.op, needed_fields)
        functions = self.splitter.functions.of
        both = functions[str(split_backward.inputs.name_hint)].ret_ty
        first_var = relax.Var(str(var.name), both)
        call = typed(ir.Call(split_backward.inputs, list(value.args)), both)
        self.first.append(relax.VarBinding(first_var, call))
        crossing = relax.Var(f"{var.name}_crossing", both.fields[-1])
        field = field_of(first_var, len(split_backward.first))
        self.first.append(relax.VarBinding(crossing, field))
        rest = functions[str(split_backward.weights.name_hint)].ret_ty
        two = relax.Var(f"{var.name}_weights", rest)
        self.later.append(
            relax.VarBinding(two, typed(ir.Call(split_backward.weights, [crossing]), rest))
        )
        self._halves[var] = split_backward, first_var, two

    def _field(self, var: Var, result: Var, index: int) -> None:
        split_backward, first_var, two = self._halves[result]
        early = index in split_backward.first
        at = (split_backward.first if early else split_backward.later).index(index)
        source = typed(relax.TupleGetItem(first_var if early else two, at), var.ty)
        self._bind(self.first if early else self.later, var, source)

    def crossing(self, results: Sequence[Var]) -> list[Var]:
        """Return the variables of the first part, including parameters, that the second reads."""
        inside = {b.var for b in self.later}
        read = [v for b in self.later for v in variables(b.value)]
        read += [v for result in results for v in variables(result)]
        return list(dict.fromkeys(v for v in read if v not in inside))


def _fields(fn: relax.Function) -> list[Var]:
    """Return the fields that a function returns, in order."""
    result = fn.body.body
    values = {b.var: b.value for b in all_bindings(fn.body)}
    while isinstance(result, ir.Var):
        result = values[result]
    return list(result.fields)
