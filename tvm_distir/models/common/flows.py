# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Track which parameters each value depends on, elementwise or in any way."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass

from tvm import ir, relax
from tvm.relax import Expr

from tvm_distir.core.ir import flat_types, static_shape
from tvm_distir.core.rewriting import VARIABLES, all_bindings, called_name, leaves_of, variables
from tvm_distir.support import GenericConst

_ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in (
        "abs add astype clip divide equal exp floor greater greater_equal isfinite isnan less "
        "less_equal log logical_and logical_not logical_or maximum minimum multiply negative "
        "not_equal power round rsqrt sign sqrt square subtract where dist.annotate_sharding"
    ).split()
)
"""The ops in which updates of weights are written; a gradient results from other operations."""
_SUMS = ("add", "astype", "clip", "dist.annotate_sharding", "maximum", "minimum", "where")
"""The ops through which a weight passes as itself, slightly changed."""
_NEAR_ONE = (0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Flow:
    """Dependences of a tensor, with parameters as bits of a mask.

    Attributes
    ----------
    read : int
        Parameters that it depends on.
    same : int
        Parameters of its shape that it is computed from element by element.
    moved : int
        The parameters among those of which it is a sum with them, times a factor that is near 1
        where it is known.
    beneath : int
        Parameters that the other values depend on which it is computed from element by element.
    """

    read: int = 0
    same: int = 0
    moved: int = 0
    beneath: int = 0


class Flows:
    """Dependences of a function's values.

    Parameters
    ----------
    mod : IRModule
        The module whose functions the function calls; each is followed once.
    fn : Function

    Attributes
    ----------
    of : dict of Var to tuple of Flow
        The flows of each variable, a flow per tensor that it holds.
    values : dict of Var to Any
        The value that each variable is bound to.
    position_of : dict of Var to int
        Number of each binding.
    """

    def __init__(
        self, mod: ir.IRModule, fn: relax.Function, known: dict[str, tuple[Flow, ...]] | None = None
    ) -> None:
        self._mod, self._cache = mod, {} if known is None else known
        self.of: dict[relax.Var, tuple[Flow, ...]] = {}
        self.values: dict[relax.Var, Expr] = {}
        self.position_of: dict[relax.Var, int] = {}
        number = 0
        for param in fn.params:
            count = len(flat_types(param.ty))
            bits = [1 << (number + i) for i in range(count)]
            self.of[param] = tuple(Flow(bit, bit, bit) for bit in bits)
            number += count
        for binding in all_bindings(fn.body):
            value = getattr(binding, "value", None)
            self.values[binding.var] = value
            self.position_of[binding.var] = len(self.position_of)
            self.of[binding.var] = self._of(binding.var, value)
        body = fn.body.body if isinstance(fn.body, relax.SeqExpr) else fn.body
        self.results = self._leaves(body)

    def operands(self, var: relax.Var) -> list[Expr]:
        """Return the variables that a value depends on elementwise, if it is elementwise."""
        value: relax.Var = self.values.get(var)
        if type(value) is not ir.Call or called_name(value) not in _ELEMENTWISE:
            return []
        shape = static_shape(var.ty)
        if shape is None:
            return []
        return [a for a in value.args if type(a) in VARIABLES and static_shape(a.ty) == shape]

    def reads(self, var: relax.Var) -> list[Expr]:
        """Return all variables that a value is computed from."""
        return list(variables(self.values[var]))

    def _of(self, var: relax.Var, value: Expr) -> tuple[Flow, ...]:
        if type(value) is relax.Tuple or type(value) in VARIABLES:
            return self._leaves(value)
        if type(value) is relax.TupleGetItem and type(value.tuple_value) in VARIABLES:
            types = value.tuple_value.ty.fields
            first = sum(len(flat_types(ty)) for ty in types[: value.index])
            return self.of[value.tuple_value][first : first + len(flat_types(types[value.index]))]
        operands = self.operands(var)
        if operands:
            flows = [self.of[arg][0] for arg in operands]
            same = _union(flow.same for flow in flows)
            beneath = _union(flow.beneath for flow in flows)
            return (Flow(self._read(value), same, self._moved(value, operands), beneath),)
        if type(value) is ir.Call and type(value.op) is ir.GlobalVar:
            called = self._called(value.op)
            if called is not None:
                operand_flows = [flow for arg in value.args for flow in self._leaves(arg)]
                return tuple(_through(flow, operand_flows) for flow in called)
        read = self._read(value)
        return tuple(Flow(read, 0, 0, read) for _ in flat_types(var.ty))

    def _moved(self, value: Expr, operands: list[Expr]) -> int:
        name = called_name(value).removeprefix("relax.")
        if name == "subtract":
            operands = [arg for arg in operands if arg.same_as(value.args[0])]
        elif name in ("divide", "multiply"):
            factors = [a.value.numpy() for a in value.args if isinstance(a, GenericConst)]
            if any(((f < _NEAR_ONE[0]) | (f > _NEAR_ONE[1])).any() for f in factors):
                return 0
            under = [self.of[arg][0].beneath for arg in operands]
            operands = [a for i, a in enumerate(operands) if not any(under[:i] + under[i + 1 :])]
        elif name not in _SUMS:
            return 0
        return _union(self.of[arg][0].moved for arg in operands)

    def _read(self, value: Expr) -> int:
        return _union(
            flow.read for var in variables(value) if var in self.of for flow in self.of[var]
        )

    def _leaves(self, expr: Expr) -> tuple[Flow, ...]:
        return tuple(
            self.of[var][number] if type(var) in VARIABLES and var in self.of else Flow()
            for var, number, _ in leaves_of(expr)
        )

    def _called(self, gv: ir.GlobalVar) -> tuple[Flow, ...] | None:
        """Return the dependences of a function's results on its parameters."""
        name = str(gv.name_hint)
        fn = self._mod[gv]
        if not isinstance(fn, relax.Function):
            return None
        if name not in self._cache:
            self._cache[name] = Flows(self._mod, fn, self._cache).results
        return self._cache[name]


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


def bits(mask: int) -> list[int]:
    """Return the numbers of the bits of a mask."""
    numbers = []
    while mask:
        low = mask & -mask
        numbers.append(low.bit_length() - 1)
        mask ^= low
    return numbers


def _through(flow: Flow, operands: list[Flow]) -> Flow:
    """Return a result's dependences on the parameters of the caller."""
    flows_through = [operands[i] for i in bits(flow.same)]
    beneath = [operands[i].read for i in bits(flow.beneath)]
    return Flow(
        _union(operands[i].read for i in bits(flow.read)),
        _union(passing.same for passing in flows_through),
        _union(operands[i].moved for i in bits(flow.moved)),
        _union([*beneath, *(passing.beneath for passing in flows_through)]),
    )
