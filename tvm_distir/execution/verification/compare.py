# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare arrays with a reference, within tolerances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir import flat_types, tensor_type
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.runtime.program.tensors import Array

_CHUNK = 1 << 18

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Float types, finest first."""

TOLERANCES: dict[str, tuple[float, float]] = {"float64": (1e-10, 1e-12), "float32": (1e-4, 1e-5)}
"""Default (rtol, scale of atol) by the coarsest float type a model computes in.

Distributing a contraction sums its terms in another order, and every rank rounds its partial
sum. The error of a sum is proportional to its terms, not to its result, which may cancel: so
``atol`` is the scale times the largest magnitude of the output. With unit roundoff u (1.1e-16,
6e-8), reordering a sum of K terms moves it by about sqrt(K) u; the bounds allow for some
thousand terms and a few tens of layers. A missing or doubled collective moves a result by about
its size: 5,000 times the loosest bound and more. No such bound is both safe and sharp for
narrower types, see :mod:`.rounding`.
"""

CODES_BY_ROUNDING = 2e-3
"""Share of codes of quantized numbers, or two of them, that may be next to those of the reference:
codes of numbers that are in the middle between two values but for rounding."""


def coarsest_float(mod: ir.IRModule) -> str:
    """Return the coarsest float type of a module's parameters and bindings ("float32" if none)."""
    worst = -1
    for fn in mod.functions.values():
        if not isinstance(fn, relax.Function) or not isinstance(fn.body, relax.SeqExpr):
            continue
        variables = [*fn.params, *(b.var for block in fn.body.blocks for b in block.bindings)]
        for leaf in (leaf for v in variables for leaf in flat_types(v.ty)):
            tensor = tensor_type(leaf)
            name = str(tensor.dtype) if tensor is not None else ""
            worst = max(worst, FLOATS.index(name) if name in FLOATS else -1)
    return FLOATS[worst] if worst >= 0 else "float32"


@dataclass(frozen=True)
class OutputReport:
    """The comparison of an output.

    Attributes
    ----------
    index : int
        Position in the flattened results.
    shape : tuple of int
    dtype : str
    equal : bool
        ``|a - ref| <= atol + rtol |ref|`` everywhere; bit for bit in exact mode; always exactly
        for integers and bool, but for :data:`CODES_BY_ROUNDING`.
    max_abs_diff, max_rel_diff : float
        Largest ``|a - ref|``, and that over the largest ``|ref|``: element by element, a sum
        that cancels to almost nothing would make any rounding look like an error.
        Infinite where a holds a NaN or an infinity that the reference does not.
    atol, rtol : float
    rms_diff : float
        Root of the mean squared difference.
    rms_allowed : float
        The tolerance of ``rms_diff``; infinite where only single elements are bounded.
    distribution : str
        The distribution of the data, where it is not that of the whole report.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    equal: bool
    max_abs_diff: float
    max_rel_diff: float
    atol: float
    rtol: float
    rms_diff: float = 0.0
    rms_allowed: float = math.inf
    distribution: str = ""


def _chunks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield the pieces of arrays of the same shape in float64, small enough for a cache."""
    flat = [a.reshape(-1) for a in arrays]
    for i in range(0, flat[0].size, _CHUNK):
        yield tuple(a[i : i + _CHUNK].astype(np.float64) for a in flat)


def peak(array: Array) -> float:
    """Return the largest magnitude, 0 for an empty array."""
    return max((float(np.abs(a).max()) for (a,) in _chunks(array)), default=0.0)


def root_mean_square(array: Array) -> float:
    """Return the root of the mean square, 0 for an empty array."""
    squares = sum(float((a * a).sum()) for (a,) in _chunks(array))
    return math.sqrt(squares / array.size) if array.size else 0.0


def not_finite(array: Array) -> int:
    """Return how many elements are NaN or infinite."""
    return sum(int((~np.isfinite(a)).sum()) for (a,) in _chunks(array))


def compare_output(
    index: int,
    got: Array,
    ref: Array,
    exact: bool,
    atol: float,
    rtol: float,
    rms_allowed: float = math.inf,
    dtype: str = "",
) -> OutputReport:
    """Compare an output; integers and bool are always compared exactly.

    Parameters
    ----------
    index : int
    got, ref : arrays
    exact : bool
        Demand equal bits.
    atol, rtol, rms_allowed : float
        See :class:`OutputReport`.
    dtype : str, optional
        The dtype to report instead of the reference's dtype.
    """
    same_type = got.shape == ref.shape and got.dtype == ref.dtype
    report = OutputReport(
        index,
        tuple(ref.shape),
        dtype or ref.dtype.name,
        False,
        math.inf,
        math.inf,
        atol,
        rtol,
        math.inf,
        rms_allowed,
    )
    if not same_type:
        return report
    if exact or ref.dtype.kind in "iub":
        report = replace(report, atol=0.0, rtol=0.0, rms_allowed=math.inf)
    close, worst, largest_ref, squares = True, 0.0, 0.0, 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for a, b in _chunks(got, ref):
            diff, size = np.abs(a - b), np.abs(b)
            diff[np.isnan(diff)] = np.inf
            close = close and bool(np.all(diff <= report.atol + report.rtol * size))
            worst = max(worst, float(diff.max()))
            squares += float((diff * diff).sum())
            largest_ref = max(largest_ref, float(size.max()))
    rms = math.sqrt(squares / ref.size) if ref.size else 0.0
    return replace(
        report,
        equal=same_bits(got, ref) if exact else close and rms <= report.rms_allowed,
        rms_diff=rms,
        max_abs_diff=worst,
        max_rel_diff=worst / largest_ref if largest_ref else (math.inf if worst else 0.0),
    )


def _compare_codes(index: int, got: Array, ref: Array) -> OutputReport:
    """Compare codes of quantized numbers, of which few are decided by rounding."""
    report = compare_output(index, got, ref, False, 0.0, 0.0)
    changed = report.rms_diff**2 * ref.size
    if report.max_abs_diff > 1 or changed > max(2.0, CODES_BY_ROUNDING * ref.size):
        return report
    return replace(report, equal=True, atol=1.0)


def compare_outputs(
    got: Sequence[Array],
    ref: Sequence[Array],
    dtype: str,
    exact: bool,
    atol: float | None,
    rtol: float | None,
    codes: bool = False,
) -> tuple[OutputReport, ...]:
    """Compare all outputs.

    Parameters
    ----------
    got, ref : sequences of arrays
    dtype : str
        The coarsest float type of the model: chooses the defaults of :data:`TOLERANCES`.
    exact : bool
        Demand equal bits.
    atol, rtol : float, optional
        Instead of the defaults; narrower types have none but 0.
    codes : bool
        Outputs of uint8 are codes of quantized numbers.
    """
    default_rtol, scale = TOLERANCES.get(dtype, (0.0, 0.0))
    out = []
    for i, (a, b) in enumerate(zip(got, ref)):
        if codes and not exact and b.dtype == np.uint8:
            out.append(_compare_codes(i, a, b))
            continue
        allowed = scale * peak(b) if atol is None else atol
        out.append(compare_output(i, a, b, exact, allowed, default_rtol if rtol is None else rtol))
    return tuple(out)


def largest(values: Iterable[float]) -> float:
    """Return the largest value, 0 where there is none."""
    return max(values, default=0.0)
