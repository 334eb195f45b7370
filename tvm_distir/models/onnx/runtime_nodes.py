# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert operators of ONNX Runtime that are neither gradients, norms, losses nor optimizers.

The mask of a dropout is all true: a dropout that draws random numbers is refused before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper
from tvm import relax
from tvm.relax import Expr
from tvm.relax.op import add, concat, divide, matmul, multiply, permute_dims, reshape, where
from tvm.relax.op import sum as sum_op

from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of
from tvm_distir.support import GenericConst

from .node_call import Converter, NodeCall, size_of

_op = relax.op
BITS = 32
"""The elements per word of a mask of bits."""


def _product(call: NodeCall) -> list[Expr]:
    """Convert ``alpha A B``; ``transBatchA`` moves dim 0 behind the batch before ``transA``."""
    sides = []
    for index, name in enumerate("AB"):
        x = call[index]
        rank = len(shape_of(x))
        if call.whether(f"transBatch{name}") and rank > 2:
            x = call.emit(permute_dims(x, [*range(1, rank - 1), 0, rank - 1]))
        if call.whether(f"trans{name}") and rank > 1:
            x = call.swapped(x, rank - 2, rank - 1)
        sides.append(x)
    alpha = call.number("alpha", 1.0)
    result = matmul(*sides)
    if alpha == 1.0:
        return [result]
    result = call.emit(result)
    return [multiply(result, call.constant(alpha, result))]


def _activation(op: Callable[[Expr], Expr]) -> Converter:
    """Return the converter of an activation of its operand, plus a bias if there is one."""

    def convert(call: NodeCall) -> list[Expr]:
        bias = call.get(1)
        return [op(call[0] if bias is None else call.emit(add(call[0], bias)))]

    return convert


def _quick_gelu(call: NodeCall) -> list[Expr]:
    x = call[0]
    scaled = call.emit(multiply(x, call.constant(call.number("alpha", 1.702), x)))
    return [multiply(x, call.emit(_op.sigmoid(scaled)))]


def _dropout(mask: Callable[[NodeCall, Expr], Expr], biased: bool) -> Converter:
    """Return the converter of a dropout of data, or of data plus bias and residual."""

    def convert(call: NodeCall) -> list[Expr]:
        ratio, training = (call.get(i) for i in ((3, 4) if biased else (1, 2)))
        if not (training is None or _is_zero(training) or _is_zero(ratio)):
            raise Unsupported("it draws random numbers: export it for inference, or with ratio 0")
        x = call[0]
        if biased:
            x = call.emit(add(x, call[1]))
            x = x if call.get(2) is None else call.emit(add(x, call[2]))
        return [x, mask(call, x)]

    return convert


def _is_zero(value: Expr | None) -> bool:
    """Return whether an operand is known to be zero, or false."""
    return isinstance(value, GenericConst) and not value.value.numpy().any()


def _booleans(call: NodeCall, x: Expr) -> Expr:
    return _op.ones(shape_of(x), "bool")


def _words(call: NodeCall, x: Expr) -> Expr:
    """Return the mask of bits of a tensor, all ones up to its size."""
    size = size_of(x)
    words = np.full(-(-size // BITS), 2**BITS - 1, "uint32")
    if size % BITS:
        words[-1] = 2 ** (size % BITS) - 1
    return relax.const(words)


def _dropout_gradient(call: NodeCall) -> list[Expr]:
    """Convert ``dY / (1 - ratio)`` where the mask is true, and 0 elsewhere."""
    if call.get(3) is not None and not call.numbers(3).all():
        return [call[0]]
    return [_masked(call, call[0], call[1], call.get(2))]


def _masked(call: NodeCall, gradient: Expr, mask: Expr, ratio: Expr | None) -> Expr:
    share = call.constant(0.5, gradient)
    if ratio is not None:
        ratio = call.cast(call.shaped(ratio, ()), dtype_of(gradient))
        share = call.emit(_op.subtract(call.constant(1.0, gradient), ratio))
    return where(mask, call.emit(divide(gradient, share)), call.constant(0.0, gradient))


def _bits(call: NodeCall, words: Expr, shape: tuple[int, ...]) -> Expr:
    """Return a mask of booleans from one of bits, the lowest of each word first."""
    shifts = relax.const(np.arange(BITS, dtype="uint32"))
    column = call.emit(_op.expand_dims(words, 1))
    ones = call.emit(_op.bitwise_and(_op.right_shift(column, shifts), relax.const(1, "uint32")))
    count = int(np.prod(shape, dtype="int64"))
    flat = call.emit(reshape(ones, [shape_of(words)[0] * BITS]))
    return call.cast(call.shaped(_op.strided_slice(flat, [0], [0], [count]), shape), "bool")


def _bitmask_gradient(call: NodeCall) -> list[Expr]:
    return [_masked(call, call[0], _bits(call, call[1], shape_of(call[0])), call.get(2))]


def _reduce_sum(call: NodeCall) -> list[Expr]:
    axes = [int(axis) for axis in call.numbers(1)]
    if not axes and call.whether("noop_with_empty_axes"):
        return [call[0]]
    return [sum_op(call[0], axes or None, keepdims=call.whether("keepdims", True))]


def _scale(call: NodeCall) -> list[Expr]:
    op = divide if call.whether("scale_down") else multiply
    return [op(call[0], call.cast(call.shaped(call[1], ()), dtype_of(call[0])))]


def _scaled_sum(call: NodeCall) -> list[Expr]:
    terms = [
        call.emit(multiply(call[i], call.constant(call.number(f"scale_{i}", 1.0), call[i])))
        for i in range(len(call.inputs))
    ]
    total = terms[0]
    for term in terms[1:]:
        total = call.emit(add(total, term))
    return [total]


def _mixed_precision_scale(call: NodeCall) -> list[Expr]:
    """Convert the products of tensors and a number, in another type, side by side if fused."""
    dtype = helper.tensor_dtype_to_np_dtype(int(call.number("to", 1))).name
    results = []
    for i in range(1, len(call.inputs)):
        factor = call.cast(call.shaped(call[0], ()), dtype_of(call[i]))
        results.append(call.cast(call.emit(multiply(call[i], factor)), dtype))
    if not call.whether("fuse_outputs"):
        return results
    flat = [call.shaped(x, [size_of(x)]) for x in results]
    return [concat(flat, 0) if len(flat) > 1 else flat[0]]


def _squares(call: NodeCall) -> Expr:
    """Return the sum of all squares, float32 ()."""
    total: Expr = call.constant(0.0, call.wide(call[0]))
    for i in range(len(call.inputs)):
        x = call.wide(call[i])
        total = call.emit(add(total, call.emit(sum_op(call.emit(multiply(x, x))))))
    return total


def _norm_of_all(call: NodeCall) -> list[Expr]:
    return [call.cast(_op.sqrt(_squares(call)), dtype_of(call[0]))]


def _clip_norm(call: NodeCall) -> list[Expr]:
    """Convert gradients, multiplied by ``max_norm / (norm + 1e-6)`` where that is below 1."""
    total = _squares(call)
    norm = call.emit(add(call.emit(_op.sqrt(total)), call.constant(1e-6, total)))
    factor = divide(call.constant(call.number("max_norm", 1.0), norm), norm)
    factor = call.emit(_op.minimum(call.emit(factor), call.constant(1.0, norm)))
    return [
        multiply(call[i], call.cast(factor, dtype_of(call[i]))) for i in range(len(call.inputs))
    ]


def _all_finite(call: NodeCall) -> list[Expr]:
    """Convert whether no element is infinite or NaN, or of one of both kinds."""
    kinds = [_op.isinf, _op.isnan]
    for key, kind in zip(("isinf_only", "isnan_only"), list(kinds), strict=True):
        if call.whether(key):
            kinds = [kind]
    bad = relax.const(0.0, "float32")
    for i in range(len(call.inputs)):
        for kind in kinds:
            bad = call.emit(add(bad, sum_op(call.cast(kind(call.wide(call[i])), "float32"))))
    return [_op.equal(bad, relax.const(0.0, "float32"))]


def _all(call: NodeCall) -> list[Expr]:
    return [call.cast(_op.min(call.cast(call[0], "int32"), keepdims=False), "bool")]


def _split(call: NodeCall) -> list[Expr]:
    ends = [int(n) for n in np.cumsum(call.numbers(1))]
    parts = call.emit(_op.split(call[0], ends[:-1], int(call.number("axis", 0))))
    return [relax.TupleGetItem(parts, i) for i in range(len(ends))]


def _triangle(call: NodeCall) -> list[Expr]:
    offset = 0 if call.get(1) is None else int(call.numbers(1).reshape(-1)[0])
    return [(_op.triu if call.whether("upper", True) else _op.tril)(call[0], offset)]


def _accumulate(call: NodeCall) -> list[Expr]:
    """Convert ``sum + value``, where the flag is true."""
    new = call.emit(add(call[0], call.cast(call[1], dtype_of(call[0]))))
    return [call.unless(call.get(2), call[0], new)]


def _accumulate_or_set(call: NodeCall) -> list[Expr]:
    """Convert ``sum + value``, or ``value`` where the flag is true; results: true, the sum."""
    value = call.cast(call[1], dtype_of(call[0]))
    total = call.emit(add(call[0], value))
    if call.get(2) is not None:
        total = call.unless(call[2], total, value)
    return [_op.ones([1], "bool"), total]


CONVERTERS: dict[str, Converter] = {
    "All": _all,
    "BiasDropout": _dropout(_booleans, biased=True),
    "BiasGelu": _activation(_op.nn.gelu),
    "BitmaskBiasDropout": _dropout(_words, biased=True),
    "BitmaskDropout": _dropout(_words, biased=False),
    "BitmaskDropoutGrad": _bitmask_gradient,
    "Dropout": _dropout(_booleans, biased=False),
    "DropoutGrad": _dropout_gradient,
    "FastGelu": _activation(_op.nn.gelu_tanh),
    "FusedMatMul": _product,
    "Gelu": _activation(_op.nn.gelu),
    "InPlaceAccumulator": _accumulate,
    "InPlaceAccumulatorV2": _accumulate_or_set,
    "InplaceClipGradNorm": _clip_norm,
    "IsAllFinite": _all_finite,
    "IsFinite": lambda call: [_op.isfinite(call[0])],
    "MixedPrecisionScale": _mixed_precision_scale,
    "PassThrough": lambda call: [x for x in call.inputs if x is not None],
    "QuickGelu": _quick_gelu,
    "ReduceAllL2": _norm_of_all,
    "ReduceSumTraining": _reduce_sum,
    "Scale": _scale,
    "ScaledSum": _scaled_sum,
    "TransposeMatMul": _product,
    "Trilu": _triangle,
    "SplitTraining": _split,
    "ZeroGradient": lambda call: [_op.zeros(shape_of(call[0]), dtype_of(call[0]))],
}
