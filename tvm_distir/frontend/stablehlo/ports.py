# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""How arguments and results of a local program lie in whole arrays: what our writer adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from ...ir import check_placement, flat_types, local_shape, parse_placement
from ..mlir import Operation, Symbol
from .names import Signature
from .shardings import Shardings
from .values import Unsupported, dtype_of, shape_of

PORT = "tvm_distir.port"


def has_ports(operation: Operation) -> bool:
    """Whether a function is a local program that says how its arguments lie."""
    said = [argument.attributes for argument in operation.regions[0].arguments]
    return any(PORT in notes for notes in [*said, *(operation.attributes.get("res_attrs") or [])])


def read_ports(
    operation: Operation, function: relax.Function, names: Signature, shardings: Shardings
) -> dict[str, Any]:
    """The attribute ``dist.io`` of a local program.

    Raises
    ------
    Unsupported
        What is missing, or does not fit the program.
    MeshError
        DIST0203 to DIST0205 a placement that is none of the grid.
    """
    said = [argument.attributes for argument in operation.regions[0].arguments]
    given = operation.attributes.get("res_attrs") or []
    ends = flat_types(function.body.ty)
    grids = {_grid(notes) for notes in [*said, *given]}
    if len(grids) != 1 or len(given) != len(ends):
        raise Unsupported(f"a local program whose arguments and results do not all say {PORT}")
    mesh, _ = shardings.grid(grids.pop())
    sizes = list(mesh.axes.values())
    ports = [_port(said[i], var, sizes) for i, var in zip(names.order, function.params)]
    inputs = [{**port, "name": names.titles[i]} for port, i in zip(ports, names.order)]
    if names.order != sorted(names.order):
        inputs = [{**port, "index": index} for index, port in enumerate(inputs)]
    outputs = [_port(notes, _Typed(ty), sizes) for notes, ty in zip(given, ends)]
    return {"mesh": shardings.number(mesh.name), "inputs": inputs, "outputs": outputs}


class _Typed:
    """A result that is known by its type."""

    def __init__(self, ty: Any) -> None:
        self.ty = ty


def _grid(notes: Mapping[str, Any]) -> str:
    port = notes.get(PORT)
    symbol = port.get("grid") if isinstance(port, dict) else None
    return symbol.name if isinstance(symbol, Symbol) else ""


def _port(notes: Mapping[str, Any], held: Any, sizes: Sequence[int]) -> dict[str, Any]:
    port = notes[PORT]
    placement, shape, index = (port.get(key) for key in ("placement", "shape", "index"))
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or not isinstance(placement, str) or type(index) is not int:
        raise Unsupported(f"a {PORT} without placement, shape or index")
    labels = parse_placement(placement)
    check_placement(labels, sizes, len(shape), PORT)
    own = shape_of(held)
    if tuple(local_shape(shape, labels, sizes)) != own:
        raise Unsupported(f"a shard {list(own)} of an array {shape}, placed {placement}")
    found = {"dtype": dtype_of(held), "index": index, "placement": placement, "shape": shape}
    return {**found, "role": str(port["role"])} if "role" in port else found
