# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random modules, meshes and plans the whole way; `scripts/checks/campaign.py` runs many more."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, relax

from tests.campaign import (
    campaign_check,
    campaign_modules,
    campaign_plans,
    campaign_runner,
    campaign_saved,
    campaign_shrink,
)
from tests.campaign.campaign_check import Case, Outcome
from tvm_distir.core.ops.families import reductions
from tvm_distir.core.ops.local import masking
from tvm_distir.core.passes.lower.passes import LowerDistIR

SEEDS = (1000, 1030)
REFUSALS = {"DIST0411"}
"""What a random plan may ask for that cannot be: a stationary placement no op can use."""


def test_random_cases_equal_one_device():
    """No wrong value, traceback, broken invariant, hang or crash, but those known to be open."""
    known = {saved.case.seed for saved in campaign_saved.load_all() if saved.still_open}
    counts, failures = collections.Counter(), []
    for seed, outcome in campaign_runner.outcomes(*SEEDS):
        counts[outcome.kind] += 1
        if seed in known:
            continue
        if outcome.bad or (outcome.kind == "refused" and outcome.what not in REFUSALS):
            failures.append((seed, outcome))
    assert not failures
    assert counts["ok"] >= 0.75 * (SEEDS[1] - SEEDS[0]), counts


def _calls(mod):
    for fn in mod.functions.values():
        if not isinstance(fn, relax.Function):
            continue
        for block in fn.body.blocks:
            for binding in block.bindings:
                if isinstance(binding.value, relax.If):
                    yield "If"
                if isinstance(binding.value, ir.Call):
                    yield str(getattr(binding.value.op, "name", "private call"))


def test_the_generator_reaches_everything():
    """Over some hundred seeds: ops of every family, private calls, tuples, blocks, meshes."""
    ops, kinds, meshes, types = set(), set(), set(), set()
    for seed in range(400):
        mod = campaign_modules.sample(seed).mod
        plan = campaign_plans.plan_dict(seed, mod)
        ops.update(_calls(mod))
        types.update(str(p.ty.dtype) for p in mod["main"].params)
        kinds.update(next(k for k in ("param", "value", "call") if k in r) for r in plan["rules"])
        kinds.update("stationary" for r in plan["rules"] if r.get("stationary"))
        shapes = [
            m["axes"] for m in plan.get("meshes", {"mesh0": {"axes": plan.get("mesh")}}).values()
        ]
        meshes.add((len(shapes), len(shapes[0])))
        assert sum(int(np.prod(list(s.values()))) for s in shapes) <= 16
    assert len(ops) >= 50
    assert {"private call", "relax.nn.conv2d", "relax.take", "relax.topk", "relax.prod"} <= ops
    assert {"relax.max", "relax.min", "relax.argmax", "relax.argmin"} <= ops
    assert {"relax.call_tir", "relax.nn.attention", "relax.scatter_elements", "If"} <= ops
    assert {"float32", "float64", "float16", "bfloat16", "int32"} <= types
    assert kinds == {"param", "value", "call", "stationary"}
    assert meshes >= {(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)}


def test_a_seed_gives_one_case():
    for seed in (3, 17, 40):
        single, two = Case.of_seed(seed), Case.of_seed(seed)
        assert tvm_ffi.structural_equal(single.mod, two.mod)
        assert (single.plan, single.exact) == (two.plan, two.exact)


@relax.expr_functor.mutator
class _Twice(relax.PyExprMutator):
    """Counts every all_reduce twice."""

    def visit_call_(self, call):
        remaining = super().visit_call_(call)
        if isinstance(call.op, ir.Op) and str(call.op.name) == "relax.dist.all_reduce":
            once = self.builder_.emit(remaining)
            return relax.op.add(once, once)
        return remaining


def _faulty():
    """LowerDistIR with a fault planted."""

    class Pass:
        def __call__(self, mod):
            out = LowerDistIR()(mod)
            return ir.IRModule(
                {
                    gv: _Twice(out).visit_expr(f) if isinstance(f, relax.Function) else f
                    for gv, f in out.functions.items()
                },
                attrs=out.attrs,
                global_infos=out.global_infos,
            )

    return Pass()


def _matmul_case():
    builder = relax.BlockBuilder()
    x, y = (relax.Var(n, relax.TensorType([8, 8], "float32")) for n in ("x", "y"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            near = builder.emit(relax.op.nn.relu(relax.op.add(x, x)))
            product = builder.emit(relax.op.matmul(near, y))
            out = builder.emit_output(relax.op.negative(product))
        builder.emit_func_output(out)
    rules = [
        {"param": p, "placement": s, "stationary": True}
        for p, s in (("x", "S[1], R"), ("y", "S[0], R"))
    ]
    plan = {"schema_version": 1, "mesh": {"a0": 2, "a1": 2}, "rules": rules}
    return Case(builder.get(), plan, (True,), 5)


def test_a_planted_fault_is_found_and_shrunk(monkeypatch, tmp_path):
    """The check sees a planted fault; the shrunk case fails alike and survives its files."""
    case = _matmul_case()
    assert campaign_check.check(case).kind == "ok"
    monkeypatch.setattr(campaign_check, "LowerDistIR", _faulty)
    outcome = campaign_check.check(case)
    assert (outcome.kind, outcome.what) == ("WRONG", "value")
    small = campaign_shrink.shrink(case, outcome, limit_s=60)
    assert set(_calls(small.mod)) <= {"relax.matmul", "relax.negative"}
    assert len(small.plan["mesh"]) == 1
    name = campaign_saved.save(small, outcome, tmp_path)
    (saved,) = campaign_saved.load_all(tmp_path)
    assert saved.name == name
    assert tvm_ffi.structural_equal(saved.case.mod, small.mod)
    assert campaign_check.check(saved.case).key == outcome.key
    monkeypatch.undo()
    assert campaign_check.check(saved.case).kind == "ok"


def _extreme_case(op, values, size):
    """An extreme along a dim that is cut, beside one along a dim that is whole."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([size, 3], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            matches = [builder.emit(getattr(relax.op, op)(x, axis)) for axis in (0, 1)]
            out = builder.emit_output(relax.Tuple(matches))
        builder.emit_func_output(out)
    rules = [{"param": "x", "placement": "S[0]", "stationary": True}]
    plan = {"schema_version": 1, "mesh": {"a": 4}, "rules": rules}
    return Case(builder.get(), plan, (True, True), 3, values)


OF_ONE_SIGN = [("max", "negative"), ("argmax", "negative"), ("min", "positive")]
OF_ONE_SIGN += [("argmin", "positive")]


@pytest.mark.parametrize(("op", "values"), OF_ONE_SIGN)
@pytest.mark.parametrize("size", [5, 6, 7])
def test_extremes_of_one_sign_on_uneven_cuts(op, values, size):
    """Zeros in the padding would be the extreme; one device may hold padding alone."""
    assert campaign_check.check(_extreme_case(op, values, size)).kind == "ok"


@pytest.mark.parametrize(("op", "values"), OF_ONE_SIGN)
def test_an_extreme_without_neutral_padding_is_found(monkeypatch, op, values):
    """Of mixed signs it is not: this is what values of one sign are drawn for."""
    monkeypatch.setattr(reductions, "fill_padding", lambda cx, x, *_: x)
    monkeypatch.setattr(masking, "_neutralise", lambda *_: None)
    result = campaign_check.check(_extreme_case(op, values, 7))
    assert (result.kind, result.what) == ("WRONG", "value")
    assert campaign_check.check(_extreme_case(op, "mixed", 7)).kind == "ok"


def test_seeds_draw_values_of_one_sign():
    signs = {}
    for seed in range(8):
        case = Case.of_seed(seed)
        drawn = [
            a.astype("float64")
            for a in campaign_modules.inputs_of(case.mod, seed, case.values)
            if a.dtype.kind not in "iub"
        ]
        signs[case.values] = {s for a in drawn for s in np.sign(a).ravel()} | signs.get(
            case.values, set()
        )
    assert signs == {
        "mixed": {-1, 0, 1},
        "positive": {1},
        "negative": {-1},
        "scaled": {-1, 1},
        "scaled positive": {1},
    }


def test_nans_are_values_where_they_are_asked_for():
    """They are equal to each other, and to nothing else."""
    case = _extreme_case("max", "nan", 8)
    (x,) = campaign_modules.inputs_of(case.mod, 3, "nan")
    assert np.isnan(x).any() and not np.isnan(x).all()
    first, other = np.array([1, np.nan], "float32"), np.array([1, 0], "float32")
    for bits in (True, False):
        assert campaign_check.compare("virtual", [first], [first], [bits]).kind == "ok"
        assert campaign_check.compare("virtual", [other], [first], [bits]).kind == "WRONG"
    builder = relax.BlockBuilder()
    y = relax.Var("y", relax.TensorType([6, 3], "float32"))
    with builder.function("main", [y]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.sum(y, 1))
        builder.emit_func_output(out)
    plan = {**case.plan, "rules": [{"param": "y", "placement": "S[0]"}]}
    assert campaign_check.check(Case(builder.get(), plan, (True,), 3, "nan")).kind == "ok"


@pytest.mark.parametrize(
    ("got", "kind", "what"),
    [
        (np.array([1, 2], "float32"), "ok", ""),
        (np.array([1, 2.0001], "float32"), "WRONG", "rounding"),
        (np.array([1, 3], "float32"), "WRONG", "value"),
        (np.array([[1, 2]], "float32"), "WRONG", "type"),
    ],
)
def test_exact_outputs_are_compared_by_bits(got, kind, what):
    result = campaign_check.compare("virtual", [got], [np.array([1, 2], "float32")], [True])
    assert (result.kind, result.what) == (kind, what)


def test_a_worker_that_hangs_or_dies_costs_one_seed(monkeypatch):
    """A seed without an answer is a HANG, one whose process ends a CRASH; the next one runs."""
    bodies = {7: "time.sleep(60)", 8: "os._exit(9)"}

    def lines(first, last, threads_every, values):
        steps = [
            "import json, os, time",
            f"print({campaign_runner.MARK!r} + 'ready', flush=True)",
        ]
        for seed in range(first, last):
            answer = campaign_runner.MARK + f'[{seed}, {{"kind": "ok"}}]'
            steps.append(bodies.get(seed, f"print({answer!r}, flush=True)"))
        return "\n".join(steps)

    monkeypatch.setattr(campaign_runner, "worker_code", lines)
    matches = [o.kind for _, o in campaign_runner.outcomes(6, 10, limit_s=1.0)]
    assert matches == ["ok", "HANG", "CRASH", "ok"]
    assert Outcome("HANG").bad
