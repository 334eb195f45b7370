# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find how a function uses its inputs: bounds of indices, fan-in, usages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import DataType, ir, relax, tirx

from tvm_distir.core.ir import flat_types
from tvm_distir.core.ops import index_range, sizes_of
from tvm_distir.support import Steps, shipped_data, unrolled

from .divisors import divisor_leaves
from .packed_numbers import unpacking_of

# Gains beside 1 / sqrt(fan_in): a rectifier halves the variance (He et al. 2015); what is added to
# a residual stream is kept small, so that depth neither blows values up nor lets them vanish;
# where two branches join, neither is.
_RELU_GAIN = math.sqrt(2.0)
_RESIDUAL_GAIN = 0.5
_JOINT_GAIN = 1.0
# Ops whose operand 0 (or the listed ones) comes out with the same values.
_TABLES = shipped_data(__file__, "input_uses.json")
_VIEWS: dict[str, list[int]] = {f"relax.{op}": at for op, at in _TABLES["views"].items()}
_RECTIFIERS = tuple(
    f"relax.nn.{name}" for name in ("gelu", "gelu_tanh", "leakyrelu", "prelu", "relu", "silu")
)
# Ops that scale or shift a weighted sum by something smaller.
_AFFINE = ("relax.add", "relax.divide", "relax.multiply", "relax.subtract")
# Operands with a fixed usage. A usage of `_HINTS` counts only for what is known to be a weight.
_USAGES: dict[str, dict[int, str]] = {
    f"relax.{op}": {int(position): usage for position, usage in usages.items()}
    for op, usages in _TABLES["usages"].items()
}
_HINTS: dict[str, str] = {f"relax.{op}": usage for op, usage in _TABLES["hints"].items()}


Roots = dict[relax.Var, tuple[int, ...]]
"""The numbers of the parameters' tensors that each value is a view, or a weighted sum, of."""

Tuples = dict[relax.Var, Any]
"""The numbers of the tensors of each tuple among the parameters, nested as they are."""


@dataclass(frozen=True)
class InputUse:
    """A use of a value: a usage, a gain (0: none), or the range of integers."""

    usage: str = ""
    fan_in: int = 0
    gain: float = 0.0
    low: int = 0
    high: int = 0
    firm: bool = True


class UseWalker:
    """Collects the uses of parameters, private functions once each."""

    def __init__(self, mod: ir.IRModule) -> None:
        self.functions = {gv.name_hint: fn for gv, fn in mod.functions.items()}
        self.done: dict[str, list[list[InputUse]]] = {}
        self.open: list[str] = []
        self.tuples: Tuples = {}

    def uses_of(self, fn: relax.Function) -> list[list[InputUse]]:
        """Return the uses of each tensor among the parameters of a function, in order."""
        return unrolled(self._uses_of(fn))

    def _uses_of(self, fn: relax.Function) -> Steps[list[list[InputUse]]]:
        numbers = itertools.count()
        roots: Roots = {}
        for param in fn.params:
            nested = _numbered(param.ty, numbers)
            if isinstance(nested, list):
                self.tuples[param] = nested
            else:
                roots[param] = (nested,)
        uses: list[list[InputUse]] = [[] for _ in range(next(numbers))]
        yield from self._bindings(fn.body, roots, {}, uses)
        return uses

    def _bindings(
        self, body: relax.Expr, roots: Roots, sums: Roots, uses: list[list[InputUse]]
    ) -> Steps[None]:
        """Walk bindings. ``sums``: the weights of which a value is the weighted sum."""
        for block in getattr(body, "blocks", []):
            for binding in block.bindings:
                value = getattr(binding, "value", None)
                if isinstance(value, relax.If):
                    yield self._bindings(value.true_branch, roots, sums, uses)
                    yield self._bindings(value.false_branch, roots, sums, uses)
                    continue
                nested = self._nested(value)
                if isinstance(nested, list):
                    self.tuples[binding.var] = nested
                    continue
                same_values = self._same_values(value, roots)
                if same_values:
                    roots[binding.var] = same_values
                weighted = self._weights_of_sum(value, roots, sums)
                if weighted:
                    sums[binding.var] = weighted
                if isinstance(value, ir.Call):
                    yield from self._call(value, roots, uses)
                    _note_gains(value, sums, uses)

    def _weights_of_sum(self, value: relax.Expr, roots: Roots, sums: Roots) -> tuple[int, ...]:
        """Return the weights of a matmul or convolution that a value is, up to scale and shift."""
        if isinstance(value, relax.Var):
            return sums.get(value, ())
        if isinstance(value, relax.TupleGetItem):
            return self._weights_of_sum(value.tuple_value, roots, sums)
        if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
            return ()
        name = value.op.name
        if name == "relax.matmul" or name.startswith("relax.nn.conv"):
            return _known(value.args[1], roots)
        if name in _VIEWS or name == "relax.nn.batch_norm":
            return _known(value.args[0], sums)
        if name in _AFFINE:
            first, second = value.args
            if _numel(second) < _numel(first):
                return _known(first, sums)
            return _known(second, sums) if _numel(first) < _numel(second) else ()
        return ()

    def _same_values(self, value: relax.Expr, roots: Roots) -> tuple[int, ...]:
        """Return the parameters whose values, reordered, repeated or cast, a binding holds."""
        if isinstance(value, relax.Var):
            return roots.get(value, ())
        if isinstance(value, relax.TupleGetItem):
            item = self._nested(value)
            return (item,) if item is not None else self._same_values(value.tuple_value, roots)
        if isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
            operands = [value.args[i] for i in _VIEWS.get(value.op.name, ())]
            sources = {r for x in operands if isinstance(x, relax.Var) for r in roots.get(x, ())}
            return tuple(sorted(sources))
        return ()

    def _nested(self, value: relax.Expr) -> Any:
        """Return the numbers of a parameter's tuple, or of a field of it; None for all else."""
        if isinstance(value, relax.TupleGetItem):
            source = self._nested(value.tuple_value)
            return source[int(value.index)] if isinstance(source, list) else None
        return self.tuples.get(value) if isinstance(value, relax.Var) else None

    def _leaves(self, arg: relax.Expr, roots: Roots) -> list[tuple[int, ...]]:
        """Return the parameters' tensors that each tensor of an argument holds the values of."""
        if isinstance(arg, relax.Tuple):
            return [leaf for field in arg.fields for leaf in self._leaves(field, roots)]
        nested = self._nested(arg)
        if nested is not None:
            return [(number,) for number in _flat(nested)]
        return [_known(arg, roots)] * max(len(flat_types(arg.ty)), 1)

    def _call(self, call: ir.Call, roots: Roots, uses: list[list[InputUse]]) -> Steps[None]:
        leaves = [self._leaves(arg, roots) for arg in call.args]
        if isinstance(call.op, ir.GlobalVar):
            callee = (yield self._private(call.op.name_hint)) or []
            for sources, callee_uses in zip((leaf for arg in leaves for leaf in arg), callee):
                for root in sources:
                    uses[root].extend(callee_uses)
            return
        unpacked = _unpacked(call, self.functions)
        for index, arg in enumerate(leaves):
            divisors = divisor_leaves(call, index, self.functions)
            for leaf, numbers in enumerate(arg):
                uses_of_leaf = _uses_in(call, index, leaf) if numbers else []
                divides = [InputUse(low=1)] if leaf in divisors else []
                packed = unpacked.get(leaf, []) if index == 1 else []
                for root in numbers:
                    uses[root].extend([*uses_of_leaf, *divides, *packed])

    def _private(self, name: str) -> Steps[list[list[InputUse]] | None]:
        """Return the uses of a callee's parameters; None for a kernel or a recursive call."""
        fn = self.functions.get(name)
        if not isinstance(fn, relax.Function) or name in self.open:
            return None
        if name not in self.done:
            self.open.append(name)
            self.done[name] = yield from self._uses_of(fn)
            self.open.pop()
        return self.done[name]


def _unpacked(
    call: ir.Call, functions: Mapping[str, relax.Function | tirx.PrimFunc]
) -> dict[int, list[InputUse]]:
    """Return the uses of the operands of a kernel that unpacks quantized numbers."""
    unpacking = unpacking_of(call, functions)
    if unpacking is None:
        return {}
    fields = call.args[1].fields
    uses = {
        number: [InputUse(high=1 << int(DataType(str(fields[number].ty.dtype)).bits))]
        for number in unpacking.words
    }
    step = InputUse("step", fan_in=unpacking.terms, gain=unpacking.gain)
    return {**uses, **{number: [step] for number in unpacking.scales}}


def _numbered(ty: ir.Type, numbers: Iterator[int]) -> Any:
    """Return a number for a tensor, a list of them, nested like it, for a tuple."""
    if isinstance(ty, relax.TupleType):
        return [_numbered(field, numbers) for field in ty.fields]
    return next(numbers)


def _flat(nested: Any) -> list[int]:
    if isinstance(nested, list):
        return [number for part in nested for number in _flat(part)]
    return [nested]


def _known(expr: relax.Expr, facts: Roots) -> tuple[int, ...]:
    return facts.get(expr, ()) if isinstance(expr, relax.Var) else ()


def _numel(expr: relax.Expr) -> int:
    return math.prod(sizes_of(expr))


def _note_gains(call: ir.Call, sums: Roots, uses: list[list[InputUse]]) -> None:
    """Note the gains of weights whose sums are rectified, or added to a value of their size."""
    if not isinstance(call.op, ir.Op):
        return
    if call.op.name in _RECTIFIERS:
        for root in _known(call.args[0], sums):
            uses[root].append(InputUse(gain=_RELU_GAIN))
    if call.op.name == "relax.add" and sizes_of(call.args[0]) == sizes_of(call.args[1]):
        weighted = [_known(arg, sums) for arg in call.args]
        gain = _JOINT_GAIN if all(weighted) else _RESIDUAL_GAIN
        for root in [*weighted[0], *weighted[1]]:
            uses[root].append(InputUse(gain=gain))


def _uses_in(call: ir.Call, index: int, leaf: int) -> list[InputUse]:
    """Return the uses of a tensor in operand ``index`` of an op's call."""
    name = call.op.name if isinstance(call.op, ir.Op) else ""
    indices = index_range(call, index, leaf)
    if indices is not None and indices.high:
        return [InputUse(high=indices.high)]
    if name in _USAGES:
        usage = _USAGES[name].get(index)
        return [InputUse(usage)] if usage else []
    if name in _HINTS:
        return [InputUse(_HINTS[name], firm=False)]
    shape = sizes_of(call.args[index])
    if name == "relax.take" and index == 0 and shape:
        return [InputUse("weight", fan_in=shape[-1])]
    if name == "relax.matmul" and shape:
        terms = shape[-1] if index == 0 or len(shape) == 1 else shape[-2]
        return [InputUse("weight", fan_in=terms, firm=index == 1)]
    if name.startswith("relax.nn.conv") and index == 1 and shape:
        outputs = shape[str(call.attrs.kernel_layout).index("O")]
        groups = int(call.attrs.groups) if name.endswith("_transpose") else 1
        terms = math.prod(shape) // max(outputs, 1) // groups
        return [InputUse("weight", fan_in=terms)]
    return []
