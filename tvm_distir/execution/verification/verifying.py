# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the distributed program and the original on the same input, and compare."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir

from tvm_distir.core.analysis import check_well_formed
from tvm_distir.core.ir import check_module, named_leaves
from tvm_distir.core.plan import Pipeline, PlanLike, as_plan
from tvm_distir.core.rewriting import bind_dims, entry_of, keep_entry
from tvm_distir.execution.runtime.engines.base import Engine
from tvm_distir.execution.runtime.engines.reference import Reference, strip_annotations
from tvm_distir.execution.runtime.engines.registry import engine as make_engine
from tvm_distir.execution.runtime.program.inputs import flatten_tuples, leaves_by_name
from tvm_distir.execution.runtime.program.sharded import ShardedArray
from tvm_distir.performance import export
from tvm_distir.support import DistIRError, EngineError, ModelError, nearest
from tvm_distir.transforms import ExpandSchedule, RunInTurn

from .bisect import Bisection, Fault, first_difference
from .cancellation import with_terms
from .collective_counts import claimed_collectives, differences
from .compare import OutputReport, coarsest_float, compare_outputs, largest
from .float32_reference import NARROW, WIDE, Float32Reference, widened, widened_inputs
from .input_samples import (
    InputSample,
    Original,
    RandomInputs,
    file_weights,
    finite_samples,
    refuse_constant_outputs,
    refuse_unwritten_results,
)
from .narrow_outputs import NarrowProgram, worse
from .placeholders import as_array, refuse_used_objects, with_device_objects
from .random_inputs import DISTRIBUTIONS
from .report import VerifyReport
from .rounding import RoundingBound

Array = npt.NDArray[Any]


def _ordered(mod: ir.IRModule, drawn: Sequence[Any] | Mapping[str, Any]) -> list[Array]:
    if isinstance(drawn, Mapping):
        params = mod[entry_of(mod)].params
        names = [name for p in params for name, _ in named_leaves(str(p.name), p.ty)]
        values_by_name = {known: value for _, known, value in leaves_by_name(drawn, names)}
        absent = [name for name in names if name not in values_by_name]
        if absent:
            raise ModelError(
                "DIST0340",
                f"there is no input for {', '.join(absent)}",
                place=f"{entry_of(mod)}/{absent[0]}",
                remedy="Give an array for each parameter, or remove the inputs.",
            )
        for unknown in (name for name in values_by_name if name not in names):
            raise ModelError(
                "DIST0340",
                f'there is no parameter "{unknown}" to give an input for',
                place=entry_of(mod),
                remedy=nearest(unknown, names),
            )
        return [np.asarray(values_by_name[name]) for name in names]
    return [np.asarray(value) for value in flatten_tuples(drawn)]


def _compared_run(
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
        DIST0621 where there is no such sample.
    """
    refused: EngineError | None = None
    for sample in samples:
        with ThreadPoolExecutor(1) as other_core:
            # TVM's kernels run without the interpreter's lock: two runs at a time.
            varied = other_core.submit(refuse_constant_outputs, reference, sample, seed)
            try:
                got, replicas = _run_whole(engine, dist, sample.values)
            finally:
                # A comparison that proves nothing is refused first, whatever the run did.
                constant = varied.exception()
        if constant is None:
            return sample, got, replicas
        if not isinstance(constant, EngineError):
            raise constant
        refused = refused or constant
    raise refused or ValueError("there is no sample")


def _run_whole(engine: Engine, dist: ir.IRModule, values: Sequence[Array]) -> tuple[Any, str]:
    """Return the full outputs, and a text on ranks that hold different bits of an output."""
    inputs = with_device_objects(dist, values)
    try:
        return list(map(as_array, engine.run(dist, inputs))), ""
    except EngineError as error:
        if error.code != "DIST0604":
            raise
        parts = map(as_array, engine.run(dist, inputs, "sharded"))
        outputs = [part.whole() if isinstance(part, ShardedArray) else part for part in parts]
        return outputs, f"{error.place}: {error.what}"


@dataclass(frozen=True)
class _Comparison:
    """The reports of all outputs, those in float32, and the inputs that show a difference."""

    outputs: tuple[OutputReport, ...]
    values: list[Array]
    float32: tuple[OutputReport, ...] = ()
    positive: bool = False

    def equal(self) -> bool:
        return all(output.equal for output in self.outputs) and not self.differs_wide()

    def differs_wide(self) -> bool:
        return not all(output.equal for output in self.float32)


def _compare_narrow(
    run: Callable[[ir.IRModule, list[Array]], tuple[list[Array], str]],
    dist: ir.IRModule,
    reference: Float32Reference,
    sample: InputSample,
    got: Sequence[Array],
    bound: RoundingBound,
    seed: int,
    fixed: Any,
) -> _Comparison:
    """Compare a program of narrow types with the original in float32, by :mod:`.rounding`."""
    wide, _ = run(widened(dist), widened_inputs(sample.values))
    truth = reference.truth(sample.values)
    float32 = compare_outputs(wide, truth, WIDE, False, None, None)
    if not all(output.equal for output in float32):
        fixed = sample.values  # which show the difference
    program = NarrowProgram(reference, bound, lambda values: run(dist, values)[0], seed)
    outputs, values = program.judged(sample, truth, got, fixed is not None)
    positive: tuple[OutputReport, ...] = ()
    if fixed is None and all(output.equal for output in outputs):
        positive, drawn = program.judged_positive()
        outputs = worse(outputs, positive)
        values = values if all(output.equal for output in outputs) else drawn
    return _Comparison(outputs, values, float32, bool(positive))


_REDUCING = ("all_reduce", "reduce_scatter")


def counts(engine: Engine) -> bool:
    """Return whether an engine counts the collectives that it executes."""
    return bool(getattr(engine, "counting", True))


def _located(search: Bisection) -> tuple[Fault | None, str]:
    """Return the first binding that differs, or why none can be named."""
    try:
        fault = first_difference(search)
    except DistIRError as error:
        # The difference must be told all the same.
        return None, f"the search for the first binding that differs stopped: {error}"
    if fault is None:
        return None, "no value differs if it is returned: an optimization is the cause"
    return fault, ""


def verify(
    mod: ir.IRModule,
    plan: PlanLike = None,
    engine: str | Engine = "virtual",
    seed: int = 0,
    exact: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    *,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    dist: ir.IRModule | None = None,
    locate: bool = True,
    entry: str | None = None,
    dispatch: str | None = None,
    dims: Mapping[str, int] | None = None,
    weights: Mapping[str, Array] | None = None,
) -> VerifyReport:
    """Distribute a module by a plan, run it, and compare with the original on a single device.

    Parameters
    ----------
    mod : IRModule
        The original, at level 1 or 2.
    plan : Plan, mapping, str or Path, optional
        The plan for the distribution, its JSON form, or the path of its file; None: the annotations
        are the plan. Where ``dist`` is given it only serves to locate a fault.
    engine : str or Engine
        See :func:`tvm_distir.execution.runtime.engines.registry.run`.
    seed : int
        The seed of the inputs and of weights that the model's file does not have.
    exact : bool
        Draw from {-2..2} and demand equal bits.
    atol, rtol : float, optional
        Instead of the defaults: :data:`.compare.TOLERANCES`, and for programs of 16-bit and 8-bit
        floats what :mod:`.rounding` says. These are compared with the original in float32.
    inputs : sequence or mapping of whole arrays, optional
        Instead of drawn ones. For a parameter that is a tuple, a (nested) tuple; by name, also its
        tensors ``x_0`` or ``x[0]``, ``x_1_0``, ...
    dist : IRModule, optional
        The module already distributed and lowered.
    locate : bool
        Look for the first binding that differs when the outputs do; runs the module some
        more times.
    entry : str, optional
        The function that is distributed and run, of a module with several entry points, such as
        ``decode``; the others are left out. Without it ``main``, or the only public function.
    dispatch : str, optional
        ``"torch"``: the distributed program calls kernels of PyTorch, see :func:`tvm_distir.run`.
    dims : mapping of str to int, optional
        Sizes of symbolic dims for the inputs. The module is distributed without them, and its
        program runs at these sizes; bind them by :func:`tvm_distir.bind_dims` instead where the
        program shall be of these sizes alone.
    weights : mapping of str to array, optional
        Values of weights by name for drawn inputs, instead of those of the model's file.

    Returns
    -------
    report : VerifyReport
        ``report.check()`` raises where it is not equal.

    Raises
    ------
    EngineError
        DIST0620 or DIST0621 when the comparison would prove nothing, and what
        :func:`tvm_distir.execution.runtime.engines.registry.run` raises.
    LevelError
        DIST0453 where the module is not well-formed.
    ModelError
        DIST0341 where there is no such entry, or several of which none is ``main``.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> td.verify(mod, plan).equal
    True
    """
    for module in (mod, *(() if dist is None else (dist,))):
        check_module(module, "td.verify")
    chosen = make_engine(engine, dispatch).for_verification()
    all_functions = {str(gv.name_hint) for gv in mod.functions}
    mod, dist = keep_entry(mod, entry), dist and keep_entry(dist, entry)
    check_well_formed(mod)
    plain = bind_dims(RunInTurn()(strip_annotations(mod)), dims or {})
    refuse_used_objects(plain)
    refuse_unwritten_results(plain)
    known = {} if exact else file_weights(plain) if weights is None else weights
    alone = exact or inputs is not None
    distributions = DISTRIBUTIONS[:1] if alone else DISTRIBUTIONS
    draws = [RandomInputs(plain, exact, known, name) for name in distributions]
    values = None if inputs is None else _ordered(plain, inputs)
    dtype = coarsest_float(plain)
    narrow = dtype in NARROW and not exact
    reference: Original = Float32Reference(plain) if narrow else Reference(plain)
    others = finite_samples(reference, draws, seed, values)
    first = next(others)
    if plan is not None or dist is None:
        left_out = all_functions - {str(gv.name_hint) for gv in mod.functions}
        plan = as_plan(plan, mod).without_functions(left_out)
    if dist is None:
        from tvm_distir.transforms import distribute

        dist = distribute(mod, plan)
    samples = itertools.chain([first], others)
    sample, got, replicas = _compared_run(chosen, dist, reference, samples, seed)
    values, expected = sample.values, sample.expected
    if len(got) != len(expected):
        raise EngineError(
            "DIST0603",
            f"{len(got)} outputs, the original has {len(expected)}",
            place=entry_of(plain),
            remedy="Report it: this is a bug of the lowering.",
        )
    collectives = chosen.collectives
    claims = claimed_collectives(export(bind_dims(ExpandSchedule()(dist), dims or {})))
    bound: RoundingBound | None = None
    if not isinstance(reference, Float32Reference):
        outputs = compare_outputs(got, expected, dtype, exact, atol, rtol)
        if not exact and atol is None:
            outputs = with_terms(outputs, plain, values, got, expected)
        compared = _Comparison(outputs, values)
    else:
        ranks = max((c.group_size for c in claims if c.kind in _REDUCING), default=1)
        bound = RoundingBound.of(plain, dtype, ranks)
        if atol is None and rtol is None:
            run = functools.partial(_run_whole, chosen)
            compared = _compare_narrow(run, dist, reference, sample, got, bound, seed, inputs)
        else:
            wide, truth = widened_inputs(got), reference.truth(values)
            compared = _Comparison(compare_outputs(wide, truth, dtype, False, atol, rtol), values)
    outputs = compared.outputs
    equal = compared.equal() and not replicas
    fault, no_fault = None, ""
    if not equal and Pipeline.of(mod) is not None:
        no_fault = "bindings of a pipelined step have no unique counterpart on a single device"
    elif not equal and locate and plan is not None:
        sized = bind_dims(mod, dims or {})
        values, rounding = compared.values, None if compared.differs_wide() else bound
        wide_too = bound is not None and rounding is None
        search = Bisection(sized, plain, plan, chosen, values, wide_too, exact, rounding)
        fault, no_fault = _located(search)
    return VerifyReport(
        equal=equal,
        max_abs_diff=largest(o.max_abs_diff for o in outputs),
        max_rel_diff=largest(o.max_rel_diff for o in outputs),
        atol=largest(o.atol for o in outputs),
        rtol=largest(o.rtol for o in outputs),
        engine=chosen.name,
        seed=seed,
        exact=exact,
        distribution=sample.draws.distribution,
        outputs=outputs,
        collectives=collectives,
        float32_outputs=compared.float32,
        rounding=bound if compared.float32 else None,
        positive=compared.positive,
        claims=claims,
        unlike_claims=differences(claims, collectives) if counts(chosen) else (),
        replicas=replicas,
        fault=fault,
        no_fault=no_fault,
    )
