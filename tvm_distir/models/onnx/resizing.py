# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write Resize as weighted selections along each dim, in the type of the data.

TVM computes both the coordinates and the values of a Resize in float32. A resized dim reads one,
two or four elements of the operand (by mode: nearest, linear, cubic), whose positions and weights
depend on sizes alone:

Before::

    y = Resize(x, "", scales)                       # x: (n,), y: (m,), mode linear

After::

    y = Gather(x, below) * (1 - part) + Gather(x, above) * part      # below, above, part: (m,)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx

from .node_writer import NodeWriter

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Tap = tuple[Indices, Array]
"""The positions of a dim that each position of a result reads, and their weights."""


def _half_pixel(x: Array, scale: float, *_: int) -> Array:
    return np.asarray((x + 0.5) / scale - 0.5)


_COORDINATES: dict[str, Callable[[Array, float, int, int], Array]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": lambda x, s, n, m: n / 2 * (1 - m / (s * n)) + _half_pixel(x, s),
    "pytorch_half_pixel": lambda x, s, n, m: _half_pixel(x, s) if m > 1 else x * 0.0,
    "align_corners": lambda x, s, n, m: x * (n - 1) / (s * n - 1) if s * n != 1 else x * 0.0,
    "asymmetric": lambda x, s, n, m: x / s,
}
"""What the positions ``x`` of a result read, for a scale ``s`` from the size ``n`` to ``m``."""
_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _cubic(part: Array, a: float) -> list[Array]:
    """Return the weights of the elements -1, 0, 1 and 2 around a position (Keys 1981)."""

    def near(d: Array) -> Array:
        return np.asarray(((a + 2) * d - (a + 3)) * d * d + 1)

    def far(d: Array) -> Array:
        return np.asarray(((a * d - 5 * a) * d + 8 * a) * d - 4 * a)

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


def _taps(attributes: Mapping[str, str | float], n: int, m: int, scale: float) -> list[Tap]:
    """Return which of n elements each of m positions reads, with weights."""
    coordinates = _COORDINATES[str(attributes["coordinate_transformation_mode"])]
    x = coordinates(np.arange(m, dtype="float64"), scale, n, m)
    if attributes["mode"] == "nearest":
        rounded = _ROUNDING[str(attributes["nearest_mode"])](x)
        return [(np.clip(rounded, 0, n - 1).astype("int64"), np.ones(m))]
    below = np.floor(x)
    part = x - below
    first, weights = 0, [1 - part, part]
    if attributes["mode"] == "cubic":
        first, weights = -1, _cubic(part, float(attributes["cubic_coeff_a"]))
    return [
        (np.clip(below + first + i, 0, n - 1).astype("int64"), weight)
        for i, weight in enumerate(weights)
        if weight.any()
    ]


def resized(
    node: onnx.NodeProto,
    attributes: Mapping[str, str | float],
    shape: Sequence[int],
    result: Sequence[int],
    scales: Sequence[float],
    dtype: npt.DTypeLike,
) -> list[onnx.NodeProto] | None:
    """Return the nodes that replace a Resize, or None if it is no weighted selection.

    Parameters
    ----------
    node : NodeProto
    attributes : mapping
        ``mode``, ``coordinate_transformation_mode``, ``nearest_mode``, ``cubic_coeff_a``.
    shape, result : sequence of int
        The shapes of the operand and the result.
    scales : sequence of float
        The scale of each dim.
    dtype : dtype
        The dtype of the operand.
    """
    if attributes["coordinate_transformation_mode"] not in _COORDINATES:
        return None
    writer = NodeWriter(node)
    value = node.input[0]
    for dim, (n, m, scale) in enumerate(zip(shape, result, scales, strict=True)):
        if n == m and scale == 1:
            continue
        terms = []
        for indices, weight in _taps(attributes, n, m, scale):
            term = writer.add("Gather", value, writer.constant(indices, "int64"), axis=dim)
            if not (weight == 1).all():
                stretched = weight.reshape([m] + [1] * (len(shape) - dim - 1))
                term = writer.add("Mul", term, writer.constant(stretched, dtype))
            terms.append(term)
        value = terms[0]
        for term in terms[1:]:
            value = writer.add("Add", value, term)
    return writer.finish("Identity", [value])
