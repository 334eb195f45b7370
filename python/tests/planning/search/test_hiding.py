# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What can be sent beside the work, and labels that take a share of it to be hidden."""

from __future__ import annotations

import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.planning.search.systems import QUICK
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.propagation.placed_module import PlacedModule
from tvm_distir.hardware.auto_sharding.overlap import OverlapDiscount
from tvm_distir.planning.search.auto_sharding import auto_shard
from tvm_distir.support.errors.tree import UsageError


@I.ir_module
class Step:
    """Two updates: of a weight that a function reads twice, and of one that data are added to."""

    @R.function(private=True)
    def half(w: R.Tensor((8, 8), "float32")):
        with R.dataflow():
            scaled = R.multiply(w, R.const(0.5, "float32"))
            R.output(scaled)
        return scaled

    @R.function(private=True)
    def product(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        with R.dataflow():
            wide = R.permute_dims(w)
            y = R.matmul(x, wide)
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        cls = Step
        with R.dataflow():
            small = cls.half(w)
            y = cls.product(x, small)
            z = cls.product(y, w)
            loss = R.sum(z)
            grad = R.matmul(y, z)
            new = R.subtract(w, grad)
            R.output(loss, new)
        return loss, new


def _apart(updated, hidden=0.5):
    """By function the names of the values of which only a part counts."""
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"a": 2}, "rules": []})
    module = PlacedModule.of(td.transforms.AnnotateSharding(plan)(Step))
    key = module.entries["main"]
    hiding = OverlapDiscount(module, key, updated, hidden)
    return {
        g.name: {
            value.name
            for value, counted in zip(g.values, hiding.counted(g.key), strict=bool(hidden))
            if counted == 1 - hidden
        }
        for g in module.graphs.values()
    }


def test_values_that_no_data_went_into_or_that_only_updates_come_of():
    """``z`` is read by the loss too; ``product``'s weight comes from weights in both calls."""
    assert _apart({1: 1}) == {
        "main": {"w", "small", "grad", "new"},
        "half": {"w", "scaled"},
        "product": {"w", "wide"},
    }


def test_without_updates_only_weights_can_be_sent_ahead():
    assert _apart({})["main"] == {"w", "small"}
    assert not any(_apart({1: 1}, hidden=0.0).values())  # everything counts


def _gpt_step(mesh, rules):
    step = td.train_step(td.zoo.gpt(size="tiny", batch=4), optimizer="adam")
    return step, Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": rules})


BETWEEN = {
    *("layer_norm1", "matmul5", "grad", "layer_norm1_grad"),
    *("loss_pair", "log_probs_grad_weights"),
}
"""What is sent and read by products or for the loss, data-parallel with weights that are whole."""


def _beside_s(result):
    """What a device takes to send all else, by simulation."""
    events = td.simulate(result.program(), QUICK, blocking=True).events
    sent = [event for event in events if event.device == 0 and event.stream == "comm"]
    beside = [event.duration_s for event in sent if event.args["binding"] not in BETWEEN]
    assert {event.args["binding"] for event in sent} >= BETWEEN and beside
    return sum(beside)


def test_what_is_hidden_is_that_share_of_what_weights_and_gradients_take():
    """Little enough that the same labels are the cheapest; prices are whole picoseconds."""
    rules = [
        {"param": "*", "placement": "R", "stationary": True},
        {"param": "input_ids", "placement": "S[0]", "stationary": True},
        {"param": "targets", "placement": "S[0]", "stationary": True},
    ]
    step, fixed = _gpt_step({"dp": 2}, rules)
    whole = auto_shard(step, {"dp": 2}, QUICK, fixed=fixed)
    part = auto_shard(step, {"dp": 2}, QUICK, fixed=fixed, hidden=0.05)
    beside_s = _beside_s(whole)
    assert _beside_s(part) == beside_s
    assert whole.price_s - part.price_s == pytest.approx(0.05 * beside_s, rel=2e-3)


@pytest.mark.parametrize("hidden", [0.25, 0.75])
def test_no_label_is_dearer_for_what_is_hidden(hidden):
    """And none is cheaper than as if all that is sent were hidden so far."""
    step, _ = _gpt_step({"dp": 2, "tp": 2}, [])
    whole = auto_shard(step, {"dp": 2, "tp": 2}, QUICK)
    part = auto_shard(step, {"dp": 2, "tp": 2}, QUICK, hidden=hidden)
    assert (1 - hidden) * whole.bound_ps <= part.bound_ps <= part.cost_ps <= whole.cost_ps
    assert part.cost_ps < whole.cost_ps


def test_a_plan_of_such_labels_is_equal_to_one_device():
    step, _ = _gpt_step({"dp": 2, "tp": 2}, [])
    result = auto_shard(step, {"dp": 2, "tp": 2}, QUICK, hidden=0.75)
    report = td.verify(step, td.planning.with_updates(step, result.plan()), engine="virtual")
    assert report.equal and report.collectives


@pytest.mark.parametrize("hidden", [-0.1, 1.0])
def test_what_is_no_share_is_refused(hidden):
    with pytest.raises(UsageError, match="DIST0151"):
        auto_shard(td.zoo.vit(size="tiny"), {"a": 2}, QUICK, hidden=hidden)
