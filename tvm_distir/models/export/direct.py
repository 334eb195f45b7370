# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recognize calls that import from their StableHLO operations as the same call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.hlo_names import COMPARISONS
from tvm_distir.support import GenericConst

from .elementwise import BINARY, UNARY
from .step import ExportStep
from .text import is_float

_FLOATS = ("float32", "float64")


def is_direct(step: ExportStep, name: str) -> bool:
    """Return whether a call is written without a composite.

    Its operations import as the call itself, or it is a collective.

    Parameters
    ----------
    name : str
        The name of its op, without ``relax.``; of a start, that of its collective.
    """
    if name.startswith("dist."):
        return True
    check = _DIRECT.get(name)
    return check is not None and not any(map(_is_filled, step.call.args)) and check(step)


def _is_filled(arg: Expr) -> bool:
    """Return whether an argument is a constant of equal elements, imported as a number."""
    if not isinstance(arg, GenericConst):
        return False
    array = arg.value.numpy()
    return array.ndim > 0 and bool((array.reshape(-1)[:1] == array).all())


def _unary(step: ExportStep) -> bool:
    return step[0].dtype in _FLOATS or step.dtype == "bool"


def _binary(step: ExportStep, first: int = 0) -> bool:
    """Accept values of the same rank, or a value of full rank with broadcast others."""
    kinds = {value.dtype for value in step.args[first:]}
    return len(kinds) == 1 and not _all_constant(step) and _spreads(step)


def _shift(step: ExportStep) -> bool:
    """Accept a shift by a number below the width, beyond which only StableHLO defines it."""
    count = step.call.args[1]
    if not isinstance(count, GenericConst) or count.ty.ndim:
        return False
    return 0 <= int(count.value.numpy()) < np.iinfo(step.dtype).bits and _binary(step)


def _spreads(step: ExportStep) -> bool:
    return any(value.shape == step.shape for value in step.args)


def _all_constant(step: ExportStep) -> bool:
    return all(isinstance(arg, GenericConst) for arg in step.call.args)


def _compare(step: ExportStep) -> bool:
    return _binary(step) and step[0].dtype != "bool"


def _astype(step: ExportStep) -> bool:
    return "bool" != step.dtype != step[0].dtype and not _all_constant(step)


def _reshape(step: ExportStep) -> bool:
    return isinstance(step.call.args[1], relax.ShapeExpr) and _changes(step)


def _changes(step: ExportStep) -> bool:
    return bool(step[0].shape != step.shape and step[0].shape)


def _permute(step: ExportStep) -> bool:
    """Accept an order that moves a dim; reversed dims have no axes."""
    axes = step.attrs.axes
    if axes is None:
        return len(step[0].shape) > 1
    order = [int(axis) for axis in axes]
    return min(order, default=-1) >= 0 and sorted(order) not in (order, order[::-1])


def _concat(step: ExportStep) -> bool:
    axis, rank = step.attrs.axis, len(step.shape)
    fields = getattr(step.call.args[0], "fields", [])
    return (
        axis is not None
        and 0 <= int(axis) < rank
        and len(fields) > 1
        and not any(map(_is_filled, fields))
        and all(0 not in value.shape for value in step[0])
    )


def _slice(step: ExportStep) -> bool:
    """Accept slices of dims in order, with explicit bounds."""
    if step.attrs.assume_inbound:
        return False
    axes, begins, ends = ([int(n) for n in step[i]] for i in range(1, 4))
    operand = step.optional(4)
    strides = [1] * len(axes) if operand is None else [int(n) for n in operand]
    if operand is not None and set(strides) == {1}:
        return False  # without them it is the same
    sizes = [step[0].shape[a] for a in axes if 0 <= a < len(step[0].shape)]
    if axes != sorted({*axes}) or len(sizes) != len(axes):
        return False
    slices = zip(begins, ends, strides, sizes)
    return all(0 <= b < e <= n and s > 0 and (b, e, s) != (0, n, 1) for b, e, s, n in slices)


def _matmul(step: ExportStep) -> bool:
    """Accept equal batches, or a matrix for all."""
    a, b = step[0].shape, step[1].shape
    fits = len(a) >= 2 and (len(b) == 2 or (len(a) == len(b) and a[:-2] == b[:-2]))
    same = step.attrs.out_dtype is None and step[0].dtype == step[1].dtype == step.dtype
    return fits and same


def _reduced(step: ExportStep) -> bool:
    axes = step.attrs.axis
    listed = [] if axes is None else [int(axis) for axis in axes]
    good = bool(listed) and listed == sorted(listed) and listed[0] >= 0
    return good and not step.attrs.keepdims and step.dtype != "bool"


_DIRECT: dict[str, Callable[[ExportStep], bool]] = {
    **{name: _unary for name in UNARY},
    **{name: _binary for name in BINARY},
    **{name: _compare for name in COMPARISONS},
    **{name: _shift for name in ("left_shift", "right_shift")},
    **{name: _reduced for name in ("sum", "max", "min", "prod")},
    "mod": lambda step: _binary(step) and not is_float(step.dtype),
    "where": lambda step: _binary(step, first=1),
    "astype": _astype,
    "reshape": _reshape,
    "permute_dims": _permute,
    "concat": _concat,
    "strided_slice": _slice,
    "matmul": _matmul,
}
"""Whether a call of an op is, by the op's name; all others are composites."""
