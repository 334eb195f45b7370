# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A rule cannot offer a cut that no local form carries out; what calls send is what rules say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.core.ops.rule_cases.all_cases import TABLE
from tvm_distir.core.ir import static_shape
from tvm_distir.core.ops import registry, size_bytes
from tvm_distir.core.ops.draft import Draft
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.padding import Padding, Reduced
from tvm_distir.core.ops.registration import SAME_OP
from tvm_distir.core.ops.registry import register_sharding_rule
from tvm_distir.execution.rule_validation.cases import Case, var
from tvm_distir.execution.rule_validation.machine import Machine
from tvm_distir.execution.rule_validation.program import local_program
from tvm_distir.execution.rule_validation.proof import prove
from tvm_distir.support.errors.tree import PropagationError

op = relax.op


def normal(call):
    return relax.BlockBuilder().normalize(call)


@pytest.fixture
def own_rules(monkeypatch):
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    yield
    registry._generation += 1


def all_dims(kind="map", **more):
    """A rule that cuts every dim of a call of one operand."""

    def write(call):
        draft = Draft(call)
        for d in range(len(call.ins[0])):
            draft.tie({0: d}, {0: d}, kind, **more)
        return draft

    return write


@pytest.mark.parametrize("name", ["tril", "triu"])
def test_a_rule_that_names_no_local_form_is_refused_where_tir_does_not_prove_it(own_rules, name):
    """The results depend on the position: such a rule once lowered to wrong numbers."""
    register_sharding_rule(f"relax.{name}", override=True)(all_dims())
    with pytest.raises(PropagationError) as caught:
        rule_of(normal(getattr(op, name)(var(4, 6))))
    assert caught.value.code == "DIST0418"
    assert caught.value.location == f"relax.{name}"
    assert "local=SAME_OP" in caught.value.remedy


def test_a_rule_that_names_no_local_form_is_taken_where_tir_proves_it(own_rules):
    register_sharding_rule("relax.exp", override=True)(all_dims())
    call = op.exp(var(4, 7))
    assert [f.ins for f in rule_of(normal(call)).factors] == [(0,), (1,)]
    assert prove([Case("exp", call)]).wrong == {}


def test_a_rule_for_an_op_without_kernel_needs_a_local_form(own_rules):
    register_sharding_rule("relax.unique", override=True)(all_dims())
    with pytest.raises(PropagationError, match=r"DIST0418.*no legalization"):
        rule_of(op.unique(var(6)), None, relax.TensorType([6], "float32"))


@pytest.mark.parametrize(("kind", "more"), [("stat", {}), ("halo", {}), ("map", {"comm_bytes": 8})])
def test_what_is_exchanged_inside_is_not_in_the_op_itself(own_rules, kind, more):
    register_sharding_rule("relax.exp", override=True, local=SAME_OP)(all_dims(kind, **more))
    with pytest.raises(PropagationError, match=r"DIST0418.*communication inside"):
        rule_of(normal(op.exp(var(4, 6))))


def test_a_reduced_dim_is_uneven_only_where_the_padding_is_spoken_of(own_rules):
    def write(call):
        draft = Draft(call)
        draft.tie({0: 1}, {}, "sum")
        return draft

    call = normal(op.sum(var(4, 7), axis=1))
    register_sharding_rule("relax.sum", override=True, local=SAME_OP)(write)
    assert [f.uneven for f in rule_of(call).factors] == [False]
    message = Padding(Reduced.ZEROS)
    register_sharding_rule("relax.sum", override=True, local=SAME_OP, padding=message)(write)
    assert [f.uneven for f in rule_of(call).factors] == [True]


def test_a_wrong_claim_is_found_by_the_proof(own_rules):
    register_sharding_rule("relax.tril", override=True, local=SAME_OP)(all_dims())
    wrong = prove([Case("tril", op.tril(var(4, 6)))]).wrong
    assert list(wrong) == ["tril"] and len(wrong["tril"]) == 4


#: Reductions are priced by one of two statistics; what sends otherwise is priced as it sends.
STATISTICS = {
    **dict.fromkeys(("relax.cumsum", "relax.cumprod", "relax.topk"), 1.0),
    # The extreme is a float32, its place an int64.
    **dict.fromkeys(("relax.argmax", "relax.argmin"), 1.5),
    # Two statistics and the weighted results are joined, each as it is priced.
    "relax.dist.paged_attention": 1.0,
    # Of a gradient only the divisor, and no loss, is summed.
    "relax.grad.nll_loss_backward": 1.0,
}


def _exchanging():
    seen = set()
    for case in TABLE:
        for factor in case.rule().factors:
            half = any("float16" in str(v.ty.dtype) for v in case.operands)
            key = (case.op, factor.kind)
            if factor.kind in ("stat", "halo") and key not in seen and not half:
                if isinstance(factor.size, int) and factor.size % 2 == 0 and factor.comm_bytes:
                    seen.add(key)
                    yield pytest.param(case, factor, id=f"{case.name} {factor.kind}")


@pytest.mark.parametrize(("case", "factor"), list(_exchanging()))
def test_what_a_call_sends_inside_is_what_its_rule_says(case, factor):
    """The operands of the collectives that two devices really run."""
    steps = local_program(Machine(), case, factor, 2, "key").steps
    types = [step.source.ty for step in steps if getattr(step, "source", None) is not None]
    sent = [size_bytes(static_shape(ty) or (), str(ty.dtype)) for ty in types]
    ratio = STATISTICS.get(case.op, 2.0) if factor.kind == "stat" else 1.0
    assert sum(sent) == ratio * factor.comm_bytes, sent


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_an_extreme_of_no_elements_is_refused(name):
    """TVM's kernel writes nothing: there is no right answer, whole or on shards."""
    with pytest.raises(PropagationError, match=f"DIST0419 relax.{name}: dim 1 has no elements"):
        rule_of(normal(getattr(op, name)(var(4, 0), axis=1)))
    assert rule_of(normal(getattr(op, name)(var(0, 4), axis=1))).factors  # no result either


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_a_device_with_padding_only_does_not_count(name, dtype):
    """Five elements over four devices: the last holds none."""
    x = relax.Var("x", relax.TensorType([5, 2], dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(getattr(op, name)(x, axis=0))
        builder.emit_func_output(out)
    plan = {
        "schema_version": 1,
        "mesh": {"tp": 4},
        "rules": [{"param": "x", "placement": "S[0]"}],
    }
    for sign in (1, -1):
        data = (sign * np.arange(1, 11).reshape(5, 2)).astype(dtype)
        mod = td.distribute(builder.get(), td.Plan.from_dict(plan))
        (got,) = td.run(mod, [data], engine="virtual")
        assert np.array_equal(got, getattr(np, name)(data, axis=0))


@pytest.mark.parametrize(("name", "k"), list(itertools.product(("tril", "triu"), (-2, 0, 3))))
def test_triangles_are_cut_along_rows_and_columns_at_once(name, k):
    x = relax.Var("x", relax.TensorType([2, 5, 7], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(getattr(op, name)(x, k))
        builder.emit_func_output(out)
    plan = {
        "schema_version": 1,
        "mesh": {"dp": 2, "tp": 3},
        "rules": [{"param": "x", "placement": "S[1], S[2]"}],
    }
    mod = td.distribute(builder.get(), td.Plan.from_dict(plan))
    data = np.arange(1, 71, dtype="float32").reshape(2, 5, 7)
    (got,) = td.run(mod, [data], engine="virtual")
    assert np.array_equal(got, getattr(np, name)(data, k))
    assert "all_gather" not in mod.script()
