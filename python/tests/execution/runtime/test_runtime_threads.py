# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``threads`` against the engine ``virtual``, and its failures."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tests.child_processes import child_environment
from tests.execution.runtime.level5_modules import Level5, draw, ops, there_and_back
from tvm_distir.execution.runtime.engines.threads.engine import ThreadsEngine
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.support.errors.tree import EngineError

R = np.random.default_rng
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"]


def both(mod, inputs):
    """Outputs of both engines, checked to be the same bits."""
    virtual, threads = VirtualEngine().run(mod, inputs), ThreadsEngine(20).run(mod, inputs)
    assert len(virtual) == len(threads)
    for a, b in zip(virtual, threads):
        assert same_bits(a, b)
    return threads


def one_op(make, shape, dtype, src, dst, out_shape, axes):
    mesh = td.device_mesh(axes)
    build = Level5(mesh)
    build.entry(
        [("x", shape, dtype, src)],
        [("y", out_shape, dtype, dst)],
        lambda bb, x: bb.emit(make(x, mesh)),
    )
    return build.get()


MOVES = {
    "all_gather": (lambda x, m: ops.all_gather(x, m, 1, 0), "R, S[0]", "R, R"),
    "all_gather_dim1": (lambda x, m: ops.all_gather(x, m, 0, 1), "S[1], R", "R, R"),
    "local_slice": (lambda x, m: ops.local_slice(x, m, 0, 1), "R, R", "S[1], R"),
    "all_to_all": (lambda x, m: ops.all_to_all(x, m, 1, 0, 1), "R, S[0]", "R, S[1]"),
    "all_to_all_back": (lambda x, m: ops.all_to_all(x, m, 0, 1, 0), "S[1], R", "S[0], R"),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_movement_keeps_the_value(name, dtype):
    make, src, dst = MOVES[name]
    x = draw(R(0), (4, 8), dtype)
    mod = one_op(make, (4, 8), dtype, src, dst, (4, 8), {"a": 2, "b": 2})
    (y,) = both(mod, [x])
    assert same_bits(y, x)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(op, dtype):
    """Terms that differ by rank: slices of a whole array, reduced over the other axis."""
    mesh = td.device_mesh({"a": 2, "b": 2})
    build = Level5(mesh)

    def body(bb, x):
        full = bb.emit(ops.all_reduce(x, mesh, [1], op))
        part = bb.emit(ops.reduce_scatter(x, mesh, 1, 1, op))
        remaining = bb.emit(ops.partial(x, mesh, [0], op))
        again = bb.emit(ops.all_reduce(remaining, mesh, [0], op))
        return [full, part, remaining, again]

    whole, half, quarter = "S[0], R", "S[0], S[1]", "S[0], S[0]"
    build.entry(
        [("x", (4, 4), dtype, quarter)],
        [
            ("full", (2, 4), dtype, whole),
            ("part", (2, 4), dtype, half),
            ("kept", (4, 4), dtype, quarter),
            ("again", (4, 4), dtype, quarter),
        ],
        body,
    )
    x = draw(R(1), (4, 4), dtype)
    full, part, _, again = both(build.get(), [x])
    reduce = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    want = reduce(x[0::2], x[1::2]).astype(x.dtype)
    assert same_bits(full, want)
    assert same_bits(part, want)
    assert same_bits(again[:2], x[:2])  # ranks 0 and 1 keep theirs; 2 and 3 get the same
    assert same_bits(again[2:], x[:2])


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("shift", [1, -1, 2])
def test_permute_and_index(shift, wrap):
    mesh = td.device_mesh({"a": 3})
    build = Level5(mesh)

    def body(bb, x):
        moved = bb.emit(ops.collective_permute(x, mesh, 0, shift, wrap))
        index = bb.emit(ops.axis_index(mesh, 0))
        return [moved, bb.emit(relax.op.reshape(index, (1,)))]

    build.entry(
        [("x", (6,), "int32", "S[0]")],
        [("y", (6,), "int32", "S[0]"), ("i", (3,), "int64", "S[0]")],
        body,
    )
    x = np.arange(1, 7, dtype="int32")
    y, i = both(build.get(), [x])
    sources = [(r - shift) % 3 if wrap else r - shift for r in range(3)]
    want = [x[2 * s :][:2] if 0 <= s < 3 else [0, 0] for s in sources]
    assert np.array_equal(y, np.concatenate(want))
    assert i.tolist() == [0, 1, 2]


def test_a_small_layer_with_private_functions():
    mesh = td.device_mesh({"dp": 2, "tp": 2})
    build = Level5(mesh)

    def layer_body(bb, x, a, b):
        h = bb.emit(relax.op.nn.relu(bb.emit(relax.op.matmul(x, a))))
        return bb.emit(ops.all_reduce(bb.emit(relax.op.matmul(h, b)), mesh, [1], "sum"))

    layer = build.private(
        "layer",
        [("x", (2, 4), "float32"), ("a", (4, 4), "float32"), ("b", (4, 4), "float32")],
        layer_body,
    )
    build.entry(
        [
            ("x", (4, 4), "float32", "S[0], R"),
            ("a", (4, 8), "float32", "R, S[1]"),
            ("b", (8, 4), "float32", "R, S[0]"),
        ],
        [("y", (4, 4), "float32", "S[0], R")],
        lambda bb, x, a, b: bb.emit(
            relax.Call(layer, [bb.emit(relax.Call(layer, [x, a, b])), a, b])
        ),
    )
    x, a, b = (draw(R(i), s, "float32") for i, s in enumerate([(4, 4), (4, 8), (8, 4)]))
    (y,) = both(build.get(), [x, a, b])
    once = np.maximum(x @ a, 0) @ b
    assert np.array_equal(y, np.maximum(once @ a, 0) @ b)


@pytest.mark.parametrize("src", ["S[0]", "R"])
@pytest.mark.parametrize("dst", ["R, S[1]", "S[0], S[1]", "S[1], R"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 7)])
def test_two_meshes_there_and_back(src, dst, shape):
    x = draw(R(3), shape, "float32")
    y, z = both(there_and_back(shape, src, dst), [x])
    assert np.array_equal(y, 4 * x)
    assert np.array_equal(z, 3 * x)


def test_stock_compile_legalises_the_ops():
    mesh = td.device_mesh({"a": 2})
    mod = one_op(lambda x, m: ops.all_reduce(x, m, [0]), (4,), "float32", "R", "R", (4,), {"a": 2})
    text = relax.transform.LegalizeOps()(mod).script()
    assert 'R.call_dps_packed("tvm_distir.ccl.all_reduce", (x, R.shape([0, 1]), ' in text
    assert tvm.compile(mod, "llvm") is not None
    assert mesh is not None


def branching():
    """One device; ``x + x`` or ``x * x`` by a condition."""
    source = """
@I.ir_module
class Module:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        if c:
            y = R.add(x, x)
        else:
            y = R.multiply(x, x)
        return y
"""
    mod = tvm.script.from_source(source)
    x = {"shape": [4], "dtype": "float32", "placement": "R"}
    condition = {"index": 0, "name": "c", "shape": [], "dtype": "bool", "placement": "R"}
    io = {
        "mesh": 0,
        "inputs": [condition, {"index": 1, "name": "x", **x}],
        "outputs": [{"index": 0, "name": "y", **x}],
    }
    mod["main"] = mod["main"].with_attr("dist.io", io)
    mod.update_global_info("mesh", [td.device_mesh({"a": 2})])
    return mod


@pytest.mark.parametrize("value", [True, False])
def test_a_branch_runs_on_both_engines(value):
    x = np.array([1, 2, 3, 4], "float32")
    (y,) = both(branching(), [np.array(value), x])
    assert np.array_equal(y, x + x if value else x * x)


def test_symbolic_shapes_follow_the_inputs():
    n = tvm.tirx.Var("n", "int64")
    mesh = td.device_mesh({"a": 2})
    x = relax.Var("x", relax.TensorType([n, 2], "float32"))
    bb = relax.BlockBuilder()
    port = {"index": 0, "name": "x", "shape": [6, 2], "dtype": "float32", "placement": "S[0]"}
    io = {"mesh": 0, "inputs": [port], "outputs": [{**port, "placement": "R"}]}
    with bb.function("main", [x], {"dist.io": io}):
        y = bb.emit(relax.op.add(x, x))
        bb.emit_func_output(bb.emit(ops.all_gather(y, mesh, 0, 0)))
    mod = bb.finalize()
    mod.update_global_info("mesh", [mesh])
    value = draw(R(0), (6, 2), "float32")
    (out,) = both(mod, [value])
    assert np.array_equal(out, 2 * value)


# ---- failures ----------------------------------------------------------------------------


def per_rank(actions):
    """A module on 3 ranks in which each calls ``test.rank_<n>`` between two all-reduces."""
    name = f"test.threads_{next(NUMBER)}"

    @tvm_ffi.register_global_func(name)
    def call(x, out):
        rank = tvm.get_global_func("runtime.disco.worker_rank")()
        out.copyfrom(x.numpy())
        if rank in actions:
            actions[rank](x, out)

    mesh = td.device_mesh({"a": 3})
    build = Level5(mesh)

    def body(bb, x):
        x = bb.emit(ops.all_reduce(x, mesh, [0]))
        x = bb.emit(relax.op.call_dps_packed(name, [x], out_ty=x.ty))
        return bb.emit(ops.all_reduce(x, mesh, [0]))

    build.entry([("x", (4,), "float32", "R")], [("y", (4,), "float32", "R")], body)
    return build.get()


NUMBER = itertools.count()
ONES = np.ones(4, "float32")


def packed(name):
    return tvm.get_global_func(f"tvm_distir.ccl.{name}")


def raises(x, out):
    raise ValueError("boom")


def gathers(x, out):
    packed("all_gather")(x, tvm_ffi.Shape([0, 1, 2]), 3, 0, tvm.runtime.empty((12,), "float32"))


def maximum(x, out):
    packed("all_reduce")(x, tvm_ffi.Shape([0, 1, 2]), 3, 3, out)


def longer(x, out):
    y = tvm.runtime.empty((8,), "float32")
    packed("all_reduce")(y, tvm_ffi.Shape([0, 1, 2]), 3, 0, y)


def half(x, out):
    y = tvm.runtime.empty((4,), "float16")
    packed("all_reduce")(y, tvm_ffi.Shape([0, 1, 2]), 3, 0, y)


def stranger(x, out):
    packed("all_reduce")(x, tvm_ffi.Shape([5, 6]), 2, 0, out)


def once_more(x, out):
    packed("all_reduce")(x, tvm_ffi.Shape([0, 1, 2]), 3, 0, out)


def sleeps(x, out):
    time.sleep(1.5)


FAILURES = [
    ("a worker raises", {1: raises}, r"DIST0612 main: worker 1: ValueError: boom"),
    ("all workers raise", dict.fromkeys(range(3), raises), r"DIST0612 main: worker \d: ValueError"),
    (
        "another collective",
        {2: gathers},
        r"DIST0611 group.*rank 2 called all_gather\(dim=0\) on "
        r"16 bytes \(float32\[4\]\) while rank 0 called all_reduce\(op=sum\)",
    ),
    ("another reduction", {1: maximum}, r"DIST0611.*rank 1 called all_reduce\(op=max\)"),
    ("another size", {1: longer}, r"DIST0611.*rank 1 called .* on 32 bytes .* on 16 bytes"),
    ("another type", {1: half}, r"DIST0611.*rank 1 called .*float16.* while rank 0 .*float32"),
    ("not in the group", {0: stranger}, r"DIST0611.*rank 0 takes part .* but is in none"),
    (
        "one call too many",
        {1: once_more},
        r"DIST0610 ranks: rank 1 waits in all_reduce\(op=sum\) "
        r"for ranks 0, 2; ended: ranks 0, 2",
    ),
]


@pytest.mark.parametrize(
    ("actions", "text"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES]
)
def test_failures_are_named_and_the_session_goes_on(actions, text):
    start = time.monotonic()
    with pytest.raises(EngineError, match=text):
        ThreadsEngine(timeout_s=20).run(per_rank(actions), [ONES])
    assert time.monotonic() - start < 15  # nobody waited for the timeout
    (y,) = ThreadsEngine(20).run(per_rank({}), [ONES])
    assert np.array_equal(y, 9 * ONES)


def test_a_rank_that_does_not_arrive_in_time():
    engine = ThreadsEngine(timeout_s=0.3)
    with pytest.raises(EngineError, match=r"DIST0613.*waited 0.3 s in all_reduce.* for rank 2"):
        engine.run(per_rank({2: sleeps}), [ONES])
    (y,) = engine.run(per_rank({}), [ONES])
    assert np.array_equal(y, 9 * ONES)


def test_a_receive_without_a_send():
    first, second = td.device_mesh({"a": 2}), td.device_mesh({"a": 1}, start=2)
    build = Level5(first, second)
    build.entry(
        [("x", (4,), "float32", "R")],
        [("y", (4,), "float32", "R")],
        lambda bb, x: bb.emit(ops.all_reduce(x, first, [0])),
    )
    build.entry(
        [],
        [("z", (4,), "float32", "R")],
        lambda bb: bb.emit(
            ops.recv(
                device_mesh=second,
                peer_mesh=first,
                placement="R",
                peer_placement="R",
                shape=(4,),
                dtype="float32",
                tag=5,
            )
        ),
        1,
        False,
        [],
        [1],
    )
    with pytest.raises(EngineError, match=r"DIST0610.*rank 2 waits in receive of transfer 5"):
        ThreadsEngine(20).run(build.get(), [ONES])


def test_a_call_outside_of_a_run_is_refused():
    x = tvm.runtime.tensor(ONES)
    ThreadsEngine(20).run(per_rank({}), [ONES])
    with pytest.raises(EngineError, match="DIST0605"):
        packed("all_reduce")(x, tvm_ffi.Shape([0]), 1, 0, x)


def test_the_environment_stays_as_it_was(monkeypatch):
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    seen = []
    mod = per_rank({0: lambda x, out: seen.append(os.environ.get("TVM_NUM_THREADS"))})
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    ThreadsEngine(20).run(mod, [ONES])
    assert seen == ["1"]
    assert "TVM_NUM_THREADS" not in os.environ


def test_a_forked_child_runs_with_threads_of_its_own(tmp_path):
    """Also a child that is forked while another thread of its parent runs."""
    script = tmp_path / "forks.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, threading
            from tests.execution.runtime import test_runtime_threads as t

            def good():
                (y,) = t.ThreadsEngine(20).run(mod, [t.ONES])
                return (y == 9 * t.ONES).all()

            def forked():
                child = os.fork()
                if child == 0:
                    signal.alarm(60)
                    os._exit(0 if good() else 1)
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

            codes, begun, ended = [], threading.Event(), threading.Event()
            mod = t.per_rank({})
            assert good()
            codes.append(forked())
            waits = t.per_rank({1: lambda x, out: (begun.set(), ended.wait(90))})
            busy = threading.Thread(target=lambda: t.ThreadsEngine(120).run(waits, [t.ONES]))
            busy.start()
            begun.wait(90)
            codes.append(forked())
            ended.set()
            busy.join()
            assert good()
            print(*codes)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env=child_environment(),
    )
    assert done.stdout.split() == ["0", "0"], done.stdout + done.stderr


def test_a_process_that_failed_ends_normally(tmp_path):
    """After a failure the session's threads must not take the process down at its end."""
    script = tmp_path / "fails.py"
    script.write_text(
        textwrap.dedent(
            """
            from tests.execution.runtime import test_runtime_threads as t
            for actions in ({1: t.raises}, {2: t.gathers}):
                try:
                    t.ThreadsEngine(20).run(t.per_rank(actions), [t.ONES])
                except t.EngineError as err:
                    print(err.code)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=child_environment(),
    )
    assert (done.returncode, done.stdout.split()) == (0, ["DIST0612", "DIST0611"]), done.stderr
