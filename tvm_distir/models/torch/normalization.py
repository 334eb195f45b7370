# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate norms, in float32 for half precision.

All results are written that anything reads: the mean and the reciprocal deviation too, which TVM's
importer gives as the normalised tensor, or as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.name_tables import by_name
from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of

from .aten_call import AtenCall, Converter, constant

_op = relax.op


def _weight_or_neutral(value: object, shape: Sequence[int], number: float, dtype: str) -> Expr:
    """Return a weight or, if the model has none, the neutral number."""
    if value is not None:
        return value
    return constant(np.full([int(n) for n in shape], number, "float32"), dtype)


def _inverse_deviation(call: AtenCall, variance: Expr, epsilon: float) -> Expr:
    moved = call.emit(_op.add(variance, constant(epsilon, dtype_of(variance))))
    return call.emit(_op.rsqrt(moved))


def _with_moments(
    call: AtenCall, normalized: Expr, shape: Sequence[int], axes: list[int], keeps: bool
) -> Expr | list[Expr]:
    """Return the results of a norm over axes of its input in a shape.

    Results 1 and 2, which only some norms have, are the mean and the reciprocal deviation in
    float32.
    """
    if len(call.results) == 1:
        return normalized
    if not (call.is_read(1) or call.is_read(2)):
        return [normalized, call.absent(1), call.absent(2)]
    wide = call.cast(call.reshaped(call["input"], shape), "float32")
    variance = call.emit(_op.variance(wide, axes, keeps))
    mean = call.emit(_op.mean(wide, axes, keeps))
    moments = (mean, _inverse_deviation(call, variance, float(call["eps"])))
    return [normalized, *(call.cast(v, call.result_dtype(i)) for i, v in enumerate(moments, 1))]


def _layer_norm(call: AtenCall) -> Expr:
    x, shape = call["input"], [int(n) for n in call["normalized_shape"]]
    epsilon, axes = float(call["eps"]), list(range(-len(shape), 0))
    weight = _weight_or_neutral(call["weight"], shape, 1.0, dtype_of(x))
    bias = _weight_or_neutral(call["bias"], shape, 0.0, dtype_of(x))
    normalized = call.in_float32(
        lambda *values: _op.nn.layer_norm(*values, axes=axes, epsilon=epsilon), x, weight, bias
    )
    return _with_moments(call, normalized, shape_of(x), axes, True)


def _rms_norm(call: AtenCall) -> Expr:
    import torch

    x, shape = call["input"], [int(n) for n in call["normalized_shape"]]
    epsilon = call["eps"]
    if epsilon is None:
        epsilon = torch.finfo(call.results[0].dtype).eps
    axes = list(range(-len(shape), 0))
    weight = _weight_or_neutral(call["weight"], shape, 1.0, dtype_of(x))
    return call.in_float32(
        lambda *values: _op.nn.rms_norm(*values, axes=axes, epsilon=float(epsilon)), x, weight
    )


def _group_norm(call: AtenCall) -> Expr:
    native = "group" in call.names
    x = call["input"]
    shape = shape_of(x)
    groups = int(call["group" if native else "num_groups"])
    weight = _weight_or_neutral(call["weight"], shape[1:2], 1.0, dtype_of(x))
    bias = _weight_or_neutral(call["bias"], shape[1:2], 0.0, dtype_of(x))
    epsilon, axes = float(call["eps"]), list(range(2, len(shape)))
    normalized = call.in_float32(
        lambda *values: _op.nn.group_norm(
            *values, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon
        ),
        x,
        weight,
        bias,
    )
    parts = [shape[0], groups, math.prod(shape[1:]) // groups]
    return _with_moments(call, normalized, parts, [2], False)


def _batch_norm(call: AtenCall) -> Expr:
    """Normalize by the statistics of the model."""
    x, mean, variance = call["input"], call["running_mean"], call["running_var"]
    kind, epsilon = dtype_of(x), float(call["eps"])
    weight = _weight_or_neutral(call["weight"], shape_of(mean), 1.0, kind)
    bias = _weight_or_neutral(call["bias"], shape_of(mean), 0.0, kind)
    wide = "float32" if kind in ("bfloat16", "float16") else kind
    values = [call.cast(value, wide) for value in (x, weight, bias, mean, variance)]
    triple = call.emit(_op.nn.batch_norm(*values, axis=1, epsilon=epsilon, training=False))
    normalized = call.cast(call.emit(relax.TupleGetItem(triple, 0)), kind)
    return [normalized, *(call.absent(i) for i in range(1, len(call.results)))]


def _batch_norm_training(call: AtenCall) -> Expr:
    """Normalize by the batch; return the result, mean, deviation, and running statistics.

    Torch's running variance is that of a sample (n - 1), TVM's that of a population (n).
    """
    if not call["training"]:
        return _batch_norm(call)
    x, momentum, epsilon = call["input"], float(call["momentum"]), float(call["eps"])
    shape = shape_of(x)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    wide = call.cast(x, "float32")
    mean, variance = call.emit(_op.mean(wide, axes)), call.emit(_op.variance(wide, axes))
    inverse = _inverse_deviation(call, variance, epsilon)
    line = [1, shape[1], *[1] * (len(shape) - 2)]
    centred = call.emit(_op.subtract(wide, call.reshaped(mean, line)))
    normalized = call.emit(_op.multiply(centred, call.reshaped(inverse, line)))
    for name, make in (("weight", _op.multiply), ("bias", _op.add)):
        if call[name] is not None:
            normalized = call.emit(
                make(normalized, call.reshaped(call.cast(call[name], "float32"), line))
            )
    results = [
        call.cast(v, call.result_dtype(i)) for i, v in enumerate((normalized, mean, inverse))
    ]
    count = math.prod(shape[axis] for axis in axes)
    news = ((mean, "running_mean", 1.0), (variance, "running_var", count / max(count - 1, 1)))
    for new, name, factor in news[: len(call.results) - 3]:
        kind = dtype_of(call[name])
        old = call.cast(call[name], "float32")
        decayed = call.emit(_op.multiply(old, constant(1 - momentum, "float32")))
        share = call.emit(_op.multiply(new, constant(momentum * factor, "float32")))
        results.append(call.cast(call.emit(_op.add(decayed, share)), kind))
    return results


def _batch_norm_without_statistics(call: AtenCall) -> Expr:
    if not call["training"]:
        raise Unsupported("a batch norm without statistics, in inference")
    return _batch_norm_training(call)


CONVERTERS: dict[str, Converter] = by_name(
    (_layer_norm, "layer_norm.default native_layer_norm.default"),
    (_rms_norm, "rms_norm.default"),
    (_group_norm, "group_norm.default native_group_norm.default"),
    (_batch_norm, "_native_batch_norm_legit_no_training.default"),
    (_batch_norm_training, "_native_batch_norm_legit_functional.default"),
    (_batch_norm_without_statistics, "_native_batch_norm_legit.no_stats"),
)
