# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import local programs from Shardy's manual computations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tvm_distir.core.ir import placement_text
from tvm_distir.models.export.grid import PORT
from tvm_distir.models.mlir.attributes import unescaped
from tvm_distir.models.mlir.tree import Argument, Opaque, Operation, RegionBlock, Symbol

from .grids import Grids
from .shardings import TEXT, WORD, Shardings
from .translated_values import UnsupportedOperation, typed

MANUAL = "sdy.manual_computation"
_SHARDING = re.compile(rf'<((?:[^<>"]|{WORD})*)>')
_NAMED = re.compile(TEXT)


def local_program(function: Operation, shardings: Shardings, grids: Grids) -> Operation:
    """Return a local program with the placements of its arguments; others are unchanged.

    Raises
    ------
    UnsupportedOperation
        What is no program of a single mesh whose axes are all manual.
    """
    block = function.regions[0]
    manual = next((op for op in block.operations if op.name == MANUAL), None)
    if manual is None:
        return function
    around = [op.name for op in block.operations if op.name not in (MANUAL, "func.return")]
    if around or len(block.operations) != 2:
        raise UnsupportedOperation(
            f"{', '.join(dict.fromkeys(around)) or MANUAL} beside one {MANUAL}"
        )
    outer = {argument.name: argument for argument in block.arguments}
    if sorted(manual.operands) != sorted(outer):
        raise UnsupportedOperation(f"a {MANUAL} that does not read each argument once")
    ins, outs = (_shardings(manual.attributes.get(f"{side}_shardings")) for side in ("in", "out"))
    inner, results = manual.regions[0], dict(zip(manual.results, manual.result_types))
    if len(ins) != len(inner.arguments) or len(outs) != len(results):
        raise UnsupportedOperation(f"a {MANUAL} whose shardings are not as many as its values")
    placed = [shardings.placed(sharding) for sharding in (*ins, *outs)]
    names = {mesh.name for mesh, _ in placed}
    if len(names) != 1:
        raise UnsupportedOperation(f"a {MANUAL} on {len(names)} meshes")
    mesh = placed[0][0]
    manual_axes = set(_axes(manual.attributes.get("manual_axes")))
    free = sorted(axis for axis, size in mesh.axes.items() if size > 1 and axis not in manual_axes)
    if free:
        raise UnsupportedOperation(f"a {MANUAL} along some axes only: {free} are not manual")
    grids.compute_on(mesh.name)
    order = [manual.operands.index(argument.name) for argument in block.arguments]
    kinds = [argument.type for argument in block.arguments]
    arguments = [
        Argument(
            inner.arguments[i].name,
            inner.arguments[i].type,
            {PORT: _port(mesh.name, placed[i][1], kind, number)},
            argument.location,
        )
        for number, (i, argument, kind) in enumerate(zip(order, block.arguments, kinds))
    ]
    returned = block.operations[1].operands
    places = [list(results).index(name) for name in returned if name in results]
    if len(places) != len(returned):
        raise UnsupportedOperation(f"a result beside those of the {MANUAL}")
    notes = [
        {PORT: _port(mesh.name, placed[len(ins) + i][1], results[returned[number]], number)}
        for number, i in enumerate(places)
    ]
    end = inner.operations[-1]
    last = Operation(
        "func.return", [end.operands[i] for i in places], [end.operand_types[i] for i in places],
        line=end.line,
    )  # fmt: skip
    body = RegionBlock(arguments, [*inner.operations[:-1], last])
    attributes = {**function.attributes, "res_attrs": notes}
    return Operation("func.func", attributes=attributes, regions=[body], line=function.line)


def _port(mesh: str, labels: Sequence[int], kind: Any, index: int) -> dict[str, Any]:
    shape = list(typed(kind)[0])
    placement = placement_text(labels)
    return {"grid": Symbol(mesh), "index": index, "placement": placement, "shape": shape}


def _shardings(attribute: Any) -> list[Opaque]:
    """Return the shardings of values, in either form of the text."""
    if isinstance(attribute, Opaque):
        return [Opaque("sdy.sharding", body) for body in _SHARDING.findall(attribute.body)]
    if not isinstance(attribute, list) or not all(isinstance(item, Opaque) for item in attribute):
        raise UnsupportedOperation(f"a {MANUAL} without shardings")
    return attribute


def _axes(attribute: Any) -> list[str]:
    if isinstance(attribute, Opaque):
        return [unescaped(name) for name in _NAMED.findall(attribute.body)]
    return [str(axis) for axis in attribute] if isinstance(attribute, list) else []
