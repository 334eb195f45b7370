# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Starts and dones as two packed calls: what is compiled, its storage, its results."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tests.execution.runtime.test_runtime_mpi import has_mpi
from tests.performance.native.rank_threads import run_ranks
from tests.references.thread_fabric import ReferenceFabric, ReferenceThreads
from tvm_distir.core.collectives import Collective, apply
from tvm_distir.core.ir import outline_branches
from tvm_distir.core.ir.operators import PACKED_ARGS, is_done, started_op
from tvm_distir.core.ir.operators import REDUCE_OPS as OPS
from tvm_distir.execution.runtime import ThreadsEngine
from tvm_distir.execution.runtime.collectives.ccl import functions, worker
from tvm_distir.execution.runtime.collectives.fabric import failure_text
from tvm_distir.execution.runtime.collectives.native_fabric import NativeFabric
from tvm_distir.execution.runtime.program.async_calls import split_starts
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.runtime.program.lowered import LoweredProgram, entry_module
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy
from tvm_distir.support import EngineError, UsageError

PLANNING = (
    "LegalizeOps",
    "RewriteDataflowReshape",
    "ToNonDataflow",
    "RemovePurityChecking",
    "CallTIRRewrite",
    "StaticPlanBlockMemory",
    "LowerAllocTensor",
    "KillAfterLastUse",
)


@pytest.fixture(scope="module")
def overlapped():
    """A ZeRO-3 step whose collectives are split, and its inputs."""
    net = td.zoo.gpt(vocab=64, layers=1, hidden=32, heads=4, seq=8, batch=8)
    mod = td.train_step(net, optimizer="adamw")
    plan = strategy.make_plan(mod, "zero:stage=3+megatron", {"dp": 2, "tp": 2})
    return td.distribute(mod, plan, overlap="dgx-a100"), draw_inputs(mod, seed=2)


def bindings_of(mod):
    functions = [fn for fn in mod.functions.values() if isinstance(fn, relax.Function)]
    return [b for fn in functions for block in fn.body.blocks for b in block.bindings]


def called(binding):
    """The name of the packed function or op that a binding calls, empty for others."""
    value = binding.value
    if not isinstance(value, tvm.ir.Call):
        return ""
    if str(getattr(value.op, "name", "")) == "relax.call_dps_packed":
        return str(value.args[0].global_symbol)
    return str(getattr(value.op, "name", "") or getattr(value.op, "global_symbol", ""))


def test_every_start_and_done_becomes_a_call(overlapped):
    mod, _ = overlapped
    before = bindings_of(mod)
    starts = sum(started_op(b.value) is not None for b in before)
    names = [called(b) for b in bindings_of(split_starts(outline_branches(mod)))]
    calls = [name for name in names if name.startswith("tvm_distir.ccl.")]
    assert starts > 10
    assert sum(name.endswith("_start") for name in calls) == starts
    assert calls.count("tvm_distir.ccl.done") == sum(is_done(b.value) for b in before)
    assert not [name for name in names if name.startswith("relax.dist.collective_done")]


def test_a_module_without_starts_is_left_as_it_is():
    mod = td.zoo.gpt(vocab=64, layers=1, hidden=32, heads=4, seq=8, batch=8)
    dist = td.distribute(mod, strategy.make_plan(mod, "megatron", {"tp": 2}))
    assert split_starts(dist) is dist


def test_no_storage_in_flight_is_handed_out_or_freed(overlapped):
    """TVM's planner sees the operand of a start read by its done."""
    mod, _ = overlapped
    program = LoweredProgram(mod)
    module = entry_module(program.mod, program.entries[0].function)
    with tvm.target.Target("llvm"):
        passes = [getattr(relax.transform, name)() for name in PLANNING]
        planned = tvm.transform.Sequential(passes)(module)
    pairs = created = 0
    for fn in planned.functions.values():
        if not isinstance(fn, relax.Function):
            continue
        storage, flying = {}, {}
        for binding in (b for block in fn.body.blocks for b in block.bindings):
            name, value = called(binding), binding.value
            if name.endswith("alloc_tensor"):
                storage[binding.var] = value.args[0]
                used = [s for _, s in flying.values() if s is not None]
                assert not any(s.same_as(value.args[0]) for s in used), binding
            elif name.endswith(("kill_tensor", "kill_object", "kill_storage")):
                stored = [v for pair in flying.values() for v in pair if v is not None]
                assert not any(v.same_as(value.args[0]) for v in stored), binding
            elif name.endswith("_start") and int(value.args[-2].value) == 0:
                flying[value.args[-1]] = (value.args[0], storage.get(value.args[0]))
                pairs, created = pairs + 1, created + (value.args[0] in storage)
            elif name == "tvm_distir.ccl.done":
                flying.pop(value.args[0], None)
        assert not flying
    assert pairs > 10
    assert created > 5


def test_collectives_in_flight_give_the_same_bits(overlapped):
    """Starts whose dones are in other functions among them."""
    mod, inputs = overlapped
    names = [
        binding.value.args[1].fields[-1]
        for binding in bindings_of(split_starts(outline_branches(mod)))
        if called(binding).endswith("_start")
    ]
    assert {int(copies.value) for copies in names} == {0, 1}
    want = td.run(mod, inputs, engine="virtual")
    engines = [ThreadsEngine(), ReferenceThreads()]
    for engine in [*engines, *([td.execution.MpiEngine()] if has_mpi() else [])]:
        got = engine.run(mod, inputs)
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True)), engine.name
        assert engine.most_in_flight > 3, engine.name


FABRICS = {"native": NativeFabric, "reference": ReferenceFabric}
GROUPS = ((0, 2), (3, 1))
CALLS = (
    Collective("all_reduce", GROUPS, (("op", "sum"),)),
    Collective("all_gather", GROUPS, (("dim", 1),)),
    Collective("reduce_scatter", GROUPS, (("dim", 0), ("op", "max"))),
    Collective("all_to_all", GROUPS, (("gather_dim", 1), ("split_dim", 0))),
    Collective("collective_permute", GROUPS, (("shift", 1),)),
    Collective("collective_permute", GROUPS, (("shift", 1), ("wrap", 1))),
    Collective(
        "exchange",
        GROUPS,
        (
            ("shape", (5, 6000)),
            ("src", ((2,), (0, 1), (0,))),
            ("dst", ((2,), (0, 1), (1,))),
        ),
    ),
)


def operand(rank, number, columns):
    rng = np.random.default_rng([rank, number])
    return rng.standard_normal((6 if number < 6 else 3, columns)).astype("float32")


def packed_arguments(call, x):
    """What compiled code gives the start of a collective, but the result."""
    args, size = dict(call.args), len(call.groups[0])
    ranks = tvm_ffi.Shape([rank for group in call.groups for rank in group])
    inputs = [tvm.runtime.tensor(x), ranks, size]
    if call.name == "exchange":
        (mesh, _, before), (_, _, after) = args["src"], args["dst"]
        return [*inputs, *map(tvm_ffi.Shape, (args["shape"], mesh, before, after))]
    values = {"wrap": 0, **args}
    return [
        *inputs,
        *(OPS.index(values[k]) if k == "op" else values[k] for k in PACKED_ARGS[call.name]),
    ]


@pytest.mark.parametrize("kind", FABRICS)
@pytest.mark.parametrize("columns", [4, 6000])
def test_every_kind_completes_in_any_order(kind, columns):
    """All are started, then completed from the last to the first; a blocking one lies between."""
    calls = [call for call in CALLS if call.name != "exchange" or columns == 6000]
    fabric, table = FABRICS[kind](range(4), 30.0), functions(kind != "native")

    def body(rank):
        with worker(fabric, rank):
            outs = []
            for number, call in enumerate(calls):
                x = operand(rank, number, columns)
                want = apply(call, [x] * 2)[0]
                inputs = packed_arguments(call, x)
                outs.append(tvm.runtime.empty(want.shape, "float32"))
                table[call.name + "_start"](*inputs, 1, outs[-1])
                inputs[0].copyfrom(np.full_like(x, np.nan))  # its memory is used again
            between = Collective("exchange", GROUPS, CALLS[-1].args)
            exchange = fabric.exchange if kind == "native" else fabric.collective
            result = exchange(rank, between, operand(rank, 6, 6000))
            for out in reversed(outs):
                table["done"](out)
            table["done"](tvm.runtime.empty((2,), "float32"))
            return {**{k: out.numpy() for k, out in enumerate(outs)}, "between": result}

    got = run_ranks(fabric, range(4), body)
    assert fabric.failure is None, fabric.failure
    assert fabric.most_in_flight == len(calls)
    for number, call in [*enumerate(calls), ("between", CALLS[-1])]:
        drawn = 6 if number == "between" else number
        wide = 6000 if number == "between" else columns
        for group in GROUPS:
            wants = apply(call, [operand(rank, drawn, wide) for rank in group])
            for rank, want in zip(group, wants):
                assert same_bits(got[rank][number], want), (call, rank)


def fails(kind, body, ranks=2):
    """The first cause of a run of ranks that call the functions themselves."""
    fabric, table = FABRICS[kind](range(ranks), 1.0), functions(kind != "native")

    def work(rank):
        with worker(fabric, rank):
            body(rank, table)

    run_ranks(fabric, range(ranks), work)
    return failure_text(fabric.failure[1])


@pytest.mark.parametrize("kind", FABRICS)
def test_ranks_that_start_different_collectives_are_told(kind):
    def body(rank, table):
        call = Collective("all_reduce", ((0, 1),), (("op", "sum" if rank else "max"),))
        out = tvm.runtime.empty((3,), "float32")
        table["all_reduce_start"](*packed_arguments(call, np.ones(3, "float32")), 1, out)
        table["done"](out)

    message = fails(kind, body)
    assert "DIST0611" in message
    assert "op=max" in message
    assert "op=sum" in message


@pytest.mark.parametrize("kind", FABRICS)
@pytest.mark.parametrize("fault", ["raises", "ends", "blocks"])
def test_a_rank_that_never_starts_its_collective_ends_the_wait(kind, fault):
    """Rank 1 raises, ends, or waits for rank 0 in another collective."""
    call = Collective("all_reduce", ((0, 1),), (("op", "sum"),))

    def body(rank, table):
        out = tvm.runtime.empty((3,), "float32")
        inputs = packed_arguments(call, np.ones(3, "float32"))
        if rank == 0:
            table["all_reduce_start"](*inputs, 0, out)
            table["done"](out)
        elif fault == "raises":
            raise ValueError("boom")
        elif fault == "blocks":
            table["all_reduce"](*inputs, out)

    message = fails(kind, body)
    expected = {"raises": "boom", "ends": "DIST0610", "blocks": "DIST061[03]"}
    assert re.search(expected[fault], message), message


def collectives_in_order(events):
    """The simulated or recorded collectives of device 0 that are started, by their starts."""
    return sorted((e for e in events if e[0].endswith("_start")), key=lambda e: e[1])


def check_trace(path, mod):
    """What the simulator overlaps is in flight in a run, rank by rank."""
    simulated = [
        (e.name, e.start_s, e.start_s + e.duration_s, e.stream)
        for e in td.simulate(mod, "dgx-a100").events
        if e.device == 0
        and e.duration_s > 0
        and e.name != "axis_index"
        and not e.name.startswith("slowed by ")  # no kernel, but what a collective costs kernels
    ]
    events = json.loads(path.read_text())["traceEvents"]
    for rank in range(4):
        mine = [e for e in events if e["pid"] == rank]
        calls = [e for e in mine if e["ph"] == "X"]
        started = [e["name"] for e in calls if e["name"].endswith("_start")]
        ends = {e["id"]: e["ts"] for e in mine if e["ph"] == "e"}
        pairs = [(e["ts"], ends[e["id"]]) for e in mine if e["ph"] == "b"]
        expected = collectives_in_order(simulated)
        assert [name for name, *_ in expected] == started
        assert len(pairs) == len(started)
        kernels = [e for e in calls if e["tid"] == 1]
        overlapped = 0
        for (_, begin_s, end_s, _), (start, done) in zip(expected, pairs, strict=True):
            beside = [e for e in simulated if e[3] == "compute" and e[1] < end_s and e[2] > begin_s]
            between = [e for e in kernels if start < e["ts"] and e["ts"] + e["dur"] < done]
            # The first may have been launched before the start: the simulated host runs ahead.
            assert len(between) >= len(beside) - 1, (rank, begin_s)
            overlapped += len(beside) > 1
        assert overlapped > 3
        counts = [e["args"]["collectives"] for e in mine if e["ph"] == "C"]
        assert max(counts) > 3
        assert counts[-1] == 0


@pytest.mark.parametrize("engine", ["threads", "torch"])
def test_what_the_simulator_overlaps_is_in_flight_in_a_run(overlapped, engine, tmp_path):
    if engine == "torch":
        pytest.importorskip("torch")
    mod, inputs = overlapped
    run, step = tmp_path / "run.json", tmp_path / "step.json"
    td.run(mod, inputs, engine, trace=run)
    check_trace(run, mod)
    td.simulate(mod, "dgx-a100").to_perfetto(step)
    td.merge_traces(tmp_path / "both.json", measured=run, predicted=step)
    parts = [json.loads(p.read_text())["traceEvents"] for p in (run, step, tmp_path / "both.json")]
    names = [e for e in parts[2] if e["name"] == "process_name"]
    ranks = [f"measured: rank {rank}" for rank in range(4)]
    assert [e["args"]["name"] for e in names if e["pid"] % 2 == 0] == ranks
    assert all(e["args"]["name"].startswith("predicted: ") for e in names if e["pid"] % 2)
    for number, part in enumerate(parts[:2]):
        spans = [(e["pid"], e["name"], e["ts"]) for e in part if e["ph"] == "X"]
        merged = [e for e in parts[2] if e["ph"] == "X" and e["pid"] % 2 == number]
        assert [(e["pid"] // 2, e["name"], e["ts"]) for e in merged] == spans


@pytest.mark.parametrize("text", ["{}", "[]", '{"traceEvents": [{"ph": "X"}]}', "{"])
def test_a_file_that_is_no_trace_is_not_merged(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match="DIST0152"):
        td.merge_traces(tmp_path / "b.json", a=tmp_path / "a.json")


def test_traces_that_cannot_be_made_are_refused(overlapped, tmp_path):
    mod, inputs = overlapped
    with pytest.raises(EngineError, match="DIST0605"):
        td.run(mod, inputs, "virtual", trace=tmp_path / "run.json")
    for bad, code in (("run.pftrace", "DIST0152"), ("missing/run.json", "DIST0153")):
        with pytest.raises(UsageError, match=code):
            td.run(mod, inputs, "threads", trace=tmp_path / bad)
