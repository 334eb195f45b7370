# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a Relax call, with the building blocks that several ops share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import Labels, known_shape, tensor_type
from tvm_distir.models.common.hlo_names import REDUCTIONS

from .body_writer import Body, Ssa
from .text import Unwritable, integers, table


class DeviceInterface(Protocol):
    """Interface to a module: its kernels, and its devices for calls that communicate."""

    is_local: bool
    partitioning: str

    def sharding(self, mesh: DeviceMesh, labels: Labels, rank: int, call: ir.Call | None) -> str:
        """Return the text of a sharding, of a type or an annotation."""

    def groups(self, mesh: DeviceMesh, axes: Sequence[int]) -> list[list[int]]:
        """Return the groups of devices, by their numbers in the program."""

    def number(self, device: int) -> int:
        """Return the number of a device in the program."""

    def operation(self, kernel: ir.GlobalVar) -> str | None:
        """Return the operation of StableHLO that a kernel computes, if it was imported from one."""


def dims(ty: ir.Type) -> tuple[int, ...]:
    """Return the static shape of a type."""
    shape = known_shape(ty)
    if tensor_type(ty) is None:
        raise Unwritable(f"a value of type {ty}, which is not a tensor")
    if shape is None:
        raise Unwritable("a tensor of unknown shape")
    return shape


def dtype(ty: ir.Type) -> str:
    """Return the name of the element type."""
    tensor: relax.TensorType = tensor_type(ty)
    return str(getattr(tensor.dtype, "dtype", tensor.dtype))


@dataclass(frozen=True)
class ExportStep:
    """Call with its arguments written.

    Attributes
    ----------
    call : ir.Call
    args : list
        Values, tuples of them, lists of integers, or numbers.
    body : Body
    devices : DeviceInterface
    """

    call: ir.Call
    args: list[Any]
    body: Body
    devices: DeviceInterface

    @property
    def attrs(self) -> ir.Attrs:
        """Return the call's attributes."""
        return self.call.attrs

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        return dims(self.call.ty)

    @property
    def dtype(self) -> str:
        """Return the element type of the result."""
        return dtype(self.call.ty)

    def __getitem__(self, index: int) -> Any:
        return self.args[index]

    def optional(self, index: int) -> Any:
        """Return an argument, or None if it is not given."""
        return self.args[index] if len(self.args) > index else None

    def axis(self, rank: int) -> int:
        """Return the attribute ``axis``, counted from the front."""
        return int(self.attrs.axis) % max(rank, 1)

    def axes(self, rank: int, name: str = "axis") -> list[int]:
        """Return an attribute of axes, or all axes if none is given."""
        value = getattr(self.attrs, name)
        if value is None:
            return list(range(rank))
        listed = value if hasattr(value, "__iter__") else [value]
        return [int(axis) % rank for axis in listed]

    def integers(self, name: str) -> list[int]:
        """Return an attribute that is a list of integers."""
        return [int(v) for v in getattr(self.attrs, name)]


Write = Callable[[ExportStep], Any]
"""Writes a call: its value, or a tuple of them."""


def refuse(step: ExportStep, problem: str) -> Unwritable:
    """Return the error for an unsupported form of an op."""
    return Unwritable(f"{step.call.op.name} {problem}")


def softmax(body: Body, value: Ssa, axis: int, log: bool = False) -> Ssa:
    """Write softmax or its logarithm, in at least float32, which the result has."""
    value = body.accumulated("sum", value)
    moved = body.binary("subtract", value, body.reduce("max", value, [axis], True))
    power = body.unary("exponential", moved)
    total = body.reduce("sum", power, [axis], True)
    if log:
        return body.binary("subtract", moved, body.unary("log", total))
    return body.binary("divide", power, total)


def dot(
    body: Body, a: Ssa, b: Ssa, batch: tuple[Sequence[int], Sequence[int]],
    inner: tuple[Sequence[int], Sequence[int]], kind: str,
) -> Ssa:  # fmt: skip
    """Write a product over contracted dims; batch dims first, then free ones of both sides."""
    shape = [a.shape[i] for i in batch[0]]
    for value, batched, contracted in zip((a, b), batch, inner):
        shape += [n for i, n in enumerate(value.shape) if i not in (*batched, *contracted)]
    numbers = ", ".join(
        f"{side}_{title}_dimensions = {list(dims_)}"
        for title, pair in (("batching", batch), ("contracting", inner))
        for side, dims_ in zip(("lhs", "rhs"), pair)
    )
    notes = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>, {PRECISE}"
    return body.op("dot_general", [a, b], shape, kind, notes)


PRECISE = "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"


def clipped(body: Body, index: Ssa, size: int) -> Ssa:
    """Clip indices to a number of rows."""
    bounds = [body.constant(n, index.dtype) for n in (0, size - 1)]
    return body.op("clamp", [bounds[0], index, bounds[1]], index.shape, index.dtype)


def take(body: Body, rows: Ssa, index: Ssa, axis: int) -> Ssa:
    """Take rows along a dim by indices, which StableHLO's gather clips."""
    count = len(index.shape)
    rank = len(rows.shape)
    windows = [*range(axis), *range(axis + count, rank - 1 + count)]
    numbers = (
        f"offset_dims = {windows}, collapsed_slice_dims = [{axis}], start_index_map = [{axis}]"
    )
    sizes = [1 if i == axis else n for i, n in enumerate(rows.shape)]
    shape = [*rows.shape[:axis], *index.shape, *rows.shape[axis + 1 :]]
    return gather(body, rows, index, shape, f"{numbers}, index_vector_dim = {count}", sizes)


def gather(
    body: Body, x: Ssa, index: Ssa, shape: Sequence[int], numbers: str, sizes: Sequence[int]
) -> Ssa:
    """Take slices of some sizes at indices; ``numbers`` says what their dims are."""
    notes = f"dimension_numbers = #stablehlo.gather<{numbers}>, indices_are_sorted = false"
    notes += f", slice_sizes = {integers(sizes)}"
    return body.op("gather", [x, index], shape, x.dtype, notes)


def scatter(body: Body, into: Ssa, index: Ssa, new: Ssa, numbers: str, kind: str) -> Ssa:
    """Write or add elements at indices."""
    wide = body.accumulated(kind, into)
    if wide is not into:
        new = body.cast(new, wide.dtype)
        return body.cast(scatter(body, wide, index, new, numbers, kind), into.dtype)
    notes = f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>"
    notes += ", indices_are_sorted = false, unique_indices = false"
    region = body.region(kind, into.dtype)
    return body.op("scatter", [into, index, new], into.shape, into.dtype, notes, region)


@dataclass(frozen=True)
class Windows:
    """Sliding windows over all dims of a value: sizes, strides, dilations and padding."""

    sizes: list[int]
    steps: list[int]
    gaps: list[int]
    low: list[int]
    high: list[int]

    @property
    def pads(self) -> str:
        """Return the padding as an attribute."""
        return table(list(zip(self.low, self.high)))

    @property
    def notes(self) -> str:
        """Return sizes, strides and padding as attributes."""
        head = (
            f"window_dimensions = {integers(self.sizes)}, window_strides = {integers(self.steps)}"
        )
        return f"{head}, padding = {self.pads}"


def slide(body: Body, kind: str, value: Ssa, windows: Windows) -> Ssa:
    """Write a reduction over windows."""
    wide = body.accumulated(kind, value)
    if wide is not value:
        return body.cast(slide(body, kind, wide, windows), value.dtype)
    rows = zip(value.shape, windows.low, windows.high, windows.sizes, windows.steps, windows.gaps)
    shape = [(n + a + b - (d * (w - 1) + 1)) // t + 1 for n, a, b, w, t, d in rows]
    notes = f"{windows.notes}, window_dilations = {integers(windows.gaps)}"
    notes += f", base_dilations = {integers([1] * len(shape))}"
    start, region = body.neutral(kind, value.dtype), body.region(REDUCTIONS[kind], value.dtype)
    return body.op("reduce_window", [value, start], shape, value.dtype, notes, region)
