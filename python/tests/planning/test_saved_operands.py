# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps save what the kernels of the profile read, in studies and in searches alike."""

from __future__ import annotations

import pytest
from tvm import ir

import tvm_distir as td
from tvm_distir.hardware import System
from tvm_distir.planning.search.modules import Source
from tvm_distir.planning.study import Study

FFN = 96
GATED = "zoo:llama?size=tiny,layers=2,ffn=96,dtype=bfloat16"


def stored(step) -> int:
    """Return the number of tensors of the width of the gated activation that a layer saves."""
    saved = step["layer_forward"].ret_ty.fields[1].fields
    return sum(int(part.shape[-1]) == FFN for part in saved if not isinstance(part, ir.TupleType))


@pytest.mark.parametrize("micro_batches", [None, 2])
@pytest.mark.parametrize(("kernels", "count"), [(None, 3), ("fused-fp8", 3), ("torch-eager", 4)])
def test_a_gated_activation_is_saved_as_its_profile_states(kernels, count, micro_batches):
    """Eager PyTorch saves gate, silu(gate), up and their product; fused kernels no silu(gate)."""
    study = Study(
        GATED, strategy="data_parallel", mesh={"dp": 2}, system="b200", kernels=kernels,
        batch=4, train={"optimizer": "adamw"}, micro_batches=micro_batches,
    )  # fmt: skip
    assert stored(study.step) == count


@pytest.mark.parametrize(("system", "count"), [("b200", 3), ("dgx-h100-megatron", 4)])
def test_a_search_saves_as_a_study_does(system, count):
    """The profile megatron-lm has no kernel of gated activations."""
    model = td.load_model(GATED, batch=2).mod
    source = Source(model, None, {"optimizer": "adamw"}, System.load(system))
    assert stored(source.module(None, "none")) == count
