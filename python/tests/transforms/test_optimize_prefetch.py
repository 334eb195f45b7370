# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gathers of weights that begin before the layer that needs them is called."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tests.transforms.training.pipeline_models import tower
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.attributes.keys import IN_FLIGHT_ATTR
from tvm_distir.core.ir.types import flat_types
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.rewriting.substitute import variables
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import LevelError
from tvm_distir.transforms.optimize.collective_schedule import ScheduleCollectives, SplitCollectives
from tvm_distir.transforms.optimize.prefetch import PrefetchGathers
from tvm_distir.transforms.optimize.traffic import traffic
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule

SYSTEM = td.System.load("dgx-a100")
LAYERS = 3
MANY = 2**40


def overlapped(step: ir.IRModule, plan: Plan) -> ir.IRModule:
    """A step whose collectives are split and in order, each within its function."""
    return ScheduleCollectives(SYSTEM)(SplitCollectives()(td.distribute(step, plan)))


@pytest.fixture(scope="module")
def zero() -> tuple[ir.IRModule, Plan, ir.IRModule]:
    """A step of ZeRO-3, its plan, and what the pass gets."""
    step = td.train_step(tower(LAYERS, 64, tied=False), loss="mse", optimizer="adam")
    plan = make_plan(step, "fsdp", {"dp": 2})
    return step, plan, overlapped(step, plan)


def calls(mod: ir.IRModule, function: str = "main") -> list[str]:
    """Functions that one calls, in order."""
    return [
        str(b.value.op.name_hint)
        for block in mod[function].body.blocks
        for b in block.bindings
        if type(b.value) is ir.Call and type(b.value.op) is ir.GlobalVar
    ]


def in_flight(mod: ir.IRModule) -> dict[str, int]:
    """Bytes in flight that functions give, by name."""
    matches = {}
    for gv, fn in mod.functions.items():
        attrs = fn.attrs or {}
        if IN_FLIGHT_ATTR in attrs and "results" in attrs[IN_FLIGHT_ATTR]:
            matches[str(gv.name_hint)] = sum(
                int(np.prod([int(n) for n in ty.shape])) * 4 for ty in fn.ret_ty.fields
            )
    return matches


def test_the_next_layers_gathers_are_begun_before_a_layer(zero: Any) -> None:
    """One call more per layer, one ahead; the same bytes, sent once."""
    *_, mod = zero
    new = PrefetchGathers(SYSTEM, ahead_bytes=MANY)(mod)
    h.check_module(new)
    check_level(new, 5)
    assert calls(mod)[:LAYERS] == ["layer_forward"] * LAYERS
    order = [name for name in calls(new) if name.startswith("layer_forward")]
    ahead = ["layer_forward_gathers", "layer_forward"] * (LAYERS - 1)
    assert order == ["layer_forward_gathers", *ahead, "layer_forward"]
    added = [name for name in calls(new) if name.endswith("_gathers")]
    assert len(calls(new)) - len(calls(mod)) == len(added) <= 2 * LAYERS
    assert traffic(new).total_sent_bytes == traffic(mod).total_sent_bytes
    assert PrefetchGathers(SYSTEM, ahead_bytes=MANY)(new).same_as(new)


def test_results_stay_the_same_bits(zero: Any) -> None:
    step, _, mod = zero
    values = draw_inputs(step, seed=0)
    new = PrefetchGathers(SYSTEM, ahead_bytes=MANY)(mod)
    expected = td.run(mod, values, engine="virtual")
    for engine in ("virtual", "threads"):
        for a, b in zip(expected, td.run(new, values, engine=engine), strict=True):
            np.testing.assert_array_equal(a, b)


def test_less_communication_is_exposed_within_the_bound() -> None:
    """The layers' gathers are hidden but for the first; memory is that of one more layer."""
    step = td.train_step(
        td.zoo.gpt(layers=6, hidden=2048, heads=16, batch=16, seq=2048, positions=2048)
    )
    plan = make_plan(step, "fsdp", {"dp": 8})
    mod = overlapped(step, plan)
    bound = 2**29
    new = PrefetchGathers(SYSTEM, ahead_bytes=bound)(mod)
    before, after = (td.simulate(td.export(m), SYSTEM) for m in (mod, new))
    exposed = [sum(d.exposed_comm_s for d in r.devices) for r in (before, after)]
    assert after.time_s < before.time_s
    assert exposed[1] < 0.6 * exposed[0]
    gathered = max(in_flight(new).values())
    assert 0 < gathered <= bound
    assert after.peak_memory_bytes <= before.peak_memory_bytes + gathered
    usual = td.distribute(step, plan, system=SYSTEM, bucket_bytes=0)
    assert in_flight(usual) and td.simulate(td.export(usual), SYSTEM).time_s < before.time_s


def test_a_layer_more_is_held(zero: Any) -> None:
    """At the moment at which a layer runs, the weights of the next one are there."""
    *_, mod = zero
    bound = max(in_flight(PrefetchGathers(SYSTEM, ahead_bytes=MANY)(mod)).values())
    for ahead_bytes, all_of_them in ((0, False), (bound // 2, False), (MANY, True)):
        new = PrefetchGathers(SYSTEM, ahead_bytes=ahead_bytes)(mod)
        result = in_flight(new)
        assert max(result.values(), default=0) <= ahead_bytes
        assert (max(result.values(), default=0) == bound) == all_of_them
        peaks = [td.simulate(td.export(m), SYSTEM).peak_memory_bytes for m in (mod, new)]
        assert peaks[1] - peaks[0] <= ahead_bytes
    assert PrefetchGathers(SYSTEM, ahead_bytes=0)(mod).same_as(mod)


def live_bytes(fn: Any) -> int:
    """Bytes of a function's parameters, and the most of what it binds that is needed at once."""

    def size(ty: Any) -> int:
        return sum(4 * int(np.prod([int(n) for n in each.shape])) for each in flat_types(ty))

    bindings = [b for block in fn.body.blocks for b in block.bindings]
    memory: dict[Any, set[int]] = {}  # of a variable: the bindings that made what it shows
    last: dict[int, int] = {}
    for number, binding in enumerate(bindings):
        used = {m for var in variables(binding.value) for m in memory.get(var, ())}
        shows = isinstance(binding.value, relax.TupleGetItem | relax.Tuple | relax.Var)
        memory[binding.var] = used if shows else {number}
        last.update(dict.fromkeys(used | {number}, number))
    for var in variables(fn.body.body):
        last.update(dict.fromkeys(memory.get(var, ()), len(bindings)))
    created = {n for local in memory.values() for n in local}
    sizes = [size(b.var.ty) if n in created else 0 for n, b in enumerate(bindings)]
    peaks = [sum(sizes[n] for n in range(at + 1) if last[n] >= at) for at in range(len(bindings))]
    return sum(size(param.ty) for param in fn.params) + max(peaks)


@pytest.mark.parametrize(("batch", "within"), [(16, False), (64, True)])
def test_the_usual_bound_is_a_sixteenth_of_what_the_caller_holds(batch: int, within: bool) -> None:
    """A layer's gathers that take more than it, and less than twice as much, are left alone."""
    step = td.train_step(tower(2, batch, tied=False), loss="mse", optimizer="sgd")
    mod = overlapped(step, make_plan(step, "fsdp", {"dp": 2}))
    bound = live_bytes(mod["main"]) // 16
    gathered = max(in_flight(PrefetchGathers(SYSTEM, ahead_bytes=MANY)(mod)).values(), default=0)
    usual = PrefetchGathers(SYSTEM)(mod)
    if within:
        assert max(in_flight(usual).values()) == gathered <= bound
    else:
        assert bound < gathered <= 2 * bound
        assert not in_flight(usual)
        twice = PrefetchGathers(SYSTEM, ahead_bytes=2 * bound)(mod)
        assert max(in_flight(twice).values()) == gathered


def test_stages_gather_ahead_in_every_micro_batch() -> None:
    """A phase begins the gathers of its own layers; the schedule runs to the same bits."""
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
    step = td.train_step(tower(4, 64), loss="mse", optimizer="adam", schedule=schedule)
    plan = make_plan(step, "pipeline:micro_batches=2+zero", {"pp": 2, "dp": 2})
    mod = overlapped(step, plan)
    new = PrefetchGathers(SYSTEM, ahead_bytes=MANY)(mod)
    check_level(new, 5)
    assert in_flight(new)
    times = [td.simulate(td.export(m), SYSTEM).time_s for m in (mod, new)]
    assert times[1] < times[0]
    values = draw_inputs(step, seed=0)
    results = [td.run(ExpandSchedule()(m), values, engine="virtual") for m in (mod, new)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


TEXT = """
@I.ir_module
class Module:
    I.module_attrs({"mesh_axes": [["a"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function(private=True)
    def begin(w: R.Tensor((4, 8), "float32")) -> R.Tuple(R.Tensor((8, 8), "float32")):
        R.func_attr({"dist.in_flight": {"results": [0]}})
        t: R.Tensor((8, 8), "float32") = R.dist.all_gather_start(w, "mesh[0]", 0, 0)
        return (t,)
    @R.function(private=True)
    def layer(
        x: R.Tensor((8, 8), "float32"), gathered: R.Tuple(R.Tensor((8, 8), "float32"))
    ) -> R.Tensor((8, 8), "float32"):
        R.func_attr({"dist.in_flight": {"params": [1]}})
        t: R.Tensor((8, 8), "float32") = gathered[0]
        v: R.Tensor((8, 8), "float32") = R.dist.collective_done(t)
        y: R.Tensor((8, 8), "float32") = R.matmul(x, v)
        return y
    @R.function
    def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((4, 8), "float32")):
        R.func_attr({"dist.io": {"mesh": 0, "inputs": [], "outputs": []}})
        cls = Module
        g: R.Tuple(R.Tensor((8, 8), "float32")) = cls.begin(w)
        y: R.Tensor((8, 8), "float32") = cls.layer(x, g)
        return y
"""


def test_what_a_gather_reads_is_held_until_it_has_ended() -> None:
    """A part laid out anew, 512 bytes as every tensor here, until the layer has waited."""
    of = '"shape": [8, 8], "dtype": "float32", "placement"'
    inputs = f'{{"index": 0, "name": "x", {of}: "R"}}, {{"index": 1, "name": "w", {of}: "S[0]"}}'
    text = TEXT.replace('"inputs": []', f'"inputs": [{inputs}]')
    text = text.replace('"outputs": []', f'"outputs": [{{"index": 0, {of}: "R"}}]')
    laid_out = text.replace("all_gather_start(w, ", "all_gather_start(p, ").replace(
        "        t: R.Tensor",
        "        p: R.Tensor((4, 8), 'float32') = R.negative(w)\n        t: R.Tensor",
        1,
    )
    plain, stored = (
        td.simulate(td.export(tvm.script.from_source(each)), SYSTEM).peak_memory_bytes
        for each in (text, laid_out)
    )
    assert (plain, stored) == (4 * 512, 5 * 512)


@pytest.mark.quick
def test_a_count_over_all_micro_batches_stays_a_single_call() -> None:
    """Targets that a ring shards are gathered to count them, for every micro-batch."""
    result = td.analyze(
        "zoo:llama3?size=tiny,seq=64", strategy="zero:stage=1+context_parallel",
        mesh={"dp": 4, "cp": 2}, system="h100", batch=16, micro_batches=4, train=True,
    )  # fmt: skip
    names = {str(gv.name_hint) for gv in result.module.get_global_vars()}
    assert "divisor_whole" in names and "divisor_whole_gathers" not in names


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('R.func_attr({"dist.in_flight": {"results": [0]}})', "pass", "begin/result: what is in"),
        ('R.func_attr({"dist.in_flight": {"params": [1]}})', "pass", "layer/v .*without its start"),
        ("cls.layer(x, g)", "cls.layer(x, (x,))", "main/y .*an argument that is not in flight"),
        ("R.matmul(x, v)", "R.matmul(x, t)", "layer/y .*a use of what is in flight"),
        (
            "collective_done(t)",
            "all_reduce(x, 'mesh[0]', [0], 'sum')",
            r"layer/gathered\[0\].*done",
        ),
        ("return y\n", "z = cls.layer(y, g)\n        return z\n", "main/z .*an argument"),
    ],
)
def test_what_is_in_flight_is_waited_for_once(old: str, new: str, what: str) -> None:
    """Over the boundaries of functions too."""
    head, _, tail = TEXT.rpartition(old)
    mod = tvm.script.from_source(head + new + tail)
    with pytest.raises(LevelError, match=re.compile(what)):
        check_level(mod, 5)
