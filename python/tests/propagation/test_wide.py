# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Problems too wide for elimination: pruning and the integer program, against exact answers."""

from __future__ import annotations

import builtins
import itertools

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R_

from tvm_distir.errors import EnvironmentError_
from tvm_distir.native import Problem, Tables
from tvm_distir.plan import Plan
from tvm_distir.propagation import propagate, propagator, wide
from tvm_distir.propagation.cost import INFINITE
from tvm_distir.transform import AnnotateSharding


def dense_problem(seed, count=9):
    """Every pair of variables has a table."""
    rng, tables = np.random.default_rng(seed), Tables()
    domains = [int(n) for n in rng.integers(2, 4, size=count)]
    factors = {}
    for pair in itertools.combinations(range(count), 2):
        if rng.random() < 0.8:
            array = rng.integers(0, 100, size=[domains[v] for v in pair]).astype(np.int64)
            if rng.random() < 0.2:
                array[0, 0] = INFINITE
            factors[pair], _ = tables.intern(array)
    return tables, domains, factors


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("limit", [1 << 20, 30])
def test_wide_problems_reach_the_optimum(seed, limit):
    """With a limit that elimination exceeds, and with one it does not."""
    pytest.importorskip("scipy", reason="SciPy is an extra: tvm_distir[solver]")
    tables, domains, factors = dense_problem(seed)
    choices = itertools.product(*map(range, domains))
    best = min(tables.evaluate(Problem(domains, factors), v)[0] for v in choices)
    found = wide.solve_wide(tables, Problem(domains, factors), limit, "test")
    assert found.feasible
    assert tables.evaluate(Problem(domains, factors), found.values)[0] == best
    assert found.gap <= 1e-6 * best


def dense_module(count=6):
    """Every layer adds up all earlier ones."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 16), "float32"))
    ws = [relax.Var(f"w{i}", relax.TensorType((16, 16), "float32")) for i in range(count)]
    with bb.function("main", [x, *ws]):
        with bb.dataflow():
            made = [x]
            for w in ws:
                total = made[0]
                for value in made[1:]:
                    total = bb.emit(R_.add(total, value))
                made.append(bb.emit(R_.nn.relu(bb.emit(R_.matmul(total, w)))))
            out = bb.emit_output(made[-1])
        bb.emit_func_output(out)
    return bb.get()


def annotated():
    """The dense module with some placements that conflict."""
    rules = [{"param": "x", "placement": "S[0]"}, {"param": "w0", "placement": "S[1]"}]
    rules += [{"param": f"w{i}", "placement": f"S[{i % 2}]"} for i in range(1, 6)]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"tp": 4}, "rules": rules})
    return AnnotateSharding(plan)(dense_module())


def test_propagation_through_the_integer_program_costs_the_same(monkeypatch):
    """A module that needs wide tables: the limit lowered, the same cost is found."""
    pytest.importorskip("scipy", reason="SciPy is an extra: tvm_distir[solver]")
    exact = propagate(annotated())
    calls = []
    real = wide._core
    monkeypatch.setattr(propagator, "TABLE_LIMIT", 16)
    monkeypatch.setattr(wide, "_core", lambda *args: calls.append(1) or real(*args))
    found = propagate(annotated())
    assert calls
    assert found.bound <= exact.cost <= found.cost
    assert found.cost - exact.cost <= 1e-6 * exact.cost


def test_a_missing_solver_is_named(monkeypatch):
    """Without SciPy the user is told what to install."""
    real = builtins.__import__

    def without_scipy(name, *args, **kwargs):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    tables, domains, factors = dense_problem(0)
    with pytest.raises(EnvironmentError_, match=r"DIST0111.*pip install scipy"):
        wide.solve_wide(tables, Problem(domains, factors), 4, "test")
    assert tvm.__version__
