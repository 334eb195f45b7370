# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Change the batch of an ONNX node by rewriting constants that fix the old batch.

A dim carries the batch when its size differs between the walk at the old batch and the walk at
the new one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tvm_distir.models.common.batch_position import batch_position
from tvm_distir.support import ModelError

from .protos import constant_node, copied

Shape = tuple[int, ...]

_BROADCASTING = frozenset(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual MatMul Max Mean Min Mod Mul Or Pow "
    "Sub Sum Where Xor".split()
)
_READ_SHAPES = ("Shape", "Size")
_ORDER_KEEPING = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_REMEDY = "Export the model at the batch you want, or with a symbolic batch."


@dataclass
class Seen:
    """Facts known of a graph up to a node, at a batch.

    Attributes
    ----------
    types, values, makers : dict
        The types, known values and nodes of tensors, by name.
    readers : dict of str to set of str
        The operators that read a value, by its name.
    stated : dict of str to shape
        The shapes that the file states of values inside, by name.
    updated : dict of str to str
        The names of new values of what is written in place, by name.
    outer : dict of str to int
        What is merged before the batch in the dim that carries it; 1: absent.
    """

    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    values: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    readers: dict[str, set[str]] = field(default_factory=dict)
    stated: dict[str, Shape] = field(default_factory=dict)
    updated: dict[str, str] = field(default_factory=dict)
    outer: dict[str, int] = field(default_factory=dict)

    def shape(self, name: str) -> Shape | None:
        """Return the static shape of a tensor; None when there is none or a dim is unknown."""
        if name not in self.types or not self.types[name].tensor_type.HasField("shape"):
            return None
        dims = self.types[name].tensor_type.shape.dim
        known = all(d.HasField("dim_value") for d in dims)
        return tuple(d.dim_value for d in dims) if known else None


def node_location(node: onnx.NodeProto) -> str:
    """Return the description of a node: its name, or its first output, and its operator."""
    return f"{node.name or (node.output[0] if node.output else '?')} ({node.op_type})"


def refusal(node: onnx.NodeProto, problem: str) -> ModelError:
    """Return the DIST0314 error of a node that prevents another batch."""
    return ModelError("DIST0314", problem, location=node_location(node), remedy=_REMEDY)


def carrying_dims(name: str, before: Seen, after: Seen) -> tuple[int, ...]:
    """Return the dims of a tensor that grow with the batch."""
    old, new = before.shape(name), after.shape(name)
    if old is None or new is None or len(old) != len(new):
        return ()
    return tuple(i for i, (m, n) in enumerate(zip(old, new, strict=True)) if m != n)


def rewrite_pinned(
    node: onnx.NodeProto, before: Seen, after: Seen, batches: tuple[int, int]
) -> tuple[list[onnx.NodeProto], onnx.NodeProto]:
    """Return the nodes that replace a node for the new batch.

    Parameters
    ----------
    node : NodeProto
        Visited by ``before``, not yet by ``after``.
    before, after : Seen
        The walks at the old and at the new batch.
    batches : tuple of int
        Old and new batch.

    Raises
    ------
    ModelError
        DIST0314 when the node pins the batch in a way that has no clear meaning at another.
    """
    if node.op_type == "Reshape":
        return _rewrite_reshape(node, before, after, batches)
    if node.op_type == "Expand":
        return _rewrite_target(node, 1, before, after)
    if node.op_type == "Resize" and len(node.input) > 3 and node.input[3]:
        return _rewrite_target(node, 3, before, after)
    if node.op_type == "Concat":
        return _stretch_operands(node, before, after)
    if node.op_type in _BROADCASTING:
        return _stretch_operands(node, before, after)
    return [], node


def check_kept(node: onnx.NodeProto, before: Seen, after: Seen) -> None:
    """Reject a node whose operands carry the batch but whose results do not (DIST0314)."""
    if node.op_type in _READ_SHAPES or not any(
        carrying_dims(name, before, after) for name in node.input if name
    ):
        return
    outputs = [name for name in node.output if name and name not in after.values]
    if outputs and not any(carrying_dims(name, before, after) for name in outputs):
        shape = before.shape(outputs[0])
        raise refusal(
            node,
            "the result does not have the batch: it has "
            f"{'an unknown shape' if shape is None else f'the shape {list(shape)} at any batch'}",
        )


def note_outer(node: onnx.NodeProto, before: Seen, after: Seen) -> None:
    """Record which dims of a visited node's results merge others before the batch."""
    source = next((n for n in node.input if n and carrying_dims(n, before, after)), None)
    if source is None:
        return
    outer = after.outer.get(source, 1)
    for name in node.output:
        dims = carrying_dims(name, before, after)
        if len(dims) != 1:
            continue
        after.outer[name] = outer
        if node.op_type in _ORDER_KEEPING:
            old_in, old_out = before.shape(source) or (), before.shape(name) or ()
            elements_before = math.prod(old_in[: carrying_dims(source, before, after)[0]]) * outer
            after.outer[name] = max(elements_before // math.prod(old_out[: dims[0]]), 1)


def _rewrite_reshape(
    node: onnx.NodeProto, before: Seen, after: Seen, batches: tuple[int, int]
) -> tuple[list[onnx.NodeProto], onnx.NodeProto]:
    carried = carrying_dims(node.input[0], before, after)
    pinned = _pinned_value(node, 1, before, after)
    if not carried or pinned is None:
        return [], node
    old_in, new_in = before.shape(node.input[0]), after.shape(node.input[0])
    target = before.shape(node.output[0])
    if old_in is None or new_in is None or target is None:
        raise refusal(node, "a shape is unknown")
    if len(carried) != 1:
        raise refusal(node, f"dims {list(carried)} of its operand carry the batch")
    dim, (old_batch, new_batch) = carried[0], batches
    elements_before = math.prod(old_in[:dim]) * after.outer.get(node.input[0], 1)
    elements_behind = math.prod(old_in) // (elements_before * old_batch)
    position = batch_position(target, old_batch, elements_before, elements_behind)
    if position is None:
        raise refusal(node, f"no dim of {list(target)} can hold the batch of {list(old_in)}")
    sizes = list(target)
    sizes[position] = sizes[position] // old_batch * new_batch
    return _with_operand(node, 1, sizes)


def _rewrite_target(
    node: onnx.NodeProto, operand: int, before: Seen, after: Seen
) -> tuple[list[onnx.NodeProto], onnx.NodeProto]:
    """Rewrite a constant of sizes, aligned at the right with the dims of operand 0."""
    carried = carrying_dims(node.input[0], before, after)
    pinned = _pinned_value(node, operand, before, after)
    old_in, new_in = before.shape(node.input[0]), after.shape(node.input[0])
    if not carried or pinned is None or old_in is None or new_in is None:
        return [], node
    sizes = [int(n) for n in pinned.reshape(-1)]
    shift = len(sizes) - len(old_in)
    for dim in carried:
        if shift + dim < 0 or (node.op_type == "Expand" and sizes[shift + dim] == 1):
            continue  # an Expand keeps what its operand has there
        if sizes[shift + dim] != old_in[dim]:
            raise refusal(node, f"the sizes {sizes} scale the batch dim {dim} of {list(old_in)}")
        sizes[shift + dim] = new_in[dim]
    return _with_operand(node, operand, sizes)


def _stretch_operands(
    node: onnx.NodeProto, before: Seen, after: Seen
) -> tuple[list[onnx.NodeProto], onnx.NodeProto]:
    """Repeat operands without the batch to match those that have it."""
    shapes = [after.shape(name) for name in node.input]
    rank = max((len(shape) for shape in shapes if shape is not None), default=0)
    target_sizes: dict[int, int] = {}
    for name, shape in zip(node.input, shapes, strict=True):
        for dim in carrying_dims(name, before, after):
            target_sizes[dim - len(shape or ())] = (shape or ())[dim]
    if node.op_type == "Concat":
        axis = next(int(a.i) for a in node.attribute if a.name == "axis")
        target_sizes.pop(axis - rank if axis >= 0 else axis, None)
    if node.op_type == "MatMul":
        target_sizes = {dim: size for dim, size in target_sizes.items() if dim < -2}
    extra: list[onnx.NodeProto] = []
    names = list(node.input)
    for index, (name, shape) in enumerate(zip(node.input, shapes, strict=True)):
        if shape is None or carrying_dims(name, before, after):
            continue
        stretched = list(shape)
        for dim, size in target_sizes.items():
            if len(shape) + dim >= 0 and shape[dim] not in (size, 1):
                raise refusal(
                    node,
                    f'operand "{name}" of shape {list(shape)} is fixed to the old batch '
                    f"beside one with {size}",
                )
            if len(shape) + dim >= 0:
                stretched[dim] = size
        if node.op_type != "Concat" or stretched == list(shape):
            continue  # broadcasting repeats a dim of size 1
        names[index] = f"{node.output[0]}__operand{index}"
        sizes = f"{names[index]}__shape"
        extra.append(constant_node(sizes, stretched, "int64"))
        extra.append(helper.make_node("Expand", [name, sizes], [names[index]], name=names[index]))
    return extra, _with_inputs(node, names)


def _pinned_value(
    node: onnx.NodeProto, operand: int, before: Seen, after: Seen
) -> npt.NDArray[np.generic] | None:
    """Return the value of an operand that is equal at both batches, or None."""
    if len(node.input) <= operand:
        return None
    old, new = before.values.get(node.input[operand]), after.values.get(node.input[operand])
    return old if old is not None and new is not None and np.array_equal(old, new) else None


def _with_operand(
    node: onnx.NodeProto, operand: int, sizes: Sequence[int]
) -> tuple[list[onnx.NodeProto], onnx.NodeProto]:
    name = f"{node.output[0]}__sizes"
    names = list(node.input)
    names[operand] = name
    return [constant_node(name, sizes, "int64")], _with_inputs(node, names)


def _with_inputs(node: onnx.NodeProto, names: Sequence[str]) -> onnx.NodeProto:
    copy = copied(node)
    copy.input[:] = names
    return copy
