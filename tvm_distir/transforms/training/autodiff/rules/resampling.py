# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of resizes and adaptive pools as transposed matrices per dim.

The matrix of a dim of n rows with m rows of result, ``result = matrix @ rows``, is a constant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import astype, broadcast_to, einsum, matmul, multiply, reshape
from tvm.relax.op import sum as sum_op

from .registry import Gradients, array_like, constant_like, refuse, register_gradient, shape_of

EPSILON = 1e-5
"""The number that TVM adds before it rounds down."""

SUBSCRIPTS = "abcde"


def along(grad: Expr, d: int, matrix: np.ndarray, builder: BlockBuilder) -> Var:
    """Apply the transposed matrix (result rows, rows) along a dim of a gradient."""
    subscripts = SUBSCRIPTS[: len(shape_of(grad))]
    text = f"{subscripts},{subscripts[d]}z->{subscripts.replace(subscripts[d], 'z')}"
    return builder.emit(einsum((grad, array_like(matrix, grad, builder)), text))


def _positions(n: int, m: int, mode: str) -> np.ndarray:
    """Return the source positions of m result rows among n, in float32 as TVM does."""
    at: np.ndarray = np.arange(m, dtype=np.float32)
    scale = np.float32(n) / np.float32(m)
    half = np.float32(0.5)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and m > 1):
        return (at + half) * scale - half
    if mode == "pytorch_half_pixel":
        return np.zeros(m, np.float32)
    if mode == "tf_half_pixel_for_nn":
        return (at + half) * scale
    if mode == "asymmetric":
        return scale * at
    return np.asarray(np.float32(n - 1) / np.float32(max(m - 1, 1)) * at)


def _rounded(at: np.ndarray, how: str) -> np.ndarray:
    half = np.float32(0.5)
    if how == "round":
        return np.asarray(np.rint(at))  # ties to even, as TVM's
    if how == "round_prefer_floor":
        return np.ceil(at - half)
    if how == "round_prefer_ceil":
        return np.floor(at + half)
    if how == "ceil":
        return np.ceil(at - np.float32(EPSILON))
    return np.floor(at + np.float32(EPSILON))


def _cubic(t: np.ndarray, alpha: float) -> list[np.ndarray]:
    """Return the weights of the four neighbours of a position (Keys 1981)."""
    square, cube = t * t, t * t * t
    return [
        alpha * (cube - 2 * square + t),
        (alpha + 2) * cube - (3 + alpha) * square + 1,
        -(alpha + 2) * cube + (3 + 2 * alpha) * square - alpha * t,
        -alpha * cube + alpha * square,
    ]


def _matrix(call: ir.Call, n: int, m: int) -> np.ndarray:
    """Return the weights (m, n) of a resize along a single dim."""
    a = call.attrs
    mode, method = str(a.coordinate_transformation_mode), str(a.method)
    at = _positions(n, m, mode)
    base = np.floor(at)
    t = (at - base).astype(np.float64)
    if method == "nearest_neighbor":
        how = str(a.rounding_method) or ("round" if mode == "align_corners" else "floor")
        terms = [(_rounded(at, how), np.ones(m))]
    elif method == "linear":
        terms = [(base, 1 - t), (base + 1, t)]
    elif method == "cubic":
        weights = _cubic(t, float(a.cubic_alpha))
        if int(a.cubic_exclude):
            weights = [
                np.where((base - 1 + i < 0) | (base + i > n), 0.0, w) for i, w in enumerate(weights)
            ]
            total = np.sum(weights, axis=0)
            weights = [w / total for w in weights]
        terms = [(base - 1 + i, w) for i, w in enumerate(weights)]
    else:
        raise refuse(call, f'the gradient of a resize of method "{method}" is not known')
    matrix = np.zeros((m, n))
    for position, weight in terms:
        np.add.at(matrix, (np.arange(m), np.clip(position, 0, n - 1).astype(int)), weight)
    return matrix


@register_gradient("image.resize2d", "image.resize3d")
def _resize(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate a resize; for integer upscaling by copies, sum over the copies."""
    x, layout = call.args[0], str(call.attrs.layout)
    shape, out = list(shape_of(x)), list(shape_of(grad))
    if str(call.attrs.coordinate_transformation_mode) == "tf_crop_and_resize":
        raise refuse(call, "the gradient of a resize of a part is not known")
    if not layout.isupper():
        raise refuse(call, f"the gradient of a resize of the layout {layout} is not known")
    nearest = str(call.attrs.method) == "nearest_neighbor"
    matrices = {
        d: _matrix(call, int(shape[d]), int(out[d]))
        for d, axis in enumerate(layout)
        if axis not in "NC"
    }
    copied = nearest and all(_copies(matrix) for matrix in matrices.values())
    if copied:
        gradient = _sum_of_copies(grad, shape, list(matrices), builder)
    else:
        gradient = grad
        for d, matrix in matrices.items():
            gradient = along(gradient, d, matrix, builder)
    if gradient.ty.dtype != x.ty.dtype:
        gradient = astype(gradient, str(x.ty.dtype))
    return [gradient, *[None] * (len(call.args) - 1)]


def _copies(matrix: np.ndarray) -> bool:
    """Return whether result rows are equally often repeated rows of the operand."""
    m, n = matrix.shape
    return m % n == 0 and bool((matrix == np.repeat(np.eye(n), m // n, axis=0)).all())


def _sum_of_copies(grad: Expr, shape: list[Any], dims: list[int], builder: BlockBuilder) -> Any:
    split: list[Any] = []
    copies = []
    for d, n in enumerate(shape):
        split.append(n)
        if d in dims:
            copies.append(len(split))
            split.append(int(shape_of(grad)[d]) // int(n))
    return builder.emit(sum_op(builder.emit(reshape(grad, split)), copies))


@register_gradient("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d")
def _adaptive(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate an adaptive pool: distribute the gradient over the pooled pixels."""
    x, layout = call.args[0], str(call.attrs.layout)
    shape, out = list(shape_of(x)), list(shape_of(grad))
    dims = [d for d, axis in enumerate(layout) if axis not in "NC"]
    if not layout.isupper() or str(call.attrs.out_layout or layout) != layout:
        raise refuse(call, f"the gradient of a pool of the layout {layout} is not known")
    if all(int(out[d]) == 1 for d in dims):
        pixels = math.prod(int(shape[d]) for d in dims)
        share = builder.emit(multiply(grad, constant_like(1 / pixels, x)))
        return [broadcast_to(share, x.ty.shape)]
    for d in dims:
        m, n = int(out[d]), int(shape[d])
        matrix = np.zeros((m, n))
        for k in range(m):
            low, high = k * n // m, -(-(k + 1) * n // m)
            matrix[k, low:high] = 1 / (high - low)
        grad = along(grad, d, matrix, builder)
    return [grad]


@register_gradient("image.affine_grid")
def _affine_grid(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``affine_grid``, a product with the grid (positions, dims + 1)."""
    x = call.args[0]
    sizes = [int(n) for n in shape_of(grad)[2:]]
    ends = bool(call.attrs.align_corners)
    lines = [
        np.arange(n) * ((2.0 - 1e-7) / (n - 1)) - 1 if ends else (2 * np.arange(n) + 1) / n - 1
        for n in sizes
    ]
    columns = [g.reshape(-1) for g in np.meshgrid(*lines, indexing="ij")][::-1]
    positions = np.stack([*columns, np.ones(math.prod(sizes))], axis=1)
    flat = builder.emit(reshape(grad, [*shape_of(x)[:2], math.prod(sizes)]))
    return [matmul(flat, array_like(positions, x, builder)), None]
