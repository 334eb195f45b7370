# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build the private function of a repeat, and the arguments of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir.attributes import OPEN_AXES_ATTR, STATIONARY_ATTR
from tvm_distir.core.rewriting import typed
from tvm_distir.support import GenericConst

from .choose import Repeat
from .name_allocator import NameAllocator, function_name, value_name, weight_name
from .sequence import NOWHERE, Sequence, rebuilt

Notes = Mapping[str, Any]


@dataclass(frozen=True)
class Outlined:
    """Private function that replaces a repeat.

    Attributes
    ----------
    repeat : Repeat
    name : str
    function : Function
    arguments : list of list
        The arguments of the call for each stretch.
    """

    repeat: Repeat
    name: str
    function: relax.Function
    arguments: list[list[Expr]]


def build(
    sequence: Sequence,
    repeat: Repeat,
    names: Mapping[Var, str],
    notes: Notes,
    allocator: NameAllocator,
) -> Outlined | None:
    """Build the function of a repeat.

    An operand from outside the stretch becomes a parameter; two of them become a single parameter
    where they are the same value in every stretch. A constant that is equal in all stretches stays
    in the body. Values of other bindings come first, then parameters and constants of the function
    that is outlined from.

    Parameters
    ----------
    sequence : Sequence
    repeat : Repeat
    names : mapping of Var to str
        The model's names of the parameters.
    notes : mapping
        Attributes of the function that is outlined from.
    allocator : NameAllocator
        Names of functions.

    Returns
    -------
    outlined : Outlined or None
        None when the types in the body speak of a symbolic size that no parameter defines.
    """
    first, length = repeat.starts[0], repeat.length
    wiring = sequence.wiring(first, first + length)
    columns = list(zip(*(sequence.operands(s, s + length) for s in repeat.starts), strict=True))
    slots, classes = _parameters(wiring, columns)
    order = sorted(range(len(classes)), key=lambda c: not _computed(sequence, classes[c]))
    bound = [str(b.var.name) for b in sequence.bindings[first : first + length]]
    local = NameAllocator(bound)
    variables: list[Any] = [None] * len(classes)
    for c in order:
        wish = _wish(sequence, repeat, classes[c], names)
        variables[c] = relax.Var(local.fresh(wish), classes[c][0].ty)
    leaves = [variables[c] if c is not None else column[0] for c, column in zip(slots, columns)]
    params = [variables[c] for c in order]
    function = _function(sequence, repeat, params, leaves, wiring, _inside(notes, bound))
    if len(relax.analysis.free_symbolic_vars(function)):
        return None
    if len(relax.analysis.defined_symbolic_vars(function)):
        function = relax.utils.copy_with_new_vars(function)
    weights = [[names[v] for v in column] for column in classes if all(v in names for v in column)]
    differing = [numbers for numbers in weights if len(set(numbers)) > 1]
    name = allocator.fresh(function_name(differing, bound, _convolves(sequence, repeat)))
    arguments = [[classes[c][i] for c in order] for i in range(len(repeat.starts))]
    return Outlined(repeat, name, function, arguments)


def _parameters(
    wiring: np.typing.NDArray[np.int64], columns: list[tuple[Any, ...]]
) -> tuple[list[int | None], list[tuple[Any, ...]]]:
    """Return the parameter number per operand (None: inside or a constant), and the arguments."""
    slots: list[int | None] = []
    classes: list[tuple[Expr, ...]] = []
    known: dict[Any, int] = {}
    for slot, (offset, column) in enumerate(zip(wiring, columns, strict=True)):
        constant = [isinstance(value, GenericConst) for value in column]
        if offset != NOWHERE or (all(constant) and _all_equal(column)):
            slots.append(None)
            continue
        key = tuple((slot, i) if is_c else v for i, (v, is_c) in enumerate(zip(column, constant)))
        if key not in known:
            known[key] = len(classes)
            classes.append(column)
        slots.append(known[key])
    return slots, classes


def _all_equal(constants: tuple[Any, ...]) -> bool:
    first = constants[0]
    return all(
        constant.same_as(first) or tvm_ffi.structural_equal(constant, first)
        for constant in constants[1:]
    )


def _computed(sequence: Sequence, column: tuple[Expr, ...]) -> bool:
    """Return whether any occurrence gets a computed value for the parameter."""
    return any(isinstance(v, ir.Var) and v in sequence.position for v in column)


def _wish(
    sequence: Sequence, repeat: Repeat, column: tuple[Expr, ...], names: Mapping[Var, str]
) -> str:
    """Return the preferred name of a parameter."""
    if _computed(sequence, column):
        handed = sum(_inside_of(sequence, repeat, i - 1, v) for i, v in enumerate(column) if i)
        if 2 * handed >= len(column) - 1:
            return "x"  # what a layer hands to the next
        return value_name([_name(v, names) for v in column])
    if any(isinstance(v, GenericConst) for v in column):
        return "constant"
    return weight_name([_name(v, names) for v in column])


def _name(value: Expr, names: Mapping[Var, str]) -> str:
    if isinstance(value, GenericConst):
        return "constant"
    return names.get(value) or str(value.name)


def _inside_of(sequence: Sequence, repeat: Repeat, number: int, value: Expr) -> bool:
    """Return whether an occurrence computes a value."""
    start = repeat.starts[number]
    at = sequence.position.get(value, NOWHERE) if isinstance(value, ir.Var) else NOWHERE
    return start <= at < start + repeat.length


def _inside(notes: Notes, bound: list[str]) -> dict[str, Any]:
    """Return the annotations of the variables bound in an occurrence."""
    stationary = {str(name) for name in notes.get(STATIONARY_ATTR, [])}
    open_axes = {str(name): list(axes) for name, axes in notes.get(OPEN_AXES_ATTR, {}).items()}
    attrs: dict[str, Any] = {}
    if any(name in stationary for name in bound):
        attrs[STATIONARY_ATTR] = [name for name in bound if name in stationary]
    if any(name in open_axes for name in bound):
        attrs[OPEN_AXES_ATTR] = {name: open_axes[name] for name in bound if name in open_axes}
    return attrs


def _function(
    sequence: Sequence,
    repeat: Repeat,
    params: list[Var],
    leaves: list[Expr],
    wiring: np.typing.NDArray[np.int64],
    attrs: dict[str, Any],
) -> relax.Function:
    """Copy the first occurrence with new variables."""
    start = repeat.starts[0]
    dataflow = sequence.dataflow[start]
    variables_made: list[Var] = []
    bindings = []
    begin = int(sequence.leaf_start[start])
    for offset in range(repeat.length):
        old = sequence.bindings[start + offset]
        low = int(sequence.leaf_start[start + offset]) - begin
        high = int(sequence.leaf_start[start + offset + 1]) - begin
        operands = [
            leaves[i] if wiring[i] == NOWHERE else variables_made[int(wiring[i])]
            for i in range(low, high)
        ]
        value = rebuilt(old.value, iter(operands))
        kind = relax.DataflowVar if dataflow and offset not in repeat.outputs else relax.Var
        variables_made.append(kind(str(old.var.name), old.var.ty))
        bindings.append(relax.VarBinding(variables_made[-1], value))
    outputs = [variables_made[offset] for offset in repeat.outputs]
    result = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
    block = (relax.DataflowBlock if dataflow else relax.BindingBlock)(bindings)
    body = typed(relax.SeqExpr([block], result), result.ty)
    attributes = ir.make_node("ir.DictAttrs", **attrs) if attrs else None
    pure = dataflow or not relax.analysis.contains_impure_call(body)
    return relax.Function(params, body, result.ty, pure, attributes)


def _convolves(sequence: Sequence, repeat: Repeat) -> bool:
    start = repeat.starts[0]
    values = (b.value for b in sequence.bindings[start : start + repeat.length])
    return any(isinstance(v, ir.Call) and "conv" in str(getattr(v.op, "name", "")) for v in values)
