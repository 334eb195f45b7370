# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of a step before distribution, against a closed formula and the training step itself."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.relax.backend.cuda.cublas import partition_for_cublas

import tvm_distir as td
from tests.core.forms.parsing import main, parsed
from tvm_distir.performance import step_flops
from tvm_distir.performance.program.model_flops import product_flops
from tvm_distir.planning import Study

LAYERS, HIDDEN, SEQ, VOCAB, BATCH = 3, 64, 32, 512, 8
MODEL = f"zoo:gpt?layers={LAYERS},hidden={HIDDEN},heads=4,seq={SEQ},positions={SEQ},vocab={VOCAB}"


def _formula() -> int:
    """Return the FLOPs of a GPT's forward pass: Narayanan et al. (2021), appendix."""
    per_layer = 24 * BATCH * SEQ * HIDDEN**2 + 4 * BATCH * SEQ**2 * HIDDEN
    return LAYERS * per_layer + 2 * BATCH * SEQ * HIDDEN * VOCAB


def _study(strategy: str, mesh: dict[str, int], recompute: str, train: bool = True) -> Study:
    return Study(
        MODEL, strategy=strategy, mesh=mesh, batch=BATCH, recompute=recompute if train else None,
        train={"optimizer": "adam"} if train else None,
    )  # fmt: skip


def test_the_forward_pass_has_the_flops_of_the_formula() -> None:
    study = _study("data_parallel", {"dp": 2}, "none", train=False)
    assert step_flops(study.forward, study.step) == (_formula(), 0)


@pytest.mark.parametrize("recompute", ["none", "full", "core"])
@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [("data_parallel", {"dp": 2}), ("pipeline:micro_batches=4+data_parallel", {"pp": 3, "dp": 2})],
)
def test_model_flops_are_three_forward_passes_whatever_is_recomputed(
    strategy: str, mesh: dict[str, int], recompute: str
) -> None:
    study = _study(strategy, mesh, recompute)
    flops = step_flops(study.forward, study.step)
    assert flops.model == 3 * _formula()
    assert flops.model + flops.recomputed == product_flops(study.step).forward
    assert (flops.recomputed > 0) == (recompute == "full")


def test_a_packed_function_without_a_rule_has_no_flops() -> None:
    matrix = relax.TensorType((8, 8), "float32")
    x = relax.Var("x", matrix)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            args = relax.Tuple([builder.emit(relax.op.matmul(x, x))])
            result = relax.op.call_dps_packed("my.kernel", args, out_ty=matrix)
            output = builder.emit_output(builder.emit(result))
        builder.emit_func_output(output)
    plan = td.Plan(mesh={"dp": 2}, rules={"x": td.P("dp")})
    assert product_flops(builder.get()).forward == 2 * 8**3
    data = td.analyze(builder.get(), plan=plan, system="h100").to_dict()
    assert data["unmodelled_ops"] == ["my.kernel"]


def test_frozen_weights_need_no_product_for_their_gradient() -> None:
    whole = _study("data_parallel", {"dp": 2}, "none")
    frozen = Study(
        MODEL, strategy="data_parallel", mesh={"dp": 2}, batch=BATCH,
        train={"optimizer": "adam", "frozen": ("h.*.mlp.up_proj.weight",)},
    )  # fmt: skip
    saved = LAYERS * 8 * BATCH * SEQ * HIDDEN**2
    assert step_flops(whole.forward, whole.step).model == (
        step_flops(frozen.forward, frozen.step).model + saved
    )


def test_utilisation_follows_from_time_and_peak() -> None:
    result = td.analyze(
        MODEL, strategy="data_parallel", mesh={"dp": 2}, batch=BATCH, system="h100",
        train={"optimizer": "adam"}, recompute="full", attention="written",
    )  # fmt: skip
    figures = result.to_dict()["throughput"]
    peak = td.System.load("h100").peak_flops_per_s("float32")
    assert figures["mfu"] == pytest.approx(3 * _formula() / (result.time_s * 2 * peak))
    assert figures["hfu"] > figures["mfu"]
    assert figures["tokens"] == BATCH * SEQ
    assert figures["tokens_per_s_per_device"] == pytest.approx(BATCH * SEQ / result.time_s / 2)


@pytest.mark.parametrize("lifted", [False, True], ids=["partitioned", "lifted"])
def test_products_in_local_functions_are_counted_once(lifted: bool) -> None:
    params = 'x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")'
    inner = params.replace("w:", "v:").replace("x:", "u:")
    closure = f"@R.function\ndef inner({inner}):\n    p = R.matmul(u, v)\n    return p\n"
    flat = parsed(main("h = R.matmul(x, w)\ny = R.matmul(h, w)", params))
    if lifted:
        called = parsed(main(f"{closure}h = inner(x, w)\ny = inner(h, w)", params))
        mod = relax.transform.LambdaLift()(called)
    else:
        mod = partition_for_cublas(relax.transform.ConvertToDataflow(1)(flat))
    assert product_flops(mod) == product_flops(flat)
    assert product_flops(flat).forward == 2 * 2 * 8 * 16 * 16
