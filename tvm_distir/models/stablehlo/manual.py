# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import local programs from Shardy's manual computations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from tvm import relax
from tvm.relax import Expr

from tvm_distir.core.ir import local_shape, mesh_shape, ops, placement_text
from tvm_distir.core.passes import described_mesh
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of
from tvm_distir.models.mlir.tree import Opaque, Operation, RegionBlock, Type

from .argument_names import Signature
from .converters import MANUAL
from .emitter import Emitter
from .named_meshes import WORD, NamedMesh
from .shardings import Sharding, Shardings
from .translated_values import Tensors, typed

_SHARDING = re.compile(rf'<((?:[^<>"]|{WORD})*)>')


class PortRecord(TypedDict, total=False):
    """Input or output of a local program in the attribute ``dist.io``."""

    dtype: str
    index: int
    name: str
    placement: str
    shape: list[int]
    mesh: dict[str, list[int]]


class InterfaceRecord(TypedDict):
    """Attribute ``dist.io``, with the number of the mesh."""

    mesh: int
    inputs: list[PortRecord]
    outputs: list[PortRecord]


@dataclass(frozen=True)
class ManualShard:
    """Array of which each device holds a shard.

    Attributes
    ----------
    shape : tuple of int
        Of the array.
    sharding : Sharding
    local : Expr
        The shard.
    """

    shape: tuple[int, ...]
    sharding: Sharding
    local: Expr

    def port(self, index: int, shardings: Shardings) -> PortRecord:
        """Describe the array in ``dist.io``."""
        mesh, labels, _ = self.sharding
        order = self.sharding.order
        view, labels = shardings.use_view(mesh, order), [labels[a] for a in order]
        port: PortRecord = {
            "dtype": dtype_of(self.local), "index": index, "placement": placement_text(labels),
            "shape": [*self.shape],
        }  # fmt: skip
        if list(order) != sorted(order):
            port["mesh"] = described_mesh(view)
        return port


class ManualProgram:
    """Program of each device: a function with manual computations in it.

    Each device holds all of an array along axes that are not manual, and beside manual
    computations. An array is gathered when a computation returns it, and sliced when one reads
    it. One that is read as it was returned stays a shard: the gather is removed as dead code.

    Parameters
    ----------
    mesh : NamedMesh
    shardings : Shardings
    """

    def __init__(self, mesh: NamedMesh, shardings: Shardings) -> None:
        self.mesh, self._shardings = mesh, shardings
        self._shards: dict[Expr, ManualShard] = {}
        self.inputs: list[ManualShard] = []
        self.outputs: list[ManualShard] = []

    def local_type(self, kind: Type, sharding: Sharding) -> relax.TensorType:
        """Return the type of a shard."""
        shape, dtype = typed(kind)
        sizes = mesh_shape(self._shardings.used_mesh(self.mesh.name))
        return relax.TensorType(local_shape(shape, sharding.labels, sizes), dtype)

    def array(self, write: Emitter, shard: ManualShard) -> Expr:
        """Return the array of a shard."""
        full = self._moved(write, shard, self.replicated(shard.shape))
        self._shards[full] = shard
        return full

    def shard(self, write: Emitter, array: Expr, sharding: Sharding | None) -> ManualShard:
        """Return the shard of an array with a sharding, or as it is known."""
        shape = shape_of(array)
        known = self._shards.get(array) or ManualShard(shape, self.replicated(shape), array)
        if sharding is None:
            return known
        return ManualShard(shape, sharding, self._moved(write, known, sharding))

    def replicated(self, shape: Sequence[int]) -> Sharding:
        """Return the sharding of an array that each device holds completely."""
        return Sharding(self.mesh, [-1] * len(self.mesh.axes), [[] for _ in shape])

    def _moved(self, write: Emitter, shard: ManualShard, target: Sharding) -> Expr:
        """Return a shard with another sharding: minor axes are gathered, or all, then sliced."""
        local, mesh = shard.local, self._shardings.used_mesh(self.mesh.name)
        sides = list(enumerate(zip(shard.sharding.dims, target.dims, strict=True)))
        common = [len(has) if needs[: len(has)] == has else 0 for _, (has, needs) in sides]
        common = [
            len(needs) if has[: len(needs)] == needs else k
            for k, (_, (has, needs)) in zip(common, sides)
        ]
        for dim, (has, _) in sides:
            for axis in reversed(has[common[dim] :]):
                local = write.emit(ops.all_gather(local, mesh, [axis], dim))
        for dim, (_, needs) in sides:
            for axis in needs[common[dim] :]:
                local = write.emit(ops.local_slice(local, mesh, [axis], dim))
        return local

    def run(
        self,
        manual: Operation,
        operands: Tensors,
        write: Emitter,
        run: Callable[[RegionBlock, Tensors], Tensors],
    ) -> Tensors:
        """Translate a manual computation.

        Raises
        ------
        Unsupported
            Shardings that do not fit the values.
        """
        inner = manual.regions[0]
        sides = [computed_shardings(manual, side, self._shardings) for side in ("in", "out")]
        if [len(side) for side in sides] != [len(inner.arguments), len(manual.results)]:
            raise Unsupported(f"a {MANUAL} whose shardings are not as many as its values")
        locals_ = []
        for value, argument, sharding in zip(operands, inner.arguments, sides[0], strict=True):
            self._check(value.shape, argument.type, sharding)
            locals_.append(write.value(self.shard(write, write.full(value), sharding).local))
        results = []
        returned = run(inner, locals_)
        ends = inner.operations[-1].operand_types
        for value, kind, end, sharding in zip(returned, manual.result_types, ends, sides[1]):
            shape, _ = typed(kind)
            self._check(shape, end, sharding)
            shard = ManualShard(shape, sharding, write.full(value))
            results.append(write.value(self.array(write, shard)))
        return results

    def _check(self, shape: Sequence[int], kind: Type, sharding: Sharding) -> None:
        """Reject a shard of another shape, and another mesh."""
        if sharding.mesh.name != self.mesh.name:
            names = f'"{self.mesh.name}", "{sharding.mesh.name}"'
            raise Unsupported(f"local programs on the meshes {names}")
        sizes = list(self.mesh.axes.values())
        if tuple(local_shape(shape, sharding.labels, sizes)) != typed(kind)[0]:
            placement = placement_text(sharding.labels)
            problem = f"a shard {list(typed(kind)[0])} of an array {list(shape)}"
            raise Unsupported(f"{problem}, placed {placement}")

    def interface(self, names: Signature) -> InterfaceRecord:
        """Return the attribute ``dist.io`` of the function that was translated."""
        shardings = self._shardings
        inputs = [self.inputs[i].port(index, shardings) for index, i in enumerate(names.order)]
        for port, i in zip(inputs, names.order):
            port["name"] = names.titles[i]
        outputs = [shard.port(i, shardings) for i, shard in enumerate(self.outputs)]
        return {"mesh": shardings.number(self.mesh.name), "inputs": inputs, "outputs": outputs}


def is_between_partitions(operation: Operation) -> bool:
    """Return whether device numbers in an operation are partitions, by the rules of StableHLO."""
    if operation.name in ("stablehlo.partition_id", "stablehlo.replica_id"):
        return operation.name == "stablehlo.partition_id"
    channel = operation.attributes.get("channel_handle")
    return isinstance(channel, dict) and int(channel.get("handle", 0)) > 0


def computed_shardings(manual: Operation, side: str, shardings: Shardings) -> list[Sharding]:
    """Return the shardings of operands (``in``) or results (``out``) of a manual computation."""
    return [shardings.placed(s) for s in _shardings(manual.attributes.get(f"{side}_shardings"))]


def mesh_of(manual: Operation, shardings: Shardings) -> NamedMesh:
    """Return the mesh of a manual computation.

    Raises
    ------
    Unsupported
        Its values are on several meshes, or it has none.
    """
    sides = [computed_shardings(manual, side, shardings) for side in ("in", "out")]
    meshes = {s.mesh.name: s.mesh for side in sides for s in side}
    if len(meshes) != 1:
        raise Unsupported(f"a {MANUAL} on {len(meshes)} meshes")
    return next(iter(meshes.values()))


def _shardings(attribute: object) -> list[Opaque]:
    """Return the shardings of values, in either syntax of the text."""
    if isinstance(attribute, Opaque):
        return [Opaque("sdy.sharding", body) for body in _SHARDING.findall(attribute.body)]
    if not isinstance(attribute, list) or not all(isinstance(item, Opaque) for item in attribute):
        raise Unsupported(f"a {MANUAL} without shardings")
    return attribute
