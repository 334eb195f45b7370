# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``If`` through all levels, by execution: every branch, every placement of the inputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tests.core.passes.branch_modules import (
    CASES,
    C,
    D,
    W,
    X,
    every_way,
    levels,
    module,
    on,
    plan_of,
    two_mesh_plan,
)
from tests.quick_compilation import quick_machine
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.branches import lift_branches, outline_branches
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import labels_of
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.interface.explain.explainer import explain
from tvm_distir.planning import strategies as strategy
from tvm_distir.support.errors.tree import EngineError, LevelError, PlanError, PropagationError
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions

MESHES = ({"a": 2}, {"a": 2, "b": 2})


def placements(mod, mesh, rng, count):
    """Some placements of the tensors of ``main``, each axis on another dim."""
    tensors = {str(p.name): len(p.ty.shape) for p in mod["main"].params if len(p.ty.shape)}
    for _ in range(count):
        matches = {}
        for name, ndim in tensors.items():
            dims = [int(d) for d in rng.permutation(ndim + 1)[: len(mesh)]]
            matches[name] = ", ".join("R" if d == ndim else f"S[{d}]" for d in dims)
        yield matches


def ifs(mod):
    """All ``If`` of a module."""
    matches = []
    for fn in mod.functions.values():
        if isinstance(fn, relax.Function):
            relax.analysis.post_order_visit(
                fn, lambda e: matches.append(e) if isinstance(e, relax.If) else None
            )
    return matches


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_branch_equals_one_device(name):
    """Bit-equal on the engine virtual, for both values of every condition."""
    mod = module(CASES[name])
    count = len(ifs(mod))
    rng = np.random.default_rng(len(name))
    for mesh in MESHES:
        for chosen in placements(mod, mesh, rng, 3 - len(mesh)):
            *_, local = levels(mod, plan_of(mesh, **chosen))
            assert len(ifs(local)) >= count
            reference = Reference(mod)
            for values, inputs in every_way(mod):
                want = reference.run(inputs)
                got = VirtualEngine().run(local, inputs)
                for left, other in zip(got, want, strict=True):
                    assert np.array_equal(left, other), (mesh, chosen, values)


@pytest.mark.parametrize("name", ["nested", "private", "computed"])
def test_engine_threads_takes_the_same_branches(name):
    """TVM's own machine runs the compiled ``If``."""
    mod = module(CASES[name])
    plan = plan_of({"a": 2}, x="S[0]", w="S[0]")
    local = td.distribute(mod, plan)
    for _, inputs in every_way(mod):
        assert td.verify(mod, plan, engine="threads", exact=True, inputs=inputs, dist=local).equal


def test_a_branch_sends_only_what_it_needs():
    """Only the branch that multiplies gathers; what it gathers is gathered inside it."""
    mod = module(
        f"""
def main({C}, {X}, {W}):
    if c:
        y = R.matmul(x, w)
    else:
        y = R.negative(x)
    return y
"""
    )
    plan = plan_of({"a": 2}, x="S[1]", w={"param": "w", "placement": "S[1]", "stationary": True})
    local = td.distribute(mod, plan)
    counts = {}
    for (value,), inputs in every_way(mod):
        engine = VirtualEngine()
        engine.run(local, inputs)
        counts[value] = sum(each.count for each in engine.collectives)
    assert counts == {True: 1, False: 0}
    assert not any("R.dist" in line for line in str(local["main"]).splitlines() if "mesh" in line)


def test_specialisations_of_a_function_have_branches_of_their_own():
    """Two callers of one branch that convert differently: neither gets the other's version."""
    mod = module(CASES["private"])
    plan = plan_of({"a": 4}, v="S[1]")
    *_, local = levels(mod, plan)
    for _, inputs in every_way(mod):
        assert td.verify(mod, plan, exact=True, inputs=inputs, dist=local).equal


def test_a_partial_sum_leaves_the_if_unfinished():
    """Both branches contract a sharded dim: one reduction after the ``If`` for both."""
    mod = module(
        f"""
def main({C}, {X}, {W}, v: R.Tensor((8, 8), "float32")):
    if c:
        y = R.matmul(x, w)
    else:
        y = R.matmul(x, v)
    z = R.add(y, y)
    return z
"""
    )
    plan = plan_of({"a": 2}, x="S[1]", w="S[0]", v="S[0]")
    placed, legal, _ = levels(mod, plan)
    assert "dist.partial" in placed["main_y_then"].attrs
    assert str(legal["main"]).count("R.dist.all_reduce") == 1
    assert "R.dist.all_reduce" not in str(legal["main_y_then"])
    for _, inputs in every_way(mod):
        assert td.verify(mod, plan, exact=True, inputs=inputs).equal


def test_a_partial_sum_meets_a_whole_value():
    """One branch is a partial sum, the other is whole: they agree on a form."""
    mod = module(
        f"""
def main({C}, {X}, {W}):
    if c:
        y = R.matmul(x, w)
    else:
        y = R.const(np.full((4, 8), 2, "float32"))
    z = R.add(y, y)
    return z
"""
    )
    for out in ("S[0]", "S[1]", "R"):
        plan = plan_of(
            {"a": 2}, x="S[1]", w="S[0]", z={"value": "z", "placement": out, "function": "main"}
        )
        levels(mod, plan)
        for _, inputs in every_way(mod):
            assert td.verify(mod, plan, exact=True, inputs=inputs).equal


def test_annotations_inside_branches_count():
    """A value named by the plan inside a branch is placed as asked, stationary or open."""
    mod = module(CASES["matmuls"])
    for stationary in (False, True):
        rule = {"value": "b", "placement": "S[1], ?", "stationary": stationary}
        plan = plan_of({"a": 2, "b": 2}, x="R, S[0]", b=rule)
        placed, *_ = levels(mod, plan)
        matches = {
            labels_of(b.var.ty.placement)[0]
            for block in placed["main_y_else"].body.blocks
            for b in block.bindings
            if str(b.var.name).startswith("b")
        }
        assert 1 in matches
        for _, inputs in every_way(mod):
            assert td.verify(mod, plan, exact=True, inputs=inputs).equal


def test_explain_looks_into_branches():
    mod = module(CASES["matmuls"])
    plan = plan_of({"a": 2}, w="S[1]")
    inside = explain(mod, "main_y_then/a", plan=plan).to_text()
    assert "placement S[1]" in inside
    assert "main/w" in inside
    assert "where" in explain(mod, "y", plan=plan).to_text()


@pytest.mark.parametrize("name", ["data_parallel", "tensor_parallel"])
def test_strategies_plan_for_modules_with_branches(name):
    """They look into branches; what they choose is carried out."""
    mod = module(CASES["matmuls"])
    plan = strategy.make_plan(mod, name, {"dp": 2, "tp": 2})
    assert "S[" in str(plan.to_dict())
    local = td.distribute(mod, plan)
    for _, inputs in every_way(mod):
        assert td.verify(mod, plan, exact=True, inputs=inputs, dist=local).equal


def test_symbolic_sizes():
    """A size that no tensor of the branch gives is handed over as a shape."""
    mod = module(
        f"""
def main({C}, x: R.Tensor(("n", 8), "float32"), {W}):
    if c:
        y = R.matmul(x, w)
    else:
        y = R.full((n, 8), R.const(1.0, "float32"))
    return y
"""
    )
    lifted = lift_branches(mod)
    relax.analysis.well_formed(lifted)
    (sizes,) = (p for p in lifted["main_y_else"].params if p.name == "sizes")
    assert [str(size) for size in sizes.ty.values] == ["n"]
    plan = plan_of({"a": 2}, x="S[0]", w="R")
    placed = PropagateSharding()(AnnotateSharding(plan)(mod))
    relax.analysis.well_formed(placed)
    assert labels_of(placed["main"].ret_ty.placement) == (0,)
    bound = relax.transform.BindSymbolicVars({"n": 6})(mod)
    levels(bound, plan)
    for _, inputs in every_way(bound):
        assert td.verify(bound, plan, exact=True, inputs=inputs).equal


def test_the_input_is_not_changed():
    mod = module(CASES["nested"])
    before = mod.script(show_meta=True)
    td.distribute(mod, plan_of({"a": 2}, x="S[0]"))
    assert mod.script(show_meta=True) == before


def test_branches_are_not_inlined():
    """TVM's memory planner hands storage of one branch to the other: only calls keep them apart."""
    lifted = lift_branches(module(CASES["matmuls"]))
    inlined = InlinePrivateFunctions()(lifted)
    assert [gv.name_hint for gv in inlined.get_global_vars()] == [
        gv.name_hint for gv in lifted.get_global_vars()
    ]
    (name, *_) = [gv.name_hint for gv in lifted.get_global_vars() if gv.name_hint != "main"]
    with pytest.raises(PlanError, match=f'DIST0225.*"{name}" to inline is a branch of an If'):
        InlinePrivateFunctions([name])(lifted)


def test_a_module_without_an_if_is_returned_as_it_is():
    mod = module(f"def main({X}):\n    y = R.add(x, x)\n    return y")
    assert lift_branches(mod).same_as(mod)
    assert outline_branches(mod).same_as(mod)


# what cannot be distributed ------------------------------------------------------------

REFUSED = {
    "impure": (
        f"""
def main({C}, {X}):
    if c:
        p = R.print(x, format="x")
        y = R.add(x, x)
    else:
        y = x
    return y
""",
        r'DIST0413 main/y \(If\).*"then" contains an impure call',
    ),
    "shapes": (
        f"""
def main({C}, {X}):
    if c:
        y = R.sum(x, axis=[0])
    else:
        y = R.sum(x, axis=[1])
    return y
""",
        r'DIST0413 main/y \(If\).*branch "then" returns R.Tensor\(\(8,\)',
    ),
    "no tensor": (
        f"""
def main({C}, {X}):
    if c:
        y = R.shape([4, 8])
    else:
        y = R.shape([8, 4])
    z = R.full(y, R.const(1.0, "float32"))
    return z
""",
        r'DIST0413 main/y \(If\).*branch "then" returns R.Shape.*not a tensor',
    ),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refusals_name_the_if(name):
    text, message = REFUSED[name]
    source = module(text) if name != "impure" else impure(text)
    mod = AnnotateSharding(plan_of({"a": 2}, x="S[0]"))(source)
    with pytest.raises(PropagationError, match=message):
        PropagateSharding()(mod)


def impure(text):
    """The parser demands that a function with effects says so."""
    return module(
        text.replace(":\n    if", ":\n    R.func_attr({'relax.force_pure': 1})\n    if", 1)
    )


def test_an_if_on_one_of_two_meshes():
    """The other mesh knows nothing of it."""
    mod = module(
        f"""
def main({C}, {X}, {W}):
    a = R.matmul(x, w)
    if c:
        y = R.nn.relu(a)
    else:
        y = R.negative(a)
    z = R.add(y, y)
    return z
"""
    )
    plan = two_mesh_plan(on("param", "x", "one", "S[0]"), on("value", "y", "two", "S[1]"))
    local = td.distribute(mod, plan)
    assert len(ifs(local)) == 1
    for _, inputs in every_way(mod):
        for engine in ("virtual", "threads"):
            assert td.verify(mod, plan, engine=engine, exact=True, inputs=inputs, dist=local).equal


# planted faults ------------------------------------------------------------------------


def test_ranks_that_disagree_are_found():
    """A condition that differs between the ranks: refused by virtual, named."""
    mesh = td.device_mesh({"a": 2})
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2], "float32"))
    port = {"index": 0, "name": "x", "shape": [2], "dtype": "float32", "placement": "R"}
    with builder.function(
        "main", [x], {"dist.io": {"mesh": 0, "inputs": [port], "outputs": [port]}}
    ):
        mine = builder.emit(ops.axis_index(mesh, 0))
        cond = builder.emit(relax.op.equal(mine, relax.const(0, "int64")), "cond")
        y = builder.emit(relax.If(cond, relax.SeqExpr([], x), relax.SeqExpr([], x)), "y")
        builder.emit_func_output(y)
    mod = builder.finalize()
    mod.update_global_info("mesh", [mesh])
    with pytest.raises(EngineError, match=r"DIST0604 main/y: ranks 0 and 1 take different"):
        VirtualEngine().run(mod, [np.ones(2, "float32")])


FLAG = """
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [["a", "b"]]}})
    I.module_global_infos({{"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]}})
    @R.function(private=True)
    def flag(x: R.Tensor((4,), "float32")):
        s = R.sum(x)
        return (s, x)
    @R.function
    def main(x: R.Tensor((4,), "float32"), n: R.Tensor((4,), "float32")):
        R.func_attr({{"dist.io": {{"mesh": 0, "inputs": [
            {{"index": 0, "name": "x", "shape": [8], "dtype": "float32", "placement": "S[0], R"}},
            {{"index": 1, "name": "n", "shape": [4], "dtype": "float32", "placement": "R, R"}}],
            "outputs": [
            {{"index": 0, "shape": [8], "dtype": "float32", "placement": "S[0], R"}}]}}}})
        cls = Module
{lines}
        c = R.greater(s, R.const(0.0, "float32"))
        if c:
            y = R.negative(x)
        else:
            y = x
        return (y,)
"""
FLAGS = {
    "an input that is whole": ("s = R.sum(n)", None),
    "of one device": ("s = R.sum(x)", r"\[0\]"),
    "of all devices": ("t = R.sum(x)\ns = ALL(t, [0])", None),
    "reduced along another axis": ("t = R.sum(x)\ns = ALL(t, [1])", r"\[0\]"),
    "gathered": ('g = R.dist.all_gather(x, "mesh[0]", 0, 0)\ns = R.sum(g)', None),
    "cut again": (
        'p = R.dist.local_slice(n, "mesh[0]", 1, 0)\nt = R.sum(p)\ns = ALL(t, [0])',
        r"\[1\]",
    ),
    "scattered": (
        'p = R.dist.reduce_scatter(x, "mesh[0]", 1, 0, "sum")\nt = R.sum(p)\ns = ALL(t, [0])',
        r"\[1\]",
    ),
    "by number": (
        'i = R.dist.axis_index("mesh[0]", 1)\nt = R.astype(i, "float32")\ns = ALL(t, [0])',
        r"\[1\]",
    ),
    "of a call": ("v = cls.flag(n)\ns = v[0]", None),
    "the other result of a call": ("v = cls.flag(x)\ns = v[0]", r"\[0\]"),
    "a field beside a cut one": ("t = R.sum(n)\nv = (x, t)\ns = v[1]", None),
}


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_a_condition_that_may_differ_is_no_level_5(name):
    """Where it comes from says along which axes it may differ: refused where it may."""
    text, axes = FLAGS[name]
    text = text.replace("ALL(t, ", 'R.dist.all_reduce(t, "mesh[0]", ').replace("])", '], "sum")')
    lines = "\n".join(f"        {line}" for line in text.splitlines())
    mod = tvm.script.from_source(FLAG.format(lines=lines))
    if axes is None:
        check_level(mod, 5)
        return
    with pytest.raises(LevelError, match=rf"DIST0451 main/y \(If\): .* differs .* axes {axes}"):
        check_level(mod, 5)


def test_swapped_branches_are_noticed():
    """The comparison of these tests would see an ``If`` whose branches change places."""
    mod = module(CASES["matmuls"])
    plan = plan_of({"a": 2}, x="S[0]")
    text = td.distribute(mod, plan).script(show_meta=True)
    swapped = text.replace("cls.main_y_then(", "cls.OTHER(")
    swapped = swapped.replace("cls.main_y_else(", "cls.main_y_then(")
    local = tvm.script.from_source(swapped.replace("cls.OTHER(", "cls.main_y_else("))
    _, inputs = next(every_way(mod))
    assert not td.verify(mod, plan, exact=True, inputs=inputs, dist=local).equal


# TVM's memory planner ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matmuls", "nested", "dataflow", "handed on"])
def test_outlined_branches_compile_and_run(name):
    """As functions, branches keep their storage to themselves: NumPy is the judge."""
    mod = module(CASES[name])
    machine = quick_machine(outline_branches(mod))
    for values, inputs in every_way(mod):
        *_, x, w = inputs
        want = expected(name, values, x, w)
        got = machine["main"](*(tvm.runtime.tensor(v) for v in inputs)).numpy()
        assert np.array_equal(got, want)


def expected(name, values, x, w):
    """The cases in NumPy."""
    relu = lambda v: np.maximum(v, 0)  # noqa: E731
    c = values[0]
    if name == "matmuls":
        return (relu(x @ w) if c else (x + x) @ w) ** 2
    if name == "handed on":
        return (x @ w if c else np.full((4, 8), 3, "float32")) * (x @ w) + x
    if name == "dataflow":
        h = x @ w + x
        return (relu(h @ w) if c else -(h + x)) * h
    _, d, e = values
    if not c:
        return relu(x)
    a = x @ w
    b = a @ w
    i = relu(b) if e else np.broadcast_to(b.sum(0, keepdims=True), (4, 8))
    return relu((i + x if d else -a) @ w)


def test_a_lowered_module_compiles_with_plain_tvm():
    """What stands at level 5 needs no help of ours to be compiled safely."""
    mod = module(CASES["nested"])
    local = td.distribute(mod, plan_of({"a": 1}, x="S[0]"))
    machine = quick_machine(local)
    for values, inputs in every_way(mod):
        *_, x, w = inputs
        got = machine["main"](*(tvm.runtime.tensor(v) for v in inputs)).numpy()
        assert np.array_equal(got, expected("nested", values, x, w))


def test_every_combination_of_two_flags_is_run():
    """The helper really takes every way."""
    mod = module(f"def main({C}, {D}, {X}):\n    y = R.add(x, x)\n    return y")
    assert [v for v, _ in every_way(mod)] == list(itertools.product([True, False], repeat=2))
