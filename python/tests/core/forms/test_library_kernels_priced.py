# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules of cuBLAS's patterns, partitioned before they are distributed and after it: same results,
and the time of the library's kernel, whose epilogue takes no second pass over memory."""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Iterator

import pytest
from tvm import ir, relax
from tvm.relax.backend.cuda import cublas

import tvm_distir as td
from tests.core.forms.parsing import main, parsed
from tests.core.forms.reference import agrees_with_tvm, compiled, drawn
from tvm_distir.performance import Op

SMALL, LARGE = (8, 16, 32), (512, 1024, 2048)
BODIES = {
    "matmul": "y = R.matmul(x, w)",
    "matmul_transposed": "t = R.permute_dims(v, axes=[1, 0])\ny = R.matmul(x, t)",
    "matmul_bias": "h = R.matmul(x, w)\ny = R.add(h, b)",
    "matmul_bias_relu": "h = R.matmul(x, w)\na = R.add(h, b)\ny = R.nn.relu(a)",
    "matmul_bias_gelu": "h = R.matmul(x, w)\na = R.add(h, b)\ny = R.nn.gelu(a)",
    "batched": "y = R.matmul(q, k)",
    "residual": "h = R.matmul(x, w)\na = R.add(h, b)\ny = R.add(a, r)",
}
PLANS = {
    "dp": {"x": td.P("p", None), "q": td.P("p"), "r": td.P("p", None)},
    "tp columns": {"w": td.P(None, "p"), "v": td.P("p", None), "k": td.P(None, None, "p")},
    "tp rows": {"w": td.P("p", None), "v": td.P(None, "p"), "k": td.P(None, "p", None)},
}
CUT = ("matmul_bias", "matmul_bias_relu", "matmul_bias_gelu", "residual")
"""Modules whose pattern an all-reduce behind the product cuts."""


@functools.cache
def plain(name: str, dtype: str, sizes: tuple[int, int, int]) -> ir.IRModule:
    m, k, n = sizes
    shapes = {"x": (m, k), "w": (k, n), "v": (n, k), "b": (n,), "q": (4, m, k), "k": (4, k, m)}
    shapes["r"] = (m, n)
    used = dict.fromkeys(re.findall(r"\b[xwvbqkr]\b", BODIES[name]))
    params = ", ".join(f'{p}: R.Tensor({shapes[p]}, "{dtype}")' for p in used)
    return relax.transform.ConvertToDataflow(1)(parsed(main(BODIES[name], params)))


def planned(mod: ir.IRModule, rules: dict[str, td.P]) -> td.Plan:
    names = {str(param.name) for param in mod["main"].params}
    return td.Plan(mesh={"p": 2}, rules={k: rule for k, rule in rules.items() if k in names})


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Run without the warnings about patterns that are unfused."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*: the pattern")
        yield


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", BODIES)
def test_a_partitioned_module_computes_the_same(name: str, dtype: str) -> None:
    mod = plain(name, dtype, SMALL)
    plans = [planned(mod, rules) for rules in PLANS.values()]
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    partitioned = cublas.partition_for_cublas(mod)
    agrees_with_tvm(partitioned, plans, original=mod, tolerance=tolerance)
    inputs = drawn(mod)
    (want,) = compiled(mod, inputs)
    for plan in plans:
        local = cublas.partition_for_cublas(td.distribute(mod, plan))
        (result,) = td.run(local, inputs, engine="virtual", dispatch="tvm")
        assert abs(result - want).max() <= tolerance * max(1, abs(want).max())


def computed(program: td.Program) -> list[Op]:
    return [op for fn in program.functions.values() for op in fn.ops if op.kind == "compute"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("rules", PLANS.values(), ids=PLANS)
def test_a_pattern_costs_what_the_kernel_of_the_library_does(
    name: str, dtype: str, rules: dict[str, td.P]
) -> None:
    mod = plain(name, dtype, LARGE)
    plan = planned(mod, rules)
    dist = td.distribute(mod, plan)
    unfused = td.export(dist)
    product = computed(unfused)[0]
    modules = {
        "before": td.distribute(cublas.partition_for_cublas(mod), plan),
        "after": cublas.partition_for_cublas(dist),
    }
    cut = name in CUT and rules is PLANS["tp rows"]
    for order, local in modules.items():
        program = td.export(local)
        kernel, *rest = computed(program)
        assert kernel.model_op == "relax.matmul"
        assert (kernel.kernel_class, kernel.dtype) == (product.kernel_class, product.dtype)
        if cut:  # the library has the product, or TVM where the module was partitioned before
            assert kernel.op == ("relax.matmul" if order == "before" else "cublas.matmul")
            assert kernel._replace(name="", op="", anchor="") == product._replace(name="", op="")
            times = [td.simulate(p, "h100").time_s for p in (program, unfused)]
            assert times[0] == times[1]
            continue
        assert len(rest) == (name == "residual")
        bias = 0 if name in ("matmul", "matmul_transposed", "batched") else LARGE[2]
        bias_bytes = bias // (2 if "w" in rules else 1) * (4 if dtype == "float32" else 2)
        assert kernel.bytes_read == product.bytes_read + bias_bytes
        assert kernel.bytes_written == product.bytes_written
        assert product.flops <= kernel.flops <= product.flops * 1.01
        assert _time(program, kernel) <= _time(unfused, product) * 1.01


def _time(program: td.Program, op: Op) -> float:
    """Return the seconds that a kernel takes alone."""
    function = program.functions["main"]
    alone = dataclasses.replace(function, ops=(op,), results=op.outputs)
    return td.simulate(dataclasses.replace(program, functions={"main": alone}), "h100").time_s


def test_a_pattern_of_batches_is_of_their_class() -> None:
    text = "h = R.matmul(q, k)\ny = R.add(h, b)"
    params = 'q: R.Tensor((4, 64, 8), "float16"), k: R.Tensor((4, 8, 64), "float16"), '
    mod = parsed(main(text, f'{params}b: R.Tensor((64,), "float16")'))
    mod = relax.transform.ConvertToDataflow(1)(mod)
    plan = td.Plan(mesh={"p": 2}, rules={"q": td.P("p")})
    program = td.export(td.distribute(cublas.partition_for_cublas(mod), plan))
    kernels = computed(td.performance.grouped(program, "fused"))
    assert [(k.op, k.kernel_class) for k in kernels if k.kernel_class != "host"] == [
        ("cublas.matmul_bias", "batched")
    ]
