# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Move each choice to the mesh of its branches (level 3 to level 3).

Before::

    y_then = cls.main_y_then(x)                       # on mesh 0, as is x
    y_else = cls.main_y_else(x)
    y_then_1 = R.dist.redistribute(y_then, mesh[1])   # both are sent
    y_else_1 = R.dist.redistribute(y_else, mesh[1])
    y = R.where(c, y_then_1, y_else_1)                # on mesh 1, as is c

After::

    c_1 = R.dist.redistribute(c, mesh[0])
    y_chosen = R.where(c_1, y_then, y_else)
    y = R.dist.redistribute(y_chosen, mesh[1])        # one is sent

The condition is a ``bool``, and only where it is known can the other branch be left out. Where
the branches of an ``If`` are on different meshes, or a branch is on several, no device could skip
a branch alone: both run, and the choice stays an ``R.where``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh, DTensorType
from tvm.relax.op.distributed import redistribute

from tvm_distir.core.analysis.partial import PartialState
from tvm_distir.core.ir.attributes.keys import BRANCH_ATTR
from tvm_distir.core.ir.branches import branch_of
from tvm_distir.core.ir.mesh import mesh_key, mesh_shape
from tvm_distir.core.ir.placement import R, labels_of, placement_of
from tvm_distir.core.ir.types import flat_types, relax_functions, tensor_type
from tvm_distir.core.rewriting.calls import bindings_of, rebuild
from tvm_distir.core.rewriting.functions import callees_of, map_functions, with_functions
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.core.rewriting.writer import BlockWriter, with_body
from tvm_distir.support import Steps, unrolled

from .def_use import DefUse
from .results import branch_results, is_choice


def choose_beside_branches(mod: ir.IRModule) -> ir.IRModule:
    """Choose where the branches are; see the module's docstring.

    Parameters
    ----------
    mod : IRModule
        The module, at level 3, with lifted branches; it is not changed.
    """
    mod = _without_mixed(mod)
    new = {gv: _ChoiceMover(mod, str(gv.name_hint), fn).run() for gv, fn in relax_functions(mod)}
    return with_functions(mod, {**mod.functions, **new})


def _without_mixed(mod: ir.IRModule) -> ir.IRModule:
    """Make the branches of an ``If`` of which one works on several meshes plain functions."""
    known: dict[str, set[Any]] = {}
    mixed = set()
    for gv, fn in relax_functions(mod):
        branch = branch_of(fn)
        if branch is not None and len(unrolled(_meshes(mod, gv, known))) > 1:
            mixed.add(branch[0])
    if not mixed:
        return mod

    def without_mixed(fn: relax.Function) -> relax.Function:
        branch = branch_of(fn)
        return fn if branch is None or branch[0] not in mixed else fn.without_attr(BRANCH_ATTR)

    return map_functions(mod, without_mixed)


def _meshes(mod: ir.IRModule, gv: ir.GlobalVar, known: dict[str, set[Any]]) -> Steps[set[Any]]:
    """Return the meshes that a function works on, directly or through callees."""
    name, fn = str(gv.name_hint), mod[gv]
    if name not in known and isinstance(fn, relax.Function):
        types = [p.ty for p in fn.params] + [var.ty for var, _ in bindings_of(fn, name)]
        leaves = [leaf for ty in (*types, fn.ret_ty) for leaf in flat_types(ty)]
        result = {mesh_key(t.device_mesh) for t in leaves if isinstance(t, DTensorType)}
        known[name] = result
        for callee in callees_of(fn):
            result |= yield _meshes(mod, callee, known)
    return known.get(name, set())


@dataclass(frozen=True)
class _Placed:
    """The rewrite of a choice.

    Attributes
    ----------
    mesh : DeviceMesh
        The mesh of the branches.
    sides : tuple of Expr
        The two values on that mesh between which it chooses.
    away : bool
        Whether it was made on another mesh.
    """

    mesh: DeviceMesh
    sides: tuple[Any, ...]
    away: bool


class _ChoiceMover:
    """A rewriter of a function."""

    def __init__(self, mod: ir.IRModule, name: str, fn: relax.Function) -> None:
        self.mod, self.name, self.fn = mod, name, fn
        self.results = branch_results(mod, fn)
        self.def_use = DefUse(fn)
        self.writer = BlockWriter(relax.BlockBuilder(), False)
        self.flags: dict[Any, Any] = {}

    def run(self) -> relax.Function:
        """Return the function, or itself where every choice is there already."""
        fn = self.fn
        placed = self._placed()
        away = [var for var, placed_choice in placed.items() if placed_choice.away]
        if not away:
            return fn
        removed = {step for var in away for step in self._steps(var)}
        state = PartialState(self.mod, self.name, fn, legalized=False)
        state.check()
        blocks = []
        for block in fn.body.blocks:
            self.writer = BlockWriter(self.writer.builder, isinstance(block, relax.DataflowBlock))
            for b in block.bindings:
                if b.var in placed:
                    self._choose(b, placed[b.var], state)
                elif b.var not in removed:
                    self.writer.bindings.append(b)
                    self._note(b.var)
            blocks.append(self.writer.block())
        flags = {v for var in away for v in self.def_use.moved(self.def_use.value[var].args[0])[1]}
        blocks = _without_unread(blocks, fn.body.body, flags)
        return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))

    def _placed(self) -> dict[Any, _Placed]:
        """Return the choices between branches of a mesh, by their variables."""
        placed: dict[Any, _Placed] = {}
        for var, value in self.def_use.value.items():
            if not is_choice(value) or not isinstance(value.args[0], ir.Var):
                continue
            sides = tuple(self.def_use.moved(arg)[0] for arg in value.args[1:])
            left, other = (self.results.get(side) for side in sides)
            mesh = sides[0].ty.device_mesh
            if left is None or not left.faces(other):
                continue
            if mesh_key(mesh) != mesh_key(sides[1].ty.device_mesh):
                continue
            if mesh_key(mesh) == mesh_key(var.ty.device_mesh):
                placed[var] = _Placed(mesh, tuple(value.args[1:]), away=False)
            elif all(len(self.def_use.readers[v]) == 1 for v in (*sides, *self._steps(var))):
                placed[var] = _Placed(mesh, sides, away=True)
        return placed

    def _steps(self, var: relax.Var) -> list[Any]:
        """Return the redistributes between the branches and their choice."""
        sides = self.def_use.value[var].args[1:]
        return [step for side in sides for step in self.def_use.moved(side)[1]]

    def _note(self, var: relax.Var) -> None:
        """Remember on which mesh a flag is known."""
        tensor = tensor_type(var.ty)
        if tensor is not None and int(tensor.ndim) == 0 and str(tensor.dtype) == "bool":
            self.flags.setdefault((self.def_use.moved(var)[0], mesh_key(var.ty.device_mesh)), var)

    def _flag(self, cond: Any, mesh: DeviceMesh) -> Any:
        """Return the condition on a mesh: a variable for all choices there."""
        key = (self.def_use.moved(cond)[0], mesh_key(mesh))
        if key not in self.flags:
            replicated = placement_of([R] * len(mesh_shape(mesh)))
            self.flags[key] = self.writer.emit(redistribute(cond, mesh, replicated), str(cond.name))
        return self.flags[key]

    def _choose(self, b: Any, choice: _Placed, state: PartialState) -> None:
        call, sides = b.value, list(choice.sides)
        cond = self._flag(call.args[0], choice.mesh)
        if not choice.away:
            self.writer.bind(b.var, rebuild(call, call.op, [cond, *sides], call.ty))
            return
        open_axes = [state.of(side) for side in sides]
        target_placement = sides[0].ty.placement
        for i, side in enumerate(sides):
            unlike = labels_of(side.ty.placement) != labels_of(target_placement)
            if unlike or open_axes[0] != open_axes[1]:
                sides[i] = self.writer.emit(
                    redistribute(side, choice.mesh, target_placement), f"{side.name}_meets"
                )
        chosen = rebuild(call, call.op, [cond, *sides], sides[0].ty)
        chosen_var = self.writer.variable(f"{b.var.name}_chosen", sides[0].ty)
        self.writer.bind(chosen_var, chosen)
        sent = redistribute(chosen_var, b.var.ty.device_mesh, b.var.ty.placement)
        self.writer.bind(b.var, self.writer.builder.normalize(sent))


def _without_unread(
    blocks: Sequence[relax.BindingBlock], result: Any, chosen: set[Any]
) -> list[Any]:
    """Drop those of the chosen variables that nobody reads."""
    read = set(variables(result))
    blocks_read = []
    for block in reversed(blocks):
        bindings = []
        for b in reversed(block.bindings):
            if b.var not in chosen or b.var in read:
                read.update(variables(b.value))
                bindings.append(b)
        blocks_read.append(type(block)(bindings[::-1]))
    return blocks_read[::-1]
