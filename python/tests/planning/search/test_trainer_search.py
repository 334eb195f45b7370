# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans of a trainer: options that are read back give each row's program and time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

import tvm_distir as td
from tests.planning.trainer_readers import READERS
from tvm_distir.planning import StepOptions, Study
from tvm_distir.planning.search import Constraints, TrainerSearch, trainer_search
from tvm_distir.planning.search.candidates import Enumeration
from tvm_distir.planning.search.trainer_space import trainer_choices
from tvm_distir.planning.stack import Stack
from tvm_distir.support.errors.tree import InfeasibleError

LLAMA = "zoo:llama?size=tiny,vocab=256,layers=2"
QWEN3 = "zoo:qwen3?size=tiny,experts=8,top_k=2,expert_ffn=32,layers=2"
ALL = 1000


def searched(model: str, stack: str, constraints: Constraints, devices: int = 4) -> TrainerSearch:
    train = {"optimizer": "adamw"}
    step = StepOptions(model, batch=16, train=train, system="h100", stack=stack)
    return TrainerSearch(step, constraints, devices)


DP_TP, ALL_AXES = ("dp", "tp"), ("pp", "dp", "cp", "tp")
CASES = [
    pytest.param(LLAMA, "megatron-core", DP_TP, 2, 4),
    pytest.param(QWEN3, "torch-fsdp", DP_TP, 2, 3),
    *(
        pytest.param(*case, marks=pytest.mark.nightly)
        for case in (
            (LLAMA, "megatron-core", ALL_AXES, 4, 30),
            (LLAMA, "megatron-lm", ("pp", "dp", "tp"), 4, 10),
            (LLAMA, "torch-fsdp", ALL_AXES, 4, 8),
            (LLAMA, "torch-eager", ("pp", "dp", "tp"), 4, 8),
            (LLAMA, "deepspeed", DP_TP, 4, 9),
            (QWEN3, "megatron-core", ("pp", "dp", "tp"), 4, 18),
            (QWEN3, "torch-fsdp", DP_TP, 4, 7),
            (QWEN3, "deepspeed", DP_TP, 4, 9),
        )
    ),
]


@pytest.mark.parametrize(("model", "stack", "axes", "devices", "least"), CASES)
def test_options_of_rows_give_their_programs(
    model: str, stack: str, axes: tuple[str, ...], devices: int, least: int
) -> None:
    """Each row exports; what is read back has its time within 1 %, and its collectives."""
    search = searched(model, stack, Constraints(axes=axes, micro_batches=(2,)), devices)
    found, form = search.run(ALL), Stack.load(stack).trainer
    assert form is not None and len(found.plans) >= least, len(found.plans)
    step = search.step
    for plan in found.plans:
        candidate = plan.row.candidate
        mesh = dict(candidate.axes)
        if candidate.stages > 1:
            mesh = {"pp": candidate.stages, **mesh}
        accumulates = candidate.stages == 1 and candidate.micro_batches > 1
        count = candidate.micro_batches if accumulates else None
        strategy = plan.row.why
        written = Study.of(replace(step, strategy=strategy, mesh=mesh, micro_batches=count))
        text = td.export_plan(written.step, written.step_plan, form)
        read = READERS[form](text, math.prod(mesh.values()))
        back = Study.of(replace(step, strategy=read.strategy, mesh=read.mesh,
                                recompute=read.recompute))  # fmt: skip
        assert back.result.time_s == pytest.approx(plan.time_s, rel=0.01), strategy
        assert plan.simulated is not None
        sent = [
            sorted((c.kind, c.count, c.bytes_per_device) for c in each.collectives)
            for each in (back.result, plan.simulated)
        ]
        assert sent[0] == sent[1], strategy


def test_mixtures_are_searched_over_ranks_of_tensor_parallelism() -> None:
    """Experts over data, tensor parallelism and both, where they divide the number of experts."""
    system = td.System.load("h100")
    enumeration = Enumeration(Constraints(), 8, system, 16, stages=True)
    choices = {
        (c.strategy, tuple(c.mesh.items())) for c in trainer_choices("megatron", enumeration, 4)
    }
    folded = "zero:stage=1,axis=dp+megatron:sequence=1+expert_parallel:axis=tp"
    assert (folded, (("dp", 2), ("tp", 4))) in choices
    both = "zero:stage=1,axis=dp/ep+megatron:sequence=1+expert_parallel:axis=ep/tp"
    assert (both, (("dp", 2), ("ep", 2), ("tp", 2))) in choices
    axes = [mesh for text, mesh in choices if text.endswith("expert_parallel:axis=ep/tp")]
    assert axes and all(dict(mesh)["ep"] * dict(mesh)["tp"] <= 4 for mesh in axes)
    dense = trainer_choices("megatron", enumeration, 0)
    assert not any("expert_parallel" in choice.strategy for choice in dense)


def test_plans_that_no_trainer_has_are_named_and_priced_beside() -> None:
    search = searched(LLAMA, "deepspeed", Constraints(fixed={"tp": 1}), 2)
    ours = search.run(1)
    module = td.load_model(LLAMA, batch=16).mod
    kernels = Stack.load("deepspeed").options.kernels
    system = replace(td.System.load("h100"), kernels=str(kernels))
    best = td.search(lambda batch: module, 2, system, batch=16, train={"optimizer": "adamw"},
                     constraints=Constraints(fixed={"dp": 1}), top=1)  # fmt: skip
    beside = search.beside(ours, best)
    assert beside.beyond is not None and beside.beyond.row.why
    time_s = Study.of(replace(search.step, plan=best.plans[0].plan)).result.time_s
    assert beside.beyond.time_s == time_s
    assert "deepspeed has no options for it" in beside.to_text()


def test_a_time_limit_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mesh is tried after the limit, and those tried before it have the plans of all."""
    search = searched(LLAMA, "torch-fsdp", Constraints(axes=DP_TP), 2)
    everything = search.run(ALL)
    assert everything.complete and len(everything.rows) > 1
    clock = itertools.count()
    monkeypatch.setattr(trainer_search.time, "monotonic", lambda: float(next(clock)))
    none, one = (replace(search, time_limit_s=limit).run(ALL) for limit in (0.5, 1.5))
    assert not none.complete and not none.rows and "time limit" in none.to_text()
    assert not one.complete and 0 < len(one.rows) < len(everything.rows)
    assert {plan.row.why for plan in one.plans} < {plan.row.why for plan in everything.plans}
    assert "stopped early" in one.to_text()


def test_nothing_fits() -> None:
    search = replace(searched(LLAMA, "torch-fsdp", Constraints(fixed={"tp": 1})), memory_bytes=1000)
    with pytest.raises(InfeasibleError, match=r"DIST0801.*torch-fsdp"):
        search.run(1)
