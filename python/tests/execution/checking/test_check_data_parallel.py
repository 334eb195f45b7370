# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""`DistributedDataParallel` is traced: its own reduction, hooks of users, accumulation."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("torch", reason="extra torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tvm_distir as td
from tvm_distir.execution import CheckReport

WORLD, BATCH = 4, 16


def summed(state: object, bucket):  # type: ignore[no-untyped-def]
    """Sum a bucket, which must be averaged."""
    done: Any = torch.futures.Future()
    total = bucket.buffer().clone()
    dist.all_reduce(total)
    done.set_result(total)
    return done


def halved(state: object, bucket):  # type: ignore[no-untyped-def]
    """Average a bucket in two steps."""
    done = summed(state, bucket)
    result: Any = torch.futures.Future()
    result.set_result(done.value() * 0.5 / (WORLD // 2))
    return result


def of_ranks(world: int, micro_batches: int = 1, hook: Any = None, **options: Any) -> Any:
    """Return what makes a rank of a step, or the single device, of the same model."""

    def make(rank: int) -> Any:
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), nn.LayerNorm(4))
        model: Any = DistributedDataParallel(inner, **options) if world > 1 else inner
        if hook is not None:
            model.register_comm_hook(None, hook)
        parameters = {name: p.detach() for name, p in inner.named_parameters()}

        def step(p: Any, d: Any) -> Any:
            losses = []
            for i, (x, y) in enumerate(zip(*(d[n].chunk(micro_batches) for n in "xy"))):
                is_last = i == micro_batches - 1
                with nullcontext() if is_last or world == 1 else model.no_sync():
                    losses.append((model(x) - y).square().mean() / micro_batches)
                    losses[-1].backward()
            gradients = {f"grad:{name}": p.grad for name, p in inner.named_parameters()}
            return {"loss": sum(losses), **gradients}

        shard = BATCH // world
        return step, parameters, {"x": torch.randn(shard, 8), "y": torch.randn(shard, 4)}

    return make


def judged(single_micro_batches: int = 1, **ranks: Any) -> CheckReport:
    programs = td.trace_ranks(of_ranks(WORLD, **ranks), WORLD, mesh={"dp": WORLD})
    return td.check(programs, td.trace_ranks(of_ranks(1, single_micro_batches), 1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"hook": halved},
        {"micro_batches": 2},
    ],
    ids=str,
)
def test_a_step_is_equal(options: dict[str, Any]) -> None:
    report = judged(**options)
    assert report.equal, str(report)


def test_small_gradients_are_a_single_collective() -> None:
    text = td.trace_ranks(of_ranks(WORLD), WORLD, mesh={"dp": WORLD}).script()
    assert text.count("R.dist.all_reduce(") == 1


def test_a_step_without_inputs_is_traced() -> None:
    def make(rank: int) -> Any:
        def step(p: Any, d: Any) -> Any:
            ones = torch.ones(4)
            dist.all_reduce(ones)
            return {"ones": ones / dist.get_world_size()}

        return step, {}, {}

    report = td.check(td.trace_ranks(make, 2), td.trace_ranks(make, 1))
    assert report.equal, str(report)


def test_a_sum_in_place_of_the_mean_is_found() -> None:
    report = judged(hook=summed)
    assert report.verdict == "wrong"
    assert "must average" in report.problem
    assert "average over dp" in report.repair


def test_gradients_that_are_doubled_are_found() -> None:
    ranks = of_ranks(WORLD, micro_batches=2)

    def doubled(rank: int) -> Any:
        step, parameters, data = ranks(rank)

        def twice(p: Any, d: Any) -> Any:
            results = step(p, d)
            return {name: v if name == "loss" else 2 * v for name, v in results.items()}

        return twice, parameters, data

    programs = td.trace_ranks(doubled, WORLD, mesh={"dp": WORLD})
    report = td.check(programs, td.trace_ranks(of_ranks(1), 1))
    assert report.verdict == "wrong"
    assert "scaled by 2" in report.problem
