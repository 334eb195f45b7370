# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One case the whole way: every pass with its invariants, run, and compared."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

import tvm_distir as td
from tests.campaign import campaign_modules, campaign_plans
from tests.planning.search.systems import QUICK
from tests.quick_compilation import QUICK_TARGET
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.types import flat_types
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.verification.collective_counts import claimed_collectives, differences
from tvm_distir.execution.verification.compare import OutputReport
from tvm_distir.execution.verification.float32_reference import (
    Float32Reference,
    widened,
    widened_inputs,
)
from tvm_distir.execution.verification.rounding import (
    RoundingBound,
    RoundingError,
    judge,
    unit_roundoff,
)
from tvm_distir.support.errors.tree import DistIRError, EngineError
from tvm_distir.transforms.axis_orders.passes import OrderAxes
from tvm_distir.transforms.optimize.passes import OptimizeCollectives

RTOL = 1e-3
"""Inexact outputs: relative to the largest magnitude of the output too, and at least to 1.
Those of 16-bit programs are compared with float64, by the tolerance of ``verify``."""

THREADS_EVERY = 20
"""Every so many seeds run on the engine of threads as well."""

CAREFUL_EVERY = 10
"""Every so many seeds are checked carefully (see :func:`check`)."""

COMPLETE_EVERY = 8
"""Of so many seeds one plan is completed, every other of these by a system's times."""

NARROW_VALUES = ("scaled", "mixed", "scaled positive", "positive")
"""The same for programs of 16-bit types (see :data:`campaign_modules.SCALED`)."""

SAMPLES = 3
"""The number of inputs for which a 16-bit program of scaled values must be wrong: a decision that
falls otherwise by rounding is no fault, and does so rarely."""

SIGNS = ("mixed", "positive", "mixed", "negative")
"""What the floats of seeds are drawn from, in turn (see :data:`campaign_modules.FLOATS`)."""

BAD = ("WRONG", "RAW", "INVARIANT", "HANG", "CRASH")
"""Outcomes that are bugs. Refusals (DIST...) may be."""


@dataclass(frozen=True)
class Case:
    """A module, its plan in JSON form, the results that must be bit-equal, and the inputs.

    Attributes
    ----------
    seed : int
        Of the inputs.
    values : str
        What their floats are drawn from: a key of :data:`campaign_modules.FLOATS`, or one of
        :data:`campaign_modules.SCALED`, for which no result is bit-equal.
    """

    mod: ir.IRModule
    plan: dict[str, Any]
    exact: tuple[bool, ...]
    seed: int
    values: str = "mixed"

    @staticmethod
    def of_seed(seed: int, values: str = "") -> Case:
        """The case of a seed, with values as given or its own; some plans are completed."""
        created = campaign_modules.sample(seed)
        plan = campaign_plans.plan_dict(seed, created.mod)
        if seed % COMPLETE_EVERY == COMPLETE_EVERY - 1:
            plan["complete"] = True
        is_narrow = campaign_modules.float_type(created.mod) in campaign_modules.NARROW
        signs = NARROW_VALUES if is_narrow else SIGNS
        return Case(created.mod, plan, created.exact, seed, values or signs[seed % len(signs)])

    @property
    def dtype(self) -> str:
        """The float type of the module."""
        return campaign_modules.float_type(self.mod)

    @property
    def scaled(self) -> bool:
        """Whether the floats of the inputs are no integers."""
        return self.values in campaign_modules.SCALED


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes
    ----------
    kind : str
        ``ok``, ``refused``, ``unusable`` (the original itself does not run or gives NaN), or one
        of :data:`BAD`.
    stage : str
        The pass, engine or comparison.
    what : str
        Error code or class: cases with equal kind, stage and ``what`` fail alike.
    message : str
    dtype, values : str
        The float type of the module, and what its floats were drawn from.
    """

    kind: str
    stage: str = ""
    what: str = ""
    message: str = ""
    dtype: str = ""
    values: str = ""

    @property
    def bad(self) -> bool:
        """Whether it is a bug for certain."""
        return self.kind in BAD

    @property
    def key(self) -> tuple[str, str, str]:
        """What must stay the same while a case is shrunk."""
        return self.kind, self.stage, self.what

    def as_dict(self) -> dict[str, str]:
        """JSON form."""
        return asdict(self)


class Failed(Exception):
    """An invariant does not hold."""

    def __init__(self, stage: str, label: str, message: str) -> None:
        super().__init__(message)
        self.stage, self.what = stage, label


def _invariants(
    name: str, before: tuple[Any, str], after: ir.IRModule, level: int, careful: bool
) -> str:
    """Hold what every pass promises; give back the text of the result."""
    source, text = before
    if source.script(show_meta=True) != text:
        raise Failed(name, "input changed", "the pass changed its input")
    relax.analysis.well_formed(after)
    check_level(after, level)
    printed = after.script(show_meta=True)
    if not careful:
        return str(printed)
    try:
        again = tvm.script.from_source(printed)
    except Exception as error:
        raise Failed(name, "no parse", f"the text does not parse: {error}") from error
    if not tvm_ffi.structural_equal(again, after):
        raise Failed(name, "other module", "the text parses to another module")
    return str(printed)


def _stages(plan: Plan, seed: int) -> tuple[tuple[str, Any, int], ...]:
    by_times = plan.complete and len(plan.meshes) == 1 and seed // COMPLETE_EVERY % 2
    system = QUICK if by_times else None
    return (
        ("annotate", AnnotateSharding(plan), 2),
        ("propagate", PropagateSharding(complete=plan.complete, system=system), 3),
        ("order", OrderAxes(), 3),
        ("legalize", LegalizeRedistribute(), 4),
        ("optimize", OptimizeCollectives(), 4),
        ("lower", LowerDistIR(), 5),
    )


def check(case: Case, threads: bool = False, careful: bool = True) -> Outcome:
    """Run a case; nothing is raised.

    Parameters
    ----------
    case : Case
    threads : bool
        On the engine of threads too.
    careful : bool
        Parse every level's text back, which takes half of the time, and let kernels check the
        shapes of what they are given.
    """
    quick = tvm.transform.PassContext(
        config={"tirx.disable_assert": not careful},
        disabled_pass=[] if careful else ["tvm_distir.OrderLoops"],
    )
    with QUICK_TARGET, quick:
        outcome = _check(case, threads, careful)
        for number in range(1, SAMPLES):
            if outcome.kind != "WRONG" or not case.scaled:
                break
            other = _check(replace(case, seed=case.seed + (number << 20)), threads, False)
            outcome = outcome if other.kind == "unusable" else other
    return replace(outcome, dtype=case.dtype, values=case.values)


def _check(case: Case, threads: bool, careful: bool) -> Outcome:
    inputs = campaign_modules.inputs_of(case.mod, case.seed, case.values)
    try:
        original = Original(case, inputs)
    except Exception as error:
        return Outcome("unusable", "reference", type(error).__name__, _short(error))
    if case.values != "nan" and not original.finite():
        return Outcome("unusable", "reference", "not finite")
    if original.types != _declared(case.mod):
        return Outcome("unusable", "reference", "other types than declared")
    stage = "plan"
    try:
        mod, text = case.mod, str(case.mod.script(show_meta=True))
        for stage, run_pass, level in _stages(Plan.from_dict(case.plan), case.seed):
            after = run_pass(mod)
            text = _invariants(stage, (mod, text), after, level, careful)
            mod = after
        stage = "virtual"
        engine = VirtualEngine()
        got = engine.run(mod, inputs)
        claims = claimed_collectives(td.export(mod))
        unlike = differences(claims, engine.collectives)
        if unlike:
            return Outcome("WRONG", "claims", "collectives", "; ".join(unlike)[:300])
        ranks = max((c.group_size for c in claims if "reduce" in c.kind), default=1)
        outcome = original.compared(stage, got, ranks)
        if outcome.kind == "ok" and original.narrow:
            stage = "float32"
            outcome = original.compared_wide(stage, engine.run(widened(mod), original.wide))
        if outcome.kind == "ok" and threads:
            stage = "threads"
            outcome = original.compared(stage, td.run(mod, inputs, engine="threads"), ranks)
        return outcome
    except Failed as error:
        return Outcome("INVARIANT", error.stage, error.what, _short(error))
    except DistIRError as error:
        kind = "refused" if stage in ("plan", "annotate", "propagate", "order") else "RAW"
        if error.code.startswith(("DIST01", "DIST09")) or error.code in ("DIST0451", "DIST0452"):
            kind = "RAW"
        return Outcome(kind, stage, error.code, _short(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        ours = [
            f"{f.filename.rsplit('/', 1)[-1]}:{f.name}" for f in where if "tvm_distir" in f.filename
        ]
        label = type(error).__name__ + (f" in {ours[-1]}" if ours else "")
        return Outcome("RAW", stage, label, _short(error))


class Original:
    """The results of a module: on one device, and of 16-bit types in float64.

    Attributes
    ----------
    expected : list of arrays
        Of 16-bit types in float64, or float32 where TVM has no kernel of float64.
    narrow : bool
    wide : list of arrays
        The inputs in float32.
    """

    def __init__(self, case: Case, inputs: Sequence[Any]) -> None:
        self.case = case
        self.narrow = case.dtype in campaign_modules.NARROW
        if not self.narrow:
            self.expected = Reference(case.mod).run(inputs)
            self.types = [a.dtype for a in self.expected]
            return
        reference = Float32Reference(case.mod)
        self.wide, self.types = widened_inputs(inputs), _declared(case.mod)
        try:
            double = Reference(widened(case.mod, "float64"))
            truth = double.run(widened_inputs(inputs, "float64"))
        except EngineError:
            truth = reference.truth(inputs)
        self.expected = [a.astype("float32") if a.dtype == np.float64 else a for a in truth]
        self.rounded = reference.run(inputs)
        self.errors = [RoundingError().seen(a, t) for a, t in zip(self.rounded, self.expected)]

    def finite(self) -> bool:
        """Whether the results are numbers, rounded ones too."""
        results = [*self.expected, *(self.rounded if self.narrow else ())]
        return all(np.isfinite(a).all() for a in results if a.dtype.kind == "f")

    def compared(self, stage: str, got: Sequence[Any], ranks: int) -> Outcome:
        """Compare a run; of 16-bit types by the tolerance of ``verify``, exact results by bits."""
        exact = [bits and not self.case.scaled for bits in self.case.exact]
        if not self.narrow or len(got) != len(self.expected):
            return compare(stage, got, self.expected, exact)
        bound = RoundingBound.of(self.case.mod, self.case.dtype, ranks)
        dtypes = [dtype.name for dtype in self.types]
        reports = judge(got, self.expected, self.errors, bound, dtypes)
        for report, bits, a, t in zip(reports, exact, got, self.expected):
            if not report.equal or (bits and not np.array_equal(a.astype(t.dtype), t)):
                return Outcome("WRONG", stage, "value", _difference(report))
        return Outcome("ok")

    def compared_wide(self, stage: str, got: Sequence[Any]) -> Outcome:
        """Compare a run of a 16-bit program in float32, whose error is 2^13 times smaller."""
        exact = [bits and not self.case.scaled for bits in self.case.exact]
        ratio = 2.0**-16 / unit_roundoff(self.case.dtype)
        errors = [error.peak * ratio for error in self.errors]
        return compare(stage, got, self.expected, exact, errors, 0.0 if self.case.scaled else 1.0)


def _difference(report: OutputReport) -> str:
    return (
        f"output {report.index} ({report.dtype}): {report.max_abs_diff:g} apart of "
        f"{report.atol:g}, rms {report.rms_diff:g} of {report.rms_allowed:g}"
    )


def _largest(values: Any, least: float) -> float:
    """The largest finite magnitude, at least the given one."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=least))


def _declared(mod: ir.IRModule) -> list[np.dtype[Any]]:
    return [np_dtype(str(ty.dtype)) for ty in flat_types(mod["main"].ret_ty)]


def compare(
    stage: str,
    got: Sequence[Any],
    expected: Sequence[Any],
    exact: Sequence[bool],
    errors: Sequence[float] = (),
    least: float = 1.0,
) -> Outcome:
    """Bit for bit where sums are exact, else by :data:`RTOL` and the errors that are given.

    ``least`` is the least size that an output counts as.

    A NaN is equal to a NaN.
    """
    if len(got) != len(expected):
        return Outcome("WRONG", stage, "count", f"{len(got)} outputs instead of {len(expected)}")
    for i, (a, b, bits) in enumerate(zip(got, expected, exact)):
        if a.shape != b.shape or a.dtype != b.dtype:
            message = f"output {i}: {a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
            return Outcome("WRONG", stage, "type", message)
        wide, ref = a.astype("float64"), b.astype("float64")
        if bits and np.array_equal(wide, ref, equal_nan=True):
            continue
        apart = _largest(wide - ref, 0.0)
        largest = _largest(ref, least)
        local = errors[i] if errors else 0.0
        close = np.allclose(wide, ref, rtol=RTOL, atol=RTOL * largest + local, equal_nan=True)
        if bits or not close:
            label = "rounding" if close else "value"
            return Outcome("WRONG", stage, label, f"output {i}: {apart:g} apart, of {largest:g}")
    return Outcome("ok")


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[-1][:300] if not isinstance(error, DistIRError) else str(error)[:300]
