# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert types, constants and variables of a function to their local forms on a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import ir, relax
from tvm.ir import Expr
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.mesh import mesh_key, mesh_shape
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.ir.placement import Labels, R, labels_of
from tvm_distir.core.ir.types import flat_types, static_shape
from tvm_distir.core.ops.local.call import expected_mismatch
from tvm_distir.core.ops.local.positions import BlockMemo
from tvm_distir.core.ops.local.shard import Shard, shard
from tvm_distir.core.ops.registry import registration_of
from tvm_distir.core.ops.terms import Terms
from tvm_distir.core.rewriting.calls import location_of, tuple_of
from tvm_distir.core.rewriting.repeated_bindings import RewrittenValues
from tvm_distir.core.rewriting.substitute import VARIABLES, substitute
from tvm_distir.core.rewriting.writer import BlockWriter
from tvm_distir.support import GenericConst, LevelError, LoweringError

from .collectives import sliced
from .context import Context


class VariableState(NamedTuple):
    """The state of the leaves of a variable, see :class:`LocalValues`."""

    terms: tuple[Terms, ...]
    zero: tuple[bool, ...]


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
        self.number, self.mesh = number, mesh
        self.builder = relax.BlockBuilder()
        self.env: dict[Expr, Expr] = {}
        self.zero: dict[tuple[Any, int], bool] = {}
        self.terms: dict[tuple[Any, int], Terms] = {}
        self.tuples: dict[Expr, list[Expr]] = {}
        self.constants: dict[Any, Any] = {}
        self._memos: dict[int, BlockMemo] = {}  # by view
        self.foldable: dict[Any, ir.Call] = {}
        self.shards: dict[int, tuple[Any, Shard]] = {}  # by the handle of the type, kept alive
        self.writer = BlockWriter(self.builder, False)

    def open_block(self, dataflow: bool) -> None:
        """Begin a block; expressions written in the previous block are no longer visible."""
        self.writer = BlockWriter(self.builder, dataflow)
        self.constants.clear()
        self._memos.clear()
        self.foldable.clear()

    def view_of(self, ty: ir.Type) -> DeviceMesh:
        """Return the module's mesh on which a tensor is, this mesh of a plain tensor."""
        if not isinstance(ty, DTensorType):
            return self.mesh
        return self.context.meshes[self.context.view_number(ty.device_mesh)]

    def memo_on(self, mesh: DeviceMesh) -> BlockMemo:
        """Return what calls on a view have written in this block."""
        return self._memos.setdefault(self.context.view_number(mesh), BlockMemo())

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
            sizes = mesh_shape(ty.device_mesh)
        else:
            sizes, dtype = mesh_shape(self.mesh), str(ty.dtype)
            labels = (R,) * len(sizes)
        layout = shard(shape, labels, sizes, dtype)
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
        new = type(var)(var.name, self.local_type(var.ty, f"{self.name}/{var.name}"))
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

    def constant(self, expr: Expr, labels: Labels, mesh: DeviceMesh) -> Expr:
        """Return the local form of a constant: itself, or my slice of it by labels on a view."""
        shape = static_shape(expr.ty)
        if shape is None:
            problem = "a constant has an unknown shape"
            remedy = "Give it a known shape."
            raise LoweringError("DIST0502", problem, location=self.name, remedy=remedy)
        cut = tuple(x if x >= 0 and n > 1 else R for n, x in zip(mesh_shape(mesh), labels))
        key = _constant_key(expr, cut, mesh)
        if key not in self.constants:
            local: Expr = expr
            if isinstance(expr.ty, DTensorType):
                local = GenericConst(expr.value, expr.ty.tensor_ty)
            if any(x != R for x in cut):
                local = sliced(self.writer, local, mesh, cut, shape, "constant")
            self.constants[key] = local
        return self.constants[key]

    def recast(self, constant: Expr, ty: ir.Type) -> Expr:
        """Return the local form of a full constant: itself, or with a local type."""
        key = _constant_key(constant, (), self.mesh)
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
            labels = labels_of(expr.ty.placement) if isinstance(expr.ty, DTensorType) else ()
            return self.constant(expr, labels, self.view_of(expr.ty))
        if isinstance(expr, relax.Tuple):
            return tuple_of([self.local(f) for f in expr.fields[:]])
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


def _constant_key(expr: Expr, cut: Labels, mesh: DeviceMesh) -> tuple[object, ...]:
    """Return the key of the slice of a constant; the whole is the same on all views."""
    return (handle(expr), cut, mesh_key(mesh)) if any(x != R for x in cut) else (handle(expr),)
