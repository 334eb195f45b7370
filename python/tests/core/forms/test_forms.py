# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules after TVM's own passes and front ends are distributed, and compute the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.relax import transform
from tvm.relax.frontend import nn

import tvm_distir as td
from tests.core.forms.parsing import COLUMNS, ROWS, W, X, agrees, main, parsed, refusal

FLAT = main("h = R.matmul(x, w)\na = R.nn.relu(h)\no = R.matmul(a, w)\ny = R.add(o, x)")
CALLED = """
@R.function(private=True)
def layer(p: R.Tuple(R.Tensor((8, 16), "float32"), R.Tensor((16, 16), "float32"))):
    a = p[0]
    b = p[1]
    c = R.matmul(a, b)
    q = (c, a)
    return q
"""
NESTED = main("t = (x, w)\nq = cls.layer(t)\ns = q[0]\nu = (s, w)\nv = cls.layer(u)\ny = v[0]")
BRANCHES = """
@R.function
def main(x: R.Tensor((8, 16), "float32"), c: R.Tensor((), "bool")):
    if c:
        a = R.nn.relu(x)
        y = a
    else:
        b = R.negative(x)
        y = b
    return y
"""
SYMBOLIC = main("h = R.matmul(x, w)\ny = R.nn.relu(h)", f'x: R.Tensor(("n", 16), "float32"), {W}')


def fused(mod: ir.IRModule) -> ir.IRModule:
    steps = [transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FuseOps()]
    return tvm.transform.Sequential([*steps, transform.FuseTIR()])(mod)


def inputs_counted(mod: ir.IRModule) -> ir.IRModule:
    (gv,) = mod.get_global_vars()
    return ir.IRModule({gv: mod[gv].with_attr("num_input", 1)})


AFTER: dict[str, Callable[[ir.IRModule], ir.IRModule]] = {
    "as it is": lambda mod: mod,
    "dataflow": transform.ConvertToDataflow(1),
    "legalized": transform.LegalizeOps(),
    "fused": fused,
    "zero pipeline": relax.get_pipeline("zero"),
    "canonical": transform.CanonicalizeBindings(),
    "patterns": lambda mod: transform.FuseOpsByPattern([])(mod),
    "bound": lambda mod: transform.BindParams("main", {"w": np.eye(16, dtype="f4")})(mod),
}


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_a_module_after_a_pass(after: Any) -> None:
    mod = after(parsed(FLAT))
    agrees(mod, ROWS)
    if len(mod["main"].params) > 1:
        agrees(mod, COLUMNS)


@pytest.mark.parametrize("bundle", [transform.BundleModelParams(), transform.LiftTransformParams()])
def test_parameters_in_a_tuple(bundle: Any) -> None:
    mod = bundle(inputs_counted(transform.ConvertToDataflow(1)(parsed(FLAT))))
    agrees(mod, ROWS)


@pytest.mark.parametrize("text", [(CALLED, NESTED), (BRANCHES,)], ids=["nested", "branches"])
def test_functions_and_branches(text: tuple[str, ...]) -> None:
    agrees(parsed(*text), ROWS)


def test_symbolic_rows() -> None:
    mod = parsed(SYMBOLIC)
    assert td.verify(mod, ROWS, engine="virtual", dims={"n": 8}).equal
    agrees(td.bind_dims(mod, {"n": 8}), COLUMNS)


def test_fusion_of_a_device_program() -> None:
    dist = td.distribute(parsed(FLAT), ROWS)
    random = np.random.default_rng(0)
    inputs = [random.integers(-2, 3, shape).astype("f4") for shape in ((8, 16), (16, 16))]
    ours, theirs = (td.run(mod, inputs, engine="virtual") for mod in (fused(dist), dist))
    assert all(map(np.array_equal, ours, theirs))


def test_a_module_of_relax_nn() -> None:
    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.down(nn.op.relu(self.up(x))) + x

    mod, _ = Block().export_tvm({"forward": {"x": nn.spec.Tensor([8, 16], "float32")}})
    plan = td.Plan(mesh={"tp": 2}, rules={"up.weight": td.P("tp", None)})
    assert td.verify(mod, plan, engine="virtual").equal


@pytest.mark.parametrize(
    ("text", "code", "cause"),
    [
        (main("h = R.nonzero(x)\ny = R.permute_dims(h)", X), "DIST0401", "depends on the values"),
        (main("y = R.add(x, w)", f'{X}, w: R.Tensor(ndim=2, dtype="float32")'), "DIST0402",
         "the shape of .* is not known"),
        (main('z = R.match_cast(w, R.Tensor((8, 16), "float32"))\ny = R.add(x, z)',
              f'{X}, w: R.Tensor(("n", 16), "float32")'), "DIST0504", "checks at run time"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(text: str, code: str, cause: str) -> None:
    error = refusal(parsed(text), ROWS)
    assert error.code == code
    assert re.search(cause, error.what)
