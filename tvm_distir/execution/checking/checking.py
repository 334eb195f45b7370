# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check a program that others distributed: td.check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import ir

from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.execution.verification.input_samples import refuse_nothing_proved
from tvm_distir.support import EngineError, ModelError, UsageError

from .blame import findings
from .comparison import RankComparison
from .proving import prove
from .repair_search import repaired
from .report import DEADLOCK, EQUAL, UNPROVED, WRONG, CheckReport
from .traced_module import TracedModule

MOST_BYTES = 1 << 30
"""Values of all ranks that run where rules do not prove a program."""
_NO_MEETING = ("DIST0610", "DIST0611")


def check(
    programs: ir.IRModule,
    reference: ir.IRModule,
    *,
    hints: Mapping[str, Mapping[str, int]] | None = None,
    micro_batches: Sequence[int] = (),
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    by: str = "execution",
) -> CheckReport:
    """Check whether ranks compute what a single device computes.

    All ranks and the reference run in float64 on the engine ``virtual``, with the same inputs.
    Outputs decide: a gradient (named ``grad:PARAMETER``) must be sharded as its parameter, a loss
    may be the mean of those of the ranks, and no other output may be a partial sum. A wrong output
    is followed back to the first value that stands for no value of the reference.

    With ``by="rules"`` nothing runs: the sharding rules derive what each value of a rank is, at
    the sizes of the traces and for all inputs. Where they do not know it, the ranks run if their
    values are small; else the verdict is ``unproved``.

    Parameters
    ----------
    programs, reference : IRModule
        Traces of :func:`tvm_distir.trace_ranks`; the reference of a single rank, with the whole
        inputs. Their inputs and outputs have the same names. Or modules of other frontends: one
        of level 5, and as reference one of level 1.
    hints : mapping of str to mapping of str to int, optional
        The dims that mesh axes shard, by input, where sizes leave a choice:
        ``{"x": {"dp": 0}}``.
    micro_batches : sequence of int
        Numbers of micro-batches, so that values of one of them are known.
    inputs : mapping of str to array, optional
        Whole inputs, instead of seeded ones. Integers and bools are those of the trace, where it
        had values.
    seed : int
    by : str
        ``execution`` or ``rules``.

    Returns
    -------
    report : CheckReport
        ``report.check()`` raises where the program is wrong.

    Raises
    ------
    EngineError
        DIST0620 outputs of the reference that are not finite.
    ModelError
        DIST0365 what is no trace, or no reference with these outputs; DIST0366 an input that no
        sharding explains, or that the reference does not have.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> def make(rank):
    ...     def step(parameters, data):
    ...         y = data["x"] @ parameters["w"]
    ...         if dist.get_world_size() > 1:
    ...             dist.all_reduce(y)
    ...         return {"y": y}
    ...     n = 4 // dist.get_world_size()
    ...     return step, {"w": torch.ones(n, 8)}, {"x": torch.ones(2, n)}
    >>> td.check(td.trace_ranks(make, 2), td.trace_ranks(make, 1)).equal
    True
    """
    for count in micro_batches:
        if count < 1:
            problem = f"a batch is not {count} micro-batches"
            remedy = "Give positive numbers."
            raise UsageError("DIST0152", problem, location="micro_batches", remedy=remedy)
    if by not in ("execution", "rules"):
        remedy = 'Say "execution" or "rules".'
        raise UsageError("DIST0152", f'it is "{by}"', location="by", remedy=remedy)
    module, single, hints = matched(programs, reference, hints or {}, inputs or {})
    if by == "rules":
        proved = prove(module, single, hints, seed)
        if proved.verdict != UNPROVED or module.value_bytes() > MOST_BYTES:
            return proved
    full_inputs = drawn_inputs(single, inputs or {}, seed)
    compared = RankComparison(module, single, full_inputs, hints, micro_batches)
    refuse_nothing_proved(list(compared.expected.outputs[0].values()))
    return verdict(compared, seed)


def matched(
    programs: ir.IRModule,
    reference: ir.IRModule,
    hints: Mapping[str, Mapping[str, int]],
    inputs: Mapping[str, Any] | None = None,
) -> tuple[TracedModule, TracedModule, dict[str, Mapping[str, int]]]:
    """Read ranks and their reference, with all hints.

    A reference of several ranks is refused, and names that are not those of the reference.
    """
    module, single = TracedModule(programs), TracedModule(reference)
    hints = {**module.shardings, **hints}
    ranks = math.prod(single.axes.values())
    if ranks > 1:
        problem = f"the reference is a trace of {ranks} ranks"
        remedy = "Trace the program of a single device: td.trace_ranks(make, 1)."
        raise ModelError("DIST0365", problem, location="reference", remedy=remedy)
    known = single.codes[0].inputs.keys()
    traced = {name for code in module.codes for name in code.inputs}
    for name in sorted({*traced, *hints, *(inputs or {})} - known):
        problem = "the reference has no input of this name"
        remedy = "Name inputs of ranks and of the reference equally."
        raise ModelError("DIST0366", problem, location=f'input "{name}"', remedy=remedy)
    for name in sorted(set(module.output_names) ^ set(single.output_names)):
        which = "ranks have" if name in single.output_names else "reference has"
        problem = f"the {which} no output of this name"
        remedy = "Return results of the same names from the ranks and from the reference."
        raise ModelError("DIST0365", problem, location=f'output "{name}"', remedy=remedy)
    return module, single, hints


def verdict(compared: RankComparison, seed: int) -> CheckReport:
    """Run the ranks, and say what is wrong where an output is."""
    names = tuple(compared.expected.outputs[0])
    placements = {**compared.placements, **compared.module.output_shardings}

    def report(verdict: str, **items: Any) -> CheckReport:
        return CheckReport(
            verdict, dict(compared.axes), seed, names, placements=placements, **items
        )

    try:
        results = compared.computed.outputs
    except EngineError as error:
        if error.code not in _NO_MEETING:
            raise
        return report(DEADLOCK, problem=error.what, line=error.location)
    wrong = compared.wrong_outputs(results)
    if not wrong:
        return report(EQUAL, chain=_chain(compared))
    best, repair = repaired(compared, findings(compared, wrong))
    family = best.family
    return report(
        WRONG,
        wrong=tuple(dict.fromkeys(w.name for w in wrong)),
        first=best.value,
        op=family.operation(best.value),
        line=family.line(best.value),
        problem=best.text,
        repair=repair,
    )


def _chain(compared: RankComparison) -> tuple[str, ...]:
    """Return what the result of each collective stands for."""
    steps = []
    for family in compared.families:
        for name in family.order:
            if family.is_collective(name):
                state = compared.state(family, name)
                what = "no value of the reference" if state is None else state.text()
                steps.append(f"{name} = {family.operation(name)}: {what}")
    return tuple(steps)


def drawn_inputs(reference: TracedModule, known: Mapping[str, Any], seed: int) -> dict[str, Array]:
    """Return whole inputs of the reference, drawn where they are not known."""
    drawn: dict[str, Array] = {}
    random = np.random.default_rng(seed)
    for name, var in reference.codes[0].inputs.items():
        shape, dtype = [int(n) for n in var.ty.shape], str(var.ty.dtype)
        if name in known:
            drawn[name] = np.asarray(known[name]).astype(dtype)
            extents = list(drawn[name].shape)
            if extents != shape:
                problem = f"shape {extents} is given where the reference has {shape}"
                remedy = "Give whole inputs, not those of a rank."
                raise ModelError("DIST0366", problem, location=f'input "{name}"', remedy=remedy)
        elif dtype.startswith("float"):
            drawn[name] = random.standard_normal(shape).astype(dtype) * 0.5
        else:
            drawn[name] = reference.integers(name, shape, random).astype(dtype)
    return drawn
