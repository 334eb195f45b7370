# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Level-5 modules that all engines must run as ``virtual`` does, with their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

import tvm_distir as td
from tests.child_processes import load_two_meshes
from tests.execution.runtime.level5_modules import Level5, arrival
from tests.unordered import distribute_unordered
from tvm_distir.core.ir.operators import ops
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy

Case = tuple[Any, list[Any]]


def gpt(axes: dict[str, int] | None = None) -> Case:
    """A small GPT-2, data and tensor parallel; a vocabulary that no axis divides."""
    mod = td.zoo.gpt(vocab=257, layers=2, hidden=32, heads=4, seq=8, batch=4)
    plan = strategy.make_plan(mod, "data_parallel+megatron", axes or {"dp": 2, "tp": 2})
    return td.distribute(mod, plan), draw_inputs(mod, seed=3)


def moe(axes: dict[str, int], strategies: str) -> Case:
    """A layer with experts, whose tokens go to them and back."""
    mod = td.load_model("zoo:moe?size=tiny,layers=1,hidden=32,ffn=24,vocab=67,batch=12").mod
    plan = strategy.make_plan(mod, strategies, axes)
    return distribute_unordered(mod, plan), draw_inputs(mod, seed=4)


def cube() -> Case:
    """Two matmuls on a (2, 2, 2) mesh: contraction, rows and columns sharded."""
    mesh = td.device_mesh({"a": 2, "b": 2, "c": 2})
    build = Level5(mesh, axes=[["a", "b", "c"]])

    def body(bb: Any, x: Any, w: Any, v: Any) -> Any:
        h = bb.emit(ops.all_reduce(bb.emit(relax.op.matmul(x, w)), mesh, [1, 2], "sum"))
        h = bb.emit(ops.local_slice(bb.emit(relax.op.nn.gelu(h)), mesh, 1, 1))
        y = bb.emit(relax.op.matmul(h, v))
        y = bb.emit(ops.reduce_scatter(y, mesh, 1, 1, "sum"))
        return bb.emit(ops.all_gather(y, mesh, 0, 0))

    build.entry(
        [
            ("x", (6, 8), "float32", "S[0], S[1], S[1]"),
            ("w", (8, 12), "float32", "R, S[0], S[0]"),
            ("v", (12, 10), "float32", "R, S[0], R"),
        ],
        [("y", (6, 10), "float32", "R, S[1], R")],
        body,
    )
    return build.get(), _normal((6, 8), (8, 12), (12, 10))


def all_to_all() -> Case:
    """Tokens to experts and back: two all-to-alls around a weight per device."""
    mesh = td.device_mesh({"ep": 4})
    build = Level5(mesh, axes=[["ep"]])

    def body(bb: Any, x: Any, w: Any) -> Any:
        there = bb.emit(ops.all_to_all(x, mesh, 0, 1, 0))  # tokens gathered, experts split
        y = bb.emit(relax.op.nn.gelu(bb.emit(relax.op.matmul(there, w))))
        return bb.emit(ops.all_to_all(y, mesh, 0, 0, 1))

    build.entry(
        [("x", (4, 8, 6), "float32", "S[1]"), ("w", (4, 6, 6), "float32", "S[0]")],
        [("y", (4, 8, 6), "float32", "S[1]")],
        body,
    )
    return build.get(), _normal((4, 8, 6), (4, 6, 6))


def two_meshes() -> Case:
    """A value that goes to another mesh, laid out otherwise, uneven; bfloat16 on the way."""
    first, second = td.device_mesh({"dp": 2}), td.device_mesh({"a": 1, "b": 2}, start=2)
    build = Level5(first, second)
    shape = (5, 7)

    def stage0(bb: Any, x: Any) -> Any:
        y = bb.emit(relax.op.astype(bb.emit(relax.op.multiply(x, x)), "bfloat16"))
        bb.emit(ops.send(y, first, second, "S[0]", "R, S[1]", shape=shape, tag=0))
        return []

    def stage1(bb: Any) -> Any:
        got = arrival(bb, (second, first), ("R, S[1]", "S[0]"), shape, "bfloat16")
        return bb.emit(relax.op.astype(got, "float32"))

    build.entry([("x", shape, "float32", "S[0]")], [], stage0, 0, False)
    build.entry([], [("y", shape, "float32", "R, S[1]")], stage1, 1, False, [], [0])
    return build.get(), _normal(shape)


def one_mesh() -> Case:
    """An all-reduce over two devices of four, uneven rows."""
    mesh = td.device_mesh({"dp": 2, "tp": 2})
    build = Level5(mesh, axes=[["dp", "tp"]])
    build.entry(
        [("x", (5, 6), "float32", "S[0], S[1]"), ("w", (6, 3), "float32", "R, S[0]")],
        [("y", (5, 3), "float32", "S[0], R")],
        lambda bb, x, w: bb.emit(ops.all_reduce(bb.emit(relax.op.matmul(x, w)), mesh, [1], "sum")),
    )
    return build.get(), _normal((5, 6), (6, 3))


def _normal(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def example() -> Case:
    """The two-mesh example of the forum."""
    forum = load_two_meshes()
    return forum.pipeline()(forum.annotated()), _normal(*[(128, 128)] * 5)


CASES = {
    "gpt": gpt,
    "gpt_of_8": lambda: gpt({"dp": 2, "tp": 4}),
    "moe": lambda: moe({"ep": 4}, "expert_parallel"),
    "moe_of_8": lambda: moe(
        {"dp": 2, "ep": 2, "tp": 2}, "data_parallel+expert_parallel+tensor_parallel"
    ),
    "cube": cube,
    "all_to_all": all_to_all,
    "two_meshes": two_meshes,
    "one_mesh": one_mesh,
    "example": example,
}
