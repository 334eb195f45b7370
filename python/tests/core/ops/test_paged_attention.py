# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops on paged caches against NumPy: pages in any order, uneven lengths, and every sharding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tvm_distir.core.ir.operators import kv_append, paged_attention
from tvm_distir.core.ops import rule_of
from tvm_distir.execution.runtime.engines.registry import run
from tvm_distir.support.errors.tree import MeshError

B, P, N, ROWS, K, G, D, M = 4, 2, 64, 4, 2, 4, 8, 3
SCALE = 0.3


def step(new, dtype="float32", window=0, cap=0.0):
    """``main(q, rows, k, v, pages, lengths) -> (o, k, v)``: an append of keys, then attention."""
    cache = relax.TensorType([P, N, ROWS, K, D], dtype)
    types = {
        "q": relax.TensorType([B, new, K, G, D], "float32"),
        "rows": relax.TensorType([B, new, K, D], "float32"),
        "k": cache,
        "v": cache,
        "pages": relax.TensorType([B, M], "int32"),
        "lengths": relax.TensorType([B], "int32"),
    }
    params = [relax.Var(name, ty) for name, ty in types.items()]
    q, rows, k, v, pages, lengths = params
    bb = relax.BlockBuilder()
    with bb.function("main", params, attrs={"num_input": 6}):
        with bb.dataflow():
            k, v = (bb.emit(kv_append(c, rows, pages, lengths, page_size=ROWS)) for c in (k, v))
            both = bb.emit(
                paged_attention(
                    q, k, v, pages, lengths, scale=SCALE, page_size=ROWS, window=window,
                    score_cap=cap,
                )
            )  # fmt: skip
            outs = [bb.emit_output(relax.TupleGetItem(both, 0)), *map(bb.emit_output, (k, v))]
        bb.emit_func_output(relax.Tuple(outs))
    return bb.get()


def inputs(new, dtype="float32"):
    """Draw pages without repetition in a pool, in any order, and lengths from 0 to the most."""
    rng = np.random.default_rng(new)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    pages = np.concatenate(
        [rng.permutation(N)[: M * B // P].reshape(-1, M) for _ in range(P)]
    ).astype("int32")
    lengths = np.array([0, 3, M * ROWS - new, 5], "int32")
    caches = [rng.standard_normal((P, N, ROWS, K, D)).astype(kind) for _ in range(2)]
    q, rows = (
        rng.standard_normal(s).astype("float32") for s in ((B, new, K, G, D), (B, new, K, D))
    )
    return [q, rows, *caches, pages, lengths]


def expected(new, values, window=0, cap=0.0):
    """Compute the step request by request on contiguous keys."""
    q, rows, k, v, pages, lengths = [np.array(x) for x in values]
    out = np.zeros((B, new, K, G, D))
    for b in range(B):
        pool = b // (B // P)
        for i in range(new):
            page, row = divmod(int(lengths[b]) + i, ROWS)
            for cache in (k, v):
                cache[pool, pages[b, page], row] = rows[b, i].astype(cache.dtype)
        keys, vals = (c[pool, pages[b]].reshape(M * ROWS, K, D).astype(float) for c in (k, v))
        for i in range(new):
            last = int(lengths[b]) + i
            first = max(0, last + 1 - window) if window else 0
            scores = np.einsum("kgd,tkd->kgt", q[b, i], keys[first : last + 1]) * SCALE
            scores = cap * np.tanh(scores / cap) if cap else scores
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out[b, i] = np.einsum("kgt,tkd->kgd", weights, vals[first : last + 1])
    return out, k, v


def plan(mesh, **placements):
    rules = [
        {"param": name, "placement": text, "stationary": name in "kv"}
        for name, text in placements.items()
    ]
    return td.Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": rules})


PLANS = {
    "heads": ({"tp": 2}, {"q": "S[2]", "k": "S[3]", "v": "S[3]"}),
    "more devices than key heads": (
        {"tp": 2, "copies": 2}, {"q": "S[2], S[3]", "k": "S[3], R", "v": "S[3], R"},
    ),
    "requests": (
        {"dp": 2}, {n: "S[0]" for n in ("q", "rows", "k", "v", "pages", "lengths")},
    ),
    "positions": ({"cp": 4}, {"k": "S[2]", "v": "S[2]"}),
    "positions and heads": ({"cp": 2, "tp": 2}, {"k": "S[2], S[3]", "v": "S[2], S[3]"}),
}  # fmt: skip
OPTIONS = [(1, 0, 0.0), (3, 0, 2.0), (2, 4, 0.0)]


@pytest.mark.parametrize(("new", "window", "cap"), OPTIONS)
def test_one_device_computes_what_numpy_does(new, window, cap):
    values = inputs(new)
    got = run(td.distribute(step(new, window=window, cap=cap), plan({"x": 1})), values)
    for a, b in zip(got, expected(new, values, window, cap), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("new", [1, 3])
def test_every_sharding_gives_the_same(name, new):
    """Caches stay where the plan puts them, and only statistics of positions are sent."""
    mesh, placements = PLANS[name]
    local = td.distribute(step(new), plan(mesh, **placements))
    out = [str(o["placement"]) for o in local["main"].attrs["dist.io"]["outputs"]]
    assert out[1:] == [placements["k"]] * 2
    report = td.verify(step(new), plan(mesh, **placements), inputs=inputs(new), dist=local)
    assert report.equal
    kinds = {c.kind for c in report.collectives}
    assert ("all_reduce" in kinds) == name.startswith("positions")


def test_threads_run_the_ops():
    values = inputs(1)
    local = td.distribute(step(1), plan(*[PLANS["heads"][0]], **PLANS["heads"][1]))
    for a, b in zip(run(local, values, engine="threads"), expected(1, values), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn"])
def test_narrow_caches_hold_rounded_rows(dtype):
    """Rows are rounded when they are appended, and attention reads what is stored."""
    values = inputs(2, dtype)
    got = run(td.distribute(step(2, dtype), plan({"x": 1})), values)
    want = expected(2, values)
    for a, b in zip(got[1:], want[1:], strict=True):
        a, b = np.asarray(a).astype("float32"), b.astype("float32")
        normal = np.abs(b) >= 2**-6  # TVM's cast to float8 does not round subnormals to nearest
        np.testing.assert_array_equal(a[normal], b[normal])
        np.testing.assert_allclose(a, b, rtol=0, atol=2**-6)
    np.testing.assert_allclose(
        got[0], want[0], rtol=1e-4, atol=1e-4 if dtype == "float16" else 1e-2
    )


def test_work_counts_new_rows_and_read_pages():
    """An append writes its rows; attention reads every page of a request once."""
    bindings = step(1)["main"].body.blocks[0].bindings
    append, attend = (rule_of(bindings[i].value).work for i in (0, 2))
    assert (append.in_bytes[0], append.out_bytes) == (0, (B * K * D * 4,))
    assert attend.in_bytes[1] == attend.in_bytes[2] == B * M * ROWS * K * D * 4
    assert attend.flops == 2 * B * K * G * M * ROWS * 2 * D


def test_three_requests_do_not_fill_two_pools():
    types = [relax.TensorType(s, t) for s, t in (
        ([2, N, ROWS, K, D], "float32"), ([3, 1, K, D], "float32"), ([3, M], "int32"),
        ([3], "int32"),
    )]  # fmt: skip
    call = kv_append(*[relax.Var("x", ty) for ty in types], page_size=ROWS)
    with pytest.raises(MeshError, match=r"DIST0207.*3 requests for 2 pools"):
        relax.BlockBuilder().normalize(call)
