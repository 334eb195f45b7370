# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The strategy pipeline: meshes of stages, schedules in plans, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schedules.notes import Pipeline
from tvm_distir.execution.runtime import entries
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import DistIRError
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule


def _step(stages: int = 2, micros: int = 2, **more: Any) -> Any:
    schedule = {"kind": "1f1b", "stages": stages, "micro_batches": micros}
    return td.train_step(td.zoo.gpt(size="tiny", layers=4, batch=4), schedule=schedule, **more)


def test_the_axis_of_the_stages_is_taken_away() -> None:
    plan = make_plan(_step(), "pipeline:micro_batches=2+data_parallel", {"pp": 2, "dp": 4})
    assert plan.meshes[0].axes == {"dp": 4}
    assert plan.schedule is not None
    assert (plan.schedule.stages, plan.schedule.devices) == (2, ())


def test_ranks_lie_where_the_mesh_has_them() -> None:
    plan = make_plan(_step(), "data_parallel+pipeline:micro_batches=2", {"dp": 2, "pp": 2})
    assert plan.schedule is not None
    assert plan.schedule.devices == ((0, 2), (1, 3))
    local = ExpandSchedule()(td.distribute(_step(), plan))
    owners = {e.function: e.ranks for e in entries(local)}
    assert owners == {"main_mesh0": (0, 2), "main_mesh1": (1, 3)}


def test_boundary_values_lie_as_the_next_stage_takes_them() -> None:
    plan = make_plan(_step(), "pipeline:micro_batches=2+data_parallel", {"pp": 2, "dp": 2})
    values = {(r.function, r.name): r.placement for r in plan.rules if r.kind == "value"}
    assert values["stage0", "y"] == (0,)
    assert values["stage1", "x_grad"] == (0,)


def test_a_plan_is_edited_and_given_back(tmp_path: Path) -> None:
    plan = make_plan(_step(), "pipeline:micro_batches=2+data_parallel", {"pp": 2, "dp": 2})
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    data = {**plan.to_dict(), "schedule": {"kind": "gpipe", "stages": 2, "micro_batches": 2}}
    annotated = AnnotateSharding(Plan.from_dict(data))(_step())
    result = Pipeline.of(annotated)
    assert result is not None
    assert result.schedule.kind == "gpipe"


@pytest.mark.parametrize(
    ("stages", "text", "axes", "code"),
    [
        (2, "pipeline:micro_batches=4", {"pp": 2}, "DIST0233"),
        (2, "pipeline:micro_batches=2", {"pp": 4}, "DIST0233"),
        (2, "pipeline:micro_batches=2,stages=3", {"pp": 2}, "DIST0236"),
        (2, "pipeline:micro_batches=2", {"dp": 2}, "DIST0206"),
        (2, "pipeline:micro_batches=2,schedule=2f2b", {"pp": 2}, "DIST0236"),
        (2, "pipeline:micro_batches=2+pipeline:micro_batches=2", {"pp": 2}, "DIST0232"),
        (2, "pipeline:micro_batches=2,chunks=2", {"pp": 2}, "DIST0236"),
        (2, "pipeline:micro_batches=2,stash=1", {"pp": 2}, "DIST0233"),
    ],
)
def test_what_does_not_fit_is_refused(
    stages: int, text: str, axes: dict[str, int], code: str
) -> None:
    with pytest.raises(DistIRError) as refused:
        make_plan(_step(stages), text, axes)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "change", [{"stash": True}, {"cuts": ["h_0"]}, {"micro_batches": 4}, {"stages": 4}]
)
def test_a_schedule_that_the_step_was_not_made_for_is_refused(change: dict[str, Any]) -> None:
    """It would have no effect, or another one than the plan says."""
    plan = make_plan(_step(), "pipeline:micro_batches=2+data_parallel", {"pp": 2, "dp": 2})
    data = plan.to_dict()
    data["schedule"] = {**data["schedule"], **change}
    with pytest.raises(DistIRError, match="DIST0236") as refused:
        AnnotateSharding(Plan.from_dict(data))(_step())
    assert "train_step" in refused.value.remedy


def test_a_step_without_stages_is_refused() -> None:
    step = td.train_step(td.zoo.gpt(size="tiny", batch=4))
    with pytest.raises(DistIRError, match="DIST0233"):
        make_plan(step, "pipeline", {"pp": 2})
    plan = make_plan(_step(), "pipeline:micro_batches=2", {"pp": 2})
    with pytest.raises(DistIRError, match="DIST0236"):
        td.distribute(step, plan)


def test_verify_takes_a_step_in_stages() -> None:
    step = _step(optimizer="adam", recompute="full")
    plan = make_plan(step, "pipeline:micro_batches=2+data_parallel", {"pp": 2, "dp": 2})
    assert plan.recompute == {"layer": "full"}
    report = td.verify(step, plan, engine="threads")
    assert report.equal
    assert not report.unlike_claims


@pytest.mark.parametrize(("layers", "micros", "stages"), [(4, 4, 2), (8, 2, 4)])
def test_megatron_reduces_four_times_per_layer_and_micro_batch(
    layers: int, micros: int, stages: int
) -> None:
    """Shoeybi et al. 2019: two forward, two backward; one more of the embedding.

    With the sequence cut (Korthikanti et al. 2022) four gathers and four reduce-scatters instead,
    two more at the ends of the model, and none at the cuts between stages; and again the gathers
    of the forward part, of which only parts are kept: two per layer, and the head's.
    """
    model = td.zoo.gpt(size="tiny", layers=layers, batch=32, seq=64)
    schedule = {"kind": "1f1b", "stages": stages, "micro_batches": micros}
    step = td.train_step(model, schedule=schedule)
    moved = 32 * 64 * 64 * 4 // 2  # bytes of half (batch, seq, hidden)
    per_layer = {
        "all_gather": (6 * layers + 3) * micros,
        "reduce_scatter": (4 * layers + 2) * micros,
    }
    for words, expected in (
        ("megatron", {"all_reduce": (4 * layers + 1) * micros}),
        ("megatron:sequence=1", per_layer),
    ):
        plan = make_plan(step, f"pipeline:micro_batches={micros}+{words}", {"pp": stages, "tp": 2})
        program = td.export(ExpandSchedule()(td.distribute(step, plan)))

        def executed(function: str, program: Any = program) -> Iterator[Any]:
            for op in program.functions[function].ops:
                if op.callee:
                    yield from executed(op.callee)
                yield op

        result = Counter(
            op.collective
            for entry in program.entries
            for op in executed(entry.function)
            if op.kind == "collective" and op.payload_bytes >= moved
        )
        assert result == expected
