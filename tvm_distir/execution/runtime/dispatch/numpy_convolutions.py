# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute convolutions of any number of dims as matrix products.

Data are ``(N, C, *S)``, weights ``(O, C / groups, *K)`` and results ``(N, O, *T)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

Array = npt.NDArray[Any]
Sizes = Sequence[int]

_BLOCK = 1 << 18
"""Elements of the windows that are copied at once: they stay in the cache."""


def _padded(x: Array, before: Sizes, behind: Sizes) -> Array:
    """Return data with zeros around, or cut where a padding is negative."""
    cut = tuple(
        slice(max(0, -low), size - max(0, -high))
        for low, high, size in zip(before, behind, x.shape[2:], strict=True)
    )
    x = x[(slice(None), slice(None), *cut)]
    if not any(n > 0 for n in (*before, *behind)):
        return x
    widths = [(max(0, low), max(0, high)) for low, high in zip(before, behind, strict=True)]
    result = np.zeros(
        (*x.shape[:2], *(n + a + b for n, (a, b) in zip(x.shape[2:], widths))), x.dtype
    )
    inside = tuple(slice(a, a + n) for n, (a, _) in zip(x.shape[2:], widths))
    result[(slice(None), slice(None), *inside)] = x
    return result


def _windows(x: Array, kernel: Sizes, strides: Sizes, dilation: Sizes, result: Sizes) -> Array:
    """Return the view ``(N, C, *K, *T)`` of all that the kernel meets."""
    steps = x.strides[2:]
    moves = [s * n for s, n in zip(steps, dilation)] + [s * n for s, n in zip(steps, strides)]
    shape = (*x.shape[:2], *kernel, *result)
    return as_strided(x, shape, (*x.strides[:2], *moves), writeable=False)


def _multiply(a: Array, b: Array, out: Array) -> None:
    """Write a product into dims that need not be matrices, as ``(rows, *T)``."""
    if out.flags.c_contiguous:
        np.matmul(a, b, out=out.reshape(a.shape[0], -1))
    else:
        out[...] = np.matmul(a, b).reshape(out.shape)


def convolve(
    x: Array, w: Array, strides: Sizes, padding: Sizes, dilation: Sizes, groups: int, y: Array
) -> None:
    """Write a convolution; the padding is that before all dims, then that behind."""
    half = len(padding) // 2
    x = _padded(x, padding[:half], padding[half:])
    kernel, result = w.shape[2:], y.shape[2:]
    windows = _windows(x, kernel, strides, dilation, result)
    inner, outer = w.shape[1], w.shape[0] // groups
    if groups == 1 and math.prod(kernel) > math.prod(result):
        _by_position(windows, w, y)
        return
    row = math.prod(kernel) * inner * math.prod(result[1:])
    rows = max(1, _BLOCK // max(1, row))
    for group in range(groups):
        weights = w[group * outer : (group + 1) * outer].reshape(outer, -1)
        channels = slice(group * inner, (group + 1) * inner)
        for n in range(len(x)):
            source = windows[n, channels]
            target = y[n, group * outer : (group + 1) * outer]
            if math.prod(kernel) == 1:
                _multiply(weights, source.reshape(inner, -1), target)
                continue
            for first in range(0, result[0], rows):
                some = slice(first, first + rows)
                part = source[(slice(None),) * (1 + half) + (some,)]
                target[:, some] = np.matmul(weights, part.reshape(weights.shape[1], -1)).reshape(
                    target[:, some].shape
                )


def _by_position(windows: Array, w: Array, y: Array) -> None:
    """Write few results of a large kernel, such as the gradient of a kernel, one at a time."""
    weights = np.ascontiguousarray(w.reshape(w.shape[0], -1).T)
    for position in np.ndindex(*y.shape[2:]):
        data = windows[(..., *position)]
        y[(..., *position)] = data.reshape(data.shape[0], -1) @ weights


def convolve_transposed(
    x: Array, w: Array, strides: Sizes, padding: Sizes, dilation: Sizes, y: Array
) -> None:
    """Write a transposed convolution; weights are ``(C, O, *K)``."""
    kernel = w.shape[2:]
    half = len(kernel)
    if all(n == 1 for n in strides):
        reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
        before = [n - p for n, p in zip(reach, padding)]
        # What the padding of the output adds is behind.
        behind = [t - s + n - b for t, s, n, b in zip(y.shape[2:], x.shape[2:], reach, before)]
        flipped = w[(slice(None), slice(None), *[slice(None, None, -1)] * half)].swapaxes(0, 1)
        convolve(x, flipped, strides, [*before, *behind], dilation, 1, y)
        return
    weights = w.reshape(w.shape[0], -1).T
    sizes = [
        max(t + p, s * (n - 1) + d * (k - 1) + 1)
        for t, p, s, n, d, k in zip(y.shape[2:], padding, strides, x.shape[2:], dilation, kernel)
    ]
    total = np.empty((w.shape[1], *sizes), x.dtype)
    inside = tuple(slice(p, p + t) for p, t in zip(padding, y.shape[2:]))
    for data, result in zip(x, y):
        total[...] = 0
        terms = np.matmul(weights, data.reshape(len(data), -1))
        terms = terms.reshape(w.shape[1], *kernel, *data.shape[1:])
        for position in np.ndindex(*kernel):
            reached = tuple(
                slice(k * d, k * d + s * (n - 1) + 1, s)
                for k, d, s, n in zip(position, dilation, strides, data.shape[1:])
            )
            total[(slice(None), *reached)] += terms[(slice(None), *position)]
        result[...] = total[(slice(None), *inside)]
