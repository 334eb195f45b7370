# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parameters and outputs of special types and shapes are checked too."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="extra torch")

import torch
import torch.distributed as dist

import tvm_distir as td
from tvm_distir.execution.checking.checking import drawn_inputs
from tvm_distir.execution.checking.traced_module import TracedModule


def scaled(reduced: bool, rank: int) -> Any:
    """A product times a scalar, whose gradient is averaged over ranks where it is reduced."""

    def step(p: Any, d: Any) -> Any:
        loss = ((d["x"] @ p["w"] * p["s"]) ** 2).mean()
        out = dict(zip(("grad:w", "grad:s"), torch.autograd.grad(loss, [p["w"], p["s"]])))
        if dist.get_world_size() > 1:
            for name in out if reduced else ["grad:w"]:
                dist.all_reduce(out[name], op=dist.ReduceOp.AVG)
        return {"loss": loss, **out}

    weights = {"w": torch.ones(4, 4), "s": torch.ones(())}
    data = {"x": torch.ones(8 // dist.get_world_size(), 4)}
    return step, {n: w.requires_grad_() for n, w in weights.items()}, data


@pytest.mark.parametrize("reduced", [True, False])
def test_the_gradient_of_a_scalar_must_be_reduced(reduced: bool) -> None:
    def make(rank: int) -> Any:
        return scaled(reduced, rank)

    report = td.check(td.trace_ranks(make, 2), td.trace_ranks(make, 1))
    assert report.equal == reduced
    assert report.wrong == (() if reduced else ("grad:s",))


def test_a_mask_is_that_of_the_trace() -> None:
    mask = torch.ones(4, 4).triu(1).bool()

    def make(rank: int) -> Any:
        def step(p: Any, d: Any) -> Any:
            return {"y": torch.softmax(d["x"].masked_fill(d["mask"], float("-inf")), -1)}

        return step, {}, {"x": torch.ones(4, 4), "mask": mask}

    drawn = drawn_inputs(TracedModule(td.trace_ranks(make, 1)), {}, 0)
    assert drawn["mask"].tolist() == mask.tolist()


@pytest.mark.parametrize("added", [0, 1])
def test_integers_of_ranks_are_shards(added: int) -> None:
    def make(rank: int) -> Any:
        world = dist.get_world_size()

        def step(p: Any, d: Any) -> Any:
            return {"ids": (d["x"] @ p["w"]).argmax(-1) + (added if world > 1 else 0)}

        return step, {"w": torch.ones(4, 4)}, {"x": torch.ones(8 // world, 4)}

    report = td.check(td.trace_ranks(make, 2), td.trace_ranks(make, 1))
    assert report.equal == (added == 0)


def test_blocks_in_another_order_are_found() -> None:
    def make(rank: int) -> Any:
        rows = 4 // dist.get_world_size()
        return (lambda p, d: {"y": d["x"].flip(0) * 2}), {}, {"x": torch.ones(rows, 4)}

    report = td.check(td.trace_ranks(make, 2), td.trace_ranks(make, 1), by="rules")
    assert report.problem.startswith("flip (flip) is the first value that stands for none")
    assert "x = x (sharded along dim 0 over axis0)" in report.problem


def test_a_reference_that_is_not_finite_is_refused() -> None:
    def make(rank: int) -> Any:
        return (lambda p, d: {"y": d["x"].log()}), {}, {"x": torch.ones(4, 4)}

    with pytest.raises(td.support.errors.EngineError, match="DIST0620"):
        td.check(td.trace_ranks(make, 2), td.trace_ranks(make, 1))
