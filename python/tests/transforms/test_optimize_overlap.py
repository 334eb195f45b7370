# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes over collectives at level 5: buckets, start and done, and the order between."""

from __future__ import annotations

import dataclasses
import re
import sys

import pytest
import tvm
from tvm import relax

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tests.core.passes.local_harness import held, module, ops_of, reduce
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.operators import async_ops
from tvm_distir.hardware.systems.system import System
from tvm_distir.performance.memory.caching_allocator import CachingAllocator
from tvm_distir.performance.memory.ranks import RankMemories
from tvm_distir.planning.calibration.step_times import with_constants
from tvm_distir.support.errors.tree import LevelError
from tvm_distir.transforms.optimize.binding_costs import BindingCosts
from tvm_distir.transforms.optimize.bucket import BucketReductions
from tvm_distir.transforms.optimize.collective_schedule import ScheduleCollectives, SplitCollectives
from tvm_distir.transforms.optimize.dependence import block_nodes, peak_bytes
from tvm_distir.transforms.optimize.function_facts import Scan
from tvm_distir.transforms.optimize.traffic import traffic

SYSTEM = System.load("laptop-cpu")
NO_LIMIT = 2**40


GRADIENTS = [
    "g0 = R.matmul(x0, x1)",
    f"r0 = {reduce('g0', 0)}",
    "w0 = R.subtract(x0, r0)",
    "g1 = R.matmul(x1, x0)",
    f"r1 = {reduce('g1', 0)}",
    "w1 = R.subtract(x1, r1)",
    "g2 = R.sum(g1, axis=[0])",
    f"r2 = {reduce('g2', 0)}",
    "w2 = R.add(x1, r2)",
]


def test_a_bucket_takes_reductions_of_one_kind():
    mod = module(2, GRADIENTS, ["w0", "w1", "w2"])
    new = held(BucketReductions(), mod, 2, ("virtual", "threads"))
    assert ops_of(new).count("all_reduce") == 1
    assert traffic(new).total_sent_bytes == traffic(mod).total_sent_bytes


def test_buckets_are_filled_to_their_size_only():
    mod = module(2, GRADIENTS, ["w0", "w1", "w2"])  # of 256, 256 and 32 bytes
    for most, left in ((256, 3), (288, 2), (512, 2), (544, 1)):
        new = held(BucketReductions(most), mod, 2)
        assert ops_of(new).count("all_reduce") == left, most


def test_nothing_is_joined_across_kinds():
    body = [
        f"a = {reduce('x0', 0)}",
        f"b = {reduce('x0', 1)}",
        f"c = {reduce('x0', 0, op='max')}",
        f"d = {reduce('x0', 0, 1)}",
        'e = R.astype(x0, "float64")',
        f"f = {reduce('e', 0)}",
        'g = R.astype(f, "float32")',
    ]
    mod = module(1, body, ["a", "b", "c", "d", "g"])
    new = BucketReductions()(mod)
    tvm.ir.assert_structural_equal(new, mod)


def test_buckets_that_would_wait_for_each_other_are_not_made():
    body = [
        f"a1 = {reduce('x0', 0)}",
        f"b1 = {reduce('a1', 1)}",
        f"b2 = {reduce('x1', 1)}",
        f"a2 = {reduce('b2', 0)}",
        "y = R.add(b1, a2)",
    ]
    new = held(BucketReductions(), module(2, body, ["y"]), 2)
    assert sorted(ops_of(new)).count("all_reduce") in (3, 4)


def test_a_chain_of_reductions_stays():
    body = ["g = R.negative(x0)"]
    for i in range(6):
        body += [f"r{i} = {reduce('g' if not i else f'h{i - 1}', 0)}", f"h{i} = R.abs(r{i})"]
    mod = module(1, body, ["h5"])
    tvm.ir.assert_structural_equal(BucketReductions()(mod), mod)


def test_readers_wait_for_both_of_their_buckets():
    body = [
        f"a1 = {reduce('x0', 0)}",
        f"b1 = {reduce('x0', 1)}",
        "s = R.add(a1, b1)",
        "t = R.negative(s)",
        f"a2 = {reduce('x1', 0)}",
        f"b2 = {reduce('x1', 1)}",
        "u = R.add(a2, b2)",
        "v = R.multiply(t, u)",
    ]
    new = held(BucketReductions(), module(2, body, ["v", "s"]), 2)
    assert ops_of(new).count("all_reduce") == 2


OVERLAP = [
    "m = R.matmul(x0, x1)",
    f"r = {reduce('m', 0)}",
    "y = R.abs(r)",
    "p = R.matmul(x1, x1)",
    "q = R.matmul(p, p)",
    "z = R.add(y, q)",
]


def test_split_then_schedule():
    mod = module(2, OVERLAP, ["z"])
    split = held(SplitCollectives(), mod, 2, ("virtual", "threads"))
    assert ops_of(split)[1:3] == ["all_reduce_start", "collective_done"]
    done = held(ScheduleCollectives(), split, 2, ("virtual", "threads"))
    order = ops_of(done)
    assert order.index("all_reduce_start") == 1  # as soon as its operand is there
    assert order.index("collective_done") >= 3  # other work between
    assert traffic(done) == traffic(split) == traffic(mod)


def test_every_collective_splits():
    body = [
        'a = R.dist.all_gather(x0, "mesh[0]", 0, 1)',
        'b = R.dist.reduce_scatter(a, "mesh[0]", 0, 0, "sum")',
        'c = R.dist.all_to_all(b, "mesh[0]", 1, 0, 1)',
        'd = R.dist.collective_permute(c, "mesh[0]", 1, 1)',
        f"e = {reduce('d', 0, 1)}",
        "f = R.sum(e, axis=[0, 1], keepdims=True)",
        "g = R.add(x0, f)",
    ]
    new = held(SplitCollectives(), module(1, body, ["g"]), 1, ("virtual", "threads"))
    starts = [name for name in ops_of(new) if name.endswith("_start")]
    kinds = ("all_gather", "reduce_scatter", "all_to_all", "collective_permute", "all_reduce")
    assert starts == [async_ops.start_name(kind) for kind in kinds]


def test_the_simulator_follows_the_order_of_the_program():
    """Times by hand: each compute op and the collective on streams of their own."""
    mod = module(2, OVERLAP, ["z"])
    split = SplitCollectives()(mod)
    done = ScheduleCollectives(SYSTEM, memory_limit_bytes=NO_LIMIT)(split)
    modules = {"plain": mod, "split": split, "done": done}
    duration = {
        name: td.simulate(td.export(single), SYSTEM, blocking=True)
        for name, single in modules.items()
    }
    (event,) = [e for e in duration["plain"].events if e.stream == "comm"]
    compute_s = duration["plain"].devices[0].compute_s
    assert duration["plain"].time_s == pytest.approx(compute_s + event.duration_s)
    assert duration["split"].time_s == pytest.approx(duration["plain"].time_s)
    by_name = {e.args["binding"]: e.duration_s for e in duration["done"].events}
    hidden_s = min(event.duration_s, by_name["p"] + by_name["q"])
    assert duration["done"].time_s == pytest.approx(compute_s + event.duration_s - hidden_s)
    unfolded = td.simulate(td.export(done), SYSTEM, fold_devices=False)
    assert unfolded.time_s == duration["done"].time_s


def test_a_started_collective_waits_for_what_was_issued_before():
    """A start that stands last overlaps nothing, though its operand was there from the start."""
    body = [
        "p = R.matmul(x1, x1)",
        "q = R.matmul(p, p)",
        'r = R.dist.all_reduce_start(x0, "mesh[0]", [0], "sum")',
        "s = R.dist.collective_done(r)",
    ]
    result = td.simulate(td.export(module(2, body, ["q", "s"])), SYSTEM)
    assert result.devices[0].exposed_comm_s == result.devices[0].comm_s > 0
    plain = [*body[:2], f"s = {reduce('x0', 0)}"]
    free = td.simulate(td.export(module(2, plain, ["q", "s"])), SYSTEM)
    assert free.devices[0].exposed_comm_s < free.devices[0].comm_s


def peak(mod):
    """Bytes of the entry, its parameters included."""
    program = td.export(mod)
    framework = CachingAllocator(program, block_bytes=1)
    return RankMemories(program, framework).of(0).account.peak_bytes


def chain():
    """Reductions one behind the other, and beside each what may be made before it has ended."""
    body = [f"r0 = {reduce('x0', 0)}"]
    for i in range(12):
        body += [f"p{i} = R.matmul(x1, r{i})", f"q{i} = {reduce(f'p{i}', 0)}"]
        body += [f"a{i} = R.multiply(x0, x1)", f"b{i} = R.add(a{i}, x1)"]
        body += [f"r{i + 1} = R.add(q{i}, b{i})"]
    return body


def test_work_runs_ahead_by_a_sixteenth_of_what_a_block_holds():
    """Of 27 values there may be one more; two more, which an eighth would allow, run further."""
    remaining = [f"k{i} = R.abs(x{i % 2})" for i in range(24)]
    results = ["r12", *(f"k{i}" for i in range(24))]
    split = SplitCollectives()(module(2, [*remaining, *chain()], results))
    inputs = peak(split) - 2 * 256
    usual = ScheduleCollectives(SYSTEM)(split)
    within, twice = (
        ScheduleCollectives(SYSTEM, memory_limit_bytes=inputs + inputs // part)(split)
        for part in (16, 8)
    )
    tvm.ir.assert_structural_equal(usual, within)
    assert inputs < peak(usual) - 2 * 256 <= inputs + inputs // 16 < peak(twice) - 2 * 256


def test_memory_bounds_how_far_work_runs_ahead():
    split = SplitCollectives()(module(2, chain(), ["r12"]))
    free = held(ScheduleCollectives(SYSTEM, memory_limit_bytes=NO_LIMIT), split, 2)
    bound = held(ScheduleCollectives(SYSTEM, memory_limit_bytes=5 * 256), split, 2)
    assert peak(bound) <= 2 * 256 + 5 * 256 < peak(free)
    tight = ScheduleCollectives(SYSTEM, memory_limit_bytes=0)(split)
    tvm.ir.assert_structural_equal(tight, split)


def test_the_operand_of_a_collective_is_held_until_its_done():
    body = [
        "m = R.abs(x0)",
        'r = R.dist.all_reduce_start(m, "mesh[0]", [0], "sum")',
        "p = R.abs(x1)",
        "q = R.abs(p)",
        "s = R.dist.collective_done(r)",
        "z = R.add(s, q)",
    ]
    mod = module(2, body, ["z"])
    scan = Scan.of(mod["main"])
    (nodes,) = block_nodes(scan, BindingCosts(mod, SYSTEM).of(scan.reading))
    assert peak_bytes(nodes, range(6)) == 4 * 256  # m, r, p, q
    assert peak_bytes(nodes, [0, 1, 4, 2, 3, 5]) == 3 * 256  # s is r; it, p, q


def test_what_prepares_a_start_is_not_made_before_it_can_start():
    """The transposed copy waits for the other operand of the product that is reduced."""
    body = ["h = R.abs(x0)", "p0 = R.matmul(h, x1)"]
    body += [f"p{i + 1} = R.matmul(p{i}, h)" for i in range(6)]
    body += ["u = R.negative(p6)", "v = R.abs(u)", "t = R.permute_dims(h)", "m = R.matmul(t, p6)"]
    body += [f"r = {reduce('m', 0)}", "z = R.add(r, v)"]
    split = SplitCollectives()(module(2, body, ["z"]))
    new = held(ScheduleCollectives(SYSTEM, memory_limit_bytes=NO_LIMIT), split, 2)
    order = re.findall(r"^ +(\w+): R\.Tensor", new.script(), re.M)
    assert order.index("p6") < order.index("t") < order.index("r_start") < order.index("u")


WRONG = {
    "read in flight": [
        'r = R.dist.all_reduce_start(x0, "mesh[0]", [0], "sum")',
        "y = R.abs(r)",
        "s = R.dist.collective_done(r)",
        "z = R.add(y, s)",
    ],
    "no done": ['r = R.dist.all_reduce_start(x0, "mesh[0]", [0], "sum")', "z = R.abs(x0)"],
    "no start": ["y = R.abs(x0)", "z = R.dist.collective_done(y)"],
    "done twice": [
        'r = R.dist.all_reduce_start(x0, "mesh[0]", [0], "sum")',
        "s = R.dist.collective_done(r)",
        "t = R.dist.collective_done(r)",
        "z = R.add(s, t)",
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_in_flight_belongs_to_one_done(name):
    with pytest.raises(LevelError, match="DIST0451"):
        check_level(module(1, WRONG[name], ["z"]), 5)


def test_starts_are_of_local_tensors():
    x = relax.Var("x", h.as_dtensor(relax.TensorType((8, 8), "float32"), h.mesh_of(2), [-1]))
    with pytest.raises(Exception, match="DIST0207"):
        relax.BlockBuilder().normalize(async_ops.collective_done(x))


def layers(count):
    body = ["h0 = R.abs(x0)"]
    for i in range(count):
        body += [f"m{i} = R.matmul(h{i}, x1)", f"s{i} = {reduce(f'm{i}', 1)}"]
        body += [f"h{i + 1} = R.add(s{i}, x0)", f"g{i} = R.matmul(h{i}, h{i + 1})"]
        body += [f"t{i} = {reduce(f'g{i}', 0)}", f"w{i} = R.subtract(x1, t{i})"]
    body.append(f"y = R.abs(h{count})")
    for i in range(count):
        body.append(f"y{i} = R.add({'y' if not i else f'y{i - 1}'}, w{i})")
    return module(2, body, [f"y{count - 1}"])


@pytest.mark.parametrize("run_pass", ["bucket", "split", "schedule"])
def test_work_grows_with_the_bindings(run_pass, monkeypatch):
    """Counted in Python calls, which no other load on the machine changes."""
    make = {"bucket": BucketReductions, "split": SplitCollectives}
    small, large = layers(20), layers(160)
    counts = []
    for mod in (small, large):
        step = make[run_pass]() if run_pass in make else ScheduleCollectives(SYSTEM)
        mod = SplitCollectives()(mod) if run_pass == "schedule" else mod
        counted = [0]

        def count(frame, event, arg, counted=counted):
            counted[0] += event == "call"

        sys.setprofile(count)
        try:
            step(mod)
        finally:
            sys.setprofile(None)
        counts.append(counted[0])
    assert counts[1] < 8 * counts[0] * 1.3


def test_buckets_of_a_function_overlap_within_the_bound():
    """What a bucket joins is made where its operands are: put off, it would hold activations.

    Gradients of GPT-3's layers over eight devices; in ``layer_backward`` and nowhere else.
    """
    model = td.zoo.gpt(size="gpt3-175b", layers=2, batch=32)
    mod = td.train_step(model, optimizer="sgd", rate=1.0)
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 8})
    dist = td.distribute(mod, plan, bucket_bytes=25 * 2**20, overlap="dgx-a100")
    assert "layer_backward" in {str(gv.name_hint) for gv in dist.functions}
    (device, *_) = td.simulate(td.export(dist), System.load("dgx-a100")).devices
    assert device.exposed_comm_s < 0.01 * device.comm_s


def test_gathers_of_the_backward_part_begin_in_time_and_not_before():
    """Megatron's schedule: beside the product of the gradient (Korthikanti et al. 2022, 4.2.2).

    Begun as soon as they could be, all at once, they take more memory than may run ahead, and then
    nothing does.
    """
    step = td.train_step(td.zoo.gpt(size="gpt3-175b", layers=2, batch=1, dtype="float16"))
    plan = td.planning.make_plan(step, "megatron:sequence=1", {"tp": 8})
    times_s = []
    # More gathers cost the kernels beside them more, which is not what is compared here.
    system = with_constants(System.load("dgx-a100"), {"overlap_slowdown": 1.0})
    for each in (plan, dataclasses.replace(plan, regather=())):
        dist = td.distribute(step, each, system="dgx-a100")
        times_s.append(td.simulate(td.export(dist), system).time_s)
        if each.regather:
            lines = re.findall(r"^ +(\w+): .* = R\.(.*)", dist["layer_backward"].script(), re.M)
    first = next(i for i, (_, value) in enumerate(lines) if value.startswith(("matmul", "einsum")))
    starts = [i for i, (name, _) in enumerate(lines) if name.endswith("_again_start")]
    assert len(starts) == 2
    assert min(starts) > first
    assert times_s[0] < 1.01 * times_s[1]
