# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit the numbers of like programs exactly by sums of a few monomials in sizes.

A number is known for some samples. It is a monomial where its logarithm is linear in those of the
sizes, with integer exponents. Other numbers are sums of monomials that occur beside them (the bytes
of a kernel are the sum of its operands), with rational coefficients that all samples confirm, of
which there are more than terms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tvm_distir.support import memoized

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Exponents = tuple[int, ...]

MOST_TERMS = 4
_LARGEST = float(1 << 62)
_CLOSE = 1e-9


@dataclass(frozen=True)
class Formula:
    """Sum of monomials.

    Attributes
    ----------
    terms : tuple of (Fraction, tuple of int)
        Coefficient, and exponent of each size.
    least : tuple of Formula
        The least of these is added: a look-up reads its table once at most.
    """

    terms: tuple[tuple[Fraction, Exponents], ...] = ()
    least: tuple[Formula, ...] = ()


def power(sizes: Sequence[int], exponents: Exponents) -> Fraction:
    """Return a monomial without its coefficient."""
    product = Fraction(1)
    for size, exponent in zip(sizes, exponents, strict=True):
        product *= Fraction(size) ** exponent
    return product


class FormulaFit:
    """Fit of formulas to samples.

    Parameters
    ----------
    sizes : sequence of sequence of int
        The sizes of each sample.
    """

    def __init__(self, sizes: Sequence[Sequence[int]]) -> None:
        self.sizes = [tuple(row) for row in sizes]
        logs = np.log(np.array(sizes, np.float64)).reshape(len(sizes), -1)
        self.used = independent(logs[1:] - logs[0])
        self._solve = np.linalg.pinv((logs[1:] - logs[0])[:, self.used])

    def monomial(self, values: Sequence[int]) -> Formula | None:
        """Return the monomial that a number is; None where it is none."""
        if not any(values):
            return Formula()
        if not all(values):
            return None
        logs = np.log(np.array(values, np.float64))
        solution = self._solve @ (logs[1:] - logs[0]) if self.used else np.zeros(0)
        rounded = np.rint(solution)
        if np.abs(solution - rounded).max(initial=0.0) > 1e-6:
            return None
        exponents = [0] * len(self.sizes[0])
        for position, exponent in zip(self.used, rounded.tolist(), strict=True):
            exponents[position] = int(exponent)
        powers = self.powers(tuple(exponents))
        factor = Fraction(values[0]) / powers[0]
        if any(factor * p != v for p, v in zip(powers, values, strict=True)):
            return None
        return Formula(((factor, tuple(exponents)),))

    @memoized
    def powers(self, exponents: Exponents) -> list[Fraction]:
        """Return a monomial without its coefficient at all samples."""
        return [power(row, exponents) for row in self.sizes]

    def total(self, values: Sequence[int], basis: Iterable[Exponents]) -> Formula | None:
        """Return the sum of few monomials of a basis that a number is; None where it is none."""
        known = list(dict.fromkeys(basis))
        if not known:
            return None
        table = np.array([[float(p) for p in self.powers(e)] for e in known]).T
        scaled = table / np.array(values, np.float64)[:, None]
        for count in range(2, min(MOST_TERMS, len(self.sizes) - 2, len(known)) + 1):
            for chosen in _fitting(scaled, count):
                formula = self._exact(values, [known[k] for k in chosen])
                if formula is not None:
                    return formula
        return None

    def _exact(self, values: Sequence[int], chosen: Sequence[Exponents]) -> Formula | None:
        """Return the coefficients of monomials that give a number at all samples."""
        rows = [
            [*(self.powers(e)[s] for e in chosen), Fraction(value)]
            for s, value in enumerate(values)
        ]
        coefficients = _solved(rows, len(chosen))
        return (
            None if coefficients is None else Formula(tuple(zip(coefficients, chosen, strict=True)))
        )


def independent(table: Floats) -> list[int]:
    """Return the columns that do not follow from those before them."""
    result: list[int] = []
    for column in range(table.shape[1]):
        if np.linalg.matrix_rank(table[:, [*result, column]], 1e-9) > len(result):
            result.append(column)
    return result


def _fitting(scaled: Floats, count: int) -> list[tuple[int, ...]]:
    """Return the subsets of so many columns that sum to 1 in all rows."""
    subsets = np.array(list(itertools.combinations(range(scaled.shape[1]), count)))
    bases: list[tuple[int, ...]] = []
    for part in np.array_split(subsets, len(subsets) // 4096 + 1):
        tables = scaled[:, part].transpose(1, 0, 2)
        solved = np.linalg.pinv(tables) @ np.ones((scaled.shape[0], 1))
        error = np.abs(tables @ solved - 1.0).max(axis=(1, 2))
        bases += [tuple(basis) for basis in part[error < _CLOSE].tolist()]
    return bases


def _solved(rows: list[list[Fraction]], unknown: int) -> list[Fraction] | None:
    """Return the solution of overdetermined linear equations; None where there is none."""
    rows = [list(row) for row in rows]
    for column in range(unknown):
        pivot = next((r for r in range(column, len(rows)) if rows[r][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column]
        for row in range(len(rows)):
            if row != column and rows[row][column]:
                by = rows[row][column] / head[column]
                rows[row] = [a - by * b for a, b in zip(rows[row], head, strict=True)]
    if any(row[-1] for row in rows[unknown:]):
        return None
    return [rows[k][-1] / rows[k][k] for k in range(unknown)]


def evaluate(formulas: Sequence[Formula], sizes: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the formulas for many rows.

    Parameters
    ----------
    formulas : sequence of Formula
    sizes : int64 array (sizes, rows)

    Returns
    -------
    values : int64 array (formulas, rows)
    exact : bool array (rows,)
        A flag per row, whether all values are integers and fit.
    """
    known: dict[tuple[int, ...], tuple[Ints, Floats]] = {}
    values = np.zeros((len(formulas), sizes.shape[1]), np.int64)
    exact = np.ones(sizes.shape[1], bool)
    for number, formula in enumerate(formulas):
        values[number], fits = _terms(formula, sizes, known)
        exact &= fits
        if formula.least:
            parts = [_terms(terms, sizes, known) for terms in formula.least]
            values[number] += np.min([values_of_term for values_of_term, _ in parts], axis=0)
            for _, fits in parts:
                exact &= fits
    return values, exact


def _terms(
    formula: Formula, sizes: Ints, known: dict[tuple[int, ...], tuple[Ints, Floats]]
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the sum of a formula's terms, and where it is an integer and fits."""
    rows = sizes.shape[1]
    common = math.lcm(*(factor.denominator for factor, _ in formula.terms))
    total, size = np.zeros(rows, np.int64), np.zeros(rows)
    exact = np.ones(rows, bool)
    for factor, exponents in formula.terms:
        above, large = _product(sizes, tuple(max(e, 0) for e in exponents), known)
        below, _ = _product(sizes, tuple(max(-e, 0) for e in exponents), known)
        scale = int(factor * common)
        size += large * abs(float(scale))
        if len(formula.terms) == 1:
            below = below * common
        part = above * scale
        if any(e < 0 for e in exponents) or common > 1:
            part, rest = np.divmod(part, below)
            exact &= rest == 0
        total += part
    if len(formula.terms) > 1:
        exact &= total % common == 0
        total //= common
    return total, exact & (size < _LARGEST)


def _product(
    sizes: Ints, exponents: Exponents, known: dict[tuple[int, ...], tuple[Ints, Floats]]
) -> tuple[Ints, Floats]:
    """Return the product of powers of sizes, as integers and roughly."""
    if exponents not in known:
        product, large = np.ones(sizes.shape[1], np.int64), np.ones(sizes.shape[1])
        for size, exponent in zip(sizes, exponents, strict=True):
            for _ in range(exponent):
                product, large = product * size, large * size
        known[exponents] = product, large
    return known[exponents]
