# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The zoo's models on meshes of two and three axes: data, tensor, expert and spatial, verified.

Larger sizes, and the bundled ONNX models: ``scripts/checks/verify_models.py``.
"""

from __future__ import annotations

import pytest

import tvm_distir as td
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.plan.plan import Plan
from tvm_distir.planning import strategies as strategy

MODELS = {
    "gpt": "zoo:gpt?size=tiny,layers=1,hidden=32,vocab=67,batch=12",
    "llama": "zoo:llama?size=tiny,layers=1,hidden=32,ffn=48,vocab=67,batch=12",
    "bert": "zoo:bert?size=tiny,layers=1,hidden=32,vocab=67,batch=12",
    "vit": "zoo:vit?size=tiny,layers=1,hidden=32,batch=12",
    "moe": "zoo:moe?size=tiny,layers=1,hidden=32,ffn=24,vocab=67,batch=12",
    "unet": "zoo:unet?size=tiny,channels=8,context=0,image=8,batch=4",
    "resnet": "zoo:resnet?size=tiny,depth=10,width=4,image=48,batch=12",
}
DP_TP = "data_parallel+tensor_parallel"
TWO_DATA = "data_parallel:axis=pod+data_parallel+tensor_parallel"
EXPERTS = "data_parallel+expert_parallel+tensor_parallel"
SPATIAL = "data_parallel+spatial_parallel+tensor_parallel"
CASES = [
    ("gpt", TWO_DATA, {"pod": 2, "dp": 2, "tp": 2}),
    ("llama", DP_TP, {"dp": 3, "tp": 2}),
    ("bert", DP_TP, {"dp": 2, "tp": 2}),
    ("vit", TWO_DATA, {"pod": 3, "dp": 2, "tp": 2}),
    ("moe", EXPERTS, {"dp": 2, "ep": 2, "tp": 2}),
    ("moe", "expert_parallel+tensor_parallel", {"ep": 4, "tp": 2}),
    ("unet", SPATIAL, {"dp": 2, "sp": 2, "tp": 2}),
    ("resnet", "data_parallel+spatial_parallel", {"dp": 3, "sp": 2}),
]


@pytest.mark.filterwarnings("ignore:tensor_parallel over")
@pytest.mark.parametrize(("name", "text", "axes"), CASES)
def test_a_model_is_verified(name: str, text: str, axes: dict[str, int]) -> None:
    """Equal to one device; every op of the lowered module has a cost."""
    mod = td.load_model(MODELS[name]).mod
    plan = strategy.make_plan(mod, text, axes)
    lowered = td.distribute(mod, plan)
    check_level(lowered, 5)
    assert td.verify(mod, plan, engine="virtual", dist=lowered).equal
    result = td.simulate(td.export(lowered), td.System.load("dgx-a100"))
    assert not result.unmodelled_ops
    used = {axis for c in result.collectives for axis in c.mesh_axis.split(",")}
    assert {axis for axis in axes if axis not in ("pod", "dp")} <= used <= set(axes)


@pytest.mark.parametrize(
    ("name", "train"), [("gpt", False), ("gpt", True), ("moe", False), ("resnet", False)]
)
def test_an_uneven_batch_over_two_axes(name: str, train: bool) -> None:
    """7 samples over 2 x 2 are 2, 2, 2 and 1: blocks of 4 and 3, each cut again."""
    spec, _, end = MODELS[name].rpartition("=")
    assert end == "12"
    mod = td.load_model(f"{spec}=7").mod
    mod = td.train_step(mod) if train else mod
    assert mod["main"].attrs is not None
    data = mod["main"].params[: int(mod["main"].attrs["num_input"])]
    rules = [{"param": str(x.name), "placement": "S[0], S[0]"} for x in data]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"a": 2, "b": 2}, "rules": rules})
    lowered = td.distribute(mod, plan)
    assert td.verify(mod, plan, engine="virtual", dist=lowered).equal
    sent = td.transforms.traffic(lowered)
    if train:  # the gradients at least
        assert sent.total_sent_bytes > 0
    elif name != "moe":  # samples stay where they are; the router of experts counts tokens
        assert not sent.counts


# The work of a sample is that of torchvision's tables, in multiply-adds.
REAL = [
    ("zoo:bert?size=bert-large", DP_TP, {"dp": 2, "tp": 8}, None),
    ("zoo:vit?size=vit-b16", DP_TP, {"dp": 2, "tp": 4}, 17.56e9),
    ("zoo:moe?size=mixtral-8x7b", "data_parallel+expert_parallel", {"dp": 2, "ep": 8}, None),
    ("zoo:unet?size=sd-unet", "data_parallel", {"dp": 2}, None),
    ("zoo:resnet?size=resnet50", "data_parallel+spatial_parallel", {"dp": 8, "sp": 2}, 4.09e9),
]


@pytest.mark.parametrize(("spec", "text", "axes", "sample_macs"), REAL)
def test_real_sizes_are_analysed_without_weights(
    spec: str, text: str, axes: dict[str, int], sample_macs: float | None
) -> None:
    mod = td.load_model(spec).mod
    lowered = td.distribute(mod, strategy.make_plan(mod, text, axes))
    result = td.simulate(td.export(lowered), td.System.load("dgx-a100"))
    assert not result.unmodelled_ops
    work_flops = sum(device.flops for device in result.devices)
    assert work_flops > 0
    if sample_macs is not None:
        batch = 16
        assert work_flops == pytest.approx(2 * batch * sample_macs, rel=0.1)


def test_mixtral_sends_tokens_to_experts_and_back() -> None:
    """Two all-to-alls in each of 32 layers, of all slots of a device's samples."""
    mod = td.load_model("zoo:moe?size=mixtral-8x7b").mod
    plan = strategy.make_plan(mod, "expert_parallel", {"ep": 8})
    result = td.simulate(td.export(td.distribute(mod, plan)), td.System.load("dgx-a100"))
    assert [(c.kind, c.mesh_axis, c.count) for c in result.collectives] == [
        ("all_to_all", "ep", 64)
    ]
    slots = 8 * (2048 * 2 * 5 // 4 // 8)
    sent_bytes = 2 * (16 // 8) * slots * 4096 * 7 // 8
    assert result.collectives[0].wire_bytes_per_device == 64 * sent_bytes
