# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Losses keep the dims of their samples where a plan shards an inner one."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir.core.passes import AnnotateSharding

pytestmark = pytest.mark.quick


@I.ir_module
class Losses:
    @R.function
    def main(logits: R.Tensor((4, 6, 5), "float32"), targets: R.Tensor((4, 6), "int32")) -> R.Tuple(
        R.Tensor((24,), "float32"), R.Tensor((), "float32")
    ):
        with R.dataflow():
            flat_logits = R.reshape(logits, (24, 5))
            flat_targets = R.reshape(targets, (24,))
            doubled = R.add(flat_logits, flat_logits)
            each = R.nn.nll_loss(doubled, flat_targets, reduction="none", ignore_index=-100)
            total = R.nn.nll_loss(doubled, flat_targets, reduction="sum", ignore_index=-100)
            R.output(each, total)
        return each, total


def plan_of(mesh, *rules):
    placed = [
        {"param": "logits", "placement": "S[0], S[1]"},
        {"param": "targets", "placement": "S[0], S[1]"},
    ]
    return td.Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": [*placed, *rules]})


@pytest.mark.parametrize("mesh", [{"dp": 2, "cp": 2}, {"dp": 3, "cp": 4}])
def test_sums_of_losses_are_equal_bit_for_bit(mesh):
    rng = np.random.default_rng(0)
    logits = rng.integers(-2, 3, (4, 6, 5)).astype("float32")
    targets = rng.integers(0, 5, (4, 6)).astype("int32")
    targets[1, 2] = -100
    plan = plan_of(mesh)
    each, total = td.run(td.distribute(Losses, plan), [logits, targets], engine="virtual")
    rows = logits.reshape(24, 5)
    picked = -2 * np.take_along_axis(rows, np.maximum(targets, 0).reshape(24, 1), 1)[:, 0]
    wanted = np.where(targets.reshape(24) == -100, 0, picked)
    np.testing.assert_array_equal(each, wanted)
    assert total == wanted.sum()


def test_logits_are_not_moved():
    text = td.distribute(Losses, plan_of({"dp": 2, "cp": 2})).script()
    assert not any(f"R.dist.{name}" in text for name in ("all_to_all", "exchange"))


def test_a_rule_of_a_merged_value_keeps_it():
    plan = plan_of({"dp": 2, "cp": 2}, {"value": "doubled", "placement": "S[0], S[1]"})
    text = AnnotateSharding(plan)(Losses).script()
    assert "doubled_placed" in text and "classes_first" not in text
    rows = AnnotateSharding(plan_of({"dp": 2, "cp": 2}))(Losses).script()
    assert "classes_first" in rows


@pytest.mark.parametrize("seq", [8, 9])
def test_a_training_step_equals_one_device(seq):
    config = {"layers": 1, "hidden": 16, "heads": 4, "vocab": 18, "batch": 4}
    mod = td.zoo.build("gpt", {**config, "seq": seq, "positions": seq})
    step = td.train_step(mod, optimizer="sgd")
    plan = td.planning.make_plan(step, "data_parallel+context_parallel", {"dp": 2, "cp": 2})
    assert "classes_first" in AnnotateSharding(plan)(step).script()
    assert td.verify(step, plan, engine="virtual").equal
