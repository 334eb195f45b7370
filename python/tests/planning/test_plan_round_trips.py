# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Options of trainers that are read back give the plan that was exported, or are refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import pytest
from tvm import ir

import tvm_distir as td
from tests.planning.trainer_readers import READERS
from tvm_distir.core.plan import Plan
from tvm_distir.planning import Study
from tvm_distir.planning.plan_export import exported_plan, reference_plan
from tvm_distir.planning.plan_export.exported_plan import PlacedParameter, placed_parameters
from tvm_distir.planning.plan_export.reference_plan import stage_layers
from tvm_distir.planning.plan_export.torchtitan_options import divided_layers
from tvm_distir.planning.stage_memo import StageMemo
from tvm_distir.support.errors import DistIRError

MODELS = {
    "llama": "zoo:llama?size=tiny,vocab=256",
    "mixtral": "zoo:mixtral?size=tiny",
}
BATCH = 16
FORMS = {"M": "megatron", "T": "torchtitan", "D": "deepspeed"}
D4, D2T2, D2C2 = {"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}
P2D2, P2T2, E4, D2E2 = {"pp": 2, "dp": 2}, {"pp": 2, "tp": 2}, {"ep": 4}, {"dp": 2, "ep": 2}
PIPE, SEQ = "pipeline:micro_batches=4", "megatron:sequence=1"

CASES: list[tuple[str, dict[str, int], str, str, str]] = [
    # strategy, mesh, formats that express it for the dense model and the mixture (-: it has
    # no such plan), recomputation
    ("data_parallel", D4, "MTD", "MTD", "none"),
    ("data_parallel", D4, "M", "M", "core"),
    ("data_parallel", D4, "MT", "MT", "checkpoint"),
    ("data_parallel", D4, "T", "T", "alternate"),
    ("data_parallel", D4, "", "", "full"),
    ("data_parallel", D4, "", "", "selective"),
    ("fsdp", D4, "TD", "TD", "none"),
    ("hsdp", {"pod": 2, "dp": 2}, "T", "T", "none"),
    ("hsdp+megatron", {"pod": 2, "dp": 2, "tp": 2}, "T", "T", "none"),
    ("zero:stage=1", D4, "MD", "MD", "none"),
    ("zero:stage=2", D4, "D", "D", "none"),
    ("data_parallel:axis=pod+zero:stage=1", {"pod": 2, "dp": 2}, "M", "M", "none"),
    ("zero:stage=1,axis=dp/pod", {"pod": 2, "dp": 2}, "MD", "MD", "none"),
    ("data_parallel+megatron", D2T2, "MTD", "TD", "none"),
    ("data_parallel+megatron:sequence=1", D2T2, "MT", "MT", "none"),
    ("fsdp+megatron", D2T2, "TD", "TD", "none"),
    ("fsdp+megatron:sequence=1", D2T2, "T", "T", "none"),
    ("zero:stage=1+megatron", D2T2, "MD", "D", "none"),
    ("zero:stage=1+megatron:sequence=1", D2T2, "M", "M", "none"),
    ("data_parallel+megatron", {"tp": 2, "dp": 2}, "", "", "none"),
    ("data_parallel+context_parallel", D2C2, "M", "M", "none"),
    ("data_parallel+context_parallel:form=gather", D2C2, "M", "M", "none"),
    ("data_parallel+context_parallel:form=ring", D2C2, "M", "M", "none"),
    ("fsdp+context_parallel:form=gather", D2C2, "T", "T", "none"),
    ("zero:stage=1+context_parallel:form=gather", D2C2, "M", "M", "none"),
    (f"{PIPE}+data_parallel", P2D2, "MT", "MT", "none"),
    (f"{PIPE}+data_parallel:axis=pod", {"pp": 2, "pod": 2}, "MT", "MT", "none"),
    (f"{PIPE}+megatron", P2T2, "MT", "T", "none"),
    (f"{PIPE}+megatron:sequence=1", P2T2, "MT", "MT", "none"),
    (f"{PIPE}+fsdp", P2D2, "T", "T", "none"),
    (f"{PIPE}+zero:stage=1", P2D2, "M", "M", "none"),
    (f"{PIPE},schedule=gpipe", {"pp": 2}, "T", "T", "none"),
    (f"{PIPE},schedule=interleaved,chunks=2", {"pp": 2}, "MT", "T", "none"),
    (f"{PIPE},schedule=zero_bubble", {"pp": 2}, "", "", "none"),
    (f"{PIPE},stages=1+data_parallel", D4, "MTD", "MTD", "none"),
    (f"{PIPE},stages=1+zero:stage=1", D4, "MD", "MD", "none"),
    ("expert_parallel", E4, "-", "MD", "none"),
    ("data_parallel+expert_parallel", D2E2, "-", "MD", "none"),
    ("fsdp:axis=ep+expert_parallel", E4, "-", "TD", "none"),
    ("fsdp:axis=dp/ep+expert_parallel", D2E2, "-", "TD", "none"),
    ("zero:stage=1,axis=dp/ep+expert_parallel", D2E2, "-", "MD", "none"),
    ("expert_parallel+megatron", {"ep": 2, "tp": 2}, "-", "", "none"),
    ("expert_parallel+megatron:sequence=1", {"ep": 2, "tp": 2}, "-", "M", "none"),
    (f"data_parallel+{SEQ}+expert_parallel:axis=tp", D2T2, "-", "M", "none"),
    (f"data_parallel+{SEQ}+expert_parallel:axis=dp/tp", D2T2, "-", "M", "none"),
    (f"zero:stage=1+{SEQ}+expert_parallel:axis=tp", D2T2, "-", "M", "none"),
    (f"zero:stage=1+{SEQ}+expert_parallel:axis=dp/tp", D2T2, "-", "M", "none"),
    (f"data_parallel:axis=pod+data_parallel+{SEQ}+expert_parallel:axis=dp/tp",
     {"pod": 2, "dp": 2, "tp": 2}, "-", "M", "none"),
    (f"fsdp+{SEQ}+expert_parallel:axis=tp", D2T2, "-", "", "none"),
    ("data_parallel+megatron+expert_parallel:axis=tp", D2T2, "-", "", "none"),
    (f"{PIPE}+{SEQ}+expert_parallel:axis=tp", P2T2, "-", "M", "none"),
    ("expert_parallel:data=0", E4, "-", "", "none"),
    (f"{PIPE}+expert_parallel", {"pp": 2, "ep": 2}, "-", "M", "none"),
    ("tensor_parallel", {"tp": 2}, "", "", "none"),
    ("data_parallel+megatron+sequence", D2T2, "", "", "none"),
    ("data_parallel+megatron+complete", D2T2, "", "", "none"),
    ("data_parallel+complete", D4, "", "", "none"),
]  # fmt: skip


#: Studies share the stages whose inputs are equal: options that are read back mostly give the plan
#: that was exported, and what follows from equal plans is computed once.
MEMO = StageMemo(most=10_000)


@functools.cache
def study(model: str, strategy: str, mesh: tuple[tuple[str, int], ...], recompute: str) -> Study:
    """Return the study of a training step, with two layers per stage that the cases have."""
    layers = 4 if "pipeline" in strategy else 2
    return Study(
        f"{MODELS[model]},layers={layers}", strategy=strategy, mesh=dict(mesh), system="dgx-a100",
        batch=BATCH, train={"optimizer": "adam", "recompute": recompute}, memo=MEMO,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _shared_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the formats of a plan share the placements that propagation decides."""

    def shared(mod: ir.IRModule, plan: Plan) -> tuple[PlacedParameter, ...]:
        return MEMO.result("placed", (mod, plan), lambda: placed_parameters(mod, plan))

    monkeypatch.setattr(exported_plan, "placed_parameters", shared)
    monkeypatch.setattr(reference_plan, "placed_parameters", shared)


def marks_of(number: int, n: int) -> Sequence[pytest.MarkDecorator]:
    """Return the marks: mixtures run at night where the formats are those of the dense model."""
    dense, mixture = CASES[n][2:4]
    if number and dense == mixture:
        return [pytest.mark.nightly]
    return [pytest.mark.quick] if n % 10 == 0 else []


PAIRS = [
    pytest.param(model, *case[:2], case[4], form, form[0].upper() in case[2 + number],
                 marks=marks_of(number, n),
                 id="-".join((model, case[0], "x".join(case[1]), case[4], form)))
    for number, model in enumerate(MODELS)
    for n, case in enumerate(CASES)
    for form in FORMS.values()
    if case[2 + number] != "-"
]  # fmt: skip


@pytest.mark.parametrize(("model", "strategy", "mesh", "recompute", "form", "said"), PAIRS)
def test_options_read_back_give_the_plan(
    model: str, strategy: str, mesh: dict[str, int], recompute: str, form: str, said: bool
) -> None:
    """The step has the times, memory and traffic of the plan."""
    ours = study(model, strategy, tuple(mesh.items()), recompute)
    try:
        step, plan = ours.step, ours.step_plan
        text = td.export_plan(step, plan, form)
    except DistIRError as error:
        assert not said, error
        assert error.code == "DIST0241" and error.remedy
        return
    assert said, text
    read = READERS[form](text, math.prod(mesh.values()))
    assert read.batch == BATCH
    back = study(model, read.strategy, tuple(read.mesh.items()), read.recompute)
    layers = stage_layers(step)
    if layers and form == "torchtitan":
        assert divided_layers(sum(layers), len(layers), *read.layers) == layers
    if layers and form == "megatron":
        assert read.layers == ((0, 0) if len(set(layers)) == 1 else (layers[0], layers[-1]))
    found, expected = back.result, ours.result
    assert found.time_s == pytest.approx(expected.time_s, rel=0.01)
    assert found.peak_memory_bytes == pytest.approx(expected.peak_memory_bytes, rel=0.01)
    sent = [
        sorted((c.kind, c.count, c.bytes_per_device) for c in result.collectives)
        for result in (found, expected)
    ]
    assert sent[0] == sent[1]


def test_there_are_pairs_enough() -> None:
    assert len(PAIRS) >= 250 and sum(pair.values[-1] for pair in PAIRS) >= 90
