# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``shard_map`` along some mesh axes, and beside other code, is checked, run and simulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import ir

pytest.importorskip("jax", reason="extra jax")

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tvm_distir as td
from tvm_distir.execution import distributed_reference
from tvm_distir.interface.command.app import main

MESH = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
ARGUMENTS = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 16), (16, 32), (32, 16))]
lax = jax.lax


def imported(function: Any, **options: Any) -> ir.IRModule:
    traced = jax.jit(function, **options).trace(*ARGUMENTS)
    return td.from_stablehlo(traced.lower(lowering_platforms=("cpu",)).as_text())


def manual(body: Any, axis: str, ins: Any, outs: Any, tracked: bool = True) -> Any:
    return jax.shard_map(
        body, mesh=MESH, axis_names={axis}, in_specs=ins, out_specs=outs, check_vma=tracked
    )


SHARDS = (P(), P(None, "tp"), P("tp"))


def block(x: Any, up: Any, down: Any, axis: str = "tp") -> Any:
    return lax.psum(jnp.sin(x @ up) @ down, axis)


def plain(x: Any, up: Any, down: Any) -> Any:
    return jnp.sin(x @ up) @ down


def twice(part: Any) -> Any:
    return lambda x, up, down: jnp.tanh(part(jnp.cos(part(x * 2, up, down)), up, down))


def scanned(part: Any) -> Any:
    def function(x: Any, up: Any, down: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh(part(c, up, down)), None), x, None, length=3)[0]

    return function


def gradients(part: Any) -> Any:
    def function(x: Any, up: Any, down: Any) -> Any:
        def loss(up: Any, down: Any) -> Any:
            return (twice(part)(x, up, down) ** 2).mean()

        value, (du, dd) = jax.value_and_grad(loss, argnums=(0, 1))(up, down)
        return value, up - 0.1 * du, down - 0.1 * dd

    return function


def mixing(x: Any) -> Any:
    """Gather, exchange, shift and scatter along tp: the identity, doubled."""
    i = lax.axis_index("tp")
    full = lax.all_gather(x, "tp", axis=1, tiled=True)
    moved = lax.all_to_all(lax.ppermute(x, "tp", [(0, 1), (1, 0)]), "tp", 0, 1, tiled=True)
    back = lax.all_to_all(moved, "tp", 1, 0, tiled=True)
    shifted = lax.ppermute(back, "tp", [(0, 1), (1, 0)])
    part = lax.psum_scatter(full, "tp", scatter_dimension=1, tiled=True)
    return part + shifted + i.astype(x.dtype)


def mixed_single(x: Any, up: Any, down: Any) -> Any:
    return 3 * x + jnp.repeat(jnp.arange(2.0), 8) + up.sum() + down.sum()


def mixed_ranks(x: Any, up: Any, down: Any) -> Any:
    y = manual(mixing, "tp", P(None, "tp"), P(None, "tp"), False)(x)
    return y + up.sum() + down.sum()


def two_axes(x: Any, up: Any, down: Any) -> Any:
    h = manual(block, "tp", SHARDS, P())(x, up, down)
    mean = manual(lambda v: lax.pmean(v.mean(0), "dp"), "dp", P("dp"), P())(h)
    return jax.jit(manual(lambda v: v * 2, "dp", P("dp"), P("dp")))(h - mean)


def two_axes_single(x: Any, up: Any, down: Any) -> Any:
    h = plain(x, up, down)
    return (h - h.mean(0)) * 2


RIGHT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "code between": (twice(manual(block, "tp", SHARDS, P())), twice(plain)),
    "inside of jit": (twice(jax.jit(manual(block, "tp", SHARDS, P()))), twice(plain)),
    "inside of scan": (scanned(manual(block, "tp", SHARDS, P())), scanned(plain)),
    "a scan inside": (manual(scanned(block), "tp", SHARDS, P(), False), scanned(plain)),
    "gradients": (gradients(manual(block, "tp", SHARDS, P())), gradients(plain)),
    "gradients, not tracked": (
        gradients(manual(block, "tp", SHARDS, P(), False)),
        gradients(plain),
    ),
    "every collective": (mixed_ranks, mixed_single),
    "two axes": (two_axes, two_axes_single),
}


@pytest.mark.parametrize("case", RIGHT)
def test_mixed_programs_are_checked_run_and_simulated(case: str) -> None:
    ranks, single = RIGHT[case]
    mod = imported(ranks)
    report = td.check(mod, imported(single))
    assert report.equal, str(report)
    rng = np.random.default_rng(0)
    inputs = [(rng.standard_normal(a.shape) / 4).astype("float32") for a in ARGUMENTS]
    expected = jax.tree.leaves(jax.jit(single)(*inputs))
    for value, other in zip(td.run(mod, inputs), expected, strict=True):
        np.testing.assert_allclose(value, other, 1e-4, 1e-5)
    assert td.simulate(td.export(mod), "h100").time_s > 0


def missing(x: Any, up: Any, down: Any) -> Any:
    return jnp.sin(x @ up) @ down


def wrong_axis(x: Any, up: Any, down: Any) -> Any:
    return block(x, up, down, "dp")


def doubled(x: Any, up: Any, down: Any) -> Any:
    return lax.psum(block(x, up, down), "tp")


def both(x: Any, up: Any, down: Any) -> Any:
    return lax.psum(jnp.sin(x @ up) @ down, ("dp", "tp"))


def test_arguments_may_state_shardings_along_other_axes() -> None:
    shardings = [NamedSharding(MESH, spec) for spec in (P("dp"), P("dp", "tp"), P("tp"))]
    function = twice(manual(block, "tp", SHARDS, P()))
    mod = imported(function, in_shardings=tuple(shardings), out_shardings=shardings[0])
    ports = mod["main"].attrs["dist.io"]
    texts = [str(port["placement"]) for port in (*ports["inputs"], *ports["outputs"])]
    assert texts == ["S[0], R", "S[0], S[1]", "R, S[0]", "S[0], R"]
    report = td.check(mod, imported(twice(plain)))
    assert report.equal, str(report)


ORDERS = [
    (P(("tp", "dp")), P(), P(), P(("tp", "dp"))),
    (P(), P(("tp", "dp")), P(None, ("dp", "tp")), P()),
    (P(("tp", "dp")), P(("dp", "tp")), P("tp", "dp"), P("tp")),
]


@pytest.mark.parametrize("by", ["execution", "rules"])
@pytest.mark.parametrize("specs", ORDERS, ids=str)
def test_axes_may_shard_a_dim_in_any_order(specs: tuple[P, ...], by: str) -> None:
    *ins, out = (NamedSharding(MESH, spec) for spec in specs)
    function = twice(manual(block, "tp", SHARDS, P()))
    mod = imported(function, in_shardings=tuple(ins), out_shardings=out)
    single = imported(twice(plain))
    report = td.check(mod, single, by=by)
    assert report.equal and report.method == by, str(report)
    assert report.placements is not None
    for name, spec in zip(("arg0", "arg1", "arg2", "output0"), specs):
        listed = [
            (axis, dim)
            for dim, entry in enumerate(spec)
            for axis in (entry if isinstance(entry, tuple) else (entry,))
            if axis is not None
        ]
        assert sorted(report.placements[name].items(), key=lambda item: item[1]) == listed
    ours = distributed_reference(single, report)
    rng = np.random.default_rng(0)
    inputs = [(rng.standard_normal(a.shape) / 4).astype("float32") for a in ARGUMENTS]
    results = [td.run(program, inputs)[0] for program in (ours, mod)]
    np.testing.assert_allclose(*results, 1e-4, 1e-5)


MISDECLARED = {
    "sharded, said to be replicated": (lambda x: x * 2, P("tp"), P(), ""),
    "in another order": (
        lambda x: lax.ppermute(x * 2, "tp", [(0, 1), (1, 0)]),
        P("tp"),
        P("tp"),
        "",
    ),
    "a sum of the ranks": (lambda x: x.sum(), P("tp"), P(), "partial over tp"),
}


@pytest.mark.parametrize("by", ["execution", "rules"])
@pytest.mark.parametrize("case", MISDECLARED)
def test_outputs_must_be_what_the_module_declares(case: str, by: str) -> None:
    body, ins, outs, problem = MISDECLARED[case]

    def ranks(x: Any, up: Any, down: Any) -> Any:
        return manual(body, "tp", ins, outs, False)(x)

    def single(x: Any, up: Any, down: Any) -> Any:
        return x.sum() if "sum" in case else x * 2

    report = td.check(imported(ranks), imported(single), by=by)
    assert report.verdict == "wrong", str(report)
    assert problem in report.problem


def test_a_mixed_program_is_compared_with_a_plan_of_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks, single = RIGHT["gradients"]
    for name, function in (("programs", ranks), ("reference", single)):
        text = ir.save_json(imported(function))
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    assert main(["check", str(tmp_path), "--by", "rules", "--system", "h100"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("EQUAL by rules on dp=2, tp=2: 3 outputs for all inputs")
    assert text.endswith("plan and send 5.50 KiB where it sends none.\n")


def test_values_of_mixed_programs_are_explained() -> None:
    ranks, single = RIGHT["gradients"]
    origin = td.explain(imported(ranks), "output1", reference=imported(single))
    assert origin.method == "rules" and origin.state.endswith("(replicated)")
    assert "dist.all_gather" in [step.op for step in origin.axes["tp"]]


FAULTS = {
    "missing": (
        missing,
        {"tp"},
        "is partial over tp and reaches cos",
        "sum dot_general1 over tp",
    ),
    "wrong axis": (
        wrong_axis,
        {"dp", "tp"},
        "all_reduce is partial over tp",
        "communicate over tp in all_reduce",
    ),
    "doubled": (doubled, {"tp"}, "all_reduce1 .*times 2", "remove all_reduce1"),
    "over too many": (
        both,
        {"dp", "tp"},
        "all_reduce .*scaled by 2",
        "communicate over tp in all_reduce",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_mixed_programs_are_found(fault: str) -> None:
    body, axes, problem, repair = FAULTS[fault]
    part = jax.shard_map(
        body, mesh=MESH, axis_names=axes, in_specs=SHARDS, out_specs=P(), check_vma=False
    )
    report = td.check(imported(twice(part)), imported(twice(plain)))
    assert re.search(problem, report.problem), str(report)
    assert report.repair == f"{repair}, and so at 1 more", str(report)
