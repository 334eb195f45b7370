# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent grids and shardings of MLIR's dialect ``shard``, and one of its operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from tvm_distir.core.ir import placement_of, shard_offsets
from tvm_distir.core.ir.operators import ops
from tvm_distir.models.export.grid import PORT
from tvm_distir.models.mlir.tree import Operation, Symbol

from .emitter import Emitter
from .shardings import NamedMesh, Shardings
from .translated_values import TranslatedTensor, UnsupportedOperation, typed

_KINDS = {"sum": "sum", "max": "max", "min": "min", "product": "prod"}
"""Reductions by the names that the dialect has for them."""


@dataclass(frozen=True)
class Placed:
    """Sharding on a grid: the axes per dim, and the shard offsets if given."""

    mesh: NamedMesh
    device_mesh: Any
    split: list[list[int]]
    begins: list[int]

    def labels(self, shape: Sequence[int]) -> list[int]:
        """Return, per axis of the grid, the dim that it shards, or -1.

        Raises
        ------
        UnsupportedOperation
            What no placement says.
        """
        split = self.split if shape or any(self.split) else []
        if len(split) > len(shape):
            raise UnsupportedOperation(f"a sharding of {len(split)} dims for {len(shape)}")
        labels = [-1] * len(self.mesh.axes)
        for dim, axes in enumerate(split):
            if axes != sorted(axes):
                raise UnsupportedOperation(f"axes {axes} of one dim, out of the grid's order")
            for axis in axes:
                if not 0 <= axis < len(labels) or labels[axis] >= 0:
                    raise UnsupportedOperation(
                        f"the axis {axis} of a grid of {len(labels)}, or twice"
                    )
                labels[axis] = dim
        sizes = list(self.mesh.axes.values())
        if self.begins and self.begins != shard_offsets(shape, labels, sizes):
            raise UnsupportedOperation(
                f"shards that begin at {self.begins}, not of equal size except for the last"
            )
        return labels


class Grids:
    """Placements of values by operations of the dialect.

    Parameters
    ----------
    shardings : Shardings
        The shardings, which hold the grids.
    annotates : bool
        Whether values are annotated with their placements.

    Attributes
    ----------
    moves : str
        The first operation by which processes exchange data, or ask who they are; else empty.
    """

    def __init__(self, shardings: Shardings, annotates: bool) -> None:
        self._shardings, self._annotates = shardings, annotates
        self.moves = ""
        self._computed_on = ""

    def compute_on(self, name: str) -> None:
        """Record the mesh whose devices are the partitions of the imported program."""
        if self._computed_on not in ("", name):
            raise UnsupportedOperation(
                f'local programs on the meshes "{self._computed_on}", "{name}"'
            )
        self._computed_on = name

    def of_devices(self, operation: Operation) -> Any:
        """Return the mesh of an operation that names no grid."""
        if not self._computed_on:
            problem = "a collective outside of a manual computation"
            raise UnsupportedOperation(f"{problem}, where no argument has its placement ({PORT})")
        if not _is_between_partitions(operation):
            raise UnsupportedOperation(
                "a collective between replicas, where devices are partitions"
            )
        self.moves = self.moves or operation.name
        return self.named(self._computed_on)

    def grid(self, operation: Operation) -> tuple[NamedMesh, Any]:
        """Return the grid that an operation names."""
        symbol = operation.attributes.get("grid")
        return self._shardings.grid(symbol.name if isinstance(symbol, Symbol) else "")

    def named(self, name: str) -> Any:
        """Return the device mesh of a name."""
        return self._shardings.grid(name)[1]

    def annotated(
        self, value: TranslatedTensor, placed: Placed, write: Emitter
    ) -> TranslatedTensor:
        """Return a value with an annotation."""
        if not self._annotates:
            return value
        labels = placed.labels(value.shape)
        annotation = relax.op.distributed.annotate_sharding(
            write.whole(value), placed.device_mesh, placement_of(labels)
        )
        return write.value(write.emit(annotation))


def _is_between_partitions(operation: Operation) -> bool:
    """Return whether device numbers in an operation are partitions, by the rules of StableHLO."""
    if operation.name in ("stablehlo.partition_id", "stablehlo.replica_id"):
        return operation.name == "stablehlo.partition_id"
    channel = operation.attributes.get("channel_handle")
    return isinstance(channel, dict) and int(channel.get("handle", 0)) > 0


class GridStep:
    """Operation, its operands, and the emitter of its translation."""

    def __init__(
        self, grids: Grids, operation: Operation, operands: list[Any], write: Emitter
    ) -> None:
        self.grids, self.operation, self.operands, self.write = grids, operation, operands, write

    def number(self, name: str) -> int:
        """Return an attribute that is a number."""
        number = self.operation.attributes.get(name)
        if not isinstance(number, int) or isinstance(number, bool):
            raise UnsupportedOperation(f"no {name}")
        return number

    def numbers(self, name: str) -> list[int]:
        """Return an attribute that is a list of numbers, empty by default."""
        numbers = self.operation.attributes.get(name, [])
        if not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
            raise UnsupportedOperation(f"{name} that are not numbers")
        return numbers

    def mesh(self) -> tuple[Any, list[int]]:
        """Return the grid, and the axes along which processes communicate."""
        self.grids.moves = self.grids.moves or self.operation.name
        mesh, device_mesh = self.grids.grid(self.operation)
        axes = self.numbers("grid_axes")
        if len({*axes}) < len(axes) or not all(0 <= axis < len(mesh.axes) for axis in axes):
            raise UnsupportedOperation(f"axes {axes} of a grid of {len(mesh.axes)}")
        return device_mesh, axes

    def ordered(self) -> tuple[Any, list[int]]:
        """Return :meth:`mesh` for operations where the order of a group matters."""
        device_mesh, axes = self.mesh()
        if axes != sorted(axes):
            raise UnsupportedOperation(f"axes {axes}, out of the grid's order")
        return device_mesh, axes

    @property
    def kind(self) -> str:
        """Return the kind of reduction, by our name."""
        kind = str(self.operation.attributes.get("reduction", "sum"))
        if kind not in _KINDS:
            raise UnsupportedOperation(f'the reduction "{kind}"')
        return _KINDS[kind]

    @property
    def dtype(self) -> str:
        """Return the element type of the result."""
        return typed(self.operation.result_types[0])[1]

    def operand(self) -> Any:
        """Return the tensor operand in the type of the result."""
        return self.write.cast(self.write.whole(self.operands[0]), self.dtype)

    def emit(self, expr: Any) -> TranslatedTensor:
        """Return a computed tensor."""
        return self.write.value(self.write.emit(expr))

    def place(self, mesh: Any, axis: int) -> Any:
        """Return the index of the process along an axis."""
        return self.write.emit(ops.axis_index(mesh, axis))
