# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run every factor and linear group of cases on shards, and compare with the full call.

A dim that does not divide is padded at its end as on the devices: with NaN, or another
conspicuous number, wherever the op's registration does not specify the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_distir.core.ops import Factor, Rule

from .cases import Case
from .collective_results import reduced
from .machine import Machine
from .program import CaseProgram, local_program, reference_function

#: How many cases are compiled together.
CHUNK = 60


@dataclass
class Proof:
    """The executed checks and their differences.

    Attributes
    ----------
    failures : dict of str to list of str
        The failures by case; empty where all checks held.
    placements, linear : int
        Factors executed over a number of devices each, and linear groups.
    uneven : int
        The number of placements that needed padding.
    ops : list of str
        The names of the checked ops, sorted.
    undeclared : dict of str to dict
        The groups of operands that no rule declares linear, by op, and whether all cases show that
        they are. Empty unless they were requested.
    """

    failures: dict[str, list[str]] = field(default_factory=dict)
    placements: int = 0
    linear: int = 0
    uneven: int = 0
    ops: list[str] = field(default_factory=list)
    undeclared: dict[str, dict[tuple[int, ...], bool]] = field(default_factory=dict)

    def note(self, op: str, group: tuple[int, ...], holds: bool) -> None:
        """Note whether a case shows that an op is linear in a group that its rule leaves out."""
        known = self.undeclared.setdefault(op, {})
        known[group] = known.get(group, True) and holds

    def hints(self) -> list[str]:
        """Return a line per op that says which linear groups to declare."""
        groups_of_op = {
            op: [group for group, holds in groups.items() if holds]
            for op, groups in sorted(self.undeclared.items())
        }
        return [
            f"{op} is linear in the operands {' and '.join(map(str, groups))}, which its rule "
            "does not declare: partial sums are reduced before it. Declare "
            f"draft.linear({', '.join(map(str, groups))})."
            for op, groups in groups_of_op.items()
            if groups
        ]

    def add(self, other: Proof) -> None:
        """Add the counts of another proof."""
        self.failures.update(other.failures)
        self.placements += other.placements
        self.linear += other.linear
        self.uneven += other.uneven
        self.ops = sorted({*self.ops, *other.ops})
        for op, groups in other.undeclared.items():
            for group, holds in groups.items():
                self.note(op, group, holds)

    @property
    def wrong(self) -> dict[str, list[str]]:
        """Return the differences by case."""
        return {name: faults for name, faults in self.failures.items() if faults}

    def summary(self) -> str:
        """Return the counts in a line."""
        return (
            f"{len(self.ops)} ops, {len(self.failures)} cases, {self.placements} placements "
            f"({self.uneven} padded), {self.linear} linear groups, "
            f"{sum(map(len, self.failures.values()))} wrong"
        )


@dataclass(frozen=True)
class _Placement:
    """A factor of a case over some devices; without a program, NumPy computes the op."""

    case: Case
    number: int
    factor: Factor
    count: int
    program: CaseProgram | None


def counts_of(factor: Factor) -> list[int]:
    """Return the device counts of a factor's checks: 2 and 3, evenly or with padding."""
    if not isinstance(factor.size, int):
        return []
    return [n for n in (2, 3) if factor.size % n == 0 or (factor.uneven and factor.size > n)]


def last_line(error: Exception) -> str:
    """Return the last line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def prove(cases: Sequence[Case], rules: Sequence[Rule] | None = None, hints: bool = False) -> Proof:
    """Run every factor and linear group of every case.

    Parameters
    ----------
    cases : sequence of Case
        The cases, which have distinct names.
    rules : sequence of Rule, optional
        The rules to be proved in place of those that are looked up.
    hints : bool
        Look for linear groups that rules do not declare, too.
    """
    rules = [c.rule() for c in cases] if rules is None else rules
    proof = Proof({c.name: [] for c in cases}, ops=sorted({c.op for c in cases}))
    machine = Machine()
    placements = list(_placements(machine, proof, list(zip(cases, rules, strict=True))))
    machine.compile()
    reference = {c.name: _reference(machine, c, c.inputs(0)) for c in cases}
    for case_placement in placements:
        try:
            fault = _differs(machine, case_placement, reference[case_placement.case.name])
        except Exception as error:
            fault = last_line(error)
        if fault:
            label = f"factor {case_placement.number} over {case_placement.count}"
            proof.failures[case_placement.case.name].append(f"{label}: {fault}")
    for case, rule in zip(cases, rules, strict=True):
        for group in rule.linear:
            if (fault := not_linear(machine, case, group)) is not None:
                proof.failures[case.name].append(f"linear {group}: {fault}")
        for group in _left_out(case, rule) if hints else ():
            proof.note(case.op, group, not_linear(machine, case, group) is None)
    proof.placements = len(placements)
    proof.uneven = sum(placement.factor.size % placement.count != 0 for placement in placements)
    proof.linear = sum(len(rule.linear) for rule in rules)
    return proof


def validate(cases: Sequence[Case]) -> Proof:
    """Validate any number of cases, in groups that are quick to compile."""
    total = Proof()
    for at in range(0, len(cases), CHUNK):
        total.add(prove(cases[at : at + CHUNK]))
    return total


def _placements(
    machine: Machine, proof: Proof, chosen: Sequence[tuple[Case, Rule]]
) -> Iterator[_Placement]:
    for case, rule in chosen:
        if case.numpy is None:
            machine.add((case.name, "whole"), reference_function(machine, case))
        for number, factor in enumerate(rule.factors):
            for count in counts_of(factor):
                program = None
                if case.numpy is None:
                    key = (case.name, number, count)
                    try:
                        program = local_program(machine, case, factor, count, key)
                    except Exception as error:
                        why = f"factor {number} over {count}: {last_line(error)}"
                        proof.failures[case.name].append(why)
                        continue
                yield _Placement(case, number, factor, count, program)


def _reference(machine: Machine, case: Case, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    if case.numpy is not None:
        return [case.numpy(*inputs)]
    return machine.run((case.name, "whole"), inputs)


def blocks(x: np.ndarray, dim: int | None, count: int, fill: Any) -> list[np.ndarray]:
    """Return the shard of an operand on each device, padded at its end."""
    if dim is None:
        return [x] * count
    missing = -(-x.shape[dim] // count) * count - x.shape[dim]
    if missing:
        widths = [(0, missing if d == dim else 0) for d in range(x.ndim)]
        x = np.pad(x, widths, constant_values=fill)
    return np.split(x, count, axis=dim)


def _fill(case: Case, number: int, factor: Factor, dtype: np.dtype[np.generic]) -> object:
    """Return the padding value, which shows in a result that reads it."""
    if number in case.fills:
        return case.fills[number]
    if dtype.kind == "f":
        return np.nan
    return 3 if factor.reduces and dtype.kind in "iu" else 0


def close(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    """Return whether two results are the same, bit for bit without a tolerance."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if tolerance == 0:
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


def _differs(
    machine: Machine, placement: _Placement, reference: Sequence[np.ndarray]
) -> str | None:
    case, factor, count = placement.case, placement.factor, placement.count
    dims = [factor.ins[slot] for slot in case.slots]
    operands = [
        blocks(x, d, count, _fill(case, i, factor, x.dtype))
        for i, (x, d) in enumerate(zip(case.inputs(0), dims, strict=True))
    ]
    shards = [[blocks[rank] for blocks in operands] for rank in range(count)]
    if placement.program is not None:
        ranks = placement.program.run(machine, shards)
    elif case.numpy is not None:
        ranks = [[case.numpy(*operand_shards)] for operand_shards in shards]
    for j, expected in enumerate(reference):
        parts = [results[j] for results in ranks]
        if factor.leaves_terms(j):
            got = reduced(factor.kind, parts).astype(expected.dtype)
        elif (dim := factor.outs[j]) is None:
            if not all(close(p, parts[0], 0) for p in parts):
                return f"result {j} differs between devices"
            got = parts[0]
        else:
            got = np.concatenate(parts, axis=dim)
            got = np.take(got, range(expected.shape[dim]), axis=dim)
        if not close(got, expected, case.tolerance):
            return f"result {j} differs"
    return None


def _left_out(case: Case, rule: Rule) -> list[tuple[int, ...]]:
    """Return the float operands in no linear group, each alone and all together."""
    linear_inputs = {i for group in rule.linear for i in group}
    floats = [
        i for i, x in enumerate(case.inputs(0)) if x.dtype.kind == "f" and i not in linear_inputs
    ]
    return [*((i,) for i in floats), *([tuple(floats)] if len(floats) > 1 else [])]


def not_linear(machine: Machine, case: Case, group: Sequence[int]) -> str | None:
    """Return whether f(a) + f(b) is not f(a + b), for terms in the operands of a group."""
    first, other = case.inputs(0), case.inputs(1)
    terms = [first, [b if i in group else a for i, (a, b) in enumerate(zip(first, other))]]
    with np.errstate(all="ignore"):  # infinities of both signs may meet
        total = [a + b if i in group else a for i, (a, b) in enumerate(zip(*terms))]
    parts = [_reference(machine, case, t) for t in terms]
    for a, b, w in zip(*parts, _reference(machine, case, total)):
        with np.errstate(all="ignore"):
            joined = (a + b).astype(w.dtype)
        if not close(joined, w, case.tolerance):
            return "f(a) + f(b) differs from f(a + b)"
    return None
