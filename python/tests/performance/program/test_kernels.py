# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops grouped into kernels: what is fused, what is read and written, what the host issues."""

from __future__ import annotations

import dataclasses

import pytest

import tvm_distir as td
from tvm_distir.hardware.systems.constants import Constant
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.fusion.profile import FusionRule, Profile, profile_names
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Entry, Function, Op, Value
from tvm_distir.performance.program.program import Program
from tvm_distir.support.errors.tree import HardwareError
from tvm_distir.transforms.training.train_step import train_step

SIZES = {
    "layers": 2, "hidden": 64, "heads": 4, "vocab": 512, "seq": 16, "positions": 16,
    "dtype": "float16", "fused_qkv": 1,
}  # fmt: skip


def step_of(heads_per_device=4, batch=4, dropout=0.1, recompute="full", dp=2, **keys):
    """A step of a small GPT in two micro-batches, tp 4 // heads_per_device."""
    model = td.zoo.gpt(**{**SIZES, "dropout": dropout, "batch": batch, **keys})
    schedule = {"kind": "1f1b", "stages": 1, "micro_batches": 2}
    step = train_step(
        model, optimizer="adamw", master=True, schedule=schedule, recompute=f"layer={recompute}"
    )
    mesh, names = {"pp": 1, "dp": dp}, "pipeline:micro_batches=2+data_parallel"
    if heads_per_device < 4:
        mesh["tp"], names = 4 // heads_per_device, names + "+megatron"
    return td.export(td.distribute(step, td.planning.make_plan(step, names, mesh)))


@pytest.fixture(scope="module")
def step():
    return step_of()


def kernels(program, function):
    return [
        op
        for op in program.functions[function].ops
        if op.kind == "compute" and op.kernel_class not in ("view", "host", "unit", "step")
    ]


def names(program, function):
    return [op.op for op in kernels(program, function)]


def test_profiles_that_ship():
    assert {"eager", "flash", "megatron", "megatron-lm"} <= set(profile_names())
    for name in profile_names():
        assert Profile.load(name).name == name


def test_unknown_profile():
    with pytest.raises(HardwareError) as caught:
        Profile.load("megatronn")
    assert caught.value.code == "DIST0701"
    assert "megatron" in caught.value.remedy


@pytest.mark.parametrize(
    "data",
    [
        {"schema_version": 1, "name": "x", "kernel": []},
        {"schema_version": 1, "name": "x", "sums": "float8"},
        {"schema_version": 1, "name": "x", "kernels": [{"name": "a"}]},
        {
            "schema_version": 1,
            "name": "x",
            "kernels": [{"name": "a", "anchors": ["relax.add"], "class": "memry"}],
        },
    ],
)
def test_wrong_profile(data):
    with pytest.raises(HardwareError) as caught:
        Profile.from_dict(data)
    assert caught.value.code == "DIST0703"


def test_all_faults_of_a_profile_are_reported_with_their_places():
    rules = [
        {"name": "a", "anchors": ["relax.add"], "class": "memry"},
        {"anchors": ["relax.add"], "issue": "C", "batch_multiple": 0},
        {"name": "b", "anchors": "relax.add", "extra_byte": 4},
    ]
    data = {"schema_version": 1, "name": "x", "casts": 1, "kernels": rules}
    with pytest.raises(HardwareError) as caught:
        Profile.from_dict(data, "p.json")
    faults = {v.location: v for v in caught.value.violations}
    assert {v.code for v in faults.values()} == {"DIST0703"}
    assert set(faults) == {
        "p.json/casts",
        "p.json/kernels/0/class",
        "p.json/kernels/1/name",
        "p.json/kernels/1/issue",
        "p.json/kernels/1/batch_multiple",
        "p.json/kernels/2/anchors",
        "p.json/kernels/2/extra_byte",
    }
    assert faults["p.json/kernels/0/class"].remedy == 'Did you mean "memory"?'
    assert faults["p.json/kernels/2/extra_byte"].remedy == 'Did you mean "extra_bytes"?'


def test_eager_changes_nothing(step):
    assert grouped(step, "eager") is step


def test_layer_forward_is_what_megatron_launches(step):
    created = grouped(step, "megatron")
    assert names(created, "layer") == [
        "layer_norm", "linear", "split_concat", "linear", "masked_softmax",
        "bias_dropout_residual", "linear", "relax.permute_dims", "linear",
        "bias_dropout_residual", "layer_norm", "linear", "bias_gelu",
        "linear", "bias_dropout_residual",
    ]  # fmt: skip


def test_arithmetic_of_products_stays(step):
    def flops(program, function):
        return sum(
            op.flops
            for op in kernels(program, function)
            if op.kernel_class in ("matmul", "batched", "vocabulary", "unaligned")
        )

    created = grouped(step, "megatron")
    biases = sum(op.flops for op in kernels(step, "layer") if op.op == "relax.add")
    assert flops(step, "layer") <= flops(created, "layer") <= flops(step, "layer") + biases
    created.check()


def test_fewer_bytes(step):
    created = grouped(step, "megatron")
    for function in ("layer", "layer_backward", "layer_update"):
        before, after = (
            sum(op.bytes_read + op.bytes_written for op in kernels(each, function))
            for each in (step, created)
        )
        assert after < 0.6 * before


def test_adam_reads_and_writes_28_bytes_per_parameter(step):
    created = grouped(step, dataclasses.replace(Profile.load("megatron"), name="m"))
    fn = created.functions["layer_update"]
    largest = max((op for op in fn.ops if op.op == "adam"), key=lambda op: op.bytes_written)
    count = 4 * SIZES["hidden"] ** 2
    assert largest.bytes_written == (4 + 4 + 4 + 2) * count
    assert largest.bytes_read == pytest.approx((2 + 4 + 4 + 4) * count, rel=0.001)


def test_softmax_is_fused_where_heads_are_a_multiple_of_four(step):
    assert "masked_softmax" in names(grouped(step, "megatron"), "layer")
    few = grouped(step_of(heads_per_device=1, batch=4), "megatron")
    assert "masked_softmax" not in names(few, "layer")
    assert names(few, "layer").count("relax.astype") == 2
    host = {
        program: next(op.flops for op in program_.functions["layer"].ops if op.op == "host")
        for program, program_ in (("all", grouped(step, "megatron")), ("few", few))
    }
    assert host == {"all": 15, "few": 15 + 4 + 3}


def test_host_issues_forward_and_what_is_made_again(step):
    created = grouped(step, "megatron")
    launches = {
        name: sum(op.flops for op in fn.ops if op.op == "host")
        for name, fn in created.functions.items()
    }
    assert launches["layer"] == 15
    assert 12 <= launches["layer_backward"] <= 15
    assert launches["layer_update"] == 0


def test_what_checkpoint_runs_again_is_launched_with_the_gradients():
    """The host does not wait between what is made again and the gradients: one function."""
    created = grouped(step_of(recompute="checkpoint", seq=64, positions=64), "megatron")
    products = {
        name: sum(op.kernel_class in ("matmul", "batched") for op in kernels(created, name))
        for name in ("layer_forward", "layer_backward", "layer_backward_checkpoint")
    }
    assert products["layer_forward"] == 6
    assert products["layer_backward"] == 2 * 6
    assert products["layer_backward_checkpoint"] == 6 + 2 * 6
    hosts = {
        name: [op.flops for op in fn.ops if op.op == "host"]
        for name, fn in created.functions.items()
    }
    assert hosts["layer_checkpoint"] == hosts["layer_backward_checkpoint"] == [15]


def test_sums_over_devices_are_made_once(step):
    created = grouped(step, "megatron")
    role = created.staged.stage_kinds[0]
    end = created.functions[role.phase("end").function]
    sums = [op for op in end.ops if op.kind == "collective" and op.kernel_class == "gradients"]
    kinds = {op.collective for op in created.functions["layer_backward"].ops}
    assert 1 <= len(sums) <= 2 and "all_reduce" not in kinds


def test_a_change_of_the_model_is_seen(step):
    system = td.System.load("dgx-a100-megatron")
    with_, without = (td.simulate(each, system).time_s for each in (step, step_of(dropout=0.0)))
    assert without < with_
    assert "bias_dropout_residual" not in names(grouped(step_of(dropout=0.0), "megatron"), "layer")


def test_flash_is_one_kernel():
    created = grouped(step_of(recompute="none"), "flash")
    matches = [op for op in kernels(created, "layer_forward") if op.kernel_class == "attention"]
    assert [op.op for op in matches] == ["flash_attention"]


def _value(name, size=8):
    return Value(name, (size,), "float32", 4 * size)


def _op(name, op, inputs, output):
    size = 4 * 8 * len(inputs)
    return Op(name, "compute", op, inputs, (output,), 8, size, 32, True, "memory", "float32")


def hand(ops, results, count):
    values = tuple(_value(f"v{n}") for n in range(count))
    fn = Function(0, (0,), tuple(ops), results, values)
    mesh = Mesh("mesh0", ("x",), (1,), (0,))
    return Program((mesh,), {"main": fn}, (Entry(0, "main"),))


ADDS = Profile("adds", rules=(FusionRule("adds", ("a",), ("a",)),))


def test_bytes_are_those_of_the_ends():
    program = hand(
        [_op("x", "a", (0,), 1), _op("y", "a", (1,), 2), _op("z", "a", (1, 2), 3)], (3,), 4
    )
    (op,) = kernels(grouped(program, ADDS), "main")
    assert (op.inputs, op.outputs, op.flops) == ((0,), (3,), 24)
    assert (op.bytes_read, op.bytes_written) == (32, 32)


def test_what_others_read_is_written():
    program = hand(
        [_op("x", "a", (0,), 1), _op("y", "a", (1,), 2), _op("z", "b", (1,), 3)], (2, 3), 4
    )
    first, second = kernels(grouped(program, ADDS), "main")
    assert first.outputs == (1, 2) and first.bytes_written == 64
    assert second.inputs == (1,)


def test_what_nothing_reads_is_launched_all_the_same():
    """As the end of a layer is that the policy ``checkpoint`` runs again."""
    program = hand(
        [_op("x", "a", (0,), 1), _op("y", "a", (1,), 2), _op("z", "b", (0,), 3)], (3,), 4
    )
    created = grouped(program, ADDS)
    created.check()
    dead, read = kernels(created, "main")
    assert (dead.outputs, dead.flops, dead.bytes_written) == ((2,), 16, 32)
    assert read.outputs == (3,)


def test_no_kernel_waits_for_itself():
    """``a -> b -> a``, and a direct way: the two ``a`` may not be one kernel."""
    program = hand(
        [_op("x", "a", (0,), 1), _op("y", "b", (1,), 2), _op("z", "a", (1, 2), 3)], (3,), 4
    )
    created = grouped(program, ADDS)
    assert [op.op for op in kernels(created, "main")] == ["adds", "b", "adds"]
    created.check()


def moved(program, function, kernel):
    """Bytes that a function, and all that it calls, reads and writes in kernels of a name."""
    return sum(
        moved(program, op.callee, kernel)
        if op.kind == "call"
        else (op.bytes_read + op.bytes_written) * (op.op == kernel)
        for op in program.functions[function].ops
    )


def test_gradients_are_added_in_the_time_that_the_host_takes(step):
    """By each micro-batch; where kernels wait for their launches, it takes no time."""
    profiles = [
        dataclasses.replace(Profile.load("megatron"), name=str(flag), accumulates=flag)
        for flag in (False, True)
    ]
    apart, inside = (grouped(step, profile) for profile in profiles)
    inside.check()
    role = inside.staged.stage_kinds[0]
    back, following = (role.phase(name).function for name in ("backward", "accumulate_next"))
    loss_bytes = 3 * 4  # no gradient: stays
    added = moved(apart, following, "relax.add") - loss_bytes
    assert moved(inside, back, "accumulate") == added > 0
    assert moved(inside, following, "relax.add") == loss_bytes
    assert moved(apart, back, "accumulate") == 0
    system = td.System.load("dgx-a100-megatron")
    times = {}
    for launch_us in (1e-3, 10.0):
        local = {"python_launch_us": launch_us}
        constants = system.constants | {n: Constant(value, "here") for n, value in local.items()}
        for name, program in (("apart", apart), ("inside", inside)):
            on = dataclasses.replace(system, constants=constants, kernels="eager")
            times[launch_us, name] = td.simulate(program, on).time_s
    assert times[1e-3, "inside"] > times[1e-3, "apart"]  # the first micro-batch adds too
    assert times[10.0, "inside"] < times[10.0, "apart"]


@pytest.mark.parametrize(("vocab", "heads_per_device", "local"),
    [(512, 4, 512), (508, 4, 508), (1016, 2, 508), (1024, 2, 512)])  # fmt: skip
def test_products_with_logits_by_the_alignment_of_their_rows(vocab, heads_per_device, local):
    """Forward, and for activations and weights backward: three products of equal arithmetic."""
    created = grouped(step_of(heads_per_device, dp=1, vocab=vocab), "megatron")
    matches = [op for fn in created.functions for op in kernels(created, fn)]
    aligned, unaligned = (
        [op for op in matches if op.kernel_class == name] for name in ("vocabulary", "unaligned")
    )
    products = unaligned if local % 8 else aligned
    assert not (aligned if local % 8 else unaligned)
    tokens = 4 * SIZES["seq"]
    assert {op.flops for op in products} == {2 * tokens * SIZES["hidden"] * local}
    assert len(products) == 3


def test_unaligned_products_have_an_efficiency():
    """Else that of products with a vocabulary, else that of all products."""
    system, flops = td.System.load("dgx-a100-megatron"), 10**12
    gap_s = system.constant("kernel_gap_us") * 1e-6
    known = {
        name: single for name, single in system.constants.items()
        if name not in ("vocabulary_efficiency", "unaligned_efficiency")
    }  # fmt: skip
    expected = system.constant("matmul_efficiency")
    for name, value in (("", 0.0), ("vocabulary_efficiency", 0.5), ("unaligned_efficiency", 0.25)):
        if name:
            known, expected = known | {name: Constant(value, "here")}, value
        result = dataclasses.replace(system, constants=known)
        for kernel_class in ("vocabulary", "unaligned"):
            if (name, kernel_class) != ("unaligned_efficiency", "vocabulary"):
                time_s = result.roofline(flops, 0, kernel_class, "float16").time_s
                assert time_s == pytest.approx(flops / (expected * 312e12) + gap_s)
