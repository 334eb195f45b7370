# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Faults planted in the lowering: verify finds them and names where the values part."""

from __future__ import annotations

import re
from importlib import import_module

import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.passes.lower import moves
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification import bisect
from tvm_distir.execution.verification.instrumented import TracedProgram
from tvm_distir.execution.verification.verifying import verify
from tvm_distir.interface.command.app import main
from tvm_distir.support.errors.tree import MismatchError

R = relax.op


def var(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(list(shape), dtype))


def layered(dtype="float32", layers=2):
    """``main(x, up, down, last)``: layers in a private function, then a product of its own."""
    builder = relax.BlockBuilder()
    x, up, down = (
        var(n, *s, dtype=dtype) for n, s in (("x", (4, 8)), ("up", (8, 16)), ("down", (16, 8)))
    )
    with builder.function("layer", [x, up, down], private=True):
        with builder.dataflow():
            wide = builder.emit(R.matmul(x, up), "wide")
            bent = builder.emit(R.nn.relu(wide), "bent")
            back = builder.emit(R.matmul(bent, down), "back")
            out = builder.emit_output(R.add(x, back), "out")
        layer = builder.emit_func_output(out)
    x, up, down, last = (
        var(n, *s, dtype=dtype)
        for n, s in (("x", (4, 8)), ("up", (8, 16)), ("down", (16, 8)), ("last", (8, 6)))
    )
    with builder.function("main", [x, up, down, last]):
        with builder.dataflow():
            value = builder.emit(R.multiply(x, x), "squared")
            for number in range(layers):
                value = builder.emit(ir.Call(layer, [value, up, down]), f"layer{number}")
            scores = builder.emit(R.matmul(value, last), "scores")
            out = builder.emit_output(R.nn.relu(scores), "final")
        builder.emit_func_output(out)
    return builder.get()


def plan(axes=None, rules=()):
    axes = axes or {"tp": 2}
    return td.Plan.from_dict({"schema_version": 1, "mesh": axes, "rules": list(rules)})


COLUMNS_THEN_ROWS = [
    {"param": "up", "placement": "S[1]"},
    {"param": "down", "placement": "S[0]"},
    {"param": "last", "placement": "S[1]"},
]


def plant(monkeypatch, expected, change, skip=0):
    """Change what the lowering writes for some kinds of collectives, after the first ``skip``."""
    write = moves.collective
    seen = []

    def collective(writer, kind, attrs, x, want, name):
        result = write(writer, kind, attrs, x, want, name)
        if kind not in expected.split() or result is x:
            return result
        seen.append(kind)
        return change(writer, writer.builder.normalize(result), x) if len(seen) > skip else result

    monkeypatch.setattr(moves, "collective", collective)
    # neither what was learnt before counts, nor does the fault outlive the test
    monkeypatch.setattr(import_module("tvm_distir.core.ops.class_memo"), "_memories", {})


def doubled(writer, result, _):
    once = writer.emit(result, "once")
    return R.add(once, once)


def left_out(writer, result, operand):
    return R.add(operand, operand)


def of_rank(writer, result, _):
    """Only the second rank of the axis gets it right."""
    once = writer.emit(result, "once")
    mesh = result.attrs["device_mesh"]
    index = writer.emit(ops.axis_index(mesh, 0), "index")
    return R.multiply(once, writer.emit(R.astype(index, "float32"), "factor"))


def found(mod, the_plan, **options):
    report = verify(mod, the_plan, **options)
    assert not report.equal
    return report


def test_without_a_fault_nothing_is_looked_for(monkeypatch):
    monkeypatch.setattr(bisect, "first_difference", None)
    report = verify(layered(), plan(rules=COLUMNS_THEN_ROWS))
    assert report.equal
    assert report.fault is None


@pytest.mark.parametrize("change", [doubled, left_out])
@pytest.mark.parametrize("exact", [False, True])
def test_a_wrong_all_reduce_is_named_inside_the_private_function(monkeypatch, change, exact):
    plant(monkeypatch, "all_reduce", change)
    report = found(layered(), plan(rules=COLUMNS_THEN_ROWS), exact=exact)
    assert (report.fault.function, report.fault.binding) == ("layer", "back")
    assert report.fault.op == "matmul"
    assert report.fault.rank == 0
    assert report.fault.max_abs_diff > report.fault.allowed
    message = r"DIST0690 layer/back \(matmul\): the first value that differs is layer/back"
    with pytest.raises(MismatchError, match=message):
        report.check()


def test_the_command_prints_where_the_values_part(monkeypatch, tmp_path, capsys):
    (tmp_path / "m.py").write_text(layered().script(show_meta=True), encoding="utf-8")
    plan(rules=COLUMNS_THEN_ROWS).save(tmp_path / "p.json")
    plant(monkeypatch, "all_reduce", doubled)
    words = ["verify", str(tmp_path / "m.py"), "--plan", str(tmp_path / "p.json")]
    assert main([*words, "--engine", "virtual"]) == 70
    printed = capsys.readouterr()
    assert "The first value that differs is layer/back (matmul), on rank 0 by up to" in printed.out
    assert "DIST0690 layer/back (matmul)" in printed.err


def test_the_rank_that_is_wrong_is_named(monkeypatch):
    plant(monkeypatch, "all_reduce", of_rank)
    rules = [*COLUMNS_THEN_ROWS[:2], {"param": "last", "placement": "R", "stationary": True}]
    report = found(layered(), plan(rules=rules))
    assert "different bits" in report.replicas
    assert (report.fault.binding, report.fault.rank) == ("back", 0)


def test_a_wrong_all_gather_is_named_as_the_redistribute_it_comes_from(monkeypatch):
    def turned(writer, result, _):
        return R.flip(writer.emit(result, "once"), 1)

    rules = [
        *COLUMNS_THEN_ROWS[:2],
        {"param": "last", "placement": "S[1]", "stationary": True},
        {"value": "final", "placement": "R", "stationary": True},
    ]
    plant(monkeypatch, "all_gather", turned)
    report = found(layered(), plan(rules=rules))
    assert report.fault.function == "main"
    assert report.fault.op in ("dist.redistribute", "nn.relu")


def test_of_several_meshes(monkeypatch):
    """A product on the second mesh, its reduction left out."""
    meshes = {"a": {"axes": {"x": 2}}, "b": {"axes": {"y": 2}, "start": 2}}
    rules = [
        {"param": "up", "placement": "R", "mesh": "a"},
        {"param": "last", "placement": "S[0]", "mesh": "b", "stationary": True},
        {"value": "layer1", "placement": "S[1]", "mesh": "b", "stationary": True},
    ]
    the_plan = td.Plan.from_dict({"schema_version": 1, "meshes": meshes, "rules": rules})
    plant(monkeypatch, "all_reduce reduce_scatter", doubled)
    report = found(layered(), the_plan)
    assert (report.fault.function, report.fault.binding) == ("main", "scores")
    assert report.fault.rank >= 2


def test_a_fault_that_only_an_optimisation_makes_is_told_apart(monkeypatch):
    """Nothing differs once values are returned: that is said, and the difference all the same."""

    def unchanged(mod):
        return mod

    local = td.distribute(layered(), plan(rules=COLUMNS_THEN_ROWS))
    plant(monkeypatch, "all_reduce", doubled)
    broken = td.distribute(layered(), plan(rules=COLUMNS_THEN_ROWS))
    monkeypatch.undo()
    assert verify(layered(), plan(rules=COLUMNS_THEN_ROWS), dist=local).equal
    report = found(layered(), plan(rules=COLUMNS_THEN_ROWS), dist=broken)
    assert report.fault is None
    assert "an optimization is the cause" in report.no_fault
    with pytest.raises(MismatchError, match=r"output 0.*1 of 1 outputs differ.*optimization"):
        report.check()


def test_many_bindings_take_few_runs(monkeypatch):
    """Sixty bindings, the fault in the fortieth: four pairs of runs at most."""
    builder = relax.BlockBuilder()
    x, w = var("x", 4, 8), var("w", 8, 8)
    with builder.function("main", [x, w]):
        with builder.dataflow():
            value = x
            for number in range(30):
                value = builder.emit(R.tanh(value), f"bent{number}")
                value = builder.emit(R.matmul(value, w), f"product{number}")
            out = builder.emit_output(R.negative(value), "out")
        builder.emit_func_output(out)
    runs = []
    differing = bisect._ModulePair.differing
    monkeypatch.setattr(
        bisect._ModulePair,
        "differing",
        lambda self, pairs: runs.append(1) or differing(self, pairs),
    )
    plant(monkeypatch, "all_reduce reduce_scatter", doubled)
    report = found(
        builder.get(), plan(rules=[{"param": "w", "placement": "S[0]", "stationary": True}])
    )
    assert report.fault.binding == "product0"
    assert len(runs) <= 4


def test_an_opened_call_computes_the_same():
    """The body in place of the call, at level 1, run by TVM."""
    traced = TracedProgram.of(layered())
    number = next(i for i, s in enumerate(traced.steps) if s.var.name == "layer0")
    assert traced.can_open(number)
    opened = traced.opened(number)
    assert len(opened.steps) == len(traced.steps) + 4
    rng = np.random.default_rng(3)
    values = [
        rng.integers(-2, 3, [int(n) for n in p.ty.shape]).astype("float32")
        for p in layered()["main"].params
    ]
    last = [(len(t.steps) - 1, ()) for t in (traced, opened)]
    (a,) = Reference(traced.returning([last[0]])).run(values)
    (b,) = Reference(opened.returning([last[1]])).run(values)
    assert np.array_equal(a, b)
    assert np.abs(a).max() > 0


def test_the_text_names_all_that_is_known():
    fault = bisect.Fault("f", "lv", "matmul", 3, 1.5, 0.25)
    assert fault.location() == "f/lv (matmul)"
    assert re.search(r"on rank 3 by up to 1\.5 \(allowed: 0\.25\)", fault.text())
