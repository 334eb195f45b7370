# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare the outputs of a run with those of the original."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir

from tvm_distir.core.ir import named_leaves
from tvm_distir.core.plan import PlanLike
from tvm_distir.core.rewriting import entry_of
from tvm_distir.execution.runtime.engines.base import Engine
from tvm_distir.execution.runtime.program.counts import CollectiveCount
from tvm_distir.execution.runtime.program.inputs import flatten_tuples, leaves_by_name
from tvm_distir.execution.runtime.program.sharded import ShardedArray
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import DistIRError, EngineError, ModelError, nearest
from tvm_distir.transforms import is_training_step

from .bisect import Bisection, Fault, first_difference
from .cancellation import with_terms
from .collective_counts import ExpectedCollective, differences
from .compare import OutputReport, coarsest_float, compare_outputs, largest
from .float32_reference import WIDE, Float32Reference, widened, widened_inputs
from .input_samples import InputSample, Original, refuse_constant_outputs
from .narrow_outputs import NarrowProgram, worse
from .placeholders import as_array, with_device_objects
from .report import VerifyReport
from .rounding import RoundingBound


def ordered_inputs(mod: ir.IRModule, inputs: Sequence[Any] | Mapping[str, Any]) -> list[Array]:
    """Return given inputs in the order of the parameters (ModelError DIST0340 for others)."""
    if isinstance(inputs, Mapping):
        params = mod[entry_of(mod)].params
        names = [name for p in params for name, _ in named_leaves(str(p.name), p.ty)]
        values_by_name = {known: value for _, known, value in leaves_by_name(inputs, names)}
        absent = [name for name in names if name not in values_by_name]
        if absent:
            raise ModelError(
                "DIST0340",
                f"there is no input for {', '.join(absent)}",
                location=f"{entry_of(mod)}/{absent[0]}",
                remedy="Give an array for each parameter, or remove the inputs.",
            )
        for unknown in (name for name in values_by_name if name not in names):
            problem = f'there is no parameter "{unknown}" to give an input for'
            remedy = nearest(unknown, names)
            raise ModelError("DIST0340", problem, location=entry_of(mod), remedy=remedy)
        return [np.asarray(values_by_name[name]) for name in names]
    return [np.asarray(value) for value in flatten_tuples(inputs)]


def compared_run(
    engine: Engine,
    dist: ir.IRModule,
    reference: Original,
    samples: Iterable[InputSample],
    seed: int,
) -> tuple[InputSample, list[Array], str]:
    """Run the first sample whose outputs vary; return it, the outputs, and a text on replicas.

    Raises
    ------
    EngineError
        DIST0621 where there is no such sample, DIST0603 where the outputs are not as many as those
        of the original.
    """
    refused: EngineError | None = None
    for sample in samples:
        with ThreadPoolExecutor(1) as other_core:
            # TVM's kernels run without the interpreter's lock: two runs at a time.
            varied = other_core.submit(refuse_constant_outputs, reference, sample, seed)
            try:
                got, replicas = _full_outputs(engine, dist, sample.values)
            finally:
                # A comparison that proves nothing is refused first, whatever the run did.
                constant = varied.exception()
        if constant is None:
            if len(got) != len(sample.expected):
                problem = f"{len(got)} outputs, the original has {len(sample.expected)}"
                remedy = "Report it: this is a bug of the lowering."
                entry = entry_of(reference.mod)
                raise EngineError("DIST0603", problem, location=entry, remedy=remedy)
            return sample, got, replicas
        if not isinstance(constant, EngineError):
            raise constant
        refused = refused or constant
    raise refused or ValueError("there is no sample")


def _full_outputs(
    engine: Engine, dist: ir.IRModule, values: Sequence[Array]
) -> tuple[list[Array], str]:
    """Return the full outputs, and a text on ranks that hold different bits of an output."""
    inputs = with_device_objects(dist, values)
    try:
        return list(map(as_array, engine.run(dist, inputs))), ""
    except EngineError as error:
        if error.code != "DIST0604":
            raise
        parts = map(as_array, engine.run(dist, inputs, "sharded"))
        outputs = [part.whole() if isinstance(part, ShardedArray) else part for part in parts]
        return outputs, f"{error.location}: {error.what}"


@dataclass(frozen=True)
class RunComparison:
    """The reports of all outputs, those in float32, and the inputs that show a difference."""

    outputs: tuple[OutputReport, ...]
    values: list[Array]
    float32: tuple[OutputReport, ...] = ()
    positive: bool = False

    def equal(self) -> bool:
        """Return whether no output differs."""
        return all(output.equal for output in self.outputs) and not self.differs_wide()

    def differs_wide(self) -> bool:
        """Return whether an output differs in float32."""
        return not all(output.equal for output in self.float32)


_REDUCING = ("all_reduce", "reduce_scatter")


def counts(engine: Engine) -> bool:
    """Return whether an engine counts the collectives that it executes."""
    return bool(getattr(engine, "counting", True))


@dataclass(frozen=True)
class VerifiedRun:
    """A run of a distributed program on a sample, with what its outputs are compared with.

    Attributes
    ----------
    engine : Engine
    plain, dist : IRModule
        The original and the distributed program.
    reference : Original
    sample : InputSample
    got : list of array
        The outputs.
    claims : tuple of ExpectedCollective
    ran : tuple of CollectiveCount
        The collectives that it executed.
    tolerance : (float or None, float or None)
        ``atol`` and ``rtol``.
    exact : bool
    seed : int
    fixed : list of array, optional
        The inputs, where they are not drawn.
    """

    engine: Engine
    plain: ir.IRModule
    dist: ir.IRModule
    reference: Original
    sample: InputSample
    got: list[Array]
    claims: tuple[ExpectedCollective, ...]
    ran: tuple[CollectiveCount, ...]
    tolerance: tuple[float | None, float | None]
    exact: bool
    seed: int
    fixed: list[Array] | None = None

    @functools.cached_property
    def bound(self) -> RoundingBound | None:
        """Return the bound of rounding, of a program of narrow types."""
        if not isinstance(self.reference, Float32Reference):
            return None
        ranks = max((c.group_size for c in self.claims if c.kind in _REDUCING), default=1)
        return RoundingBound.of(self.plain, coarsest_float(self.plain), ranks)

    def compared(self) -> RunComparison:
        """Compare the outputs."""
        values, expected, got = self.sample.values, self.sample.expected, self.got
        (atol, rtol), dtype = self.tolerance, coarsest_float(self.plain)
        if not isinstance(self.reference, Float32Reference) or self.bound is None:
            codes = is_training_step(self.plain)
            outputs = compare_outputs(got, expected, dtype, self.exact, atol, rtol, codes)
            if not self.exact and atol is None:
                outputs = with_terms(outputs, self.plain, values, got, expected)
            return RunComparison(outputs, values)
        if atol is None and rtol is None:
            return self._compared_narrow(self.reference, self.bound)
        wide, truth = widened_inputs(got), self.reference.truth(values)
        return RunComparison(compare_outputs(wide, truth, dtype, False, atol, rtol), values)

    def _compared_narrow(self, reference: Float32Reference, bound: RoundingBound) -> RunComparison:
        """Compare a program of narrow types with the original in float32, by :mod:`.rounding`."""
        sample, fixed = self.sample, self.fixed
        wide, _ = _full_outputs(self.engine, widened(self.dist), widened_inputs(sample.values))
        truth = reference.truth(sample.values)
        codes = is_training_step(self.plain)
        float32 = compare_outputs(wide, truth, WIDE, False, None, None, codes)
        if not all(output.equal for output in float32):
            fixed = sample.values  # which show the difference

        def run(values: list[Array]) -> list[Array]:
            return _full_outputs(self.engine, self.dist, values)[0]

        program = NarrowProgram(reference, bound, run, self.seed)
        outputs, values = program.judged(sample, truth, self.got, fixed is not None)
        positive: tuple[OutputReport, ...] = ()
        if fixed is None and all(output.equal for output in outputs):
            positive, sampled = program.judged_positive()
            outputs = worse(outputs, positive)
            values = values if all(output.equal for output in outputs) else sampled
        return RunComparison(outputs, values, float32, bool(positive))

    def located(
        self, mod: ir.IRModule, plan: PlanLike, compared: RunComparison
    ) -> tuple[Fault | None, str]:
        """Return the first binding that differs, or why none can be named."""
        rounding = None if compared.differs_wide() else self.bound
        wide_too = self.bound is not None and rounding is None
        search = Bisection(
            mod, self.plain, plan, self.engine, compared.values, wide_too, self.exact, rounding
        )
        try:
            fault = first_difference(search)
        except DistIRError as error:
            # The difference must be told all the same.
            return None, f"the search for the first binding that differs stopped: {error}"
        if fault is None:
            return None, "no value differs if it is returned: an optimization is the cause"
        return fault, ""

    def report(
        self,
        compared: RunComparison,
        equal: bool,
        replicas: str,
        fault: Fault | None,
        no_fault: str,
    ) -> VerifyReport:
        """Return the report of the run."""
        outputs, collectives = compared.outputs, self.ran
        return VerifyReport(
            equal=equal,
            max_abs_diff=largest(o.max_abs_diff for o in outputs),
            max_rel_diff=largest(o.max_rel_diff for o in outputs),
            atol=largest(o.atol for o in outputs),
            rtol=largest(o.rtol for o in outputs),
            engine=self.engine.name,
            seed=self.seed,
            exact=self.exact,
            distribution=self.sample.draws.distribution,
            outputs=outputs,
            collectives=collectives,
            float32_outputs=compared.float32,
            rounding=self.bound if compared.float32 else None,
            positive=compared.positive,
            claims=self.claims,
            unlike_claims=differences(self.claims, collectives) if counts(self.engine) else (),
            replicas=replicas,
            fault=fault,
            no_fault=no_fault,
        )
