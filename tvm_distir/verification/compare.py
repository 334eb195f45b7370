# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Comparison of outputs with a reference, its tolerances and its report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax

from ..errors import MismatchError
from ..ir import flat_types, tensor_type
from .counts import CollectiveCount
from .layout import same_bits

Array = npt.NDArray[Any]

SCHEMA_VERSION = 1
_CHUNK = 1 << 18

TOLERANCES: dict[str, tuple[float, float]] = {
    "float64": (1e-10, 1e-12),
    "float32": (1e-4, 1e-5),
    "float16": (2e-2, 5e-3),
    "bfloat16": (8e-2, 2e-2),
}
"""Default (rtol, scale of atol) by the coarsest float type a model computes in.

Distributing a contraction sums its terms in another order, and every rank rounds its partial
sum. The error of a sum is proportional to its terms, not to its result, which may cancel: so
``atol`` is the scale times the largest magnitude of the output. With unit roundoff u (1.1e-16,
6e-8, 4.9e-4, 3.9e-3), reordering a sum of K terms moves it by about sqrt(K) u; the bounds allow
for some thousand terms and a few tens of layers in float64 and float32. In the 16-bit types each
partial sum is also stored rounded, a few u per layer. A missing or doubled collective moves a
result by about its own size: 5 times the loosest bound and more.
"""


def coarsest_float(mod: ir.IRModule) -> str:
    """Coarsest float type among the parameters and bindings of a module ("float32" if none)."""
    order = list(TOLERANCES)
    worst = -1
    for fn in mod.functions.values():
        if not isinstance(fn, relax.Function) or not isinstance(fn.body, relax.SeqExpr):
            continue
        variables = [*fn.params, *(b.var for block in fn.body.blocks for b in block.bindings)]
        for leaf in (leaf for v in variables for leaf in flat_types(v.ty)):
            tensor = tensor_type(leaf)
            name = str(tensor.dtype) if tensor is not None else ""
            worst = max(worst, order.index(name) if name in order else -1)
    return order[worst] if worst >= 0 else "float32"


@dataclass(frozen=True)
class OutputReport:
    """Comparison of one output.

    Attributes
    ----------
    index : int
        Position in the flattened results.
    shape : tuple of int
    dtype : str
    equal : bool
        ``|a - ref| <= atol + rtol |ref|`` everywhere; bit for bit in exact mode; always exactly
        for integers and bool.
    max_abs_diff, max_rel_diff : float
        Largest ``|a - ref|``, and that over the largest ``|ref|``: element by element, a sum
        that cancels to almost nothing would make any rounding look like an error.
        Infinite where a holds a NaN or an infinity that the reference does not.
    atol, rtol : float
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    equal: bool
    max_abs_diff: float
    max_rel_diff: float
    atol: float
    rtol: float


@dataclass(frozen=True)
class VerifyReport:
    """Outcome of :func:`tvm_distir.runtime.verify`.

    Attributes
    ----------
    equal : bool
        Whether every output is.
    max_abs_diff, max_rel_diff, atol, rtol : float
        Largest over the outputs.
    engine : str
    seed : int
    exact : bool
    outputs : tuple of OutputReport
    collectives : tuple of CollectiveCount
        What one run executed; empty where the engine does not count.
    """

    equal: bool
    max_abs_diff: float
    max_rel_diff: float
    atol: float
    rtol: float
    engine: str
    seed: int
    exact: bool
    outputs: tuple[OutputReport, ...]
    collectives: tuple[CollectiveCount, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, with ``schema_version``; infinite differences are None."""
        return {"schema_version": SCHEMA_VERSION, **_finite(asdict(self))}

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def check(self) -> VerifyReport:
        """Return the report itself, or raise MismatchError (DIST0690) when it is not equal."""
        if self.equal:
            return self
        wrong = [o for o in self.outputs if not o.equal]
        first = wrong[0]
        raise MismatchError(
            "DIST0690",
            f"{len(wrong)} of {len(self.outputs)} outputs differ; output {first.index} by up to "
            f"{first.max_abs_diff:.3g} (allowed: {first.atol:.3g} + {first.rtol:.3g} |ref|)",
            place=f"output {first.index}",
            remedy="Run it with exact=True to tell rounding from a wrong result.",
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _chunks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Pieces of arrays of one shape in float64, small enough for a cache."""
    flat = [a.reshape(-1) for a in arrays]
    for i in range(0, flat[0].size, _CHUNK):
        yield tuple(a[i : i + _CHUNK].astype(np.float64) for a in flat)


def peak(array: Array) -> float:
    """Largest magnitude, 0 for an empty array."""
    return max((float(np.abs(a).max()) for (a,) in _chunks(array)), default=0.0)


def not_finite(array: Array) -> int:
    """How many elements are NaN or infinite."""
    return sum(int((~np.isfinite(a)).sum()) for (a,) in _chunks(array))


def compare_output(
    index: int, got: Array, ref: Array, exact: bool, atol: float, rtol: float
) -> OutputReport:
    """Compare one output; integers and bool are always compared exactly."""
    same_type = got.shape == ref.shape and got.dtype == ref.dtype
    report = OutputReport(
        index, tuple(ref.shape), ref.dtype.name, False, math.inf, math.inf, atol, rtol
    )
    if not same_type:
        return report
    if exact or ref.dtype.kind in "iub":
        report = replace(report, atol=0.0, rtol=0.0)
    close, worst, largest_ref = True, 0.0, 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for a, b in _chunks(got, ref):
            diff, size = np.abs(a - b), np.abs(b)
            diff[np.isnan(diff)] = np.inf
            close = close and bool(np.all(diff <= report.atol + report.rtol * size))
            worst = max(worst, float(diff.max()))
            largest_ref = max(largest_ref, float(size.max()))
    return replace(
        report,
        equal=same_bits(got, ref) if exact else close,
        max_abs_diff=worst,
        max_rel_diff=worst / largest_ref if largest_ref else (math.inf if worst else 0.0),
    )


def compare_outputs(
    got: Sequence[Array],
    ref: Sequence[Array],
    dtype: str,
    exact: bool,
    atol: float | None,
    rtol: float | None,
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
        Instead of the defaults.
    """
    default_rtol, scale = TOLERANCES[dtype]
    out = []
    for i, (a, b) in enumerate(zip(got, ref)):
        allowed = scale * peak(b) if atol is None else atol
        out.append(compare_output(i, a, b, exact, allowed, default_rtol if rtol is None else rtol))
    return tuple(out)


def largest(values: Iterable[float]) -> float:
    """Largest value, 0 where there is none."""
    return max(values, default=0.0)
