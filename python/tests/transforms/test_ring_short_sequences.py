# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rings in training on sequences so short that other collectives would cost less."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import tvm_distir as td
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.planning.study import Study

CASES = [
    ("context_parallel:form=ring", {"cp": 4}, "written"),
    ("data_parallel+context_parallel:form=ring", {"dp": 2, "cp": 2}, "fused"),
    ("zero:stage=3+context_parallel:form=ring", {"dp": 2, "cp": 4}, "written"),
]


@pytest.mark.parametrize(("strategy", "mesh", "attention"), CASES)
def test_a_short_ring_trains_as_one_device_does(
    strategy: str, mesh: Mapping[str, int], attention: str
) -> None:
    model = "zoo:gpt?layers=1,hidden=32,heads=2,batch=2,seq=16,vocab=32,positions=16"
    study = Study(
        model, strategy=strategy, mesh=mesh, train={"optimizer": "sgd"}, attention=attention
    )
    for name in ("layer_forward", "layer_backward"):
        sent = [dist_op_name(binding.value) for binding in all_bindings(study.local[name].body)]
        assert sent.count("collective_permute") >= mesh["cp"] - 1, name
    has_kernels = "R.dist.attention" in study.local.script()
    assert has_kernels == (attention == "fused"), "the option decides how blocks are lowered"
    report = td.verify(study.step, study.step_plan)
    assert report.equal, report
