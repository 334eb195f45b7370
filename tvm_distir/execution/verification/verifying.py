# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the distributed program and the original on the same input, and compare."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir

from tvm_distir.core.analysis import check_well_formed
from tvm_distir.core.ir import check_module
from tvm_distir.core.plan import Pipeline, Plan, PlanLike, as_plan
from tvm_distir.core.rewriting import bind_dims, keep_entry
from tvm_distir.execution.runtime.dispatch.packed_names import AUTO
from tvm_distir.execution.runtime.engines.base import Engine
from tvm_distir.execution.runtime.engines.reference import Reference, strip_annotations
from tvm_distir.execution.runtime.engines.registry import engine as make_engine
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.performance import export
from tvm_distir.transforms import ExpandSchedule, SerializePipeline

from .collective_counts import claimed_collectives
from .compare import coarsest_float
from .compared_runs import VerifiedRun, compared_run, ordered_inputs
from .float32_reference import NARROW, Float32Reference
from .input_samples import (
    Original,
    RandomInputs,
    file_weights,
    finite_samples,
    refuse_unwritten_results,
)
from .placeholders import refuse_used_objects
from .random_inputs import DISTRIBUTIONS
from .report import VerifyReport


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
    dispatch: str = AUTO,
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
    dispatch : str
        Whose kernels the distributed program calls, see :func:`tvm_distir.run`.
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
    names = {str(gv.name_hint) for gv in mod.functions}
    mod, dist = keep_entry(mod, entry), dist and keep_entry(dist, entry)
    check_well_formed(mod)
    plain = bind_dims(SerializePipeline()(strip_annotations(mod)), dims or {})
    refuse_used_objects(plain)
    refuse_unwritten_results(plain)
    draws = _draws(plain, exact, inputs is not None, weights)
    values = None if inputs is None else ordered_inputs(plain, inputs)
    narrow = coarsest_float(plain) in NARROW and not exact
    reference: Original = Float32Reference(plain) if narrow else Reference(plain)
    others = finite_samples(reference, draws, seed, values)
    first = next(others)
    plan, dist = _distributed(mod, plan, dist, names)
    samples = itertools.chain([first], others)
    sample, got, replicas = compared_run(chosen, dist, reference, samples, seed)
    collectives, tolerance = chosen.collectives, (atol, rtol)
    claims = claimed_collectives(export(bind_dims(ExpandSchedule()(dist), dims or {})))
    original = plain, dist, reference
    run = VerifiedRun(
        chosen, *original, sample, got, claims, collectives, tolerance, exact, seed, values
    )
    compared = run.compared()
    equal = compared.equal() and not replicas
    fault, no_fault = None, ""
    if not equal and Pipeline.of(mod) is not None:
        no_fault = "bindings of a pipelined step have no unique counterpart on a single device"
    elif not equal and locate and plan is not None:
        fault, no_fault = run.located(bind_dims(mod, dims or {}), plan, compared)
    return run.report(compared, equal, replicas, fault, no_fault)


def _distributed(
    mod: ir.IRModule, plan: PlanLike, dist: ir.IRModule | None, names: set[str]
) -> tuple[Plan | None, ir.IRModule]:
    """Return the plan for the functions that are kept of ``names``, and the distributed module."""
    from tvm_distir.transforms import distribute

    if plan is None and dist is not None:
        return None, dist
    left_out = names - {str(gv.name_hint) for gv in mod.functions}
    known = as_plan(plan, mod).without_functions(left_out)
    return known, distribute(mod, known) if dist is None else dist


def _draws(
    plain: ir.IRModule, exact: bool, alone: bool, weights: Mapping[str, Array] | None
) -> list[RandomInputs]:
    """Return what draws inputs, of a single distribution where no other helps."""
    known = {} if exact else file_weights(plain) if weights is None else weights
    distributions = DISTRIBUTIONS[:1] if exact or alone else DISTRIBUTIONS
    return [RandomInputs(plain, exact, known, name) for name in distributions]
