# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import local programs from Shardy's manual computations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import flat_types, local_shape, mesh_shape, placement_text
from tvm_distir.core.passes import described_mesh
from tvm_distir.models.mlir.attributes import unescaped
from tvm_distir.models.mlir.tree import Argument, Opaque, Operation, RegionBlock, Type

from .argument_names import Signature
from .shardings import TEXT, WORD, NamedMesh, Sharding, Shardings
from .translated_values import UnsupportedOperation, tensor_of_type, typed

MANUAL = "sdy.manual_computation"
_SHARDING = re.compile(rf'<((?:[^<>"]|{WORD})*)>')
_NAMED = re.compile(TEXT)


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
class FullArray:
    """Array whose shards are an argument or a result of a local program.

    Attributes
    ----------
    title : str
        How errors name the argument or the result.
    shape : tuple of int
    sharding : Sharding
    """

    title: str
    shape: tuple[int, ...]
    sharding: Sharding

    def port(self, index: int, shard: ir.Type, shardings: Shardings) -> PortRecord:
        """Describe the array in ``dist.io``, given the type of its shard.

        Raises
        ------
        UnsupportedOperation
            The shard has another shape.
        """
        shard_shape, dtype = tensor_of_type(shard)
        mesh, labels, _ = self.sharding
        order = self.sharding.order
        view, labels = shardings.use_view(mesh, order), [labels[a] for a in order]
        placement = placement_text(labels)
        if tuple(local_shape(self.shape, labels, mesh_shape(view))) != shard_shape:
            problem = f"a shard {list(shard_shape)} of an array {list(self.shape)}"
            raise UnsupportedOperation(f"{self.title}: {problem}, placed {placement}")
        port: PortRecord = {
            "dtype": dtype, "index": index, "placement": placement, "shape": [*self.shape],
        }  # fmt: skip
        if list(order) != sorted(order):
            port["mesh"] = described_mesh(view)
        return port


@dataclass(frozen=True)
class LocalProgram:
    """Program that each device runs on shards.

    Attributes
    ----------
    operation : Operation
        The function of shards.
    mesh : NamedMesh
    inputs, outputs : list of FullArray
    """

    operation: Operation
    mesh: NamedMesh
    inputs: list[FullArray]
    outputs: list[FullArray]

    def interface(
        self, function: relax.Function, names: Signature, shardings: Shardings
    ) -> InterfaceRecord:
        """Return the attribute ``dist.io``.

        Raises
        ------
        UnsupportedOperation
            A sharding that does not fit the program, with the argument or result that has it.
        """
        shardings.used_mesh(self.mesh.name)
        inputs = [
            self.inputs[i].port(index, param.ty, shardings)
            for index, (i, param) in enumerate(zip(names.order, function.params))
        ]
        for port, i in zip(inputs, names.order):
            port["name"] = names.titles[i]
        types = flat_types(function.body.ty)
        outputs = [a.port(i, ty, shardings) for i, (a, ty) in enumerate(zip(self.outputs, types))]
        return {"mesh": shardings.number(self.mesh.name), "inputs": inputs, "outputs": outputs}


class ManualMesh:
    """Mesh whose devices are the partitions of the imported program.

    Attributes
    ----------
    first_collective : str
        The first operation by which devices communicate, or ask for their number; else empty.
    """

    def __init__(self, shardings: Shardings) -> None:
        self._shardings = shardings
        self._name = ""
        self.first_collective = ""

    def use(self, mesh: NamedMesh) -> None:
        """Record the mesh of a local program.

        Raises
        ------
        UnsupportedOperation
            The module has a local program on another mesh.
        """
        if self._name not in ("", mesh.name):
            raise UnsupportedOperation(
                f'local programs on the meshes "{self._name}", "{mesh.name}"'
            )
        self._name = mesh.name

    def of_collective(self, operation: Operation) -> DeviceMesh:
        """Return the mesh along whose axes an operation communicates.

        Raises
        ------
        UnsupportedOperation
            There is no local program, or devices are replicas.
        """
        if not self._name:
            raise UnsupportedOperation("a collective outside of a manual computation")
        if not _is_between_partitions(operation):
            problem = "a collective between replicas, where devices are partitions"
            raise UnsupportedOperation(problem)
        self.first_collective = self.first_collective or operation.name
        return self._shardings.used_mesh(self._name)


def _is_between_partitions(operation: Operation) -> bool:
    """Return whether device numbers in an operation are partitions, by the rules of StableHLO."""
    if operation.name in ("stablehlo.partition_id", "stablehlo.replica_id"):
        return operation.name == "stablehlo.partition_id"
    channel = operation.attributes.get("channel_handle")
    return isinstance(channel, dict) and int(channel.get("handle", 0)) > 0


def local_program(function: Operation, shardings: Shardings) -> LocalProgram | None:
    """Return the local program that a function is, or None.

    Raises
    ------
    UnsupportedOperation
        What is no program of a single mesh whose axes are all manual.
    """
    block = function.regions[0]
    manual = next((op for op in block.operations if op.name == MANUAL), None)
    if manual is None:
        return None
    _check_alone(block, manual)
    sides = [_shardings(manual.attributes.get(f"{side}_shardings")) for side in ("in", "out")]
    inner, end = manual.regions[0], manual.regions[0].operations[-1]
    if [len(side) for side in sides] != [len(inner.arguments), len(manual.results)]:
        raise UnsupportedOperation(f"a {MANUAL} whose shardings are not as many as its values")
    placed = [[shardings.placed(sharding) for sharding in side] for side in sides]
    mesh = _single_mesh([sharding.mesh for side in placed for sharding in side], manual)
    order = [manual.operands.index(argument.name) for argument in block.arguments]
    arguments = [
        Argument(inner.arguments[i].name, inner.arguments[i].type, {}, outer.location)
        for i, outer in zip(order, block.arguments)
    ]
    returned = [
        manual.results.index(n) for n in block.operations[1].operands if n in manual.results
    ]
    if len(returned) != len(block.operations[1].operands):
        raise UnsupportedOperation(f"a result beside those of the {MANUAL}")
    last = Operation(
        "func.return",
        [end.operands[i] for i in returned],
        [end.operand_types[i] for i in returned],
        line=end.line,
    )
    body = RegionBlock(arguments, [*inner.operations[:-1], last])
    attributes = {**function.attributes, "res_attrs": None}
    operation = Operation("func.func", attributes=attributes, regions=[body], line=function.line)
    types = [argument.type for argument in block.arguments]
    inputs = [
        _array(f"argument {a.name}", ty, placed[0][i]) for i, a, ty in zip(order, arguments, types)
    ]
    outputs = [
        _array(f"result {number}", manual.result_types[i], placed[1][i])
        for number, i in enumerate(returned)
    ]
    return LocalProgram(operation, mesh, inputs, outputs)


def _check_alone(block: RegionBlock, manual: Operation) -> None:
    """Reject a function that is more than a manual computation of all its arguments."""
    around = [op.name for op in block.operations if op.name not in (MANUAL, "func.return")]
    if around or len(block.operations) != 2:
        names = ", ".join(dict.fromkeys(around)) or MANUAL
        raise UnsupportedOperation(f"{names} beside one {MANUAL}")
    if sorted(manual.operands) != sorted(argument.name for argument in block.arguments):
        raise UnsupportedOperation(f"a {MANUAL} that does not read each argument once")


def _single_mesh(meshes: Sequence[NamedMesh], manual: Operation) -> NamedMesh:
    """Return the mesh of all values, all of whose axes must be manual."""
    if len({mesh.name for mesh in meshes}) != 1:
        names = {mesh.name for mesh in meshes}
        raise UnsupportedOperation(f"a {MANUAL} on {len(names)} meshes")
    manual_axes = set(_axes(manual.attributes.get("manual_axes")))
    sizes = meshes[0].axes
    free = sorted(axis for axis, size in sizes.items() if size > 1 and axis not in manual_axes)
    if free:
        raise UnsupportedOperation(f"a {MANUAL} along some axes only: {free} are not manual")
    return meshes[0]


def _array(title: str, kind: Type, sharding: Sharding) -> FullArray:
    return FullArray(title, typed(kind)[0], sharding)


def _shardings(attribute: object) -> list[Opaque]:
    """Return the shardings of values, in either syntax of the text."""
    if isinstance(attribute, Opaque):
        return [Opaque("sdy.sharding", body) for body in _SHARDING.findall(attribute.body)]
    if not isinstance(attribute, list) or not all(isinstance(item, Opaque) for item in attribute):
        raise UnsupportedOperation(f"a {MANUAL} without shardings")
    return attribute


def _axes(attribute: object) -> list[str]:
    if isinstance(attribute, Opaque):
        return [unescaped(name) for name in _NAMED.findall(attribute.body)]
    return [str(axis) for axis in attribute] if isinstance(attribute, list) else []
