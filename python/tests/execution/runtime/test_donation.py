# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Donated caches are appended to in place, and no other array of the caller is overwritten."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td
from tests.execution.runtime.test_bucketed_steps import SIZES, drawn_inputs
from tvm_distir.core.ir.operators import kv_append
from tvm_distir.support.errors.tree import EngineError
from tvm_distir.transforms import DonateInputs

REQUESTS, NEW, PAGES, ROWS, HEADS, WIDTH = 3, 2, 16, 4, 2, 8


def append(read_before=False, read_after=False):
    """``main(cache, rows, pages, lengths) -> cache``, and twice the old cache where it is read."""
    types = {
        "cache": relax.TensorType([1, PAGES, ROWS, HEADS, WIDTH], "float32"),
        "rows": relax.TensorType([REQUESTS, NEW, HEADS, WIDTH], "float32"),
        "pages": relax.TensorType([REQUESTS, 2], "int32"),
        "lengths": relax.TensorType([REQUESTS], "int32"),
    }
    params = [relax.Var(name, ty) for name, ty in types.items()]
    cache, two = params[0], relax.const(2.0, "float32")
    bb = relax.BlockBuilder()
    with bb.function("main", params, attrs={"num_input": 4}):
        with bb.dataflow():
            old = [bb.emit(relax.op.multiply(cache, two))] if read_before else []
            new = bb.emit(kv_append(*params, page_size=ROWS))
            old += [bb.emit(relax.op.multiply(cache, two))] if read_after else []
            outs = [bb.emit_output(value) for value in (new, *old)]
        bb.emit_func_output(relax.Tuple(outs))
    return bb.get()


def distributed(placement="S[2]", **reads):
    """Return the append on two devices."""
    rules = [{"param": "cache", "placement": placement, "stationary": True}]
    described = {"schema_version": 1, "mesh": {"x": 2}, "rules": rules}
    return td.distribute(append(**reads), td.Plan.from_dict(described))


def operands(seed=0):
    """Draw a cache, and rows for shuffled pages behind uneven lengths."""
    rng = np.random.default_rng(seed)
    cache = rng.standard_normal((1, PAGES, ROWS, HEADS, WIDTH)).astype("float32")
    rows = rng.standard_normal((REQUESTS, NEW, HEADS, WIDTH)).astype("float32")
    pages = rng.permutation(PAGES)[: 2 * REQUESTS].reshape(REQUESTS, 2).astype("int32")
    return cache, [rows, pages, np.array([0, 3, 5], "int32")]


def appended(cache, rest):
    """Append in NumPy."""
    rows, pages, lengths = rest
    new = cache.copy()
    for b in range(REQUESTS):
        for i in range(NEW):
            column, row = divmod(int(lengths[b]) + i, ROWS)
            new[0, pages[b, column], row] = rows[b, i]
    return new


def addresses(array):
    return [part.ctypes.data for part in array.parts.values()]


def copies(array):
    return [part.copy() for part in array.parts.values()]


@pytest.mark.parametrize("placement", ["S[2]", "S[3]"])
def test_donated_caches_are_replaced_in_place(placement):
    """Parts of pages or heads keep their memory, and without donation their values."""
    local, (cache, rest) = distributed(placement), operands()
    before = cache.copy()
    (first,) = td.run(local, [cache, *rest], outputs="sharded")
    kept, (_, more) = copies(first), operands(1)
    (whole,) = td.run(local, [first, *more])
    expected = appended(appended(before, rest), more)
    np.testing.assert_array_equal(whole, expected)
    assert all(map(np.array_equal, copies(first), kept))  # not donated
    (second,) = td.run(local, [first, *more], outputs="sharded", donate=["cache"])
    assert addresses(second) == addresses(first)
    assert not all(map(np.array_equal, copies(first), kept))
    (again,) = td.run(local, [second, *more])
    np.testing.assert_array_equal(again, expected)
    np.testing.assert_array_equal(cache, before)


@pytest.mark.parametrize("reads", ["read_before", "read_after"])
def test_caches_with_another_reader_are_copied(reads):
    local, (cache, rest) = distributed(**{reads: True}), operands()
    (first, _) = td.run(local, [cache, *rest], outputs="sharded")
    _, more = operands(1)
    new, old = td.run(local, [first, *more], donate=["cache"])
    np.testing.assert_array_equal(old, 2 * appended(cache, rest))
    np.testing.assert_array_equal(new, appended(appended(cache, rest), more))


def test_memory_of_two_devices_is_not_shared():
    """Replicas get an array each, whatever the caller passes, so that each appends to its part."""
    local, (cache, rest) = distributed("R"), operands()
    aligned = np.frombuffer(bytearray(cache.nbytes + 64), np.uint8)
    aligned = aligned[-aligned.ctypes.data % 64 :][: cache.nbytes].view("float32")
    aligned = aligned.reshape(cache.shape)
    aligned[...] = cache
    (new,) = td.run(local, [aligned, *rest], outputs="sharded", donate=["cache"])
    assert len({*addresses(new), aligned.ctypes.data}) == 3
    np.testing.assert_array_equal(aligned, cache)
    for part in new.parts.values():
        np.testing.assert_array_equal(part, appended(cache, rest))


def test_other_engines_and_names():
    local, (cache, rest) = distributed(), operands()
    for engine in ("virtual", "threads"):
        (new,) = td.run(local, [cache, *rest], engine=engine, donate=["cache"])
        np.testing.assert_array_equal(new, appended(cache, rest))
    with pytest.raises(EngineError, match=r'DIST0602.*there is no input "cash"'):
        td.run(local, [cache, *rest], donate=["cash"])


def test_the_engine_torch_checks_names():
    pytest.importorskip("torch", reason="the engine runs ranks under torch.distributed")
    local, (cache, rest) = distributed(), operands()
    with pytest.raises(EngineError, match=r'DIST0602.*there is no input "cash"'):
        td.run(local, [cache, *rest], engine="torch", donate=["cash"])


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [("data_parallel", "adamw"), ("data_parallel", "lion"), ("zero:stage=1", "adamw")],
)
def test_donated_weights_and_states_are_updated_in_place(strategy, optimizer):
    """The step counter, a scalar, moves, and so do weights that are gathered from new shards."""
    step = td.train_step(td.zoo.build("gpt", SIZES), optimizer=optimizer)
    local = td.distribute(step, td.planning.make_plan(step, strategy, {"dp": 2}))
    ports = local["main"].attrs["dist.io"]["inputs"][:]
    drawn = drawn_inputs(ports)
    names, data = [str(port["name"]) for port in ports[2:]], drawn[:2]
    _, *state = td.run(local, drawn, outputs="sharded")
    expected = td.run(local, [*data, *state])
    before = list(map(addresses, state))
    loss, *new = td.run(local, [*data, *state], outputs="sharded", donate=names)
    moved = [n for n, a, b in zip(names, before, new, strict=True) if addresses(b) != a]
    gathered = [n for n in names if not n.endswith((".m", ".v"))] if "zero" in strategy else []
    assert moved == (gathered or [n for n in names if n == "step"])
    results = td.run(local, [*data, *new])
    np.testing.assert_array_equal(loss.whole(), expected[0])
    again = td.run(local, [*data, *expected[1:]])
    for one, other in zip(results, again, strict=True):
        np.testing.assert_array_equal(one, other)


def _elementwise():
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((64, 16), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            product = builder.emit(relax.op.multiply(x, y))
            result = builder.emit_output(relax.op.add(product, x))
        builder.emit_func_output(result)
    return builder.get()


def _aligned(value):
    memory = np.zeros(64 * 16 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + 64 * 16 * 4].view("float32").reshape(64, 16)
    array[...] = value
    return array


@pytest.mark.parametrize("engine", ["threads", "virtual"])
def test_memory_that_others_read_is_not_overwritten(engine):
    """Replicas, read-only arrays, one array for two inputs, and a module that donates by itself."""
    replicated = td.distribute(_elementwise(), td.Plan(mesh={"tp": 2}, rules={}))
    single = td.distribute(_elementwise(), td.Plan(mesh={"tp": 1}, rules={}))
    y = _aligned(3)
    (result,) = td.run(replicated, [_aligned(2), y], engine=engine, donate=["x"])
    np.testing.assert_array_equal(result, 8)
    frozen = _aligned(2)
    frozen.flags.writeable = False
    (result,) = td.run(single, [frozen, y], engine=engine, donate=["x"])
    np.testing.assert_array_equal(result, 8)
    np.testing.assert_array_equal(frozen, 2)
    (result,) = td.run(single, [y, y], engine=engine, donate=["x"])
    np.testing.assert_array_equal(result, 12)
    np.testing.assert_array_equal(y, 3)
    x = _aligned(2)
    (result,) = td.run(DonateInputs(["x"])(single), [x, y], engine=engine)
    np.testing.assert_array_equal(result, 8)
    np.testing.assert_array_equal(x, 2)


@pytest.mark.parametrize("library", ["tvm", "numpy"])
def test_what_is_read_through_a_permutation_is_not_overwritten_before(library):
    """Kernels of libraries read the operand of a permutation, behind an update of it."""

    @I.ir_module
    class Module:
        @R.function(private=True)
        def updated(x: R.Tensor((64, 64), "float32"), y: R.Tensor((64, 64), "float32")):
            product = R.multiply(x, y)
            total = R.add(product, y)
            return total

        @R.function
        def main(x: R.Tensor((64, 64), "float32"), y: R.Tensor((64, 64), "float32")):
            cls = Module
            turned = R.permute_dims(x, [1, 0])
            new = cls.updated(x, y)
            product = R.matmul(new, turned)
            return (new, product)

    local = DonateInputs(["x"])(td.distribute(Module, td.Plan(mesh={"tp": 1}, rules={})))
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, (64, 64)).astype("float32") for _ in range(2))
    new, product = td.run(local, [x, y], dispatch=library)
    np.testing.assert_array_equal(new, x * y + y)
    np.testing.assert_array_equal(product, (x * y + y) @ x.T)


@pytest.mark.parametrize("engine", ["threads", "virtual"])
def test_results_share_no_memory(engine):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(relax.Tuple([y, y]))
    local = td.distribute(builder.get(), td.Plan(mesh={"tp": 1}, rules={}))
    one, other = td.run(local, [np.ones((4, 4), "float32")], engine=engine)
    one[0, 0] = 7
    assert other[0, 0] == 2
