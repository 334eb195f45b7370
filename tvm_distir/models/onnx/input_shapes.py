# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Determine the static shapes of a graph's inputs, in the file and as requested."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

import onnx

from tvm_distir.core.rewriting import dims_remedy, unknown_dim
from tvm_distir.models.common.quiet import TURN
from tvm_distir.support import MAX_INT, ModelError

Shape = tuple[int, ...]
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_ARITHMETIC = (ast.Expression, ast.BinOp, ast.Name, ast.Constant, ast.Load, *_OPERATORS)


def static_shapes(
    model: onnx.ModelProto,
    data: list[str],
    dims: Mapping[str, int],
    batch: int | None,
    location: str,
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Return the shapes of all graph inputs in the file, and as requested.

    Parameters
    ----------
    model : ModelProto
        Weightless.
    data : list of str
        Names of the data inputs.
    dims : mapping of str to int
        Sizes for symbolic dims, by name, or ``INPUT.INDEX``.
    batch : int, optional
        New size of dim 0 of the data inputs.
    location : str
        The model, for messages.

    Raises
    ------
    ModelError
        DIST0313 a dim is not known, DIST0314 no common batch dim.
    """
    old: dict[str, Shape] = {}
    open_names: dict[str, str] = {}
    known: list[str] = []
    for value in model.graph.input:
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            problem = f'the shape of the input "{value.name}" is unknown'
            remedy = "Export the model with a shape."
            raise ModelError("DIST0313", problem, location=location, remedy=remedy)
        batch_size = batch if value.name in data else None
        old[value.name] = _shape_of(value, dims, batch_size, known, open_names)
    for name in dims:
        if name not in known:
            raise unknown_dim(name, list(dict.fromkeys(known)), location)
    if open_names:
        raise _unknown_dims(open_names, dims, location)
    return old, old if batch is None else _with_batch(old, data, batch, location)


def _shape_of(
    value: onnx.ValueInfoProto,
    dims: Mapping[str, int],
    batch: int | None,
    known: list[str],
    open_names: dict[str, str],
) -> Shape:
    """Return the shape of an input, 0 for a dim without a size.

    ``known`` receives the names of its symbolic dims, and ``open_names`` the dims without a size,
    with a sentence about the first of each name.
    """
    sizes = []
    for index, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            sizes.append(int(dim.dim_value))
            continue
        name = dim.dim_param or f"{value.name}.{index}"
        known += [name, *_names_in(name)]
        size = _size_of(name, dims)
        if size is None and index == 0:
            size = batch
        if size is None:
            word = f'dim {index} ("{dim.dim_param}")' if dim.dim_param else f"dim {index}"
            open_names.setdefault(name, f'{word} of the input "{value.name}" is unknown')
        sizes.append(size or 0)
    return tuple(sizes)


def _with_batch(
    old: Mapping[str, Shape], data: list[str], batch: int, location: str
) -> dict[str, Shape]:
    """Return shapes with another dim 0 of the data inputs."""
    ranked = [name for name in data if old[name]]
    sizes_seen = sorted({old[name][0] for name in ranked} - {batch})
    if not ranked or len(sizes_seen) > 1:
        shown = ", ".join(f"{name} {list(old[name])}" for name in data)
        problem = f"the data inputs have no common dim 0: {shown}"
        remedy = "Remove --batch, or export the model with the required batch."
        raise ModelError("DIST0314", problem, location=location, remedy=remedy)
    return {name: (batch, *shape[1:]) if name in ranked else shape for name, shape in old.items()}


def _parsed(text: str) -> ast.Expression:
    with TURN:
        return ast.parse(text, mode="eval")


def _names_in(text: str) -> list[str]:
    """Return the variables of a dim such as ``past + seq``, or none for other forms."""
    try:
        nodes = list(ast.walk(_parsed(text)))
    except (SyntaxError, ValueError):
        return []
    if not all(isinstance(node, _ARITHMETIC) for node in nodes):
        return []
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def _size_of(name: str, dims: Mapping[str, int]) -> int | None:
    """Return the size of a dim by its name or by the names in it, or None if unknown."""
    if name in dims:
        return dims[name]
    names = _names_in(name)
    if not names or any(dim not in dims for dim in names):
        return None
    try:
        size = _value(_parsed(name).body, dims)
    except ZeroDivisionError:
        return None
    return size if 1 <= size <= MAX_INT else None


def _value(node: ast.expr, dims: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        return int(_OPERATORS[type(node.op)](_value(node.left, dims), _value(node.right, dims)))
    return dims[node.id] if isinstance(node, ast.Name) else int(ast.literal_eval(node))


def _unknown_dims(names: Mapping[str, str], dims: Mapping[str, int], location: str) -> ModelError:
    """Return the error for dims without a size, with options for all of them."""
    unknown = [dim for name in names for dim in _names_in(name) or [name] if dim not in dims]
    operand = next(iter(names.values()))
    remedy = dims_remedy(unknown or list(names), "td.from_onnx(file, dims={})")
    if "dim 0" in operand:
        remedy += " A batch, dim 0, may also be given by --batch N."
    return ModelError("DIST0313", operand, location=location, remedy=remedy)
