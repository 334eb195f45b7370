# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The oracles of the solver give each number that the native solver gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.propagation.test_tables import random_problem
from tests.references import KERNELS, using
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Problem


def eliminations(seed):
    """Return what eliminations, restrictions and evaluations of a random problem give."""
    rng, tables = np.random.default_rng(seed), Tables()
    domains, factors, constant = random_problem(rng, tables)
    problem = Problem(domains, factors)
    keep = sorted(rng.choice(len(domains), size=rng.integers(0, len(domains)), replace=False))
    states = [
        sorted(rng.choice(n, size=rng.integers(1, n + 1), replace=False).tolist()) for n in domains
    ]
    done = tables.eliminate(problem, keep=[int(v) for v in keep])
    values = tables.decode(done, [0] * len(domains))
    yield constant, done, values, tables.evaluate(problem, values)
    yield tables.eliminate(problem, limit=int(rng.integers(2, 30)), near=int(rng.integers(0, 4)))
    yield tables.eliminate_all(problem, int(rng.integers(4, 200)))
    restricted = tables.restrict(problem, states)
    yield restricted, list(restricted.problem.factors.items())
    yield tables.optimum(problem, states, int(rng.integers(4, 200)))
    yield tables.count, tables.joins, tables.entries, tables.held
    yield [tables.array(number).tolist() for number in range(tables.count)]


def bounds(seed):
    """Return what the bounds of a random problem of pairs give, round by round."""
    rng, tables = np.random.default_rng(seed), Tables()
    domains = [int(n) for n in rng.integers(1, 5, size=rng.integers(2, 15))]
    factors = {(v,): tables.intern(rng.integers(0, 90, size=n))[0] for v, n in enumerate(domains)}
    for _ in range(2 * len(domains)):
        first, second = sorted(rng.choice(len(domains), size=2, replace=False).tolist())
        array = rng.integers(0, 1 << rng.integers(1, 40), size=(domains[first], domains[second]))
        array[rng.random(array.shape) < 0.1] = INFINITE
        factors[first, second] = tables.intern(array)[0]
    problem = Problem(domains, factors)
    yield tables.eliminate(problem, limit=1 << 12)
    dual = tables.dual(problem, int(rng.choice([10**3, 10**12, INFINITE - 1])))
    for _ in range(4):
        yield dual.round(), dual.excess(), dual.labels(), dual.prune(), dual.messages().tolist()
    other = tables.dual(problem, INFINITE - 1)
    other.resume(dual.messages())
    other.offer(1 << 50, [0] * len(domains))
    yield other.round(), other.labels(), other.messages().tolist()


@pytest.mark.parametrize("results", [eliminations, bounds])
def test_references_equal_the_native_solver(results):
    for seed in range(60):
        outcomes = []
        for kernels in KERNELS:
            with using(kernels):
                outcomes.append(list(results(seed)))
        assert outcomes[0] == outcomes[1], seed
