# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules that TVM has partitioned for a library, before they are distributed and after it."""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax.backend.cuda import cublas
from tvm.relax.dpl import is_op, wildcard

import tvm_distir as td
from tests.core.forms.parsing import main, parsed
from tvm_distir.core.analysis import check_level

ARGS = """x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 32), "float32"),
b: R.Tensor((32,), "float32"), v: R.Tensor((32, 16), "float32")"""
BODIES = {
    "product": "y = R.matmul(x, w)",
    "bias": "h = R.matmul(x, w)\ny = R.add(h, b)",
    "epilogue": "h = R.matmul(x, w)\na = R.add(h, b)\nr = R.nn.relu(a)\no = R.matmul(r, v)\n"
    "y = R.nn.gelu(o)",
    "transposed": "t = R.permute_dims(v, axes=[1, 0])\ny = R.matmul(x, t)",
    "residual": "h = R.matmul(x, w)\no = R.matmul(h, v)\ny = R.add(o, x)",
    "two results": "h = R.matmul(x, w)\na = R.nn.softmax(h)\nq = R.matmul(a, v)\ny = (a, q)",
}
PLANS = {
    "rows": {"x": td.P("tp", None)},
    "columns": {"w": td.P(None, "tp")},
    "contracted": {"w": td.P("tp", None)},
}
PLAN = td.Plan(mesh={"tp": 2}, rules=PLANS["rows"])
ONES = [("our.product", is_op("relax.matmul")(wildcard(), wildcard())),
        ("our.sum", is_op("relax.add")(wildcard(), wildcard())),
        ("our.relu", is_op("relax.nn.relu")(wildcard()))]  # fmt: skip


@functools.cache
def plain(name: str) -> ir.IRModule:
    text = main(BODIES[name], " ".join(ARGS.split("\n")))
    return relax.transform.ConvertToDataflow(1)(parsed(text))


def merged(mod: ir.IRModule) -> ir.IRModule:
    fuse = relax.transform.FuseOpsByPattern(ONES)
    return relax.transform.MergeCompositeFunctions()(fuse(mod))


def libraries(mod: ir.IRModule) -> list[Any]:
    """The functions of libraries that a module has."""
    return [fn for fn in mod.functions.values() if fn.attrs and "Codegen" in fn.attrs]


def quiet(run: Callable[[], Any]) -> Any:
    """Run without the warnings about patterns that are unfused."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the pattern|.*: the pattern")
        return run()


@pytest.mark.parametrize("rules", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("partition", [cublas.partition_for_cublas, merged])
@pytest.mark.parametrize("name", BODIES)
def test_a_partitioned_module_is_distributed(name: str, partition: Any, rules: Any) -> None:
    mod, plan = partition(plain(name)), td.Plan(mesh={"tp": 2}, rules=rules)
    assert quiet(lambda: td.verify(mod, plan, engine="virtual")).equal
    dist = quiet(lambda: td.distribute(mod, plan))
    check_level(dist, "local")
    relax.analysis.well_formed(dist)
    program, other = td.export(dist), td.export(td.distribute(plain(name), plan))
    assert _flops(program) == _flops(other)
    assert td.simulate(program, "h100").time_s > 0


def _flops(program: td.Program) -> int:
    return sum(op.flops for fn in program.functions.values() for op in fn.ops)


@pytest.mark.parametrize("rules", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("engine", ["virtual", "threads"])
def test_a_distributed_module_may_be_partitioned(rules: Any, engine: str) -> None:
    mod, plan = plain("epilogue"), td.Plan(mesh={"tp": 2}, rules=rules)
    dist = td.distribute(mod, plan)
    local = cublas.partition_for_cublas(dist)
    assert libraries(local)
    check_level(local, "local")
    assert _flops(td.export(local)) == _flops(td.export(dist))
    random = np.random.default_rng(0)
    shapes = [[int(n) for n in param.ty.shape] for param in mod["main"].params]
    inputs = [random.integers(-2, 3, shape).astype("f4") for shape in shapes]
    ours, theirs = (td.run(program, inputs, engine=engine) for program in (local, dist))
    assert all(map(np.array_equal, ours, theirs))


def test_a_sharded_pattern_stays_one_call_of_local_shapes() -> None:
    mod = cublas.partition_for_cublas(plain("epilogue"))
    dist = td.distribute(mod, td.Plan(mesh={"tp": 2}, rules=PLANS["rows"]))
    fused = dist["fused_relax_matmul_relax_add_relax_nn_relu_cublas"]
    assert str(fused.attrs["Codegen"]) == "cublas"
    assert [int(n) for n in fused.params[0].ty.shape] == [4, 16]
    local = fused.body.blocks[0].bindings[0].value
    assert str(local.attrs["Composite"]) == "cublas.matmul_bias_relu"
    assert tvm_ffi.structural_equal(dist, tvm.script.from_source(dist.script(show_meta=True)))


def test_a_reduction_moves_behind_the_pattern() -> None:
    mod = cublas.partition_for_cublas(plain("product"))
    dist = td.distribute(mod, td.Plan(mesh={"tp": 2}, rules=PLANS["contracted"]))
    (fn,) = libraries(dist)
    assert str(fn.body.blocks[0].bindings[0].value.attrs["Composite"]) == "cublas.matmul"
    assert "all_reduce" not in str(fn) and "all_reduce" in str(dist["main"])


def test_a_pattern_that_is_cut_is_unfused_with_a_warning() -> None:
    mod = cublas.partition_for_cublas(plain("bias"))
    plan = td.Plan(mesh={"tp": 2}, rules=PLANS["contracted"])
    with pytest.warns(UserWarning, match='the pattern "cublas.matmul_bias" does not match'):
        dist = td.distribute(mod, plan)
    assert not libraries(dist)


def test_a_pattern_is_priced_as_a_kernel_of_the_library() -> None:
    mod = cublas.partition_for_cublas(plain("bias"))
    plan = td.Plan(mesh={"tp": 2}, rules=PLANS["rows"])
    program = td.export(td.distribute(mod, plan))
    (op,) = (op for fn in program.functions.values() for op in fn.ops if op.kind == "compute")
    assert (op.op, op.anchor, op.kernel_class) == ("cublas.matmul_bias", "relax.matmul", "matmul")
    assert op.bytes_read == 4 * (4 * 16 + 16 * 32 + 32)
    assert op.bytes_written == 4 * 4 * 32


def test_the_input_is_not_changed() -> None:
    mod = cublas.partition_for_cublas(plain("bias"))
    before = mod.script()
    td.distribute(mod, td.Plan(mesh={"tp": 2}, rules=PLANS["rows"]))
    assert mod.script() == before


def test_a_partitioned_model_is_trained_and_exported() -> None:
    mod = cublas.partition_for_cublas(plain("bias"))
    step = td.train_step(mod, loss="mse")
    assert not libraries(step)
    assert td.verify(step, PLAN, engine="virtual").equal
    assert "stablehlo.dot_general" in td.to_stablehlo(mod)
    assert libraries(td.transforms.InlinePrivateFunctions()(mod))


def test_patterns_are_checked_in_a_process_that_has_not_imported_their_library() -> None:
    """Their module registers them; a partitioned module may come from a file."""
    code = (
        "import sys, tvm_distir as td\n"
        "from tvm_distir.core.passes.lower import partitions\n"
        "assert 'tvm.relax.backend.cuda.cublas' not in sys.modules\n"
        "mod = td.zoo.build('mlp', {'batch': 4, 'layers': 1, 'hidden': 8})\n"
        "assert not partitions._matches('cublas.matmul_bias', mod['main'])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
