# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents an op call on shards for its local form: operands, and emission of code.

>>> def reshape_on_shards(cx):
...     return relax.op.reshape(cx.operand(0), cx.outs[0].local)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.types import flat_types, static_shape, tensor_type
from tvm_distir.core.ops.dims import same, symbols
from tvm_distir.core.ops.terms import CallSharding
from tvm_distir.core.rewriting.calls import is_tensors, location_of, rebuild, tuple_of
from tvm_distir.core.rewriting.dims import dims_remedy
from tvm_distir.core.rewriting.nodes import scalar_of
from tvm_distir.core.rewriting.writer import BlockWriter
from tvm_distir.support import LoweringError

from .positions import BlockMemo, Positions
from .shard import Operand, Shard


@dataclass(eq=False)
class LocalCall:
    """Input of a local form: the call, its operands on a device, and the writer.

    Attributes
    ----------
    call : Call
        The call at level 4, with global types.
    sharding : CallSharding
        The factors it follows along each mesh axis.
    ins : list of Operand
    outs : list of Shard
    mesh : DeviceMesh
    memo : BlockMemo
        The values that earlier calls of the block have written: positions and fetched rows.
    """

    call: ir.Call
    sharding: CallSharding
    args: Sequence[ir.Expr]
    ins: list[Operand]
    outs: list[Shard]
    mesh: DeviceMesh
    writer: BlockWriter
    function: str
    var: relax.Var
    memo: BlockMemo

    # -- writing

    @property
    def _positions(self) -> Positions:
        """Create the positions anew, which avoids a reference cycle; the memo keeps the values."""
        return Positions(self.mesh, self.writer, self.emit, self.memo)

    @property
    def location(self) -> str:
        """Return the position of the call, for messages."""
        return location_of(self.function, self.var, self.call)

    def fault(self, code: str, problem: str, remedy: str) -> LoweringError:
        """Build an error about this call."""
        return LoweringError(code, problem, location=self.location, remedy=remedy)

    def emit(self, value: ir.Expr, hint: str = "") -> ir.Expr:
        """Bind an intermediate value and return its variable."""
        if isinstance(value, ir.Var):
            return value
        name = f"{self.var.name}_{hint}" if hint else str(self.var.name)
        return self.writer.emit(value, name)

    def operand(self, number: int) -> ir.Expr:
        """Return the local tensor of a flattened operand."""
        operand = self.ins[number]
        if operand.number is not None:
            operand.source = self.emit(relax.TupleGetItem(operand.source, operand.number), "item")
            operand.number, operand.changed = None, True
        return operand.source

    def replace(self, number: int, value: ir.Expr, zero: bool = False) -> None:
        """Use another local tensor as operand."""
        operand = self.ins[number]
        operand.source, operand.number = self.emit(value), None
        operand.changed, operand.zero = True, zero

    def arguments(self) -> list[ir.Expr]:
        """Return all arguments of the call, with tensors in local form."""
        at = [0]
        return [self._argument(arg, at) for arg in self.args]

    def _argument(self, arg: ir.Expr, at: list[int]) -> ir.Expr:
        if type(arg) is relax.Tuple and is_tensors(arg.ty):
            return tuple_of([self._argument(f, at) for f in arg.fields[:]])
        if type(arg) is ir.GlobalVar or not is_tensors(arg.ty):
            return arg
        count = len(flat_types(arg.ty))
        first = at[0]
        at[0] += count
        if type(arg.ty) is not relax.TupleType:
            return self.operand(first)
        if not any(o.changed for o in self.ins[first : first + count]):
            return self.ins[first].source
        return tuple_of([self.operand(i) for i in range(first, first + count)])

    def same(self) -> ir.Call:
        """Write the same op with the same attributes on the local operands."""
        return rebuild(self.call, self.call.op, self.arguments())

    # -- reading

    def argument_int(self, number: int) -> Any:
        """Return the plain value of an argument that is no tensor: an int, or a tuple of ints."""
        arg = self.call.args[number]
        return tuple(int(x) for x in arg.fields) if isinstance(arg, relax.Tuple) else int(arg)

    def axes_of_dim(self, number: int, dim: int) -> tuple[int, ...]:
        """Return the mesh axes (of several devices) that shard a dim of an operand."""
        sizes = [int(n) for n in self.mesh.shape]
        labels = self.ins[number].shard.labels
        return tuple(a for a, x in enumerate(labels) if x == dim and sizes[a] > 1)

    def scalar(self, value: Any, dtype: str) -> ir.Expr:
        """Make a constant: a scalar (of shape (1,) when not finite, for its text) or a table."""
        base = "float32" if dtype == "bfloat16" else dtype
        array = np.array(value).astype(base)
        if array.dtype.kind == "f" and array.ndim == 0 and not np.isfinite(array):
            array = array.reshape(1)
        const = scalar_of(array) if array.ndim == 0 else relax.const(array, base)
        return const if base == dtype else self.emit(relax.op.astype(const, dtype), "fill")

    # -- positions

    def position(self, axes: Sequence[int]) -> ir.Expr:
        """Return the rank's number among the shards of a dim split by ``axes`` (int64 scalar)."""
        return self._positions.number(axes)

    def _check_size(self, shard: Shard, dim: int) -> None:
        """Refuse (DIST0502) a sharded dim whose size decides positions and has no size."""
        if dim in shard.symbolic_dims:
            raise self.fault(
                "DIST0502",
                f"the op needs the size of dim {dim} ({shard.global_shape[dim]}), which is sharded",
                dims_remedy([str(v.name) for v in symbols(shard.global_shape[dim])]),
            )

    def start(self, number: int, dim: int) -> ir.Expr:
        """Return where the rank's shard of an operand begins along a sharded dim (int64 scalar)."""
        shard = self.ins[number].shard
        self._check_size(shard, dim)
        return self._positions.start(shard, self.axes_of_dim(number, dim), dim)

    def held(self, number: int, dim: int) -> Any:
        """Return the length of the rank's shard along an operand's ``inner_dims`` (int64)."""
        shard = self.ins[number].shard
        self._check_size(shard, dim)
        return self._positions.part(shard.global_shape[dim], self.axes_of_dim(number, dim))[1]

    def valid(self, number: int, dim: int) -> ir.Expr:
        """Return booleans, broadcastable to the operand: True where a dim has no padding."""
        return self._positions.valid(self.ins[number].shard, self.axes_of_dim(number, dim), dim)

    def check_order(self, shard: Shard, dim: int) -> None:
        """Refuse a dim with padding between its elements, where neighbours must be adjacent.

        Raises
        ------
        LoweringError
            DIST0507.
        """
        if dim in shard.inner_dims:
            raise self.fault(
                "DIST0507",
                f"dim {dim} of size {shard.global_shape[dim]} is sharded by several mesh axes into "
                f"{shard.counts[dim]} uneven parts, and the op reads across their boundaries",
                f"Shard it over one axis, or pad it to {shard.local[dim] * shard.counts[dim]}.",
            )


def expected_mismatch(ty: ir.Type, outs: Sequence[Shard]) -> str:
    """Describe how an inferred local type differs from the wanted shards; empty if equal."""
    leaves = flat_types(ty)
    if len(leaves) != len(outs):
        return f"{len(leaves)} results, expected {len(outs)}"
    for number, (leaf, want) in enumerate(zip(leaves, outs)):
        tensor: ir.Type = tensor_type(leaf)
        if tensor is None:
            return f"result {number} is {leaf}, expected a tensor"
        got = static_shape(tensor)
        if got is None or len(got) != len(want.local) or not all(map(same, got, want.local)):
            return f"result {number} has shape {got or leaf}, expected {want.local}"
        if str(tensor.dtype) != want.dtype:
            return f"result {number} is {tensor.dtype}, expected {want.dtype}"
    return ""
