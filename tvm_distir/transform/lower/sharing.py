# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Meshes of the same devices, in another shape or order: one entry function for all of them.

A device runs one program. So the entries that a public function has on such meshes are put
together, in the order in which the function itself sends and receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from ...errors import LoweringError
from ...ir import mesh_devices, mesh_shape
from ...ir.attributes import IO_ATTR
from ...ir.ops import dist_op_name
from ..legalize.emit import bindings_of, typed, with_body

Transfer = tuple[str, int]
"""``send`` or ``recv``, and the tag."""


def shared_devices(meshes: Sequence[Any], where: Sequence[int], place: str) -> list[list[int]]:
    """Group mesh numbers by the devices of the meshes.

    Raises
    ------
    LoweringError
        DIST0511 when two meshes share some devices, but not all.
    """
    groups: dict[frozenset[int], list[int]] = {}
    for number in where:
        devices = frozenset(mesh_devices(meshes[number]).ravel().tolist())
        for other, members in groups.items():
            if devices & other and devices != other:
                raise LoweringError(
                    "DIST0511",
                    f"mesh {members[0]} (devices {sorted(other)}) and mesh {number} (devices "
                    f"{sorted(devices)}) share some of their devices",
                    place=place,
                    remedy="Use meshes of the same devices, or of different ones.",
                )
        groups.setdefault(devices, []).append(number)
    return list(groups.values())


def _transfer(value: Any) -> Transfer | None:
    kind = dist_op_name(value)
    return (kind, int(value.attrs["tag"])) if kind in ("send", "recv") else None


def transfer_order(fn: relax.Function, name: str) -> dict[Transfer, int]:
    """Position of every send and receive of a level-4 function among them."""
    found = [_transfer(value) for _, value in bindings_of(fn, name)]
    return {transfer: i for i, transfer in enumerate(t for t in found if t is not None)}


def _segments(fn: relax.Function, order: dict[Transfer, int]) -> list[tuple[int, list[Any]]]:
    """Blocks of a level-5 function up to each transfer, with the transfer's position."""
    out: list[tuple[int, list[Any]]] = []
    blocks: list[Any] = []
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


def _items(fn: relax.Function, side: str, mesh: Any, home: int) -> list[dict[str, Any]]:
    """Ports of an entry; those that do not lie on the mesh of the merged one say where."""
    own = int(fn.attrs[IO_ATTR]["mesh"])
    found = []
    for item in fn.attrs[IO_ATTR][side]:
        port = {str(k): v for k, v in item.items()}
        if own != home:
            port["mesh"] = {
                "shape": list(mesh_shape(mesh)),
                "devices": [int(d) for d in mesh_devices(mesh).ravel()],
            }
        found.append(port)
    return found


def merged(
    entries: Sequence[relax.Function], meshes: Sequence[Any], order: dict[Transfer, int], name: str
) -> relax.Function:
    """One entry of several on meshes of the same devices.

    Parameters
    ----------
    entries : sequence of relax.Function
        At level 5, with ``dist.io``.
    meshes : sequence of DeviceMesh
        Theirs.
    order : mapping
        See :func:`transfer_order`.
    name : str
        Of the new entry.
    """
    segments = [piece for fn in entries for piece in _segments(fn, order)]
    blocks = [block for _, part in sorted(segments, key=lambda s: s[0]) for block in part]
    results: list[Any] = []
    for fn in entries:
        result = fn.body.body
        results += list(result.fields) if isinstance(result, relax.Tuple) else [result]
    body = results[0]
    if len(results) != 1:
        body = typed(relax.Tuple(results), relax.TupleType([r.ty for r in results]))
    home = int(entries[0].attrs[IO_ATTR]["mesh"])
    io: dict[str, Any] = {"mesh": home}
    for side in ("inputs", "outputs"):
        io[side] = [x for fn, mesh in zip(entries, meshes) for x in _items(fn, side, mesh, home)]
    attrs = {k: v for k, v in entries[0].attrs.items() if k != "num_input"}
    attrs.update({IO_ATTR: io, "global_symbol": name})
    pure = all(bool(fn.is_pure) for fn in entries)
    dictionary = ir.make_node("ir.DictAttrs", **attrs)
    params = [param for fn in entries for param in fn.params]
    return with_body(entries[0], params, blocks, body, pure, dictionary)
