# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The native collectives against their NumPy reference, bit for bit, and their failures."""

from __future__ import annotations

import threading
import time

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.performance.native.collective_cases import DTYPES, equal, np_dtype, random_groups, wild
from tests.performance.native.rank_threads import run_ranks
from tests.performance.native.shared_fabric import SharedFabric
from tvm_distir.core.collectives.meaning import Collective, apply, wide_dtype
from tvm_distir.core.ir.operators import PACKED_ARGS
from tvm_distir.core.ir.operators.names import COLLECTIVES, REDUCE_OPS
from tvm_distir.execution.runtime.collectives import native_library as native
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.support.errors.tree import DistIRError, EngineError

STAGED_BYTES = 16384


def call_native(call, x, out_shape):
    """Call a collective as compiled code does; returns the rank's result."""
    out = tvm.runtime.empty(out_shape, "int64" if x is None else str(x.dtype))
    inputs = dict(call.args)
    values = [
        REDUCE_OPS.index(inputs[k]) if k == "op" else inputs[k] for k in PACKED_ARGS[call.name]
    ]
    groups = tvm_ffi.Shape([r for group in call.groups for r in group])
    operand = [] if x is None else [tvm.runtime.tensor(x)]
    native.collective(call.name)(*operand, groups, len(call.groups[0]), *values, out)
    return out.numpy()


def random_call(rng, name, groups, ndim):
    values = {
        "op": str(rng.choice(REDUCE_OPS)),
        "dim": int(rng.integers(ndim)),
        "gather_dim": int(rng.integers(ndim)),
        "split_dim": int(rng.integers(ndim)),
        "shift": int(rng.integers(-3, 4)),
        "wrap": int(rng.integers(2)),
    }
    return Collective(name, groups, tuple((k, values[k]) for k in PACKED_ARGS[name]))


def random_shape(rng, call, size):
    ndim = 1 + max([v for k, v in call.args if k.endswith("dim")], default=0)
    shape = [int(n) for n in rng.integers(1, 6, max(ndim, int(rng.integers(1, 4))))]
    inputs = dict(call.args)
    cut = inputs.get("split_dim", inputs.get("dim"))
    if call.name in ("reduce_scatter", "local_slice", "all_to_all"):
        shape[cut] *= size
    shape[int(rng.integers(len(shape)))] *= int(rng.choice([1, 1, 7, 900]))
    return shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_collectives_have_the_bits_of_the_reference(dtype):
    """A dozen collectives one after the other over changing groups, per type."""
    rng = np.random.default_rng(DTYPES.index(dtype))
    ranks = [int(r) for r in rng.permutation(12)[: rng.choice([2, 4, 6, 8])]]
    calls, operands, expected = [], [], []
    for name in [*PACKED_ARGS, *rng.choice(sorted(set(COLLECTIVES) & set(PACKED_ARGS)), 8)]:
        groups = tuple(map(tuple, random_groups(rng, ranks)))
        size = len(groups[0])
        call = random_call(rng, str(name), groups, 3)
        shape = random_shape(rng, call, size)
        xs = {r: wild(rng, shape, dtype) for r in ranks}
        want = {}
        for group in groups:
            inputs = [] if name == "axis_index" else [xs[r] for r in group]
            want.update(zip(group, apply(call, inputs, size)))
        calls.append(call)
        operands.append(None if name == "axis_index" else xs)
        expected.append(want)
    fabric = native.CclFabric(ranks, 20)

    def body(rank):
        return [
            call_native(call, xs and xs[rank], want[rank].shape)
            for call, xs, want in zip(calls, operands, expected)
        ]

    got = run_ranks(fabric, ranks, body)
    for rank in ranks:
        assert not isinstance(got[rank], BaseException), got[rank]
        for call, result, want in zip(calls, got[rank], expected):
            assert equal(result, want[rank]), (call.text(), rank)


@pytest.mark.parametrize("op", REDUCE_OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", [3, 40000])
def test_reductions_small_and_large(op, dtype, elements):
    """Below and above the size that is staged; the sum of 4 terms depends on their order."""
    rng = np.random.default_rng(elements)
    ranks = (2, 0, 3, 1)
    xs = [wild(rng, (elements,), dtype) for _ in ranks]
    assert xs[0].nbytes > STAGED_BYTES or elements == 3
    call = Collective("all_reduce", (ranks,), (("op", op),))
    want = apply(call, xs)[0]
    got = run_ranks(
        native.CclFabric(ranks, 20),
        ranks,
        lambda rank: call_native(call, xs[ranks.index(rank)], want.shape),
    )
    assert all(equal(got[r], want) for r in ranks)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_narrow_float_is_widened_and_rounded_alike(dtype):
    """All 65536 bit patterns plus zero, and halfway cases of the rounding."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np_dtype(dtype))
    ulps = np.random.default_rng(0).permutation(every)
    for second in (np.zeros_like(every), ulps):
        call = Collective("all_reduce", ((0, 1),), (("op", "sum"),))
        xs = [every, second]
        want = apply(call, xs)[0]
        got = run_ranks(
            native.CclFabric((0, 1), 20), (0, 1), lambda r: call_native(call, xs[r], want.shape)
        )
        assert equal(got[0], want)
        assert equal(got[1], want)
    assert wide_dtype(every.dtype) == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_spreads_and_zeros_keep_their_sign(dtype, op):
    values = [np.nan, 0.0, -0.0, 1.0, -np.inf, np.inf]
    a, b = (v.astype(dtype).ravel() for v in np.meshgrid(values, values))
    call = Collective("all_reduce", ((0, 1),), (("op", op),))
    want = apply(call, [a, b])[0]
    got = run_ranks(
        native.CclFabric((0, 1), 20),
        (0, 1),
        lambda r: call_native(call, (a, b)[r], want.shape),
    )
    assert equal(got[0], want)


@pytest.mark.parametrize("elements", [8, 8192])
def test_a_result_may_lie_where_the_operand_is(elements):
    ranks = (0, 1, 2)
    groups = tvm_ffi.Shape(ranks)

    def body(rank):
        x = tvm.runtime.tensor(np.full(elements, rank + 1, "float32"))
        native.collective("all_reduce")(x, groups, 3, 0, x)
        y = tvm.runtime.tensor(np.full(elements, rank + 1, "float32"))
        native.collective("collective_permute")(y, groups, 3, 1, 0, y)
        return x.numpy(), y.numpy()

    got = run_ranks(native.CclFabric(ranks, 20), ranks, body)
    for rank in ranks:
        assert (got[rank][0] == 6).all()
        assert (got[rank][1] == rank).all()


@pytest.mark.parametrize("shape", [(), (0,), (4, 0, 2)])
def test_scalars_and_empty_tensors(shape):
    call = Collective("all_reduce", ((0, 1),), (("op", "sum"),))
    x = np.ones(shape, "int32")
    got = run_ranks(native.CclFabric((0, 1), 20), (0, 1), lambda r: call_native(call, x, shape))
    assert same_bits(got[0], 2 * x)
    assert same_bits(got[1], 2 * x)


def test_several_communicators_at_once():
    """Four fabrics with the same rank numbers run side by side, each over rows and columns."""
    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    results = {}

    def one_fabric(number):
        def body(rank):
            x = np.array([number * 10 + rank], "int64")
            for _ in range(50):
                row = Collective("all_reduce", rows, (("op", "max"),))
                column = Collective("all_gather", columns, (("dim", 0),))
                top = call_native(row, x, (1,))
                both = call_native(column, top, (2,))
            return both.tolist()

        results[number] = run_ranks(native.CclFabric(range(4), 20), range(4), body)

    threads = [threading.Thread(target=one_fabric, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert results[number] == {rank: [number * 10 + 1, number * 10 + 3] for rank in range(4)}


def test_what_ran_is_counted():
    fabric = native.CclFabric((0, 1), 20)
    call = Collective("all_gather", ((0, 1),), (("dim", 0),))
    x = np.ones((3, 2), "float32")
    run_ranks(fabric, (0, 1), lambda r: [call_native(call, x, (6, 2)) for _ in range(3)])
    want = [native.Executed("all_gather", ((0, 1),), 48, 3)]
    assert fabric.executed(0) == want
    assert fabric.executed(1) == want


# ---- failures ---------------------------------------------------------------------------------

ALL = (0, 1, 2)
SUM = Collective("all_reduce", (ALL,), (("op", "sum"),))
MAX = Collective("all_reduce", (ALL,), (("op", "max"),))
GATHER = Collective("all_gather", (ALL,), (("dim", 0),))
X = np.ones(4, "float32")
LARGE = np.ones(100000, "float32")


def once(call=SUM, x=X, out=(4,)):
    return lambda: call_native(call, x, out)


def boom():
    raise ValueError("boom")


DIFFERENT = [
    ("op", once(MAX), r"rank 1 called all_reduce\(op=max\) on 16 bytes \(float32\[4\]\) while "
     r"rank 0 called all_reduce\(op=sum\)"),
    ("kind", once(GATHER, X, (12,)), r"rank 1 called all_gather\(dim=0\)"),
    ("dtype", once(SUM, X.astype("float16")), r"rank 1 called .* on 8 bytes \(float16\[4\]\)"),
    ("bytes", once(SUM, LARGE, (100000,)), r"rank 1 called .* on 400000 bytes"),
    ("shape", once(SUM, X.reshape(2, 2), (2, 2)), r"rank 1 called .*float32\[2, 2\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "text"), [d[1:] for d in DIFFERENT], ids=[d[0] for d in DIFFERENT]
)
def test_ranks_that_disagree_are_named(other, text):
    got = run_ranks(native.CclFabric(ALL, 20), ALL, lambda r: (other if r == 1 else once())())
    for error in got.values():
        assert isinstance(error, EngineError)
        assert error.code == "DIST0611"
        assert error.location == "group [0, 1, 2]"
    with pytest.raises(EngineError, match=text):
        raise got[0]


@pytest.mark.parametrize("size", [4, 100000])
def test_a_failure_of_one_reaches_all_others(size):
    fabric = native.CclFabric(ALL, 20)
    x = np.ones(size, "float32")
    start = time.monotonic()
    got = run_ranks(fabric, ALL, lambda r: boom() if r == 2 else call_native(SUM, x, (size,)))
    assert time.monotonic() - start < 10  # half of the timeout
    assert isinstance(got[2], ValueError)
    for rank in (0, 1):
        assert "rank 2 failed: ValueError: boom" in str(got[rank])
    assert fabric.failure() == (2, "ValueError: boom")
    again = run_ranks(native.CclFabric(ALL, 20), ALL, lambda r: call_native(SUM, X, (4,)))
    assert all(same_bits(again[r], 3 * X) for r in ALL)


def test_fields_of_a_failure_are_kept_apart():
    """Other processes learn them as they are, or cut at a whole character where they are long."""
    fabric = SharedFabric(ALL, 20)
    other = SharedFabric.open(fabric.descriptor)
    awkward = EngineError("DIST0612", "a: b [c]", location="x: y", remedy="Write [S[0]].")
    assert fabric.fail(1, awkward) == 1
    rank, result = other.failure()
    assert (rank, type(result), result.to_dict()) == (1, EngineError, awkward.to_dict())
    long = EngineError("DIST0612", "x" + "ß" * 5000, location="ß" * 500)
    fabric = native.CclFabric(ALL, 20)
    fabric.fail(0, long)
    result = fabric.failure()[1]
    assert result.what == "x" + "ß" * (len(result.what) - 1)
    assert set(result.location) == {"ß"}
    assert len(result.what) > 1500 and len(result.location) > 250


def test_a_missing_rank_ends_the_others_after_the_timeout():
    fabric = native.CclFabric(ALL, 0.5)
    start = time.monotonic()
    got = run_ranks(fabric, ALL, lambda r: time.sleep(1.5) if r == 1 else once()())
    assert time.monotonic() - start < 10
    rank, error = fabric.failure()
    assert rank in (0, 2)
    assert (error.code, error.location) == ("DIST0613", f"rank {rank}")
    assert error.what == f"rank {rank} waited 0.5 s in all_reduce(op=sum) for rank 1"
    assert error.remedy == "Raise the engine's timeout_s if it is only slow."
    assert isinstance(got[0], DistIRError)
    assert isinstance(got[2], DistIRError)


def test_a_rank_that_comes_after_the_others_have_left_meets_nobody():
    """Arrivals are taken back: a late rank must not read memory of ranks that gave up."""
    fabric = native.CclFabric(ALL, 0.2)

    def body(rank):
        if rank == 1:
            time.sleep(0.8)
        return call_native(SUM, LARGE, LARGE.shape)

    got = run_ranks(fabric, ALL, body)
    assert all(isinstance(got[r], DistIRError) for r in ALL)


def test_ranks_that_can_never_meet_are_found_at_once():
    fabric = native.CclFabric(ALL, 20)

    def body(rank):
        once()()
        if rank == 1:
            once()()

    start = time.monotonic()
    run_ranks(fabric, ALL, body)
    assert time.monotonic() - start < 10  # half of the timeout
    rank, error = fabric.failure()
    assert rank == 1
    assert (error.code, error.location) == ("DIST0610", "ranks")
    assert error.what == "rank 1 waits in all_reduce(op=sum) for ranks 0, 2; ended: ranks 0, 2"


def test_messages_and_collectives_wait_for_each_other():
    fabric = native.CclFabric((0, 1), 20)

    def body(rank):
        if rank == 0:
            call_native(Collective("all_reduce", ((0, 1),), (("op", "sum"),)), X, (4,))
        else:
            native.await_message(7, 0, "receive of transfer 7")

    run_ranks(fabric, (0, 1), body)
    text = fabric.failure()[1].what
    assert "rank 0 waits in all_reduce(op=sum) for rank 1" in text
    assert "rank 1 waits in receive of transfer 7 for rank 0" in text


WRONG = [
    (Collective("all_reduce", ((5, 6),), (("op", "sum"),)), X, (4,), "in none of its groups"),
    (Collective("reduce_scatter", (ALL,), (("dim", 0), ("op", "sum"))), X, (1,), "not divisible"),
    (Collective("all_gather", (ALL,), (("dim", 3),)), X, (12,), "no dim 3"),
    (GATHER, X, (8,), r"the result is float32\[12\], the code expects float32\[8\]"),
    (Collective("all_reduce", ((0, 0, 1),), (("op", "sum"),)), X, (4,), "names a rank twice"),
]


@pytest.mark.parametrize(("call", "x", "out", "text"), WRONG)
def test_wrong_calls_are_refused_before_anybody_meets(call, x, out, text):
    got = run_ranks(native.CclFabric(ALL, 20), (0,), lambda r: call_native(call, x, out))
    assert got[0].code == "DIST0611"
    with pytest.raises(EngineError, match=text):
        raise got[0]


def test_types_without_a_native_reduction_are_refused_by_name():
    x = np.ones(4, ml_dtypes.float8_e4m3fn)
    got = run_ranks(native.CclFabric((0,), 20), (0,), lambda r: call_native(
        Collective("all_reduce", ((0,),), (("op", "sum"),)), x, (4,)))  # fmt: skip
    with pytest.raises(EngineError, match=r"no native reduction of float8_e4m3fn.*float32"):
        raise got[0]


def test_outside_of_a_run():
    with pytest.raises(EngineError, match="DIST0605"):
        once()()
