# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Alignment of hand-made calls and ops, whose correspondence is known by construction."""

from __future__ import annotations

from tvm_distir.performance.traces.traced_steps import TracedCall
from tvm_distir.planning.learning.alignment import PredictedOp, align


def op(name: str, phase: str, flops: int = 0, **more: object) -> PredictedOp:
    args = {"pass": phase, "flops": flops, "bytes": 8, "class": "memory", "module": "", **more}
    return PredictedOp(name, args, 0.0, 1e-6)


def call(name: str, family: str, phase: str, flops: int = 0) -> TracedCall:
    return TracedCall(name, family, phase, False, 0.0, 1e-6, flops)


def test_nodes_correspond_to_both_gradients_of_their_product() -> None:
    ops = [op("matmul", "forward", n) for n in (100, 200, 300)]
    ops += [op("matmul", "backward", n) for n in (300, 300, 200, 200, 100)]
    calls = [call("aten::linear", "product", "forward") for _ in range(3)]
    calls += [call("AddmmBackward0", "product", "backward") for _ in range(3)]
    works = [work for work in align(calls, ops) if work.family == "product"]
    assert [[o.flops for o in work.ops] for work in works] == [
        [100], [200], [300], [300, 300], [200, 200], [100],
    ]  # fmt: skip
    assert [id(work.calls[0]) for work in works] == [id(c) for c in calls]


def test_a_gradient_of_other_flops_belongs_to_the_product_that_lacks_it() -> None:
    ops = [op("nn.conv2d", "forward", n) for n in (100, 200)]
    ops += [op("nn.conv2d", "backward", n) for n in (200, 350, 100)]  # strided: more FLOPs
    calls = [call("aten::conv2d", "convolution", "forward") for _ in range(2)]
    calls += [call("ConvolutionBackward0", "convolution", "backward") for _ in range(2)]
    works = [work for work in align(calls, ops) if work.phase == "backward" and work.ops]
    assert [[o.flops for o in work.ops] for work in works] == [[200, 350], [100]]


def test_shapes_tell_a_product_that_the_program_lacks() -> None:
    ops = [op("matmul", "forward", n) for n in (100, 300)]
    calls = [call("aten::linear", "product", "forward", n) for n in (100, 200, 310)]
    works = {id(w.calls[0]): w for w in align(calls, ops) if w.family == "product"}
    assert [o.flops for o in works[id(calls[0])].ops] == [100]
    assert [o.flops for o in works[id(calls[2])].ops] == [300]
    assert id(calls[1]) not in works


def test_other_work_corresponds_between_products() -> None:
    ops = [op("matmul", "forward", 1), op("mean", "forward"), op("subtract", "forward")]
    ops += [op("matmul", "forward", 1), op("relu", "forward")]
    calls = [call("aten::linear", "product", "forward"), call("aten::norm", "norm", "forward")]
    calls += [call("aten::linear", "product", "forward"), call("a", "elementwise", "forward")]
    between = [w for w in align(calls, ops) if w.family == "between products"]
    names = [([c.name for c in w.calls], [o.name for o in w.ops]) for w in between]
    assert names == [(["aten::norm"], ["mean", "subtract"]), (["a"], ["relu"])]


def test_collectives_are_aligned_by_kind() -> None:
    def moves(name: str, size: int) -> PredictedOp:
        return op(name, "backward", payload_bytes=size, group_size=2)

    def moved(family: str) -> TracedCall:
        return TracedCall("nccl", family, "backward", True, 0.0, 1e-6)

    ops = [moves("all_reduce_start", 1), moves("all_reduce_start", 2), moves("all_gather", 3)]
    calls = [moved("all_reduce"), moved("all_reduce"), moved("broadcast")]
    works = [w for w in align(calls, ops) if w.is_collective]
    sizes = [(w.family, len(w.calls), [o.args["payload_bytes"] for o in w.ops]) for w in works]
    assert sizes == [
        ("all_reduce", 1, [1]),
        ("all_reduce", 1, [2]),
        ("broadcast", 1, []),
        ("all_gather", 0, [3]),
    ]
