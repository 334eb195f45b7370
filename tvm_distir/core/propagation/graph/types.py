# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Caches the common data of the graphs of a module: meshes, types and annotations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tvm_ffi
from tvm import DataType, ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.mesh import mesh_key, mesh_shape, meshes
from tvm_distir.core.ir.placement import ceil_div, check_placement, labels_of, shard_counts
from tvm_distir.core.ir.types import static_shape, value_types
from tvm_distir.core.ops.class_memo import class_memo
from tvm_distir.core.ops.dims import nominal
from tvm_distir.support import PropagationError

from .graph import PinLabels, divisible


class Annotation(NamedTuple):
    """An annotation: a label per axis (None where free) of a mesh."""

    labels: PinLabels | None
    mesh: int
    stationary: bool


class Tensor(NamedTuple):
    """Tensor type: dims (None: unknown), bytes per element, bytes of the full tensor."""

    shape: tuple[Any, ...] | None
    item_bytes: int
    size_bytes: int


def item_bytes(ty: ir.Type) -> int:
    """Return the bytes of an element of a tensor type."""
    return max(1, (int(DataType(str(ty.dtype)).bits) + 7) // 8)


def leaf_types(ty: ir.Type) -> Sequence[ir.Type]:
    """Return the leaves of a type that carry values."""
    return (ty,) if type(ty) is relax.TensorType else value_types(ty)


class ModuleTypes:
    """Meshes, types and annotations of a module, each read once.

    ``only_mesh`` is the mesh of all values where there is a single mesh, else -1: the graphs are
    yet to be placed.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.mesh_shapes = [mesh_shape(m) for m in meshes(mod)]
        self.mesh_numbers = {mesh_key(m): i for i, m in enumerate(meshes(mod))}
        self.only_mesh = 0 if len(self.mesh_shapes) == 1 else -1
        self._tensors: dict[int, list[tuple[Any, Tensor]]] = {}
        self._by_handle: dict[int, Tensor] = {}
        self._learnt: dict[int, Tensor] = class_memo("tensors")
        self._starts: dict[int, list[int]] = {}
        self.pins: dict[tuple[int, int, Sequence[Any], int], Annotation] = {}

    def mesh_number(self, mesh: DeviceMesh) -> int | None:
        """Return the number of a mesh in the module, None for a foreign mesh."""
        return self.mesh_numbers.get(mesh_key(mesh))

    def like(self, number: int, ty: ir.Type) -> Tensor:
        """Return :meth:`tensor` of a type with known dims by its number (``Survey.types``)."""
        tensor = self._learnt.get(number)
        if tensor is None:
            tensor = self._learnt[number] = self.tensor(ty)
        return tensor

    def tensor(self, ty: ir.Type) -> Tensor:
        """Return dims and bytes of a tensor type, read once per distinct type."""
        result = self._by_handle.get(handle(ty))
        if result is None:
            same = self._tensors.setdefault(tvm_ffi.structural_hash(ty), [])
            equal = (x for other, x in same if tvm_ffi.structural_equal(other, ty))
            result = next(equal, None)
            if result is None:
                shape, item = static_shape(ty), item_bytes(ty)
                result = Tensor(shape, item, math.prod(map(nominal, shape or ())) * item)
                same.append((ty, result))
            self._by_handle[handle(ty)] = result
        return result

    def starts(self, ty: ir.Type) -> list[int]:
        """Return the first flat number of each field of a tuple type, and the number of all."""
        offsets = self._starts.get(handle(ty))
        if offsets is None:
            sizes = [len(leaf_types(field)) for field in ty.fields[:]]
            offsets = self._starts[handle(ty)] = [0, *itertools.accumulate(sizes)]
        return offsets

    def labels(
        self, placement: ir.Type, shape: Sequence[int | ir.Expr], mesh: int, location: str
    ) -> tuple[int, ...]:
        """Return the labels of an annotation, checked against the mesh and the tensor.

        Raises
        ------
        MeshError
            DIST0204, DIST0205 when they do not fit.
        PropagationError
            DIST0416 for a dim cut by several axes into more parts than it has.
        """
        labels = labels_of(placement)
        check_placement(labels, self.mesh_shapes[mesh], len(shape), location)
        counts = shard_counts(labels, self.mesh_shapes[mesh], len(shape))
        for d, (size, count) in enumerate(zip(shape, counts)):
            if labels.count(d) > 1 and not divisible(size, count) and size <= count:
                raise PropagationError(
                    "DIST0416",
                    f"dim {d} of size {size} is sharded by several mesh axes into {count} parts, "
                    "more than it has elements",
                    location=location,
                    remedy=f"Shard it over one axis, or pad it to {ceil_div(size, count) * count}.",
                )
        return labels
