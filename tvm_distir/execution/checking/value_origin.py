# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Explain what a value of a program that others distributed stands for, and why."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm import ir

from tvm_distir.support import PropagationError, WrongProgramError, nearest

from .alignment import SHARDED, State
from .checking import MOST_BYTES, drawn_inputs, matched
from .comparison import RankComparison, RankFamily, families_of
from .layout_rules import COPIES
from .proving import proof_of
from .report import RULES, SCHEMA_VERSION
from .value_terms import shape_of

_MOST_SAME = 4
"""Values in a row with the same layout that are all written."""


@dataclass(frozen=True)
class OriginStep:
    """A value on the way to another one, and its layout along a mesh axis.

    Attributes
    ----------
    value, op, layout : str
    rule : str
        The layouts of the tensors that it reads, and its own, as ``R, S(1) -> S(1)``.
    """

    value: str
    op: str
    layout: str
    rule: str


@dataclass(frozen=True)
class ValueOrigin:
    """Value of the reference that a value of ranks stands for, and the ops that lead to it.

    Attributes
    ----------
    name, op, line : str
    shape : tuple of int
        Of the part of a rank.
    state : str
        The value of the reference, and how ranks hold it; empty where it is none.
    operands : tuple of str
        What its operands stand for.
    axes : dict of str to tuple of OriginStep
        By mesh axis the values that its layout comes from, the first one first.
    method : str
        ``rules`` or ``execution``.
    """

    name: str
    op: str
    line: str
    shape: tuple[int, ...]
    state: str
    operands: tuple[str, ...]
    axes: dict[str, tuple[OriginStep, ...]]
    method: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with a ``schema_version``."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def to_text(self) -> str:
        """Return a page of text, ending with a newline."""
        at = f", at {self.line}" if self.line else ""
        lines = [f"{self.name}: {self.op}, shape {self.shape} on a rank{at}"]
        lines.append(f"  stands for {self.state or 'no value of the reference'}, by {self.method}")
        lines += [f"    of {operand}" for operand in self.operands]
        for axis, steps in self.axes.items():
            lines.append(f"  along {axis}: {steps[-1].layout}")
            for _, group in itertools.groupby(steps, lambda step: step.layout):
                same = [f"    {s.value} = {s.op}: {s.rule}" for s in group]
                if len(same) > _MOST_SAME:
                    same[1:-1] = [f"    ... {len(same) - 2} more values: as before"]
                lines += same
        return "\n".join(lines) + "\n"

    __str__ = to_text


def explain_value(
    programs: ir.IRModule,
    reference: ir.IRModule,
    name: str,
    hints: Mapping[str, Mapping[str, int]] | None = None,
) -> ValueOrigin:
    """Explain what a value of ranks stands for: an output, an input or a variable.

    Rules derive it; where they do not know it, and values are small, the ranks run. See
    :func:`tvm_distir.check` for the parameters and what is refused.

    Raises
    ------
    PropagationError
        DIST0430 for an unknown name.
    WrongProgramError
        DIST0693 for what rules do not know of a program that is too large to run.
    """
    module, single, hints = matched(programs, reference, hints or {})
    proof = proof_of(module, single, hints)
    families = families_of(module)
    known = {n: f for f in reversed(families) for n in (*f.codes[0].inputs, *f.values)}
    results = {n: f for f in reversed(families) for n in f.codes[0].outputs}
    if name not in {**known, **results}:
        problem, remedy = f'the ranks have no value "{name}"', nearest(name, [*results, *known])
        raise PropagationError("DIST0430", problem, location="td.explain", remedy=remedy)
    family = {**known, **results}[name]
    value = family.output(name) if name in results else name
    if proof is not None and proof.state(value) is not None:
        return _origin(family, name, value, proof.state, RULES)
    if module.value_bytes() > MOST_BYTES:
        problem = f"the rules do not know what {name} is"
        remedy = "Trace a small model on this mesh, which can run."
        raise WrongProgramError("DIST0693", problem, location="td.explain", remedy=remedy)
    ran = RankComparison(module, single, drawn_inputs(single, {}, 0), hints)
    return _origin(family, name, value, functools.partial(ran.state, family), "execution")


def _origin(
    family: RankFamily, name: str, value: str, state: Callable[[str], State | None], method: str
) -> ValueOrigin:
    result, code = state(value), family.codes[0]
    read = {n: state(n) for n in family.operands.get(value, [])}
    variables = {**code.inputs, **{str(b.var.name): b.var for b in code.bindings}}
    return ValueOrigin(
        name if name == value else f"{name} ({value})",
        family.operation(value),
        family.line(value) if value in family.values else "",
        shape_of(variables[value].ty),
        "" if result is None else result.text(),
        tuple(f"{n}: {'unknown' if s is None else s.text()}" for n, s in read.items()),
        {a: _steps(family, value, a, state) for a in ({} if result is None else result.layouts)},
        method,
    )


def _steps(
    family: RankFamily, value: str, axis: str, state: Callable[[str], State | None]
) -> tuple[OriginStep, ...]:
    """Return the values that the layout of one along an axis comes from, the first one first."""
    layouts: dict[str, str] = {}
    origins = set[str]()  # values with shards or parts of sums at or before them
    for name in (*family.codes[0].inputs, *family.order):
        layouts[name] = _layout(state(name), axis)
        if layouts[name] not in ("R", "?") or not origins.isdisjoint(family.operands.get(name, [])):
            origins |= {name} if layouts[name] != "?" else set()
        if name == value:
            break
    steps: list[OriginStep] = []
    following: str | None = value
    while following is not None:
        read, here = family.operands.get(following, []), layouts[following]
        rule = f"{', '.join(layouts[n] for n in read)} -> {here}" if read else here
        steps.append(OriginStep(following, family.operation(following), here, rule))
        before = [n for n in read if n in origins]
        following = next((n for n in before if layouts[n] != "R"), (*before, None)[0])
    return tuple(reversed(steps))


def _layout(state: State | None, axis: str) -> str:
    """Return a layout in the words of sharding rules."""
    layout = None if state is None else state.layouts.get(axis)
    if layout is None or layout.kind != SHARDED:
        return "?" if layout is None else "R" if layout == COPIES else f"P({layout.kind})"
    return f"S({layout.dim})" + (f" in {layout.blocks} blocks" if layout.blocks > 1 else "")
