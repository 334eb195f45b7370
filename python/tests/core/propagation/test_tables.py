# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Variable elimination against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Problem


def random_problem(rng, tables):
    """Domains, factors over one to three variables, and the constant interning took out."""
    domains = [int(n) for n in rng.integers(2, 4, size=rng.integers(2, 7))]
    factors, constant = {}, 0
    for _ in range(int(rng.integers(1, 9))):
        size = int(rng.integers(1, min(3, len(domains)) + 1))
        scope = tuple(sorted(rng.choice(len(domains), size=size, replace=False).tolist()))
        array = rng.integers(0, 50, size=[domains[v] for v in scope]).astype(np.int64)
        if rng.random() < 0.3:
            array[tuple(rng.integers(0, domains[v]) for v in scope)] = INFINITE
        number, low = tables.intern(array)
        constant += low
        if scope in factors:
            number, low = tables.add(factors[scope], number)
            constant += low
        factors[scope] = number
    return domains, factors, constant


def brute_force(tables, domains, factors):
    """Least sum over all assignments."""
    return min(
        tables.evaluate(Problem(domains, factors), values)[0]
        for values in itertools.product(*map(range, domains))
    )


@pytest.mark.parametrize("seed", range(150))
def test_elimination_finds_the_minimum(seed):
    """The decoded assignment reaches the minimum of the exhaustive search."""
    rng, tables = np.random.default_rng(seed), Tables()
    domains, factors, _ = random_problem(rng, tables)
    best = brute_force(tables, domains, factors)
    done = tables.eliminate(Problem(domains, factors))
    assert not done.factors
    values = tables.decode(done, [0] * len(domains))
    total, forbidden = tables.evaluate(Problem(domains, factors), values)
    if best < INFINITE:
        assert done.constant == best
        assert total == best
    else:
        assert not done.feasible or forbidden


@pytest.mark.parametrize("seed", range(60))
def test_a_summary_keeps_the_minimum_for_every_boundary(seed):
    """With variables kept, the tables left give the minimum over the others, for each value."""
    rng, tables = np.random.default_rng(1000 + seed), Tables()
    domains, factors, _ = random_problem(rng, tables)
    keep = sorted(rng.choice(len(domains), size=min(2, len(domains)), replace=False).tolist())
    done = tables.eliminate(Problem(domains, factors), keep)
    assert done.kept == keep
    for outside in itertools.product(*[range(domains[v]) for v in keep]):
        fixed = dict(zip(keep, outside))
        best = min(
            tables.evaluate(Problem(domains, factors), values)[0]
            for values in itertools.product(*map(range, domains))
            if all(values[v] == x for v, x in fixed.items())
        )
        values = [fixed.get(v, 0) for v in range(len(domains))]
        left, forbidden = tables.evaluate(Problem(domains, done.factors), values)
        values = tables.decode(done, values)
        if best < INFINITE:
            assert done.constant + left == best
            assert tables.evaluate(Problem(domains, factors), values)[0] == best
        else:
            assert not done.feasible or forbidden


def test_equal_tables_are_kept_once():
    """A table and the same table shifted by a constant have one number."""
    tables = Tables()
    single, low = tables.intern(np.array([[3, 5], [4, 9]], dtype=np.int64))
    two, high = tables.intern(np.array([[103, 105], [104, 109]], dtype=np.int64))
    assert single == two
    assert (low, high) == (3, 103)
    assert tables.count == 1


def test_a_repeated_chain_costs_the_joins_of_a_short_one():
    """Eliminating a chain ten times as long joins no more tables: they are look-ups."""
    counts = []
    for length in (20, 200):
        tables = Tables()
        rng = np.random.default_rng(0)
        number, _ = tables.intern(rng.integers(0, 9, size=(3, 3)).astype(np.int64))
        factors = {(v, v + 1): number for v in range(length)}
        tables.eliminate(Problem([3] * (length + 1), factors))
        counts.append(tables.joins)
    assert counts[1] <= counts[0] + 12
