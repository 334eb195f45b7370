# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``check_level`` reports the first binding that does not belong to an IR level."""

from __future__ import annotations

import itertools

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.attributes.keys import IO_ATTR
from tvm_distir.core.ir.branches import holds_branch
from tvm_distir.core.ir.mesh import mesh_index, mesh_shape, meshes
from tvm_distir.core.ir.operators.async_ops import DONE, start_name
from tvm_distir.core.ir.operators.compute_ops import COMPUTE_OPS
from tvm_distir.core.ir.operators.names import COLLECTIVES, TRANSFERS
from tvm_distir.core.ir.placement import check_placement, labels_of
from tvm_distir.core.ir.types import flat_types, is_private, relax_functions, tensor_type
from tvm_distir.core.rewriting.calls import op_name
from tvm_distir.core.rewriting.partitions import open_partitions
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.support import LevelError

from .conditions import Differing
from .in_flight import InFlight
from .names import LEVELS
from .partial import PartialState

_MOVES = (*COLLECTIVES, "local_slice", *TRANSFERS)
ALLOWED: dict[int, tuple[str, ...]] = {
    1: (),
    2: ("annotate_sharding",),
    3: ("redistribute", "partial", "view"),
    4: ("partial", "view", *_MOVES),
    5: ("partial", "axis_index", *_MOVES, *map(start_name, COLLECTIVES), DONE),
}
"""``relax.dist.*`` ops each level may hold."""


def check_level(mod: ir.IRModule, level: int | str) -> None:
    """Raise unless a module is at an IR level.

    Parameters
    ----------
    mod : IRModule
    level : int or str
        1 global, 2 annotated, 3 distributed, 4 legalized, 5 local: the number or the name.

    Raises
    ------
    LevelError
        DIST0451 naming the first offending function and binding.
    """
    numbers = {name: number for number, name in LEVELS.items()}
    level = numbers.get(level, 0) if isinstance(level, str) else level
    if level not in LEVELS:
        remedy = "Use 1 to 5, or the name of a level."
        raise LevelError("DIST0451", "the level is unknown", location="check_level", remedy=remedy)
    if level >= 2 and not meshes(mod):
        problem = f"a module of level {level} ({LEVELS[level]}) needs a mesh"
        remedy = 'Add it: mod.update_global_info("mesh", meshes).'
        raise LevelError("DIST0451", problem, location="module", remedy=remedy)
    mod = open_partitions(mod)
    for gv, fn in relax_functions(mod):
        _Checker(mod, str(gv.name_hint), fn, level).run()
    if level == 5 and any(holds_branch(fn) for _, fn in relax_functions(mod)):
        _check_conditions(mod)


def level_of(mod: ir.IRModule) -> str:
    """Return the name of the level of a module: the first whose rules it satisfies.

    Raises
    ------
    LevelError
        DIST0451 where it keeps those of none; what is reported is what the legalized level lacks.
    """
    if any(fn.attrs and IO_ATTR in fn.attrs for _, fn in relax_functions(mod)):
        return LEVELS[5]
    if not meshes(mod):
        return LEVELS[1]
    for level in (2, 3):
        try:
            check_level(mod, level)
        except LevelError:
            continue
        return LEVELS[level]
    check_level(mod, 4)
    return LEVELS[4]


def has_dtensor(fn: relax.Function) -> bool:
    """Return whether a parameter, a bound variable or the result of a function is a DTensor."""
    bound = (binding.var.ty for block in fn.body.blocks for binding in block.bindings[:])
    types = itertools.chain((param.ty for param in fn.params[:]), [fn.ret_ty], bound)
    return any(type(t) is DTensorType for ty in types for t in flat_types(ty))


def refuse_dtensors(name: str, fn: relax.Function, problem: str, remedy: str) -> None:
    """Refuse a function with DTensors (LevelError DIST0451)."""
    for var in [*fn.params[:], *(binding.var for binding in all_bindings(fn.body))]:
        if isinstance(var.ty, DTensorType):
            raise LevelError("DIST0451", problem, location=f"{name}/{var.name}", remedy=remedy)


def _check_conditions(mod: ir.IRModule) -> None:
    """Check that devices that communicate in a branch take the same side."""
    for name, var, axes in Differing(mod).conditions():
        numbers = sorted({axis for _, axis in axes})
        problem = f"a condition that differs between devices along mesh axes {numbers}"
        raise _Checker(mod, name, mod[name], 5).error(f"{var.name} (If)", problem)


class _Checker:
    """A checker of a function."""

    def __init__(self, mod: ir.IRModule, name: str, fn: relax.Function, level: int) -> None:
        self.mod, self.name, self.fn, self.level = mod, name, fn, level

    def error(self, where: str, problem: str) -> LevelError:
        """Return the error at a place of this function."""
        return LevelError(
            "DIST0451",
            f"{problem}, which a module of level {self.level} ({LEVELS[self.level]}) must not have",
            location=f"{self.name}/{where}",
            remedy="Run the passes in order: annotate, propagate, legalize, lower.",
        )

    def run(self) -> None:
        """Check the parameters, bindings and result, then the partial sums."""
        for p in self.fn.params:
            self.type(p.name, p.ty)
        for b in all_bindings(self.fn.body):
            where = f"{b.var.name} ({op_name(b.value)})"
            self.type(where, b.var.ty)
            self.expression(where, b.value)
        if self.level == 5:
            InFlight(self.mod, self.fn, self.error).check()
        self.type("result", self.fn.ret_ty)
        if self.level in (3, 4):
            PartialState(self.mod, self.name, self.fn, legalized=self.level == 4).check()
        if self.level == 5 and not is_private(self.fn):
            if not (self.fn.attrs and IO_ATTR in self.fn.attrs):
                problem = f"the attribute {IO_ATTR} is missing"
                remedy = "Lower the module with LowerDistIR, which sets it."
                raise LevelError("DIST0451", problem, location=self.name, remedy=remedy)

    def type(self, where: str, ty: ir.Type) -> None:
        """Check that tensors are DTensors at levels 3 and 4 and plain tensors elsewhere."""
        for leaf in flat_types(ty):
            if tensor_type(leaf) is None:
                continue
            placed = isinstance(leaf, DTensorType)
            if placed and self.level not in (3, 4):
                raise self.error(where, f"a DTensor ({leaf.placement})")
            if not placed and self.level in (3, 4):
                raise self.error(where, "a tensor without a mesh and a placement")
            if placed:
                mesh_index(self.mod, leaf.device_mesh)
                check_placement(
                    labels_of(leaf.placement),
                    mesh_shape(leaf.device_mesh),
                    int(leaf.tensor_ty.ndim),
                    f"{self.name}/{where}",
                )

    def expression(self, where: str, value: ir.Expr) -> None:
        """Check that only ``R.dist`` ops of the level are called."""
        if isinstance(value, relax.If):
            if self.level in (3, 4):
                raise self.error(where, "an If")
            return
        if isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
            name = str(value.op.name)
            short = name.removeprefix("relax.dist.")
            if (
                name.startswith("relax.dist.")
                and short not in ALLOWED[self.level]
                and name not in COMPUTE_OPS
            ):
                raise self.error(where, f"R.dist.{short}")
