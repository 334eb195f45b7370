# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the distributed program and the original on the same input, and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir

from tvm_distir.core import (
    Pipeline,
    PlanLike,
    as_plan,
    bind_dims,
    entry_of,
    keep_entry,
    named_leaves,
)
from tvm_distir.execution.runtime.engines.base import Engine
from tvm_distir.execution.runtime.engines.reference import Reference, strip_annotations
from tvm_distir.execution.runtime.engines.registry import engine as make_engine
from tvm_distir.execution.runtime.program.inputs import flatten_tuples
from tvm_distir.execution.runtime.program.sharded import ShardedArray
from tvm_distir.performance import export
from tvm_distir.support import DistIRError, EngineError, ModelError
from tvm_distir.transforms import ExpandSchedule, RunInTurn

from .bisect import Bisection, Fault, first_difference
from .cancellation import with_terms
from .collective_counts import claimed_collectives, differences
from .compare import OutputReport, coarsest_float, compare_outputs, largest, not_finite
from .float32_reference import NARROW, WIDE, judge, own_errors, widened, widened_inputs
from .placeholders import as_array, refuse_used_objects, with_device_objects
from .report import VerifyReport

Array = npt.NDArray[Any]

_DRAWS = 4
"""The number of other draws that must leave an output as it is before it counts as constant."""


def _ordered(mod: ir.IRModule, drawn: Sequence[Any] | Mapping[str, Any]) -> list[Array]:
    if isinstance(drawn, Mapping):
        params = mod[entry_of(mod)].params
        names = [name for p in params for name, _ in named_leaves(str(p.name), p.ty)]
        absent = [name for name in names if name not in drawn]
        if absent:
            raise ModelError(
                "DIST0340",
                f"there is no input for {', '.join(absent)}",
                place=f"{entry_of(mod)}/{absent[0]}",
                remedy="Give an array for each parameter, or remove the inputs.",
            )
        return [np.asarray(drawn[name]) for name in names]
    return [np.asarray(value) for value in flatten_tuples(drawn)]


def file_weights(mod: ir.IRModule) -> dict[str, Any]:
    """Return the weights by name of the file that a module came from, if any."""
    from tvm_distir.core import FRONTEND_ATTR

    attrs: Any = mod.attrs or {}
    if FRONTEND_ATTR not in attrs or not str(attrs[FRONTEND_ATTR]["source"]):
        return {}
    from tvm_distir.models import load_weights

    return load_weights(mod)


class RandomInputs:
    """Draws full inputs for a module, in the order of the entry's parameters.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1 or 2.
    exact : bool
        Draw from {-2..2}, weights of the file included.
    """

    def __init__(self, mod: ir.IRModule, exact: bool) -> None:
        self._mod = mod
        self._exact = exact
        self._weights = {} if exact else file_weights(mod)

    def draw(self, seed: int) -> list[Array]:
        """Return an array per parameter (see :func:`tvm_distir.models.draw_inputs`)."""
        from .random_inputs import draw_inputs

        return draw_inputs(self._mod, seed=seed, exact=self._exact, weights=self._weights)


def refuse_nothing_proved(outputs: Sequence[Array]) -> None:
    """Refuse a reference with NaN or Inf (DIST0620), or without outputs (DIST0621)."""
    if not outputs:
        raise EngineError(
            "DIST0621",
            "the function has no output",
            place="reference",
            remedy="Return at least one value.",
        )
    for i, value in enumerate(outputs):
        if value.dtype.kind in "iub":
            continue
        bad = not_finite(value)
        if bad:
            raise EngineError(
                "DIST0620",
                f"{bad} of {value.size} values of the reference are NaN or Inf",
                place=f"output {i}",
                remedy="Use other inputs or weights, or another seed.",
            )


def refuse_constant_outputs(
    reference: Reference, draws: RandomInputs, first: Sequence[Array], seed: int
) -> None:
    """Refuse outputs that are equal, up to signs of zeros, for every draw (DIST0621)."""
    constant = [i for i, value in enumerate(first) if value.size]
    for other in range(1, _DRAWS + 1):
        again = reference.run(draws.draw(seed + other))
        constant = [i for i in constant if np.array_equal(first[i], again[i])]
        if not constant:
            return
    raise EngineError(
        "DIST0621",
        f"{_DRAWS} other samples of the inputs resulted in the same values",
        place=f"output{'s' * (len(constant) > 1)} {', '.join(map(str, constant))}",
        remedy="Use weights on which it depends, or exclude the output: its value does not test "
        "the distribution.",
    )


@dataclass(frozen=True)
class _Case:
    """A model, its inputs and the single-device results."""

    plain: ir.IRModule
    draws: RandomInputs
    seed: int
    values: list[Array]
    reference: Reference
    expected: list[Array]


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


def _twins(
    case: _Case, dist: ir.IRModule, engine: Engine, got: Sequence[Array]
) -> tuple[tuple[OutputReport, ...], tuple[OutputReport, ...]]:
    """Yield the reports of the 16-bit outputs against the twin, and of the two twins."""
    twin = Reference(widened(case.plain))
    truth = twin.run(widened_inputs(case.values))

    def pairs() -> Any:
        yield case.expected, truth
        for other in range(1, _DRAWS + 1):
            values = case.draws.draw(case.seed + other)
            yield case.reference.run(values), twin.run(widened_inputs(values))

    reports = judge(got, case.expected, truth, own_errors(pairs()))
    wide, _ = _run_whole(engine, widened(dist), widened_inputs(case.values))
    return reports, compare_outputs(wide, truth, WIDE, False, None, None)


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
        Instead of the defaults: :data:`.compare.TOLERANCES`, and for 16-bit models what
        :mod:`.twin` says.
    inputs : sequence or mapping of whole arrays, optional
        Instead of drawn ones. For a parameter that is a tuple, a (nested) tuple; by name, its
        tensors are ``x_0``, ``x_1_0``, ...
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

    Returns
    -------
    report : VerifyReport
        ``report.check()`` raises where it is not equal.

    Raises
    ------
    EngineError
        DIST0620 or DIST0621 when the comparison would prove nothing, and what
        :func:`tvm_distir.execution.runtime.engines.registry.run` raises.
    ModelError
        DIST0341 where there is no such entry, or several of which none is ``main``.
    """
    chosen = make_engine(engine, dispatch).for_verification()
    all_functions = {str(gv.name_hint) for gv in mod.functions}
    mod, dist = keep_entry(mod, entry), dist and keep_entry(dist, entry)
    plain = bind_dims(RunInTurn()(strip_annotations(mod)), dims or {})
    refuse_used_objects(plain)
    draws = RandomInputs(plain, exact)
    values = draws.draw(seed) if inputs is None else _ordered(plain, inputs)
    reference = Reference(plain)
    expected = reference.run(values)
    refuse_nothing_proved(expected)
    if plan is not None or dist is None:
        left_out = all_functions - {str(gv.name_hint) for gv in mod.functions}
        plan = as_plan(plan, mod).without_functions(left_out)
    if dist is None:
        from tvm_distir.transforms import distribute

        dist = distribute(mod, plan)
    with ThreadPoolExecutor(1) as other_core:
        # TVM's kernels run without the interpreter's lock: two runs at a time.
        varied = other_core.submit(refuse_constant_outputs, reference, draws, expected, seed)
        try:
            got, replicas = _run_whole(chosen, dist, values)
        finally:
            # A comparison that proves nothing is refused first, whatever the run did.
            varied.result()
    if len(got) != len(expected):
        raise EngineError(
            "DIST0603",
            f"{len(got)} outputs, the original has {len(expected)}",
            place=entry_of(plain),
            remedy="Report it: this is a bug of the lowering.",
        )
    dtype = coarsest_float(plain)
    collectives = chosen.collectives
    twin: tuple[OutputReport, ...] = ()
    narrow = dtype in NARROW and not exact and atol is None and rtol is None
    if narrow:
        case = _Case(plain, draws, seed, values, reference, expected)
        outputs, twin = _twins(case, dist, chosen, got)
    else:
        outputs = compare_outputs(got, expected, dtype, exact, atol, rtol)
        if not exact and atol is None:
            outputs = with_terms(outputs, plain, values, got, expected)
    equal = all(o.equal for o in (*outputs, *twin)) and not replicas
    claims = claimed_collectives(export(bind_dims(ExpandSchedule()(dist), dims or {})))
    fault, no_fault = None, ""
    if not equal and Pipeline.of(mod) is not None:
        no_fault = "bindings of a pipelined step have no unique counterpart on a single device"
    elif not equal and locate and plan is not None:
        sized = bind_dims(mod, dims or {})
        fault, no_fault = _located(Bisection(sized, plain, plan, chosen, values, narrow, exact))
    return VerifyReport(
        equal=equal,
        max_abs_diff=largest(o.max_abs_diff for o in outputs),
        max_rel_diff=largest(o.max_rel_diff for o in outputs),
        atol=largest(o.atol for o in outputs),
        rtol=largest(o.rtol for o in outputs),
        engine=chosen.name,
        seed=seed,
        exact=exact,
        outputs=outputs,
        collectives=collectives,
        twin=twin,
        claims=claims,
        unlike_claims=differences(claims, collectives) if counts(chosen) else (),
        replicas=replicas,
        fault=fault,
        no_fault=no_fault,
    )
