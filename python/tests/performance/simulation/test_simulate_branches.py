# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""An ``If`` costs its dearer branch: times worked out by hand, on the system of round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.performance.simulation.hand_programs import MICRO, SYSTEM, Build, program
from tvm_distir.performance.program.parts import Op
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.support.errors.tree import SimulationError


def choosing(then_us, else_us, condition_us=5):
    """``main``: a condition, then one op of either branch, then one op of 1 us."""
    then = Build().param("x").compute("t", "x", then_us, 10)
    other = Build().param("x").param("z").compute("e", "z", else_us, 10)
    main = Build().param("x", 10).param("z", 10).compute("c", "x", condition_us, 1)
    inputs = main.of("c x x z")
    outputs = (main.new("y", 10),)
    main.ops.append(Op("y", "branch", "If", inputs, outputs, callee="then", otherwise="other"))
    main.compute("out", "y", 1, 10)
    functions = {"then": then.done("t"), "other": other.done("e"), "main": main.done("out")}
    return program((("a",), (2,)), **functions)


@pytest.mark.parametrize(
    ("then_us", "else_us", "taken"),
    [(20, 7, "then"), (7, 20, "other"), (9, 9, "then")],
)
def test_the_dearer_branch_runs_and_is_named(then_us, else_us, taken):
    """It starts when the condition is there: 5 us, the branch, 1 us."""
    for fold in (True, False):
        result = simulate(choosing(then_us, else_us), SYSTEM, fold_devices=fold)
        assert result.time_s == pytest.approx((5 + max(then_us, else_us) + 1) * MICRO)
    (branch,) = result.branches
    assert (branch.place, branch.taken) == ("main/y", taken)
    assert {branch.taken, branch.other} == {"then", "other"}
    assert branch.taken_s == pytest.approx(max(then_us, else_us) * MICRO)
    assert branch.other_s == pytest.approx(min(then_us, else_us) * MICRO)
    assert result.to_dict()["branches"] == [vars(branch)]


def test_a_branch_waits_for_a_condition_that_is_communicated():
    """All-reduce of 4000 bytes by 4: 10 us, 6 steps of 1 us, 6000 bytes at 1000 a us; then 9, 1.

    The condition comes over the wire, so nothing but itself keeps the branch from starting.
    """
    then = Build().param("x").compute("t", "x", 9, 10)
    other = Build().param("x").compute("e", "x", 4, 10)
    main = Build().param("x", 10).param("p", 4000).collective("c", "p", "all_reduce", 4000, 4)
    inputs, outputs = main.of("c x x"), (main.new("y", 10),)
    main.ops.append(Op("y", "branch", "If", inputs, outputs, callee="then", otherwise="other"))
    main.compute("out", "y", 1, 10)
    functions = {"then": then.done("t"), "other": other.done("e"), "main": main.done("out")}
    for fold in (True, False):
        result = simulate(program((("a",), (4,)), **functions), SYSTEM, fold_devices=fold)
        assert result.time_s == pytest.approx((10 + 6 + 6 + 9 + 1) * MICRO)


def test_a_branch_survives_json():
    created = choosing(3, 4)
    assert Program.from_json(created.to_json()) == created


def test_programs_with_broken_branches_are_refused():
    """A missing function, a wrong number of operands, one function only."""
    good = choosing(3, 4)
    (at,) = (i for i, op in enumerate(good.functions["main"].ops) if op.kind == "branch")
    for change, message in (
        ({"otherwise": "nobody"}, "no function 'nobody'"),
        ({"inputs": good.functions["main"].ops[at].inputs[:-1]}, "take 4 tensors, the call has 3"),
        ({"otherwise": ""}, "at least 1 character|two functions"),
    ):
        ops = list(good.functions["main"].ops)
        ops[at] = ops[at]._replace(**change)
        main = replace(good.functions["main"], ops=tuple(ops))
        broken = replace(good, functions={**good.functions, "main": main})
        with pytest.raises(SimulationError, match=message):
            Program.from_json(broken.to_json())
