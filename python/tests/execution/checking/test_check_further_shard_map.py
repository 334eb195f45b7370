# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Further programs of ``shard_map``: each collective right, and along a wrong axis or to others."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax", reason="extra jax")

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import tvm_distir as td

from .test_check_mixed_shard_map import MESH, imported, lax


def scattered(bug: str) -> Any:
    def ranks(x: Any, up: Any, down: Any) -> Any:
        axis, dim = ("dp" if bug == "axis" else "tp"), (0 if bug == "dim" else 1)
        h = jnp.sin(x @ up) @ down
        return lax.psum_scatter(h, axis, scatter_dimension=dim, tiled=True)

    out = P(None, "dp") if bug == "axis" else P("dp", "tp")
    return ranks, (P("dp"), P(None, "tp"), P("tp")), out


def permuted(bug: str) -> Any:
    pairs = [(0, 1)] if bug == "pair" else [(0, 1), (1, 0)]

    def ranks(x: Any, up: Any, down: Any) -> Any:
        other = lax.ppermute(x, "tp", pairs)
        return (x + other) @ up + 0 * down.sum()

    return ranks, (P("tp"), P(), P()), P("tp")


def averaged(bug: str) -> Any:
    def ranks(x: Any, up: Any, down: Any) -> Any:
        reduce = lax.pmean if bug == "mean" else lax.psum
        return reduce(jnp.sin(x @ up) @ down, "tp")

    return ranks, (P("dp"), P(None, "tp"), P("tp")), P("dp")


def exchanged(bug: str) -> Any:
    def ranks(x: Any, up: Any, down: Any) -> Any:
        split, joined = (0, 1) if bug == "swapped" else (1, 0)
        h = lax.all_to_all(x, "tp", split, joined, tiled=True)  # rows of all, some columns
        h = h - h.mean(0)
        return lax.all_to_all(h, "tp", joined, split, tiled=True) @ up + 0 * down.sum()

    return ranks, (P("tp"), P(), P()), P("tp")


def maximum(bug: str) -> Any:
    def ranks(x: Any, up: Any, down: Any) -> Any:
        z = x @ up
        top = z.max(-1, keepdims=True)
        top = top if bug == "local" else lax.pmax(top, "tp")
        total = lax.psum(jnp.exp(z - top).sum(-1, keepdims=True), "tp")
        return lax.psum(jnp.exp(z - top) / total @ down, "tp")

    return ranks, (P("dp"), P(None, "tp"), P("tp")), P("dp")


SINGLE = {
    scattered: lambda x, up, down: jnp.sin(x @ up) @ down,
    permuted: lambda x, up, down: (x + jnp.roll(x, 4, 0)) @ up + 0 * down.sum(),
    averaged: lambda x, up, down: jnp.sin(x @ up) @ down,
    exchanged: lambda x, up, down: (x - x.mean(0)) @ up + 0 * down.sum(),
    maximum: lambda x, up, down: jax.nn.softmax(x @ up) @ down,
}
FAULTS = {
    (scattered, "axis"): "gv (dist.reduce_scatter) gives no value of the reference",
    (scattered, "dim"): "sharded {'tp': 0, 'dp': 0} where the module says {'dp': 0, 'tp': 1}",
    (permuted, "pair"): "collective_permute is partial over tp and reaches add",
    (averaged, "mean"): "output0 is scaled by 0.5",
    (exchanged, "swapped"): "all_to_all (dist.all_to_all) gives no value of the reference",
    (maximum, "local"): "is partial over tp and reaches subtract",
}


def judged(make: Any, bug: str, by: str = "execution") -> td.execution.CheckReport:
    body, ins, out = make(bug)
    ranks = jax.shard_map(body, mesh=MESH, in_specs=ins, out_specs=out, check_vma=False)
    return td.check(imported(ranks), imported(SINGLE[make]), by=by)


@pytest.mark.parametrize("by", ["execution", "rules"])
@pytest.mark.parametrize("make", SINGLE)
def test_right_programs_are_equal(make: Any, by: str) -> None:
    report = judged(make, "", by)
    assert report.equal, str(report)


@pytest.mark.parametrize(("make", "bug"), FAULTS)
def test_faults_are_found(make: Any, bug: str) -> None:
    report = judged(make, bug)
    assert report.verdict == "wrong"
    assert FAULTS[make, bug] in report.problem


def test_rules_say_how_an_output_must_be_sharded() -> None:
    report = judged(scattered, "dim", "rules")
    assert report.method == "rules" and report.verdict == "wrong"
    assert report.problem.endswith("must be sharded {'dp': 0, 'tp': 1}")
