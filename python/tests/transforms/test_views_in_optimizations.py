# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Optimizations of collectives treat the views of a mesh as the same devices."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import tvm_distir as td
from tvm_distir.planning import Study, TrainingOptions

GPT = "zoo:gpt?layers=2,hidden=32,heads=4,vocab=64,positions=16,seq=16,fused_qkv=1"
SMALL = GPT.replace("layers=2", "layers=1")


def study_of(model: str, strategy: str, mesh: dict[str, int]) -> Study:
    train = TrainingOptions(optimizer="adamw")
    return Study(model, strategy=strategy, mesh=mesh, batch=8, train=train, system="h100")


def by_axes(mod: Any) -> Counter[tuple[str, str]]:
    """Count the collectives by kind and by the names of their axes."""
    names = [list(map(str, row)) for row in mod.attrs["mesh_axes"]]
    call = (
        r'R\.dist\.(\w+?)(?:_start)?\(.*device_mesh="mesh\[(\d)\]".*mesh_ax[ei]s?=(\[[\d, ]*\]|\d)'
    )
    return Counter(
        (kind, "+".join(sorted(names[int(mesh)][int(n)] for n in re.findall(r"\d", axes))))
        for kind, mesh, axes in re.findall(call, mod.script())
        if kind != "local_slice"
    )


def test_updated_weights_of_all_views_are_gathered_in_the_same_buckets():
    """Biases that ``tp`` and, inside of that, ``dp`` shard are on a view; other weights are not."""
    local = study_of(GPT, "zero:stage=1+megatron", {"dp": 2, "tp": 2}).local
    text = local.script()
    assert len(local.attrs["mesh_axes"]) == 2  # the biases have another order than the mesh
    main = text[text.index("def main") :]
    gathered = re.findall(r"(\w+): .*R\.dist\.all_gather_start\(.*mesh_axis=", main)
    assert [name for name in gathered if "updated" in name] == []
    assert any(name.startswith("bucket") for name in gathered)


def test_both_orders_of_a_mesh_gather_activations_again():
    """Of sequence parallelism: the axes of tokens are ``cp``, ``tp``, whatever the mesh lists."""
    studies = [
        study_of(SMALL, "megatron:sequence=1+context_parallel", mesh)
        for mesh in ({"cp": 2, "tp": 2}, {"tp": 2, "cp": 2})
    ]
    steps = [study.local for study in studies]
    assert by_axes(steps[0]) == by_axes(steps[1])
    again = [len(re.findall(r"_again_start: ", mod.script())) for mod in steps]
    assert again[0] == again[1] > 0
    last = studies[1]
    assert td.verify(last.step, last.step_plan, dist=steps[1], engine="virtual", locate=False).equal
