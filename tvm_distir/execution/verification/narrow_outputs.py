# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Judge the outputs of a program of narrow float types, over samples of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import ir

from tvm_distir.core.ir import flat_types, tensor_type
from tvm_distir.core.rewriting import entry_of
from tvm_distir.execution.runtime.program.tensors import Array

from .compare import OutputReport
from .float32_reference import Float32Reference
from .input_samples import DRAWS, InputSample, RandomInputs
from .random_inputs import POSITIVE
from .rounding import RoundingBound, judge, rounding_errors

SAMPLES = 3
"""The number of samples in all of which an output must differ. A decision (the largest of several
values, the experts of a token) may fall otherwise by rounding: rarely in a single sample, and
hardly ever in each of them. An error of a kernel is in all of them."""


@dataclass(frozen=True)
class NarrowProgram:
    """A distributed program of narrow types, and what it is compared with.

    Attributes
    ----------
    reference : Float32Reference
    bound : RoundingBound
    run : callable
        Runs the distributed program on full inputs, and returns the full outputs.
    seed : int
    """

    reference: Float32Reference
    bound: RoundingBound
    run: Callable[[list[Array]], Sequence[Array]]
    seed: int

    def judged(
        self, sample: InputSample, truth: list[Array], got: Sequence[Array], is_fixed: bool
    ) -> tuple[tuple[OutputReport, ...], list[Array]]:
        """Judge the outputs on a sample, and on others where some differ.

        Parameters
        ----------
        sample : InputSample
        truth : list of arrays
            The outputs of the reference for this sample.
        got : sequence of arrays
            The outputs of the program for it.
        is_fixed : bool
            Whether the inputs are given, so that there is no other sample.

        Returns
        -------
        reports : tuple of OutputReport
            Of the first sample for which all outputs are equal, else of the last.
        values : list of arrays
            The inputs of that sample.
        """
        dtypes = declared_types(self.reference.mod)
        values, rounded = sample.values, sample.expected
        for number in range(1, SAMPLES + 1):
            errors = rounding_errors(self._pairs(sample.draws, rounded, truth))
            reports = judge(got, truth, errors, self.bound, dtypes)
            if is_fixed or number == SAMPLES or all(report.equal for report in reports):
                break
            values = sample.draws.draw(self.seed + DRAWS + number)
            rounded, truth = self.reference.run(values), self.reference.truth(values)
            got = self.run(values)
        return reports, values

    def judged_positive(self) -> tuple[tuple[OutputReport, ...], list[Array]]:
        """Judge the outputs for positive data and weights; no reports where they overflow."""
        draws = RandomInputs(self.reference.mod, False, {}, POSITIVE)
        values = draws.draw(self.seed)
        expected = self.reference.run(values)
        if not all(np.isfinite(a).all() for a in expected if a.dtype.kind == "f"):
            return (), values
        sample = InputSample(draws, values, expected)
        return self.judged(sample, self.reference.truth(values), self.run(values), False)

    def _pairs(
        self, draws: RandomInputs, rounded: Sequence[Array], truth: Sequence[Array]
    ) -> Iterator[tuple[Sequence[Array], Sequence[Array]]]:
        yield rounded, truth
        for other in range(1, DRAWS + 1):
            values = draws.draw(self.seed + other)
            yield self.reference.run(values), self.reference.truth(values)


def declared_types(mod: ir.IRModule) -> list[str]:
    """Return the dtype of each tensor among the results of an entry; ``int64`` of an object."""
    types = [tensor_type(leaf) for leaf in flat_types(mod[entry_of(mod)].ret_ty)]
    return ["int64" if ty is None else str(ty.dtype) for ty in types]


def worse(
    reports: Sequence[OutputReport], positive: Sequence[OutputReport]
) -> tuple[OutputReport, ...]:
    """Return per output the report that uses more of its tolerance, named by its data."""

    def used(report: OutputReport) -> tuple[bool, float]:
        shares = (report.rms_diff, report.rms_allowed), (report.max_abs_diff, report.atol)
        return not report.equal, max(diff / most if most else 0.0 for diff, most in shares)

    named = (replace(report, distribution=POSITIVE) for report in positive)
    return tuple(max(pair, key=used) for pair in zip(reports, named)) or tuple(reports)
