# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""AdamW of 8 bits: steps next to NumPy and bitsandbytes, shards next to one device, bytes."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tests.transforms.training.stepped_values import stepped_values
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule
from tvm_distir.execution.verification.compare import compare_outputs
from tvm_distir.planning.strategies.training_parts import with_updates
from tvm_distir.support.errors.tree import PlanError
from tvm_distir.transforms.training.optimizers.eight_bit_rules import dynamic_map

SHAPES = {"wide": (10, 512), "tall": (512, 6), "odd": (7,), "bias": (512,)}
RATE, DECAY, BETAS = 0.05, 0.1, (0.9, 0.999)


@I.ir_module
class Net:
    """Blocks are parts of rows (wide, bias), cross rows (tall), and fill up (odd)."""

    @R.function
    def main(x: R.Tensor((16, 10), "float32"), wide: R.Tensor((10, 512), "float32"),
             bias: R.Tensor((512,), "float32"), tall: R.Tensor((512, 6), "float32"),
             odd: R.Tensor((7,), "float32")) -> R.Tensor((16, 6), "float32"):  # fmt: skip
        with R.dataflow():
            y = R.tanh(R.add(R.matmul(x, wide), bias))
            out = R.multiply(R.matmul(y, tall), R.sum(odd))
            R.output(out)
        return out


def gradients(values):
    """The gradients of the mean of squared differences."""
    x, wanted, odd = values["x"], values["targets"], values["odd"]
    y = np.tanh(x @ values["wide"] + values["bias"])
    z = y @ values["tall"]
    back = 2 * (z * odd.sum() - wanted) / z.size
    inner = (back * odd.sum() @ values["tall"].T) * (1 - y * y)
    each = np.full(7, (back * z).sum())
    return {
        "wide": x.T @ inner,
        "bias": inner.sum(0),
        "tall": y.T @ (back * odd.sum()),
        "odd": each,
    }


def quantized(moment, table):
    """Codes of the nearest numbers, and scales, of blocks of 256 that follow each other."""
    codes, scales = [], []
    flat = moment.reshape(-1)
    for start in range(0, flat.size, 256):
        block = flat[start : start + 256]
        scales.append(np.abs(block).max())
        distance = np.abs(block[:, None] / max(scales[-1], 1e-38) - table)
        codes.append(distance.argmin(1))
    return np.concatenate(codes).reshape(moment.shape), np.array(scales, "float32")


def dequantized(codes, scales, table):
    each = np.repeat(scales.reshape(-1), 256)[: codes.size]
    return (table[codes.reshape(-1)] * each).reshape(codes.shape).astype("float32")


def of_numpy(first, data, count):
    """The weights and moments after some steps of the published algorithm."""
    tables = {"m": dynamic_map(True), "v": dynamic_map(False)}
    values = {**data, **{n: v.copy() for n, v in first.items()}}
    for name, shape in SHAPES.items():
        for moment in "mv":
            values[f"{name}.{moment}"] = quantized(np.zeros(shape, "float32"), tables[moment])
    for step in range(1, count + 1):
        for name, grad in gradients(values).items():
            m, v = (dequantized(*values[f"{name}.{k}"], tables[k]) for k in "mv")
            m = BETAS[0] * m + (1 - BETAS[0]) * grad
            v = BETAS[1] * v + (1 - BETAS[1]) * grad**2
            move = m / (1 - BETAS[0] ** step) / (np.sqrt(v / (1 - BETAS[1] ** step)) + 1e-8)
            values[name] = values[name] - RATE * (move + DECAY * values[name])
            values[f"{name}.m"] = quantized(m, tables["m"])
            values[f"{name}.v"] = quantized(v, tables["v"])
    return values


def ours(count, **options):
    """The weights before, and all values after some steps from zero states."""
    step = td.train_step(Net, "mse", "adamw8bit", rate=RATE, decay=DECAY, **options)
    return stepped_values(step, SHAPES, count)


def check_weights(values, wanted):
    """Few ratios are beside the middle of two numbers, where rounding decides."""
    for name in SHAPES:
        distance = np.abs(values[name] - wanted[name])
        assert np.mean(distance > 1e-5) < 2e-3 and distance.max() < RATE


def test_steps_are_those_of_the_published_algorithm():
    first, values = ours(3, least=1)
    data = {name: values[name] for name in ("x", "targets")}
    wanted = of_numpy(first, data, 3)
    check_weights(values, wanted)
    for name in SHAPES:
        for moment in "mv":
            codes, scales = wanted[f"{name}.{moment}"]
            mine = values[f"{name}.{moment}"]
            assert mine.dtype == np.uint8 and mine.shape == SHAPES[name]
            assert np.mean(mine != codes) < 2e-3
            got = values[f"{name}.{moment}_absmax"].reshape(-1)
            np.testing.assert_allclose(got, scales, rtol=1e-4)


def test_steps_are_those_of_bitsandbytes(monkeypatch):
    """bitsandbytes quantizes float64 to the nearest number; float32 by a coarser table on CPUs."""
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from bitsandbytes.backends.cpu import ops

    def nearest(numbers, code, scales, codes, block):
        new = torch.ops.bitsandbytes.quantize_blockwise(numbers.double(), code, block)
        codes.copy_(new[0])
        scales.copy_(new[1])

    monkeypatch.setattr(ops, "_quant_blockwise_fp32_direct", nearest)
    for signed in (True, False):
        table = bnb.functional.create_dynamic_map(signed).numpy()
        np.testing.assert_allclose(dynamic_map(signed), table, rtol=1e-6)
    first, values = ours(3, least=100)
    weights = {n: torch.tensor(v, requires_grad=True) for n, v in first.items()}
    adam = bnb.optim.AdamW8bit(
        weights.values(), lr=RATE, weight_decay=DECAY, betas=BETAS, min_8bit_size=100
    )
    x, targets = torch.tensor(values["x"]), torch.tensor(values["targets"])
    for _ in range(3):
        y = torch.tanh(x @ weights["wide"] + weights["bias"])
        out = y @ weights["tall"] * weights["odd"].sum()
        adam.zero_grad()
        torch.nn.functional.mse_loss(out, targets).backward()
        adam.step()
    assert values["odd.m"].dtype == np.float32
    check_weights(values, {name: weight.detach().numpy() for name, weight in weights.items()})
    for name in ("wide", "tall", "bias"):
        for mine, theirs in (("m", "state1"), ("v", "state2")):
            codes = adam.state[weights[name]][theirs].numpy()
            assert np.mean(values[f"{name}.{mine}"] != codes) < 2e-3


@pytest.mark.parametrize(
    "strategy, mesh",
    [
        ("data_parallel", {"dp": 2}),
        ("zero:stage=1", {"dp": 2}),
        ("fsdp", {"dp": 2}),
        ("tensor_parallel", {"tp": 2}),
    ],
)
def test_sharded_steps_are_equal(strategy, mesh):
    step = td.train_step(Net, "mse", "adamw8bit", least=64)
    plan = td.planning.make_plan(step, strategy, mesh)
    td.verify(step, plan).check()


@I.ir_module
class Large:
    """A weight of 2^21 elements, whose rows have two blocks."""

    @R.function
    def main(x: R.Tensor((4, 4096), "float32"), w: R.Tensor((4096, 512), "float32"),
             ) -> R.Tensor((4, 512), "float32"):  # fmt: skip
        with R.dataflow():
            out = R.matmul(x, w)
            R.output(out)
        return out


def test_shards_that_cut_blocks_are_refused():
    step = td.train_step(Large, "mse", "adamw8bit")
    rule = PlanRule("param", "w", (1,))
    for devices in (2, 4):
        plan = Plan((MeshSpec("mesh0", {"tp": devices}),), (rule,))
        if devices == 4:
            with pytest.raises(PlanError, match=r'DIST0234 w: .*dim 1 over "tp" \(4\)'):
                with_updates(step, plan)
        else:
            assert PlanRule("param", "w.m_absmax", (1,)) in with_updates(step, plan).rules


def test_small_weights_whose_blocks_would_be_cut_have_replicated_states():
    step = td.train_step(Net, "mse", "adamw8bit", least=64)
    plan = td.planning.make_plan(step, "zero:stage=1", {"dp": 4})
    rules = {rule.name: rule.placement for rule in plan.rules}
    assert rules["tall.m"] == rules["tall.m_absmax"] == (0,)
    assert rules["wide.m"] == rules["wide.m_absmax"] == (-1,)
    assert rules["bias.m"] == rules["bias.m_absmax"] == (-1,)
    td.verify(step, plan).check()


def test_states_and_kernels_have_the_bytes_of_a_hand_count():
    """Per parameter: 2 codes and 2 / 256 scales of 4 bytes, and a master; a kernel per weight."""
    analysis = td.analyze(
        "zoo:llama?layers=2,hidden=512,heads=8,kv_heads=8,ffn=1024,vocab=2048,seq=64",
        strategy="fsdp", mesh={"dp": 2}, batch=2, system="h100", advice="bounds",
        train={"optimizer": "adamw8bit"},
    )  # fmt: skip
    found = analysis.to_dict()
    matrices = 2 * (4 * 512 * 512 + 3 * 512 * 1024) + 2 * 2048 * 512
    norms, counter = 5 * 512, 512
    wanted = matrices / 2 * (4 + 2 + 2 * 4 / 256) + norms / 2 * 12 + counter
    assert found["memory"][0]["at_peak"]["states"] == wanted
    kernels = {op["module"]: op for op in found["ops"] if "adam" in op["op"]}
    down = kernels["layers.*.mlp.down_proj"]
    assert down["count"] == 2
    each = 2 + 2 + 8 + 4 + 4 * 4 / 256  # gradient, weight, master, codes, scales
    assert down["bytes_moved"] == pytest.approx(512 * 1024 * each, rel=2e-3)


@pytest.mark.parametrize("change, equal", [(1, True), (2, False)])
@pytest.mark.parametrize("count", [2, 50])
def test_few_codes_may_be_next_to_those_of_the_reference(change, equal, count):
    codes = np.full(1000, 7, "uint8")
    other = codes.copy()
    other[:count] += change
    verdicts = [
        compare_outputs([other], [codes], "float32", exact, None, None, training)[0].equal
        for exact, training in ((False, True), (False, False), (True, True))
    ]
    assert verdicts == [equal and count == 2, False, False]
