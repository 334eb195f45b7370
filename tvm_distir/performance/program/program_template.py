# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define templates: like programs that differ in numbers, given by formulas."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tvm_distir.support import SimulationError

from .numbers import Numbers, numbers_of
from .parts import Op
from .program import Program
from .size_formulas import Exponents, Formula, FormulaFit, evaluate

Ints = npt.NDArray[np.int64]


@dataclass
class ProgramTemplate:
    """Template of like programs.

    Attributes
    ----------
    program : Program
        The program of a sample, grouped into kernels.
    numbers : Numbers
        The numbers of that program.
    which : int64 array
        The quantity of each number of the program.
    formulas : list of Formula
        The formulas of the quantities, in the symbols.
    """

    program: Program
    numbers: Numbers
    which: Ints
    formulas: list[Formula]

    @staticmethod
    def of(
        programs: Sequence[Program], sizes: Sequence[Sequence[int]], extra: Sequence[Exponents] = ()
    ) -> ProgramTemplate:
        """Fit formulas to programs of the same skeleton, given the symbols of each.

        ``extra`` are monomials that sums may have beside those that occur in the programs.

        Raises
        ------
        SimulationError
            DIST0752 for a number that no formula gives, with its op.
        """
        known = [numbers_of(program) for program in programs]
        table = np.array([sample.values for sample in known], np.int64).T
        distinct, which = np.unique(table, axis=0, return_inverse=True)
        fit = FormulaFit(sizes)
        rows = distinct.tolist()
        formulas = [fit.monomial(row) for row in rows]
        template = ProgramTemplate(programs[0], known[0], which.ravel(), [])
        missing = {number for number, formula in enumerate(formulas) if formula is None}
        for number, basis, ins, outs in template._contexts(missing, formulas):
            if formulas[number] is None:
                formulas[number] = _sum(rows[number], ins, outs, formulas, rows)
            if formulas[number] is None:
                formulas[number] = fit.total(rows[number], [*extra, *basis])
        for number, location in template._locations(missing):
            if formulas[number] is None:
                raise SimulationError(
                    "DIST0752", f"{rows[number][:4]} ... is not a sum of monomials in the sizes",
                    location=location, remedy="Run the rows through the full pipeline one by one.",
                )  # fmt: skip
        template.formulas = [formula for formula in formulas if formula is not None]
        return template

    def at(self, sizes: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return quantities, (quantities, rows), and where all of them are integers."""
        return evaluate(self.formulas, sizes)

    def _contexts(
        self, missing: set[int], formulas: Sequence[Formula | None]
    ) -> Iterator[tuple[int, list[Exponents], Counter[int], Counter[int]]]:
        """Yield the quantities to fit, with candidate monomials, operands and results."""
        numbers, which, none = self.numbers, self.which, Counter[int]()
        everything = _exponents(formulas)
        for name, fn in self.program.functions.items():
            values = which[numbers.value_at[name]].tolist()
            full: list[Exponents] | None = None
            for op, at in zip(fn.ops, numbers.op_at[name], strict=True):
                for number in which[at : at + 3].tolist():
                    if number in missing:
                        ins, outs = _operands(op, values)
                        yield number, _exponents(formulas[q] for q in ins + outs), ins, outs
                        full = full or _exponents(formulas[q] for q in values)
                        yield number, full, none, none
        for number in missing:
            yield number, everything, none, none

    def _locations(self, missing: set[int]) -> Iterator[tuple[int, str]]:
        """Yield where quantities stand, for messages."""
        for name, fn in self.program.functions.items():
            for op, at in zip(fn.ops, self.numbers.op_at[name], strict=True):
                for number in self.which[at : at + 4].tolist():
                    if number in missing:
                        yield number, f"{name}/{op.name} ({op.op})"
        for number in missing:
            yield number, "a tensor"


def _operands(op: Op, values: Sequence[int]) -> tuple[Counter[int], Counter[int]]:
    return Counter(values[i] for i in op.inputs), Counter(values[i] for i in op.outputs)


def _exponents(formulas: Iterable[Formula | None]) -> list[Exponents]:
    """Return all monomials of formulas, each once."""
    return list(
        dict.fromkeys(e for formula in formulas if formula is not None for _, e in formula.terms)
    )


def _sum(
    row: Sequence[int],
    ins: Counter[int],
    outs: Counter[int],
    formulas: Sequence[Formula | None],
    rows: Sequence[Sequence[int]],
) -> Formula | None:
    """Return the bytes of an op as a sum of its operands; of two of them perhaps the lesser."""
    both = ins + outs
    for operands in [outs, ins, both, *(both - Counter([number]) for number in ins)]:
        if _total(operands, rows) == list(row):
            return _added(operands, formulas)
    for left, other in itertools.product(ins, outs):
        least = np.minimum(rows[left], rows[other]).tolist()
        for absorbed in (Counter[int](), *(Counter([i]) for i in ins if i != left)):
            rest = both - Counter([left]) - absorbed
            if [a + b for a, b in zip(_total(rest, rows), least, strict=True)] != list(row):
                continue
            total, first, second = _added(rest, formulas), formulas[left], formulas[other]
            if total is not None and first is not None and second is not None:
                return Formula(total.terms, (first, second))
    return None


def _total(counts: Mapping[int, int], rows: Sequence[Sequence[int]]) -> list[int]:
    """Sum of quantities at all samples."""
    columns = [[count * value for value in rows[number]] for number, count in counts.items()]
    return [sum(column) for column in zip(*columns, strict=True)]


def _added(counts: Mapping[int, int], formulas: Sequence[Formula | None]) -> Formula | None:
    """Sum of formulas; None where a formula is missing."""
    terms: dict[Exponents, Fraction] = {}
    for number, count in counts.items():
        formula = formulas[number]
        if formula is None or formula.least:
            return None
        for factor, exponents in formula.terms:
            terms[exponents] = terms.get(exponents, Fraction(0)) + count * factor
    return Formula(tuple((factor, exponents) for exponents, factor in terms.items()))
