# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Each kind of collective is traced with its meaning, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="extra torch")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F

import tvm_distir as td
from tvm_distir.execution import CheckReport
from tvm_distir.support.errors import ModelError

RANKS = 4


def checked(make: Callable[[int], Any], ranks: int = RANKS, **hints: Any) -> CheckReport:
    return td.check(td.trace_ranks(make, ranks), td.trace_ranks(make, 1), hints=hints)


def many() -> bool:
    return dist.get_world_size() > 1


def rows(columns: int = 4) -> torch.Tensor:
    return torch.ones(8 // dist.get_world_size(), columns)


def broadcast(rank: int) -> Any:
    def step(p: Any, d: Any) -> Any:
        w = p["w"].clone()
        if many():
            dist.broadcast(w, 0)
            dist.barrier()
        return {"y": d["x"] @ w}

    return step, {"w": torch.ones(4, 4)}, {"x": rows()}


def lists(rank: int) -> Any:
    n = dist.get_world_size()

    def step(p: Any, d: Any) -> Any:
        y = d["x"] @ p["w"]
        z = y * 2
        if many():
            outs = [torch.empty_like(y) for _ in range(n)]
            dist.all_gather(outs, y, async_op=True).wait()
            y, z = torch.cat(outs), torch.empty(8 // n, 4)
            dist.reduce_scatter(z, [c.contiguous() for c in (y * 2 / n).chunk(n)])
        return {"y": y, "z": z}

    return step, {"w": torch.ones(4, 4)}, {"x": rows()}


def exchange(rank: int) -> Any:
    def step(p: Any, d: Any) -> Any:
        x = d["x"]
        if many():
            parts = [c.contiguous() for c in x.chunk(RANKS, 1)]
            outs = [torch.empty_like(c) for c in parts]
            dist.all_to_all(outs, parts)
            x = torch.cat(outs)
        return {"y": F.relu(x)}

    return step, {}, {"x": rows(8)}


def coalesced(rank: int) -> Any:
    def step(p: Any, d: Any) -> Any:
        loss = (F.gelu(d["x"] @ p["a"]) @ p["b"]).pow(2).mean()
        found = torch.autograd.grad(loss, list(p.values()))
        if many():
            found = fc.all_reduce_coalesced(list(found), "avg", dist.group.WORLD)
        return {"loss": loss, "grad:a": found[0], "grad:b": found[1]}

    weights = {"a": torch.ones(4, 8), "b": torch.ones(8, 4)}
    return step, {n: w.requires_grad_() for n, w in weights.items()}, {"x": rows()}


@pytest.mark.parametrize("make", [broadcast, lists, exchange, coalesced])
def test_a_collective_means_what_torch_computes(make: Callable[[int], Any]) -> None:
    assert checked(make).equal


def test_groups_of_strided_ranks_are_an_axis() -> None:
    def make(rank: int) -> Any:
        groups = [dist.new_group([i, i + 2]) for i in range(2)] if many() else []

        def step(p: Any, d: Any) -> Any:
            y = d["x"] @ p["w"]
            if many():
                dist.all_reduce(y, group=groups[rank % 2])
            return {"y": y}

        n = 2 if many() else 1
        return step, {"w": torch.ones(4 // n, 4)}, {"x": torch.ones(8 // n, 4 // n)}

    report = checked(make, x={"axis0": 1, "axis1": 0}, w={"axis0": 0})
    assert report.equal and report.mesh == {"axis0": 2, "axis1": 2}


@pytest.mark.parametrize("functional", [True, False])
def test_a_broadcast_in_each_group_is_from_its_source(functional: bool) -> None:
    def make(rank: int) -> Any:
        groups = [dist.new_group([i, i + 2]) for i in range(2)] if many() else []

        def step(p: Any, d: Any) -> Any:
            x = d["x"] * 1.0
            if many():
                group = groups[rank % 2]
                x = torch.where(torch.tensor(rank >= 2), x, 0.0)  # the second rank alone has it
                if functional:
                    x = fc.broadcast(x, 1, group)
                else:
                    dist.broadcast(x, rank % 2 + 2, group)
            return {"y": x * 2}

        return step, {}, {"x": torch.ones(4, 4)}

    assert checked(make).equal


def test_a_sample_stands_for_all_ranks() -> None:
    def make(rank: int) -> Any:
        def step(p: Any, d: Any) -> Any:
            y = d["x"] @ p["w"]
            if many():
                dist.all_reduce(y)
            return {"y": y}

        n = 4 // dist.get_world_size()
        return step, {"w": torch.ones(n, 8)}, {"x": torch.ones(2, n)}

    sampled = td.trace_ranks(make, RANKS, mesh={"tp": RANKS}, sample=0)
    assert td.check(sampled, td.trace_ranks(make, 1)).equal


def test_a_sample_whose_group_is_off_the_mesh_is_refused() -> None:
    def make(rank: int) -> Any:
        groups = [dist.new_group([0, 3]), dist.new_group([1, 2])]

        def step(p: Any, d: Any) -> Any:
            y = d["x"] * 1.0
            dist.all_reduce(y, group=groups[rank in (1, 2)])
            return {"y": y}

        return step, {}, {"x": torch.ones(2)}

    with pytest.raises(ModelError, match=r"DIST0364 rank 0: its group \[0, 3\] is along no axes"):
        td.trace_ranks(make, RANKS, mesh={"a": 2, "b": 2}, sample=0)


def _refused(body: Callable[[Any], Any]) -> str:
    def make(rank: int) -> Any:
        return (lambda p, d: {"y": body(d["x"].clone())}), {}, {"x": torch.ones(4, 4)}

    with pytest.raises(ModelError) as caught:
        td.trace_ranks(make, 2)
    return str(caught.value)


def test_what_has_no_meaning_is_refused_by_name() -> None:
    def reduced(x: Any) -> Any:
        dist.reduce(x, 0)
        return x

    def bits(x: Any) -> Any:
        x = x.int()
        dist.all_reduce(x, dist.ReduceOp.BXOR)
        return x

    def scattered(x: Any) -> Any:
        return fc.reduce_scatter_tensor(x.int(), "band", 0, dist.group.WORLD)

    assert _refused(reduced).startswith("DIST0363 trace: the collective c10d.reduce_")
    assert "a reduction by BXOR" in _refused(bits)
    assert 'a reduction by "band"' in _refused(scattered)
    assert 'DIST0364 rank 0: the result "y" is no tensor' in _refused(lambda x: 1.0)
    assert _refused(lambda x: F.dropout(x, 0.5)).startswith("DIST0360 bernoulli")
    assert _refused(lambda x: x[: int(x.sum())]).startswith("DIST0364 rank 0")
    beyond = _refused(lambda x: torch.as_strided(x, (3, 2), (6, 1), 4))
    assert "a strided view that reaches beyond its tensor" in beyond


def _shaped(names: tuple[str, str], device: str, sends: bool) -> Callable[[int], Any]:
    def make(rank: int) -> Any:
        table = torch.ones(4, device=device)

        def step(p: Any, d: Any) -> Any:
            y = d[names[1]] * p[names[0]] + table
            if sends:
                dist.send(y, 1 - rank)
            return {"y": y}

        weights, data = torch.ones(4, device=device), torch.ones(4, 4, device=device)
        return step, {names[0]: weights}, {names[1]: data}

    return make


@pytest.mark.parametrize(
    ("make", "ranks", "sample", "match"),
    [
        (_shaped(("w", "x"), "cpu", False), 0, None, "DIST0364 ranks: there is no rank 0 of 0"),
        (_shaped(("w", "x"), "cpu", False), 2, 2, "DIST0364 ranks: there is no rank 2 of 2"),
        (_shaped(("w", "x"), "cpu", True), 2, 0, "DIST0364 rank 0: it sends or receives"),
        (_shaped(("x", "x"), "cpu", False), 2, None, 'DIST0364 rank 0: .* have the name "x"'),
        (_shaped(("w", "x"), "meta", False), 2, None, r"DIST0364 rank 0: .*\[4\] on the meta"),
    ],
)
def test_ranks_that_are_not_what_they_must_be(
    make: Callable[[int], Any], ranks: int, sample: int | None, match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        td.trace_ranks(make, ranks, sample=sample)
