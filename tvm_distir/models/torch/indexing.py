# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate look-ups and writes by indices."""

from __future__ import annotations

import math

import numpy as np
from torch import fx
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of
from tvm_distir.support import GenericConst

from .aten_call import AtenCall, Converter, constant

_op = relax.op
_COUNTED = ("arange", "argmax", "argmin", "topk", "argsort", "sort")
"""Operators whose results are never negative."""


def _embedding(call: AtenCall) -> Expr:
    return call.emit(_op.take(call["weight"], call["indices"], axis=0))


def _index_select(call: AtenCall) -> Expr:
    return call.emit(_op.take(call["self"], call["index"], axis=call.axis))


def _gather(call: AtenCall) -> Expr:
    return call.emit(_op.gather_elements(call["self"], call["index"], call.axis))


def _is_counted(node: object) -> bool:
    """Return whether a node's values are known to be non-negative."""
    while isinstance(node, fx.Node):
        name = str(getattr(node.target, "__name__", ""))
        if name.startswith(_COUNTED):
            return True
        views = ("getitem", "unsqueeze", "view", "_to_copy", "to.", "clone", "expand", "reshape")
        if not name.startswith(views):
            return False
        node = node.args[0]
    return False


def _counted_from_front(call: AtenCall, node: object, index: Expr, size: int) -> Expr:
    """Add ``size`` to negative indices, as torch reads them."""
    if dtype_of(index) == "bool":
        raise Unsupported("an index that is a mask: the size of its result depends on data")
    if _is_counted(node):
        return index
    if isinstance(index, GenericConst):
        values = index.value.numpy()
        return relax.const(np.where(values < 0, values + size, values), dtype_of(index))
    kind = dtype_of(index)
    below = call.emit(_op.less(index, constant(0, kind)))
    return call.emit(_op.where(below, call.emit(_op.add(index, constant(size, kind))), index))


def _indices(call: AtenCall, shape: tuple[int, ...]) -> tuple[list[int], list[Expr]]:
    """Return the indexed axes, and their indices."""
    axes, indices = [], []
    for axis, node in enumerate(call.argument("indices")):
        if node is not None:
            axes.append(axis)
            indices.append(_counted_from_front(call, node, call.value(node), shape[axis]))
    return axes, indices


def _flat_index(
    call: AtenCall, shape: tuple[int, ...], axes: list[int], indices: list[Expr]
) -> Expr:
    """Return a single index into the flattened adjacent axes."""
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise Unsupported("indices of axes that are not adjacent")
    total = call.cast(indices[0], "int64")
    for axis, index in zip(axes[1:], indices[1:], strict=True):
        scaled = call.emit(_op.multiply(total, constant(shape[axis], "int64")))
        total = call.emit(_op.add(scaled, call.cast(index, "int64")))
    return total


def _index(call: AtenCall) -> Expr:
    """Index by several tensors elementwise; TVM's importer takes their cross product."""
    x = call["self"]
    shape = shape_of(x)
    axes, indices = _indices(call, shape)
    if len(axes) == 1:
        return call.emit(_op.take(x, indices[0], axis=axes[0]))
    if axes[0] == 0 and len(axes) == len(shape):
        return call.emit(_op.index_tensor(x, indices))
    index = _flat_index(call, shape, axes, indices)
    first, last = axes[0], axes[-1] + 1
    flat = call.reshaped(x, [*shape[:first], math.prod(shape[first:last]), *shape[last:]])
    return call.emit(_op.take(flat, index, axis=first))


def _index_put(call: AtenCall) -> Expr:
    x, values = call["self"], call["values"]
    shape, adds = shape_of(x), bool(call["accumulate"])
    values = call.cast(values, dtype_of(x))
    masks = [node for node in call.argument("indices") if node is not None]
    if len(masks) == 1 and dtype_of(call.value(masks[0])) == "bool":
        return _put_at_mask(call, x, values, call.value(masks[0]), adds)
    axes, indices = _indices(call, shape)
    index = _flat_index(call, shape, axes, indices)
    first, last, index_shape = axes[0], axes[-1] + 1, shape_of(index)
    flat = call.reshaped(x, [*shape[:first], math.prod(shape[first:last]), *shape[last:]])
    count = math.prod(index_shape)
    values = call.broadcast(values, [*shape[:first], *index_shape, *shape[last:]])
    values = call.reshaped(values, [*shape[:first], count, *shape[last:]])
    line = [1] * first + [count] + [1] * (len(shape) - last)
    index = call.broadcast(call.reshaped(index, line), shape_of(values))
    done = _op.scatter_elements(flat, index, values, first, "add" if adds else "update")
    return call.reshaped(call.emit(done), shape)


def _put_at_mask(call: AtenCall, x: Expr, values: Expr, mask: Expr, adds: bool) -> Expr:
    if math.prod(shape_of(values)) != 1:
        raise Unsupported("values written at a mask: their number depends on data")
    inner = [*shape_of(mask), *[1] * (len(shape_of(x)) - len(shape_of(mask)))]
    value = call.reshaped(values, [])
    new = call.emit(_op.add(x, value)) if adds else value
    return call.emit(_op.where(call.reshaped(mask, inner), new, x))


def _masked_scatter(call: AtenCall) -> Expr:
    """Write the first elements of a source at a mask, in order.

    How many they are depends on data. Torch refuses a source with fewer, whose last one is repeated
    here.
    """
    x, source = call["self"], call["source"]
    shape = shape_of(x)
    mask = call.broadcast(call["mask"], shape)
    flat = call.reshaped(call.cast(mask, "int64"), [math.prod(shape)])
    count = call.emit(_op.cumsum(flat, 0, dtype="int64"))
    last = constant(max(math.prod(shape_of(source)) - 1, 0), "int64")
    index = call.emit(_op.subtract(count, constant(1, "int64")))
    index = call.emit(_op.minimum(call.emit(_op.maximum(index, constant(0, "int64"))), last))
    values = call.reshaped(source, [math.prod(shape_of(source))])
    written = call.reshaped(call.emit(_op.take(values, index, axis=0)), shape)
    return call.emit(_op.where(mask, written, x))


def _scatter(reduction: str) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x, index = call["self"], call["index"]
        if "value" in call.names:
            new = call.broadcast(constant(call["value"], dtype_of(x)), shape_of(index))
        else:
            new = call.cast(call["src"], dtype_of(x))
            if shape_of(new) != shape_of(index):
                raise Unsupported("a source of another shape than its indices")
        return call.emit(_op.scatter_elements(x, index, new, call.axis, reduction))

    return convert


def _one_hot(call: AtenCall) -> Expr:
    index, classes = call["self"], int(call["num_classes"])
    if classes < 0:
        raise Unsupported("one_hot without a number of classes")
    all_classes = call.emit(_op.arange(0, classes, 1, dtype_of(index)))
    same = call.emit(_op.equal(call.emit(_op.expand_dims(index, -1)), all_classes))
    return call.cast(same, "int64")


CONVERTERS: dict[str, Converter] = by_name(
    (_embedding, "embedding.default"),
    (_index_select, "index_select.default"),
    (_gather, "gather.default"),
    (_index, "index.Tensor _unsafe_index.Tensor"),
    (_index_put, "index_put.default _unsafe_index_put.default"),
    (_masked_scatter, "masked_scatter.default"),
    (_scatter("update"), "scatter.src scatter.value"),
    (_scatter("add"), "scatter_add.default"),
    (_one_hot, "one_hot.default"),
)
