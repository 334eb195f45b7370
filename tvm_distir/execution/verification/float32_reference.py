# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare 16-bit modules with a float32 reference, which has no 16-bit rounding.

A fixed tolerance fits no 16-bit model: its rounding may be 1e-3 or 1e-1 of its outputs,
whatever a single device or many run it. So a 16-bit model passes when both hold:

1. the twin of the *distributed* program equals the twin of the original at the float32
   tolerance: the distribution is right, seen without the noise of 16 bits;
2. the distributed program itself is about as near to the twin as a single device is: its root mean
   square error is at most :data:`RMS_FACTOR` times that of a single device, its largest error at
   most :data:`PEAK_FACTOR` times (a maximum scatters more than a mean). Where an output has few
   elements, a single device's error is taken over several draws of the inputs, and as what so few
   tell scatters, more is allowed (:func:`_scatter`). It is never taken as less than the
   rounding of the output itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_distir.execution.runtime.program.io_layout import np_dtype

from .compare import OutputReport, compare_output, peak, root_mean_square

Array = npt.NDArray[Any]

NARROW = ("float16", "bfloat16")
WIDE = "float32"
LEAST_ERROR = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The least error that a device's error counts as, relative to the size of the output: the unit
roundoff."""

LEAST_OTHER = 2.5e-5
"""The same for outputs of wider types, which may not pass through 16 bits at all: 1e-4 after
:data:`PEAK_FACTOR`, as in float32 models."""

RMS_FACTOR = 2.0
PEAK_FACTOR = 4.0
ENOUGH = 256
"""Elements of an output that show how large the error of a single device is."""


@mutator
class _WideConstants(PyExprMutator):  # type: ignore[misc,unused-ignore]
    """Converts the values of constants whose type was widened."""

    def visit_generic_const_(self, const: ir.GenericConst) -> Any:
        value = const.value
        if not isinstance(value, tvm.runtime.Tensor) or str(value.dtype) not in NARROW:
            return const
        return relax.const(value.numpy().astype(np_dtype(WIDE)), WIDE)


def _widened_node(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node of TVM's JSON form with the 16-bit types it names made wide."""
    data = node.get("data")
    if node["type"] in ("DataType", "ffi.String") and data in NARROW:
        return {**node, "data": WIDE}
    if isinstance(data, dict):
        wide = {k: WIDE if k.endswith("dtype") and v in NARROW else v for k, v in data.items()}
        return {**node, "data": wide}
    return node


def widened(mod: ir.IRModule) -> ir.IRModule:
    """Copy a module with ``float32`` in place of every 16-bit float type.

    Types, attributes, constants and the module's kernels are widened; a cast to 16 bits
    becomes one to ``float32``. The input is not changed.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1.
    """
    graph = json.loads(ir.save_json(mod))
    graph["nodes"] = [_widened_node(node) for node in graph["nodes"]]
    wide = ir.load_json(json.dumps(graph))
    functions = {
        gv: _WideConstants(wide).visit_expr(fn) if isinstance(fn, relax.Function) else fn
        for gv, fn in wide.functions.items()
    }
    return ir.IRModule(functions, attrs=wide.attrs, global_infos=wide.global_infos)


def widened_inputs(values: list[Array]) -> list[Array]:
    """Return the full inputs with 16-bit floats as ``float32``, which holds them exactly."""
    narrow = {np_dtype(name) for name in NARROW}
    return [a.astype(np_dtype(WIDE)) if a.dtype in narrow else a for a in values]


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Return whether an array's type is one of the 16-bit floats."""
    return dtype in {np_dtype(name) for name in NARROW}


@dataclass(frozen=True)
class OwnError:
    """The error of a single device against the reference, over all draws.

    Attributes
    ----------
    squares : float
        Sum of squared differences.
    elements : int
    peak : float
        Largest difference.
    """

    squares: float = 0.0
    elements: int = 0
    peak: float = 0.0

    def seen(self, got: Array, truth: Array) -> OwnError:
        """Add the errors of another draw."""
        diff = np.abs(got.astype(np.float64) - truth.astype(np.float64))
        largest = float(diff.max(initial=0.0))
        squares = float((diff * diff).sum())
        return OwnError(self.squares + squares, self.elements + diff.size, max(self.peak, largest))

    def rms(self) -> float:
        """Return the root of the mean squared difference."""
        return math.sqrt(self.squares / self.elements) if self.elements else 0.0


def own_errors(draws: Iterable[tuple[Sequence[Array], Sequence[Array]]]) -> list[OwnError]:
    """Return the rounding error of each output, from draws of at least :data:`ENOUGH` elements.

    Parameters
    ----------
    draws : iterable of (outputs of a single device, outputs of its twin)
    """
    errors: list[OwnError] = []
    for got, truth in draws:
        known = errors or [OwnError()] * len(got)
        errors = [e.seen(a, b) for e, a, b in zip(known, got, truth)]
        if all(e.elements >= ENOUGH for e in errors):
            break
    return errors


def _scatter(elements: int) -> float:
    """Return the factor by which an error of few elements may exceed another by chance.

    The ratio of two root mean squares of one and of five normal deviates is Student's t with five
    degrees of freedom: above 2 in a tenth of all cases, above 8 in 1 of 2,000.
    """
    return 1.0 if elements >= ENOUGH else 1.0 + 3.0 / math.sqrt(max(elements, 1))


def judge(
    got: Sequence[Array],
    ref: Sequence[Array],
    truth: Sequence[Array],
    errors: Sequence[OwnError],
) -> tuple[OutputReport, ...]:
    """Compare a distributed 16-bit run with the reference, relative to a single device.

    Parameters
    ----------
    got : sequence of arrays
        The outputs of the distributed program.
    ref, truth : sequences of arrays
        The outputs of a single device and of the float32 reference, on the same inputs.
    errors : sequence of OwnError

    Returns
    -------
    reports : tuple of OutputReport
        The reports. Outputs of other types than 16-bit floats are compared in the same way, but
        integers and bool exactly, and with a single device.
    """
    reports = []
    for i, (a, b, t, error) in enumerate(zip(got, ref, truth, errors)):
        if a.shape != b.shape or a.dtype != b.dtype or b.dtype.kind in "iub":
            reports.append(compare_output(i, a, b, False, 0.0, 0.0))
            continue
        u = LEAST_ERROR.get(b.dtype.name, LEAST_OTHER)
        atol = PEAK_FACTOR * max(error.peak * _scatter(error.elements), u * peak(t))
        rms = RMS_FACTOR * max(error.rms() * _scatter(a.size), u * root_mean_square(t))
        wide = np_dtype(WIDE)
        reports.append(
            compare_output(i, a.astype(wide), t.astype(wide), False, atol, 0.0, rms, b.dtype.name)
        )
    return tuple(reports)
