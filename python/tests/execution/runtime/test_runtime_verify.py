# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``run`` and ``verify``, their refusals, and the kernels they compile."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import Placement
from tvm.script import tirx as T

import tvm_distir as td
from tests.execution.runtime.level5_modules import Level5, draw, ops
from tvm_distir.execution.runtime.engines.reference import Reference, strip_annotations
from tvm_distir.execution.runtime.engines.registry import engine, run
from tvm_distir.execution.runtime.program.compilation import compile_module, order_loops
from tvm_distir.execution.runtime.program.targets import host_target
from tvm_distir.execution.verification.compare import TOLERANCES, coarsest_float, compare_output
from tvm_distir.execution.verification.verifying import verify
from tvm_distir.support.errors.tree import EngineError, MismatchError

R = np.random.default_rng
MESH = td.device_mesh({"tp": 2})


def original(body=None, x=(4, 8), w=(8, 6), dtype="float32"):
    """``main(x, w)``; the body defaults to a matrix product and a softmax."""
    bb = relax.BlockBuilder()
    params = [relax.Var(n, relax.TensorType(list(s), dtype)) for n, s in (("x", x), ("w", w))]
    with bb.function("main", params):
        with bb.dataflow():
            y = (body or product)(bb, *params)
            y = bb.emit_output(y)
        bb.emit_func_output(y)
    return bb.finalize()


def product(bb, x, w):
    return bb.emit(relax.op.nn.softmax(bb.emit(relax.op.matmul(x, w))))


def distributed(reduce=True, scale=1.0, dtype="float32"):
    """The same on two devices, the contraction sharded; wrong without the all-reduce."""
    build = Level5(MESH, axes=[["tp"]])

    def body(bb, x, w):
        y = bb.emit(relax.op.matmul(x, w))
        if reduce:
            y = bb.emit(ops.all_reduce(y, MESH, [0], "sum"))
        else:
            y = bb.emit(ops.all_reduce(y, MESH, [0], "max"))
        y = bb.emit(relax.op.nn.softmax(y))
        return bb.emit(relax.op.multiply(y, relax.const(scale, dtype)))

    build.entry(
        [("x", (4, 8), dtype, "S[1]"), ("w", (8, 6), dtype, "S[0]")],
        [("y", (4, 6), dtype, "R")],
        body,
    )
    return build.get()


@pytest.mark.parametrize("name", ["virtual", "threads"])
def test_equal(name):
    report = verify(original(), None, engine=name, dist=distributed())
    assert report.equal
    assert report.check() is report
    assert 0 <= report.max_abs_diff <= report.atol + report.rtol
    data = json.loads(report.to_json())
    assert data["schema_version"] == 1
    assert data["equal"] is True
    assert len(data["outputs"]) == 1
    if name == "virtual":
        (count,) = data["collectives"]
        assert (count["kind"], count["mesh_axis"], count["count"]) == ("all_reduce", "tp", 1)


@pytest.mark.parametrize("change", [{"reduce": False}, {"scale": 1.01}])
def test_unequal(change):
    report = verify(original(), None, dist=distributed(**change))
    assert not report.equal
    with pytest.raises(MismatchError, match=r"DIST0690 output 0: 1 of 1 outputs differ"):
        report.check()


def test_exact_mode_demands_equal_bits():
    def exact(bb, x, w):
        return bb.emit(relax.op.matmul(x, w))

    build = Level5(MESH)
    build.entry(
        [("x", (4, 8), "float32", "S[1]"), ("w", (8, 6), "float32", "S[0]")],
        [("y", (4, 6), "float32", "R")],
        lambda bb, x, w: bb.emit(ops.all_reduce(exact(bb, x, w), MESH, [0], "sum")),
    )
    report = verify(original(exact), None, exact=True, dist=build.get())
    assert (report.equal, report.max_abs_diff, report.atol) == (True, 0.0, 0.0)
    almost = np.nextafter(np.float32(1), np.float32(2)).reshape(1)
    ones = np.ones(1, "float32")
    assert not compare_output(0, almost, ones, True, 0.0, 0.0).equal
    assert compare_output(0, almost, ones, False, 0.0, 1e-4).equal


def test_integers_are_compared_exactly():
    a, b = np.array([1000000]), np.array([1000001])
    assert not compare_output(0, a, b, False, 10.0, 10.0).equal


def test_a_nan_of_ours_is_never_equal():
    ref = np.ones(2, "float32")
    got = np.array([1, np.nan], "float32")
    report = compare_output(0, got, ref, False, 1e9, 1e9)
    assert not report.equal
    assert report.max_abs_diff == np.inf


def test_differences_are_those_of_the_worst_element():
    ref, got = np.array([4.0, 0.0, -8.0]), np.array([4.0, 1.0, -8.5])
    report = compare_output(0, got, ref, False, 0.0, 0.1)
    assert (report.equal, report.max_abs_diff, report.max_rel_diff) == (False, 1.0, 0.125)
    assert compare_output(0, got, ref, False, 1.0, 0.0).equal
    assert compare_output(0, ref[:0], ref[:0], False, 0.0, 0.0).max_rel_diff == 0


def test_inputs_of_ones_own():
    x, w = draw(R(0), (4, 8), "float32"), draw(R(1), (8, 6), "float32")
    report = verify(original(), None, dist=distributed(), inputs={"w": w, "x": x})
    assert report.equal


def test_nan_in_the_reference_is_refused():
    def bad(bb, x, w):
        return bb.emit(relax.op.sqrt(bb.emit(relax.op.matmul(x, w))))

    with pytest.raises(EngineError, match=r"DIST0620 output 0: \d+ of 24 values"):
        verify(original(bad), None, dist=distributed())


@pytest.mark.parametrize(
    "body",
    [
        lambda bb, x, w: bb.emit(relax.op.multiply(x, relax.const(0.0))),
        lambda bb, x, w: bb.emit(relax.op.nn.softmax(bb.emit(relax.op.sum(x, 1, True)))),
    ],
)
def test_a_constant_output_is_refused(body):
    with pytest.raises(EngineError, match="DIST0621 output 0"):
        verify(original(body), None, dist=distributed())


@pytest.mark.parametrize(
    ("distribution", "body"),
    [
        ("below one", lambda x, y: relax.op.acos(x)),
        ("below one", lambda x, y: relax.op.atanh(x)),
        ("above one", lambda x, y: relax.op.acosh(x)),
        ("integers", lambda x, y: relax.op.equal(x, y)),
        ("zeros and ones", lambda x, y: relax.op.astype(relax.op.astype(x, "bool"), "int32")),
    ],
)
def test_data_for_which_a_comparison_can_fail(distribution, body):
    """Data are of the first distribution whose results are finite and vary."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((4, 8), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        builder.emit_func_output(builder.emit(body(x, y)))
    plan = {"schema_version": 1, "mesh": {"a": 2}, "rules": [{"param": "x", "placement": "S[0]"}]}
    report = verify(builder.get(), plan)
    assert (report.equal, report.distribution) == (True, distribution)
    assert f"data {distribution}" in str(report)


def test_constants_are_compared():
    """A constant that no input can change is not refused, and compared all the same."""

    def module(value):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 8), "float32"))
        with builder.function("main", [x]):
            filled = builder.emit(relax.op.full_like(x, relax.const(value, "float32")))
            builder.emit_func_output(relax.Tuple([builder.emit(relax.op.exp(x)), filled]))
        return builder.get()

    plan = {"schema_version": 1, "mesh": {"a": 2}, "rules": [{"param": "x", "placement": "S[0]"}]}
    assert verify(module(1.0), plan).equal
    wrong = verify(module(1.0), plan, dist=td.distribute(module(2.0), plan), locate=False)
    assert [output.equal for output in wrong.outputs] == [True, False]


def test_kernels_that_write_nothing_are_refused():
    """Results that a kernel leaves as memory was would differ by chance."""

    @T.prim_func(private=True)
    def nothing(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32")):
        T.evaluate(0)

    builder = relax.BlockBuilder()
    kernel = builder.add_func(nothing, "nothing")
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.call_tir(kernel, x, x.ty)))
    plan = {"schema_version": 1, "mesh": {"a": 2}, "rules": []}
    with pytest.raises(EngineError, match=r"DIST0621.*the kernel nothing"):
        verify(builder.get(), plan)


def test_run_takes_an_engine_by_name_or_object():
    x, w = draw(R(0), (4, 8), "float32"), draw(R(1), (8, 6), "float32")
    by_name = run(distributed(), [x, w])
    (by_object,) = run(distributed(), {"x": x, "w": w}, engine("virtual"))
    assert np.array_equal(by_name[0], by_object)


def test_an_unknown_engine_names_the_nearest():
    with pytest.raises(EngineError, match=r'DIST0601.*"processes".*Use "threads", or "torch"'):
        td.execution.engine("processes")
    with pytest.raises(EngineError, match=r'DIST0601.*"thread".*Did you mean "threads"'):
        run(distributed(), [], "thread")


def test_a_module_without_dist_io_is_refused():
    with pytest.raises(EngineError, match=r"DIST0603.*LowerDistIR"):
        run(original(), [], "virtual")


def annotated(bb, x, w):
    marked = relax.op.distributed.annotate_sharding(x, MESH, Placement.from_text("S[1]"))
    return product(bb, bb.emit(marked), w)


def test_annotations_are_stripped_for_the_reference():
    mod = original(annotated)
    mod.update_global_info("mesh", [MESH])
    assert "annotate_sharding" in mod.script()
    assert "annotate_sharding" not in strip_annotations(mod).script()
    assert "annotate_sharding" in mod.script()
    x, w = (R(i).standard_normal(s).astype("float32") for i, s in enumerate([(4, 8), (8, 6)]))
    (a,), (b,) = Reference(mod).run([x, w]), Reference(original()).run([x, w])
    assert np.array_equal(a, b)


def test_the_coarsest_type_chooses_the_tolerance():
    def mixed(bb, x, w):
        half = bb.emit(relax.op.astype(bb.emit(relax.op.matmul(x, w)), "bfloat16"))
        return bb.emit(relax.op.astype(half, "float32"))

    assert coarsest_float(original()) == "float32"
    assert coarsest_float(original(mixed)) == "bfloat16"
    rtols = [TOLERANCES[t][0] for t in ("float64", "float32")]
    assert rtols == sorted(rtols)


KERNELS = {
    "matmul": ((8, 96), (96, 64), lambda x, w: relax.op.matmul(x, w)),
    "odd columns": ((8, 96), (96, 67), lambda x, w: relax.op.matmul(x, w)),
    "odd columns, few": ((40, 96), (96, 13), lambda x, w: relax.op.matmul(x, w)),
    "odd rows": ((7, 96), (96, 128), lambda x, w: relax.op.matmul(x, w)),
    "batched": ((3, 8, 40), (3, 40, 72), lambda x, w: relax.op.matmul(x, w)),
    "convolution": ((2, 8, 14, 14), (16, 8, 3, 3), lambda x, w: relax.op.nn.conv2d(x, w)),
    "small plane": ((2, 32, 9, 9), (16, 32, 3, 3), lambda x, w: relax.op.nn.conv2d(x, w)),
    "strided": ((2, 8, 18, 18), (16, 8, 3, 3), lambda x, w: relax.op.nn.conv2d(x, w, strides=2)),
    "sum": ((64, 1024), (1,), lambda x, w: relax.op.sum(x, 1)),
}


@pytest.mark.optimized
@pytest.mark.parametrize("name", KERNELS)
def test_reordered_loops_give_the_bits_of_the_default_build(name):
    xs, ws, make = KERNELS[name]
    mod = original(lambda bb, x, w: bb.emit(make(x, w)), xs, ws)
    x, w = (R(i).standard_normal(s).astype("float32") for i, s in enumerate([xs, ws]))
    legal = relax.transform.LegalizeOps()(mod)
    changed = not tvm_ffi.structural_equal(order_loops(legal), legal)
    assert changed == (name != "sum")
    results = []
    for built in (tvm.compile(mod, host_target()), compile_module(mod)):
        machine = relax.VirtualMachine(built, tvm.cpu())
        results.append(machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy())
    assert np.array_equal(*results)


def test_a_module_that_does_not_compile_is_named():
    with pytest.raises(EngineError, match=r"DIST0606 module: .*annotate_sharding"):
        compile_module(original(annotated))


AUTOLOAD = """
import sys
import tvm
from tvm_distir.interface.autoload import autoload
before = set(sys.modules)
autoload()
autoload()
assert tvm.runtime.disco.ThreadedSession is not None
assert tvm.get_global_func("tvm_distir.ccl.recv") is not None
print(sorted(m for m in set(sys.modules) - before if not m.startswith("tvm.runtime.disco")))
"""


def test_autoload_repairs_disco_and_imports_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AUTOLOAD],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "onnx" not in done.stdout
    assert "tvm_distir.execution.runtime" not in done.stdout
