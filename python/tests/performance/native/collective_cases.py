# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random collectives that every rank makes from one seed, calls, and compares with NumPy."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi

from tvm_distir.core.collectives import meaning as collectives
from tvm_distir.core.ir.operators.names import REDUCE_OPS
from tvm_distir.execution.runtime.collectives import native_library as native
from tvm_distir.execution.runtime.program.joining import same_bits

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = [*FLOATS, *INTS, "bool"]


def np_dtype(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def wild(rng, shape, dtype):
    """Values of every magnitude; among floats also zeros of both signs and infinities."""
    dtype = np_dtype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    exponents = {2: 12, 4: 60, 8: 400}[dtype.itemsize]
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-exponents, exponents, shape)
    special = rng.choice([0.0, -0.0, np.inf, 1.0], shape)
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < 0.1, special, values).astype(dtype)


def equal(got, want):
    """Same bits; of NaN only that it is one."""
    if got.dtype.kind in "biu" or got.shape != want.shape or got.dtype != want.dtype:
        return same_bits(got, want)
    odd = np.isnan(want)
    zero = np.zeros((), want.dtype)
    return bool((np.isnan(got) == odd).all()) and same_bits(
        np.where(odd, zero, got), np.where(odd, zero, want)
    )


def random_groups(rng, ranks):
    """Groups of one size over shuffled ranks: not in order, not contiguous."""
    size = int(rng.choice([n for n in range(1, len(ranks) + 1) if len(ranks) % n == 0]))
    mixed = [int(r) for r in rng.permutation(ranks)]
    return [mixed[i : i + size] for i in range(0, len(mixed), size)]


# Each: (rng, group, dtype, op, big) -> (per rank: operand, arguments, result)


def all_reduce(rng, group, dtype, op, big):
    xs = [wild(rng, (3, big, 2), dtype) for _ in group]
    want = collectives.all_reduce(xs, op)
    return [(x, [REDUCE_OPS.index(op)], want) for x in xs]


def reduce_scatter(rng, group, dtype, op, big):
    xs = [wild(rng, (3, big, len(group), 2), dtype) for _ in group]
    cut = collectives.all_reduce(xs, op)
    return [(x, [2, REDUCE_OPS.index(op)], cut[:, :, i : i + 1]) for i, x in enumerate(xs)]


def all_gather(rng, group, dtype, op, big):
    xs = [wild(rng, (2, big, 3), dtype) for _ in group]
    return [(x, [1], np.concatenate(xs, 1)) for x in xs]


def all_to_all(rng, group, dtype, op, big):
    xs = [wild(rng, (2, big, 2 * len(group)), dtype) for _ in group]
    want = collectives.all_to_all(xs, 0, 2)
    return [(x, [0, 2], y) for x, y in zip(xs, want)]


def collective_permute(rng, group, dtype, op, big):
    xs, shift = [wild(rng, (big, 5), dtype) for _ in group], int(rng.integers(-3, 4))
    wrap = int(rng.integers(2))
    want = collectives.collective_permute(xs, shift, bool(wrap))
    return [(x, [shift, wrap], y) for x, y in zip(xs, want)]


MAKERS = (all_reduce, reduce_scatter, all_gather, all_to_all, collective_permute)


def call(name, groups, x, arguments, out):
    flat = tvm_ffi.Shape([r for group in groups for r in group])
    args = [tvm.runtime.tensor(x), flat, len(groups[0]), *arguments, out]
    native.collective(name)(*args)
    return out.numpy()


def run_cases(rank, ranks, seed):
    """Call some dozen collectives as one of the ranks.

    Raises
    ------
    AssertionError
        Naming the first whose result differs.
    """
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    for number in range(2 * len(MAKERS)):
        maker = MAKERS[number % len(MAKERS)]
        op = str(rng.choice(REDUCE_OPS))
        big = int(rng.choice([1, 7, 3000, 30001]))
        groups = random_groups(rng, ranks)
        for group in groups:
            rows = maker(rng, group, dtype, op, big)
            if rank not in group:
                continue
            x, arguments, want = rows[group.index(rank)]
            got = call(maker.__name__, groups, x, arguments, tvm.runtime.empty(want.shape, dtype))
            if not equal(got, want):
                raise AssertionError(
                    f"{maker.__name__} of {dtype}{list(x.shape)} {op} {arguments} over {groups}"
                )
        messages(rng, rank, groups, dtype, big)


def messages(rng, rank, groups, dtype, big):
    """Every rank writes to the next of its group, twice under one tag."""
    values = {r: wild(rng, (2, big), dtype) for group in groups for r in group}
    group = next(g for g in groups if rank in g)
    i = group.index(rank)
    after, before = group[(i + 1) % len(group)], group[i - 1]
    for row in values[rank]:
        native.send(tvm.runtime.tensor(row), 3, after, pickle.dumps(row.shape))
    for row in values[before]:
        label, size_bytes = native.await_message(3, before, "a message")
        out = tvm.runtime.empty(pickle.loads(label), dtype)
        native.take_message(3, before, out)
        if size_bytes != row.nbytes or not same_bits(out.numpy(), row):
            raise AssertionError(f"a message of {dtype}{list(row.shape)} from rank {before}")
