# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""match_factor: the labels around a call name one factor, none, or are refused."""

from __future__ import annotations

import pytest
from tvm import relax

from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.match import describe_factor, match_factor
from tvm_distir.execution.rule_validation.cases import var
from tvm_distir.support.errors.tree import PropagationError

op = relax.op


def rule(call):
    return rule_of(relax.BlockBuilder().normalize(call))


def kind(matched, r):
    return None if matched is None else describe_factor(r.factors[matched])


@pytest.mark.parametrize(
    ("ins", "outs", "expected"),
    [
        ((R, R), (R,), None),
        ((0, R), (0,), "S(0), R -> S(0)"),
        ((R, 1), (1,), "R, S(1) -> S(1)"),
        ((1, 0), (R,), "S(1), S(0) -> P(sum)"),
        ((1, 0), (P,), "S(1), S(0) -> P(sum)"),
        ((1, None), (R,), "S(1), S(0) -> P(sum)"),
        ((None, 1), (1,), "R, S(1) -> S(1)"),
        ((None, None), (0,), "S(0), R -> S(0)"),
        ((None, None), (R,), None),
        ((P, R), (R,), None),
        ((P, None), (P,), None),
    ],
)
def test_matmul_labels(ins, outs, expected):
    r = rule(op.matmul(var(4, 6), var(6, 2)))
    assert kind(match_factor(r, ins, outs), r) == expected


@pytest.mark.parametrize(
    ("ins", "outs"),
    [
        ((0, R), (R,)),  # the result is cut, not whole
        ((0, R), (1,)),
        ((1, R), (R,)),  # the other operand's rows must be cut too
        ((0, 1), (0,)),  # two factors along one axis
        ((P, 1), (1,)),
        ((P, P), (R,)),  # linear in each, not in both
        ((R, R), (P,)),
        ((R, R), (0,)),
    ],
)
def test_matmul_refuses(ins, outs):
    r = rule(op.matmul(var(4, 6), var(6, 2)))
    with pytest.raises(PropagationError, match="DIST0405"):
        match_factor(r, ins, outs)


def test_jointly_linear_operands():
    r = rule(op.add(var(4), var(4)))
    assert match_factor(r, (P, P), (P,)) is None
    assert match_factor(r, (P, None), (P,)) is None  # a constant is at hand as a term too
    with pytest.raises(PropagationError, match="DIST0405"):
        match_factor(r, (P, R), (P,))


def test_the_message_says_what_would_fit_and_why():
    r = rule(op.sort(var(4, 6), -1))
    with pytest.raises(PropagationError) as caught:
        match_factor(r, (1,), (1,), location="main/lv3")
    error = caught.value
    assert (error.code, error.location) == ("DIST0405", "main/lv3")
    assert "in0.dim1: it is sorted" in error.what
    assert "S(0) -> S(0)" in error.remedy


def test_a_wrong_number_of_labels_is_refused():
    r = rule(op.matmul(var(4, 6), var(6, 2)))
    with pytest.raises(PropagationError, match=r"DIST0405.*1 operand and 1 result"):
        match_factor(r, (R,), (R,))


def test_several_results_move_together():
    r = rule(op.split(var(4, 6), 2, axis=1))
    assert match_factor(r, (0,), (0, 0)) == 0
    with pytest.raises(PropagationError, match="DIST0405"):
        match_factor(r, (0,), (0, R))
