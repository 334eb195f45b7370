# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the ops that consume a weight, and the dims that they contract, keep or look up.

Names tell the purpose of a weight; only its consumers tell its layout: ``relax.nn`` stores
(out, in) and transposes, ONNX multiplies by (in, out). A kernel that makes a tensor of the weight,
as one that dequantizes it, is looked through: its sharding rule says which dims correspond.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import relax_functions, static_shape, tensor_type
from tvm_distir.core.ir.operators import EXPERT_MATMUL_OP
from tvm_distir.core.ops import rule_of
from tvm_distir.core.rewriting import module_calls
from tvm_distir.support import PropagationError, memoized, reachable

from .readers import (
    DROPOUT,
    SAME,
    drops,
    equal_shapes,
    is_adapter_add,
    is_bias_add,
    op_title,
    read_index,
)

_PRODUCTS = ("relax.matmul", EXPERT_MATMUL_OP)
_MOST_STEPS = 64
View = tuple[str, Any, tuple[int, ...]]
"""A weight as it is somewhere: the function, the variable, and which dim each of its dims is."""


@dataclass(frozen=True)
class WeightConsumer:
    """Consumer of a weight.

    Attributes
    ----------
    kind : str
        ``matmul``, ``take``, or ``other``.
    op : str
        Name of the op.
    contracted : int or None
        The dim of the weight that a matmul sums over.
    kept : int or None
        The dim that becomes the last dim of a matmul's result; of a take, the dim that is looked
        up.
    function : str
        The function that holds the consumer.
    result : Var or None
        The variable that the consumer is bound to.
    value : Expr
        The consumer itself.
    operand : Var
        The view of the weight that it takes.
    dims : tuple of int
        The dim of the weight for each dim of the operand.
    """

    kind: str
    op: str
    contracted: int | None
    kept: int | None
    function: str
    result: Any
    value: Any
    operand: Any
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Residual:
    """Residual: a result added to a value of the same shape, ``total = before + result``.

    Attributes
    ----------
    function : str
    before : Expr
    total : Var
    """

    function: str
    before: Any
    total: Any


class Consumers:
    """Consumers of the values of a module, private functions included.

    Of a training step only the forward pass counts.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1 or 2.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.functions = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}
        self._readers: dict[str, dict[Any, list[tuple[Any, Any, int]]]] = {}

    @functools.cached_property
    def callers(self) -> dict[str, list[str]]:
        """Return the callers of each function that is called."""
        callers: dict[str, list[str]] = {}
        for name, fn in self.functions.items():
            for callee in dict.fromkeys(str(gv.name_hint) for _, gv in module_calls(fn)):
                callers.setdefault(callee, []).append(name)
        return callers

    def readers(self, function: str, var: Any) -> list[tuple[Any, Any, int]]:
        """Return (bound variable, value, position) of the direct readers of a variable.

        The position is that of the argument; -1 for what is no plain argument of a call.
        """
        if function not in self._readers:
            self._readers[function] = read_index(self.functions[function])
        return self._readers[function].get(var, [])

    @memoized
    def uses(self, function: str, parameter: Any) -> list[WeightConsumer]:
        """Return the consumers of a parameter, through casts, transposes and calls."""
        ndim = len(static_shape(parameter.ty) or ())
        first = self._handed_on((function, parameter, tuple(range(ndim))))
        return list(self._reached(first))

    def _handed_on(self, view: View) -> View:
        """Return the parameter in the only function that reads it: layers share theirs."""
        where, var, dims = view
        readers = self.readers(where, var)
        if len(readers) == 1:
            step = self._step(where, var, *readers[0], dims)
            if not isinstance(step, WeightConsumer) and step[0] != where:
                return step
        return view

    @memoized
    def _reached(self, first: View) -> list[WeightConsumer]:
        """Return the consumers of a view of a weight."""

        def following(step: WeightConsumer | View) -> list[WeightConsumer | View]:
            if isinstance(step, WeightConsumer):
                return []
            where, var, dims = step
            return [self._step(where, var, *reader, dims) for reader in self.readers(where, var)]

        start: list[WeightConsumer | View] = [first]
        return [step for step in reachable(start, following) if isinstance(step, WeightConsumer)]

    def _step(
        self, where: str, var: Any, bound: Any, value: Any, position: int, dims: tuple[int, ...]
    ) -> WeightConsumer | View:
        """Return the continuation of a view of the weight, or its consumer."""
        if isinstance(value, relax.Var):
            return where, bound, dims
        other = WeightConsumer("other", op_title(value), None, None, where, bound, value, var, dims)
        if op_title(value) == "relax.call_tir" and tensor_type(bound.ty) is not None:
            new_dims = self._made_dims(var, bound, value, dims)
            return other if new_dims is None else (where, bound, new_dims)
        if position < 0 or not isinstance(value, ir.Call):
            return other
        if isinstance(value.op, ir.GlobalVar):
            callee = str(value.op.name_hint)
            if callee not in self.functions:
                return other
            return callee, self.functions[callee].params[position], dims
        op = op_title(value)
        if op in SAME:
            return where, bound, dims
        if op == "relax.permute_dims":
            axes = value.attrs.axes
            order = [int(a) % len(dims) for a in axes] if axes else range(len(dims))[::-1]
            return where, bound, tuple(dims[a] for a in order)
        if op in _PRODUCTS and len(dims) > 1:
            contracted, remaining = (dims[-1], dims[-2]) if position == 0 else (dims[-2], dims[-1])
            return replace(other, kind="matmul", contracted=contracted, kept=remaining)
        if op == "relax.take" and position == 0 and dims:
            axis = 0 if value.attrs.axis is None else int(value.attrs.axis) % len(dims)
            return replace(other, kind="take", kept=dims[axis])
        return other

    def _made_dims(
        self, var: Any, bound: Any, call: ir.Call, dims: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """Return the dim of the weight for each dim of what a kernel makes of it, if all have one.

        The rule of the kernel ties a dim of packed numbers to the dim of the numbers in them.
        """
        operands = [i for i, arg in enumerate(call.args[1].fields[:]) if arg.same_as(var)]
        if len(operands) != 1 or len(static_shape(bound.ty) or ()) != len(dims):
            return None
        try:
            rule = rule_of(call, self.mod, bound.ty)
        except PropagationError:  # distributing the module reports it
            return None
        new_dims: dict[int, int] = {}
        for factor in rule.factors:
            source, target = factor.ins[operands[0]], factor.outs[0]
            if source is not None and target is not None:
                new_dims[target] = dims[source]
        return tuple(new_dims[d] for d in range(len(dims))) if len(new_dims) == len(dims) else None

    def split_into(self, function: str, result: Any, width: int) -> int | None:
        """Return into how many heads a projection's result is reshaped; None when it is not known.

        The first reshape that makes two or more dims of the last, of ``width``, says it. One
        that keeps the width, and has no dim for heads beside batch and sequence, does not: it
        gives back dims that were merged.
        """
        for where, var in self._elementwise(function, result):
            for _, value, position in self.readers(where, var):
                if position != 0 or op_title(value) != "relax.reshape":
                    continue
                shape = static_shape(value.ty) or ()
                if shape and shape[-1] == width and len(shape) < 4:
                    continue
                for k in reversed(range(len(shape) - 1)):
                    if all(isinstance(n, int) for n in shape[k:]) and math.prod(shape[k:]) == width:
                        return int(shape[k])
        return None

    def residual(self, function: str, result: Any) -> Residual | None:
        """Return the first addition of a result to another value of the same shape."""
        for where, var in self._elementwise(function, result):
            shape = static_shape(var.ty) if tensor_type(var.ty) is not None else None
            for bound, value, position in self.readers(where, var):
                if op_title(value) != "relax.add" or position < 0 or is_adapter_add(value):
                    continue
                before = value.args[1 - position]
                other = static_shape(before.ty)
                if shape is not None and other is not None and equal_shapes(shape, other):
                    return Residual(where, before, bound)
        return None

    def _elementwise(self, function: str, start: Any) -> Iterator[tuple[str, Any]]:
        """Yield a value and its images under casts, biases, reshapes, splits, dropouts."""
        pending = [(function, start)]
        for _ in range(_MOST_STEPS):
            if not pending:
                return
            where, var = pending.pop(0)
            yield where, var
            for bound, value, position in self.readers(where, var):
                op = op_title(value)
                bias = op == "relax.add" and position >= 0
                bias = bias and (is_bias_add(value, position) or is_adapter_add(value))
                part = op in ("relax.reshape", "relax.split") and position == 0
                item = isinstance(value, relax.TupleGetItem)
                same = op in SAME or (op == DROPOUT and position == 0) or drops(value, var)
                if isinstance(value, relax.Var) or same or bias or part or item:
                    pending.append((where, bound))
