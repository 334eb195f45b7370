# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Updated weights are kept as shards and gathered where the next step begins."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import ir

import tvm_distir as td
from tests.transforms.training.pipeline_models import schedule_of, tower
from tvm_distir.core.ir.attributes.keys import IO_ATTR
from tvm_distir.planning.strategies.composition import make_plan

PIPELINE = "pipeline:micro_batches=2+data_parallel+zero:stage=1"


def _step(staged: bool, **training: Any) -> tuple[ir.IRModule, Any]:
    schedule = schedule_of("1f1b", 1, 2) if staged else None
    step = td.train_step(tower(1, 2, tied=staged), schedule=schedule, **training)
    spec, mesh = (PIPELINE, {"pp": 1, "dp": 2}) if staged else ("zero:stage=1", {"dp": 2})
    return step, make_plan(step, spec, mesh)


def _shards(mod: ir.IRModule, side: str) -> dict[str, int]:
    """Count the inputs or outputs of each entry that are sharded along an axis."""
    return {
        str(gv.name_hint): sum("S[" in str(item["placement"]) for item in fn.attrs[IO_ATTR][side])
        for gv, fn in mod.functions.items()
        if fn.attrs and IO_ATTR in fn.attrs
    }


@pytest.mark.parametrize(("staged", "engine"), [(True, "threads"), (False, "virtual")])
def test_the_step_is_equal_by_execution(staged: bool, engine: str) -> None:
    """The results of all devices together are those of one device, new weights included."""
    step, plan = _step(staged, optimizer="sgd", momentum=0.9)
    first = td.distribute(step, plan, system="a100", overlap_optimizer=True)
    last = td.distribute(step, plan, system="a100")
    for side in ("inputs", "outputs"):
        sharded, before = _shards(first, side), _shards(last, side)
        assert sharded.keys() == before.keys()
        assert all(sharded[name] > count for name, count in before.items())
    td.verify(step, plan, engine, dist=first).check()


def test_the_module_is_not_changed_and_its_text_is_the_module() -> None:
    step, plan = _step(False, optimizer="sgd", momentum=0.9)
    local = td.distribute(step, plan)
    text = local.script(show_meta=True)
    first = td.transforms.GatherAtStart()(local)
    assert local.script(show_meta=True) == text
    assert first.script(show_meta=True) != text
    parsed = tvm.script.from_source(first.script(show_meta=True))
    assert tvm_ffi.structural_equal(parsed, first, map_free_vars=True)


@pytest.mark.parametrize("staged", [True, False])
def test_a_step_sends_as_much(staged: bool) -> None:
    """The same bytes are gathered, at another time, and shards that were cut out are read."""
    step, plan = _step(staged, optimizer="sgd", momentum=0.9)
    traffic = [
        td.transforms.traffic(
            td.distribute(step, plan, bucket_bytes=0, overlap_optimizer=overlap)
        ).sent_bytes
        for overlap in (False, True)
    ]
    assert traffic[0] == traffic[1]
    assert any(kind.op == "all_gather" for kind in traffic[0])


def test_a_step_that_gathers_no_new_weight_stays() -> None:
    """Replicated and fully sharded weights have no gather at the end."""
    step = td.train_step(tower(2, 2, tied=False), optimizer="adam")
    for spec in ("data_parallel", "zero:stage=3"):
        plan = make_plan(step, spec, {"dp": 2})
        local = td.distribute(step, plan)
        assert tvm_ffi.structural_equal(td.transforms.GatherAtStart()(local), local)
