# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bound what rounding may change in a program of narrow float types.

The difference of a right program from its float32 reference has three causes:

1. Each result of an op is rounded to its type, of unit roundoff u (2^-8 in bfloat16, 2^-11 in
   float16), and the ops that follow magnify or damp this. No formula of types and shapes says by
   how much: :class:`.float32_reference.Float32Reference` measures it, by rounding the result of
   each op once. Let E be this error, as a root mean square and as a maximum.
2. A real device rounds more often: kernels have up to :data:`STEPS` elementwise steps, and a
   reduction over p devices rounds p - 1 sums of rounded terms. Roundings are of either sign, so r
   of them are about sqrt(r) times as large as one (Higham and Mary, A New Approach to Probabilistic
   Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4: the constant n of the
   worst case is sqrt(n) with high probability). Here r = STEPS + p.
3. Sums are accumulated in float32, of unit roundoff u32 = 2^-24: the error of n operations is
   about sqrt(n) u32, below u unless n exceeds 2^26 (Blanchard, Higham, Lopez, Mary and Pranesh,
   Mixed Precision Block Fused Multiply-Add, SIAM J. Sci. Comput. 42(3), 2020: u + n u32 in the
   worst case, where accumulation in the narrow type has n u).

So the root mean square of the differences may be ``RMS_FACTOR sqrt(r)`` times, and the largest
difference ``PEAK_FACTOR sqrt(r)`` times, the larger of E and max(u, sqrt(n) u32) times the size of
the output. Accumulation in the narrow type has the error sqrt(n / 2) u, so it exceeds the bound
where sums have more than about 4.5 r terms, and much earlier where all terms have the same sign.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from tvm import ir

from tvm_distir.core.ir import flat_types, known_shape, relax_functions
from tvm_distir.core.ops import work_of
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import PropagationError

from .compare import OutputReport, compare_output, peak, root_mean_square
from .float32_reference import NARROW, widened_inputs

STEPS = 4
RMS_FACTOR = 1.5
PEAK_FACTOR = 2.0
ENOUGH = 256
"""Elements of an output that show how large the error of rounding is."""

LEAST_OTHER = 2.5e-5
"""The least error, relative to the size of the output, of outputs of types of 32 and 64 bits: 1e-4
after the factors, as in float32 models."""


def unit_roundoff(dtype: str) -> float:
    """Return the largest relative error of rounding to the nearest number of a type."""
    limits: Any = ml_dtypes.finfo(np_dtype(dtype))  # type: ignore[no-untyped-call,unused-ignore]
    return float(limits.eps) / 2


def most_operations(mod: ir.IRModule) -> int:
    """Return the most operations per element of a result, over the calls of a module.

    Of a product over K, these are 2 K. Ops without a rule, which devices run whole, are left out.
    """
    most = 1
    for _, fn in relax_functions(mod):
        for binding in all_bindings(fn.body):
            call = binding.value
            if not isinstance(call, ir.Call) or not isinstance(call.op, ir.Op):
                continue
            shapes = [known_shape(leaf) for leaf in flat_types(call.ty)]
            sizes = [math.prod(shape) for shape in shapes if shape is not None]
            with suppress(PropagationError):
                most = max(most, math.ceil(work_of(call, mod).flops / max(sizes, default=1)))
    return most


@dataclass(frozen=True)
class RoundingError:
    """The error of rounding of an output, over all draws.

    Attributes
    ----------
    squares : float
        Sum of squared differences; of integers and bool, the number of elements that differ.
    elements : int
    peak : float
        Largest difference.
    """

    squares: float = 0.0
    elements: int = 0
    peak: float = 0.0

    def seen(self, rounded: Array, truth: Array) -> RoundingError:
        """Add the errors of another draw."""
        diff = _differences(rounded, truth)
        largest = float(diff.max(initial=0.0))
        squares = float((diff * diff).sum())
        total = self.elements + diff.size
        return RoundingError(self.squares + squares, total, max(self.peak, largest))

    def rms(self) -> float:
        """Return the root of the mean squared difference."""
        return math.sqrt(self.squares / self.elements) if self.elements else 0.0


def _differences(a: Array, b: Array) -> Array:
    if b.dtype.kind in "iub":
        return np.asarray(a != b, np.float64)
    return np.abs(a.astype(np.float64) - b.astype(np.float64))


def rounding_errors(
    draws: Iterable[tuple[Sequence[Array], Sequence[Array]]],
) -> list[RoundingError]:
    """Return the rounding error of each output, from draws of at least :data:`ENOUGH` elements.

    Parameters
    ----------
    draws : iterable of (outputs of the rounded reference, outputs of the reference)
    """
    errors: list[RoundingError] = []
    for rounded, truth in draws:
        known = errors or [RoundingError()] * len(truth)
        errors = [e.seen(a, b) for e, a, b in zip(known, rounded, truth)]
        if all(e.elements >= ENOUGH for e in errors):
            break
    return errors


def _scatter(elements: int) -> float:
    """Return the factor by which an error of few elements may exceed another by chance.

    The ratio of two root mean squares of one and of five normal deviates is Student's t with five
    degrees of freedom: above 2 in a tenth of all cases, above 8 in 1 of 2,000.
    """
    return 1.0 if elements >= ENOUGH else 1.0 + 3.0 / math.sqrt(max(elements, 1))


@dataclass(frozen=True)
class RoundingBound:
    """The terms of the tolerance of a program with narrow float types, see :mod:`.rounding`.

    Attributes
    ----------
    dtype : str
        The coarsest type of the program.
    unit_roundoff : float
        Its u.
    operations : int
        The most operations per element of a result, n.
    roundings : int
        The number of roundings that a step may have where the rounded reference has one, r.
    """

    dtype: str
    unit_roundoff: float
    operations: int
    roundings: int

    @staticmethod
    def of(mod: ir.IRModule, dtype: str, ranks: int) -> RoundingBound:
        """Return the terms for an original and the ranks of its largest reduction."""
        return RoundingBound(dtype, unit_roundoff(dtype), most_operations(mod), STEPS + ranks)

    def allowed(self, error: RoundingError, truth: Array, dtype: str) -> tuple[float, float]:
        """Return the largest difference and the root mean square allowed of an output.

        Parameters
        ----------
        error : RoundingError
        truth : array
            The output of the reference.
        dtype : str
            The type of the output in the program.
        """
        least = unit_roundoff(dtype) if dtype in NARROW else LEAST_OTHER
        least = max(least, math.sqrt(self.operations) * 2.0**-24)
        factor = math.sqrt(self.roundings)
        largest = max(error.peak * _scatter(error.elements), least * peak(truth))
        rms = max(error.rms() * _scatter(truth.size), least * root_mean_square(truth))
        return PEAK_FACTOR * factor * largest, RMS_FACTOR * factor * rms

    def text(self) -> str:
        """Return how the tolerance was found, in words."""
        return (
            f"Differences are from the original in float32. The tolerance is {RMS_FACTOR:g} "
            f"sqrt(r) times (root mean square) and {PEAK_FACTOR:g} sqrt(r) times (maximum) the "
            f"error of rounding each value to its type once, r = {self.roundings} roundings; "
            f"{self.dtype} has the unit roundoff {self.unit_roundoff:.2g}, and sums of up to "
            f"{self.operations} operations are taken to be accumulated in float32."
        )


def judge(
    got: Sequence[Array],
    truth: Sequence[Array],
    errors: Sequence[RoundingError],
    bound: RoundingBound,
    dtypes: Sequence[str],
) -> tuple[OutputReport, ...]:
    """Compare a run of a program with narrow types with the float32 reference.

    Parameters
    ----------
    got : sequence of arrays
        The outputs of the distributed program.
    truth : sequence of arrays
        The outputs of the reference, on the same inputs.
    errors : sequence of RoundingError
    bound : RoundingBound
    dtypes : sequence of str
        The types that the original declares.

    Returns
    -------
    reports : tuple of OutputReport
        The reports. Of integers and bool, as many elements may differ as are decided otherwise by
        rounding: none where the rounded reference decides all as the reference does.
    """
    reports = []
    for i, (a, t, error, dtype) in enumerate(zip(got, truth, errors, dtypes)):
        if a.dtype != np_dtype(dtype) or a.shape != t.shape:
            reports.append(compare_output(i, a, t.astype(np_dtype(dtype)), True, 0.0, 0.0))
        elif t.dtype.kind in "iub":
            reports.append(_judge_decisions(i, a, t, error, bound))
        else:
            (wide,) = widened_inputs([a])
            atol, rms = bound.allowed(error, t, dtype)
            reports.append(compare_output(i, wide, t, False, atol, 0.0, rms, dtype))
    return tuple(reports)


def _judge_decisions(
    index: int, got: Array, truth: Array, error: RoundingError, bound: RoundingBound
) -> OutputReport:
    """Compare integers; the share that rounding decides is in proportion to its size."""
    report = compare_output(index, got, truth, True, 0.0, 0.0)
    if report.equal or not error.squares:
        return report
    rms = math.sqrt(float((got != truth).mean()))
    allowed = math.sqrt(PEAK_FACTOR * math.sqrt(bound.roundings)) * error.rms()
    return replace(report, equal=rms <= allowed, rms_diff=rms, rms_allowed=allowed)
