# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of steps in micro-batches against a count by hand, for ZeRO 1 to 3 and FSDP.

The model has ``LAYERS`` layers of two bfloat16 matrices, ``x + relu(x @ up) @ down``. With Adam and
float32 masters a parameter takes, on a device that stores it,

====================  =======================================================================
weight                2 bytes; ZeRO 3: a dp-th of that
states                12 bytes, of which a device stores a dp-th
sum of the gradients  4 bytes (float32) from the first to the last micro-batch; from ZeRO 2 on a
                      dp-th of that
====================  =======================================================================

of the parameters of its pipeline rank and tensor shard. Kernels add gradients to the sums where
they are made. While a backward pass runs, there are besides

- the inputs of the layers (full recomputation) of the micro-batches in flight: under 1F1B those
  are ``pp - rank`` on a rank (Narayanan et al. 2021, section 2.2);
- for ZeRO 3 the gathered weights of a layer, of which the last to be read leaves room for a
  gradient, and for ZeRO 2 the gradient of a matrix before it is reduced, in bfloat16.

Behind the last one, ZeRO 1 has the reduced gradients beside the sums, 4 bytes of a dp-th, and the
new weights of ZeRO 1 and 2 are shards before they are gathered, 2 bytes of a dp-th. The data of all
micro-batches are there from the beginning.
"""

from __future__ import annotations

import functools
import itertools

import pytest
from tvm import ir, relax

import tvm_distir as td
from tests.nightly import nightly_but
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support import update_type

LAYERS, WIDTH, INNER, ROWS = 16, 1024, 4096, 512
"""``ROWS`` of a micro-batch are few, so that the work inside of a layer takes little."""
ZERO = {"zero:stage=1": 1, "zero:stage=2": 2, "zero:stage=3": 3, "fsdp": 3}


def perceptron(rows: int) -> ir.IRModule:
    """Return the model for a micro-batch of so many rows of one token each."""
    x, up, down = (
        relax.Var(name, relax.TensorType(shape, "bfloat16"))
        for name, shape in (("x", [rows, WIDTH]), ("up", [WIDTH, INNER]), ("down", [INNER, WIDTH]))
    )
    builder = relax.BlockBuilder()
    with builder.function("layer", [x, up, down]):
        with builder.dataflow():
            inner = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, up))))
            out = builder.emit_output(relax.op.add(x, relax.op.matmul(inner, down)))
        builder.emit_func_output(out)
    layer = builder.get()["layer"].without_attr("global_symbol")
    gv = ir.GlobalVar("layer")
    update_type(gv, layer.ty)
    builder, data = relax.BlockBuilder(), relax.Var("x", x.ty)
    weights = [relax.Var(f"{w.name}{i}", w.ty) for i in range(LAYERS) for w in (up, down)]
    with builder.function("main", [data, *weights]):
        with builder.dataflow():
            value = data
            for i in range(LAYERS):
                value = builder.emit(ir.Call(gv, [value, *weights[2 * i : 2 * i + 2]]))
            out = builder.emit_output(relax.op.astype(value, "float32"))
        builder.emit_func_output(out)
    main = builder.get()["main"].with_attr("num_input", 1)
    return ir.IRModule({gv: layer, ir.GlobalVar("main"): main})


@functools.cache
def training_step(pp: int, micro_batches: int) -> ir.IRModule:
    """Return the step of the model, whose plan is open."""
    schedule = {"kind": "1f1b", "stages": pp, "micro_batches": micro_batches}
    options = {"master": True, "schedule": schedule, "recompute": "full"}
    return td.train_step(perceptron(ROWS), "mse", "adam", **options)


def peaks(strategy: str, dp: int, tp: int, pp: int, micro_batches: int) -> list[int]:
    """Return the peak bytes of a device of each pipeline rank."""
    step = training_step(pp, micro_batches)
    text = f"pipeline:stages={pp},micro_batches={micro_batches}+{strategy}"
    mesh = {"dp": dp, **({"pp": pp} if pp > 1 else {}), **({"tp": tp} if tp > 1 else {})}
    plan = make_plan(step, text + ("+tensor_parallel" if tp > 1 else ""), mesh)
    result = td.simulate(td.export(td.distribute(step, plan)), "a100", kernels="fused")
    return [lane.account.peak_bytes for lane in result.lanes]


def data_bytes(dp: int, pp: int, rank: int, micro_batches: int) -> int:
    """Return the bytes of inputs (bfloat16, on the first rank) and targets (float32, the last)."""
    each = (2 if rank == 0 else 0) + (4 if rank == pp - 1 else 0)
    return micro_batches * ROWS // dp * WIDTH * each


def counted(zero: int, dp: int, tp: int, pp: int, rank: int) -> int:
    """Return the peak bytes of a rank's device, without data, by the formulas above."""
    matrix = WIDTH * INNER // tp
    parameters = LAYERS // pp * 2 * matrix
    weights = 2 * parameters // (dp if zero == 3 else 1)
    states = 12 * parameters // dp
    sums = 4 * parameters // (dp if zero >= 2 else 1)
    inputs = (pp - rank) * LAYERS // pp * 2 * (ROWS // dp) * WIDTH
    inside = {1: 0, 2: 1, 3: 2}[zero] * 2 * matrix
    end = {1: 4, 2: 2, 3: 0}[zero] * parameters // dp
    return weights + states + sums + max(inputs + inside, end)


@pytest.mark.parametrize(
    ("dp", "tp", "pp"),
    nightly_but(itertools.product([2, 4], [1, 2], [1, 2]), {0, 3, 6}),
)
@pytest.mark.parametrize("strategy", ZERO)
def test_peak_is_the_count_by_hand(strategy: str, dp: int, tp: int, pp: int) -> None:
    for rank, peak in enumerate(peaks(strategy, dp, tp, pp, 4)):
        hand = counted(ZERO[strategy], dp, tp, pp, rank) + data_bytes(dp, pp, rank, 4)
        assert peak == pytest.approx(hand, rel=0.02), rank


@pytest.mark.parametrize("strategy", list(ZERO)[:3])
def test_peak_is_flat_in_the_micro_batches(strategy: str) -> None:
    """But for their data."""
    few, many = (
        [peak - data_bytes(2, 2, rank, count) for rank, peak in enumerate(each)]
        for count, each in ((count, peaks(strategy, 2, 1, 2, count)) for count in (4, 32))
    )
    assert few == pytest.approx(many, rel=1e-4)  # blocks of 512 bytes
