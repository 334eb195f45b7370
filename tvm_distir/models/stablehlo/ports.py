# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read how arguments and results of a local program are placed in full arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import relax

from tvm_distir.core.ir import check_placement, flat_types, local_shape, parse_placement
from tvm_distir.models.export.grid import PORT
from tvm_distir.models.mlir.tree import Operation, Symbol
from tvm_distir.support import MeshError

from .argument_names import Signature
from .shardings import Shardings
from .translated_values import UnsupportedOperation, dtype_of, shape_of


def has_ports(operation: Operation) -> bool:
    """Return whether a function is a local program with placements of its arguments."""
    return any(PORT in notes for _, notes in _edges(operation))


def grid_of(operation: Operation) -> str:
    """Return the name of the mesh that a local program runs on.

    Raises
    ------
    UnsupportedOperation
        An argument or result that does not say it, or says another one than those before.
    """
    name = ""
    for title, notes in _edges(operation):
        port = notes.get(PORT)
        symbol = port.get("grid") if isinstance(port, dict) else None
        if not isinstance(symbol, Symbol):
            raise UnsupportedOperation(f"a local program whose {title} has no {PORT} with a grid")
        if name not in ("", symbol.name):
            problem = f"{title} is on the grid {symbol.name}, others on {name}"
            raise UnsupportedOperation(f"a local program whose {problem}")
        name = symbol.name
    return name


def read_ports(
    operation: Operation, function: relax.Function, names: Signature, shardings: Shardings
) -> dict[str, Any]:
    """Return the attribute ``dist.io`` of a local program.

    Raises
    ------
    UnsupportedOperation
        What is missing, or does not fit the program, with the argument or result that says it.
    """
    mesh, _ = shardings.grid(grid_of(operation))
    edges, ends = list(_edges(operation)), flat_types(function.body.ty)
    count, sizes = len(names.order), list(mesh.axes.values())
    if len(edges) != count + len(ends):
        raise UnsupportedOperation(f"a local program without a {PORT} of each result")
    ports = [_port(*edges[i], var, sizes) for i, var in zip(names.order, function.params)]
    inputs = [{**port, "name": names.titles[i]} for port, i in zip(ports, names.order)]
    if names.order != sorted(names.order):
        inputs = [{**port, "index": index} for index, port in enumerate(inputs)]
    outputs = [_port(*edge, _Typed(ty), sizes) for edge, ty in zip(edges[count:], ends)]
    return {"mesh": shardings.number(mesh.name), "inputs": inputs, "outputs": outputs}


class _Typed:
    """Result known by its type."""

    def __init__(self, ty: Any) -> None:
        self.ty = ty


def _edges(operation: Operation) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return the titles and attributes of a function's arguments and results."""
    for argument in operation.regions[0].arguments:
        yield f"argument {argument.name}", argument.attributes
    for number, notes in enumerate(operation.attributes.get("res_attrs") or []):
        yield f"result {number}", notes


def _port(
    title: str, notes: Mapping[str, Any], annotation: Any, sizes: Sequence[int]
) -> dict[str, Any]:
    port = notes[PORT]
    placement, shape, index = (port.get(key) for key in ("placement", "shape", "index"))
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or not isinstance(placement, str) or type(index) is not int:
        raise UnsupportedOperation(f"{title}: a {PORT} without placement, shape or index")
    try:
        labels = parse_placement(placement)
        check_placement(labels, sizes, len(shape), PORT)
    except MeshError as error:
        raise UnsupportedOperation(f"{title}: {error}") from error
    sizes_held = shape_of(annotation)
    if tuple(local_shape(shape, labels, sizes)) != sizes_held:
        problem = f"a shard {list(sizes_held)} of an array {shape}, placed {placement}"
        raise UnsupportedOperation(f"{title}: {problem}")
    port_notes: dict[str, Any] = {
        "dtype": dtype_of(annotation),
        "index": index,
        "placement": placement,
        "shape": shape,
    }
    if "role" in port:
        port_notes["role"] = str(port["role"])
    if "index_range" in port:
        allowed = port["index_range"]
        if not isinstance(allowed, list) or len(allowed) not in (2, 3):
            raise UnsupportedOperation(f"{title}: a {PORT} whose index_range is not a range")
        port_notes["index_range"] = allowed
    return port_notes
