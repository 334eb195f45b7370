# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find values that the forward pass gathers and the backward pass reads (level 4).

Every tensor that a variable or a function's result holds is a *slot*. Slots between which a value
is passed on as it is, through tuples, other names and calls of private functions, form a class of
slots of the same type. A class that begins at gathers of the forward pass, and that only the
backward pass computes with, may hold the values before the gathers instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.ir import FieldLeaves, branch_of, flat_types, is_private
from tvm_distir.core.ir.attributes import FORWARD_PHASE, PHASE_ATTR, STAGE_KIND_ATTR
from tvm_distir.core.ir.operators import call_axes, dist_op_name
from tvm_distir.core.rewriting import callee_of, forward_bindings, has_attr, variables
from tvm_distir.core.rewriting.native import ALIAS, FUNCTION_CALL, ITEM, TUPLE, Member, union_find
from tvm_distir.support import reachable


@dataclass(frozen=True)
class GatheredValue:
    """Value gathered from a smaller value.

    Attributes
    ----------
    source : Var
        The variable that is gathered.
    steps : tuple of Call
        The gathers and changes of view, in order.
    """

    source: Var
    steps: tuple[ir.Call, ...]

    @property
    def way(self) -> tuple[str, ...]:
        """Return a textual key of the gathers, equal for values that can share a slot."""
        types = (self.source.ty, *(step.ty for step in self.steps))
        gathers = (step for step in self.steps if dist_op_name(step) == "all_gather")
        done = ((*call_axes(step), step.attrs["dim"]) for step in gathers)
        return tuple(map(str, (*types, *done)))


class KeptGathers:
    """Equivalence classes of the slots of a module, and which may hold gathered values.

    Parameters
    ----------
    members : sequence of Member
        The functions of the module.
    axes : mapping of str to tuple of int
        The axes along which gathers count, by the text of each mesh.

    Attributes
    ----------
    gathered : dict of Var to GatheredValue
        Variables bound to gathers of the forward pass, and other names and views of these.
    late : set of Var
        Variables that are bound in backward passes.
    """

    def __init__(self, members: Sequence[Member], axes: Mapping[str, tuple[int, ...]]) -> None:
        self.axes = axes
        self.gathered: dict[Var, GatheredValue] = {}
        self.late: set[Var] = set()
        self._slot: dict[Var, range] = {}
        self._leaves = FieldLeaves()
        self._params: dict[str, list[Var]] = {}
        self._results: dict[str, range] = {}
        self._count = 0
        self._joined: list[int] = []
        self._barred: set[int] = set()
        self._read_late: set[int] = set()
        forward = forward_functions(members)
        for member in members:
            self._take_ends(member)
        for member in members:
            self._take(member, member.name in forward)
        self._root = union_find(self._count, self._joined)
        self._chosen_gathers = self._chosen()

    def of(self, var: Var) -> list[GatheredValue | None]:
        """Return how each tensor of a variable is gathered from its saved form, or None."""
        return [self._chosen_gathers.get(self._root[slot]) for slot in self._slot[var]]

    def of_result(self, name: str) -> list[GatheredValue | None]:
        """Return the same for the result of a function."""
        return [self._chosen_gathers.get(self._root[slot]) for slot in self._results[name]]

    def __bool__(self) -> bool:
        return bool(self._chosen_gathers)

    def _new(self, ty: ir.Type) -> range:
        first, self._count = self._count, self._count + len(flat_types(ty))
        return range(first, self._count)

    def _take_ends(self, member: Member) -> None:
        """Number parameters and results; values that cross the module boundary are unchanged."""
        fn = member.fn
        params = self._params[member.name] = list(fn.params)
        self._slot.update((param, self._new(param.ty)) for param in params)
        self._results[member.name] = self._new(fn.ret_ty)
        if not is_private(fn) or branch_of(fn) is not None:
            for slots in (*(self._slot[p] for p in params), self._results[member.name]):
                self._barred.update(slots)

    def _take(self, member: Member, forward: bool) -> None:
        """Record the bindings of a function."""
        reading = member.reading
        early = {binding.var for binding in forward_part(member)} if forward else set()
        for binding, kind in zip(reading.bindings, reading.kinds, strict=True):
            var, value = binding.var, binding.value
            self._slot[var] = self._new(var.ty)
            if var not in early:
                self.late.add(var)
            if kind == ALIAS and value in self.gathered:
                self.gathered[var] = self.gathered[value]
            if kind in (ALIAS, ITEM, TUPLE):
                self._join(self._slots(value), self._slot[var])
            elif kind == FUNCTION_CALL and str(value.op.name_hint) in self._results:
                self._call(value, self._slot[var])
            else:
                self._compute(var, value)
        self._join(self._slots(member.fn.body.body), self._results[member.name])

    def _call(self, call: ir.Call, slots: range) -> None:
        name = str(call.op.name_hint)
        for arg, param in zip(call.args, self._params[name], strict=True):
            self._join(self._slots(arg), self._slot[param])
        self._join(self._results[name], slots)

    def _compute(self, var: Var, value: Expr) -> None:
        """Record a computed value."""
        late = var in self.late
        for used in variables(value):
            if late:
                self._read_late.update(self._slot[used])
            elif used not in self.gathered:
                self._barred.update(self._slot[used])
        gathered = None if late else self._gathered(value)
        if gathered is None:
            self._barred.update(self._slot[var])
        else:
            self.gathered[var] = gathered

    def _gathered(self, value: Expr) -> GatheredValue | None:
        """Return the value before all gathers, for a gather along the axes or a view of one."""
        kind = dist_op_name(value)
        if kind not in ("all_gather", "view") or not isinstance(value.args[0], ir.Var):
            return None
        source = value.args[0]
        if kind == "view" and source not in self.gathered:
            return None
        if kind != "view" and not (
            set(call_axes(value)) <= set(self.axes[str(source.ty.device_mesh)])
        ):
            return None
        before = self.gathered.get(source, GatheredValue(source, ()))
        return GatheredValue(before.source, (*before.steps, value))

    def _slots(self, expr: Expr) -> Sequence[int]:
        """Return the slots of the leaves of a value; -1 for leaves that are not variables."""
        if isinstance(expr, ir.Var):
            return self._slot[expr]
        if isinstance(expr, relax.Tuple):
            return [slot for field in expr.fields for slot in self._slots(field)]
        if isinstance(expr, relax.TupleGetItem):
            leaves = self._leaves.of(expr)
            return self._slots(expr.tuple_value)[leaves.start : leaves.stop]
        return [-1] * len(flat_types(expr.ty))

    def _join(self, slots: Sequence[int], occupied: Sequence[int]) -> None:
        for slot, other in zip(slots, occupied, strict=True):
            if slot < 0:
                self._barred.add(other)
            else:
                self._joined += (2, slot, other)

    def _chosen(self) -> dict[int, GatheredValue]:
        """Return, per class that is saved before its gather, how the gathered value is computed."""
        root = self._root
        roots = {root[slot] for slot in self._read_late} - {root[slot] for slot in self._barred}
        result: dict[int, GatheredValue] = {}
        for var, gathered in self.gathered.items():
            (slot,) = self._slot[var]
            if result.setdefault(root[slot], gathered).way != gathered.way:
                roots.discard(root[slot])
        return {
            number: first_gathered for number, first_gathered in result.items() if number in roots
        }


def forward_part(member: Member) -> Sequence[Binding]:
    """Return the bindings of a function that may run in the forward pass."""
    fn = member.fn
    if is_private(fn) or (fn.attrs and STAGE_KIND_ATTR in fn.attrs):
        return member.reading.bindings
    return forward_bindings(fn)


def forward_functions(members: Sequence[Member]) -> set[str]:
    """Return the names of the functions that run in the forward pass, perhaps not only there."""
    forward = {
        member.name: member
        for member in members
        if not has_attr(member.fn, PHASE_ATTR) or member.fn.attrs[PHASE_ATTR] == FORWARD_PHASE
    }

    def callees(name: str) -> list[str]:
        called = (callee_of(binding.value) for binding in forward_part(forward[name]))
        return [str(c.name_hint) for c in called if c is not None and str(c.name_hint) in forward]

    entries = (name for name, member in forward.items() if not is_private(member.fn))
    return set(reachable(entries, callees))
