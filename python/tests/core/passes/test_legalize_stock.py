# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-5 modules in TVM's own R.ccl ops, run with stand-ins for what NCCL would do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tests.core.passes import redistribute_harness as h
from tests.core.passes import redistribute_whole as whole
from tvm_distir.core.collectives.meaning import Collective
from tvm_distir.core.ir.names import REDUCE_OPS
from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.legalize.stock import UseStockCollectives
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.engines.threads.engine import ThreadsEngine
from tvm_distir.support.errors.tree import LoweringError
from tvm_distir.transforms.optimize.bucket import BucketGathers, BucketReductions
from tvm_distir.transforms.optimize.collective_schedule import ScheduleCollectives, SplitCollectives


def groups_of(workers, in_group, count):
    size = workers // count if in_group else workers
    return tuple(tuple(range(i, i + size)) for i in range(0, workers, size))


@pytest.fixture
def disco():
    """Stand-ins for the packed functions that TVM's ops call; give them (workers, num_groups).

    They keep to TVM's contract: flat buffers, all workers or contiguous groups of them.
    """
    session = {}

    def meet(name, args, x, in_group, out):
        fabric, rank = ccl._place(name)
        groups = groups_of(session["workers"], bool(in_group), session["groups"])
        call = Collective(name, groups, args)
        ccl._fill(out, fabric.collective(rank, call, x.numpy()))

    def allreduce(x, kind, in_group, out):
        meet("all_reduce", (("op", REDUCE_OPS[int(kind[0])]),), x, in_group, out)

    def allgather(x, in_group, out):
        meet("all_gather", (("dim", 0),), x, in_group, out)

    made = {
        "runtime.disco.allreduce": allreduce,
        "runtime.disco.allgather": allgather,
    }
    kept = {name: tvm_ffi.get_global_func(name) for name in made}
    for name, function in made.items():
        tvm_ffi.register_global_func(name, function, override=True)
    yield session
    for name, function in kept.items():
        tvm_ffi.register_global_func(name, function, override=True)


def stock_form(mod, passes=()):
    """Plan, lower, run passes of level 5, and write what is left of ``R.dist`` in ``R.ccl``."""
    local = LowerDistIR()(LegalizeRedistribute(ccl=True)(mod))
    for one in passes:
        local = one(local)
    local = UseStockCollectives()(local)
    relax.analysis.well_formed(local)
    assert "R.dist." not in local.script()
    return local


def run(local, inputs, session, workers):
    attrs = local.attrs or {}
    session["workers"] = workers
    session["groups"] = int(attrs["dist.num_groups"]) if "dist.num_groups" in attrs else 1
    return ThreadsEngine(collectives="python").run(local, inputs)


def cases_on(mesh, sizes, keep):
    found = []
    for number, (ndim, op) in enumerate(itertools.product((1, 2), ("sum", "max", "min"))):
        words = h.placements(ndim, len(mesh), True)
        for before, after in itertools.product(words, h.placements(ndim, len(mesh), False)):
            ids = tuple(range(int(np.prod(mesh))))
            dtype = ("float32", "int32", "float16")[(number + len(found)) % 3]
            case = h.Case(sizes[ndim], before, after, mesh, ids, dtype, op)
            if before != after and keep(before, after):
                found.append(case)
    return found


def executed(cases, disco, workers):
    """Run cases in one module; the calls of packed functions that its text names."""
    mod = whole.module_of(cases)
    local = stock_form(mod)
    rng = np.random.default_rng(2)
    inputs = [h.draw(c.shape, c.dtype, rng) for c in cases]
    for case, x, y in zip(cases, inputs, run(local, inputs, disco, workers)):
        np.testing.assert_array_equal(x, y, err_msg=case.text())
    return local.script()


def every(*_):
    return True


def inputs_of(mod):
    return [
        (tuple(int(n) for n in p.ty.tensor_ty.shape), str(p.ty.tensor_ty.dtype))
        for p in mod["main"].params
    ]


@pytest.mark.parametrize("sizes", [h.EVEN, h.UNEVEN], ids=["even", "uneven"])
def test_one_axis(disco, sizes):
    """Every redistribution on a mesh of one axis has a form in R.ccl."""
    text = executed(cases_on((4,), sizes, every), disco, 4)
    assert "R.ccl.allreduce(" in text
    assert "R.ccl.allgather(" in text
    assert "in_group=True" not in text


def test_two_axes(disco):
    """Along the last axis groups are contiguous; else a gather or sum over all takes its place."""
    cases = [c for i, c in enumerate(cases_on((2, 2), h.EVEN, every)) if i % 5 == 0]
    text = executed(cases, disco, 4)
    assert "in_group=True" in text
    assert '"dist.num_groups": 2' in text


def test_reductions_and_gathers_over_all_axes(disco):
    cases = [
        h.Case((8, 12), (P, P), (R, R), (2, 2), (0, 1, 2, 3), "float32", "sum"),
        h.Case((9, 5), (1, 1), (R, R), (2, 2), (0, 1, 2, 3)),
        h.Case((9, 5), (R, R), (0, 1), (2, 2), (0, 1, 2, 3)),
    ]
    text = executed(cases, disco, 4)
    assert "in_group=True" not in text
    assert "dist.num_groups" not in text


REFUSED = [
    (h.Case((8, 8), (0,), (R,), (4,), (0, 2, 1, 3)), "not contiguous ranges"),
    (h.Case((8, 8), (R,), (0,), (4,), (0, 2, 1, 3)), "not in order"),
]


@pytest.mark.parametrize(("case", "words"), REFUSED)
def test_groups_that_disco_does_not_have(case, words):
    with pytest.raises(LoweringError, match=words) as caught:
        stock_form(whole.module_of([case]))
    assert caught.value.code == "DIST0510"


def test_what_innermost_groups_cannot_do():
    """The outer axis alone gathers nothing, and both together give 180 bytes."""
    mod = whole.module_of([h.Case((9, 5), (0, R), (R, 0), (2, 2), (0, 1, 2, 3))])
    assert "R.ccl.allgather" in stock_form(mod).script()
    with pytest.raises(LoweringError, match="by all_reduce, all_gather") as caught:
        LegalizeRedistribute(ccl=True, memory_bytes=179)(mod)
    assert caught.value.code == "DIST0509"


def test_reductions_along_an_outer_axis_are_refused():
    """What a matmul leaves is reduced where it is, not planned."""
    x = "R.DTensor((4, 8), 'float32', 'mesh[0]', 'S[1], R')"
    w = "R.DTensor((8, 4), 'float32', 'mesh[0]', 'S[0], R')"
    mod = tvm.script.from_source(f"""
@I.ir_module
class Module:
    I.module_attrs({{"mesh_axes": [["a", "b"]]}})
    I.module_global_infos({{"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]}})
    @R.function
    def main(x: {x}, w: {w}):
        with R.dataflow():
            y: R.DTensor((4, 4), "float32", "mesh[0]", "R, R") = R.matmul(x, w)
            R.output(y)
        return y
""")
    with pytest.raises(LoweringError, match="not contiguous ranges") as caught:
        stock_form(mod)
    assert caught.value.place == "main/y (dist.all_reduce)"


def test_collectives_that_ccl_does_not_have():
    """Planned without ccl=True, an exchange of dims is an all-to-all."""
    mod = whole.module_of([h.Case((8, 8), (0,), (1,), (4,), (0, 1, 2, 3))])
    local = LowerDistIR()(LegalizeRedistribute()(mod))
    with pytest.raises(LoweringError, match="has no all_to_all") as caught:
        UseStockCollectives()(local)
    assert "ccl=True" in caught.value.remedy


def test_what_is_started_is_done_at_once(disco):
    """Even, uneven and along both axes; dones that stand elsewhere, and one that is a result."""
    mod = whole.module_of([c for i, c in enumerate(cases_on((4,), h.UNEVEN, every)) if i % 9 == 0])
    split = stock_form(mod, (SplitCollectives(),))
    plain = stock_form(mod)
    inputs = [h.draw(shape, dtype, np.random.default_rng(1)) for shape, dtype in inputs_of(mod)]
    for a, b in zip(run(plain, inputs, disco, 4), run(split, inputs, disco, 4), strict=True):
        np.testing.assert_array_equal(a, b)
    assert split.script().count("R.ccl.") == plain.script().count("R.ccl.")


def test_a_started_collective_that_ccl_does_not_have():
    """The message names the collective, not its start."""
    mod = whole.module_of([h.Case((8, 8), (0,), (1,), (4,), (0, 1, 2, 3))])
    local = SplitCollectives()(LowerDistIR()(LegalizeRedistribute()(mod)))
    with pytest.raises(LoweringError, match=r"has no all_to_all\b") as caught:
        UseStockCollectives()(local)
    assert caught.value.code == "DIST0510"


def test_two_sizes_of_groups_need_two_sessions():
    first = h.Case((8, 8), (R, R, 0), (R, R, R), (2, 2, 2), tuple(range(8)))
    second = h.Case((8, 8), (R, 0, 0), (R, R, R), (2, 2, 2), tuple(range(8)))
    with pytest.raises(LoweringError, match="two sessions"):
        stock_form(whole.module_of([first, second]))


OVERLAP = (SplitCollectives(), ScheduleCollectives("laptop-cpu"))
BUCKETS = (BucketReductions(), BucketGathers())


@pytest.mark.parametrize("passes", [(), OVERLAP, (*BUCKETS, *OVERLAP)], ids=len)
def test_a_megatron_mlp_runs_on_stock_collectives(disco, passes):
    """A model, not redistributes alone; also with its collectives in a start and a done."""
    mod = td.zoo.gpt(layers=1, hidden=16, heads=4, seq=4, batch=2, vocab=16)
    plan = td.strategy.megatron(mod, {"tp": 4})
    rng = np.random.default_rng(1)
    inputs = [
        rng.integers(0, 16, [int(n) for n in p.ty.shape]).astype(str(p.ty.dtype))
        for p in mod["main"].params
    ]
    inputs = [x / np.float32(16) if x.dtype.kind == "f" else x for x in inputs]
    want = td.run(td.distribute(mod, plan), inputs, engine="virtual")
    level3 = td.transform.PropagateSharding()(td.transform.AnnotateSharding(plan)(mod))
    local = stock_form(level3, passes)
    assert local.script().count("R.ccl.") > 1
    got = run(local, inputs, disco, 4)
    for a, b in zip(want, got):
        np.testing.assert_allclose(a, b, rtol=1e-5)
