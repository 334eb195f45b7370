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

from tvm_distir.core.ir import P, R
from tvm_distir.core.ir.operators import dist_op_name
from tvm_distir.core.ops import describe_factor, match_factor, rule_of
from tvm_distir.support import PropagationError, WrongProgramError, nearest

from .alignment import SHARDED, State
from .checking import MOST_BYTES, drawn_inputs, matched
from .comparison import RankComparison, RankFamily, families_of
from .layout_rules import COPIES
from .proving import proof_of
from .report import RULES, SCHEMA_VERSION
from .traced_module import TracedModule
from .value_terms import leaves, shape_of

_MOST_SAME = 4
"""Values in a row with the same layout that are all written."""


@dataclass(frozen=True)
class OriginStep:
    """A value on the way to another one, and its layout along a mesh axis.

    Attributes
    ----------
    value, op, layout : str
    rule : str
        What the sharding rule of the op says of operands and results, as ``S(0), R -> S(0)``.
    line : str
        Its line of code and module.
    """

    value: str
    op: str
    layout: str
    rule: str
    line: str


@dataclass(frozen=True)
class ValueOrigin:
    """What a value of ranks stands for, and by which ops.

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
                same = [f"    {s.value} = {s.op}: {s.layout}{s.rule and '  by '}{s.rule}"
                        for s in group]  # fmt: skip
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
        return _Origin(module, family, proof.state, RULES).of(name, value)
    if module.value_bytes() > MOST_BYTES:
        problem = f"the rules do not know what {name} is"
        remedy = "Trace a small model on this mesh, which can run."
        raise WrongProgramError("DIST0693", problem, location="td.explain", remedy=remedy)
    ran = RankComparison(module, single, drawn_inputs(single, {}, 0), hints)
    return _Origin(module, family, functools.partial(ran.state, family), "execution").of(
        name, value
    )


@dataclass(frozen=True)
class _Origin:
    """Finds the steps to a value of ranks of the same ops."""

    module: TracedModule
    family: RankFamily
    state: Callable[[str], State | None]
    method: str

    def of(self, name: str, value: str) -> ValueOrigin:
        state, code = self.state(value), self.family.codes[0]
        read = [(n, self.state(n)) for n in self.family.operands.get(value, [])]
        variables = {**code.inputs, **{str(b.var.name): b.var for b in code.bindings}}
        return ValueOrigin(
            name if name == value else f"{name} ({value})",
            self.family.operation(value),
            self.family.line(value) if value in self.family.values else "",
            shape_of(variables[value].ty),
            "" if state is None else state.text(),
            tuple(f"{n}: {'unknown' if s is None else s.text()}" for n, s in read),
            {axis: self._steps(value, axis) for axis in ({} if state is None else state.layouts)},
            self.method,
        )

    def _steps(self, value: str, axis: str) -> tuple[OriginStep, ...]:
        """Return the values that the layout of one along an axis comes from, the first first."""
        steps, code = list[OriginStep](), self.family.codes[0]
        following: str | None = value
        origins = set[str]()  # values with shards or parts of sums at or before them
        for n in (*code.inputs, *self.family.order):
            read = self.family.operands.get(n, [])
            if self._layout(n, axis) not in ("R", "") or not origins.isdisjoint(read):
                origins |= {n} if self._layout(n, axis) else set()
        while following is not None:
            here, rule = following, self._rule(following, axis)
            steps.append(
                OriginStep(here, self.family.operation(here), self._layout(here, axis), rule,
                           code.lines.get(here, ""))
            )  # fmt: skip
            read = [n for n in self.family.operands.get(here, []) if n in origins]
            following = next((n for n in read if self._layout(n, axis) != "R"), (*read, None)[0])
        return tuple(reversed(steps))

    def _layout(self, name: str, axis: str) -> str:
        """Return a layout in the words of sharding rules; empty where it is not known."""
        state = self.state(name)
        layout = None if state is None else state.layouts.get(axis)
        if layout is None or layout.kind != SHARDED:
            return "" if layout is None else "R" if layout == COPIES else f"P({layout.kind})"
        return f"S({layout.dim})" + (f" in {layout.blocks} blocks" if layout.blocks > 1 else "")

    def _label(self, name: str, axis: str) -> int | None:
        state = self.state(name)
        layout = None if state is None else state.layouts.get(axis)
        if layout is None or layout.kind == SHARDED:
            return None if layout is None else layout.dim
        return R if layout == COPIES else P

    def _rule(self, name: str, axis: str) -> str:
        """Return the factor of the sharding rule that an op follows along an axis."""
        call = self.family.values.get(name)
        if not isinstance(call, ir.Call) or dist_op_name(call) is not None:
            return ""
        read = [str(getattr(expr, "name", "")) for expr, _, _ in leaves(call)]
        labels = [self._label(n, axis) for n in read]
        try:
            rule = rule_of(call, self.module.mod)
            factor = match_factor(rule, labels, [self._label(name, axis)])
        except PropagationError:
            return ""
        if factor is None:
            return "linear: P -> P" if P in labels else ""
        return describe_factor(rule.factors[factor])
