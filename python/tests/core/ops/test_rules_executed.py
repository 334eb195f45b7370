# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every rule against the op itself: sharded runs give the whole result.

These are some of the cases; ``scripts/checks/check_rules.py`` runs all of them.
"""

from __future__ import annotations

import dataclasses

import pytest
from tvm.relax import op

from tests.core.ops.op_coverage import op_coverage
from tests.core.ops.rule_cases.all_cases import TABLE, UNPROVED, WHOLE, quick
from tests.core.ops.rule_lowered import check_lowered, exchanges
from tvm_distir.core.ops import registry
from tvm_distir.core.ops.factor import Factor
from tvm_distir.execution.rule_validation.cases import Case, var
from tvm_distir.execution.rule_validation.draws import index_below
from tvm_distir.execution.rule_validation.proof import prove

INT = "int64"
#: Ops whose rules do not say that they are linear, though they are.
STILL = {
    f"relax.{name}"
    for name in "grad.no_grad grad.start_checkpoint grad.end_checkpoint memory.ensure_zero_offset "
    "full zeros_like image.resize2d image.resize3d".split()
}
#: Cases of which something may be cut: of the others nothing is executed beside the whole.
EXECUTED = [c for c in quick() if c.rule().factors or c.rule().linear]
QUICK = [EXECUTED[at : at + 60] for at in range(0, len(EXECUTED), 60)]


def _offered():
    return {row.op for row in op_coverage() if row.source in ("hand", "derived")}


@pytest.mark.parametrize("number", range(len(QUICK)))
def test_sharded_runs_give_the_whole_result(number, proved):
    proof = prove(QUICK[number])
    proved.add(proof)
    assert proof.wrong == {}
    assert proof.placements > len(QUICK[number])


def test_every_op_with_a_rule_is_proved():
    """A new rule without a case fails here: add the case, or say why there can be none."""
    named = {c.op for c in TABLE}
    assert sorted(_offered() - named - set(UNPROVED)) == []
    assert sorted(set(UNPROVED) & named) == []
    assert sorted(set(UNPROVED) - _offered()) == []
    assert {c.op for c in quick()} == named


def test_every_proof_proves_something():
    """Ops of which nothing is executed are those of which nothing may be cut."""
    offering = {c.op for c in TABLE if c.rule().factors or c.rule().linear}
    assert sorted({c.op for c in TABLE} - offering) == sorted(WHOLE)
    for c in TABLE:
        if c.op in WHOLE:
            assert c.rule().why_replicated or not c.operands, c.name
            assert all(c.rule().why_replicated.values())


def test_a_rule_without_a_case_would_be_found(monkeypatch):
    monkeypatch.setitem(registry._known, "relax.unique", None)
    assert _offered() - {c.op for c in TABLE} - set(UNPROVED) == {"relax.unique"}


def test_factors_that_exchange_data_inside_hold_when_lowered():
    softmax = [c for c in TABLE if "softmax" in c.op]
    first = {c.op: c for c in reversed(TABLE)}
    some = {c.name: c for c in [*softmax, *first.values()]}
    inside = [c for c in some.values() if any(map(exchanges, c.rule().factors))]
    assert {c.op for c in softmax} <= {c.op for c in inside}
    ran = set()
    for c in inside:
        placements, wrong = check_lowered(c, only_inside=True)
        assert wrong == [], c.name
        ran |= {c.op} if placements else set()
    assert ran == {c.op for c in inside}


def _planted(case, change):
    rule = case.rule()
    factors = tuple(change(f) for f in rule.factors)
    return dataclasses.replace(rule, factors=tuple(f for f in factors if f is not None))


def test_planted_faults_are_caught():
    def swapped(factor):
        ins = tuple(None if d is None else 1 - d for d in factor.ins)
        return dataclasses.replace(factor, ins=ins)

    def kept(kind):
        return lambda f: dataclasses.replace(f, kind=kind) if f.reduces else None

    def mapped(factor):
        if not factor.reduces:
            return None
        return dataclasses.replace(factor, kind="map", outs=(None,))

    def unscaled(factor):
        return dataclasses.replace(factor, rescale=False) if factor.rescale else None

    def moved(factor):
        outs = tuple(None if d is None else 1 - d for d in factor.outs)
        return dataclasses.replace(factor, outs=outs)

    planted = [
        (Case("swapped operands", op.matmul(var(6, 6), var(6, 6))), swapped),
        (Case("wrong reduction", op.matmul(var(4, 6), var(6, 2))), kept("max")),
        (Case("dropped reduction", op.matmul(var(4, 6), var(6, 2))), mapped),
        (Case("not rescaled", op.nn.cross_entropy_with_logits(var(4, 6), var(4, 6))), unscaled),
        (Case("wrong result dim", op.add(var(6, 6), var(6, 6))), moved),
        (
            Case(
                "no reduction of a take",
                op.take(var(6, 4), var(3, dtype=INT), axis=0, mode="clip"),
                {1: index_below(6)},
            ),
            mapped,
        ),
    ]
    cases = [c for c, _ in planted]
    rules = [_planted(c, change) for c, change in planted]
    assert all(r.factors for r in rules)
    failures = prove(cases, rules).failures
    assert [name for name, result in failures.items() if not result] == []


def test_planted_linear_groups_are_caught():
    cases = [
        Case("relu", op.nn.relu(var(4, 6))),
        Case("add in one", op.add(var(4, 6), var(4, 6))),
        Case("multiply in both", op.multiply(var(4, 6), var(4, 6))),
        Case("max", op.max(var(4, 6), axis=1)),
    ]
    groups = [((0,),), ((0,),), ((0, 1),), ((0,),)]
    rules = [dataclasses.replace(c.rule(), linear=g) for c, g in zip(cases, groups)]
    failures = prove(cases, rules).failures
    assert [name for name, result in failures.items() if not result] == []


UNREAD = "grad.nll_loss_backward"
"""Reads the shape of its predictions only: however they are cut, the result is right."""


def test_any_two_swapped_factors_are_caught():
    """The operand dims of one factor with the result dims of another, for one call per op."""
    cases, rules = [], []
    for c in quick()[::7]:
        rule = c.rule()
        maps = [f for f in rule.factors if f.kind == "map" and f.uneven and f.size > 3]
        if len(maps) < 2 or c.numpy is not None or c.name.startswith(UNREAD):
            continue
        first, second = maps[:2]
        swapped = dataclasses.replace(first, outs=second.outs, size=first.size)
        cases.append(c)
        rules.append(dataclasses.replace(rule, factors=(swapped,), linear=()))
    assert len(cases) >= 8
    failures = prove(cases, rules).failures
    assert [name for name, result in failures.items() if not result] == []


def test_padding_that_is_read_is_caught():
    """A padded row is NaN: a rule that forgets to say that it is read fails."""
    claims = [
        Case("sort", op.sort(var(5, 3), axis=0)),
        Case("median", op.median(var(5, 3), axis=[0], keepdims=True)),
        Case("flip", op.flip(var(5, 3), 0)),
    ]
    rules = []
    for c in claims:
        along = Factor(5, (0,), (0,), uneven=True)
        rules.append(dataclasses.replace(c.rule(), factors=(along,), linear=()))
    failures = prove(claims, rules).failures
    assert [name for name, result in failures.items() if not result] == []


def test_a_linear_group_for_every_nonlinear_op_is_caught():
    seen, cases, rules = set(), [], []
    for c in TABLE:
        floats = all(str(v.ty.dtype) == "float32" for v in c.operands)
        if c.rule().linear or c.op in seen or not floats or not c.operands or c.op in STILL:
            continue
        seen.add(c.op)
        cases.append(c)
        rules.append(dataclasses.replace(c.rule(), factors=(), linear=((0,),)))
    assert len(cases) >= 60
    failures = prove(cases, rules).failures
    assert [name for name, result in failures.items() if not result] == []
