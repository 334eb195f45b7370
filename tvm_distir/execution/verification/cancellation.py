# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Judge outputs that are sums of canceling terms by the size of the terms.

The gradient of the bias of keys is such a sum: attention does not change when all keys move by the
same vector, so the gradient is zero, and the result of any program is rounding error only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import ir, relax

from tvm_distir.core.rewriting import called_name
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.transforms import InlinePrivateFunctions

from .compare import TOLERANCES, OutputReport, compare_output, peak
from .instrumented import TracedProgram

_SUMS = ("relax.sum",)
_VIEWS = tuple(
    f"relax.{name}" for name in ("astype", "expand_dims", "permute_dims", "reshape", "squeeze")
)


def with_terms(
    reports: Sequence[OutputReport],
    plain: ir.IRModule,
    values: Sequence[Array],
    got: Sequence[Array],
    ref: Sequence[Array],
) -> tuple[OutputReport, ...]:
    """Judge outputs that differ once more, where they are sums, by their largest term.

    An error of a sum is proportional to its terms: where these cancel, to more than its result.

    Parameters
    ----------
    reports : sequence of OutputReport
        The reports by the default tolerances.
    plain : IRModule
        The original, at level 1.
    values : sequence of arrays
        The inputs of the module.
    got, ref : sequences of arrays
        Outputs of the distributed program, and of the original.
    """
    wrong = [r.index for r in reports if not r.equal and np.isfinite(r.max_abs_diff)]
    if not wrong:
        return tuple(reports)
    traced = TracedProgram.of(InlinePrivateFunctions()(plain))
    terms = {i: leaf_terms for i in wrong if (leaf_terms := _terms(traced, i))}
    if not terms:
        return tuple(reports)
    leaves = [(number, ()) for term in terms.values() for number in term]
    sizes = iter([peak(array) for array in Reference(traced.returning(leaves)).run(values)])
    judged = list(reports)
    for i, leaf_terms in terms.items():
        largest = max(next(sizes) for _ in leaf_terms)
        report = reports[i]
        scale = TOLERANCES[report.dtype][1] if report.dtype in TOLERANCES else 0.0
        atol = max(report.atol, scale * largest)
        judged[i] = compare_output(i, got[i], ref[i], False, atol, report.rtol)
    return tuple(judged)


def _terms(traced: TracedProgram, index: int) -> list[int]:
    """Return the steps whose values an output sums; none where it is no sum."""
    numbers = {step.var: number for number, step in enumerate(traced.steps)}
    result = traced.mod[traced.entry].body.body
    if result in numbers and isinstance(traced.steps[numbers[result]].value, relax.Tuple):
        result = traced.steps[numbers[result]].value
    if isinstance(result, relax.Tuple):
        if index >= len(result.fields):
            return []
        result = result.fields[index]
    terms: list[int] = []
    while result in numbers:
        value = traced.steps[numbers[result]].value
        if isinstance(value, relax.Var):
            result = value
            continue
        name = called_name(value) if isinstance(value, ir.Call) else ""
        if name not in (*_SUMS, *_VIEWS):
            break
        result = value.args[0]
        if name in _SUMS and result in numbers:
            terms.append(numbers[result])
    return terms
