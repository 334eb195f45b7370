# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Merge the entries of meshes that share devices into an entry per class of devices.

A device runs a single program. So the entries that a public function has on the meshes of a device
are put together, in the order in which the function itself sends and receives. Devices that
belong to the same meshes are a *class* and run an entry; a mesh that several classes take part
in has its steps in the entry of each. All entries are parts of a common order of all steps, in
which a receive follows its send, and only collectives and receives wait: so the entries never
wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh
from tvm.relax.utils import copy_with_new_vars

from tvm_distir.core.ir.attributes.keys import IO_ATTR, NUM_INPUT_ATTR
from tvm_distir.core.ir.mesh import mesh_devices, mesh_shape
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.rewriting.calls import tuple_of
from tvm_distir.core.rewriting.native.function_index import OP_CALL, FunctionView
from tvm_distir.core.rewriting.writer import with_body
from tvm_distir.support import lists_by_key

Transfer = tuple[str, int]
"""``send`` or ``recv``, and the tag."""


@dataclass(frozen=True)
class DeviceClass:
    """Devices that belong to the same meshes.

    Attributes
    ----------
    meshes : tuple of int
        Numbers of the meshes, in order.
    devices : tuple of int
        The devices, in the order of the first mesh.
    shares : bool
        Whether other classes take part in any of the meshes.
    """

    meshes: tuple[int, ...]
    devices: tuple[int, ...]
    shares: bool


def device_classes(meshes: Sequence[DeviceMesh], where: Sequence[int]) -> list[DeviceClass]:
    """Return the classes of devices of meshes, in order of the first mesh, then of its devices.

    Parameters
    ----------
    meshes : sequence of DeviceMesh
        The meshes of the module.
    where : sequence of int
        Numbers of those that are looked at, sorted.
    """
    devices_of = {n: [int(d) for d in mesh_devices(meshes[n]).ravel()] for n in where}
    member = lists_by_key(
        (device, number) for number, devices in devices_of.items() for device in devices
    )
    members = lists_by_key((tuple(numbers), device) for device, numbers in member.items())
    return [
        DeviceClass(
            numbers, tuple(devices), any(len(devices_of[n]) > len(devices) for n in numbers)
        )
        for numbers, devices in members.items()
    ]


def entry_names(
    name: str, meshes: Sequence[DeviceMesh], classes: Sequence[DeviceClass]
) -> list[str]:
    """Return the names of the entries of a public function, such as ``main_mesh0_2``.

    Of meshes of the same devices the first gives its number.
    """
    if len(classes) == 1:
        return [name]
    result = []
    for device_class in classes:
        firsts: dict[frozenset[int], int] = {}
        for number in device_class.meshes:
            devices = mesh_devices(meshes[number]).ravel().tolist()
            firsts.setdefault(frozenset(devices), number)
        result.append(f"{name}_mesh{'_'.join(str(n) for n in firsts.values())}")
    return result


def _transfer(value: ir.Expr) -> Transfer | None:
    kind = dist_op_name(value)
    return (kind, int(value.attrs["tag"])) if kind in ("send", "recv") else None


def transfer_order(reading: FunctionView) -> dict[Transfer, int]:
    """Return the position of every send and receive of a level-4 function among them."""
    transfers = [
        _transfer(value) for kind, value in zip(reading.kinds, reading.values) if kind == OP_CALL
    ]
    return {transfer: i for i, transfer in enumerate(t for t in transfers if t is not None)}


def _segments(fn: relax.Function, order: dict[Transfer, int]) -> list[tuple[int, list[Any]]]:
    """Return the blocks of a level-5 function up to each transfer, with the transfer's position."""
    out: list[tuple[int, list[Any]]] = []
    blocks: list[relax.BindingBlock] = []
    for block in fn.body.blocks:
        if isinstance(block, relax.DataflowBlock):
            blocks.append(block)
            continue
        plain: list[Any] = []
        for binding in block.bindings:
            plain.append(binding)
            transfer = _transfer(binding.value)
            if transfer is not None:
                out.append((order[transfer], [*blocks, relax.BindingBlock(plain)]))
                blocks, plain = [], []
        if plain:
            blocks.append(relax.BindingBlock(plain))
    out.append((len(order), blocks))
    return out


def described_mesh(mesh: DeviceMesh) -> dict[str, list[int]]:
    """Return the description of the mesh of a port that is not on the mesh of its entry."""
    devices = [int(d) for d in mesh_devices(mesh).ravel()]
    return {"shape": list(mesh_shape(mesh)), "devices": devices}


def port_mesh(port: Mapping[str, Any], home: DeviceMesh) -> DeviceMesh:
    """Return the mesh of a port of an entry on a mesh."""
    if "mesh" not in port:
        return home
    return DeviceMesh(*([int(n) for n in port["mesh"][key]] for key in ("shape", "devices")))


def _items(fn: relax.Function, side: str, mesh: DeviceMesh, home: int) -> list[dict[str, Any]]:
    """Return the ports of an entry; those on another mesh than the merged entry name it."""
    fn_mesh = int(fn.attrs[IO_ATTR]["mesh"])
    data_count = int(fn.attrs[NUM_INPUT_ATTR]) if NUM_INPUT_ATTR in fn.attrs else None
    items = []
    for position, item in enumerate(fn.attrs[IO_ATTR][side]):
        port = {str(k): v for k, v in item.items()}
        if side == "inputs" and data_count is not None:
            port.setdefault("role", "data" if position < data_count else "weight")
        if fn_mesh != home:
            port.setdefault("mesh", described_mesh(mesh))
        items.append(port)
    return items


def merged(
    parts: Sequence[relax.Function],
    meshes: Sequence[DeviceMesh],
    devices: DeviceClass,
    order: dict[Transfer, int],
    name: str,
) -> relax.Function:
    """Put the parts of a function on the meshes of a class together to its entry.

    Parameters
    ----------
    parts : sequence of relax.Function
        The functions at level 5, with ``dist.io``; there is a function for each mesh of the class.
    meshes : sequence of DeviceMesh
        The meshes of the module.
    devices : DeviceClass
    order : mapping
        See :func:`transfer_order`.
    name : str
        The name of the entry.
    """
    if len(parts) == 1 and not devices.shares:
        return parts[0].with_attr("global_symbol", name)
    # Each variable belongs to a single function.
    parts = [copy_with_new_vars(part) for part in parts] if devices.shares else parts
    segments = [piece for fn in parts for piece in _segments(fn, order)]
    blocks = [block for _, part in sorted(segments, key=lambda s: s[0]) for block in part]
    home = devices.meshes[0]
    io: dict[str, Any] = {"mesh": home}
    if devices.shares:
        io["devices"] = list(devices.devices)
    for side in ("inputs", "outputs"):
        io[side] = [
            item
            for fn, number in zip(parts, devices.meshes)
            for item in _items(fn, side, meshes[number], home)
        ]
    attrs = {k: v for k, v in parts[0].attrs.items() if k != NUM_INPUT_ATTR}
    attrs.update({IO_ATTR: io, "global_symbol": name})
    pure = all(bool(fn.is_pure) for fn in parts)
    dictionary = ir.make_node("ir.DictAttrs", **attrs)
    params = [param for fn in parts for param in fn.params]
    return with_body(parts[0], params, blocks, _results(parts), pure, dictionary)


def _results(parts: Sequence[relax.Function]) -> Any:
    """Return the results of an entry: those of its parts in order."""
    if len(parts) == 1:
        return parts[0].body.body
    results: list[Any] = []
    for fn in parts:
        result = fn.body.body
        results += list(result.fields) if isinstance(result, relax.Tuple) else [result]
    return results[0] if len(results) == 1 else tuple_of(results)
