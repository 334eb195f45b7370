# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: what they add, that they alone are trained, on one device and on several."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.transforms.training.test_gradient_updates import run_step
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.support.errors.tree import ModelError
from tvm_distir.transforms import merge_adapters, with_adapters


@I.ir_module
class Net:
    """Two layers by one function, whose weight is (out, in), and a head that is (in, out)."""

    @R.function(private=True)
    def layer(x: R.Tensor((4, 6), "float32"), fc_weight: R.Tensor((8, 6), "float32"),
              back_weight: R.Tensor((6, 8), "float32")):  # fmt: skip
        with R.dataflow():
            y = R.tanh(R.matmul(x, R.permute_dims(fc_weight)))
            z = R.add(x, R.matmul(y, R.permute_dims(back_weight)))
            R.output(z)
        return z

    @R.function
    def main(x: R.Tensor((4, 6), "float32"), a_fc_weight: R.Tensor((8, 6), "float32"),
             a_back_weight: R.Tensor((6, 8), "float32"), b_fc_weight: R.Tensor((8, 6), "float32"),
             b_back_weight: R.Tensor((6, 8), "float32"), mid_weight: R.Tensor((6, 6), "float32"),
             head_weight: R.Tensor((6, 5), "float32")) -> R.Tensor((4, 5), "float32"):  # fmt: skip
        cls = Net
        with R.dataflow():
            one = cls.layer(x, a_fc_weight, a_back_weight)
            mid = R.matmul(one, mid_weight)
            two = cls.layer(mid, b_fc_weight, b_back_weight)
            out = R.matmul(two, head_weight)
            R.output(out)
        return out


LORA = "r=2,alpha=6,targets=all-linear"
WEIGHTS = ("a_fc_weight", "a_back_weight", "b_fc_weight", "b_back_weight", "mid_weight")


def names_of(mod):
    return [str(p.name) for p in mod["main"].params]


def test_every_product_but_the_last_has_adapters_of_its_shape():
    main = with_adapters(Net, LORA)["main"]
    shapes = {str(p.name): [int(n) for n in p.ty.shape] for p in main.params[7:]}
    assert len(shapes) == 10
    assert shapes["a_fc_lora_A_weight"] == [2, 6] and shapes["a_fc_lora_B_weight"] == [8, 2]
    assert shapes["mid_lora_A_weight"] == [2, 6] and shapes["mid_lora_B_weight"] == [6, 2]


def test_merged_weights_compute_what_adapters_compute():
    step = td.train_step(Net, "mse", "adamw", lora=LORA, rate=0.5)
    drawn, result = run_step(step)
    kept = {n: v for n, v in drawn.items() if n in names_of(Net)}
    adapters = {n: v for n, v in result.items() if "lora" in n and not n.endswith((".m", ".v"))}
    assert len(adapters) == 10
    merged = merge_adapters(step, {**kept, **adapters})
    assert sorted(merged) == sorted(kept)
    assert all(np.abs(merged[n] - kept[n]).max() > 0.1 for n in WEIGHTS)
    np.testing.assert_array_equal(merged["head_weight"], kept["head_weight"])
    model = with_adapters(Net, LORA)
    values = {**kept, **adapters}
    (ours,) = Reference(model).run([values[n] for n in names_of(model)])
    (plain,) = Reference(Net).run([merged[n] for n in names_of(Net)])
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


def test_the_base_has_no_gradients_and_no_states():
    step = td.train_step(Net, "mse", "adamw", lora="r=2,targets=fc", master=True)
    notes = step["main"].attrs["dist.training"]
    assert sorted(notes["gradients"]) == sorted(notes["states"]) == [
        f"{layer}_fc_lora_{part}_weight" for layer in "ab" for part in "AB"
    ]  # fmt: skip


@pytest.mark.parametrize("strategy", ["data_parallel", "fsdp", "tensor_parallel", "zero:stage=1"])
def test_distributed_steps_are_equal(strategy):
    axis = "tp" if strategy == "tensor_parallel" else "dp"
    step = td.train_step(Net, "mse", "adamw", lora=LORA)
    td.verify(step, td.planning.make_plan(step, strategy, {axis: 2})).check()


def test_megatron_cuts_adapters_as_their_weights():
    step = td.train_step(
        td.zoo.build("llama", {"size": "tiny", "layers": 1}), optimizer="adamw", lora="r=4"
    )
    plan = td.planning.make_plan(step, "megatron:sequence=1", {"tp": 2})
    placed = {r.name: r.placement for r in plan.rules if r.kind == "param"}
    layer = "layers.0.self_attn"
    placements = {
        key: placed[f"{layer}.{key}.weight"]
        for key in ("q_proj.lora_A", "q_proj.lora_B", "o_proj.lora_A", "o_proj.lora_B")
    }
    assert list(placements.values()) == [(-1,), (0,), (1,), (-1,)]
    td.verify(step, plan).check()


def test_stages_train_their_adapters():
    schedule = "1f1b:stages=2,micro_batches=2"
    step = td.train_step(Net, "mse", "adamw", lora="r=2,targets=fc+back", schedule=schedule)
    plan = td.planning.make_plan(step, "pipeline:stages=2,micro_batches=2", {"pp": 2})
    td.verify(step, plan).check()


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ("r=0", '"r=0" is not an option of adapters'),
        ("rank=4", '"rank=4" is not'),
        ("r=4,r=8", '"r=8" is not'),
        ("alpha=-1", '"alpha=-1" is not'),
        ("targets=fcc", 'no product with a weight "fcc"'),
        ("targets=a_fc", "of some calls of layer"),
    ],
)
def test_options_that_fit_nothing_are_refused(lora, message):
    with pytest.raises(ModelError, match=message):
        td.train_step(Net, "mse", lora=lora)


@I.ir_module
class Head:
    """The only product makes the output."""

    @R.function
    def main(x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 2), "float32"),
             ) -> R.Tensor((4, 2), "float32"):  # fmt: skip
        with R.dataflow():
            out = R.matmul(x, w)
            R.output(out)
        return out


def test_a_model_of_its_output_alone_is_refused():
    with pytest.raises(ModelError, match=r"DIST0351 .*no product reads a matrix, but for that"):
        td.train_step(Head, "mse", lora="r=2")


def test_a_model_that_has_adapters_gets_no_others():
    with pytest.raises(ModelError, match="the model has adapters"):
        td.train_step(with_adapters(Net, LORA), "mse", lora=LORA)
