# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert types, constants and variables of a function to their local forms on a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tvm import ir, relax
from tvm.ir import Expr
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.mesh import mesh_key, mesh_shape
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.ir.placement import Labels, R, labels_of
from tvm_distir.core.ir.types import flat_types, static_shape
from tvm_distir.core.ops.class_memo import ClassMemo, class_memo
from tvm_distir.core.ops.local.call import expected_mismatch
from tvm_distir.core.ops.local.positions import BlockMemo
from tvm_distir.core.ops.local.shard import Shard, shard
from tvm_distir.core.ops.registry import registration_of
from tvm_distir.core.ops.terms import Terms
from tvm_distir.core.rewriting.calls import location_of, typed
from tvm_distir.core.rewriting.repeated_bindings import RewrittenValues, Templates
from tvm_distir.core.rewriting.substitute import VARIABLES, substitute
from tvm_distir.core.rewriting.writer import BlockWriter
from tvm_distir.support import GenericConst, LevelError, LoweringError, memoized

from .collectives import sliced


class VariableState(NamedTuple):
    """The state of the leaves of a variable, see :class:`LocalValues`."""

    terms: tuple[Terms, ...]
    zero: tuple[bool, ...]


@dataclass
class Context:
    """The context that all functions of a module share.

    Attributes
    ----------
    mod : IRModule
        The module, at level 4.
    keys : list of mesh keys
        The key of each mesh of the module.
    callees : dict of GlobalVar to GlobalVar
        Private functions lowered so far, and what takes their place.
    known : list of (handle, position)
        Mesh objects met so far, for speed only.
    prim_funcs : dict
        PrimFuncs cut to local shapes, see :mod:`.local.sharding`.
    shardings : ClassMemo
        The :class:`~.CallSharding` of the calls of each class.
    templates : dict of int to Templates
        Local forms per mesh.
    meshes : dict of str to list of int
        The meshes that functions work on, of those that were looked at.
    """

    mod: ir.IRModule
    keys: list[Any]
    callees: dict[ir.GlobalVar, ir.GlobalVar]
    known: list[tuple[int, int]] = field(default_factory=list)
    prim_funcs: dict[Any, Any] = field(default_factory=dict)
    shardings: ClassMemo = field(default_factory=lambda: class_memo("forms"))
    templates: dict[int, Templates] = field(default_factory=dict)
    meshes: dict[str, list[int]] = field(default_factory=dict)

    def templates_on(self, number: int) -> Templates:
        """Return the local forms for a mesh."""
        if number not in self.templates:
            shared = class_memo(("local forms", self.keys[number]))
            self.templates[number] = Templates(shared, class_memo("states"))
        return self.templates[number]

    @memoized
    def local_types_on(self, number: int) -> dict[int, ir.Type]:
        """Return the types of a device's parts on a mesh, those of all modules.

        They go by the number of the tensor type at level 4, ``Reading.types``.
        """
        return class_memo(("local types", self.keys[number]))

    def mesh_number(self, mesh: DeviceMesh) -> int:
        """Return the position of a mesh in the module."""
        for other, number in self.known:
            if other == mesh.__chandle__():
                return number
        key = mesh_key(mesh)
        if key not in self.keys:
            problem = f"a mesh of shape {key[0]} is not among the module's global_infos"
            remedy = 'Add it: mod.update_global_info("mesh", meshes).'
            raise LoweringError("DIST0503", problem, remedy=remedy)
        self.known.append((mesh.__chandle__(), self.keys.index(key)))
        return self.known[-1][1]

    def meshes_of(self, ty: ir.Type) -> list[int]:
        """Return the sorted meshes of the DTensors of a type."""
        meshes = {self.mesh_number(t.device_mesh) for t in flat_types(ty) if type(t) is DTensorType}
        return sorted(meshes)


class LocalValues(RewrittenValues):
    """The state of a function's variables, and the writer of new bindings.

    Parameters
    ----------
    context : Context
    name : str
        Name of the function.
    number : int
        The mesh for which it is lowered.
    mesh : DeviceMesh
        The mesh for which the function is lowered.
    """

    removes_aliases = True

    def __init__(self, context: Context, name: str, number: int, mesh: DeviceMesh) -> None:
        self.context, self.name = context, name
        self.number, self.mesh, self.sizes = number, mesh, mesh_shape(mesh)
        self.builder = relax.BlockBuilder()
        self.env: dict[Expr, Expr] = {}
        self.zero: dict[tuple[Any, int], bool] = {}
        self.terms: dict[tuple[Any, int], Terms] = {}
        self.tuples: dict[Expr, list[Expr]] = {}
        self.constants: dict[Any, Any] = {}
        self.memo = BlockMemo()
        self.foldable: dict[Any, ir.Call] = {}
        self.shards: dict[int, tuple[Any, Shard]] = {}  # by the handle of the type, kept alive
        self.writer = BlockWriter(self.builder, False)

    def open_block(self, dataflow: bool) -> None:
        """Begin a block; expressions written in the previous block are no longer visible."""
        self.writer = BlockWriter(self.builder, dataflow)
        self.constants.clear()
        self.memo.clear()
        self.foldable.clear()

    def level_fault(self, problem: str, var: relax.Var, value: Expr) -> LevelError:
        """Return the error about a module that is not at level 4."""
        remedy = "Run LegalizeRedistribute first."
        return LevelError(
            "DIST0451", problem, location=location_of(self.name, var, value), remedy=remedy
        )

    def expect(self, ty: ir.Type, expected: Sequence[Shard], var: relax.Var, value: Expr) -> None:
        """Refuse (DIST0505) a local form of another type than the binding's shards have."""
        wrong = expected_mismatch(ty, expected)
        if wrong:
            remedy = "Replicate its operands, or register its rule with a local form."
            raise self.fault("DIST0505", wrong, var, value, remedy)

    def shard_of(self, ty: ir.Type, location: str) -> Shard:
        """Return the shard of a level-4 tensor type on this mesh."""
        cached = self.shards.get(handle(ty))
        if cached is not None:
            return cached[1]
        shape = static_shape(ty)
        if shape is None:
            problem = "the shape is not known before the run"
            remedy = "Give it a shape, of symbolic dims where sizes differ between runs."
            raise LoweringError("DIST0502", problem, location=location, remedy=remedy)
        if isinstance(ty, DTensorType):
            labels, dtype = labels_of(ty.placement), str(ty.tensor_ty.dtype)
        else:
            labels, dtype = (R,) * len(self.sizes), str(ty.dtype)
        layout = shard(shape, labels, self.sizes, dtype)
        self.shards[handle(ty)] = ty, layout
        return layout

    def local_type(self, ty: ir.Type, location: str) -> ir.Type:
        """Return the level-5 type of a level-4 type."""
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([self.local_type(t, location) for t in ty.fields])
        if isinstance(ty, DTensorType):
            layout = self.shard_of(ty, location)
            return relax.TensorType(list(layout.local), ty.tensor_ty.dtype, ty.tensor_ty.vdevice)
        if isinstance(ty, relax.TensorType):
            problem = f"a plain {ty} occurs among DTensors"
            remedy = "Run PropagateSharding first: every tensor must have a mesh."
            raise LevelError("DIST0451", problem, location=location, remedy=remedy)
        return ty

    # -- variables

    def declare(self, var: relax.Var) -> Expr:
        """Make the local form of a variable."""
        ty = self.local_type(var.ty, f"{self.name}/{var.name}")
        new = type(var)(var.name, ty)
        self.env[var] = new
        return new

    def bind(self, var: relax.Var, value: Expr, terms: Sequence[Terms], zero: bool) -> None:
        """Bind a local value, or let the variable be an existing variable."""
        self.note(var, terms, zero)
        if type(value) in VARIABLES:
            leaves = type(value) is relax.DataflowVar and type(var) is not relax.DataflowVar
            if not leaves:
                self.env[var] = value
                return
        new = type(var)(var.name, value.ty)
        self.env[var] = new
        self.writer.bind(new, value)

    def note(self, var: relax.Var, terms: Sequence[Terms], zero: bool) -> None:
        """Record the states of the leaves of a variable."""
        for i, partial in enumerate(terms):
            if partial:
                self.terms[(var, i)] = partial
        if zero:
            for i in range(len(flat_types(var.ty))):
                self.zero[(var, i)] = True

    def repeats(self) -> bool:
        """Return whether no tuple spans meshes: one may let a variable out of its block."""
        return not self.tuples

    def replacement(self, var: relax.Var) -> tuple[Any, VariableState] | None:
        """Return the local form of a variable, and the state of its leaves."""
        local = self.env.get(var)
        if type(local) not in VARIABLES or var in self.foldable:
            return None
        count = len(flat_types(var.ty))
        return local, VariableState(
            tuple([self.terms.get((var, i), ()) for i in range(count)]),
            tuple([self.zero.get((var, i), False) for i in range(count)]),
        )

    def recall(self, var: relax.Var, new: Expr, state: VariableState) -> None:
        """Note the local form and the state of a variable."""
        self.env[var] = new
        for i, terms in enumerate(state.terms):
            if terms:
                self.terms[(var, i)] = terms
            if state.zero[i]:
                self.zero[(var, i)] = True

    def zero_of(self, expr: Expr, number: int) -> bool:
        """Return whether the padding of a leaf is known to hold zeros."""
        if isinstance(expr, GenericConst):
            return True
        return self.zero.get((expr, number), False)

    def constant(self, expr: Expr, labels: Labels) -> Expr:
        """Return the local form of a constant: itself, or my slice of it."""
        shape = static_shape(expr.ty)
        if shape is None:
            problem = "a constant has an unknown shape"
            remedy = "Give it a known shape."
            raise LoweringError("DIST0502", problem, location=self.name, remedy=remedy)
        cut = tuple(x if x >= 0 and self.sizes[a] > 1 else R for a, x in enumerate(labels))
        key = (handle(expr), cut)
        if key not in self.constants:
            local: Expr = expr
            if isinstance(expr.ty, DTensorType):
                local = GenericConst(expr.value, expr.ty.tensor_ty)
            if any(x != R for x in cut):
                local = sliced(self.writer, local, self.mesh, cut, shape, "constant")
            self.constants[key] = local
        return self.constants[key]

    def recast(self, constant: Expr, ty: ir.Type) -> Expr:
        """Return the local form of a full constant: itself, or with a local type."""
        key = (handle(constant), (R,) * len(self.sizes))
        if key not in self.constants:
            self.constants[key] = super().recast(constant, ty)
        return self.constants[key]

    def reads_data(self, value: Expr) -> bool:
        """Return whether the local form of a value may depend on the data of its constants."""
        if type(value) is not ir.Call or dist_op_name(value) is not None:
            return False
        if type(value.op) is not ir.Op:
            return True
        registration = registration_of(str(value.op.name))
        return registration is not None and callable(registration.local)

    def local(self, expr: Expr) -> Expr:
        """Return the local form of an expression in normal form whose constants are unsharded."""
        if type(expr) in VARIABLES:
            return self._variable(expr)
        if isinstance(expr, GenericConst):
            labels = (R,) * len(self.sizes)
            if isinstance(expr.ty, DTensorType):
                labels = labels_of(expr.ty.placement)
            return self.constant(expr, labels)
        if isinstance(expr, relax.Tuple):
            fields = [self.local(f) for f in expr.fields[:]]
            return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
        return substitute(expr, self.env)

    def _variable(self, var: relax.Var) -> Expr:
        cached = self.env.get(var)
        if cached is not None:
            return cached
        if var in self.tuples:
            return self.local(relax.Tuple(self.tuples[var]))
        problem = f'"{var.name}" is on another mesh than its reader'
        remedy = "Redistribute it to the reader's mesh."
        raise LoweringError("DIST0503", problem, location=self.name, remedy=remedy)
