# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find where the functions of a module are called, and which parameters are weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir import is_private, relax_functions, unpack
from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.ir.operators import call_axes, collectives
from tvm_distir.core.ir.views import family
from tvm_distir.core.rewriting import all_bindings, module_calls, variables
from tvm_distir.support import Steps, memoized_steps, unrolled

_LAYOUT = (
    *("astype", "concat", "expand_dims", "flatten", "nn.pad", "permute_dims", "reshape"),
    *("squeeze", "strided_slice", "dist.local_slice"),
)
_LAYOUT_OPS = frozenset(f"relax.{name}" for name in _LAYOUT)


class CallSites:
    """Calls of the functions of a module.

    Parameters
    ----------
    mod : IRModule
    weights : mapping of str to collection of int, optional
        Parameters of entry functions, by name, that :meth:`early_params` follows; None: all.

    Attributes
    ----------
    functions : dict of GlobalVar to Function
        The Relax functions.
    of : mapping of GlobalVar to list of (GlobalVar, Binding)
        The calls of each function, with the functions that call it.
    barred : set of GlobalVar
        Functions that are called in branches.
    """

    def __init__(
        self, mod: ir.IRModule, weights: Mapping[str, Collection[int]] | None = None
    ) -> None:
        self.functions = dict(relax_functions(mod))
        self.weights = weights
        self.of: dict[ir.GlobalVar, list[tuple[ir.GlobalVar, relax.Binding]]] = defaultdict(list)
        self.barred: set[ir.GlobalVar] = set()
        for gv, fn in self.functions.items():
            plain = {b.var for block in fn.body.blocks for b in block.bindings[:]}
            for binding, callee in module_calls(fn):
                self.of[callee].append((gv, binding))
                if binding.var not in plain:
                    self.barred.add(callee)

    @property
    def callees(self) -> dict[str, list[Any]]:
        """Return the functions that each function calls, in branches too, by its name."""
        callees: dict[str, list[ir.GlobalVar]] = {str(gv.name_hint): [] for gv in self.functions}
        for callee, calls in self.of.items():
            for caller, _ in calls:
                callees[str(caller.name_hint)].append(callee)
        return callees

    @property
    def share_a_mesh(self) -> bool:
        """Return whether entries share a mesh, all of whose devices must meet in one order."""
        return any(
            bool(fn.attrs and IO_ATTR in fn.attrs and "devices" in fn.attrs[IO_ATTR])
            for fn in self.functions.values()
        )

    def early_params(self, gv: ir.GlobalVar) -> set[int]:
        """Return the parameters of a function that are available from the start of the step."""
        fn = self.functions[gv]
        early = set(range(len(fn.params)))
        if self.weights is not None and not is_private(fn):
            early.intersection_update(self.weights.get(str(gv.name_hint), ()))
        for caller, call in self.of[gv] if is_private(fn) else ():
            known, args = unrolled(self._early_values(caller)), unpack(call.value.args)
            early = {n for n in early if args[n] in known}
        return early

    @memoized_steps
    def _early_values(self, gv: ir.GlobalVar) -> Steps[set[Any]]:
        """Return the values of a function that are early, after those of its callers."""
        fn = self.functions[gv]
        for caller, _ in self.of[gv] if is_private(fn) else ():
            yield self._early_values(caller)
        known = {fn.params[n] for n in self.early_params(gv)}
        for binding in all_bindings(fn.body):
            if laid_out(getattr(binding, "value", None), known):
                known.add(binding.var)
        return known


def group_axes(call: ir.Call) -> tuple[Any, tuple[int, ...]]:
    """Return the mesh and the axes of a collective, the same for all views of the mesh."""
    view = family(call.attrs["device_mesh"])
    return view.family, tuple(view.axes[axis] for axis in call_axes(call))


def axes_of(values: Iterable[Any]) -> set[tuple[Any, tuple[int, ...]]]:
    """Return the meshes and axes along which some values are the results of collectives."""
    return {group_axes(value) for value in collectives(values)}


def laid_out(value: Expr, known: Collection[Var]) -> bool:
    """Return whether a value is a device-local layout change, slice or cast of known values."""
    if type(value) in (ir.Var, relax.DataflowVar):
        return value in known
    if type(value) is not ir.Call or type(value.op) is not ir.Op:
        return False
    return str(value.op.name) in _LAYOUT_OPS and all_known(value, known)


def all_known(value: Expr, known: Collection[Var]) -> bool:
    """Return whether a value reads variables, and only known ones."""
    used = list(variables(value))
    return bool(used) and all(var in known for var in used)
