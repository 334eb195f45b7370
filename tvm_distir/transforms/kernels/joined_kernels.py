# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write several elementwise kernels as one.

A joined kernel computes a chunk of elements at a time, kernel by kernel, in buffers that stay in
the first-level cache. So each intermediate result is rounded as between separate kernels, and no
product is contracted with the addition of another kernel: the bits are those of separate kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, tirx
from tvm.relax import Expr

from tvm_distir.support import SBlock, SBlockRealize, TensorLoad

from .elementwise import Elementwise, static_shape

CHUNK = 64
"""Elements of a chunk."""


@dataclass(frozen=True)
class JoinedOp:
    """Kernel of a group, with the numbers of the values that it reads, and of that it computes."""

    kernel: Elementwise
    operands: tuple[int, ...]
    result: int


def joined_kernel(
    members: Sequence[JoinedOp], operands: Sequence[int], results: Mapping[int, int | None]
) -> tirx.PrimFunc:
    """Write the kernels of a group, which have one shape, as one.

    Parameters
    ----------
    members : sequence of JoinedOp
        In order.
    operands : sequence of int
        The values that it reads, in the order of its parameters.
    results : mapping of int to int or None
        The values that it returns, each with the operand whose memory it overwrites. Those of None
        are parameters behind the operands.
    """
    params: dict[int, ir.Var] = {}
    for member in members:
        for number, param in zip((*member.operands, member.result), member.kernel.params):
            params.setdefault(number, param)

    def buffer(number: int, name: str) -> ir.Var:
        ty = params[number].ty
        return tirx.decl_buffer(list(ty.shape), str(ty.dtype), name, layout=None)

    inputs = {number: buffer(number, f"operand{i}") for i, number in enumerate(operands)}
    outputs = {
        number: buffer(number, f"result{i}") if operand is None else inputs[operand]
        for i, (number, operand) in enumerate(results.items())
    }
    scratch = _Scratch()
    elements = math.prod(members[0].kernel.shape)
    number, size = tirx.Var("chunk", "int64"), tirx.Var("size", "int64")
    loops = _Chunk(inputs, outputs, scratch, number * CHUNK, size).run(members)
    # A loop of a known number of iterations would be unrolled, and its values would not be stored.
    chunk_size = tirx.decl_buffer([1], "int64", "chunk_size", layout=None)
    bind = tirx.Bind(size, tirx.min(tirx.BufferLoad(chunk_size, [0]), elements - number * CHUNK))
    statements = tirx.SeqStmt(
        [
            tirx.AllocBuffer(chunk_size, {"tirx.volatile": tirx.const(True, "bool")}),
            tirx.BufferStore(chunk_size, tirx.const(CHUNK, "int64"), [0]),
            _loop(number, tirx.const(-(-elements // CHUNK), "int64"), [bind, *loops]),
        ]
    )
    block = SBlock([], [], [], "root", statements, alloc_buffers=scratch.buffers)
    realize = SBlockRealize([], tirx.const(True, "bool"), block)
    fresh = [outputs[number] for number, operand in results.items() if operand is None]
    fn = tirx.PrimFunc([*inputs.values(), *fresh], realize)
    return fn.with_attr({"tirx.noalias": True, "s_tir": True})


def _loop(var: ir.Var, extent: Expr, body: Sequence[tirx.Stmt]) -> tirx.Stmt:
    statement = tirx.SeqStmt(body) if len(body) > 1 else body[0]
    return tirx.For(var, tirx.const(0, "int64"), extent, tirx.ForKind.SERIAL, statement)


def _position(buffer: ir.Var, element: Expr) -> list[Expr]:
    """Return the indices of an element of a buffer, by its number in row-major order.

    Where the buffer is a scalar, there is one element.
    """
    shape, indices = static_shape(buffer) or (), list[Expr]()
    if math.prod(shape) == 1:
        return [tirx.const(0, "int64")] * len(shape)
    for size in shape[:0:-1]:
        indices.insert(0, element % size)
        element = element // size
    return [element, *indices]


class _Scratch:
    """Buffers of a chunk.

    Attributes
    ----------
    buffers : list of Var
    free : list of Var
        Those whose values are not read any more.
    """

    def __init__(self) -> None:
        self.buffers: list[ir.Var] = []
        self.free: list[ir.Var] = []

    def take(self, like: ir.Var) -> ir.Var:
        """Return a free buffer, of the dtype of another one."""
        dtype = str(like.ty.dtype)
        for buffer in self.free:
            if str(buffer.ty.dtype) == dtype:
                self.free.remove(buffer)
                return buffer
        shape = [tirx.const(CHUNK, "int64")]
        buffer = tirx.decl_buffer(shape, dtype, f"chunk{len(self.buffers)}", layout=None)
        self.buffers.append(buffer)
        return buffer


@dataclass(eq=False)
class _Chunk:
    """Writer of the loops of a chunk.

    Attributes
    ----------
    inputs, outputs : mapping of int to Var
        The buffers of the operands and of the results.
    scratch : _Scratch
    start, size : Expr
        The number of the first element, and of the elements.
    """

    inputs: Mapping[int, ir.Var]
    outputs: Mapping[int, ir.Var]
    scratch: _Scratch
    start: Expr
    size: Expr
    values: dict[int, ir.Var] = field(default_factory=dict)

    def run(self, members: Sequence[JoinedOp]) -> list[tirx.Stmt]:
        """Return the loops; results are written behind all of them, as they may be operands."""
        loops = list[tirx.Stmt]()
        last = {n: position for position, m in enumerate(members) for n in m.operands}
        last.update(dict.fromkeys(self.outputs, len(members)))
        for position, member in enumerate(members):
            loops += self._member(member)
            for number in {*member.operands, member.result}:
                if last.get(number) == position and number in self.values:
                    self.scratch.free.append(self.values.pop(number))
        for number, out in self.outputs.items():
            i = tirx.Var("i", "int64")
            value = tirx.BufferLoad(self.values[number], [i])
            store = tirx.BufferStore(out, value, _position(out, self.start + i))
            loops.append(_loop(i, self.size, [store]))
        return loops

    def _member(self, member: JoinedOp) -> list[tirx.Stmt]:
        """Return the loops of a kernel, one for each stage."""
        number_of: dict[ir.Var, int] = dict(zip(member.kernel.params, member.operands))
        stages, loops = dict[ir.Var, ir.Var](), list[tirx.Stmt]()

        def read(source: ir.Var, i: ir.Var) -> Expr:
            if source in stages:
                return tirx.BufferLoad(stages[source], [i])
            number = number_of[source]
            if number in self.values:
                return tirx.BufferLoad(self.values[number], [i])
            operand = self.inputs[number]
            return tirx.BufferLoad(operand, _position(operand, self.start + i))

        for buffer, value in member.kernel.stages:
            stages[buffer], i = self.scratch.take(buffer), tirx.Var("i", "int64")
            entry = TensorLoad, lambda load, i=i: read(load.source, i)
            element = tvm_ffi.structural_map(value, entry)
            loops.append(_loop(i, self.size, [tirx.BufferStore(stages[buffer], element, [i])]))
        self.values[member.result] = stages.pop(member.kernel.params[-1])
        self.scratch.free += stages.values()
        return loops
