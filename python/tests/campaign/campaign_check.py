# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One case the whole way: every pass with its invariants, run, and compared."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

import tvm_distir as td
from tests.campaign import campaign_modules, campaign_plans
from tests.planning.search.systems import QUICK
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
from tvm_distir.execution.verification.float32_reference import widened, widened_inputs
from tvm_distir.support.errors.tree import DistIRError
from tvm_distir.transforms.optimize.passes import OptimizeCollectives

RTOLS = {"float16": 3e-2, "bfloat16": 2e-1}
RTOL = 1e-3
"""Inexact outputs: relative to the largest magnitude of the output too, and at least to 1.
Those of 16-bit types are compared sharply in the float32 twins of both programs."""

THREADS_EVERY = 20
"""Every so many seeds run on the engine of threads as well."""

CAREFUL_EVERY = 10
"""Every so many seeds are checked carefully (see :func:`check`)."""

COMPLETE_EVERY = 8
"""Of so many seeds one plan is completed, every other of these by a system's times."""

QUICK_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
"""The kernels are small: compiling them is what takes time."""

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
        What their floats are drawn from: a key of :data:`campaign_modules.FLOATS`.
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
        return Case(created.mod, plan, created.exact, seed, values or SIGNS[seed % len(SIGNS)])


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
    """

    kind: str
    stage: str = ""
    what: str = ""
    message: str = ""

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
        return _check(case, threads, careful)


def _check(case: Case, threads: bool, careful: bool) -> Outcome:
    inputs = campaign_modules.inputs_of(case.mod, case.seed, case.values)
    try:
        expected = Reference(case.mod).run(inputs)
    except Exception as error:
        return Outcome("unusable", "reference", type(error).__name__, _short(error))
    nans = case.values == "nan"
    if not nans and any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in expected):
        return Outcome("unusable", "reference", "not finite")
    if [a.dtype for a in expected] != _declared(case.mod):
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
        wide, truth = _truth(case, inputs)
        local = _own_errors(expected, truth)
        outcome = compare(stage, engine.run(mod, inputs), expected, case.exact, local)
        if outcome.kind != "ok":
            return outcome
        stage = "claims"
        unlike = differences(claimed_collectives(td.export(mod)), engine.collectives)
        if unlike:
            return Outcome("WRONG", stage, "collectives", "; ".join(unlike)[:300])
        if truth:
            stage = "twin"
            outcome = compare(stage, engine.run(widened(mod), wide), truth, case.exact)
            if outcome.kind != "ok":
                return outcome
        if threads:
            stage = "threads"
            got = td.run(mod, inputs, engine="threads")
            return compare(stage, got, expected, case.exact, local)
        return outcome
    except Failed as error:
        return Outcome("INVARIANT", error.stage, error.what, _short(error))
    except DistIRError as error:
        kind = "refused" if stage in ("plan", "annotate", "propagate") else "RAW"
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


def _truth(case: Case, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Inputs and results of the float32 twin where outputs are narrow, else nothing."""
    if not _is_narrow(case):
        return (), ()
    wide = widened_inputs(inputs)
    return wide, Reference(widened(case.mod)).run(wide)


def _own_errors(expected: Sequence[Any], truth: Sequence[Any]) -> list[float]:
    """How far each result of one device is from the truth, where that is known.

    A long sum in bfloat16 stops growing: what is then twice as large on two devices is better.
    """
    pairs = zip(expected, truth)
    return [_largest(a.astype("float64") - b.astype("float64"), 0.0) for a, b in pairs]


def _largest(values: Any, least: float) -> float:
    """The largest finite magnitude, at least the given one."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=least))


def _is_narrow(case: Case) -> bool:
    """Whether an output is only as good as 16 bits are: then the float32 twins are run too."""
    types = flat_types(case.mod["main"].ret_ty)
    return any(str(t.dtype) in RTOLS and not exact for t, exact in zip(types, case.exact))


def _declared(mod: ir.IRModule) -> list[np.dtype[Any]]:
    return [np_dtype(str(ty.dtype)) for ty in flat_types(mod["main"].ret_ty)]


def compare(
    stage: str,
    got: Sequence[Any],
    expected: Sequence[Any],
    exact: Sequence[bool],
    own_errors: Sequence[float] = (),
) -> Outcome:
    """Bit for bit where sums are exact, else by :data:`RTOL` and the original's own error.

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
        largest = _largest(ref, 1.0)
        rtol = RTOLS.get(b.dtype.name, RTOL)
        local = own_errors[i] if own_errors else 0.0
        close = np.allclose(wide, ref, rtol=rtol, atol=rtol * largest + local, equal_nan=True)
        if bits or not close:
            label = "rounding" if close else "value"
            return Outcome("WRONG", stage, label, f"output {i}: {apart:g} apart, of {largest:g}")
    return Outcome("ok")


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[-1][:300] if not isinstance(error, DistIRError) else str(error)[:300]
