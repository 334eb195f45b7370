# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs that keep stages and schedule: what is exported, read, and refused."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.report.collect import analysis_of
from tvm_distir.interface.report.document import to_dict
from tvm_distir.interface.report.html import to_html
from tvm_distir.interface.report.text import to_text
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.unit_phases import unit_phases
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import SimulationError


@functools.cache
def _program(ranks: int = 3, micros: int = 4, kind: str = "1f1b", dp: int = 2) -> Program:
    mod = td.zoo.gpt(size="tiny", layers=2 * ranks, batch=2)
    schedule = f"{kind}:stages={ranks},micro_batches={micros}"
    step = td.train_step(mod, optimizer="adam", schedule=schedule)
    spec = f"pipeline:schedule={kind},micro_batches={micros}+data_parallel"
    return td.export(td.distribute(step, make_plan(step, spec, {"pp": ranks, "dp": dp})))


def test_each_kind_of_stage_stands_once() -> None:
    staged = _program(4).staged
    assert staged is not None
    assert [role.name for role in staged.stage_kinds] == ["stage0", "stage1", "stage3"]
    assert [stage.role for stage in staged.stages] == [0, 1, 1, 2]
    assert [phase.name for phase in staged.stage_kinds[1].phases] == [
        "forward", "backward", "accumulate", "accumulate_next", "end"
    ]  # fmt: skip
    assert staged.stage_kinds[0].phase("rows") is not None
    assert [(e.source[0], e.target[0]) for e in staged.edges] == [
        (0, 1), (1, 2), (1, 0), (2, 3), (2, 1), (3, 2)
    ]  # fmt: skip
    assert [(each.name, each.stages) for each in staged.sums] == [("wte_weight", (0, 3))]
    names = {name for rank, name, _ in staged.inputs() if rank == 2}
    assert "h_4_ln_1_weight" in names
    assert all(op.kind != "transfer" for fn in _program(4).functions.values() for op in fn.ops)


def test_zero_bubble_has_weights_by_themselves() -> None:
    staged = _program(2, 2, "zero_bubble").staged
    assert staged is not None
    assert all(role.phase("weight") is not None for role in staged.stage_kinds)


def test_the_size_does_not_follow_stages_and_micro_batches() -> None:
    few, many = _program(3, 2), _program(6, 32)
    ops = [sum(len(fn.ops) for fn in each.functions.values()) for each in (few, many)]
    assert len(many.functions) <= len(few.functions) + 2  # what a plan does to a sum
    assert ops[1] <= 1.1 * ops[0]


@pytest.mark.parametrize("micros", [2, 5])
def test_the_targets_that_count_are_counted_per_micro_batch(micros: int) -> None:
    """A term of the number of targets of the whole batch is exported once, and run for each."""
    staged = _program(2, micros).staged
    assert staged is not None
    names = [phase.name for phase in staged.stage_kinds[-1].phases]
    assert names[:2] == ["count:0", "count_next:0"]
    units = unit_phases(staged.stage_kinds[-1], staged.schedule)
    assert units["begin"] == ["count:0", *["count_next:0"] * (micros - 1), "begin"]
    count = staged.stage_kinds[-1].phases[0]
    assert not set(count.outputs) & set(staged.stage_kinds[-1].stash)
    assert count.outputs == staged.stage_kinds[-1].phases[1].outputs


def test_round_trip(tmp_path: Path) -> None:
    program = _program()
    assert program.to_dict()["schema_version"] == 2
    assert program.device_count() == 6
    path = tmp_path / "program.json"
    program.save(path)
    assert Program.load(path) == program


def test_reports_say_how_it_was_run() -> None:
    program, system = _program(), td.System.load("dgx-a100")
    result = td.simulate(program, system)
    analysis = analysis_of(result, program, system, model="m", command="c")
    text = to_text(analysis)
    assert "schedule 1f1b: 3 stages, 4 micro-batches, bubble" in text
    assert "3 x (dp=2) (6 devices)" in text
    assert to_dict(analysis)["pipeline"]["micro_batches"] == 4
    page = to_html(analysis)
    assert "Schedule 1f1b" in page
    assert '"backward 3"' in page
    assert {p.name for p in analysis.parameters if p.mesh == "mesh0_1"} >= {"h_2_ln_1_weight"}


def _refused(change: Callable[[dict[str, Any]], Any], code: str = "DIST0712") -> str:
    from tests.performance.simulation.hand_stages import Sizes, stages
    from tvm_distir.core.plan.schedules.schedule import Schedule

    data = stages(Schedule("1f1b", 2, 2), Sizes(kept=8, moved=4), summed=True).to_dict()
    change(data := copy.deepcopy(data))
    with pytest.raises(SimulationError) as caught:
        Program.from_dict(data)
    assert caught.value.code == code
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["meshes"].pop(), "1 meshes for a schedule of 2 ranks"),
        (lambda d: d["meshes"][1].update(device_ids=[0]), "already belongs to rank 0"),
        (lambda d: d["stages"].pop(), "1 stages, the schedule has 2"),
        (lambda d: d["stages"][1].update(role=7), "role 7 of 2"),
        (lambda d: d["stages"][0].update(names=[]), "0 names for 1 inputs"),
        (lambda d: d["stages"][0].update(results=["a", "b"]), "2 names for 1 results"),
        (lambda d: d["roles"][0]["params"].append(99), "1 names for 2 inputs"),
        (lambda d: d["roles"][0].update(params=[99]), "slot 99 of"),
        (lambda d: d["roles"][1]["results"].append(1), "2 results"),
        (lambda d: d["roles"][0]["phases"].pop(0), "read before it is written"),
        (lambda d: d["roles"][0]["phases"][0].update(name="end"), "is not at its position"),
        (lambda d: d["roles"][0]["phases"][0].update(name="forwards"), "there is no phase"),
        (lambda d: d["roles"][-1]["phases"][0].update(name="count:1"), "there is no phase"),
        (lambda d: d["roles"][-1]["phases"][1].update(name="count_next"), "there is no phase"),
        (lambda d: d["roles"][0]["phases"][0].update(function="frst.forward"), "first.forward"),
        (lambda d: d["roles"][0]["phases"][0]["outputs"].pop(), "returns 2 tensors"),
        (lambda d: d["roles"][0]["slots"][4].update(bytes=9), "has 9 bytes"),
        (lambda d: d["roles"][0].update(updates=[[5, 8]]), "cannot reuse the memory"),
        (lambda d: d["edges"][0].update(direction="backward"), "from stage 0 to 1"),
        (lambda d: d["edges"][0].update({"from": [0, 4]}), "4 bytes, slot 4"),
        (lambda d: d["edges"][0].update({"to": [5, 0]}), "read before it is written"),
        (lambda d: d["edges"].clear(), "read before it is written"),
        (lambda d: d["sums"].clear(), "takes part in 0 sums, its role in 1"),
        (lambda d: d["sums"][0].update(stages=[1, 0]), "are not in order"),
        (lambda d: d["sums"][0]["edges"].pop(0), "do not form the sum"),
    ],
)
def test_contradictions_are_refused(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    message = _refused(change)
    assert words in message


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(entries=[]),
        lambda d: d.pop("edges"),
        lambda d: d["schedule"].update(kind="2f2b"),
        lambda d: d["schedule"].update(micro_batches=0),
        lambda d: d["edges"][0].update(placements=["R"]),
        lambda d: d["edges"][0].update(bytes=[1, 2, 3]),
        lambda d: d["roles"][0].update(colour="red"),
    ],
)
def test_unreadable_ones_are_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    _refused(change, "DIST0710")


def test_a_step_that_is_not_lowered_is_refused() -> None:
    model = td.zoo.gpt(size="tiny", layers=2, batch=2)
    step = td.train_step(model, schedule="1f1b:stages=2,micro_batches=2")
    with pytest.raises(SimulationError, match="DIST0714"):
        td.export(step)
