# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate products of sorted rows with the matrices of their groups, and histograms.

The rows of group ``e`` end before row ``offs[e]``. Here a row names its group, so that rows need no
order; see :mod:`.expert_order`, which removes the sort of a mixture of experts.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Expr

from tvm_distir.core.ir.operators import grouped_matmul, grouped_outer
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of

from .aten_call import AtenCall, Converter, constant

_op = relax.op


def multiplied(call: AtenCall, names: tuple[str, str], ids: Expr) -> Expr:
    """Multiply rows by the matrices of their groups."""
    x, w = (call[name] for name in names)
    return call.emit(grouped_matmul(x, w, ids, shape_of(w)[0]))


def _groups_of_rows(call: AtenCall, rows: int) -> Expr:
    """Return the group of each row from where groups end: the groups that end at it or before."""
    ends = call.cast(call["offs"], "int64")
    row = relax.const(np.arange(rows, dtype="int64")[:, None], "int64")
    ended = call.emit(_op.less_equal(call.emit(_op.expand_dims(ends, 0)), row))
    return call.emit(_op.sum(call.cast(ended, "int64"), 1))


def _grouped(first: str, second: str) -> Converter:
    def convert(call: AtenCall) -> Expr:
        x, w = call[first], call[second]
        if "bias" in call.names and call["bias"] is not None:
            raise Unsupported("a bias of groups")
        if call["offs"] is None and len(shape_of(x)) == len(shape_of(w)) == 3:
            return call.emit(_op.matmul(x, w))
        ranks = len(shape_of(x)), len(shape_of(w))
        if call["offs"] is None or ranks not in ((2, 3), (2, 2)):
            raise Unsupported(f"groups of operands with {ranks} dims")
        if dtype_of(x) != call.dtype:
            raise Unsupported(f"{dtype_of(x)} operands with a {call.dtype} result")
        if ranks == (2, 3):
            return multiplied(call, (first, second), _groups_of_rows(call, shape_of(x)[0]))
        ids = _groups_of_rows(call, shape_of(w)[0])
        rows = call.emit(_op.permute_dims(x, [1, 0]))
        groups = shape_of(call["offs"])[0]
        return call.emit(grouped_outer(rows, w, ids, groups, groups))

    return convert


def _histogram(call: AtenCall) -> Expr:
    """Count elements in bins of equal width; the last bin includes its end."""
    low, high, bins = float(call["min"]), float(call["max"]), int(call["bins"])
    if low >= high:
        raise Unsupported("a histogram between the extremes of its data")
    x, dtype = call.reshaped(call["self"], [-1]), call.dtype
    at = call.emit(_op.subtract(x, constant(low, dtype)))
    at = call.emit(_op.multiply(at, constant(float(bins), dtype)))
    at = call.emit(_op.floor(call.emit(_op.divide(at, constant(high - low, dtype)))))
    at = call.emit(_op.where(call.emit(_op.equal(x, constant(high, dtype))),
                             constant(float(bins - 1), dtype), at))  # fmt: skip
    numbers = constant(np.arange(bins, dtype="float32")[None, :].astype(dtype), dtype)
    same = call.emit(_op.equal(call.emit(_op.expand_dims(at, 1)), numbers))
    return call.emit(_op.sum(call.cast(same, dtype), 0))


GROUPED_OPERANDS = {
    "_grouped_mm.default": ("self", "mat2"),
    "transformers.grouped_mm_fallback.default": ("input", "weight"),
}
"""The operators of grouped products, with the names of rows and of matrices."""

CONVERTERS: dict[str, Converter] = {
    **{name: _grouped(*operands) for name, operands in GROUPED_OPERANDS.items()},
    "histc.default": _histogram,
}
