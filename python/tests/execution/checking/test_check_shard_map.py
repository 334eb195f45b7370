# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX's ``shard_map``, and modules of this package, are checked like traces."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import ir

pytest.importorskip("jax", reason="extra jax")

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import tvm_distir as td
from tvm_distir.support.errors import ModelError

ARGUMENTS = (jnp.ones((8, 16)), jnp.ones((16, 32)), jnp.ones((32, 16)))


def imported(function: Any) -> ir.IRModule:
    return td.from_stablehlo(jax.jit(function).lower(*ARGUMENTS).as_text())


def single(x: Any, up: Any, down: Any) -> Any:
    def loss(up: Any, down: Any) -> Any:
        return ((jax.nn.relu(x @ up) @ down) ** 2).mean()

    return jax.value_and_grad(loss, argnums=(0, 1))(up, down)


def ranks(bug: str) -> Any:
    def local(x: Any, up: Any, down: Any) -> Any:
        def loss(up: Any, down: Any) -> Any:
            y = jax.nn.relu(x @ up) @ down
            y = y if bug == "no sum" else jax.lax.psum(y, "tp")
            value = (y**2).mean()
            return value if not tracked else jax.lax.pmean(value, "dp")

        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(up, down)
        if not tracked:
            value, gradients = jax.lax.pmean((value, gradients), "dp")
        return value, gradients

    tracked = bug == ""
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    shards = (P(None, "tp"), P("tp"))
    return jax.shard_map(
        local, mesh=mesh, in_specs=(P("dp"), *shards), out_specs=(P(), shards), check_vma=tracked
    )


@pytest.mark.parametrize("by", ["execution", "rules"])
def test_a_right_shard_map_is_equal(by: str) -> None:
    report = td.check(imported(ranks("")), imported(single), by=by)
    assert report.equal, str(report)
    assert report.method == by and report.outputs == ("output0", "output1", "output2")


def test_a_sum_that_is_transposed_to_a_sum_is_found() -> None:
    report = td.check(imported(ranks("not tracked")), imported(single))
    assert report.wrong == ("output1", "output2")
    assert "output1 is scaled by 2: reduced where it is replicated" in report.problem
    assert report.repair.startswith("remove all_reduce")


def test_a_missing_sum_is_found() -> None:
    report = td.check(imported(ranks("no sum")), imported(single), by="rules")
    assert "is partial over tp and reaches multiply" in report.problem
    assert report.repair.startswith("sum dot_general1 over tp")


@pytest.mark.parametrize("by", ["execution", "rules"])
def test_a_module_of_the_package_is_checked(by: str) -> None:
    mod = imported(lambda x, up, down: jax.nn.relu(x @ up) @ down)
    rules = {"arg1": P(None, "tp"), "arg2": P("tp", None)}
    ours = td.distribute(mod, td.Plan(mesh={"dp": 2, "tp": 2}, rules={**rules, "arg0": P("dp")}))
    report = td.check(ours, mod, by=by)
    assert report.equal and report.method == by
    plan = td.Plan(mesh={"tp": 2}, rules={"arg0": P("tp")})
    with pytest.raises(ModelError, match=r"DIST0365 td\.check: the module is no trace"):
        td.check(td.transforms.AnnotateSharding(plan)(mod), mod)
