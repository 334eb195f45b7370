# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Problems too wide for elimination: bounds, pruning, the integer program; against all answers."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R_

from tests.nightly import nightly_but
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.propagation.decide import propagate
from tvm_distir.core.propagation.solve import axes_solver, exact
from tvm_distir.core.propagation.solve.exact import minimise
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Problem


def dense_problem(seed, count=9, triples=0):
    """Most pairs of variables have a table, and some triples."""
    rng, tables = np.random.default_rng(seed), Tables()
    domains = [int(n) for n in rng.integers(2, 4, size=count)]
    factors = {}
    scopes = [pair for pair in itertools.combinations(range(count), 2) if rng.random() < 0.8]
    every = list(itertools.combinations(range(count), 3))
    scopes += [every[i] for i in rng.choice(len(every), size=triples, replace=False)]
    for scope in scopes:
        array = rng.integers(0, 100, size=[domains[v] for v in scope]).astype(np.int64)
        if rng.random() < 0.2:
            array[tuple(0 for _ in scope)] = INFINITE
        factors[scope], _ = tables.intern(array)
    return tables, Problem(domains, factors)


def assignments(problem):
    """All of them."""
    return itertools.product(*map(range, problem.domains))


@pytest.mark.parametrize("seed", nightly_but(range(12), range(4)))
@pytest.mark.parametrize("triples", [0, 3])
@pytest.mark.parametrize("limit", [1 << 20, 200, 30, 4])
def test_wide_problems_reach_the_optimum(seed, limit, triples):
    """With limits that elimination exceeds early, late and never."""
    tables, problem = dense_problem(seed, triples=triples)
    best = min(tables.evaluate(problem, values)[0] for values in assignments(problem))
    result = minimise(tables, problem, limit, "test")
    assert result.feasible
    assert tables.evaluate(problem, result.values)[0] == best
    assert result.gap <= 1


@pytest.mark.parametrize("seed", range(12))
def test_the_integer_program_reaches_the_optimum(seed, monkeypatch):
    """Bounds that get no time leave everything to the solver."""
    monkeypatch.setattr(exact, "ROUNDS", 1)
    tables, problem = dense_problem(seed)
    best = min(tables.evaluate(problem, values)[0] for values in assignments(problem))
    requests = []
    real = exact.integer_optimum
    monkeypatch.setattr(exact, "integer_optimum", lambda *a: requests.append(1) or real(*a))
    result = minimise(tables, problem, 4, "test")
    assert requests
    assert tables.evaluate(problem, result.values)[0] == best
    assert result.gap <= 1


def test_what_cannot_be_is_told():
    """Three variables that must differ in pairs, and have two states each."""
    tables = Tables()
    differ, _ = tables.intern(np.array([[INFINITE, 0], [0, INFINITE]], dtype=np.int64))
    problem = Problem([2] * 3, {pair: differ for pair in itertools.combinations(range(3), 2)})
    assert not minimise(tables, problem, 4, "test").feasible


@pytest.mark.parametrize("seed", range(40))
def test_bounds_hold_and_no_optimum_is_dropped(seed):
    """In every round: the bound is at most the optimum, and all optimal states are left."""
    rng, tables = np.random.default_rng(seed), Tables()
    domains = [int(n) for n in rng.integers(2, 5, size=7)]
    top = 10 ** int(rng.integers(1, 13))
    factors = {}
    for pair in itertools.combinations(range(7), 2):
        if rng.random() < 0.7:
            array = rng.integers(0, top, size=[domains[v] for v in pair]).astype(np.int64)
            factors[pair], _ = tables.intern(array)
    for v in range(7):
        factors[(v,)], _ = tables.intern(rng.integers(0, top, size=domains[v]).astype(np.int64))
    problem = Problem(domains, factors)
    prices = {values: tables.evaluate(problem, values)[0] for values in assignments(problem)}
    least = min(prices.values())
    optimal = [values for values, price in prices.items() if price == least]
    dual, before = tables.dual(problem, max(prices.values())), 0
    for _ in range(30):
        bound, best = dual.round()
        assert before <= bound <= least <= best
        assert tables.evaluate(problem, dual.labels())[0] == best
        before, states = bound, dual.prune()
        for values in optimal:
            assert all(value in left for value, left in zip(values, states, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_from_any_messages(seed):
    """Those of another problem, and such as no problem has."""
    tables, problem = dense_problem(seed, count=6)
    prices = {values: tables.evaluate(problem, values)[0] for values in assignments(problem)}
    least, rng = min(prices.values()), np.random.default_rng(seed)
    optimal = [values for values, price in prices.items() if price == least]
    first = tables.dual(problem, 1000)
    messages = first.messages()
    first.round()
    for inputs in (first.messages(), rng.integers(-(1 << 40), 1 << 40, size=len(messages))):
        inputs[0] = int(rng.integers(0, 30))
        dual, before = tables.dual(problem, 1000), 0
        dual.resume(inputs)
        for _ in range(20):
            bound, best = dual.round()
            assert before <= bound <= least <= best
            before, states = bound, dual.prune()
            for values in optimal:
                assert all(value in left for value, left in zip(values, states, strict=True))


def test_messages_that_promise_nothing_are_let_go():
    """A chain of which each table and variable is told much: the sum of it has no 64 bits."""
    tables, count = Tables(), 40
    table, _ = tables.intern(np.array([[0, 3], [5, 7]]))
    problem = Problem([2] * count, {(v, v + 1): table for v in range(count - 1)})
    dual = tables.dual(problem, 1 << 56)
    inputs = dual.messages()
    inputs[2::2] = 1 << 62
    dual.resume(inputs)
    assert dual.round() == (0, 0)


def test_messages_of_another_problem_are_refused():
    tables, problem = dense_problem(0)
    dual = tables.dual(problem, 1000)
    with pytest.raises(ValueError, match="belong to another problem"):
        dual.resume(dual.messages()[:-1])


@pytest.mark.parametrize("limit", nightly_but([200, 30, 4], {1}))
@pytest.mark.parametrize("rounds", [exact.ROUNDS, 10])
def test_what_was_found_hastens_and_does_not_mislead(limit, rounds, monkeypatch):
    """Problems of one structure, solved one after the other, reach their own optima."""
    monkeypatch.setattr(exact, "ROUNDS", rounds)
    starts, (_, problem) = exact.WarmStarts(), dense_problem(5, triples=2)
    for seed in range(8):
        rng, tables = np.random.default_rng(seed), Tables()
        factors = {
            scope: tables.intern(rng.integers(0, 100, size=[problem.domains[v] for v in scope]))[0]
            for scope in problem.factors
        }
        mine = Problem(problem.domains, factors)
        best = min(tables.evaluate(mine, values)[0] for values in assignments(mine))
        for _ in range(2):
            result = minimise(tables, mine, limit, "test", starts)
            assert tables.evaluate(mine, result.values)[0] == best
            assert result.gap <= 1


def test_the_optimum_among_some_states():
    """In the states of the problem; none where it is too wide."""
    tables, problem = dense_problem(4)
    states = [[n - 1] if v % 3 == 0 else list(range(n))[-2:] for v, n in enumerate(problem.domains)]
    best = min(tables.evaluate(problem, values)[0] for values in itertools.product(*states))
    values, feasible = tables.optimum(problem, states, INFINITE)
    assert feasible and tables.evaluate(problem, values)[0] == best
    assert all(value in left for value, left in zip(values, states, strict=True))
    assert tables.optimum(problem, states, 4) is None


def test_restriction():
    """A restricted problem costs what the whole one does."""
    tables, problem = dense_problem(3, triples=2)
    states = [[0] if v % 4 == 0 else list(range(n))[-2:] for v, n in enumerate(problem.domains)]
    left = tables.restrict(problem, states)
    for values in assignments(left.problem):
        labels = [mine[i] for mine, i in zip(states, values, strict=True)]
        total, forbidden = tables.evaluate(left.problem, values)
        expected, never = tables.evaluate(problem, labels)
        assert forbidden == never
        if not never:
            assert left.constant + total == expected


def test_all_variables_go_or_none():
    """Where every bucket fits all variables go as without a limit, else nothing is joined."""
    tables, problem = dense_problem(3, triples=2)
    plain = tables.eliminate(problem)
    limits = (1 << i for i in range(40))
    least = next(i for i in limits if not tables.eliminate(problem, limit=i).factors)
    values = [0] * len(problem.domains)
    done = tables.eliminate_all(problem, least)
    assert done is not None and done.constant == plain.constant
    assert tables.decode(done, values) == tables.decode(plain, values)
    joins = tables.joins
    assert tables.eliminate_all(problem, least // 2) is None
    assert tables.joins == joins


def dense_module(count=6):
    """Every layer adds up all earlier ones."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 16), "float32"))
    ws = [relax.Var(f"w{i}", relax.TensorType((16, 16), "float32")) for i in range(count)]
    with bb.function("main", [x, *ws]):
        with bb.dataflow():
            created = [x]
            for w in ws:
                total = created[0]
                for value in created[1:]:
                    total = bb.emit(R_.add(total, value))
                created.append(bb.emit(R_.nn.relu(bb.emit(R_.matmul(total, w)))))
            out = bb.emit_output(created[-1])
        bb.emit_func_output(out)
    return bb.get()


def annotated():
    """The dense module with some placements that conflict."""
    rules = [{"param": "x", "placement": "S[0]"}, {"param": "w0", "placement": "S[1]"}]
    rules += [{"param": f"w{i}", "placement": f"S[{i % 2}]"} for i in range(1, 6)]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"tp": 4}, "rules": rules})
    return AnnotateSharding(plan)(dense_module())


def test_propagation_through_the_integer_program_costs_the_same(monkeypatch):
    """A module that needs wide tables: limit and rounds lowered, the same cost is found."""
    plain = propagate(annotated())
    calls = []
    real = exact.integer_optimum
    monkeypatch.setattr(axes_solver, "TABLE_LIMIT", 4)
    monkeypatch.setattr(exact, "ROUNDS", 1)
    monkeypatch.setattr(exact, "integer_optimum", lambda *a: calls.append(1) or real(*a))
    result = propagate(annotated())
    assert calls
    assert result.bound <= plain.cost <= result.cost
    assert result.cost - plain.cost <= 1e-6 * plain.cost


SOLVING = """
import itertools
import numpy as np
from tvm_distir.core.propagation.solve.ilp import integer_optimum
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import Problem

rng, tables = np.random.default_rng(0), Tables()
scopes = itertools.combinations(range(9), 2)
factors = {scope: tables.intern(rng.integers(0, 99, (3, 3)))[0] for scope in scopes}
problem = Problem([3] * 9, factors)
assert integer_optimum(tables, problem).values
assert integer_optimum(tables, problem, known=[0] * 9).values
"""


def test_the_solver_prints_nothing():
    """Neither when it begins nor when it solves, with a start or without: results go to stdout."""
    done = subprocess.run([sys.executable, "-c", SOLVING], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
