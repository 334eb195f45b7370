# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules as TVM's passes and front ends leave them compute what TVM compiles from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax import transform
from tvm.relax.dpl import is_op, wildcard
from tvm.relax.frontend import nn

import tvm_distir as td
from tests.core.forms.parsing import main, parsed
from tests.core.forms.reference import agrees_with_tvm
from tests.core.forms.test_forms import fused, inputs_counted

DATA = td.Plan(mesh={"dp": 2}, rules={"x": td.P("dp", None)})
TENSOR = td.Plan(mesh={"tp": 2}, rules={"w": td.P(None, "tp")})
BOTH = [DATA, TENSOR]
PARAMS = """x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 32), "float32"),
v: R.Tensor((32, 16), "float32")""".replace("\n", " ")
SYMBOLIC = PARAMS.replace("(8, 16)", '("n", 16)')
LINES = "a = R.matmul(x, w)\nb = R.nn.gelu(a)\nc = R.matmul(b, v)\ny = R.add(c, x)"
SCALAR = "a = R.matmul(x, w)\nb = R.nn.relu(a)\nc = R.matmul(b, v)\ny = R.sum(c)"
WITH_TRANSPOSE = LINES.replace("matmul(x, w)", "matmul(x, t)").replace(
    "a = ", "t = R.permute_dims(w)\na = "
)
TRANSPOSED = PARAMS.replace("w: R.Tensor((16, 32)", "w: R.Tensor((32, 16)")
NESTED = """
@R.function(private=True)
def layer(p: R.Tuple(R.Tensor((8, 16), "float32"), R.Tuple(R.Tensor((16, 32), "float32"),
        R.Tensor((32, 16), "float32")))):
    q = p[1]
    a = R.matmul(p[0], q[0])
    b = R.matmul(a, q[1])
    c = (b, q)
    return c
"""
NESTED_CALLS = """
p = (x, (w, v))
q = cls.layer(p)
r = cls.layer(q)
y = r[0]
"""
BRANCHES = """
@R.function
def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 32), "float32"),
        c: R.Tensor((), "bool")):
    if c:
        a = R.matmul(x, w)
        y = R.nn.relu(a)
    else:
        b = R.matmul(x, w)
        y = R.negative(b)
    return y
"""
DOUBLE = """
@T.prim_func(private=True, s_tir=True)
def double(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 16), "float32")
    B = T.match_buffer(b, (n, 16), "float32")
    for i, j in T.grid(n, 16):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
"""
KERNEL = "a = R.matmul(x, w)\nb = R.matmul(a, v)\ny = R.call_tir(cls.double, (b,), out_ty={})"
STATIC, OF_N = 'R.Tensor((8, 16), "float32")', 'R.Tensor((n, 16), "float32")'
EFFECTS = """
h = R.nn.relu(x)
_ = R.print(h, format="h: {}")
_1 = R.assert_op(R.const(True), format="never")
y = R.matmul(h, w)
"""
TUPLE = """
@R.function
def main(x: R.Tensor((8, 16), "float32"),
        p: R.Tuple(R.Tensor((16, 32), "float32"), R.Tensor((32, 16), "float32"))):
    a = R.matmul(x, p[0])
    y = R.matmul(a, p[1])
    return y
"""
PATTERN = [("our.gelu", is_op("relax.nn.gelu")(is_op("relax.matmul")(wildcard(), wildcard())))]


def plain(lines: str = LINES, params: str = PARAMS, *functions: str) -> ir.IRModule:
    return transform.ConvertToDataflow(1)(parsed(*functions, main(lines, params)))


def weights(**values: tuple[int, ...]) -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {k: random.integers(-2, 3, shape).astype("f4") for k, shape in values.items()}


def bound() -> ir.IRModule:
    mod = plain(WITH_TRANSPOSE, TRANSPOSED)
    return transform.BindParams("main", weights(w=(32, 16), v=(32, 16)))(mod)


def counted(lines: str, params: str) -> ir.IRModule:
    return inputs_counted(plain(lines, params))


def on(rules: Any, name: str = "tp") -> td.Plan:
    return td.Plan(mesh={name: 2}, rules=rules)


OF_VALUE = [DATA, on([{"value": "a", "placement": "S[1]"}])]
FORMS: dict[str, tuple[Callable[[], ir.IRModule], list[td.Plan]]] = {
    "as written": (plain, BOTH),
    "nested tuples of private calls": (lambda: parsed(NESTED, main(NESTED_CALLS, PARAMS)), BOTH),
    "if": (lambda: parsed(BRANCHES), BOTH),
    "LegalizeOps": (lambda: transform.LegalizeOps()(plain()), BOTH),
    "FuseOps and FuseTIR": (lambda: fused(plain()), BOTH),
    "zero pipeline": (lambda: relax.get_pipeline("zero")(plain()), BOTH),
    "ToMixedPrecision": (lambda: transform.ToMixedPrecision("float32")(plain()), BOTH),
    "EliminateCommonSubexpr": (lambda: transform.EliminateCommonSubexpr()(plain()), BOTH),
    "ToNonDataflow": (lambda: transform.ToNonDataflow()(plain()), BOTH),
    "BindParams": (bound, OF_VALUE),
    "BindParams and FoldConstant": (lambda: transform.FoldConstant()(bound()), OF_VALUE),
    "LiftTransformParams": (
        lambda: transform.LiftTransformParams()(counted(WITH_TRANSPOSE, TRANSPOSED)),
        [DATA, on({"t": td.P(None, "tp")})]),
    "LiftTransformParams, shared": (
        lambda: transform.LiftTransformParams(True)(counted(WITH_TRANSPOSE, TRANSPOSED)),
        [DATA, on({"t": td.P(None, "tp")})]),
    "BundleModelParams": (
        lambda: transform.BundleModelParams()(counted(LINES, PARAMS)),
        [DATA, TENSOR, *(on({name: td.P(None, "tp")}) for name in ("model_params[0]",
                                                                   "model_params_0"))]),
    "tuple parameter": (
        lambda: parsed(TUPLE),
        [DATA, *(on({name: td.P(None, "tp")}) for name in ("p[0]", "p_0", "p.0"))]),
    "patterns without a library": (lambda: transform.FuseOpsByPattern(PATTERN)(plain()), BOTH),
    "symbolic kernel, static call": (
        lambda: parsed(DOUBLE, main(KERNEL.format(STATIC), PARAMS)), BOTH),
    "symbolic kernel, bound": (
        lambda: td.bind_dims(symbolic_kernel(), {"n": 8}), BOTH),
    "effects": (lambda: parsed(main(EFFECTS, PARAMS, pure=False)), BOTH),
}  # fmt: skip


def symbolic_kernel() -> ir.IRModule:
    return parsed(DOUBLE, main(f"n = T.int64()\n{KERNEL.format(OF_N)}", SYMBOLIC))


@pytest.mark.parametrize("name", FORMS)
def test_a_form_computes_what_tvm_compiles(name: str) -> None:
    make, plans = FORMS[name]
    agrees_with_tvm(make(), plans)


@pytest.mark.parametrize("legalized", [False, True], ids=["symbolic", "legalized"])
@pytest.mark.parametrize("kernel", [False, True], ids=["ops", "kernel"])
def test_symbolic_rows_compute_what_tvm_compiles(kernel: bool, legalized: bool) -> None:
    mod = symbolic_kernel() if kernel else plain(LINES, SYMBOLIC)
    agrees_with_tvm(transform.LegalizeOps()(mod) if legalized else mod, BOTH, sizes={"n": 8})


@pytest.mark.parametrize("legalized", [False, True], ids=["ops", "legalized"])
def test_a_gradient_computes_what_tvm_compiles(legalized: bool) -> None:
    mod = transform.Gradient("main")(plain(SCALAR))
    agrees_with_tvm(transform.LegalizeOps()(mod) if legalized else mod, BOTH, entry="main_adjoint")


CALLS = {
    "relax.call_packed": 'R.call_packed("tests.double", h, ty_args=[{}])',
    "relax.call_pure_packed": 'R.call_pure_packed("tests.double", h, ty_args=[{}])',
    "relax.call_dps_packed": 'R.call_dps_packed("tests.double_to", (h,), out_ty={})',
}


@pytest.fixture
def _doubles() -> None:
    """Register the packed functions that these modules call."""

    def double(x: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(x.numpy() * 2)

    def double_to(x: tvm.runtime.Tensor, out: tvm.runtime.Tensor) -> None:
        out.copyfrom(x.numpy() * 2)

    tvm_ffi.register_global_func("tests.double", double, override=True)
    tvm_ffi.register_global_func("tests.double_to", double_to, override=True)


@pytest.mark.usefixtures("_doubles")
@pytest.mark.parametrize("name", CALLS)
def test_a_packed_call_computes_what_tvm_compiles(name: str) -> None:
    lines = f"h = R.nn.relu(x)\nd = {CALLS[name].format(STATIC)}\ny = R.matmul(d, w)"
    agrees_with_tvm(parsed(main(lines, PARAMS, pure=name != "relax.call_packed")), BOTH)


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        self.norm = nn.RMSNorm(16, -1, 1e-5, bias=False)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.down(nn.op.gelu(self.up(self.norm(x)))) + x


@pytest.mark.parametrize("rules", [{"x": td.P("tp", None)}, {"up.weight": td.P("tp", None)},
                                   {"*up.weight": td.P("tp", None)}])  # fmt: skip
def test_an_export_of_relax_nn_computes_what_tvm_compiles(rules: dict[str, td.P]) -> None:
    mod, _ = Mlp().export_tvm({"forward": {"x": nn.spec.Tensor([8, 16], "float32")}})
    agrees_with_tvm(mod, [on(rules)], entry="forward", tolerance=1e-4)
