# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes of this package under TVM's pass context, and TVM's passes over device programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.ir.instrument import PassTimingInstrument, pass_instrument
from tvm.relax import transform

import tvm_distir as td
from tests.core.forms.parsing import refusal
from tests.core.forms.reference import compiled, drawn
from tests.core.forms.test_forms import fused
from tests.core.forms.test_tvm_forms import DATA, TENSOR, on, plain
from tests.quick_compilation import quick_machine
from tvm_distir.core.analysis import check_level
from tvm_distir.performance import ExportProgram
from tvm_distir.support import DistIRError
from tvm_distir.transforms import (
    AnnotateSharding,
    LegalizeRedistribute,
    LowerDistIR,
    OptimizeCollectives,
    PropagateSharding,
)

ROWS = on({"w": td.P("tp", None)})
PLANS = {"dp": DATA, "tp columns": TENSOR, "tp rows": ROWS}
NAMES = ["AnnotateSharding", "PropagateSharding", "LegalizeRedistribute", "OptimizeCollectives",
         "LowerDistIR"]  # fmt: skip
PIPELINES = {
    "LegalizeOps": transform.LegalizeOps(),
    "FuseTIR": fused,
    "zero": relax.get_pipeline("zero"),
    "in place": tvm.transform.Sequential(
        [transform.LegalizeOps(), transform.DataflowUseInplaceCalls()]),
}  # fmt: skip


def chain(*more: Any) -> Any:
    passes = [PropagateSharding(), LegalizeRedistribute(), OptimizeCollectives(), LowerDistIR()]
    return tvm.transform.Sequential([AnnotateSharding(TENSOR), *passes, *more])


def test_instruments_see_each_pass() -> None:
    seen: list[str] = []

    @pass_instrument
    class Recorder:
        def run_before_pass(self, _: ir.IRModule, info: Any) -> None:
            seen.append(str(info.name))

    timing = PassTimingInstrument()
    with tvm.transform.PassContext(opt_level=3, instruments=[Recorder(), timing]):
        chain(ExportProgram(lambda _: None))(plain())
        profile = timing.render()
    wanted = [f"tvm_distir.{name}" for name in [*NAMES, "ExportProgram"]]
    assert [name for name in seen if name.startswith("tvm_distir.")] == wanted
    assert all(name in profile for name in wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_disabled_pass_is_skipped_or_the_next_one_names_it(name: str) -> None:
    with tvm.transform.PassContext(opt_level=3, disabled_pass=[f"tvm_distir.{name}"]):
        if name in ("OptimizeCollectives", "LowerDistIR"):
            level = "local" if name == "OptimizeCollectives" else "legalized"
            check_level(chain()(plain()), level)
            return
        with pytest.raises(DistIRError) as caught:
            chain()(plain())
    assert f"Run {name}" in caught.value.remedy


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_passes_of_tvm_keep_the_program_of_a_device(pipeline: Any, plan: td.Plan) -> None:
    mod = plain()
    inputs = drawn(mod)
    (want,) = compiled(mod, inputs)
    dist = td.distribute(mod, plan)
    local = pipeline(dist)
    check_level(local, "local")
    for engine in ("virtual", "threads"):
        (result,) = td.run(local, inputs, engine=engine, dispatch="tvm")
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)
    ours, theirs = (td.export(program) for program in (local, dist))
    moved = [[(op.op, op.payload_bytes) for fn in program.functions.values() for op in fn.ops
              if op.kind == "collective"] for program in (ours, theirs)]  # fmt: skip
    assert moved[0] == moved[1]


def test_a_program_without_collectives_is_a_module_of_tvm() -> None:
    mod = plain()
    inputs = drawn(mod)
    (want,) = compiled(mod, inputs)
    run = quick_machine(td.distribute(mod, DATA))["main"]
    rest = [tvm.runtime.tensor(value) for value in inputs[1:]]
    parts = [run(tvm.runtime.tensor(part), *rest).numpy() for part in np.split(inputs[0], 2)]
    np.testing.assert_allclose(np.concatenate(parts), want, rtol=1e-5, atol=1e-5)


def test_collectives_outside_of_a_run_are_refused_and_the_remedy_is_true() -> None:
    mod = plain()
    inputs, dist = drawn(mod), td.distribute(mod, TENSOR)
    shards = [inputs[0], inputs[1][:, :16], inputs[2][:16]]
    with pytest.raises(DistIRError) as caught:
        quick_machine(dist)["main"](*(tvm.runtime.tensor(np.ascontiguousarray(s)) for s in shards))
    assert (caught.value.code, caught.value.remedy) == (
        "DIST0605", "Run the module with tvm_distir.run.")  # fmt: skip
    (want,) = compiled(mod, inputs)
    np.testing.assert_allclose(td.run(dist, inputs)[0], want, rtol=1e-5, atol=1e-5)


def test_a_program_is_compiled_for_cuda() -> None:
    if tvm.get_global_func("target.build.cuda", allow_missing=True) is None:
        pytest.skip("this TVM has no compiler for CUDA")
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    for plan in PLANS.values():
        with target:
            assert tvm.compile(td.distribute(plain(), plan), target=target)


def test_a_module_after_call_tir_rewrite_is_refused() -> None:
    """Its calls write into memory that it allocates: rules know calls that return tensors."""
    mod = transform.CallTIRRewrite()(transform.LegalizeOps()(plain()))
    error = refusal(mod, DATA)
    assert (error.code, error.location) == ("DIST0453", "main")
    assert "impure call" in error.what
