# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Follow the values of a program, as multiples of terms of the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import ir, relax

from tvm_distir.core.ir import mesh_key
from tvm_distir.core.ir.operators import call_axes, dist_op_name
from tvm_distir.core.ops import rule_of
from tvm_distir.core.rewriting import op_name
from tvm_distir.support import GenericConst, PropagationError

from .alignment import MAX, SHARDED, SUM, Layout
from .layout_rules import COPIES, Layouts, as_sums, local_shape, reshaped, results_of
from .traced_module import Code, TracedModule
from .value_terms import (
    RESHAPES,
    Multiple,
    ReferenceTerms,
    TermCall,
    Uniform,
    Value,
    Values,
    call_key,
    constant_of,
    folded,
    leaves,
    result_types,
    same_attributes,
    shape_of,
)


class ReferenceValueWalk:
    """Values of a program in terms of the reference, in the order of its bindings.

    Attributes
    ----------
    unknown : dict of str to str
        The first value before each unknown one that stands for none, by name.
    assumed : set of str
        The inputs no element of which may be negative.
    """

    def __init__(
        self, terms: ReferenceTerms, mod: ir.IRModule, inputs: Mapping[str, Multiple]
    ) -> None:
        self.terms, self.mod = terms, mod
        self.values: dict[str, Value | Values] = dict(inputs)
        self.assumed: set[str] = set()
        self.unknown: dict[str, str] = {}

    def read(self, code: Code) -> None:
        """Find the values of all bindings."""
        for var, parameter in zip(code.inputs.values(), code.inputs):
            self.values[str(var.name)] = self.values[parameter]
        for binding in code.bindings:
            name, value = str(binding.var.name), binding.value
            if isinstance(value, ir.Call):
                result = self._called(value, name)
            else:
                result = self.value(value)
            self.values[name] = result
            if isinstance(result, Multiple):
                self.terms.scales.setdefault(result.term, result.scale)  # the reference is first
            if result is None:
                before = [self.unknown.get(n, "") for n in names_of(value)]
                self.unknown[name] = next(filter(None, before), name)

    def value(self, expr: relax.Expr, position: int = 0) -> Value | Values:
        """Return the value of an expression; of a tuple the one at a position."""
        if isinstance(expr, GenericConst):
            array = constant_of(expr)
            if array.size and (array == array.flat[0]).all():
                return Uniform(float(array.flat[0]))
            return Multiple(self.terms.array(array), 1.0, self._copies())
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value, int(expr.index))
        result = self.values.get(str(expr.name)) if isinstance(expr, relax.Var) else None
        return result[position] if isinstance(result, tuple) else result

    def _copies(self) -> Layouts:
        return ()

    def _called(self, call: ir.Call, name: str) -> Value | Values:
        operands = [self.value(expr, number) for expr, number, _ in leaves(call)]
        plain = [v for v in operands if not isinstance(v, tuple)]
        if len(plain) < len(operands) or None in plain:
            return None
        op = op_name(call)
        if op == "not_equal" and self._is_negative(plain):
            return Uniform(1.0)
        simple = folded(call, plain)
        if simple is not None:
            return simple
        if op in RESHAPES and isinstance(plain[0], Multiple):
            return self._reshape(plain[0], shape_of(call.ty), name)
        if all(isinstance(v, Uniform) for v in plain) and dist_op_name(call) is None:
            return None
        try:
            result = self._computed(call, plain, name)
        except PropagationError:  # the op has no sharding rule: its results are unknown
            return None
        return result[0] if result is not None and len(result) == 1 else result

    def _is_negative(self, operands: Sequence[Value]) -> bool:
        """Return whether indices are compared with a negative number, which none of them is."""
        first, last = operands
        if not isinstance(first, Multiple) or not isinstance(last, Uniform) or last.value >= 0:
            return False
        name = self.terms.terms[first.term].index_of
        self.assumed |= {name} if name else set()
        return bool(name)

    def _reshape(self, value: Multiple, shape: tuple[int, ...], name: str) -> Value:
        return Multiple(self.terms.reshaped(value.term, shape, name), value.scale)

    def _computed(self, call: ir.Call, operands: list[Value], name: str) -> Values | None:
        if dist_op_name(call) is not None:  # of a single rank
            return tuple(operands) if shape_of(call.ty) == shape_of(leaves(call)[0][2]) else None
        return self.terms.called(call, operands, name)


class RankValueWalk(ReferenceValueWalk):
    """Values of a rank."""

    def __init__(
        self, terms: ReferenceTerms, module: TracedModule, inputs: Mapping[str, Multiple]
    ) -> None:
        super().__init__(terms, module.mod, inputs)
        self._mesh, self.sizes = mesh_key(module.mesh), list(module.axes.values())

    def _copies(self) -> Layouts:
        return tuple(COPIES for _ in self.sizes)

    def _reshape(self, value: Multiple, shape: tuple[int, ...], name: str) -> Value:
        here = self.terms.terms[value.term]
        for number in self.terms.reshapes[here.base]:
            target = self.terms.terms[number].shape
            layouts = reshaped(value.layouts, here.shape, target, self.sizes)
            if layouts is not None and local_shape(target, layouts, self.sizes) == shape:
                return Multiple(number, value.scale, layouts)
        return None

    def _computed(self, call: ir.Call, operands: list[Value], name: str) -> Values | None:
        if dist_op_name(call) is not None:
            first = operands[0] if len(operands) == 1 else None
            return None if first is None else (self._collective(call, first),)
        rule = rule_of(call, self.mod)
        operands = as_sums(operands, rule, self.sizes)
        key, scale = call_key(call, operands, rule)
        for known in self.terms.calls.get(key, ()):
            layouts = self._followed(known, call, operands)
            if layouts is not None:
                return tuple(Multiple(t, scale, x) for t, x in zip(known.results, layouts))
        return None

    def _followed(
        self, known: TermCall, call: ir.Call, operands: Sequence[Value]
    ) -> list[Layouts] | None:
        """Return layouts of results where a call computes the parts of a known one."""
        if not same_attributes(known.call, call):
            return None
        complete = [shape_of(ty) for _, _, ty in leaves(known.call)]
        mine = [shape_of(ty) for _, _, ty in leaves(call)]
        result = results_of(known.call, known.rule, operands, complete, self.sizes)
        if result is None:
            return None
        ins, outs = result
        complete += [self.terms.terms[number].shape for number in known.results]
        mine += [shape_of(ty) for ty in result_types(call)]
        expected = [local_shape(s, x, self.sizes) for s, x in zip(complete, [*ins, *outs])]
        return outs if expected == mine else None

    def _collective(self, call: ir.Call, value: Value) -> Value:
        op, axes = dist_op_name(call), call_axes(call) if "device_mesh" in call.attrs else ()
        if not axes or mesh_key(call.attrs["device_mesh"]) != self._mesh:
            return None
        count = math.prod(self.sizes[a] for a in axes)
        if isinstance(value, Uniform):
            sums = op == "all_reduce" and str(call.attrs["op"]) == "sum"
            return Uniform(value.value * count) if sums else None
        if value is None or (op != "all_reduce" and len(axes) > 1):
            return None
        layouts, scale = list(value.layouts), value.scale
        for axis in axes:
            if op in ("all_gather", "all_to_all"):
                here, layouts[axis] = layouts[axis], COPIES
                dim = int(call.attrs["dim" if op == "all_gather" else "gather_dim"])
                if here != Layout(SHARDED, dim, self._major_blocks(layouts, dim)):
                    return None
            elif op == "local_slice" and layouts[axis] != COPIES:
                return None
            elif op in ("all_reduce", "reduce_scatter"):
                kind = {"sum": SUM, "max": MAX}.get(str(call.attrs["op"]))
                if layouts[axis] == COPIES and kind is not None:
                    scale *= self.sizes[axis] if kind == SUM else 1
                elif layouts[axis].kind != kind:
                    return None
                layouts[axis] = COPIES
            elif op != "local_slice":
                return None
            if op in ("reduce_scatter", "local_slice", "all_to_all"):
                dim = int(call.attrs["split_dim" if op == "all_to_all" else "dim"])
                layouts[axis] = Layout(SHARDED, dim, self._major_blocks(layouts, dim))
        known = tuple(layouts)
        shape = local_shape(self.terms.terms[value.term].shape, known, self.sizes)
        return Multiple(value.term, scale, known) if shape == shape_of(call.ty) else None

    def _major_blocks(self, layouts: Sequence[Layout], dim: int) -> int:
        """Return the number of parts of a dim over all axes; 0 where other digits are between."""
        count = 1
        shards = [(x, n) for x, n in zip(layouts, self.sizes) if x.kind == SHARDED and x.dim == dim]
        for layout, size in sorted(shards, key=lambda shard: shard[0].blocks):
            count = count * size if layout.blocks == count else 0
        return count


def names_of(value: relax.Expr) -> list[str]:
    """Return the variables that a bound value reads."""
    exprs = [expr for expr, _, _ in leaves(value)] if isinstance(value, ir.Call) else [value]
    exprs = [e.tuple_value if isinstance(e, relax.TupleGetItem) else e for e in exprs]
    return [str(e.name) for e in exprs if isinstance(e, relax.Var)]
