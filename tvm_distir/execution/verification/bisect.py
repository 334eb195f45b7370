# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the first binding whose value differs from the single-device result.

Both programs are run again with some values returned: the original, and the distributed module
at level 3, where every value has the name it has in the original and a distinct meaning, then
lowered as always. The stretch in which the first difference lies shrinks by :data:`PROBES` with
each pair of runs. When it is a call, the called function's body takes the call's place on both
sides, and the search goes on inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir

from tvm_distir.core.passes import (
    AnnotateSharding,
    LegalizeRedistribute,
    LowerDistIR,
    PropagateSharding,
)
from tvm_distir.core.rewriting import op_name, variables
from tvm_distir.execution.runtime.engines.base import Engine
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.program.sharded import ShardedArray, read_part
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.transforms import OptimizeCollectives

from .compare import TOLERANCES, compare_output, peak
from .float32_reference import Float32Reference, widened, widened_inputs
from .instrumented import TracedProgram, callee_name
from .narrow_outputs import declared_types
from .pairing import ValuePair, pairs_of
from .placeholders import with_device_objects
from .rounding import RoundingBound, RoundingError

PROBES = 12
"""Values returned by a pair of runs."""

MOST_CALLS = 8
"""Nested calls that have been opened."""


@dataclass(frozen=True)
class Fault:
    """The first binding that differs although all its operands agree.

    Attributes
    ----------
    function, binding, op : str
        The place, as in the distributed module at level 3.
    rank : int
        The rank whose part differs most.
    max_abs_diff : float
    allowed : float
        The tolerance of the largest element, which bounds that of the element that differs most.
    """

    function: str
    binding: str
    op: str
    rank: int
    max_abs_diff: float
    allowed: float

    def location(self) -> str:
        """Return ``function/binding (op)``."""
        return f"{self.function}/{self.binding} ({self.op})"

    def text(self) -> str:
        """Return the fault in words."""
        return (
            f"the first value that differs is {self.location()}, on rank {self.rank} by up to "
            f"{self.max_abs_diff:.3g} (allowed: {self.allowed:.3g})"
        )


@dataclass(frozen=True)
class Bisection:
    """The inputs of a bisection.

    Attributes
    ----------
    mod, plain : IRModule
        The original with and without annotations.
    plan : Plan
    engine : Engine
    values : list of arrays
        Whole inputs.
    wide : bool
        Compare both programs in float32.
    exact : bool
        Demand equal bits.
    bound : RoundingBound, optional
        Compare the distributed program in its narrow types with the original in float32.
    """

    mod: ir.IRModule
    plain: ir.IRModule
    plan: Any
    engine: Engine
    values: list[Array]
    wide: bool
    exact: bool
    bound: RoundingBound | None = None


@dataclass(frozen=True)
class _Differs:
    rank: int
    max_abs_diff: float
    allowed: float


class _ModulePair:
    """The original and the distributed module, side by side."""

    def __init__(
        self, search: Bisection, original: TracedProgram, distributed: TracedProgram
    ) -> None:
        self.search, self.original, self.distributed = search, original, distributed
        self.pairs = pairs_of(original, distributed)

    def opened(self, number: int) -> _ModulePair | None:
        """Inline the call at a step of the distributed module; returns None where that fails."""
        pair = next((p for p in self.pairs if p.leaf[0] == number), None)
        if pair is None or not self.distributed.can_open(number):
            return None
        callee = pair.original[0]
        if not self.original.can_open(callee):
            return None
        return _ModulePair(
            self.search, self.original.opened(callee), self.distributed.opened(number)
        )

    def differing(self, pairs: Sequence[ValuePair]) -> list[_Differs | None]:
        """Run both modules for these values; returns the difference of each."""
        wide = self.search.wide
        plain = self.original.returning([p.original for p in pairs])
        values = widened_inputs(self.search.values) if wide else self.search.values
        expected, allowed = self._expected(plain, values)
        lowered = _lowered(self.distributed.returning([p.leaf for p in pairs]))
        inputs = with_device_objects(lowered, values)
        got = self.search.engine.run(widened(lowered) if wide else lowered, inputs, "sharded")
        return [self._difference(a, b, *most) for a, b, most in zip(got, expected, allowed)]

    def _expected(
        self, plain: ir.IRModule, values: list[Array]
    ) -> tuple[list[Array], list[tuple[float, float]]]:
        """Return the values of the original, and the maximum and the rms allowed of each."""
        if self.search.bound is None:
            expected = Reference(widened(plain) if self.search.wide else plain).run(values)
            return expected, [(_tolerance(ref)[1] * peak(ref), math.inf) for ref in expected]
        reference = Float32Reference(plain)
        truth, rounded = reference.truth(values), reference.run(values)
        bounds = [
            self.search.bound.allowed(RoundingError().seen(a, t), t, dtype)
            for a, t, dtype in zip(rounded, truth, declared_types(plain))
        ]
        return truth, bounds

    def _difference(
        self, got: ShardedArray, ref: Array, most: float, rms: float
    ) -> _Differs | None:
        rtol = 0.0 if self.search.bound else _tolerance(ref)[0]
        worst: _Differs | None = None
        for rank in sorted(got.parts):
            box = got.boxes[rank]
            part = read_part(got.parts[rank])[tuple(slice(0, b - a) for a, b in box)]
            if self.search.bound:
                (part,) = widened_inputs([part])
            mine = ref[tuple(slice(a, b) for a, b in box)]
            comparison = compare_output(0, part, mine, self.search.exact, most, rtol, rms)
            if comparison.equal or (worst and worst.max_abs_diff >= comparison.max_abs_diff):
                continue
            allowed = comparison.atol + comparison.rtol * peak(mine)
            worst = _Differs(rank, comparison.max_abs_diff, allowed)
        return worst


def _tolerance(ref: Array) -> tuple[float, float]:
    return TOLERANCES.get(ref.dtype.name, TOLERANCES["float32"])


def _lowered(mod: ir.IRModule) -> ir.IRModule:
    for run_pass in (LegalizeRedistribute(), OptimizeCollectives(), LowerDistIR()):
        mod = run_pass(mod)
    return mod


def _spread(count: int) -> list[int]:
    """Return up to :data:`PROBES` positions of ``count``, the last included."""
    probes = min(PROBES, count)
    return sorted({(i + 1) * count // probes - 1 for i in range(probes)})


def _first(both: _ModulePair, pairs: Sequence[ValuePair]) -> tuple[ValuePair, _Differs] | None:
    """Return the first differing value; None when the last values of the search do not differ."""
    result: tuple[ValuePair, _Differs] | None = None
    while pairs:
        spread = _spread(len(pairs))
        differing = both.differing([pairs[i] for i in spread])
        hit = next((k for k, difference in enumerate(differing) if difference is not None), None)
        if hit is None:
            # What follows the last probe is known already; what precedes it is right.
            return result
        difference = differing[hit]
        if difference is not None:
            result = pairs[spread[hit]], difference
        pairs = pairs[spread[hit - 1] + 1 if hit else 0 : spread[hit]]
    return result


def _operands(both: _ModulePair, pair: ValuePair) -> list[ValuePair]:
    """Return the values that the binding of a value reads, aliases resolved."""
    read = set(variables(both.distributed.steps[pair.leaf[0]].value))
    numbers = {i for i, s in enumerate(both.distributed.steps) if s.var in read}
    return [p for p in both.pairs if p.leaf[0] in numbers]


def _culprit(both: _ModulePair, pair: ValuePair, how: _Differs) -> tuple[ValuePair, _Differs]:
    """Return the earliest differing value among those that a value reads, directly or not."""
    while True:
        earlier = _first_of(both, _operands(both, pair))
        if earlier is None:
            return pair, how
        pair, how = earlier


def _first_of(both: _ModulePair, pairs: Sequence[ValuePair]) -> tuple[ValuePair, _Differs] | None:
    if not pairs:
        return None
    return next(((p, d) for p, d in zip(pairs, both.differing(pairs)) if d is not None), None)


def first_difference(search: Bisection) -> Fault | None:
    """Find the first binding that differs although its operands agree.

    Returns
    -------
    fault : Fault or None
        None when no value differs once it is returned: an optimisation that returning it turns
        off is at fault then.

    Raises
    ------
    DistIRError
        What distributing or running raises.
    """
    level_3 = PropagateSharding(complete=search.plan.complete)(
        AnnotateSharding(search.plan)(search.mod)
    )
    both = _ModulePair(search, TracedProgram.of(search.plain), TracedProgram.of(level_3))
    fault: Fault | None = None
    pairs: Sequence[ValuePair] = both.pairs
    for _ in range(MOST_CALLS):
        first = _first(both, pairs)
        if first is None:
            return fault
        pair, how = _culprit(both, *first)
        number = pair.leaf[0]
        step = both.distributed.steps[number]
        fault = _fault(both, number, how)
        before = len(both.distributed.steps)
        inner = both.opened(number) if callee_name(step.value) else None
        if inner is None:
            return fault
        end = number + len(inner.distributed.steps) - before
        both = inner
        pairs = [p for p in both.pairs if number <= p.leaf[0] < end]
    return fault


def _fault(both: _ModulePair, number: int, how: _Differs) -> Fault:
    step = both.distributed.steps[number]
    op, name = op_name(step.value), str(step.var.name)
    return Fault(step.function, name, op, how.rank, how.max_abs_diff, how.allowed)
